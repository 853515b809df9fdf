"""ADK's result files: what an agent did in an evaluation, and what ADK's metrics made of it.

`load_result` reads files of ADK and of this package; `dumps_result` writes what ``adk web`` lists. What ADK's format has no place for, such
as why a conversation ended, is beside each case as ``adk_eval``, a field that ADK ignores.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from mlflow_adk_eval.evalset.conversation import ConversationOutcome
from mlflow_adk_eval.evalset.models import Invocation, Json, Model
from mlflow_adk_eval.evalset.parse import decode, parse, read_text

PASSED, FAILED, NOT_EVALUATED, INFORMATIONAL = 1, 2, 3, 4
"""ADK's statuses, which are bare integers in its files."""
Status = Annotated[int, Field(ge=PASSED, le=INFORMATIONAL)]


class MetricResult(Model):
    """One metric's score, over a case or over one of its invocations."""

    metric_name: str
    threshold: float | None = None
    criterion: Json | None = None
    custom_function_path: str | None = None
    score: float | None = None
    eval_status: Status
    details: Json | None = None


class InvocationResult(Model):
    """One turn with its metrics."""

    actual_invocation: Invocation
    expected_invocation: Invocation | None = None
    eval_metric_results: tuple[MetricResult, ...] = ()


class EvalCaseResult(Model):
    """One case of a result file."""

    eval_set_file: str | None = None
    eval_set_id: str = ""
    eval_id: str = ""
    final_eval_status: Status
    eval_metric_results: Any = None
    overall_eval_metric_results: tuple[MetricResult, ...] = ()
    eval_metric_result_per_invocation: tuple[InvocationResult, ...] = ()
    session_id: str = ""
    session_details: Json | None = None
    user_id: str | None = None
    adk_eval: ConversationOutcome | None = None
    """What ADK's format has no place for, in results of this package; ADK ignores it."""

    @property
    def actual(self) -> tuple[Invocation, ...]:
        """What the agent did."""
        return tuple(result.actual_invocation for result in self.eval_metric_result_per_invocation)


class EvalSetResult(Model):
    """A result file of ADK: one entry per case and run."""

    eval_set_result_id: str
    eval_set_result_name: str | None = None
    eval_set_id: str
    eval_case_results: tuple[EvalCaseResult, ...] = ()
    creation_timestamp: float = 0.0


_RESULT = TypeAdapter(EvalSetResult)


def parse_result(text: bytes, source: str) -> EvalSetResult:
    """Return the result in `text`, which may be JSON within a JSON string as old versions of ADK wrote it.

    Raises:
        EvalSetError: with every problem of the text.
    """
    inner = decode(text, source) if text.lstrip()[:1] == b'"' else text
    return parse(_RESULT, inner.encode() if isinstance(inner, str) else inner, source)


def load_result(path: str | Path) -> EvalSetResult:
    """Return the result in a file that ADK, or this package, wrote.

    Raises:
        EvalSetError: with every problem of the file.
    """
    return parse_result(read_text(Path(path)), str(path))


def dumps_result(result: EvalSetResult) -> str:
    """Return a result as ADK reads and writes it: nulls included, no number that is not finite."""
    dumped = result.model_dump(mode="json", exclude_unset=True)
    for case in dumped.get("eval_case_results", ()):
        for required, empty in _REQUIRED_BY_ADK.items():
            case.setdefault(required, empty)
    text = json.dumps(_finite(dumped), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode()


_REQUIRED_BY_ADK: Json = {"overall_eval_metric_results": [], "eval_metric_result_per_invocation": [], "session_id": ""}


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case _:
            return value
