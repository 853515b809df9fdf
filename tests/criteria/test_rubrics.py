from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from pydantic import TypeAdapter

from mlflow_adk_eval.config.spec import RubricSettings
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.criteria.rubrics import (
    FINAL_RESPONSE,
    TOOL_USE,
    TRAJECTORY,
    FinalResponseQuality,
    ToolUseQuality,
    TrajectoryQuality,
    has_rubrics,
    rubric_problem,
    rubric_types,
    rubrics_of_turn,
    unused_rubrics,
)
from mlflow_adk_eval.evalset.models import AgentDetails, AppDetails, EvalCase, Invocation, Rubric
from mlflow_adk_eval.judge.prompt import load_prompt
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Scored
from tests.criteria.judged_kit import Bench, judged
from tests.kit import call, case, event, recorded, scenario, turn
from tests.strategies import QUICK, invocations

FACTORIES = {FINAL_RESPONSE: FinalResponseQuality, TOOL_USE: ToolUseQuality, TRAJECTORY: TrajectoryQuality}
ALL = pytest.mark.parametrize("name", FACTORIES)
BY_TURN = pytest.mark.parametrize("name", [FINAL_RESPONSE, TOOL_USE])


def rubric(key: str, text: str | None = None, *, of: str | None = None) -> Rubric:
    """A rubric; `of`: the criterion whose type it has."""
    return Rubric.model_validate(
        {
            "rubric_id": key,
            "rubric_content": {"text_property": f"The agent is {key}." if text is None else text},
            "type": rubric_types().get(of or "", of),
        }
    )


def settings(*rubrics: Rubric) -> RubricSettings:
    return RubricSettings(threshold=0.5, rubrics=rubrics)


def result(name: str, bench: Bench, run: CaseRun, *rubrics: Rubric, **more: Any) -> CriterionResult:
    return judged(FACTORIES[name], name, bench, run, rubrics=rubrics, **more)


def run_of(actual: list[Invocation], expected: list[Invocation] | None = None, *, rubrics: tuple[Rubric, ...] = (), **more: Any) -> CaseRun:
    found = scenario("c") if expected is None else case("c", *expected)
    return CaseRun(case=found.model_copy(update={"rubrics": rubrics}), actual=tuple(actual), **more)


def by_id(verdicts: Mapping[str, str | None]) -> Bench:
    return Bench(lambda question, _vote: {item.id: verdicts.get(str(item.id)) for item in question.items})


def scores(found: CriterionResult) -> list[float | None]:
    return [cell.score if isinstance(cell, Scored) else None for cell in found.per_invocation]


@ALL
def test_a_turn_scores_the_mean_of_its_rubrics(name: str) -> None:
    bench = by_id({"kind": "yes", "brief": "no", "warm": "yes"})
    found = result(name, bench, run_of([turn("42")]), rubric("kind"), rubric("brief"), rubric("warm"))
    assert found.score == pytest.approx(2 / 3)
    (cell,) = found.per_invocation
    assert isinstance(cell, Scored)
    assert [(item["id"], item["verdict"], item["score"]) for item in cell.details["items"]] == [
        ("kind", "yes", 1.0),
        ("brief", "no", 0.0),
        ("warm", "yes", 1.0),
    ]
    assert cell.rationale.splitlines()[1] == "- ✗ The agent is brief. (no 3:0): It is no."
    assert {vote.rubric_id for vote in found.votes} == {"kind", "brief", "warm"}


@BY_TURN
def test_a_case_scores_the_mean_of_its_turns(name: str) -> None:
    """Quirk Q16: ADK takes the mean over all rubrics of all turns, 0.25; its documents promise this one."""
    more = tuple(rubric(key, of=name) for key in "bcd")
    actual = [turn("42"), turn("43")]
    bench = Bench(lambda question, _vote: {item.id: "yes" if len(question.items) == 1 else "no" for item in question.items})
    found = result(name, bench, run_of(actual, [turn("42"), turn("43", rubrics=more)]), rubric("a"))
    assert scores(found) == [1.0, 0.0]
    assert found.score == 0.5


