"""An agent as a model that ``mlflow.models.evaluate`` calls with a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from mlflow_adk_eval.agents import Agent, Conversation, Limits
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.runner import Player
from mlflow_adk_eval.runtime import BACKGROUND, each
from mlflow_adk_eval.tables.records import case_of, outputs_of
from mlflow_adk_eval.tables.rows import is_missing, object_of, plain
from mlflow_adk_eval.tracking.storable import storable

if TYPE_CHECKING:
    import pandas as pd

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
        done[index] = storable(outputs_of(await _played(agent, cells, f"row {index + 1}")), secrets)

    BACKGROUND.call(lambda: each(work, len(rows), limit=concurrency))
    return [done[index] for index in range(len(rows))]


async def _played(agent: Agent, cells: Json, source: str) -> Conversation:
    try:
        case = _case(cells, source)
    except EvalSetError as error:
        return Conversation(actual=(), error=str(error))
    return await Player(agent).play(case, 0)


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
