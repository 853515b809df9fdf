"""Where ADK's evaluation surprises: one test per quirk, by its number in the list that docs/development/parity.md refers to.

Each test says in a line what ADK 2.13 does. Where ADK's own code can be asked in a second or two, the test asks it too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import load_config, parse_config
from mlflow_adk_eval.config.inputs import load_inputs
from mlflow_adk_eval.errors import ConfigError, EvalSetError, UsageError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.files import dumps, load_eval_set, parse_eval_set
from mlflow_adk_eval.evalset.models import InvocationEvents
from mlflow_adk_eval.results.outcomes import CaseResult, Errored, Scored
from mlflow_adk_eval.runner.evaluation import Options, run
from mlflow_adk_eval.runner.recordings import score
from tests.criteria.test_adk_agreement import by_adk, by_us, scores
from tests.kit import RESPONSE, TRAJECTORY, call, case, cases, config, event, recorded, scenario, turn

METRICS = "tests.criteria.user_metrics"
HEAVY = {"mlflow", "pandas", "numpy", "nltk", "scipy", "rouge_score"}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # ADK's evaluation package is experimental


def custom(name: str, threshold: float = 0.5, **criteria: Any) -> Any:
    """A config with a metric of the user's own besides `criteria`."""
    metrics = {name: {"code_config": {"name": f"{METRICS}.{name}"}}}
    return parse_config({"criteria": {name: threshold} | criteria, "custom_metrics": metrics}, "config")


def only(report: Any) -> CaseResult:
    (found,) = report.cases
    return found


def adk(module: str) -> Any:
    return pytest.importorskip(f"google.adk.{module}", reason="the extra [adk] is not installed")


def conversation(*turns: dict[str, Any], **more: Any) -> str:
    return json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": list(turns)}]} | more)


# Wrong passes and wrong failures


def test_q02_a_metric_that_could_not_be_evaluated_blocks_the_pass() -> None:
    """ADK passes a case as long as one metric passed and none failed, though all others crashed."""
    eval_set = cases(case("a", turn("yes")))
    report = score(eval_set, eval_set, custom("failing", **{RESPONSE: 0.8}))
    assert report.verdict == "undecided"
    assert report.reasons == ("a: failing was not evaluated: invocation 1 of 1: failing raised LookupError: no such thing",)


def test_q03_a_turn_that_was_not_evaluated_never_leaves_the_mean() -> None:
    """ADK averages over the turns that happen to have a score: [not evaluated, 1.0] is 1.0 and passes."""
    found = only(score(cases(case("a", turn(), turn())), {"a": [turn()]}, config(RESPONSE)))
    assert found.results[0].per_invocation[0] == Scored(1.0, "ROUGE-1 precision 1.000, recall 1.000.", {"precision": 1.0, "recall": 1.0})
    assert found.results[0].score is None
    assert found.verdict == "undecided"


@pytest.mark.needs("google-adk", "2.10")
@pytest.mark.parametrize(
    ("response", "reference", "expected", "shown"),
    [
        ("The flight is not booked", "The flight is booked", 8 / 9, "precision 0.800, recall 1.000"),
        ("京東", "東京", 1.0, "precision 1.000, recall 1.000"),
        ("👍", "yes", 0.0, "The response has no words."),
    ],
)
def test_q13_surprising_rouge_scores_are_adks_and_explained(response: str, reference: str, expected: float, shown: str) -> None:
    """ADK gives these scores without a word; a negation passes 0.8."""
    sides = ((turn(response),), (turn(reference),))
    (cell,) = by_us(RESPONSE, *sides).per_invocation
    assert isinstance(cell, Scored)
    assert [cell.score] == scores(by_adk(RESPONSE, *sides)) == [pytest.approx(expected)]
    assert shown in cell.rationale


