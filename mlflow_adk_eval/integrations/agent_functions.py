"""An agent as the functions that MLflow calls: with a row (``mlflow.genai.evaluate``) or with a table (``mlflow.models.evaluate``).

Either returns all that the agent did as JSON, so that scorers and metrics see every turn and every tool call. `genai_data` returns the rows of
an eval set for the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import mlflow
from mlflow.entities import LiveSpan, NoOpSpan, SpanStatus, SpanStatusCode, SpanType
from mlflow.tracing import disable_notebook_display

from mlflow_adk_eval.agents.protocol import Agent, Limits
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.inputs import EvalSetSource, load_inputs
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase, Json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.runner.evaluation import conversation_with
from mlflow_adk_eval.runtime import BACKGROUND, each
from mlflow_adk_eval.shapes.answers import is_missing, object_of, plain
from mlflow_adk_eval.shapes.records import case_of, outputs_of, record_of
from mlflow_adk_eval.tracking.storable import Secrets, storable, storable_text

if TYPE_CHECKING:
    import pandas as pd

_PREVIEW = 1000


def genai_data(eval_set: EvalSetSource) -> list[dict[str, Any]]:
    """Return each case of an eval set as a dict: ``inputs`` for a predict function and ``expectations`` for scorers.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, or several paths.

    Raises:
        InputError: with every problem of a file.
    """
    loaded, _ = load_inputs(eval_set)
    return [record_of(case) for case in loaded.eval_cases]


def predict_fn(agent: Any, *, agent_name: str | None = None, timeout_s: float | None = None) -> Callable[..., dict[str, Any]]:
    """Return a predict function that runs an agent on the conversation in a row's inputs.

    Its outputs are the turns with their tool calls and any error of the agent. Each row has a trace with the same content.

    Args:
        agent: as for `evaluate`: a module, an ADK agent, a callable or a recording.
        agent_name: the sub-agent to use instead of the root agent.
        timeout_s: the time limit for one conversation, in seconds; ``None``: no limit.

    Raises:
        AgentError: if the agent cannot be loaded.
        UsageError: if it is not an agent.
    """
    player = resolve_agent(agent, agent_name=agent_name, limits=Limits(case_s=timeout_s))
    tried: dict[str, Conversation] = {}
    """The conversation that MLflow has before it evaluates, to try out the function: it is not had, and paid for, twice."""
    # Without IPython, MLflow must not look for it with every trace: it does so while it holds Python's import lock, and `mlflow.genai.evaluate`
    # imports openai under a lock of its own, so that in MLflow 3.17 the two can wait for each other for ever.
    if find_spec("IPython") is None:
        disable_notebook_display()

    def predict(**inputs: Any) -> dict[str, Any]:
        key = json.dumps(inputs, sort_keys=True, default=repr)
        secrets = secrets_of()
        # MLflow finds a row's trace by the span that is open here, and by no span of the agent's.
        with mlflow.start_span(name=player.name, span_type=SpanType.AGENT) as root:
            root.set_inputs(storable(inputs, secrets))
            played = tried.pop(key, None) or BACKGROUND.call(partial(_played, player, partial(case_of, inputs)))
            if isinstance(root, NoOpSpan):  # nothing is traced while MLflow tries the function out
                tried.clear()
                tried[key] = played
            else:
                # What MLflow shows of a row and pairs the rows of two runs by: the case with the first thing the user says, and the last answer.
                said, name = (played.actual[0].user_text if played.actual else ""), inputs.get("eval_id")
                request = storable_text(f"[{name}] {said}" if name else said or str(inputs), secrets)
                answer = storable_text((played.actual[-1].shown_answer if played.actual else "") or played.error or "", secrets)
                mlflow.update_current_trace(request_preview=request[:_PREVIEW], response_preview=answer[:_PREVIEW])
                _record(root, played, secrets)
            outputs = outputs_of(played)
            root.set_outputs(storable(outputs, secrets))
            return outputs

    predict.__doc__ = f"Return the answer of {player.name} to `inputs`."
    return predict


async def _played(player: Agent, read: Callable[[], EvalCase]) -> Conversation:
    """Return the conversation on the case that is read; where it cannot be read, that is its error."""
    try:
        return await conversation_with(player, read())
    except EvalSetError as error:
        return Conversation(actual=(), error=str(error))


def _record(root: LiveSpan, played: Conversation, secrets: Secrets) -> None:
    """Add a span for each turn and, in it, for each tool call. When a tool was called is not known, so those take no time."""
    began_ns, failure = root.start_time_ns, SpanStatus(SpanStatusCode.ERROR, storable_text(played.error, secrets))
    for number, turn in enumerate(played.actual, start=1):
        failed = played.unfinished and number == len(played.actual)
        ended_ns = began_ns + round((turn.duration or 0) * 1e9)
        start = partial(mlflow.start_span_no_context, parent_span=root, start_time_ns=began_ns)
        span = start(f"turn {number}", span_type=SpanType.AGENT, inputs=storable({"user_content": turn.user_text}, secrets))
        for call, answer in turn.answered_calls():
            args = storable(dict(call.args or {}), secrets)
            tool = start(call.name or "tool", span_type=SpanType.TOOL, parent_span=span, inputs=args)
            tool.end(outputs=storable(answer.response, secrets) if answer else None, end_time_ns=began_ns)
        span.end(outputs=storable({"final_response": turn.shown_answer}, secrets), status=failure if failed else None, end_time_ns=ended_ns)
        began_ns = ended_ns
    if played.error:
        root.set_status(failure)  # pyright: ignore[reportArgumentType] - as its docstring says


_CASE, _INPUTS = "eval_case", "inputs"
"""The columns of which a model needs one."""


def model_fn(
    agent: Any, *, agent_name: str | None = None, timeout_s: float | None = None, concurrency: int = 4
) -> Callable[[pd.DataFrame], pd.Series[Any]]:
    """Return an agent as a model for ``mlflow.models.evaluate(model=...)``; the metrics see the whole conversation.

    The model reads the columns ``inputs`` (what the user says: a text, or a list of texts, one per turn) or ``eval_case``, and
    optionally ``session_input`` and ``eval_id``. Each row is a separate conversation; its output contains any error.

    Args:
        agent: an importable module or a folder with a ``root_agent``, an ADK agent or app, a callable or a recording.
        agent_name: the sub-agent to use instead of the root agent.
        timeout_s: the time limit for one conversation, in seconds; ``None``: no limit.
        concurrency: the number of conversations to run in parallel.

    Raises:
        UsageError: if it is not an agent, or `concurrency` is invalid.
        AgentError: if the agent cannot be loaded.
    """
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise UsageError(f"concurrency={shown(concurrency)}: wanted a whole number of at least 1")
    player = resolve_agent(agent, agent_name=agent_name, limits=Limits(case_s=timeout_s))

    def model(table: pd.DataFrame) -> pd.Series[Any]:
        """Return what the agent did in each row."""
        import pandas as pd  # noqa: PLC0415 - who calls this has loaded it

        known, found = (_INPUTS, _CASE), list(getattr(table, "columns", ()))
        if not set(known) & set(found):
            hint = next(filter(None, (did_you_mean(str(name), known) for name in found)), "")
            columns = ", ".join(map(str, found)) or "no columns"
            raise UsageError(f"the model reads a column {' or '.join(known)}; found {columns}. {hint}".rstrip())
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False, name=None)]
        secrets, outputs = secrets_of(), dict[int, Json]()  # without secrets: MLflow logs them as they are

        async def work(index: int) -> None:
            cells = {name: plain(value) for name, value in rows[index].items() if not is_missing(value)}
            conversation = await _played(player, partial(_case, cells, f"row {index + 1}"))
            outputs[index] = storable(outputs_of(conversation), secrets)

        BACKGROUND.call(lambda: each(work, range(len(rows)), limit=concurrency))
        return pd.Series([outputs[index] for index in range(len(rows))], index=table.index, name="outputs", dtype=object)

    return model


def _case(cells: Json, source: str) -> EvalCase:
    """Return what a row asks the agent for.

    Raises:
        EvalSetError: if it asks for nothing, or cannot be read.
    """
    named = {"eval_id": str(cells.get("eval_id", source))}
    if _CASE in cells:
        case = object_of(cells[_CASE], f"$.{_CASE}", "an eval case", source)
        return parse(EvalCase, named | (case or {}), f"{source}, {_CASE}")
    if _INPUTS not in cells:
        raise EvalSetError(source, [Problem(f"$.{_INPUTS}", "nothing", "what the user says, or an eval case")])
    said = cells[_INPUTS]
    session = object_of(cells.get("session_input"), "$.session_input", "a session in ADK's format", source)
    asked = dict(said) if isinstance(said, Mapping) else {"messages": said}
    return case_of(asked | named | ({"session_input": session} if session else {}))
