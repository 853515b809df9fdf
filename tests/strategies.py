"""Hypothesis strategies for ADK's files as plain JSON values, in ADK's own spelling, valid for ADK itself.

`eval_sets()` is the main one. `respelt` gives the same file in another spelling and key order.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic.alias_generators import to_camel

from tests.profiles import examples

Json = dict[str, Any]

QUICK = examples(60, HealthCheck.data_too_large)
"""For tests that build whole eval sets, on a machine that others use too."""

SCRIPTS = (
    "Turn off the light", "naïve Straße", "東京の天気は？", "날씨가 좋아요", "สวัสดีครับ", "ສະບາຍດີ", "ខ្មែរ", "မြန်မာ", "नमस्ते दुनिया", "שלום עולם",
    "مرحبا بالعالم", "Привет, мир", "Γειά σου", "გამარჯობა", "ﬀ ① ½ Å", "👩‍👩‍👧 🏳️‍🌈", "C++ 3.14 foo_bar e-mail", "a\u0301 \u200b\u2028", '"quoted" \\ /\t\n',
)  # fmt: skip
USER_DATA = {"args", "response", "state", "final_session_state", "part_metadata", "tool_declarations", "note"}
"""Keys below which every name is the user's own."""
CARRIED = {"grounding_metadata", "usage_metadata", "inline_data", "file_data", "executable_code", "video_metadata"}
"""Keys below which this package keeps the names as it finds them, though ADK reads them in either spelling."""


def texts(*, min_size: int = 0) -> SearchStrategy[str]:
    """Texts of all scripts, without half surrogate pairs, which JSON in UTF-8 cannot hold."""
    arbitrary = st.text(st.characters(exclude_categories=["Cs"]), min_size=min_size, max_size=12)
    return st.sampled_from(SCRIPTS) | arbitrary


def names() -> SearchStrategy[str]:
    """Names of tools, agents and the like."""
    return st.sampled_from(("get_weather", "set_device_info", "transfer_to_agent", "检索", "f"))


def json_values(*, allow_nan: bool = False) -> SearchStrategy[Any]:
    """What a tool may get or return: nested, nulls and big numbers included."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.sampled_from((0, 1, 1.0, -0.0, "1", ""))
        | st.floats(allow_nan=allow_nan, allow_infinity=allow_nan)
        | texts()
    )
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3), max_leaves=6)


def objects(*, allow_nan: bool = False) -> SearchStrategy[Json]:
    """JSON objects of the user's own."""
    return st.dictionaries(texts(), json_values(allow_nan=allow_nan), max_size=3)


def _record(required: dict[str, SearchStrategy[Any]], optional: dict[str, SearchStrategy[Any]]) -> SearchStrategy[Json]:
    return st.fixed_dictionaries(required, optional=optional)


def function_calls(*, allow_nan: bool = False) -> SearchStrategy[Json]:
    """Tool calls, with and without id and arguments."""
    return _record({"name": names()}, {"args": objects(allow_nan=allow_nan), "id": st.sampled_from(("call-1", "call-2"))})


def function_responses() -> SearchStrategy[Json]:
    """What tools returned."""
    return _record({"name": names()}, {"response": objects(), "id": st.sampled_from(("call-1", "call-2"))})


def text_parts() -> SearchStrategy[Json]:
    """Parts that say something, thoughts included."""
    return _record({"text": texts()}, {"thought": st.booleans(), "thought_signature": st.just("c2ln")})


def media_parts() -> SearchStrategy[Json]:
    """Parts that this package only carries along."""
    return st.sampled_from((
        {"inline_data": {"mime_type": "image/png", "data": "aGk_Pz8="}},
        {"file_data": {"file_uri": "gs://bucket/a.wav", "mime_type": "audio/wav"}},
        {"executable_code": {"code": "print(1)", "language": "PYTHON"}},
        {"text": "clip", "video_metadata": {"fps": 2.0, "start_offset": "1s"}},
        {"text": "tagged", "part_metadata": {"userKey": {"innerKey": None}}},
    ))  # fmt: skip


def contents(role: str) -> SearchStrategy[Json]:
    """Messages, without parts and without role too."""
    parts = st.lists(text_parts() | media_parts(), max_size=3)
    return _record({}, {"parts": parts, "role": st.just(role)})


