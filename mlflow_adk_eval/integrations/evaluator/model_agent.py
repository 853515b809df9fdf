"""A model of MLflow as an agent: it is called with a table of one row for each conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from mlflow_adk_eval.agents import Conversation
from mlflow_adk_eval.agents.conversation import NO_USER, described
from mlflow_adk_eval.errors import UsageError, shown
from mlflow_adk_eval.evalset import EvalCase, dump
from mlflow_adk_eval.tables.records import cells_of
from mlflow_adk_eval.tables.rows import row_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAgent:
    """A model that answers a table with columns ``eval_id``, ``inputs`` and ``session_input`` by one output for its only row."""

    model: Any
    """Anything with MLflow's ``predict``."""
    column: str | None = None
    """The column that counts where the output is a table."""
    name: str = "model"

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:  # noqa: ARG002 - the protocol's
        """Have the whole conversation in one call. Whatever the model raises is returned."""
        if case.conversation is None:
            return Conversation(actual=(), error=NO_USER)
        try:
            output = await anyio.to_thread.run_sync(self._output, case)
            return row_of(cells_of(None, output) | {"targets": case}, f"output for case {case.eval_id!r}").conversation
        except Exception as error:  # noqa: BLE001 - a model may be anybody's code, and must not cost the other cases
            return Conversation(actual=(), error=described(error))

    def _output(self, case: EvalCase) -> Any:
        from pandas import DataFrame  # noqa: PLC0415 - slow

        said = [turn.user_text for turn in case.conversation or ()]
        session = dump(case.session_input) if case.session_input else None
        row = {"eval_id": case.eval_id, "inputs": said[0] if len(said) == 1 else said, "session_input": session}
        return self._only(self.model.predict(DataFrame([row])))

    def _only(self, outputs: Any) -> Any:
        """Return the only row of what the model returned."""
        if isinstance(outputs, str | dict):
            return outputs
        if hasattr(outputs, "columns"):
            columns = [self.column] if self.column else list(outputs.columns)
            if len(columns) != 1 or columns[0] not in outputs.columns:
                found = ", ".join(map(str, outputs.columns))
                raise UsageError(f"the model returned the columns {found}; predictions= names the one that counts")
            outputs = outputs[columns[0]]
        listed = outputs.tolist() if hasattr(outputs, "tolist") else outputs
        if not isinstance(listed, list | tuple) or len(listed) != 1:
            raise UsageError(f"the model returned {shown(listed)} for a table of one row; wanted a list of one output")
        return listed[0]