@ALL
def test_a_rubric_that_the_judge_left_out_is_no_better_score(name: str) -> None:
    """Quirk Q6: in ADK it is left out of the mean."""
    found = result(name, by_id({"kind": "yes"}), run_of([turn("42")]), rubric("kind"), rubric("brief"))
    assert isinstance(found.overall, Errored)
    assert "rubric 'brief'" in found.overall.error
    assert "the judge left it out" in found.overall.error


def test_a_rubric_belongs_to_its_own_turn() -> None:
    """Quirk Q4: ADK reads all answers by the rubrics of the last turn."""
    bench = Bench("yes")
    actual = [turn("42", rubrics=(rubric("first", of=FINAL_RESPONSE),)), turn("43", rubrics=(rubric("second", of=FINAL_RESPONSE),))]
    found = result(FINAL_RESPONSE, bench, run_of(actual, [turn(), turn()]), rubric("always"))
    assert bench.rubrics == [["always", "first"], ["always", "second"]]
    assert found.score == 1.0


@BY_TURN
def test_rubrics_of_all_levels_add_up(name: str) -> None:
    bench = Bench("yes")
    actual = turn("42", rubrics=(rubric("actual", of=name), rubric("other", of="SOMETHING_ELSE")))
    expected = turn("42", rubrics=(rubric("expected", of=name), rubric("untyped")))
    run = run_of([actual], [expected], rubrics=(rubric("case", of=name), rubric("untyped too")))
    result(name, bench, run, rubric("own"), rubric("typed", of="ANYTHING"))
    assert bench.rubrics == [["own", "typed", "case", "expected", "actual"]]


def test_only_rubrics_of_the_type_apply() -> None:
    every = tuple(rubric(name, of=name) for name in FACTORIES)
    for name in FACTORIES:
        bench = Bench("yes")
        result(name, bench, run_of([turn("42")], [turn()], rubrics=every))
        assert bench.rubrics == [[name]]


@ALL
def test_judging_twice_changes_nothing(name: str) -> None:
    """Quirk Q19: ADK copies rubrics into what it scores, so that scoring it again fails."""
    kind = rubric("kind", of=name)
    run = run_of([turn("42")], [turn(rubrics=(kind,))], rubrics=(rubric("warm", of=name),))
    before = run.case.model_dump_json(), run.actual[0].model_dump_json()
    first, second = (result(name, Bench("yes"), run) for _ in range(2))
    assert first.score == second.score == 1.0
    assert (run.case.model_dump_json(), run.actual[0].model_dump_json()) == before


@ALL
def test_the_same_rubric_at_several_levels_counts_once(name: str) -> None:
    bench = by_id({"kind": "yes", "brief": "no"})
    kind = rubric("kind", of=name)
    run = run_of([turn("42", rubrics=(kind,))], [turn(rubrics=(kind,))], rubrics=(kind,))
    assert result(name, bench, run, rubric("kind"), rubric("brief")).score == 0.5
    assert bench.rubrics == [["kind", "brief"]]


@ALL
def test_one_id_for_two_demands_is_an_error(name: str) -> None:
    bench = Bench("yes")
    run = run_of([turn("42")], [turn(rubrics=(rubric("kind", "It is rude.", of=name),))])
    found = result(name, bench, run, rubric("kind"))
    assert isinstance(found.overall, Errored)
    assert "the rubric id 'kind' is used for two different rubrics" in found.overall.error
    assert bench.asked == []
    assert rubric_problem(name, settings(rubric("kind")), run.case) == ""  # that case's error, and nobody else's
    clash = settings(rubric("kind"), rubric("kind", "It is rude."))
    assert rubric_problem(name, clash, case("c", turn())) == "the rubric id 'kind' is used for two different rubrics"


@BY_TURN
def test_two_turns_may_use_one_id_for_different_demands(name: str) -> None:
    turns = [turn("42", rubrics=(rubric("r", "It is kind.", of=name),)), turn("43", rubrics=(rubric("r", "It is brief.", of=name),))]
    bench = Bench("yes")
    assert result(name, bench, run_of(turns, turns)).score == 1.0
    assert [blocks.items[0].text for blocks in bench.questions] == ["It is kind.", "It is brief."]
    assert rubric_problem(name, settings(), case("c", *turns)) == ""


