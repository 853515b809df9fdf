"""What a report says of tools that the environment names and that nothing happened to."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mlflow_adk_eval.agents.tool_environment import notes
from mlflow_adk_eval.evalset.conversation import Injection
from mlflow_adk_eval.evalset.models import AgentDetails, AppDetails, FunctionCall, Invocation
from mlflow_adk_eval.results.outcomes import CaseResult
from tests.agents.environments import ERROR, config_of, injecting
from tests.kit import call, case_result, turn


def result(eval_id: str, *turns: Invocation, injected: Iterable[str] = ()) -> CaseResult:
    done = tuple(Injection(invocation_index=0, tool=tool, kind="error") for tool in injected)
    return case_result(eval_id=eval_id, run_index=0, actual=turns, expected=None, results=(), injections=done)


def offered(*tools: str, calls: Iterable[FunctionCall] = (), camel: bool = False) -> Invocation:
    """A turn of an agent that has these tools."""
    declared = {"functionDeclarations" if camel else "function_declarations": [{"name": tool} for tool in tools]}
    details = AgentDetails(name="agent", tool_declarations=({"google_search": {}}, declared))
    return turn("done", *calls).model_copy(update={"app_details": AppDetails(agent_details={"agent": details})})


UNKNOWN = "the tool environment names {}, but no agent has or called that tool"
UNHEEDED = "the tool environment answered or delayed no call of {}"


@pytest.mark.parametrize("camel", [False, True])
def test_a_slip_of_the_pen_in_a_tools_name_is_noted(camel: bool) -> None:
    found = notes(config_of(injecting(book_hotl=ERROR)), [result("c1", offered("find", "book_hotel", camel=camel))])
    assert found == (UNKNOWN.format("'book_hotl'") + "; did you mean 'book_hotel'?",)


def test_tools_that_resemble_none_are_noted_together() -> None:
    environment = injecting(**{f"{index}_zzz": ERROR for index in range(7)})
    assert notes(config_of(environment), [result("c1", offered("find"))]) == (
        "the tool environment names '0_zzz', '1_zzz', '2_zzz', '3_zzz', '4_zzz' and 2 more, but no agent has or called them",
    )


def test_a_tool_that_was_called_or_answered_for_is_known_even_if_undeclared() -> None:
    config = config_of(injecting(book=ERROR, find=ERROR))
    assert notes(config, [result("c1", turn("x", call("book")), injected=["find"])]) == (UNHEEDED.format("'book'"),)


def test_what_was_injected_somewhere_needs_no_note() -> None:
    config = config_of(injecting(book=ERROR | {"match_args": {"city": "Bern"}}))
    played = [result("c1", offered("book", calls=[call("book")])), result("c2", offered("book"), injected=["book"])]
    assert notes(config, played) == ()
    assert notes(config, played[:1]) == (UNHEEDED.format("'book'"),)


def test_without_a_turn_or_an_environment_there_is_nothing_to_note() -> None:
    assert notes(config_of(injecting(book=ERROR)), [result("c1")]) == ()
    assert notes(config_of(), [result("c1", offered("find"))]) == ()
    assert notes(config_of(case_environments={"c2": injecting(book=ERROR)}), [result("c1", offered("find"))]) == ()


def test_two_named_tools_are_not_taken_for_each_other() -> None:
    config = config_of(injecting(book_hotel=ERROR, book_hotel2=ERROR))
    found = notes(config, [result("c1", offered("book_hotel"), injected=["book_hotel"])])
    assert found == (UNKNOWN.format("'book_hotel2'"),)
