"""The functions of ADK's ``AgentEvaluator``, beside ADK's own on the same agents and files."""

from __future__ import annotations

import asyncio
import csv
import inspect
import itertools
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import pytest
from google.adk.evaluation.agent_evaluator import AgentEvaluator as AdkEvaluator
from google.adk.evaluation.eval_config import EvalConfig as AdkConfig
from google.adk.evaluation.eval_metrics import EvalMetric, EvalStatus, ToolTrajectoryCriterion
from google.adk.evaluation.eval_set import EvalSet as AdkEvalSet
from google.adk.evaluation.evaluator import EvaluationResult, PerInvocationResult
from google.adk.models.llm_request import LlmRequest

from mlflow_adk_eval.errors import ConfigError, EvalSetError, UsageError
from mlflow_adk_eval.evalset.files import load_eval_set
from mlflow_adk_eval.testing import AgentEvaluator, ScriptedJudge, evaluate_agent
from tests.agents.scripted import call, llm, ping, results, text, user_text
from tests.kit import turn_json

pytestmark = [
    pytest.mark.needs("google-adk", "2.13"),
    pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning"),  # said of ADK's own evaluation classes
]

BOTH = pytest.mark.parametrize("evaluator", [AdkEvaluator, AgentEvaluator], ids=["adk", "ours"])
STRICT = {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.8}


def answers(request: LlmRequest) -> Any:
    """Ping when told to, else repeat what the user said."""
    if results(request):
        return text("pong")
    return [call("ping")] if user_text(request) == "ping" else text(f"echo {user_text(request)}")


def scripted(script: Callable[[LlmRequest], Any]) -> Any:
    return llm(script, name="scripted", tools=[ping])


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[LlmRequest], Any]], str]:
    """Make an importable module of an agent, and return its name."""
    numbers = itertools.count()

    def make(script: Callable[[LlmRequest], Any]) -> str:
        name = f"agent_under_test_{next(numbers)}"
        found: Any = module_from_spec(ModuleSpec(name, None))
        found.agent = module_from_spec(ModuleSpec(f"{name}.agent", None))
        found.agent.root_agent = scripted(script)
        monkeypatch.setitem(sys.modules, name, found)
        return name

    return make


PASSING = {"eval_id": "passing", "conversation": [turn_json("hello", "echo hello"), turn_json("ping", "pong", "ping")]}
MISSING_CALL = {"eval_id": "missing_call", "conversation": [turn_json("good morning", "echo good morning", "ping")]}


def write(folder: Path, *cases: dict[str, Any], name: str = "a", config: dict[str, Any] | None = None) -> str:
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.test.json"
    file.write_text(json.dumps({"eval_set_id": name, "eval_cases": list(cases)}))
    (folder / "test_config.json").write_text(json.dumps(config or {"criteria": STRICT}))
    return str(file)