@pytest.mark.needs("google-adk", "2.10")
@pytest.mark.parametrize(
    ("actual", "expected", "ours", "theirs"),
    [
        ([call("f")], [call("f", {})], 1.0, 0.0),
        ([call("f", on=True)], [call("f", on=1)], 0.0, 1.0),
        ([call("f", {"x": None})], [call("f", {})], 0.0, 0.0),
        ([call("b"), call("a")], [call("a"), call("b")], 0.0, 0.0),
        ([call("transfer_to_agent", agent_name="x"), call("a")], [call("a")], 0.0, 0.0),
    ],
)
def test_q14_surprising_trajectory_scores_are_adks_but_for_no_arguments_and_booleans(
    actual: Any, expected: Any, ours: float, theirs: float
) -> None:
    """ADK: no args differ from {}, true equals 1, null is not absence, the order of parallel calls and transfers count."""
    sides = ((turn("x", *actual),), (turn("x", *expected),))
    assert scores(by_us(TRAJECTORY, *sides)) == [ours]
    assert scores(by_adk(TRAJECTORY, *sides)) == [theirs]


@pytest.mark.needs("google-adk", "2.10")
def test_q15_three_turns_of_exactly_the_threshold_reach_it() -> None:
    """ADK compares the rounded sum over the count with no tolerance: three turns of 0.7 fail 0.7."""
    actual, expected = (turn("a b c d e f g x y z"),) * 3, (turn("a b c d e f g h i j"),) * 3
    assert score(cases(case("a", *expected)), {"a": actual}, config(**{RESPONSE: 0.7})).passed
    assert by_adk(RESPONSE, actual, expected, threshold=0.7).overall_eval_status.name == "FAILED"


def test_q17_there_is_one_verdict_and_a_good_run_does_not_make_up_for_a_bad_one() -> None:
    """ADK's AgentEvaluator pools the turns of all runs: scores 1.0 and 0.0 pass 0.5, where `adk eval` fails the second."""
    eval_set = cases(case("a", turn("yes")))
    recording = Recording({"a": (Conversation(actual=(turn("yes"),)), Conversation(actual=(turn("no"),)))})
    report = run(eval_set, recording, config(**{RESPONSE: 0.5}))
    assert report.scores == {RESPONSE: 0.5}
    assert [found.verdict for found in report.cases] == ["passed", "failed"]
    assert report.verdict == "failed"
    assert score(eval_set, {"a": [turn("no")]}, config(**{RESPONSE: 0.5})).verdict == "failed"


def test_q18_a_silent_turn_fails_its_criteria_and_costs_no_other_case() -> None:
    """ADK raises an error for the whole evaluation; the results of all other cases are lost."""
    eval_set = cases(case("silent", turn("hi"), turn("x", user="silence")), case("ok", turn("hi")))
    report = run(eval_set, resolve_agent(lambda text, session: None if text == "silence" else "hi"), config(RESPONSE))
    assert [found.verdict for found in report.cases] == ["failed", "passed"]
    assert [len(found.actual) for found in report.cases] == [2, 1]


@pytest.mark.needs("google-adk", "2.10")
def test_q20_a_custom_metrics_threshold_is_enforced() -> None:
    """ADK takes the function's own word: a score of 0.4 that calls itself passed passes 0.9."""
    eval_set = cases(case("a", turn()))
    assert score(eval_set, eval_set, custom("says_passed", 0.9)).reasons == ("a: says_passed is 0.4, below its threshold 0.9",)
    evaluator = adk("evaluation.custom_metric_evaluator")._CustomMetricEvaluator
    metric = adk("evaluation.eval_metrics").EvalMetric(metric_name="m", threshold=0.9)
    theirs = anyio.run(evaluator(metric, f"{METRICS}.says_passed").evaluate_invocations, [1], [1])
    assert (theirs["overall_score"], theirs["overall_eval_status"]) == (0.4, 1)


def test_q20_a_custom_metrics_wrong_answer_costs_no_other_case_and_changes_nothing() -> None:
    """ADK aborts the whole run, and hands out live objects: a metric that changes them changes what others see."""
    eval_set = cases(case("a", turn("yes", call("f", x=1))), case("b", turn("yes")))
    metrics = {name: {"code_config": {"name": f"{METRICS}.{name}"}} for name in ("vandal", "wrong_answer")}
    settings = {"criteria": {"wrong_answer": 0.5, "vandal": 0.5, TRAJECTORY: 1.0, RESPONSE: 1.0}, "custom_metrics": metrics}
    report = score(eval_set, eval_set, settings)
    assert report.scores == {"wrong_answer": None, "vandal": 1.0, TRAJECTORY: 1.0, RESPONSE: 1.0}
    assert report.reasons[0].startswith(
        "a: wrong_answer was not evaluated: invocation 1 of 1: wrong_answer raised TypeError: the metric returned"
    )


