"""An agent as the functions that MLflow calls: with a row (``mlflow.genai.evaluate``) or with a table (``mlflow.models.evaluate``).

Either returns all that the agent did as JSON, so that scorers and metrics see every turn and every tool call. `records` returns the rows of
an eval set for the first.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import mlflow
from mlflow.entities import LiveSpan, NoOpSpan, SpanStatus, SpanStatusCode, SpanType
from mlflow.tracing import disable_notebook_display
from pydantic import TypeAdapter

from mlflow_adk_eval.agents import Agent, Conversation, Limits
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.inputs import EvalSetSource, load_inputs
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.runner import conversation_with
from mlflow_adk_eval.runtime import BACKGROUND, each
from mlflow_adk_eval.tables.records import case_of, outputs_of, record_of
from mlflow_adk_eval.tables.rows import is_missing, object_of, plain
from mlflow_adk_eval.tracking.storable import Secrets, storable, storable_text

if TYPE_CHECKING:
    import pandas as pd

_PREVIEW = 1000


def records(eval_set: EvalSetSource) -> list[dict[str, Any]]:
    """Return each case of an eval set as a record: ``inputs`` for a predict function and ``expectations`` for scorers.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, or several paths.

    Raises:
        InputError: with every problem of a file.
    """
    loaded, _ = load_inputs(eval_set)
    return [record_of(case) for case in loaded.eval_cases]


def predict_fn(agent: Any, *, agent_name: str | None = None, timeout_s: float | None = None) -> Callable[..., dict[str, Any]]:
    """Return a function that has an agent take part in the conversation that a row's inputs ask for.

    Its outputs are every turn with its tool calls, and, where the agent failed, why; each row has a trace with all of that.

    Args:
        agent: whatever `evaluate` takes as one: a module, an ADK agent, a callable or a recording.
        agent_name: the sub-agent to use instead of the root agent.
        timeout_s: how long one conversation may take, in seconds; ``None``: as long as it takes.

    Raises:
        AgentError: if the agent cannot be loaded.
        UsageError: if it is none.
    """
    player = resolve_agent(agent, agent_name=agent_name, limits=Limits(case_s=timeout_s))
    tried = _Tried()
    _spare_the_search_for_notebooks()

    def predict(**inputs: Any) -> dict[str, Any]:
        return _predicted(player, inputs, tried)

    predict.__doc__ = f"Return what {player.name} does when it is asked for `inputs`."
    return predict


def _spare_the_search_for_notebooks() -> None:
    """Keep MLflow from looking for IPython with every trace, where there is none.

    It looks while it holds Python's import lock, and `mlflow.genai.evaluate` imports openai under a lock of its own: in MLflow 3.17
    the two can wait for each other for ever.
    """
    if find_spec("IPython") is None:
        disable_notebook_display()


class _Tried:
    """The conversation that MLflow has before it evaluates, to try out the function: it is not had, and paid for, twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[str, Conversation] | None = None

    def keep(self, key: str, played: Conversation) -> None:
        with self._lock:
            self._last = key, played

    def take(self, key: str) -> Conversation | None:
        with self._lock:
            if self._last is None or self._last[0] != key:
                return None
            played, self._last = self._last[1], None
            return played


def _predicted(agent: Agent, inputs: Json, tried: _Tried) -> dict[str, Any]:
    """Return what the agent did. MLflow finds a row's trace by the span that is open here, and by no span of the agent's."""
    key = json.dumps(inputs, sort_keys=True, default=repr)
    secrets = secrets_of()
    with mlflow.start_span(name=agent.name, span_type=SpanType.AGENT) as root:
        root.set_inputs(storable(inputs, secrets))
        played = tried.take(key) or _conversation(agent, inputs)
        if isinstance(root, NoOpSpan):  # nothing is traced while MLflow tries the function out
            tried.keep(key, played)
        else:
            mlflow.update_current_trace(request_preview=_preview(inputs, played, secrets), response_preview=_answer(played, secrets))
            _record(root, played, secrets)
        outputs = outputs_of(played)
        root.set_outputs(storable(outputs, secrets))
        return outputs


def _conversation(agent: Agent, inputs: Json) -> Conversation:
    try:
        case = case_of(inputs)
    except EvalSetError as error:
        return Conversation(actual=(), error=str(error))
    return BACKGROUND.call(partial(conversation_with, agent, case))


def _preview(inputs: Json, played: Conversation, secrets: Secrets) -> str:
    """Return what MLflow shows of a row and pairs the rows of two runs by: the case with the first thing the user says."""
    said = played.actual[0].user_text if played.actual else ""
    name = inputs.get("eval_id")
    return storable_text(f"[{name}] {said}" if name else said or str(inputs), secrets)[:_PREVIEW]


def _answer(played: Conversation, secrets: Secrets) -> str:
    """Return what MLflow shows as the response: the last answer, or why there is none."""
    said = played.actual[-1].final_text if played.actual else ""
    return storable_text(said or played.error or "", secrets)[:_PREVIEW]


