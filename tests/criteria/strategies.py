"""Hypothesis strategies for turns as plain JSON values, with what the criteria look at and nothing else.

The pieces are few and repeat, so that both sides of a comparison often agree; ADK reads all of it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.strategies import SCRIPTS

Json = dict[str, Any]

WORDS = (
    "the", "running", "runs", "ran", "conditional", "flies", "happily", "proceed", "news", "naïve", "Straße", "İstanbul", "ΣΑΣ", "東京", "の", "天気",
    "カタカナ", "ｶﾞｷﾞ", "날씨", "한국어", "สวัสดี", "น้ำ", "ພາສາລາວ", "ខ្មែរ", "မြန်မာ", "مرحبا", "مُحَمَّد", "नमस्ते", "হ্যালো", "שלום", "👍", "👩‍👩‍👧", "🏳️‍🌈", "ﬁnal", "①",
    "１２３", "½", "Å", "a\u0301", "e\u0301e\u0301", "々〆", "𠮷", "foo_bar", "e-mail", "3.14", "C++", "don't", "\u200b", "\u00ad", "x\u0301\u0302", "²", "Ⅷ", "٣",
)  # fmt: skip
"""Every script and every trap that the tokenizer knows of."""


def texts() -> SearchStrategy[str]:
    """Sentences of few words of all scripts, joined in several ways, and anything else."""
    joined = st.builds(
        lambda words, by: by.join(words),
        st.lists(st.sampled_from(WORDS), max_size=6),
        st.sampled_from((" ", "", "\n", ", ", "\u3000", "-")),
    )
    return joined | joined | st.sampled_from(SCRIPTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def arguments() -> SearchStrategy[Json]:
    """Arguments that are often nearly the same."""
    leaf = st.sampled_from((None, 0, 1, 1.0, -1, 0.5, 10**20, "", "1", "a", "é", "e\u0301"))
    value = st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2), max_leaves=4
    )
    return st.dictionaries(st.sampled_from(("x", "y", "room 1")), value, max_size=2)


def calls(args: SearchStrategy[Json] | None = None) -> SearchStrategy[Json]:
    """Tool calls with arguments, and things that no criterion looks at."""
    given = arguments() if args is None else args
    return st.fixed_dictionaries({"name": st.sampled_from(("f", "g", "検索")), "args": given}, optional={"id": st.sampled_from(("1", "2"))})


def messages(role: str) -> SearchStrategy[Json]:
    """Messages: without parts, of several parts, of thoughts."""
    part = st.fixed_dictionaries({}, optional={"text": texts(), "thought": st.booleans()})
    return st.fixed_dictionaries({}, optional={"parts": st.lists(part, max_size=3), "role": st.just(role)})


def usages() -> SearchStrategy[Json]:
    """What a model call used: any of the counts, or none."""
    fields = (
        "prompt_token_count",
        "tool_use_prompt_token_count",
        "cached_content_token_count",
        "candidates_token_count",
        "thoughts_token_count",
    )
    return st.fixed_dictionaries({}, optional=dict.fromkeys((*fields, "total_token_count"), st.integers(0, 10**6)))


def data(found: SearchStrategy[Json]) -> SearchStrategy[Json]:
    """Both shapes of what happened in a turn, with the calls `found`."""
    part = found.map(lambda call: {"function_call": call}) | st.just({"text": "thinking"})
    response = st.just({"function_response": {"name": "f", "response": {"ok": True}}})
    event = st.fixed_dictionaries(
        {"author": st.just("agent")},
        optional={
            "content": st.fixed_dictionaries({}, optional={"parts": st.lists(part | response, max_size=3)}),
            "usage_metadata": usages(),
            "model_version": st.just("m"),
        },
    )
    written = st.fixed_dictionaries({}, optional={"tool_uses": st.lists(found, max_size=3)})
    return written | st.lists(event, min_size=1, max_size=3).map(lambda events: {"invocation_events": events})


def turns(found: SearchStrategy[Json] | None = None) -> SearchStrategy[Json]:
    """Turns with anything missing that may be missing."""
    seconds = st.floats(0, 100).map(lambda value: round(value, 3))
    return st.fixed_dictionaries(
        {"user_content": messages("user")},
        optional={
            "final_response": messages("model"),
            "intermediate_data": data(calls() if found is None else found),
            "duration": seconds,
            "model_duration": seconds,
            "tool_duration": seconds,
        },
    )