@BY_TURN
def test_a_turn_without_rubrics_has_no_cell(name: str) -> None:
    bench = Bench("yes")
    expected = [turn(), turn(rubrics=(rubric("kind", of=name),)), turn()]
    found = result(name, bench, run_of([turn("1"), turn("2"), turn("3")], expected))
    assert [cell if cell is None else type(cell) for cell in found.per_invocation] == [None, Scored, None]
    assert (found.score, len(bench.questions)) == (1.0, 1)
    assert [has_rubrics(name, settings(), case("c", *expected), index) for index in range(4)] == [False, True, False, False]
    assert has_rubrics(name, settings(rubric("own")), case("c", *expected), 3)


@ALL
@pytest.mark.parametrize("found", [case("c", turn(), turn()), scenario("c"), case("c")], ids=["written", "scenario", "empty"])
def test_a_case_without_any_rubric_is_found_beforehand(name: str, found: EvalCase) -> None:
    """Quirk Q46: in ADK a bare threshold is accepted and never evaluated."""
    problem = rubric_problem(name, settings(), found.model_copy(update={"rubrics": (rubric("untyped"), rubric("other", of="X"))}))
    assert problem == f"no rubric (none in the config, and none of the type {rubric_types()[name]} in the eval set)"
    assert rubric_problem(name, settings(rubric("own")), found) == ""
    assert rubric_problem(name, settings(), found.model_copy(update={"rubrics": (rubric("typed", of=name),)})) == ""


@ALL
def test_a_case_without_any_rubric_is_an_error(name: str) -> None:
    bench = Bench("yes")
    found = result(name, bench, run_of([turn("42")] * 2, [turn()] * 2))
    assert isinstance(found.overall, Errored)
    assert "no rubric applies to this case" in found.overall.error
    assert bench.asked == []


@ALL
@pytest.mark.parametrize("text", ["", "  "])
def test_a_rubric_without_text_is_a_problem(name: str, text: str) -> None:
    blank = rubric("blank", text, of=name)
    found = case("c", turn(rubrics=(blank,)))
    assert rubric_problem(name, settings(rubric("own")), found) == ""
    assert rubric_problem(name, settings(rubric("blank", text)), case("c", turn())) == "the rubric 'blank' has no text"
    judged_case = result(name, Bench("yes"), run_of([turn("42")], [turn(rubrics=(blank,))]), rubric("own"))
    assert isinstance(judged_case.overall, Errored)


def test_rubrics_that_no_criterion_judges_by_are_found() -> None:
    """Quirk Q46: rubrics without a type are used by no criterion, and nobody says so."""
    found = case(
        "c", turn(rubrics=(rubric("late", of=TOOL_USE), rubric("near", of="tool use quality"))), turn(rubrics=(rubric("odd", of="STYLE"),))
    )
    found = found.model_copy(update={"rubrics": (rubric("untyped"), rubric("used", of=FINAL_RESPONSE))})
    types = "FINAL_RESPONSE_QUALITY, TOOL_USE_QUALITY, TRAJECTORY_QUALITY"
    assert tuple(unused_rubrics(["response_match_score", FINAL_RESPONSE], found)) == (
        ("'untyped' of c", f"it has no type; wanted one of {types}"),
        ("'late' of c turn 1", "no criterion in the config uses rubrics of the type TOOL_USE_QUALITY"),
        ("'near' of c turn 1", "no criterion uses rubrics of the type 'tool use quality'. Did you mean 'TOOL_USE_QUALITY'?"),
        ("'odd' of c turn 2", "no criterion uses rubrics of the type 'STYLE'"),
    )
    assert tuple(unused_rubrics([], scenario("c"))) == ()


@pytest.mark.parametrize("answer", [None, "", ".", "Thought process:"])
def test_an_answer_without_content_satisfies_no_rubric(answer: str | None) -> None:
    bench = Bench("yes")
    found = result(FINAL_RESPONSE, bench, run_of([turn(answer)]), rubric("kind"), rubric("brief"))
    assert (found.score, bench.asked, found.votes) == (0.0, [], ())
    (cell,) = found.per_invocation
    assert isinstance(cell, Scored)
    assert [(item["id"], item["verdict"]) for item in cell.details["items"]] == [("kind", "no"), ("brief", "no")]