def _record(root: LiveSpan, played: Conversation, secrets: Secrets) -> None:
    """Add a span for each turn and, in it, for each tool call. When a tool was called is not known, so those take no time."""
    began_ns = root.start_time_ns
    for number, turn in enumerate(played.actual, start=1):
        failed = played.unfinished and number == len(played.actual)
        ended_ns = began_ns + round((turn.duration or 0) * 1e9)
        start = partial(mlflow.start_span_no_context, parent_span=root, start_time_ns=began_ns)
        span = start(f"turn {number}", span_type=SpanType.AGENT, inputs=storable({"user_content": turn.user_text}, secrets))
        for call, answer in turn.answered_calls():
            args = storable(dict(call.args or {}), secrets)
            tool = mlflow.start_span_no_context(
                call.name or "tool", span_type=SpanType.TOOL, parent_span=span, inputs=args, start_time_ns=began_ns
            )
            tool.end(outputs=storable(answer.response, secrets) if answer else None, end_time_ns=began_ns)
        span.end(
            outputs=storable({"final_response": turn.final_text}, secrets),
            status=_failed(played.error, secrets) if failed else None,
            end_time_ns=ended_ns,
        )
        began_ns = ended_ns
    if played.error:
        root.set_status(_failed(played.error, secrets))  # pyright: ignore[reportArgumentType] - as its docstring says


def _failed(error: str, secrets: Secrets) -> SpanStatus:
    return SpanStatus(SpanStatusCode.ERROR, storable_text(error, secrets))


_CASE, _INPUTS = "eval_case", "inputs"
"""The columns of which a model needs one."""
_EVAL_CASE = TypeAdapter(EvalCase)


def model_fn(
    agent: Any, *, agent_name: str | None = None, timeout_s: float | None = None, concurrency: int = 4
) -> Callable[[pd.DataFrame], pd.Series[Any]]:
    """Return an agent as a model for ``mlflow.models.evaluate(model=...)``, whose metrics see all that the agent did.

    The model reads the columns ``inputs`` (what the user says: a text, or a list of texts, one per turn) or ``eval_case``, and
    perhaps ``session_input`` and ``eval_id``. Each row is a conversation of its own; what goes wrong with one is in its output.

    Args:
        agent: an importable module or a folder with a ``root_agent``, an ADK agent or app, a callable or a recording.
        agent_name: the sub-agent to use instead of the root agent.
        timeout_s: how long one conversation may take, in seconds; ``None``: as long as it takes.
        concurrency: how many conversations are had at the same time.

    Raises:
        UsageError: if it is no agent, or `concurrency` is no number of conversations.
        AgentError: if the agent cannot be loaded.
    """
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise UsageError(f"concurrency={shown(concurrency)}: wanted a whole number of at least 1")
    player = resolve_agent(agent, agent_name=agent_name, limits=Limits(case_s=timeout_s))

    def model(table: pd.DataFrame) -> pd.Series[Any]:
        """Return what the agent did in each row."""
        import pandas as pd  # noqa: PLC0415 - who calls this has loaded it

        _check_columns(list(getattr(table, "columns", ())))
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False, name=None)]
        return pd.Series(_outputs(player, rows, concurrency), index=table.index, name="outputs", dtype=object)

    return model


def _check_columns(found: list[Any]) -> None:
    known = (_INPUTS, _CASE)
    if not set(known) & set(found):
        hint = next(filter(None, (did_you_mean(str(name), known) for name in found)), "")
        columns = ", ".join(map(str, found)) or "no columns"
        raise UsageError(f"the model reads a column {' or '.join(known)}; found {columns}. {hint}".rstrip())


def _outputs(agent: Agent, rows: list[Json], concurrency: int) -> list[Json]:
    """Return what the agent did in each row, without secrets: MLflow logs it as it is."""
    secrets = secrets_of()
    done: dict[int, Json] = {}

    async def work(index: int) -> None:
        cells = {name: plain(value) for name, value in rows[index].items() if not is_missing(value)}
        done[index] = storable(outputs_of(await _of_row(agent, cells, f"row {index + 1}")), secrets)

    BACKGROUND.call(lambda: each(work, range(len(rows)), limit=concurrency))
    return [done[index] for index in range(len(rows))]


async def _of_row(agent: Agent, cells: Json, source: str) -> Conversation:
    try:
        case = _case(cells, source)
    except EvalSetError as error:
        return Conversation(actual=(), error=str(error))
    return await conversation_with(agent, case)


def _case(cells: Json, source: str) -> EvalCase:
    """Return what a row asks the agent for.

    Raises:
        EvalSetError: if it asks for nothing, or cannot be read.
    """
    named = {"eval_id": str(cells.get("eval_id", source))}
    if _CASE in cells:
        case = object_of(cells[_CASE], f"$.{_CASE}", "an eval case", source)
        return parse(_EVAL_CASE, named | (case or {}), f"{source}, {_CASE}")
    if _INPUTS not in cells:
        raise EvalSetError(source, [Problem(f"$.{_INPUTS}", "nothing", "what the user says, or an eval case")])
    said = cells[_INPUTS]
    session = object_of(cells.get("session_input"), "$.session_input", "a session in ADK's format", source)
    asked = dict(said) if isinstance(said, Mapping) else {"messages": said}
    return case_of(asked | named | ({"session_input": session} if session else {}))
