"""What becomes of calls of tools: which of them the environment answers or delays, and how it draws."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.agents.functions import CallableAgent, Session
from mlflow_adk_eval.agents.replay import Tools
from mlflow_adk_eval.agents.tool_environment import CaseTools, case_tools, draw, tool_environment
from mlflow_adk_eval.errors import ConfigError, UsageError
from mlflow_adk_eval.evalset.conversation import Conversation, Injection
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.runner.evaluation import run
from tests.agents.environments import ERROR, ERROR_ANSWER, config_of, injecting
from tests.kit import case, cases, turn
from tests.strategies import QUICK, objects

Call = tuple[str, dict[str, Any]]
HIT = {"injected_response": {"hit": True}}


def opened(environment: Any, eval_id: str = "c1", run_index: int = 0) -> CaseTools:
    tools = case_tools(config_of(environment), eval_id, run_index)
    assert tools is not None
    tools.next_turn()
    return tools


def answers(tools: Tools, calls: Iterable[Call]) -> list[Any]:
    async def ask() -> list[Any]:
        return [await tools.answer(name, args) for name, args in calls]

    return anyio.run(ask)


def hits(environment: Any, *args: dict[str, Any]) -> list[bool]:
    """Which calls of the tool ``book`` are answered."""
    return [found is not None for found in answers(opened(environment), [("book", given) for given in args])]


# What is answered


def test_an_error_has_adks_shape() -> None:
    tools = opened(injecting(book=ERROR))
    assert answers(tools, [("book", {}), ("find", {}), ("Book", {})]) == [ERROR_ANSWER, None, None]
    assert tools.injections == (Injection(invocation_index=0, tool="book", kind="error", call_index=0),)


@QUICK
@given(objects())
def test_a_response_is_what_was_written(response: dict[str, Any]) -> None:
    tools = opened(injecting(book={"injected_response": response}))
    assert answers(tools, [("book", {"x": 1})]) == [response]
    assert tools.injections == (Injection(invocation_index=0, tool="book", kind="response", call_index=0),)


def test_whoever_changes_an_answer_changes_no_other() -> None:
    tools = opened(injecting(book={"injected_response": {"rooms": []}}))
    first, _ = answers(tools, [("book", {}), ("book", {})])
    first["rooms"].append("taken")
    assert answers(tools, [("book", {})]) == [{"rooms": []}]


def test_the_first_injection_that_applies_answers() -> None:
    listed = [{"match_args": {"city": "Bern"}} | ERROR, {"first_calls": 1} | HIT, {"injected_response": {"last": True}}]
    calls: list[Call] = [("book", {"city": "Bern"}), ("book", {"city": "Genf"}), ("book", {"city": "Bern"})]
    assert answers(opened(injecting(book=listed)), calls) == [ERROR_ANSWER, {"last": True}, ERROR_ANSWER]


def test_the_turn_and_the_call_of_each_injection_are_told() -> None:
    tools = opened(injecting(book=ERROR | {"match_args": {"city": "Bern"}}))
    answers(tools, [("book", {}), ("book", {"city": "Bern"})])
    tools.next_turn()
    answers(tools, [("book", {"city": "Bern"}), ("find", {}), ("book", {"city": "Bern"})])
    assert [(done.invocation_index, done.call_index) for done in tools.injections] == [(0, 1), (1, 0), (1, 1)]


def test_a_delay_alone_lets_the_tool_answer_and_with_an_answer_comes_before_it() -> None:
    tools = opened(injecting(book=[{"injected_latency_seconds": 0.02, "first_calls": 1}, HIT | {"injected_latency_seconds": 0.03}]))

    async def timed() -> list[tuple[Any, float]]:
        found = []
        for _ in range(2):
            started = anyio.current_time()
            found.append((await tools.answer("book", {}), anyio.current_time() - started))
        return found

    (first, first_s), (second, second_s) = anyio.run(timed)
    assert (first, second) == (None, {"hit": True})
    assert first_s >= 0.02
    assert second_s >= 0.03
    assert [(done.kind, done.latency_s) for done in tools.injections] == [("latency", 0.02), ("response", 0.03)]


def test_a_delay_that_is_cut_off_is_told() -> None:
    tools = opened(injecting(book=ERROR | {"injected_latency_seconds": 60}))

    async def impatient() -> None:
        with anyio.move_on_after(0.01):
            await tools.answer("book", {})

    anyio.run(impatient)
    assert tools.injections == (Injection(invocation_index=0, tool="book", kind="error", latency_s=60, call_index=0),)


# Which calls


@pytest.mark.parametrize(
    ("wanted", "args", "match"),
    [
        ({}, {}, True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 0}, {"a": False}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": {"x": 1, "y": [2]}}, {"a": {"y": [2.0], "x": 1}}, True),
        ({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": [True]}, {"a": [1]}, False),
    ],
)
def test_arguments_are_compared_as_json(wanted: dict[str, Any], args: dict[str, Any], match: bool) -> None:
    assert hits(injecting(book=HIT | {"match_args": wanted}), args) == [match]


@QUICK
@given(objects(), objects(), st.integers(0, 2**32))
def test_a_call_matches_its_own_arguments_whatever_else_it_has_and_in_any_order(
    wanted: dict[str, Any], more: dict[str, Any], seed: int
) -> None:
    items = list((more | wanted).items())
    random.Random(seed).shuffle(items)
    assert hits(injecting(book=HIT | {"match_args": wanted}), dict(items)) == [True]


def test_the_first_calls_or_the_counted_ones() -> None:
    assert hits(injecting(book=HIT | {"first_calls": 2}), *[{}] * 4) == [True, True, False, False]
    assert hits(injecting(book=HIT | {"on_calls": [2, 0]}), *[{}] * 4) == [True, False, True, False]


def test_only_calls_with_the_arguments_are_counted() -> None:
    """So that "the first booking in Bern fails" means that, whatever was booked before."""
    failing = injecting(book=HIT | {"match_args": {"city": "Bern"}, "first_calls": 1})
    assert hits(failing, {"city": "Genf"}, {"city": "Bern"}, {"city": "Genf"}, {"city": "Bern"}) == [False, True, False, False]


def test_calls_are_counted_whoever_answers_them() -> None:
    listed = [ERROR | {"first_calls": 1}, HIT | {"on_calls": [1]}]
    assert answers(opened(injecting(book=listed)), [("book", {})] * 3) == [ERROR_ANSWER, {"hit": True}, None]


def test_every_tool_and_every_conversation_counts_for_itself() -> None:
    environment = injecting(book=HIT | {"first_calls": 1}, find=HIT | {"first_calls": 1})
    assert [found is not None for found in answers(opened(environment), [("book", {}), ("find", {}), ("book", {})])] == [True, True, False]
    assert hits(environment, {}) == hits(environment, {}) == [True]


# Luck


def lucky(probability: float, **more: Any) -> dict[str, Any]:
    return injecting(book=HIT | {"injection_probability": probability} | more)


def drawn(environment: Any, count: int = 24, eval_id: str = "c1", run_index: int = 0) -> list[bool]:
    return [found is not None for found in answers(opened(environment, eval_id, run_index), [("book", {})] * count)]


def test_draws_are_the_same_in_every_evaluation_and_differ_by_seed_case_and_run() -> None:
    again = drawn(lucky(0.5))
    assert again == drawn(lucky(0.5)) == drawn(lucky(0.5, random_seed=0))
    others = [drawn(lucky(0.5, random_seed=1)), drawn(lucky(0.5), eval_id="c2"), drawn(lucky(0.5), run_index=1)]
    assert len({tuple(found) for found in (again, *others)}) == 4


def test_tools_and_injections_draw_for_themselves() -> None:
    half = HIT | {"injection_probability": 0.5}
    tools = opened(injecting(book=[half | {"match_args": {"a": 1}}, half | {"match_args": {"a": 2}}], find=half))
    found = answers(tools, [call for _ in range(24) for call in (("book", {"a": 1}), ("book", {"a": 2}), ("find", {}))])
    rows = [tuple(one is not None for one in found[start::3]) for start in range(3)]
    assert len(set(rows)) == 3


def test_draws_are_even() -> None:
    values = sorted(draw(0, "c", run_index, "book", 0, number) for run_index in range(40) for number in range(50))
    assert 0 <= values[0] <= values[-1] < 1
    worst = max(abs((rank + 0.5) / len(values) - value) for rank, value in enumerate(values))
    assert worst < 1.63 / len(values) ** 0.5  # Kolmogorov-Smirnov at 1 %


def test_certain_and_impossible() -> None:
    assert drawn(lucky(1)) == [True] * 24
    assert drawn(lucky(0)) == [False] * 24


@QUICK
@given(st.floats(0, 1), st.floats(0, 1), st.integers())
def test_a_higher_probability_only_adds(first: float, second: float, seed: int) -> None:
    fewer, more = (drawn(lucky(value, random_seed=seed)) for value in sorted((first, second)))
    assert all(hit <= other for hit, other in zip(fewer, more, strict=True))


@QUICK
@given(st.lists(st.tuples(st.sampled_from(["c1", "c2", "ç"]), st.integers(0, 2)), max_size=40), st.integers(0, 2**32))
def test_whatever_goes_on_at_the_same_time_a_conversation_draws_the_same(calls: list[tuple[str, int]], seed: int) -> None:
    environment = lucky(0.5)
    shuffled = random.Random(seed).sample(calls, len(calls))

    def had(order: list[tuple[str, int]]) -> dict[tuple[str, int], list[Any]]:
        tools = {key: opened(environment, *key) for key in sorted(set(calls))}
        found: dict[tuple[str, int], list[Any]] = {key: [] for key in tools}
        for key in order:
            found[key] += answers(tools[key], [("book", {})])
        return found

    assert had(calls) == had(shuffled) == {key: answers(opened(environment, *key), [("book", {})] * n) for key, n in Counter(calls).items()}


# Single cases


def test_a_case_may_have_tools_of_its_own_or_the_real_ones() -> None:
    config = config_of(injecting(book=ERROR), case_environments={"own": injecting(book=HIT), "real": None})
    own, general = case_tools(config, "own", 0), case_tools(config, "any", 0)
    assert own is not None
    assert general is not None
    assert answers(own, [("book", {})]) == [{"hit": True}]
    assert answers(general, [("book", {})]) == [ERROR_ANSWER]
    assert case_tools(config, "real", 0) is None


def test_there_is_no_environment_where_no_case_asks_for_one() -> None:
    eval_set = cases(case("c1", turn()))
    assert tool_environment(config_of(), eval_set) is None
    assert tool_environment(config_of(injecting(book=HIT), case_environments={"c1": None}), eval_set) is None
    assert tool_environment(config_of(case_environments={"c1": injecting(book=HIT)}), eval_set) is not None


def test_a_case_that_is_not_in_the_eval_set_is_a_problem() -> None:
    config = config_of(case_environments={"book_a_hotl": injecting(book=HIT), "zzz": None})
    with pytest.raises(ConfigError) as caught:
        tool_environment(config, cases(case("book_a_hotel", turn())))
    first, second = caught.value.problems
    assert str(first).startswith("$.case_environments.book_a_hotl: ")
    assert first.hint == "Did you mean 'book_a_hotel'?"
    assert (second.path, second.hint) == ("$.case_environments.zzz", "")


class Whole:
    """An agent that has conversations as a whole."""

    name = "whole"

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        return Conversation(actual=case.conversation or ())


def test_an_agent_whose_tools_cannot_be_reached_is_refused() -> None:
    eval_set = cases(case("c1", turn()))
    with pytest.raises(UsageError, match="'whole' cannot use the config's tool environment"):
        run(eval_set, Whole(), config_of(injecting(book=HIT)))
    assert run(eval_set, Whole(), config_of()).passed


# Functions as agents


def book(city: str) -> dict[str, Any]:
    return {"booked": city}


async def book_async(city: str) -> dict[str, Any]:
    return {"booked": city}


def booker(text: str, session: Session) -> str:
    """Try three times."""
    tool = session.tool(book)
    return str([tool(city=text) for _ in range(3)])


async def booker_async(text: str, session: Session) -> str:
    tool = session.tool(book_async, name="book")
    return str([await tool(text) for _ in range(3)])


@pytest.mark.parametrize("function", [booker, booker_async])
@pytest.mark.parametrize("delay", [0, 0.02])
def test_the_tools_of_functions_fail_too(function: Callable[..., Any], delay: float) -> None:
    environment = injecting(book=ERROR | {"on_calls": [1], "match_args": {"city": "Bern"}, "injected_latency_seconds": delay})
    eval_set = cases(case("c1", turn(user="Bern")), case("c2", turn(user="Genf")))
    report = run(eval_set, CallableAgent(function=function, name="booker"), config_of(environment))
    first, second = report.cases
    assert [answer.response for answer in first.actual[0].tool_responses] == [{"booked": "Bern"}, ERROR_ANSWER, {"booked": "Bern"}]
    assert first.actual[0].final_text == str([{"booked": "Bern"}, ERROR_ANSWER, {"booked": "Bern"}])
    assert first.injections == (Injection(invocation_index=0, tool="book", kind="error", latency_s=delay, call_index=1),)
    assert second.injections == ()
    assert report.notes == (
        "2 cases expect a response that no criterion reads (c1, c2); add response_match_score or final_response_match_v2 to the criteria",
    )