@pytest.mark.needs("google-adk", "2.10")
def test_q24_an_id_that_occurs_twice_is_an_error() -> None:
    """ADK's file manager scores both against the first case's reference."""
    twice = json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": []}] * 2})
    with pytest.raises(EvalSetError, match=r"found 'a', the same as \$\.eval_cases\[0\]\.eval_id"):
        parse_eval_set(twice.encode(), "s.json", stem="s")
    with pytest.raises(UsageError, match="several cases with the same id"):
        score(cases(case("a", turn()), case("a", turn())), {}, config(RESPONSE))
    assert len(adk("evaluation.eval_set").EvalSet.model_validate_json(twice).eval_cases) == 2


@pytest.mark.needs("google-adk", "2.10")
@pytest.mark.parametrize(
    ("given", "path", "hint"),
    [
        ({"criterias": {RESPONSE: 1.0}}, "$.criterias", "Did you mean 'criteria'?"),
        ({"criteria": {"response_match_scor": 1.0}}, "$.criteria.response_match_scor", "Did you mean 'response_match_score'?"),
        (
            {"criteria": {"final_response_match_v2": {"threshold": 1, "judge_model_option": {}}}},
            "$.criteria.final_response_match_v2.judge_model_option",
            "Did you mean 'judge_model_options'?",
        ),
        ({"criteria": {RESPONSE: -1}}, f"$.criteria.{RESPONSE}", ""),
        ({"criteria": {RESPONSE: 5}}, f"$.criteria.{RESPONSE}", ""),
        ({"criteria": {RESPONSE: float("nan")}}, f"$.criteria.{RESPONSE}", ""),
        ({"criteria": {}}, "$.criteria", ""),
    ],
)
def test_q26_mistakes_in_a_config_are_errors(given: Any, path: str, hint: str) -> None:
    """ADK takes each of these silently: some mean that nothing decides, others that a metric is never evaluated."""
    with pytest.raises(ConfigError) as caught:
        parse_config(given, "config")
    assert any(problem.path == path and hint in problem.hint for problem in caught.value.problems)
    adk("evaluation.eval_config").EvalConfig.model_validate(given)


def test_q26_a_config_that_is_not_there_is_an_error_and_one_beside_each_file_counts(tmp_path: Path) -> None:
    """ADK falls back to its defaults for a missing --config_file_path, and for several eval set files."""
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "nowhere.json")
    (tmp_path / "test_config.json").write_text(json.dumps({"criteria": {RESPONSE: 0.25}}))
    for name in ("one", "two"):
        (tmp_path / f"{name}.evalset.json").write_text(dumps(cases(case(name, turn()))))
    files = [tmp_path / "one.evalset.json", tmp_path / "two.evalset.json"]
    assert load_inputs(files)[1].criteria_of("two")[RESPONSE].threshold == 0.25


def test_q45_criteria_that_need_a_reference_are_refused_for_scenarios() -> None:
    """ADK raises inside the run, logs it, and passes the case on the remaining metrics."""
    with pytest.raises(ConfigError, match=r"needs a reference conversation.*these cases are scenarios: s"):
        score(cases(scenario("s")), {"s": [turn()]}, config(RESPONSE))


# Losses


def test_q21_the_text_of_the_agents_error_is_kept() -> None:
    """ADK's result says FAILED, with no metrics and no message."""

    def down(text: str, session: Any) -> str:
        raise ConnectionError("model down")

    found = only(run(cases(case("a", turn())), resolve_agent(down), config(RESPONSE)))
    assert found.error == "turn 1: ConnectionError: model down"
    assert found.reasons()[0] == "the agent did not finish: turn 1: ConnectionError: model down"
    assert found.verdict == "undecided"


