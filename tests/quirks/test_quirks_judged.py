"""Where ADK's judged criteria surprise: one test per quirk, by its number in the list that docs/development/parity.md refers to.

Each test says in a line what ADK 2.13 does; tests/quirks/test_quirks_judged_in_adk.py asks ADK itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from mlflow_adk_eval.criteria.rubrics import FINAL_RESPONSE, TOOL_USE, TRAJECTORY, rubric_types
from mlflow_adk_eval.errors import ConfigError, JudgeError
from mlflow_adk_eval.evalset.files import parse_eval_set
from mlflow_adk_eval.evalset.models import AgentDetails, AppDetails, Content, EvalCase, FunctionResponse, IntermediateData, Invocation, Part
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Scored
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.testing import Answer, Refused, Request, ScriptedJudge, Unavailable
from tests.judge.providers.gemini_kit import empty_environment, with_key
from tests.judge.providers.vertex_server import LOCATION, PROJECT, evaluating, row
from tests.judge.servers import gemini_answer, gemini_error, judging, replies, serving, together
from tests.kit import RESPONSE, call, case, cases, event, recorded, scenario, turn

MATCH, HALLUCINATIONS, SIMULATOR = "final_response_match_v2", "hallucinations_v1", "per_turn_user_simulator_quality_v1"
BY_RUBRICS = pytest.mark.parametrize("name", rubric_types())


def judged(name: str, judge: Any, found: EvalCase, *actual: Invocation, threshold: float = 0.5, **settings: Any) -> Report:
    """Score a case by one criterion; without actual turns the agent did what the case expects."""
    config = {"criteria": {name: {"threshold": threshold} | settings}}
    return score(cases(found), {found.eval_id: actual or found.conversation or ()}, config, judge)


def only(report: Report) -> CriterionResult:
    return report.cases[0].results[0]


def scores(report: Report) -> list[float | None]:
    return [cell.score if isinstance(cell, Scored) else None for cell in only(report).per_invocation]


def error_of(report: Report) -> str:
    """Why the last turn has no score."""
    cell = only(report).per_invocation[-1]
    assert isinstance(cell, Errored), cell
    return cell.error


def rubrics(*names: str, of: str | None = None) -> Any:
    return [
        {"rubric_id": name, "rubric_content": {"text_property": f"It is {name}."}, "type": rubric_types().get(of or "")} for name in names
    ]


def saying(verdict: Any, **more: Any) -> ScriptedJudge:
    """A judge that gives this very verdict on the one thing that it is asked about."""
    return ScriptedJudge(lambda _: Answer(text=json.dumps({"rationale": "so", "verdict": verdict} | more)))


def by_number(*labels: str) -> Callable[[Request], str]:
    """A script of one label after the other."""
    listed = iter(labels)
    return lambda _: next(listed)


# Wrong passes and wrong failures


@pytest.mark.parametrize("failure", [RuntimeError("boom"), Refused("blocked"), Unavailable("busy")])
def test_q01_one_failed_vote_does_not_void_the_others(failure: Exception) -> None:
    """ADK does not evaluate the turn if one of five votes ends in an error."""
    report = judged(MATCH, ScriptedJudge("valid", fail_every=3, failure=failure), case("a", turn("42")))
    assert scores(report) == [1.0]
    cast = [vote.verdict for vote in only(report).votes]
    assert cast.count("valid") == 3
    assert isinstance(failure, Unavailable) or cast == ["valid", "valid", None, "valid"]


def test_q01_a_function_that_fails_once_costs_one_vote() -> None:
    """The same for a judge that is the user's own code."""
    calls: list[Request] = []

    def judge(request: Request) -> dict[str, str]:
        calls.append(request)
        if len(calls) == 2:
            raise ConnectionError("down")
        return {"rationale": "so", "verdict": "valid"}

    report = judged(MATCH, judge, case("a", turn("42")))
    assert scores(report) == [1.0]
    assert sorted(vote.error for vote in only(report).votes) == ["", "", "", "ConnectionError: down"]


def test_q02_a_judge_that_is_down_never_lets_a_case_pass() -> None:
    """ADK passes the case by the metrics that need no judge."""
    eval_set = cases(case("a", turn("yes")))
    judge = ScriptedJudge({MATCH: Refused("no permission", every_request=True)})
    report = score(eval_set, eval_set, {"criteria": {RESPONSE: 0.8, MATCH: 0.5}}, judge)
    assert report.scores == {RESPONSE: 1.0, MATCH: None}
    assert report.verdict == "undecided"
    assert "no permission" in report.reasons[0]