def test_an_answer_without_content_is_judged_if_the_reference_is_the_same() -> None:
    bench = Bench("yes")
    assert result(FINAL_RESPONSE, bench, run_of([turn("Solution")], [turn("Solution")]), rubric("kind")).score == 1.0


def test_tools_are_judged_whatever_the_answer() -> None:
    bench = Bench("yes")
    found = result(TOOL_USE, bench, run_of([turn(None, call("f")), turn(None)], [turn(), turn()]), rubric("kind"))
    assert found.score == 1.0
    assert [blocks["tool_calls"] for blocks in bench.blocks] == ['{"call":1,"tool":"f","args":{}}', "(no tool was called)"]


def test_a_conversation_in_which_nothing_was_said_or_done_satisfies_no_rubric() -> None:
    bench = Bench("yes")
    assert result(TRAJECTORY, bench, run_of([turn(None), turn(":")]), rubric("kind")).score == 0.0
    assert bench.asked == []
    assert result(TRAJECTORY, bench, run_of([turn(None), turn(None, call("f"))]), rubric("kind")).score == 1.0


def test_a_conversation_has_one_cell_which_is_judged_on_all_of_it() -> None:
    bench = Bench("yes")
    first = turn("one", call("f"), app_details=APP)
    second = recorded("two", event(call("g"), author="stranger"), user="and?")
    found = result(TRAJECTORY, bench, run_of([first, second], [turn(), turn()]), rubric("kind"))
    assert scores(found) == [None, 1.0]
    assert found.per_invocation[0] is None
    assert {vote.invocation_index for vote in found.votes} == {1}
    (blocks,) = bench.blocks
    assert list(blocks) == ["developer_instructions", "tools", "conversation"]
    assert [list(json.loads(line))[1] for line in blocks["conversation"].splitlines()] == [
        "user",
        "call",
        "final_response",
        "user",
        "agent",
        "final_response",
    ]


def test_a_conversation_is_judged_by_the_rubrics_of_all_its_turns() -> None:
    """ADK leaves out those of all turns but the last."""
    bench = Bench("yes")
    early, late = rubric("early", of=TRAJECTORY), rubric("late", of=TRAJECTORY)
    both = rubric("both", of=TRAJECTORY)
    actual = [turn("1", rubrics=(early, both)), turn("2", rubrics=(both,)), turn("3", rubrics=(late,))]
    result(TRAJECTORY, bench, run_of(actual, [turn()] * 3, rubrics=(rubric("case", of=TRAJECTORY),)), rubric("own"))
    (question,) = bench.questions
    assert [(item.id, item.text) for item in question.items] == [
        ("own", "The agent is own."),
        ("case", "The agent is case."),
        ("early", "[until turn 1] The agent is early."),
        ("both", "[until turn 2] The agent is both."),
        ("late", "The agent is late."),
    ]


def test_a_rubric_of_the_case_and_of_a_turn_is_about_the_whole_conversation() -> None:
    bench = Bench("yes")
    kind = rubric("kind", of=TRAJECTORY)
    result(TRAJECTORY, bench, run_of([turn("1", rubrics=(kind,)), turn("2")], [turn()] * 2, rubrics=(kind,)))
    assert bench.questions[0].items[0].text == "The agent is kind."


@pytest.mark.parametrize(
    ("actual", "more", "reason"),
    [
        ([turn("1")], {}, "no actual turn"),
        ([], {}, "no actual turn"),
        ([turn("1"), turn(None)], {"error": "boom", "unfinished": True}, "the agent did not finish"),
    ],
)
def test_a_conversation_that_is_not_whole_is_not_judged(actual: list[Invocation], more: dict[str, Any], reason: str) -> None:
    bench = Bench("yes")
    found = result(TRAJECTORY, bench, run_of(actual, [turn()] * 2, **more), rubric("kind"))
    assert isinstance(found.overall, Errored)
    assert reason in found.overall.error
    assert (len(found.per_invocation), bench.asked) == (2, [])


def test_a_simulated_conversation_that_never_began_is_not_judged() -> None:
    found = result(TRAJECTORY, Bench("yes"), run_of([]), rubric("kind"))
    assert isinstance(found.overall, Errored)
    assert "there is no actual turn" in found.overall.error