@pytest.mark.needs("google-adk", "2.10")
def test_q25_errors_are_not_hidden_behind_the_legacy_format_and_both_spellings_work_at_every_level() -> None:
    """ADK answers a misspelt key with "TypeError: string indices must be integers", and refuses evalSetId."""
    broken = conversation({"user_content": {}, "final_respons": {}})
    with pytest.raises(EvalSetError, match="Did you mean 'final_response'"):
        parse_eval_set(broken.encode(), "s.json", stem="s")
    camel = '{"evalSetId": "s", "evalCases": [{"evalId": "a", "conversation": [{"userContent": {}}]}]}'
    assert parse_eval_set(camel.encode(), "s.json", stem="s").eval_ids == ("a",)
    theirs = adk("evaluation.eval_set").EvalSet
    for text in (broken, camel):
        with pytest.raises(ValueError, match="validation error"):
            theirs.model_validate_json(text)


def test_q27_legacy_files_are_evaluated_by_their_path(tmp_path: Path) -> None:
    """`adk eval` runs a legacy list of cases and then crashes on saving; a list of turns is a KeyError."""
    said = [{"query": "hi", "reference": "yes", "expected_tool_use": [{"tool_name": "f", "tool_input": {"x": 1}}]}]
    (tmp_path / "turns.test.json").write_text(json.dumps(said))
    (tmp_path / "cases.evalset.json").write_text(json.dumps([{"name": "a", "data": said, "initial_session": {"state": {"k": 1}}}]))

    def agent(text: str, session: Any) -> dict[str, Any]:
        return {"final_response": "yes", "intermediate_data": {"tool_uses": [{"name": "f", "args": {"x": 1}}]}}

    for file, eval_id in (("turns.test.json", "turns"), ("cases.evalset.json", "a")):
        eval_set, settings = load_inputs(tmp_path / file)
        report = run(eval_set, resolve_agent(agent), settings)
        assert report.passed
        assert only(report).eval_id == eval_id
    assert load_eval_set(tmp_path / "cases.evalset.json").eval_cases[0].session_input is not None


def test_q31_results_come_in_the_order_of_the_eval_set() -> None:
    """ADK yields them as they finish."""

    async def later_is_faster(text: str, session: Any) -> str:
        await anyio.sleep(0.03 - 0.01 * int(text))
        return "yes"

    eval_set = cases(*(case(f"c{index}", turn(user=str(index))) for index in range(3)))
    report = run(eval_set, resolve_agent(later_is_faster), config(RESPONSE), Options(concurrency=3))
    assert [found.eval_id for found in report.cases] == ["c0", "c1", "c2"]


def test_q34_the_final_session_state_is_judged() -> None:
    """ADK defines the field and never reads it."""
    wanted = cases(case("a", turn(), final_session_state={"booked": True}))
    for state, verdict in (({"booked": True}, "passed"), ({"booked": False}, "failed")):
        assert score(wanted, cases(case("a", turn(), final_session_state=state)), config("final_session_state")).verdict == verdict


@pytest.mark.needs("google-adk", "2.10")
def test_q36_selections_add_up_and_unknown_ids_are_errors(tmp_path: Path) -> None:
    """ADK: `f.json f.json:a` runs only a; an unknown id selects nothing, silently."""
    file = tmp_path / "f.json"
    file.write_text(dumps(cases(case("a", turn()), case("b", turn()))))
    assert load_inputs([file, f"{file}:a"])[0].eval_ids == ("a", "b")
    with pytest.raises(UsageError, match="has no case 'c'"):
        load_inputs(f"{file}:c")
    theirs = adk("cli.cli_eval").parse_and_get_evals_to_run([str(file), f"{file}:a"])
    assert theirs == {str(file): ["a"]}


@pytest.mark.needs("google-adk", "2.10")
def test_q38_statuses_are_words_and_a_score_is_a_number_or_nothing() -> None:
    """ADK writes statuses as bare integers, and NaN scores as null that no reader can tell from "not evaluated"."""
    eval_set = cases(case("a", turn()), case("b", turn()))
    frame = score(eval_set, {"a": [turn()]}, config(RESPONSE)).to_frame()
    assert set(frame["status"]) == {"scored", "skipped", "errored"}
    with pytest.raises(ValueError, match="must be a finite number"):
        Scored(float("nan"))
    metric_result = adk("evaluation.eval_metrics").EvalMetricResult
    written = metric_result(metric_name="m", score=float("nan"), eval_status=1).model_dump_json()
    assert '"score":null' in written
    assert '"eval_status":1' in written