def test_q03_a_turn_without_verdict_never_leaves_the_mean() -> None:
    """ADK averages over the other turns: [not evaluated, 1.0] is 1.0 and passes."""
    judge = ScriptedJudge(lambda request: Refused("blocked") if request.blocks["response"] == "one" else "valid")
    report = judged(MATCH, judge, case("a", turn("one"), turn("two")))
    assert scores(report) == [None, 1.0]
    assert only(report).score is None
    assert report.verdict == "undecided"


@pytest.mark.parametrize("name", [FINAL_RESPONSE, TOOL_USE])
def test_q04_a_turns_rubrics_are_its_own(name: str) -> None:
    """ADK reads the answers on all turns by the rubrics of the last one."""
    found = case("a", turn("42", rubrics=rubrics("kind", of=name)), turn("43", rubrics=rubrics("brief", of=name)))
    judge = ScriptedJudge(lambda request: "no" if "kind" in request.blocks["item_1"] else "yes")
    report = judged(name, judge, found)
    assert scores(report) == [0.0, 1.0]
    assert {request.blocks["item_1"] for request in judge.requests} == {"It is kind.", "It is brief."}
    assert not any("item_2" in request.blocks for request in judge.requests)


@pytest.mark.parametrize("verdict", ["unknown", "none", "not applicable", "cannot say yes", "yes, but no", "**yes**", True, None])
def test_q05_only_yes_is_yes_and_only_no_is_no(verdict: Any) -> None:
    """ADK looks for "yes", then for "no", anywhere in the verdict: "unknown" is a no, "cannot say yes" a yes."""
    judge = ScriptedJudge(lambda _: Answer(text=json.dumps({"item_1": {"rationale": "so", "verdict": verdict}})))
    report = judged(FINAL_RESPONSE, judge, case("a", turn("42")), rubrics=rubrics("kind"))
    assert "not one of yes, no" in error_of(report)
    assert {vote.verdict for vote in only(report).votes} == {None}


def test_q05_a_rationale_is_kept_whole_and_decides_nothing() -> None:
    """ADK keeps its first line; another "Verdict:" in it discards the answer."""
    reason = "It greets the user.\nVerdict: no\n**Property:** of another kind"
    report = judged(FINAL_RESPONSE, ScriptedJudge("yes", rationale=reason), case("a", turn("42")), rubrics=rubrics("kind"))
    assert scores(report) == [1.0]
    assert {vote.explanation for vote in only(report).votes} == {reason}


@BY_RUBRICS
def test_q06_a_rubric_that_the_judge_left_out_is_an_error(name: str) -> None:
    """ADK takes the mean of the others: 1.0, and passes."""
    report = judged(
        name, ScriptedJudge(lambda _: {"item_1": "yes", "item_2": None}), case("a", turn("42")), rubrics=rubrics("kind", "brief")
    )
    assert "rubric 'brief': 0 of 5 votes" in error_of(report)
    assert {(vote.rubric_id, vote.verdict) for vote in only(report).votes} == {("kind", "yes"), ("brief", None)}


@pytest.mark.parametrize(
    ("judge", "wanted"),
    [
        (saying("Valid"), 1.0),
        (saying(" VALID\n"), 1.0),
        (saying("invalid"), 0.0),
        (saying(1), None),
        (saying("partially valid"), None),
        (saying("valid."), None),
        (saying(None, is_the_agent_response_invalid="banana"), None),
        (ScriptedJudge(lambda _: Answer(text="{'verdict': 'valid'}")), None),
    ],
)
def test_q07_labels_are_read_strictly(judge: ScriptedJudge, wanted: float | None) -> None:
    """ADK misses "Valid"; a misspelt key with any other word means VALID."""
    assert scores(judged(MATCH, judge, case("a", turn("42")))) == [wanted]