def run(awaitable: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await awaitable

    return asyncio.run(main())


def failure(awaitable: Awaitable[Any]) -> str:
    with pytest.raises(AssertionError) as raised:
        run(awaitable)
    return str(raised.value)


class TestAgreement:
    @BOTH
    def test_what_passes(self, evaluator: Any, module: Any, tmp_path: Path) -> None:
        run(evaluator.evaluate(module(answers), write(tmp_path, PASSING), print_detailed_results=False))

    @BOTH
    def test_what_fails(self, evaluator: Any, module: Any, tmp_path: Path) -> None:
        said = failure(
            evaluator.evaluate(module(answers), write(tmp_path, PASSING, MISSING_CALL), num_runs=1, print_detailed_results=False)
        )
        assert "tool_trajectory_avg_score" in said
        assert "response_match_score" not in said.replace("response_match_score is 1 (≥ 0.8)", "")

    @BOTH
    def test_a_folder(self, evaluator: Any, module: Any, tmp_path: Path) -> None:
        write(tmp_path / "one", PASSING)
        write(tmp_path / "two", MISSING_CALL, config={"criteria": {"response_match_score": 0.8}})
        run(evaluator.evaluate(module(answers), str(tmp_path), num_runs=1, print_detailed_results=False))

    @BOTH
    def test_a_legacy_file_with_its_session(self, evaluator: Any, module: Any, tmp_path: Path) -> None:
        def greets(request: LlmRequest) -> Any:
            return text(str(request.config.system_instruction).rpartition("Greet ")[2].split(".")[0])

        name = module(greets)
        sys.modules[name].agent.root_agent.instruction = "Greet {name}."  # type: ignore[attr-defined]
        file = tmp_path / "old.test.json"
        file.write_text(json.dumps([{"query": "hi", "reference": "Ada", "expected_tool_use": []}]))
        session = tmp_path / "initial.session.json"
        session.write_text(json.dumps({"app_name": "app", "user_id": "u", "state": {"name": "Ada"}}))
        run(evaluator.evaluate(name, str(file), 1, None, str(session), print_detailed_results=False))
        session.write_text(json.dumps({"app_name": "app", "user_id": "u", "state": {"name": "Grace"}}))
        assert "response_match_score" in failure(evaluator.evaluate(name, str(file), 1, None, str(session), print_detailed_results=False))

    @BOTH
    def test_a_sub_agent(self, evaluator: Any, module: Any, tmp_path: Path) -> None:
        name = module(lambda request: text("nothing"))
        sys.modules[name].agent.root_agent = llm(lambda request: text("nothing"), sub_agents=[scripted(answers)])  # type: ignore[attr-defined]
        run(evaluator.evaluate(name, write(tmp_path, PASSING), 1, "scripted", print_detailed_results=False))
        failure(evaluator.evaluate(name, write(tmp_path, PASSING), 1, print_detailed_results=False))

    @BOTH
    def test_an_agent_that_fails(self, evaluator: Any, module: Any, tmp_path: Path) -> None:
        def breaks(request: LlmRequest) -> Any:
            raise LookupError("the model is down")

        said = failure(evaluator.evaluate(module(breaks), write(tmp_path, PASSING), num_runs=1, print_detailed_results=False))
        assert ("the model is down" in said) == (evaluator is AgentEvaluator)  # Q21: ADK loses the reason

    @BOTH
    @pytest.mark.parametrize(("criteria", "passes"), [({"response_match_score": 0.8}, True), ({"tool_trajectory_avg_score": 1.0}, False)])
    def test_eval_sets_as_objects(self, evaluator: Any, module: Any, tmp_path: Path, criteria: dict[str, float], passes: bool) -> None:
        eval_set = AdkEvalSet.model_validate_json(Path(write(tmp_path, MISSING_CALL)).read_text())
        given = evaluator.evaluate_eval_set(module(answers), eval_set, criteria, num_runs=1, print_detailed_results=False)
        run(given) if passes else failure(given)

    @BOTH
    def test_settings_of_adk_objects(self, evaluator: Any, module: Any, tmp_path: Path) -> None:
        more = {"eval_id": "more", "conversation": [turn_json("ping", "pong")]}
        eval_set = AdkEvalSet.model_validate_json(Path(write(tmp_path, more)).read_text())
        name = module(answers)
        for match_type, passes in ((ToolTrajectoryCriterion.MatchType.IN_ORDER, True), (ToolTrajectoryCriterion.MatchType.EXACT, False)):
            config = AdkConfig(criteria={"tool_trajectory_avg_score": ToolTrajectoryCriterion(threshold=1.0, match_type=match_type)})
            given = evaluator.evaluate_eval_set(name, eval_set, eval_config=config, num_runs=1, print_detailed_results=False)
            run(given) if passes else failure(given)

    @BOTH
    def test_calls_that_make_no_sense(self, evaluator: Any, module: Any, tmp_path: Path) -> None:
        name, file = module(answers), write(tmp_path, PASSING)
        empty = AdkEvalSet(eval_set_id="e", eval_cases=[])
        (tmp_path / "nothing").mkdir()
        for wrong in (
            evaluator.evaluate(name, file, num_runs=0),
            evaluator.evaluate(name, str(tmp_path / "nothing")),
            evaluator.evaluate_eval_set(name, empty, {"response_match_score": 0.8}),
            evaluator.evaluate_eval_set(name, AdkEvalSet.model_validate_json(Path(file).read_text())),
        ):
            with pytest.raises(ValueError, match=r"num_runs|No `\*.test.json`|no \*.test.json|no .*cases|eval_config"):
                run(wrong)

    def test_the_same_signatures(self) -> None:
        for name in ("evaluate", "evaluate_eval_set", "find_config_for_test_file", "migrate_eval_data_to_new_schema"):
            theirs, ours = (
                {parameter.name: parameter.default for parameter in inspect.signature(getattr(cls, name)).parameters.values()}
                for cls in (AdkEvaluator, AgentEvaluator)
            )
            assert ours == theirs
            assert list(ours) == list(theirs)

    def test_rows_of_the_csv_file(self, module: Any, tmp_path: Path) -> None:
        name, file = module(answers), write(tmp_path, PASSING, MISSING_CALL)
        rows: list[list[dict[str, str]]] = []
        for evaluator in (AdkEvaluator, AgentEvaluator):
            output = tmp_path / "out" / f"{evaluator.__module__}.csv"
            for _ in range(2):  # the second adds to the first
                failure(evaluator.evaluate(name, file, 1, print_detailed_results=False, output_file=str(output)))
            with output.open() as opened:
                rows.append(list(csv.DictReader(opened)))
        theirs, ours = rows
        informed = [row for row in ours if row["eval_status"] != "INFORMATIONAL"]
        told = [row for row in theirs if row["eval_status"] != "INFORMATIONAL"]
        shared = [column for column in theirs[0] if not column.endswith("tool_calls")]

        def key(row: dict[str, str]) -> tuple[Any, ...]:
            return tuple(float(row[column]) if column in ("score", "threshold") else row[column] for column in shared)

        assert sorted(map(key, informed)) == sorted(map(key, told))
        assert len(informed) == 12
        assert {row["expected_tool_calls"] for row in ours} == {"", "ping({})"}


def partial_metric(eval_metric: EvalMetric, actual: Any, expected: Any, scenario: Any = None) -> EvaluationResult:
    """Has no score for the first turn."""
    turns = [
        PerInvocationResult(actual_invocation=got, expected_invocation=want, score=score, eval_status=status)
        for got, want, score, status in zip(actual, expected, (None, 1.0), (EvalStatus.NOT_EVALUATED, EvalStatus.PASSED), strict=True)
    ]
    return EvaluationResult(overall_score=1.0, overall_eval_status=EvalStatus.PASSED, per_invocation_results=turns)


class TestWhereAdkIsWrong:
    """Each quirk (see docs/development/parity.md) in ADK's own evaluator, then in ours."""

    def test_q17_a_good_run_makes_up_for_a_bad_one(self, module: Any, tmp_path: Path) -> None:
        def every_other(words: Iterator[str]) -> str:
            return module(lambda request: text(next(words)))

        file = write(
            tmp_path, {"eval_id": "c", "conversation": [turn_json("hi", "yes")]}, config={"criteria": {"response_match_score": 0.5}}
        )
        run(AdkEvaluator.evaluate(every_other(itertools.cycle(["yes", "no"])), file, 2, print_detailed_results=False))
        said = failure(AgentEvaluator.evaluate(every_other(itertools.cycle(["yes", "no"])), file, 2, print_detailed_results=False))
        assert said.startswith("1 of 2 case runs did not pass\nflaky: c: 1 of 2 runs passed, 1 failed\n\nfailed: c (run ")

    def test_q28_a_folder_stops_at_the_first_failing_file(self, module: Any, tmp_path: Path) -> None:
        for name in ("one", "two"):
            write(tmp_path / name, MISSING_CALL | {"eval_id": f"case_{name}"})
        theirs = failure(AdkEvaluator.evaluate(module(answers), str(tmp_path), 1, print_detailed_results=False))
        assert theirs.count("tool_trajectory_avg_score for") == 1
        assert "case_" not in theirs
        ours = failure(AgentEvaluator.evaluate(module(answers), str(tmp_path), 1, print_detailed_results=False))
        assert ours.index("failed: case_one (") < ours.index("failed: case_two (")
        assert str(tmp_path / "two" / "a.test.json") in ours

    def test_q3_a_turn_without_a_score_leaves_the_mean(self, module: Any, tmp_path: Path) -> None:
        metric = {"code_config": {"name": f"{__name__}.partial_metric"}}
        sys.modules.setdefault(__name__, sys.modules[TestWhereAdkIsWrong.__module__])
        file = write(tmp_path, PASSING, config={"criteria": {"partial": 0.5}, "custom_metrics": {"partial": metric}})
        run(AdkEvaluator.evaluate(module(answers), file, 1, print_detailed_results=False))
        said = failure(AgentEvaluator.evaluate(module(answers), file, 1, print_detailed_results=False))
        assert "undecided: passing" in said
        assert "partial was NOT EVALUATED: invocation 1 of 2: the metric gave no score" in said

    def test_q26_a_misspelt_config_has_no_criteria(self, module: Any, tmp_path: Path) -> None:
        file = write(tmp_path, MISSING_CALL, config={"criterias": STRICT})
        run(AdkEvaluator.evaluate(module(answers), file, 1, print_detailed_results=False))
        with pytest.raises(ConfigError, match="Did you mean 'criteria'"):
            run(AgentEvaluator.evaluate(module(answers), file, 1, print_detailed_results=False))

    def test_q18_a_silent_turn_loses_all_other_cases(self, module: Any, tmp_path: Path) -> None:
        def falls_silent(request: LlmRequest) -> Any:
            return None if user_text(request) == "ping" else text(f"echo {user_text(request)}")

        fine = {"eval_id": "fine", "conversation": [turn_json("hello", "echo hello")]}
        file = write(tmp_path, fine, PASSING)
        with pytest.raises(ValueError, match="Inferences should match conversations"):
            run(AdkEvaluator.evaluate(module(falls_silent), file, 1, print_detailed_results=False))
        said = failure(AgentEvaluator.evaluate(module(falls_silent), file, 1, print_detailed_results=False))
        assert said.startswith("1 of 2 case runs did not pass\n\nfailed: passing (")

    def test_q25_the_mistakes_of_a_file(self, module: Any, tmp_path: Path) -> None:
        file = write(tmp_path, {"eval_id": "c", "conversation": [{"user_content": {"parts": [{"text": "hi"}]}, "final_respones": {}}]})
        with pytest.raises((TypeError, ValueError, KeyError)) as theirs:
            run(AdkEvaluator.evaluate(module(answers), file, 1, print_detailed_results=False))
        assert "final_respones" not in str(theirs.value)
        with pytest.raises(EvalSetError, match="final_respones"):
            run(AgentEvaluator.evaluate(module(answers), file, 1, print_detailed_results=False))


MESSAGE = """\
1 of 2 case runs did not pass

failed: missing_call ({file})
  tool_trajectory_avg_score is 0, below its threshold 1
  response_match_score is 1 (≥ 0.8)

  turn 1  user: good morning
    tool calls (- expected, + the agent's)
      - ping({{}})
    answered as expected: echo good morning
    tool_trajectory_avg_score 0: 0 of 1 expected calls match (EXACT)."""


class TestOurs:
    def test_the_message(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = write(tmp_path, PASSING, MISSING_CALL)
        assert failure(evaluate_agent(scripted(answers), file, 1)) == MESSAGE.format(file=file)
        printed = capsys.readouterr().out
        assert "passed: passing\nturn 1  user: hello\n  answered as expected: echo hello\n" in printed
        assert "  tool_trajectory_avg_score 1: No call was expected or made.\n" in printed
        assert "failed: missing_call\n" in printed
        failure(evaluate_agent(scripted(answers), file, 1, print_detailed_results=False))
        assert not capsys.readouterr().out

    def test_reports(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            write(tmp_path / name, PASSING, name=name)
        reports = run(evaluate_agent(scripted(answers), tmp_path, print_detailed_results=False))
        assert [(report.eval_set.eval_set_id, report.verdict, len(report.cases)) for report in reports] == [
            ("one", "passed", 2),
            ("two", "passed", 2),
        ]
        (selected,) = run(evaluate_agent(scripted(answers), f"{write(tmp_path, PASSING, MISSING_CALL)}:passing", 1))
        assert [case.eval_id for case in selected.cases] == ["passing"]

    def test_a_judge_and_a_config_of_the_call(self, tmp_path: Path) -> None:
        judge = ScriptedJudge("invalid", rationale="it only repeats")
        config = {"criteria": {"final_response_match_v2": 0.5}}
        given = evaluate_agent(scripted(answers), write(tmp_path, PASSING), 1, config=config, judge=judge, ledger=False)
        said = failure(given)
        assert "final_response_match_v2 0: invalid 3:0: it only repeats" in said
        assert len(judge.asked("final_response_match_v2")) == 6

    def test_an_empty_file_is_no_pass(self, tmp_path: Path) -> None:
        write(tmp_path / "one", PASSING)
        empty = write(tmp_path / "two")
        said = failure(evaluate_agent(scripted(answers), tmp_path, 1, print_detailed_results=False))
        assert said == f"0 of 1 case runs did not pass\n\n{empty}: no cases, so there is nothing to evaluate"

    @pytest.mark.parametrize("name", ["artifact_service", "eval_set_results_manager"])
    def test_services_that_cannot_be_chosen(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UsageError, match=f"{name}: cannot be set here; "):
            run(AgentEvaluator.evaluate("agent", write(tmp_path, PASSING), **{name: object()}))

    def test_what_is_found_before_the_agent_is_called(self, tmp_path: Path) -> None:
        file = write(tmp_path, PASSING)
        with pytest.raises(UsageError, match="there is no module 'no_such_agent'"):
            run(evaluate_agent("no_such_agent", file))
        with pytest.raises(UsageError, match="concurrency=0"):
            run(evaluate_agent(scripted(answers), file, concurrency=0))
        with pytest.raises(UsageError, match="wanted both"):
            AgentEvaluator.migrate_eval_data_to_new_schema("", "new.json")

    def test_configs_and_migration(self, tmp_path: Path) -> None:
        old, new = tmp_path / "old.test.json", tmp_path / "new.test.json"
        old.write_text(json.dumps([{"query": "hi", "reference": "Ada"}]))
        assert list(AgentEvaluator.find_config_for_test_file(old).criteria) == list(
            AdkEvaluator.find_config_for_test_file(str(old)).criteria
        )
        AgentEvaluator.migrate_eval_data_to_new_schema(old, new)
        assert AdkEvalSet.model_validate_json(new.read_text()).eval_cases[0].conversation[0].final_response.parts[0].text == "Ada"
        assert load_eval_set(new).eval_ids == ("old",)

    def test_a_judge_alone_costs_little(self) -> None:
        code = "import sys\nfrom mlflow_adk_eval.testing import ScriptedJudge\nprint(*sys.modules)"
        loaded = set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())
        assert not loaded & {"google.adk", "google.genai", "mlflow", "pandas", "mlflow_adk_eval.runner", "mlflow_adk_eval.agents"}