def intermediate_data(*, allow_nan: bool = False) -> SearchStrategy[Json]:
    """What happened, as people write it."""
    response = st.tuples(names(), st.lists(text_parts(), max_size=2)).map(list)
    return _record({}, {
        "tool_uses": st.lists(function_calls(allow_nan=allow_nan), max_size=3),
        "tool_responses": st.lists(function_responses(), max_size=2),
        "intermediate_responses": st.lists(response, max_size=2),
    })  # fmt: skip


def invocation_events(*, allow_nan: bool = False) -> SearchStrategy[Json]:
    """What happened, as ADK records it; at least one event, since ADK itself forgets the shape of an empty list."""
    part = (
        text_parts()
        | function_calls(allow_nan=allow_nan).map(lambda call: {"function_call": call})
        | function_responses().map(lambda response: {"function_response": response})
    )
    content = _record({"parts": st.lists(part, max_size=3)}, {"role": st.just("model")})
    event = _record({"author": names()}, {
        "content": content,
        "model_version": st.just("gemini-2.5-flash"),
        "usage_metadata": _record({}, {"prompt_token_count": st.integers(0, 99), "candidates_token_count": st.integers(0, 99)}),
        "grounding_metadata": st.just({"web_search_queries": ["q"], "search_entry_point": {"rendered_content": "<p>"}}),
    })  # fmt: skip
    return st.lists(event, min_size=1, max_size=3).map(lambda events: {"invocation_events": events})


@st.composite
def rubrics(draw: st.DrawFn, *, prefix: str = "r") -> list[Json]:
    """Rubrics with ids of their own."""
    rubric = _record({"rubric_content": _record({}, {"text_property": texts()})}, {
        "description": texts(),
        "type": st.sampled_from(("TOOL_USE_QUALITY", "FINAL_RESPONSE_QUALITY", "TRAJECTORY_QUALITY")),
    })  # fmt: skip
    return [{"rubric_id": f"{prefix}{index}"} | found for index, found in enumerate(draw(st.lists(rubric, max_size=2)))]


def app_details() -> SearchStrategy[Json]:
    """The agents of an app."""
    tool = st.just({"function_declarations": [{"name": "get_weather", "description": "…"}]})
    agent = _record({"name": names()}, {"instructions": texts(), "tool_declarations": st.lists(tool, max_size=1)})
    return _record({}, {"agent_details": st.dictionaries(names(), agent, max_size=2)})


def session_inputs() -> SearchStrategy[Json]:
    """The session that a case starts in."""
    return _record({"app_name": names(), "user_id": texts()}, {"session_id": st.just("s-1"), "state": objects()})


def invocations(*, allow_nan: bool = False) -> SearchStrategy[Json]:
    """Turns, of either shape of intermediate data."""
    seconds = st.floats(0, 99)
    return _record({"user_content": contents("user")}, {
        "invocation_id": texts(),
        "final_response": contents("model"),
        "intermediate_data": intermediate_data(allow_nan=allow_nan) | invocation_events(allow_nan=allow_nan),
        "creation_timestamp": seconds,
        "duration": seconds,
        "model_duration": seconds,
        "tool_duration": seconds,
        "rubrics": rubrics(prefix="turn"),
        "app_details": app_details(),
    })  # fmt: skip


def personas() -> SearchStrategy[Json | str]:
    """Simulated users, by id or spelt out."""
    lines = st.lists(texts(), max_size=2)
    behavior = _record({"name": names(), "description": texts(), "behavior_instructions": lines, "violation_rubrics": lines}, {})
    spelt_out = _record({"id": names(), "description": texts(), "behaviors": st.lists(behavior, max_size=2)}, {})
    return st.sampled_from(("EXPERT", "NOVICE", "EVALUATOR")) | spelt_out


def scenarios() -> SearchStrategy[Json]:
    """Conversations that a simulated user will lead."""
    return _record({"starting_prompt": texts(), "conversation_plan": texts()}, {"user_persona": personas()})


