"""What Vertex AI's evaluation service replies: a result for one instance, or why there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.judge.base import Answer, NoAnswer, Refused, Unavailable
from mlflow_adk_eval.judge.failures import failure, one_line, retry_after_s, retry_delay_s

if TYPE_CHECKING:
    from mlflow_adk_eval.judge.calls import Made

UNSENDABLE = "this cannot be put into a request to Vertex AI"
_STATUS_OF = {2: 500, 4: 504, 7: 403, 8: 429, 10: 503, 13: 500, 14: 503, 16: 401}
"""The HTTP statuses of the gRPC codes with which a row may fail though another one, or the same one later, would not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricVerdict:
    """Whether what was judged has one property that the service looks for."""

    rubric_id: str
    description: str
    met: bool
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the service made of one instance."""

    score: float | None = None
    error: str = ""
    """Why there is no score; empty where there is one."""
    explanation: str = ""
    verdicts: tuple[RubricVerdict, ...] = ()
    confidence: float | None = None
    """Of the score, from 0 to 1, where the service says so."""
    answered: bool = False
    """Whether the service answered, if only that it has no score."""
    latency_s: float = 0.0
    """How long the answer took, in seconds."""
    reused: bool = False
    """Whether the ledger held the answer."""
    raw: str = ""
    """What the service answered, where that has no score."""


def read_result(made: Made, bounds: tuple[float, float]) -> Result:
    """Return what a call brought: a score within `bounds`, or the reason why there is none."""
    answer = made.answer
    if answer is None:
        return Result(error=made.error)
    row = _object(answer.text)
    score = row.get("score")
    error = answer.problem or _error(row.get("error")) or _unscored(score, bounds)
    return Result(
        score=None if error else float(score or 0),
        error=error,
        explanation=str(row.get("explanation") or ""),
        verdicts=tuple(_verdicts(row.get("rubricVerdicts"))),
        confidence=row.get("confidence"),
        answered=True,
        latency_s=answer.latency_s,
        reused=made.reused,
        raw=answer.text if error else "",
    )


def _object(text: str) -> Mapping[str, Any]:
    try:
        row = json.loads(text)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _error(error: Any) -> str:
    """Return what a row says went wrong: a status of Google's, whose code is 0 where nothing did."""
    if not isinstance(error, Mapping) or not error.get("code"):
        return ""
    return f"Vertex AI: {error.get('message') or 'no reason given'} (code {error['code']})"


def _unscored(score: Any, bounds: tuple[float, float]) -> str:
    """Return why a score is none."""
    if score is None:
        return "Vertex AI gave no score"
    low, high = bounds
    number = isinstance(score, int | float) and not isinstance(score, bool)
    if number and math.isfinite(score) and low <= score <= high:
        return ""
    return f"Vertex AI gave the score {score}, which is not a number from {low:g} to {high:g}"


def _verdicts(found: Any) -> Iterator[RubricVerdict]:
    """Yield the verdicts; the service leaves the word out where a property is missing, as it does with whatever is false."""
    for number, verdict in enumerate(found or (), 1):
        rubric = verdict.get("evaluatedRubric") or {}
        content = (rubric.get("content") or {}).get("property") or {}
        yield RubricVerdict(
            rubric_id=str(rubric.get("rubricId") or f"rubric_{number}"),
            description=str(content.get("description") or ""),
            met=verdict.get("verdict") is True,
            reasoning=str(verdict.get("reasoning") or ""),
        )


def answer_of(response: Any, model: str) -> Answer:
    """Return the result in a response, of whichever kind it is.

    Args:
        response: the protobuf.
        model: what reports call the service.

    Raises:
        NoAnswer: if the service says that it failed, rather than that it cannot judge this.
    """
    from google.protobuf import json_format  # noqa: PLC0415

    if response.HasField("coherence_result"):
        row = response.coherence_result
    elif response.metric_results:
        row = response.metric_results[0]
        if row.error.code in _STATUS_OF:
            raise failure(_STATUS_OF[row.error.code], row.error.message or f"code {row.error.code}")
        if row.HasField("error"):
            row.error.ClearField("details")
    else:
        return Answer(text="", model=model, problem="Vertex AI's answer has no result")
    return Answer(text=json_format.MessageToJson(row, indent=None, ensure_ascii=False), model=model)


@contextmanager
def failures_told() -> Generator[None]:
    """Say of whatever the package raises whether the same request may succeed later."""
    from google.api_core.exceptions import GoogleAPICallError  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    from google.protobuf.json_format import ParseError, SerializeToJsonError  # noqa: PLC0415
    from requests.exceptions import RequestException, Timeout  # noqa: PLC0415

    try:
        yield
    except GoogleAPICallError as error:
        raise _of_status(error) from None
    except GoogleAuthError as error:
        message = f"Google Cloud credentials: {one_line(str(error))}"
        raise Unavailable(message) if error.retryable else Refused(message, every_request=True) from None
    except RequestException as error:
        raise Unavailable(one_line(f"{type(error).__name__}: {error}"), overloaded=isinstance(error, Timeout)) from None
    except SerializeToJsonError as error:  # such as NaN
        raise Refused(f"{UNSENDABLE}: {one_line(str(error))}") from None
    except (ParseError, AttributeError) as error:  # the latter: google-api-core expects an error to be worded as Google words it
        raise Unavailable(f"what came back is not Vertex AI's: {one_line(str(error))}") from None


def _of_status(error: Any) -> NoAnswer:
    headers: Mapping[str, str] = getattr(error.response, "headers", None) or {}
    wait = retry_after_s(headers)
    delay = retry_delay_s(error.details) if wait is None else wait
    return failure(int(error.code), f"{int(error.code)} {error.message}", retry_after_s=delay)