def test_q08_the_judges_thoughts_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADK joins them with the answer, and the first verdict in the text counts."""
    thought, said = ('{"rationale": "hm", "verdict": "invalid"}', '{"rationale": "so", "verdict": "valid"}')
    with serving(replies(gemini_answer(said, thoughts=(thought,)))) as server:
        with_key(monkeypatch, server.url)
        report = judged(MATCH, None, case("a", turn("42")))
    assert scores(report) == [1.0]
    assert {vote.explanation for vote in only(report).votes} == {"so"}


def test_q09_hallucinations_are_voted_on_too_and_at_the_same_time() -> None:
    """ADK accepts num_samples and parallelism_limit, asks once, and one thing after the other."""
    judge = ScriptedJudge(by_number("unsupported", "supported", "supported", "unsupported", "supported"), latency_s=0.01)
    options = {"num_samples": 5, "parallelism_limit": 1}
    report = judged(HALLUCINATIONS, judge, case("a", turn("It rains.")), judge_model_options=options, early_stop=False)
    assert scores(report) == [1.0]
    assert [vote.verdict for vote in only(report).votes] == ["unsupported", "supported", "supported", "unsupported", "supported"]
    assert judge.most_in_flight == 5


@pytest.mark.parametrize("second", [None, "partially supported", "`unsupported`"])
def test_q10_a_sentence_without_a_known_label_is_an_error(second: str | None) -> None:
    """ADK forgets sentences that were skipped, and labels that it does not know: the score goes up."""
    report = judged(HALLUCINATIONS, ScriptedJudge(lambda _: {"One.": "supported", "Two.": second}), case("a", turn("One. Two.")))
    assert "sentence final #2 ('Two.'): 0 of 5 votes" in error_of(report)


def test_q11_evidence_is_all_that_the_agent_was_told_and_nothing_that_it_said() -> None:
    """ADK shows no results written by hand and no earlier turn, but the agent's own claims on its way."""
    data = IntermediateData(tool_uses=(call("lookup"),), tool_responses=(FunctionResponse(name="lookup", response={"code": "by hand"}),))
    first = turn("Sure.").model_copy(update={"intermediate_data": data})
    second = recorded("It is 7.", event(call("count"), text="I know that it is 7."))
    judge = ScriptedJudge("supported")
    judged(HALLUCINATIONS, judge, case("a", first, second))
    one, two = (next(request for request in judge.requests if request.blocks["item_1"] == said) for said in ("Sure.", "It is 7."))
    assert "by hand" in one.blocks["tool_calls"]
    assert "by hand" in two.blocks["earlier_turns"]
    assert "count" in two.blocks["tool_calls"]
    assert "I know that it is 7." not in two.text


@pytest.mark.parametrize("name", [FINAL_RESPONSE, TOOL_USE])
def test_q12_results_without_ids_belong_to_the_calls_of_their_tools(name: str) -> None:
    """ADK shows the last result beside every call."""
    returned = tuple(FunctionResponse(name=tool, response={"result": f"of {tool}"}) for tool in "fg")
    found = turn("42").model_copy(update={"intermediate_data": IntermediateData(tool_uses=(call("f"), call("g")), tool_responses=returned)})
    judge = ScriptedJudge("yes")
    judged(name, judge, case("a", found), rubrics=rubrics("kind"))
    assert [json.loads(line) for line in judge.requests[0].blocks["tool_calls"].splitlines()] == [
        {"call": 1, "tool": "f", "args": {}},
        {"answers_call": 1, "tool": "f", "returns": {"result": "of f"}},
        {"call": 2, "tool": "g", "args": {}},
        {"answers_call": 2, "tool": "g", "returns": {"result": "of g"}},
    ]


@pytest.mark.parametrize("name", [FINAL_RESPONSE, TOOL_USE])
def test_q16_the_score_of_a_case_is_the_mean_of_its_turns(name: str) -> None:
    """ADK pools the rubrics of all turns: one met in one turn and none of four in the other is 0.2."""
    found = case("a", turn("42"), turn("43", rubrics=rubrics("b", "c", "d", of=name)))
    judge = ScriptedJudge(lambda request: "no" if "item_2" in request.blocks else "yes")
    report = judged(name, judge, found, rubrics=rubrics("a"))
    assert (scores(report), only(report).score) == ([1.0, 0.0], 0.5)


@BY_RUBRICS
def test_q19_judging_again_changes_nothing_and_an_id_may_stand_at_several_levels(name: str) -> None:
    """ADK copies rubrics into what it judges: the second time, or with one id at two levels, the evaluation aborts."""
    found = case("a", turn("42", rubrics=rubrics("kind", of=name)), rubrics=rubrics("kind", of=name))
    eval_set = cases(found)
    config = {"criteria": {name: {"threshold": 0.5, "rubrics": rubrics("kind")}}}
    before = eval_set.model_dump_json()
    first, second = (score(eval_set, eval_set, config, ScriptedJudge("yes")) for _ in range(2))
    assert first.passed
    assert only(first).per_invocation == only(second).per_invocation
    assert [vote.rubric_id for vote in only(first).votes] == ["kind"] * 3
    assert eval_set.model_dump_json() == before


