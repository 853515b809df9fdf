"""What MLflow hands a scorer, a row or the traces of a session, as a case and what the agent did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.agents import Conversation
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.tables.records import (
    CASE,
    cells_of,
    has_answer,
    has_tools,
    with_turns,
)
from mlflow_adk_eval.tables.rows import MADE, Row, row_of

if TYPE_CHECKING:
    from mlflow.entities import Span, Trace

_WHOLE = {CASE, "expected_conversation"}
"""Expectations about a conversation rather than a turn."""
_SESSION = "mlflow.trace.session"
_TELLING_TYPES = {"AGENT", "TOOL"}
_TELLING_OPERATIONS = {"invoke_agent", "execute_tool"}


def row_of_record(inputs: Any, outputs: Any, expectations: Mapping[str, Any] | None, trace: Trace | None, source: str = "row") -> Row:
    """Return a row of ``mlflow.genai.evaluate``. Outputs that say which tools were called are believed; else the trace is.

    Raises:
        EvalSetError: if there is nothing that an agent did.
    """
    done = outputs if trace is None or has_tools(outputs) else _outputs_with_trace(trace, outputs)
    return row_of(cells_of(inputs, done, expectations, source=source), source)


def row_of_session(session: Sequence[Trace], expectations: Mapping[str, Any] | None = None) -> Row:
    """Return the conversation that the traces of a session are, each of them a turn, in the order of time.

    What is expected of it is what the first trace says of the whole conversation, or else what each says of its turn.

    Raises:
        EvalSetError: if a trace holds nothing that an agent did.
    """
    traces = sorted(session, key=lambda trace: trace.info.request_time)
    name = traces[0].info.trace_metadata.get(_SESSION, "session")
    first = dict(expectations or expectations_of(traces[0]))
    if _WHOLE & set(first):
        joined = _joined([_row_of_trace(trace, {}, name) for trace in traces])
        return _expected(joined, first, name)
    said = [first, *(expectations_of(trace) for trace in traces[1:])]
    return _joined([_row_of_trace(trace, expected, name) for trace, expected in zip(traces, said, strict=True)])


def _expected(joined: Row, expectations: Mapping[str, Any], name: str) -> Row:
    """Return a conversation with what is expected of the whole of it."""
    cells = cells_of(None, with_turns({}, joined.conversation.actual), expectations, source=name)
    row = row_of(cells | {"eval_id": name}, name)
    return replace(
        row, conversation=replace(joined.conversation, actual=row.conversation.actual), lacks=row.lacks | (joined.lacks & {MADE})
    )


def expectations_of(trace: Trace) -> dict[str, Any]:
    """Return what is expected of a trace; if it was said after the trace was read, as MLflow stores it."""
    found = _expectations(trace)
    if found:
        return found
    import mlflow  # noqa: PLC0415 - already imported by whoever has a trace

    stored = mlflow.get_trace(trace.info.trace_id, silent=True)
    return _expectations(stored) if stored else {}


def _expectations(trace: Trace) -> dict[str, Any]:
    return {one.name: one.expectation.value for one in trace.info.assessments or () if one.expectation is not None}


def _row_of_trace(trace: Trace, expectations: Mapping[str, Any], source: str) -> Row:
    root = _root(trace)
    inputs, outputs = (root.inputs, root.outputs) if root else (None, None)
    return row_of_record(inputs, outputs, expectations, trace, source)


def _joined(rows: Sequence[Row]) -> Row:
    """Return turns, or stretches of a conversation, as one."""
    expected = tuple(turn for row in rows for turn in row.case.conversation or ())
    return Row(
        case=rows[0].case.model_copy(update={"conversation": expected}),
        conversation=Conversation(
            actual=tuple(turn for row in rows for turn in row.conversation.actual),
            session_state=rows[-1].conversation.session_state,
            error=next((row.conversation.error for row in rows if row.conversation.error), ""),
            unfinished=rows[-1].conversation.unfinished,
        ),
        lacks=frozenset[str]().union(*(row.lacks for row in rows)),
    )


def _outputs_with_trace(trace: Trace, outputs: Any) -> Any:
    """Return outputs with what their trace says of how they came about."""
    from mlflow_adk_eval.agents.traces import conversation_of  # noqa: PLC0415 - only where there are traces

    if not (_tells(trace) or str(trace.info.state).endswith("ERROR")):
        return outputs
    try:
        conversation = conversation_of([trace])
    except InputError:
        if has_answer(outputs):
            return outputs
        raise
    failure = {"error": conversation.error, "unfinished": conversation.unfinished} if conversation.error else {}
    state = {"session_state": conversation.session_state} if conversation.session_state is not None else {}
    return {**state, **failure, **with_turns(outputs, conversation.actual)}


def _tells(trace: Trace) -> bool:
    """Whether a trace says what the agent did inside: the one that MLflow makes of a row of a table does not."""
    return any(
        span.span_type in _TELLING_TYPES or span.get_attribute("gen_ai.operation.name") in _TELLING_OPERATIONS for span in _spans(trace)
    )


def _root(trace: Trace) -> Span | None:
    return next((span for span in _spans(trace) if span.parent_id is None), None)


def _spans(trace: Trace) -> Sequence[Span]:
    spans: Sequence[Span] = trace.data.spans
    return spans