APP = AppDetails(
    agent_details={
        "root": AgentDetails(name="root", instructions="Be kind.", tool_declarations=({"functionDeclarations": [{"name": "f"}]},)),
        "helper": AgentDetails(name="helper", instructions="Be brief.", tool_declarations=({"google_search": {}},)),
    }
)


def test_the_judge_of_a_response_sees_what_the_agent_knew_and_the_response_last() -> None:
    """Quirk Q33: in ADK a turn whose first author is no agent of the app cannot be judged."""
    bench = Bench("yes")
    spoken = event(call("f"), author="stranger", text="one moment", grounding_metadata={"web_search_queries": ["q"]})
    actual = [turn("before", user="first"), recorded("after", spoken, user="second", app_details=APP)]
    result(FINAL_RESPONSE, bench, run_of(actual, [turn(), turn()]), rubric("kind"))
    before, after = bench.blocks
    assert list(before) == ["user_message", "tool_calls", "response"]
    assert list(after) == [
        "developer_instructions", "tools", "earlier_turns", "user_message", "tool_calls", "grounding_metadata", "response",
    ]  # fmt: skip
    assert (after["user_message"], after["response"], before["tool_calls"]) == ("second", "after", "(no tool was called)")
    assert after["developer_instructions"].splitlines() == [
        '{"agent":"root","instructions":"Be kind."}',
        '{"agent":"helper","instructions":"Be brief."}',
    ]
    assert "before" in after["earlier_turns"]
    assert "after" not in after["earlier_turns"]


def test_the_judge_of_tools_does_not_see_the_response() -> None:
    bench = Bench("yes")
    actual = [turn("before"), turn("after", call("f"), app_details=APP)]
    result(TOOL_USE, bench, run_of(actual, [turn(), turn()]), rubric("kind"))
    assert [list(blocks) for blocks in bench.blocks] == [
        ["user_message", "tool_calls"],
        ["tools", "earlier_turns", "user_message", "tool_calls"],
    ]


def test_what_was_said_on_the_way_belongs_to_the_response_if_the_config_says_so() -> None:
    said = recorded("done", event(call("f"), text="on it"))
    for included, text in ((False, "done"), (True, "on it\ndone")):
        bench = Bench("yes")
        result(FINAL_RESPONSE, bench, run_of([said]), rubric("kind"), include_intermediate_responses_in_final=included)
        assert bench.blocks[0]["response"] == text


@BY_TURN
def test_turns_that_only_one_side_has(name: str) -> None:
    missing = result(name, Bench("yes"), run_of([turn("1")], [turn()] * 2), rubric("kind"))
    assert [type(cell) for cell in missing.per_invocation] == [Scored, Errored]
    further = result(name, Bench("yes"), run_of([turn("1"), turn("2")], [turn()]), rubric("kind"))
    assert scores(further) == [1.0, 1.0]


@ALL
def test_the_prompt_names_each_block(name: str) -> None:
    bench = Bench("yes")
    spoken = event(call("f"), grounding_metadata={"web_search_queries": ["q"]})
    result(name, bench, run_of([turn("1"), recorded("2", spoken, app_details=APP)]), rubric("kind"))
    instructions = load_prompt(name).text
    assert all(f"`{block}`" in instructions for block in bench.blocks[-1])
    assert all(f"`{label}`" in instructions for label in bench.asked[0].label_values)


TURN: TypeAdapter[Invocation] = TypeAdapter(Invocation)


@QUICK
@given(invocations(allow_nan=True), invocations())
def test_every_conversation_can_be_put_to_a_judge(one: Any, two: Any) -> None:
    run = run_of([TURN.validate_python(one), TURN.validate_python(two)])
    for name in FACTORIES:
        bench = Bench("yes")
        found = result(name, bench, run, rubric("own kind"))
        if isinstance(found.overall, Errored):
            assert any(why in found.overall.error for why in ("has no text", "two different", "was not shown"))
        for question in bench.questions:
            assert question.request({}).text


def test_the_text_of_a_rubric_is_read_without_the_space_around_it() -> None:
    found = rubrics_of_turn(
        TOOL_USE,
        settings(rubric("r", " It is kind.\n")),
        case("c").model_copy(update={"rubrics": (rubric("r", "It is kind.", of=TOOL_USE),)}),
    )
    assert (found.texts, found.problem) == ({"r": "It is kind."}, "")