def eval_cases(*, allow_nan: bool = False) -> SearchStrategy[Json]:
    """Cases of either kind, without their id."""
    common: dict[str, SearchStrategy[Any]] = {
        "session_input": session_inputs(),
        "creation_timestamp": st.floats(0, 2e9),
        "rubrics": rubrics(prefix="case"),
        "final_session_state": objects(),
        "note": objects(),
    }
    written = _record({"conversation": st.lists(invocations(allow_nan=allow_nan), max_size=3)}, common)
    return written | _record({"conversation_scenario": scenarios()}, common)


@st.composite
def eval_sets(draw: st.DrawFn, *, allow_nan: bool = False, min_cases: int = 0) -> Json:
    """Whole eval sets; each case has a unique id."""
    cases = draw(st.lists(eval_cases(allow_nan=allow_nan), min_size=min_cases, max_size=3))
    ids = draw(st.lists(texts(min_size=1), min_size=len(cases), max_size=len(cases), unique=True))
    extras = draw(_record({}, {"name": texts(), "description": texts(), "creation_timestamp": st.floats(0, 2e9)}))
    return {"eval_set_id": "s", "eval_cases": [{"eval_id": eval_id} | case for eval_id, case in zip(ids, cases, strict=True)]} | extras


def legacy_turns() -> SearchStrategy[list[Json]]:
    """A legacy file of one case."""
    tool_use = _record({"tool_name": names(), "tool_input": objects()}, {"mock_tool_output": json_values()})
    response = _record({"author": names(), "text": texts()}, {})
    turn = _record({"query": texts()}, {
        "reference": texts(),
        "expected_tool_use": st.lists(tool_use, max_size=2),
        "expected_intermediate_agent_responses": st.lists(response, max_size=2),
    })  # fmt: skip
    return st.lists(turn, min_size=1, max_size=3)


@st.composite
def legacy_cases(draw: st.DrawFn) -> list[Json]:
    """A legacy file of cases."""
    session = _record({}, {"state": objects(), "app_name": names(), "user_id": texts()})
    cases = draw(st.lists(_record({"data": legacy_turns()}, {"initial_session": session}), max_size=3))
    return [{"name": f"case {index}"} | case for index, case in enumerate(cases)]


@st.composite
def damaged(draw: st.DrawFn, values: SearchStrategy[Any]) -> Any:
    """Values of which one place was replaced by something else."""
    value = draw(values)
    path = draw(st.sampled_from(_places(value)))
    return _replaced(value, path, draw(_OF_ANY_KIND | _OF_A_KIND[type(_at(value, path))]))


_OF_ANY_KIND = json_values() | st.sampled_from(([], {}, [[]], [{}], "NOVICE", {"text": "x"}, {"parts": []}, [["a", []]], {"name": "f"}))
_NUMBERS = st.integers(0, 99) | st.floats(0, 99)
_OF_A_KIND: dict[type, SearchStrategy[Any]] = {
    type(None): st.none(), bool: st.booleans(), int: _NUMBERS, float: _NUMBERS, str: texts(), list: st.just([]), dict: st.just({}),
}  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in _places(item, (*path, key)))]


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    return _at(value[path[0]], path[1:]) if path else value


def _replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copied = value.copy()
    copied[path[0]] = _replaced(value[path[0]], path[1:], other)
    return copied


def respelt(value: Any, seed: int, *, keep: Collection[str] = USER_DATA, within: bool = False) -> Any:
    """Return `value` with some keys in camelCase and all in another order.

    Args:
        value: a file, or a part of one.
        seed: decides which keys and which order.
        keep: the keys below which names are left alone.
        within: whether `value` is below one of them.
    """
    rng = random.Random(seed)
    match value:
        case dict():
            items = list(value.items())
            rng.shuffle(items)
            return {
                key if within or rng.random() < 0.5 else to_camel(key): _respelt_item(key, item, rng.randrange(2**32), keep, within=within)
                for key, item in items
            }
        case list():
            return [respelt(item, rng.randrange(2**32), keep=keep, within=within) for item in value]
        case _:
            return value


def _respelt_item(key: str, item: Any, seed: int, keep: Collection[str], *, within: bool) -> Any:
    if key == "agent_details" and not within:
        return {name: respelt(agent, seed, keep=keep) for name, agent in item.items()}
    return respelt(item, seed, keep=keep, within=within or key in keep)
