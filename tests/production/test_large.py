"""Traces of many megabytes, and conversations that began before the window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import chdir
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from tests.integrations.genai import QUIET, tracking
from tests.mlflow_kit import copied
from tests.production.traffic_kit import assessments, talk

pytestmark = QUIET
CALLS: dict[str, Any] = {"criteria": {"tool_call_count_v1": 1}}


@pytest.fixture
def production(template: Path, tmp_path: Path) -> Iterator[str]:
    store = copied(template, tmp_path)
    with chdir(tmp_path), tracking(store):
        import mlflow

        mlflow.set_experiment("production")
        yield store


def test_a_run_holds_little_of_what_a_tool_returned(production: str) -> None:
    import mlflow

    rows = [{"number": number, "text": "x" * 50} for number in range(20_000)]
    with mlflow.start_span("assistant", span_type="AGENT") as root:
        root.set_inputs({"question": "all flights"})
        with mlflow.start_span("flights", span_type="TOOL") as tool:
            tool.set_inputs({"to": "Oslo"})
            tool.set_outputs({"rows": rows})
        with mlflow.start_span("model", span_type="LLM") as model:
            model.set_inputs(
                {"messages": [{"role": "user", "content": "all flights"}, {"role": "tool", "content": json.dumps(rows)}, *rows]}
            )
            model.set_outputs("many")
        root.set_outputs("There are 20,000.")
    mlflow.flush_trace_async_logging()

    scored = adk_eval.score_traces("production", CALLS)

    assert scored.unreadable == ()
    assert scored.report
    (case,) = scored.report.cases
    (turn,) = case.actual
    assert [(call.name, call.args) for call in turn.tool_calls] == [("flights", {"to": "Oslo"})]
    (response,) = turn.tool_responses
    kept = json.dumps(response.response)
    assert "characters)" in kept
    assert len(kept) < 250_000


def test_a_conversation_that_began_before_the_window_is_scored_as_a_whole(production: str) -> None:
    talk("s1", "light on")
    middle = datetime.now(UTC)
    talk("s1", "thanks")

    scored = adk_eval.score_traces("production", CALLS, since=middle)

    assert scored.report
    assert [turn.user_text for turn in scored.report.cases[0].actual] == ["light on", "thanks"]
    assert [len(some) for some in assessments(production).values()] == [2, 2]
