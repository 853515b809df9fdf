"""The metrics of the Rapid Eval API as criteria of a conversation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from mlflow_adk_eval import evaluate, metrics, scorers
from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.rapid.computed import computed_score
from mlflow_adk_eval.errors import ConfigError, UsageError
from mlflow_adk_eval.evalset.files import write_eval_set
from mlflow_adk_eval.evalset.models import AgentDetails, AppDetails, Invocation
from mlflow_adk_eval.results.outcomes import Errored, Scored
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.testing import ScriptedJudge
from tests.kit import call, case, cases, scenario, turn
from tests.mlflow_kit import copied

COMPUTED = [metric.criterion for metric in RAPID_METRICS.values() if metric.kind == "computed"]
JUDGED = [metric for metric in RAPID_METRICS.values() if metric.kind == "judged"]
PAIRWISE = [metric.criterion for metric in RAPID_METRICS.values() if metric.kind == "pairwise"]


def judged(criterion: str, actual: Any, expected: Any, judge: Any, baseline: Any = None, **given: Any) -> Any:
    config = {"criteria": {criterion: {"threshold": CRITERIA[criterion].bounds[1], **given}}}
    report = score(cases(case("c", *expected)), {"c": list(actual)}, config, judge, baseline=baseline)
    return report.cases[0].results[0]


def test_every_metric_is_a_criterion_with_its_range_and_direction() -> None:
    assert [name for name in CRITERIA if name.startswith("rapid_eval_")] == [metric.criterion for metric in RAPID_METRICS.values()]
    for metric in RAPID_METRICS.values():
        spec = CRITERIA[metric.criterion]
        verbosity = metric.name == "summarization_verbosity"
        assert spec.bounds == ((0.0, 2.0) if verbosity else metric.bounds)
        assert spec.greater_is_better is not verbosity
        with pytest.raises(ConfigError, match="a number from"):
            parse_config({"criteria": {metric.criterion: spec.bounds[1] + 1}}, "config")


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.needs("sacrebleu")
def test_a_computed_metric_scores_each_turn_beside_its_reference(name: str) -> None:
    actual = [turn("The cat sat.", call("f", x=1, y=2)), turn("no", call("g"))]
    expected = [turn("A cat sat.", call("f", x=1, y=3)), turn("no", call("g"))]
    found = [cell.score for cell in judged(name, actual, expected, None).per_invocation]
    if "tool" in name:
        assert found[1] == 1
        assert found[0] == {"rapid_eval_tool_parameter_kv_match": 0.5}.get(name, 1)
    else:
        texts = {"prediction": "The cat sat.", "reference": "A cat sat."}
        assert found == [computed_score(name.removeprefix("rapid_eval_"), {}, texts), found[1]]


def test_settings_reach_the_metric() -> None:
    actual, expected = [turn("running cats")], [turn("run cat")]
    assert judged("rapid_eval_rouge", actual, expected, None).score == 0
    assert judged("rapid_eval_rouge", actual, expected, None, use_stemmer=True, rouge_type="rougeL").score == 1
    with pytest.raises(ConfigError, match=r"rouge_type"):
        parse_config({"criteria": {"rapid_eval_rouge": {"threshold": 1, "rouge_type": "rouge10"}}}, "config")


def test_a_turn_without_calls_on_either_side_has_no_wrong_call() -> None:
    for name in COMPUTED:
        if "tool" in name:
            assert judged(name, [turn("a")], [turn("b")], None).score == 1
            assert judged(name, [turn("a", call("f"))], [turn("b")], None).score == float(name.endswith(("valid", "key_match", "kv_match")))


@pytest.mark.parametrize("name", [*COMPUTED, *PAIRWISE])
def test_scenarios_are_refused_where_a_reference_is_needed(name: str) -> None:
    asked = ScriptedJudge({})
    config = {"criteria": {name: CRITERIA[name].bounds[0]}}
    with pytest.raises(UsageError, match=r"reference|baseline"):
        score(cases(scenario("s")), {"s": [turn("a")]}, config, asked)
    assert asked.requests == []


@pytest.mark.parametrize("metric", JUDGED, ids=lambda metric: metric.name)
def test_a_judged_metric_shows_what_the_turn_is_about(metric: Any) -> None:
    app = AppDetails(agent_details={"root": AgentDetails(name="root", instructions="Be brief.")})
    told = Invocation.model_validate(turn("Bern.", call("search", q="capital"), user="Capital?").model_dump()).model_copy(
        update={"app_details": app}
    )
    asked = ScriptedJudge(lambda request: str(request.schema["properties"]["verdict"]["enum"][0]))
    judged(metric.criterion, [told], [turn("Bern")], asked)
    blocks = asked.requests[0].blocks
    assert set(blocks) == set(metric.fields)
    assert blocks["prediction"] == "Bern."
    if "instruction" in metric.fields:
        assert blocks["instruction"] == "Capital?"
    if "context" in metric.fields:
        assert "Be brief." in blocks["context"]
        assert '"q":"capital"' in blocks["context"]


def test_the_instruction_may_be_the_agents_and_the_reference_may_be_shown() -> None:
    app = AppDetails(agent_details={"root": AgentDetails(name="root", instructions="Be brief.")})
    told = turn("Bern.", user="Capital?").model_copy(update={"app_details": app})
    asked = ScriptedJudge("5")
    judged("rapid_eval_fulfillment", [told], [turn("Bern")], asked, instruction="agent_instructions")
    assert "Be brief." in asked.requests[0].blocks["instruction"]
    name = "rapid_eval_question_answering_correctness"
    asked = ScriptedJudge("1")
    judged(name, [told], [turn("Bern")], asked, use_reference=True)
    assert asked.requests[0].blocks["reference"] == "Bern"
    (cell,) = judged(name, [told], [turn(None)], asked, use_reference=True).per_invocation
    assert cell == Errored("the turn has no expected response as a reference")
    (cell,) = judged("rapid_eval_fulfillment", [turn("x")], [turn("x")], asked, instruction="agent_instructions").per_invocation
    assert isinstance(cell, Errored)


@pytest.mark.parametrize(("grade", "distance"), [("-2", 2), ("-1", 1), ("0", 0), ("1", 1), ("2", 2)])
def test_verbosity_is_the_distance_from_the_best_length(grade: str, distance: int) -> None:
    found = judged("rapid_eval_summarization_verbosity", [turn("x y")], [turn("x")], ScriptedJudge(grade), threshold=1)
    assert isinstance(found.overall, Scored)
    assert found.score == distance
    assert found.per_invocation[0].details["rating"] == float(grade)
    assert found.passed is (distance <= 1)


def better(request: Any) -> str:
    first, second = len(request.blocks["first_response"]), len(request.blocks["second_response"])
    return "first" if first > second else "second" if second > first else "tie"


@pytest.mark.parametrize("name", PAIRWISE)
def test_a_pairwise_metric_chooses_between_the_run_and_the_baseline(name: str) -> None:
    actual, expected = [turn("much longer"), turn("s"), turn("same"), turn("ab")], [turn("x")] * 4
    baseline = {"c": [turn("short"), turn("longer"), turn("same"), turn("cd")]}
    found = judged(name, actual, expected, ScriptedJudge(better), baseline)
    assert [cell.score for cell in found.per_invocation] == [1, 0, 0.5, 0.5]
    assert {vote.rubric_id for vote in found.votes} == {"baseline_first", "candidate_first"}
    assert {vote.verdict for vote in found.votes if vote.invocation_index == 0} == {"CANDIDATE"}


def test_what_the_baseline_lacks_is_an_error_and_no_win() -> None:
    short = judged(PAIRWISE[0], [turn("a"), turn("b")], [turn("x")] * 2, ScriptedJudge(better), {"c": [turn("long")]})
    assert [type(cell) for cell in short.per_invocation] == [Scored, Errored]
    assert judged(PAIRWISE[0], [turn("a")], [turn("x")], ScriptedJudge(better), {"d": []}).overall == Errored(
        "invocation 1 of 1: there is no baseline for this case to compare with"
    )
    with pytest.raises(UsageError, match="baseline="):
        judged(PAIRWISE[0], [turn("a")], [turn("x")], ScriptedJudge(better))


def test_a_run_is_compared_with_an_earlier_one(template: Path, tmp_path: Path) -> None:
    store = copied(template, tmp_path)
    eval_set = cases(case("c", turn("x", user="hi")))
    config = {"criteria": {"rapid_eval_exact_match": 0.0}}

    def before(_text: str, _session: Any) -> str:
        return "brief"

    def after(_text: str, _session: Any) -> str:
        return "at some length"

    first = evaluate(eval_set, before, config, tracking_uri=store, ledger=False)
    pairs = {"criteria": dict.fromkeys(PAIRWISE, 0.5)}
    chosen: Report = evaluate(
        eval_set, after, pairs, tracking_uri=store, judge=ScriptedJudge(better), ledger=False, baseline=f"runs:/{first.run_id}"
    )
    assert chosen.scores == dict.fromkeys(PAIRWISE, 1.0)
    import mlflow

    params = mlflow.MlflowClient(store).get_run(str(chosen.run_id)).data.params
    assert params["adk_eval.baseline"] == f"runs:/{first.run_id}"
    with pytest.raises(UsageError, match="baseline="):
        evaluate(eval_set, after, pairs, tracking_uri=store, judge=ScriptedJudge(better), ledger=False)


def test_each_is_a_metric_and_a_scorer_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_GENAI_EVAL_MAX_WORKERS", "4")
    for metric in RAPID_METRICS.values():
        threshold = CRITERIA[metric.criterion].bounds[1]
        made = getattr(metrics, metric.criterion)(
            threshold=threshold, **({"judge": ScriptedJudge({})} if metric.kind != "computed" else {})
        )
        assert (made.name, made.greater_is_better) == (metric.criterion, CRITERIA[metric.criterion].greater_is_better)
        assert metric.about in str(made.metric_details)
    assert scorers.rapid_eval_rouge(threshold=0.5, rouge_type="rougeL").name == "rapid_eval_rouge"


def test_the_command_line_compares_with_a_recording_or_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, answer in (("before", "short"), ("after", "at some length"), ("expected", "x")):
        write_eval_set(cases(case("c", turn(answer))), tmp_path / f"{name}.evalset.json")
    (tmp_path / "config.json").write_text(json.dumps({"criteria": dict.fromkeys(PAIRWISE, 0.6)}))
    monkeypatch.setitem(sys.modules, "longer", SimpleNamespace(judge=ScriptedJudge(better)))
    words = ["score", "expected.evalset.json", "--actual", "after.evalset.json", "--config", "config.json", "--judge", "longer:judge"]
    passed = CliRunner().invoke(cli, [*words, "--baseline", "before.evalset.json", "--ledger", "off"])
    assert passed.exit_code == 0, passed.output
    lost = CliRunner().invoke(cli, [*words[:3], "before.evalset.json", *words[4:], "--baseline", "after.evalset.json", "--ledger", "off"])
    assert lost.exit_code == 1
    without = CliRunner().invoke(cli, [*words, "--ledger", "off"])
    assert isinstance(without.exception, UsageError) or without.exit_code == 64
