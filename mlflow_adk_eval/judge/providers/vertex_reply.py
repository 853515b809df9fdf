"""What Vertex AI's evaluation service replies: a result for what was asked, or why there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.config.rapid_catalogue import CHOICES, RAPID_METRICS, RapidMetric
from mlflow_adk_eval.judge.errors import failure, one_line, retry_after_s, retry_delay_s
from mlflow_adk_eval.judge.protocol import Answer, NoAnswer, Refused, Unavailable
from mlflow_adk_eval.judge.providers.access import credentials_failure

if TYPE_CHECKING:
    from mlflow_adk_eval.judge.client import CallResult

UNSENDABLE = "this cannot be put into a request to Vertex AI"
_STATUS_OF = {2: 500, 4: 504, 7: 403, 8: 429, 10: 503, 13: 500, 14: 503, 16: 401}
"""The HTTP statuses of the gRPC codes with which a row may fail though another one, or the same one later, would not."""
_HINTS = {
    401: "Are the credentials still good? `gcloud auth application-default login` renews them.",
    403: "Is the Vertex AI API enabled in GOOGLE_CLOUD_PROJECT, and do the credentials have the role Vertex AI User there?",
    404: "Does the project exist, and is the service offered in GOOGLE_CLOUD_LOCATION?",
    429: "The quota of the project is used up: raise it, or ask less at a time with JudgeOptions(max_concurrency=...).",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricVerdict:
    """Whether what was judged has one property that the service looks for."""

    rubric_id: str
    description: str
    met: bool
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the service made of one instance, or of all instances of a computed metric."""

    scores: tuple[float, ...] = ()
    """Of each instance; empty without a result, and for a pairwise metric."""
    choice: str | None = None
    """One of `CHOICES`, for a pairwise metric."""
    error: str = ""
    """Why there is no result; empty where there is one."""
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
    host: str = ""
    asked_in: str = ""
    asked_at: str = ""
    """Where the answer is from, as the `Vote` says it."""
    raw: str = ""
    """What the service answered, where that is no result."""

    @property
    def score(self) -> float | None:
        """The score of the only instance, or of the first one."""
        return self.scores[0] if self.scores else None


def read_result(made: CallResult, bounds: tuple[float, float], metric: str = "", count: int = 1) -> Result:
    """Return what a call brought, or the reason why that is no result.

    Args:
        made: the call.
        bounds: the least and the greatest score.
        metric: the metric, as the service calls it.
        count: how many instances were asked about.
    """
    answer = made.answer
    if answer is None:
        return Result(error=made.error)
    row, rapid = _object(answer.text), RAPID_METRICS.get(metric)
    pairwise = rapid is not None and rapid.kind == "pairwise"
    scores = () if pairwise else _scores(row, rapid)
    choice = row.get("pairwise_choice") if pairwise else None
    unread = _undecided(choice) if pairwise else _unscored(scores, bounds, count)
    error = answer.problem or _error(row.get("error")) or unread
    return Result(
        scores=() if error else tuple(map(float, scores)),
        choice=None if error else choice,
        error=error,
        explanation=str(row.get("explanation") or ""),
        verdicts=tuple(_verdicts(row.get("rubricVerdicts"))),
        confidence=row.get("confidence"),
        answered=True,
        latency_s=answer.latency_s,
        reused=made.reused,
        host=answer.host,
        asked_in=answer.asked_in,
        asked_at=answer.asked_at,
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


def _scores(row: Mapping[str, Any], rapid: RapidMetric | None) -> Sequence[Any]:
    """Return what stands where the scores belong."""
    if rapid is not None and rapid.kind == "computed":
        return [value.get("score") for value in row.get(rapid.values_key) or ()]
    return [row.get("score")]


def _undecided(choice: Any) -> str:
    """Return why a choice is none."""
    return "" if choice in CHOICES else f"Vertex AI made no choice{f', but {choice}' if choice else ''}"


def _unscored(scores: Sequence[Any], bounds: tuple[float, float], count: int) -> str:
    """Return why scores are none."""
    if scores and len(scores) != count:
        return f"Vertex AI gave {len(scores)} scores for {count} instances"
    whys = [_no_score(score, bounds) for score in scores or (None,)]
    return "; ".join(f"instance {number}: {why}" if count > 1 else why for number, why in enumerate(whys, 1) if why)


def _no_score(score: Any, bounds: tuple[float, float]) -> str:
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


def answer_of(response: Any, metric: str) -> Answer:
    """Return the result in a response.

    Args:
        response: the protobuf.
        metric: what was asked for, as the service calls it.

    Raises:
        NoAnswer: if the service says that it failed, rather than that it cannot judge this.
    """
    from google.protobuf import json_format  # noqa: PLC0415

    model, rapid = f"vertex:{metric}", RAPID_METRICS.get(metric)
    row = _row(response, rapid)
    if row is None:
        return Answer(text="", model=model, problem="Vertex AI's answer has no result")
    documented = rapid is not None  # the answers of the Rapid Eval API are in snake_case
    text = json_format.MessageToJson(row, indent=None, ensure_ascii=False, preserving_proto_field_name=documented)
    return Answer(text=text, model=model)


def _row(response: Any, rapid: RapidMetric | None) -> Any:
    """Return what a response holds; ``None``: not what was asked for."""
    if rapid is not None:
        return getattr(response, rapid.result_key) if response.HasField(rapid.result_key) else None
    if not response.metric_results:
        return None
    row = response.metric_results[0]
    if row.error.code in _STATUS_OF:
        raise failure(_STATUS_OF[row.error.code], row.error.message or f"code {row.error.code}")
    if row.HasField("error"):
        row.error.ClearField("details")
    return row


@contextmanager
def translated_errors() -> Generator[None]:
    """Say of whatever the package raises whether the same request may succeed later."""
    from google.api_core.exceptions import GoogleAPICallError  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError, InvalidOperation  # noqa: PLC0415
    from google.protobuf.json_format import ParseError, SerializeToJsonError  # noqa: PLC0415
    from requests.exceptions import RequestException, Timeout  # noqa: PLC0415

    try:
        yield
    except GoogleAPICallError as error:
        raise _of_status(error) from None
    except InvalidOperation:  # of a client that has no credentials, after 401
        raise Refused("401: it wants credentials, which are not sent to a base URL without TLS", every_request=True) from None
    except GoogleAuthError as error:
        raise credentials_failure(error) from None
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
    status = int(error.code)
    message = f"{status} {error.message}"
    hint = _HINTS.get(status, "")
    return failure(status, f"{message.rstrip('.')}. {hint}" if hint else message, retry_after_s=delay)