@pytest.mark.needs("google-adk", "2.10")
def test_q39_empty_events_stay_events() -> None:
    """ADK dumps them as {} and reads that as the other shape."""
    eval_set = cases(case("a", recorded("x")))
    again = parse_eval_set(dumps(eval_set).encode(), "s.json", stem="s")
    assert isinstance((again.eval_cases[0].conversation or ())[0].intermediate_data, InvocationEvents)
    eval_case = adk("evaluation.eval_case")
    theirs = eval_case.Invocation(user_content={}, intermediate_data=eval_case.InvocationEvents())
    back = eval_case.Invocation.model_validate(theirs.model_dump(exclude_defaults=True))
    assert not isinstance(back.intermediate_data, eval_case.InvocationEvents)


def test_q40_importing_costs_next_to_nothing() -> None:
    """ADK's evaluation takes 16 seconds and 425 MB."""
    loaded = modules_after("import mlflow_adk_eval")
    assert not {*HEAVY, "pydantic", "anyio", "click", "rich"} & {name.partition(".")[0] for name in loaded}
    assert not {"google.adk", "google.genai"} & loaded


def test_q40_scoring_costs_no_more_than_its_data_models() -> None:
    """ADK needs pandas, Vertex AI and NLTK for any run."""
    file = Path(__file__).parents[2] / "example_projects" / "home_automation" / "home_automation.evalset.json"
    criteria = {TRAJECTORY: 1.0, RESPONSE: 1.0}
    loaded = modules_after(f"import mlflow_adk_eval as a; assert a.score({str(file)!r}, {str(file)!r}, {{'criteria': {criteria}}}).passed")
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    assert not {"google.adk", "google.genai"} & loaded


def modules_after(code: str) -> set[str]:
    """The names of all modules that a new interpreter has loaded after `code`."""
    printed = subprocess.run([sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True)
    return set(printed.stdout.split())


@pytest.mark.needs("google-adk", "2.10")
def test_q42_what_a_turn_costs_can_decide() -> None:
    """ADK refuses an efficiency metric with a threshold, so that it is never evaluated."""
    eval_set = cases(case("a", turn("x", call("f"), call("g"))))
    assert score(eval_set, eval_set, config(tool_call_count_v1=2)).passed
    assert score(eval_set, eval_set, config(tool_call_count_v1=1)).reasons == ("a: tool_call_count_v1 is 2, above its threshold 1",)
    metric = adk("evaluation.eval_metrics").EvalMetric(metric_name="tool_call_count_v1", threshold=1)
    evaluator = adk("evaluation._efficiency_evaluators")._ToolCallCountV1Evaluator
    with pytest.raises(ValueError, match="does not support a threshold"):
        evaluator(metric)


@pytest.mark.needs("google-adk", "2.10")
def test_q43_a_turn_that_was_not_measured_makes_no_mean() -> None:
    """ADK divides tokens by all turns, counting the unmeasured as 0, but seconds by the measured ones only."""
    measured = recorded("x", event(usage_metadata={"prompt_token_count": 46}), duration=4.0)
    sides = (measured, recorded("x", event()))
    for name, theirs in (("token_usage_v1", 23.0), ("invocation_duration_v1", 4.0)):
        ours = by_us(name, sides)
        assert isinstance(ours.per_invocation[0], Scored)
        assert isinstance(ours.overall, Errored)
        assert by_adk(name, sides).overall_score == theirs


def test_q44_several_runs_are_kept_apart() -> None:
    """ADK has num_runs in AgentEvaluator only, pools the runs, and keeps no run index in its results."""
    answers = iter(["yes", "no", "yes"])
    report = run(
        cases(case("a", turn())), resolve_agent(lambda text, session: next(answers)), config(RESPONSE), Options(num_runs=3, concurrency=1)
    )
    assert list(
        report.to_frame()[lambda frame: frame.criterion == RESPONSE][["run_index", "score"]].itertuples(index=False, name=None)
    ) == [
        (0, 1.0),
        (1, 0.0),
        (2, 1.0),
    ]
    assert report.reasons == ("a (run 2): response_match_score is 0, below its threshold 1",)


def test_q47_the_reasons_are_those_that_were_given() -> None:
    """ADK's overall rationale of a rubric is a constant sentence, and `adk eval` prints rubric ids in place of texts."""
    eval_set = cases(case("a", turn()), eval_set_id="s")
    metric = {"code_config": {"name": f"{METRICS}.with_reasons"}}
    report = score(eval_set, eval_set, {"criteria": {"mine": 0.5}, "custom_metrics": {"mine": metric}})
    frame = report.to_frame("invocations")
    assert frame[frame.criterion == "mine"]["rationale"].tolist() == ["- polite: The answer says please.\n- short: Nine words."]


@pytest.mark.needs("google-adk", "2.10")
def test_q49_a_byte_order_mark_is_skipped_and_an_unknown_persona_is_one_readable_error(tmp_path: Path) -> None:
    """ADK cannot decode the file; an unknown persona raises NotFoundError and ends the loading of the whole set."""
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + conversation({"user_content": {}}).encode())
    assert load_eval_set(tmp_path / "bom.json").eval_ids == ("a",)
    plan = {"starting_prompt": "hi", "conversation_plan": "ask", "user_persona": "novice"}
    text = json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation_scenario": plan}]})
    with pytest.raises(EvalSetError, match="Did you mean 'NOVICE'"):
        parse_eval_set(text.encode(), "s.json", stem="s")
    with pytest.raises(Exception, match="novice not found") as caught:
        adk("evaluation.eval_set").EvalSet.model_validate_json(text)
    assert type(caught.value).__name__ == "NotFoundError"