@BY_RUBRICS
def test_q46_a_plain_threshold_needs_rubrics_in_the_eval_set_and_those_without_a_type_are_named(name: str) -> None:
    """ADK takes the config and never evaluates the metric; nobody says that an untyped rubric is used by none."""
    untyped = case("a", turn("42"), rubrics=rubrics("kind"))
    with pytest.raises(ConfigError, match=f"no rubric .*none of the type {rubric_types()[name]} in the eval set.*in these cases: a"):
        score(cases(untyped), {}, {"criteria": {name: 0.5}}, ScriptedJudge("yes"))
    typed = case("a", turn("42"), rubrics=rubrics("kind", of=name) + rubrics("brief"))
    report = score(cases(typed), cases(typed), {"criteria": {name: 0.5}}, ScriptedJudge("yes"))
    assert report.passed
    assert any("1 rubric is not used ('brief' of a): it has no type" in note for note in report.notes)


def test_q48_the_judge_reads_what_the_user_said() -> None:
    """ADK shows the message of the reference instead, and "None" for one without text."""
    judge = ScriptedJudge("valid")
    wordless = turn("43").model_copy(update={"user_content": Content()})
    judged(MATCH, judge, case("a", turn("42", user="planned"), wordless), turn("42", user="said"), wordless)
    assert {request.blocks["user_message"] for request in judge.requests} == {"said", "(no text)"}


# Losses


@pytest.mark.needs("google-cloud-aiplatform")
def test_q29_vertex_metrics_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADK's calls of the service block the event loop: one at a time, whatever else there is to do."""
    with serving(together(3, evaluating(lambda *_: row(1)))) as server:
        in_the_cloud(monkeypatch, server.url)
        eval_set = cases(*(case(f"c{number}", turn(f"answer {number}")) for number in range(4)))
        assert score(eval_set, eval_set, {"criteria": {"safety_v1": 1.0}}).passed
    assert server.most_in_flight > 2