# With a live ADK agent


def test_q22_the_session_state_is_reported_without_adks_own_keys() -> None:
    """ADK reports no session for cases without session_input, and __llm_request_key__ in the state of the others."""
    adk("agents")
    from tests.agents.scripted import call as ask
    from tests.agents.scripted import llm, results, text

    def book(tool_context: Any) -> str:
        """Book."""
        tool_context.state["booked"] = True
        return "ok"

    agent = llm(lambda request: text("yes") if results(request) else [ask("book")], tools=[book])
    wanted = case("a", turn("yes", call("book", {})), final_session_state={"booked": True})
    settings = config(TRAJECTORY, final_session_state={"threshold": 1.0, "match_type": "EXACT"})
    found = only(run(cases(wanted), resolve_agent(agent), settings))
    assert found.session_state == {"booked": True}
    assert found.verdict == "passed"


def test_q23_nothing_that_one_case_or_run_leaves_reaches_another() -> None:
    """ADK shares one session service: user: and app: state, and pinned sessions, leak into later cases and runs."""
    adk("agents")
    from tests.agents.scripted import call as ask
    from tests.agents.scripted import llm, results, text

    def remember(tool_context: Any) -> dict[str, Any]:
        """Remember."""
        seen = tool_context.state.get("user:name", "nobody")
        tool_context.state["user:name"] = tool_context.state["app:name"] = "Bob"
        return {"seen": seen}

    agent = llm(lambda request: text(f"seen {found[0]['seen']}") if (found := results(request)) else [ask("remember")], tools=[remember])
    session = {"app_name": "app", "user_id": "u", "session_id": "pinned"}
    listed = [case(name, turn("seen nobody"), session_input=session) for name in "ab"]
    report = run(cases(*listed), resolve_agent(agent), config(RESPONSE), Options(num_runs=2, concurrency=1))
    assert report.passed
    assert [found.actual[0].final_text for found in report.cases] == ["seen nobody"] * 4


def test_q50_what_was_done_before_a_tool_raised_is_kept() -> None:
    """ADK fails the inference of the whole case and keeps nothing of it."""
    adk("agents")
    from tests.agents.scripted import call as ask
    from tests.agents.scripted import llm

    def broken() -> str:
        """Break."""
        raise OSError("disk full")

    agent = llm(lambda request: [ask("broken")], tools=[broken])
    found = only(run(cases(case("a", turn("x"), turn("y"))), resolve_agent(agent), config(TRAJECTORY)))
    assert found.error == "turn 1: OSError: disk full"
    assert [tool.name for tool in found.actual[0].tool_calls] == ["broken"]
    assert found.results[0].score is None
    assert found.verdict != "passed"