def in_the_cloud(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let the environment name a project whose services are at `url`."""
    empty_environment(monkeypatch)
    for name, value in (("PROJECT", PROJECT), ("LOCATION", LOCATION)):
        monkeypatch.setenv(f"GOOGLE_CLOUD_{name}", value)
    monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", url)


def test_q30_an_outage_ends_in_undecided_within_the_time_that_is_allowed_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADK waits for 277 seconds for each vote, by default one vote after the other: 23 minutes for one turn."""
    eval_set = cases(*(case(f"c{number}", turn("42"), turn("43")) for number in range(5)))
    with serving(lambda _: gemini_error(503, "down")) as server:
        with_key(monkeypatch, server.url)
        started = time.monotonic()
        report = score(eval_set, eval_set, {"criteria": {MATCH: 0.5}}, judge_options=JudgeOptions(timeout_s=0.2, outage_s=0.5))
    assert time.monotonic() - started < 100
    assert report.verdict == "undecided"
    assert report.judging is not None
    assert "returned only failures for 0.5 s" in report.judging.outage
    assert {result.score for found in report.cases for result in found.results if result.threshold is not None} == {None}


def test_q32_tools_of_any_shape_are_shown() -> None:
    """ADK stops with a TypeError at built-in tools, and with an AttributeError at tools that were read from JSON."""
    tools = [{"google_search": {}}, {"functionDeclarations": [{"name": "lookup", "description": "Looks it up."}]}]
    agents = {"root": {"name": "root", "instructions": "Be kind.", "tool_declarations": tools}}
    said = {
        "user_content": {"parts": [{"text": "hi"}]},
        "final_response": {"parts": [{"text": "42"}]},
        "app_details": {"agent_details": agents},
    }
    text = json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": [said]}]})
    judge = ScriptedJudge("yes")
    report = judged(TRAJECTORY, judge, parse_eval_set(text.encode(), "s.json", stem="s").eval_cases[0], rubrics=rubrics("kind"))
    assert scores(report) == [1.0]
    assert "google_search" in judge.requests[0].blocks["tools"]
    assert "Looks it up." in judge.requests[0].blocks["tools"]


def test_q33_an_agent_that_is_not_declared_may_speak_first() -> None:
    """ADK raises a ValueError if the author of the first event is not among the agents of the app."""
    app = AppDetails(agent_details={"root": AgentDetails(name="root", instructions="Be kind.")})
    found = recorded("42", event(author="workflow", text="Let me see."), app_details=app)
    judge = ScriptedJudge("yes")
    report = judged(FINAL_RESPONSE, judge, case("a", found), rubrics=rubrics("kind"))
    assert scores(report) == [1.0]
    assert "Be kind." in judge.requests[0].blocks["developer_instructions"]


def test_q37_what_vertex_needs_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADK takes GOOGLE_API_KEY, which is not enough, and fails at the credentials when the turns are judged."""
    empty_environment(monkeypatch)
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key")
    eval_set = cases(case("a", turn("42")))
    with pytest.raises(JudgeError) as caught:
        score(eval_set, eval_set, {"criteria": {"safety_v1": 1.0}})
    for wanted in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "credentials", "GOOGLE_API_KEY"):
        assert wanted in str(caught.value)


@pytest.mark.needs("google-cloud-aiplatform")
def test_q37_vertex_is_asked_at_the_base_url_of_the_environment_and_coherence_without_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADK ignores the base URL, and fetches the metric from Cloud Storage."""
    with serving(evaluating(lambda *_: row(4))) as server:
        in_the_cloud(monkeypatch, server.url)
        report = judged("response_evaluation_score", None, case("a", turn("42")), threshold=3)
    assert scores(report) == [4.0]
    assert len(server.calls) == 1


SAYS_HI = tuple(turn("Go on.", user=text) for text in ("hi", "More."))


def test_q41_an_empty_conversation_is_an_error_of_its_case() -> None:
    """ADK raises an IndexError."""
    report = judged(SIMULATOR, ScriptedJudge({}), scenario("s"))
    assert report.verdict == "undecided"
    assert "there is no actual turn" in error_of(report)


@pytest.mark.parametrize("answer", [ConnectionError("down"), Answer(text='{"verdict": "valid"}\nThat is, on the whole, what I think.')])
def test_q41_a_vote_that_fails_is_no_failed_turn(answer: Any) -> None:
    """ADK's metric ends with the first error; an answer that it cannot read is an invalid message."""
    judge = ScriptedJudge(lambda request: answer if request.blocks.get("message") == "More." else "valid")
    found = turn("Go on.", user="hi"), *SAYS_HI[1:], turn("Bye.", user="Thanks.")
    report = judged(SIMULATOR, judge, scenario("s"), *found)
    assert scores(report) == [1.0, None, 1.0]
    assert only(report).score is None


def test_q41_the_verdict_on_the_end_hides_no_other() -> None:
    """ADK replaces the last turn's result by that on the stop signal."""
    judge = ScriptedJudge(lambda request: "invalid" if request.blocks["message"] == "</finished>" else "valid", latency_s=0.01)
    report = judged(SIMULATOR, judge, scenario("s"), *SAYS_HI)
    assert scores(report) == [1.0, 0.0]
    assert {(vote.rubric_id, vote.verdict) for vote in only(report).votes} == {(None, "valid"), ("stop_signal", "invalid")}
    assert judge.most_in_flight > 1


@pytest.mark.parametrize("name", [HALLUCINATIONS, TRAJECTORY])
def test_q51_what_json_does_not_know_is_shown_as_it_can_be(name: str) -> None:
    """ADK raises a TypeError, and the metric is not evaluated."""
    returned = Part(function_response=FunctionResponse(name="f", response={"when": {1, 2}}))
    answered = event(author="agent").model_copy(update={"content": Content(parts=(returned,))})
    judge = ScriptedJudge({HALLUCINATIONS: "supported", TRAJECTORY: "yes"})
    settings = {"rubrics": rubrics("kind")} if name == TRAJECTORY else {}
    report = judged(name, judge, case("a", recorded("42", event(call("f")), answered)), **settings)
    assert scores(report) == [1.0]
    assert '{"when":[1,2]}' in judge.requests[0].text


def test_q52_every_call_and_token_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADK asks five times for each turn and metric, and reports neither calls nor tokens."""
    found = case("a", turn("42"), turn("43"))
    with serving(judging(lambda _: "valid")) as server:
        with_key(monkeypatch, server.url)
        report = judged(MATCH, None, found)
    usage = report.judging
    assert usage is not None
    assert (usage.calls, usage.calls_saved, len(server.calls)) == (6, 4, 6)
    assert (usage.input_tokens, usage.output_tokens) == (6 * 11, 6 * 7)
    votes = report.to_frame("votes")
    assert (votes.input_tokens.sum(), votes.output_tokens.sum()) == (6 * 11, 6 * 7)
    assert set(votes.model) == {"gemini-test-001"}
