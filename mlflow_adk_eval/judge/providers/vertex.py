"""Vertex AI's evaluation service, which judges by metrics of its own, through google-cloud-aiplatform.

The service is reached through that package's client of the v1beta1 API: the only one of its clients that knows both the
predefined metrics and those of the Rapid Eval API, without a download from Cloud Storage. Importing it takes seconds, so it is
done when somebody first needs it.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from mlflow_adk_eval.config.rapid_catalogue import CHOICES, RAPID_METRICS
from mlflow_adk_eval.errors import JudgeError, UsageError
from mlflow_adk_eval.evalset.material import not_shown
from mlflow_adk_eval.evalset.media import Media
from mlflow_adk_eval.evalset.models import Json, json_sha256
from mlflow_adk_eval.judge.client import CallResult, JudgeClient
from mlflow_adk_eval.judge.hosts import endpoint_named_by, host_of
from mlflow_adk_eval.judge.protocol import Answer, Refused, Unavailable, failure, one_line, retry_after_s, retry_delay_s
from mlflow_adk_eval.judge.providers.access import application_default, credentials_failure, refresh
from mlflow_adk_eval.runtime import require_extra

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

Instance = Json | Sequence[Mapping[str, str]]
"""What is judged: an instance, or, for a metric of the Rapid Eval API that is computed, several."""

_API = "google.cloud.aiplatform_v1beta1"
_WAY_OUT = 'Or use your own judge: "backend": "judge" in the settings of a criterion that has this backend, or backend="local" in evaluate_instances.'
_UNSENDABLE = "this cannot be sent to Vertex AI"
_STATUS_OF = {2: 500, 4: 504, 7: 403, 8: 429, 10: 503, 13: 500, 14: 503, 16: 401}
"""The HTTP statuses of the gRPC codes with which a row may fail though another one, or the same one later, would not."""
_HINTS = {
    401: "Are the credentials still valid? `gcloud auth application-default login` renews them.",
    403: "Is the Vertex AI API enabled in GOOGLE_CLOUD_PROJECT, and do the credentials have the role Vertex AI User there?",
    404: "Does the project exist, and is the service offered in GOOGLE_CLOUD_LOCATION?",
    429: "The project's quota is used up: raise it, or send fewer requests at a time with JudgeOptions(max_concurrency=...).",
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
    answer: Answer | None = None
    """What the service answered, if only that it has no score; ``None``: nothing."""
    reused: bool = False
    """Whether the ledger held the answer."""
    unasked: bool = False
    """Whether nobody was asked, which is no failed vote."""

    @property
    def score(self) -> float | None:
        """The score of the only instance, or of the first one."""
        return self.scores[0] if self.scores else None


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexClient:
    """A way to the evaluation service of one project and location."""

    endpoint: str
    """The base URL."""
    project: str
    location: str
    credentials: Credentials
    timeout_s: float = 120.0
    """The time limit for one request, in seconds."""
    _idle: list[Any] = field(default_factory=list[Any], init=False, repr=False)
    """Clients of the package that no request uses. Each has a connection of its own, since they are not made for threads."""

    def address(self, metric: str, instance: Instance, attempt: int = 0, spec: Json | None = None) -> str:
        """Return what tells an answer from all others.

        Args:
            metric: the metric, as the service calls it.
            instance: what is judged.
            attempt: the number of the answer, from 0, where an earlier one had no score.
            spec: the settings of the metric.
        """
        optional = [value for value in (spec, attempt) if value]
        depends_on = [self.endpoint, self.project, self.location, metric, instance, *optional]
        return json_sha256(depends_on)

    async def evaluate(self, metric: str, instance: Instance, spec: Json | None = None) -> Answer:
        """Send one request, once; the answer's text is the JSON of the service's result.

        A worker thread waits for the service: the package's async clients speak gRPC, or REST in its newest versions only.

        Args:
            metric: the metric, as the service calls it: a predefined one, or one of the Rapid Eval API.
            instance: what is judged.
            spec: the settings of the metric, for one of the Rapid Eval API.

        Raises:
            Unavailable: if the same request may succeed later.
            Refused: if it never will.
        """

        def sent() -> Answer:
            request = self._request(metric, instance, spec or {})
            with _translated_errors(), self._client() as client:
                refresh(self.credentials)
                response = client.evaluate_instances(request, retry=None, timeout=self.timeout_s)
            return replace(_answer_of(type(response).pb(response), metric), host=host_of(self.endpoint))

        limiter = anyio.CapacityLimiter(1)  # of its own: how many requests there are is decided elsewhere
        return await anyio.to_thread.run_sync(sent, abandon_on_cancel=True, limiter=limiter)

    async def aclose(self) -> None:
        """Give back connections."""
        while self._idle:
            self._idle.pop().transport.close()

    def _request(self, metric: str, instance: Instance, spec: Json) -> Any:
        from google.protobuf import json_format  # noqa: PLC0415

        material: Json = {"location": f"projects/{self.project}/locations/{self.location}"}
        if rapid := RAPID_METRICS.get(metric):
            material[rapid.input_key] = {"metric_spec": spec, "instances" if rapid.kind == "computed" else "instance": instance}
        else:
            material |= {"metrics": [{"predefined_metric_spec": {"metric_spec_name": metric}}], "instance": instance}
        request = importlib.import_module(_API).EvaluateInstancesRequest()
        try:
            json_format.ParseDict(material, type(request).pb(request), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise Refused(f"{_UNSENDABLE}: {one_line(str(error))}") from None
        return request

    @contextmanager
    def _client(self) -> Generator[Any]:
        """Lend a client that no other thread uses."""
        try:
            client = self._idle.pop()
        except IndexError:
            make = importlib.import_module(_API).EvaluationServiceClient
            client = make(credentials=self.credentials, transport="rest", client_options={"api_endpoint": self.endpoint})
            client.transport._session.max_redirects = 0  # noqa: SLF001 - another host must neither get the token nor judge
        try:
            yield client
        finally:
            self._idle.append(client)


def vertex_client(*, timeout_s: float = 120.0) -> VertexClient:
    """Return a way to the evaluation service, as the environment says. Nothing is sent to it.

    It says so by ``GOOGLE_CLOUD_PROJECT``, ``GOOGLE_CLOUD_LOCATION``, ``GOOGLE_VERTEX_BASE_URL`` (without it, it is Google's endpoint for the
    location) and the application default credentials, which a base URL without TLS does not get.

    Args:
        timeout_s: how long one request may take, in seconds.

    Raises:
        JudgeError: naming everything that is missing, and what to do about it.
    """
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415

    project, location = os.environ.get("GOOGLE_CLOUD_PROJECT", ""), os.environ.get("GOOGLE_CLOUD_LOCATION", "")
    endpoint = _endpoint(endpoint_named_by("GOOGLE_VERTEX_BASE_URL"), location)
    credentials: Credentials | None = None
    missing: list[str] = []
    try:
        with require_extra("vertex", "Vertex AI's evaluation service"):
            if find_spec(_API) is None:  # the package itself takes seconds to import
                raise ModuleNotFoundError(f"No module named {_API!r}")
    except UsageError as error:
        missing.append(str(error))
    if not project:
        missing.append("GOOGLE_CLOUD_PROJECT is not set: wanted the id of a Google Cloud project with the Vertex AI API enabled")
    if not location:
        missing.append("GOOGLE_CLOUD_LOCATION is not set: wanted a location such as us-central1")
    try:
        # Without TLS everyone on the way could read a token. What is reached like that is a proxy or a test on the same machine.
        credentials = AnonymousCredentials() if endpoint.startswith("http://") else application_default()[0]
    except JudgeError as error:
        missing.append(str(error))
    if missing or not credentials:
        lines = ["Vertex AI's evaluation service cannot be used:", *(f"  - {line}" for line in missing)]
        if os.environ.get("GOOGLE_API_KEY"):
            lines.append("GOOGLE_API_KEY is not enough: the service needs a project, a location and credentials.")
        raise JudgeError("\n".join([*lines, _WAY_OUT]))
    if "agent_eval_data" not in importlib.import_module(_API).EvaluationInstance.meta.fields:  # which would leave the conversation out
        msg = f"google-cloud-aiplatform {version('google-cloud-aiplatform')} is too old: pip install --upgrade 'mlflow-adk-eval[vertex]'. {_WAY_OUT}"
        raise JudgeError(msg)
    return VertexClient(endpoint=endpoint, project=project, location=location, credentials=credentials, timeout_s=timeout_s)


def _endpoint(base_url: str, location: str) -> str:
    """Return the base URL: the given one, else Google's, which several locations have in common.

    >>> _endpoint("", "us-central1"), _endpoint("", "global"), _endpoint("", "eu")
    ('https://us-central1-aiplatform.googleapis.com', 'https://aiplatform.googleapis.com', 'https://aiplatform.eu.rep.googleapis.com')
    >>> _endpoint("vertex.internal/", "us-central1")
    'https://vertex.internal'
    """
    if base_url:
        return (base_url if "://" in base_url else f"https://{base_url}").rstrip("/")
    host = {"global": "aiplatform", "us": "aiplatform.us.rep", "eu": "aiplatform.eu.rep"}.get(location, f"{location}-aiplatform")
    return f"https://{host}.googleapis.com"


@dataclass(frozen=True, slots=True)
class VertexService:
    """The evaluation service with the limits, the budget and the ledger of an evaluation."""

    service: VertexClient
    client: JudgeClient
    rejudge_failed: bool = False
    """Whether to ask again where the ledger's answer has no score."""

    async def evaluate(
        self,
        metric: str,
        instance: Instance,
        bounds: tuple[float, float],
        spec: Json | None = None,
        *,
        unshown: tuple[Media, ...],
    ) -> Result:
        """Return what the service makes of an instance, or what went wrong.

        Args:
            metric: the metric, as the service calls it.
            instance: what is judged, as the service wants it.
            bounds: the least and the greatest score of the metric.
            spec: the settings of the metric, for one of the Rapid Eval API.
            unshown: the media in what is judged. The service reads texts alone, so with any it is not asked.
        """
        if unshown:
            return Result(error=not_shown(unshown), unasked=True)
        send = partial(self.service.evaluate, metric, instance, spec)
        read = partial(read_result, bounds=bounds, metric=metric, count=1 if isinstance(instance, Mapping) else len(instance))
        may_reuse = (lambda answer: not read(CallResult(answer=answer)).error) if self.rejudge_failed else None
        result = Result()
        for attempt in range(2):  # an answer without a score is asked for once more
            address = self.service.address(metric, instance, attempt, spec)
            result = read(await self.client.request(send, address, may_reuse=may_reuse))
            if not result.error or result.answer is None:
                break
        return result


def read_result(call: CallResult, bounds: tuple[float, float], metric: str = "", count: int = 1) -> Result:
    """Return what a call brought, or the reason why that is no result.

    Args:
        call: what came of it.
        bounds: the least and the greatest score.
        metric: the metric, as the service calls it.
        count: how many instances were asked about.
    """
    answer = call.answer
    if answer is None:
        return Result(error=call.error)
    try:
        row = json.loads(answer.text)
    except ValueError:
        row = {}
    if not isinstance(row, dict):
        row = {}
    rapid = RAPID_METRICS.get(metric)
    choice: Any = None
    scores: list[Any] = []
    if rapid is not None and rapid.kind == "pairwise":
        choice = row.get("pairwise_choice")
        unread = "" if choice in CHOICES else f"Vertex AI made no choice{f', but {choice}' if choice else ''}"
    else:
        computed = rapid is not None and rapid.kind == "computed"
        scores = [value.get("score") for value in row.get(rapid.values_key) or ()] if rapid and computed else [row.get("score")]
        whys = [_no_score(score, bounds) for score in scores or (None,)]
        unread = "; ".join(f"instance {number}: {why}" if count > 1 else why for number, why in enumerate(whys, 1) if why)
        if scores and len(scores) != count:
            unread = f"Vertex AI gave {len(scores)} scores for {count} instances"
    status = row.get("error")  # of Google's, whose code is 0 where nothing went wrong
    failed = status if isinstance(status, Mapping) and status.get("code") else None
    error = answer.problem or (f"Vertex AI: {failed.get('message') or 'no reason given'} (code {failed['code']})" if failed else unread)
    found: Json = {} if error else {"scores": tuple(map(float, scores)), "choice": choice}
    found |= {"explanation": str(row.get("explanation") or ""), "verdicts": tuple(_verdicts(row.get("rubricVerdicts")))}
    return Result(error=error, confidence=row.get("confidence"), answer=answer, reused=call.reused, **found)


def _no_score(score: Any, bounds: tuple[float, float]) -> str:
    """Return why a score is none."""
    if score is None:
        return "Vertex AI gave no score"
    low, high = bounds
    number = isinstance(score, int | float) and not isinstance(score, bool)
    if number and math.isfinite(score) and low <= score <= high:
        return ""
    return f"Vertex AI gave the score {score}, which is not a number from {low:g} to {high:g}"


def _verdicts(entries: Any) -> Iterator[RubricVerdict]:
    """Yield the verdicts; the service leaves the word out where a property is missing, as it does with whatever is false."""
    for number, verdict in enumerate(entries or (), 1):
        rubric = verdict.get("evaluatedRubric") or {}
        content = (rubric.get("content") or {}).get("property") or {}
        name, met = str(rubric.get("rubricId") or f"rubric_{number}"), verdict.get("verdict") is True
        about, why = str(content.get("description") or ""), str(verdict.get("reasoning") or "")
        yield RubricVerdict(rubric_id=name, description=about, met=met, reasoning=why)


def _answer_of(response: Any, metric: str) -> Answer:
    """Return the result in a response.

    Args:
        response: the protobuf.
        metric: what was asked for, as the service calls it.

    Raises:
        NoAnswer: if the service says that it failed, rather than that it cannot judge this.
    """
    from google.protobuf import json_format  # noqa: PLC0415

    rapid = RAPID_METRICS.get(metric)
    if rapid is not None:
        row = getattr(response, rapid.result_key) if response.HasField(rapid.result_key) else None
    elif row := next(iter(response.metric_results), None):
        if row.error.code in _STATUS_OF:
            raise failure(_STATUS_OF[row.error.code], row.error.message or f"code {row.error.code}")
        if row.HasField("error"):
            row.error.ClearField("details")
    if row is None:
        return Answer(text="", model=f"vertex:{metric}", problem="Vertex AI's answer has no result")
    documented = rapid is not None  # the answers of the Rapid Eval API are in snake_case
    text = json_format.MessageToJson(row, indent=None, ensure_ascii=False, preserving_proto_field_name=documented)
    return Answer(text=text, model=f"vertex:{metric}")


@contextmanager
def _translated_errors() -> Generator[None]:
    """Say of whatever the package raises whether the same request may succeed later."""
    from google.api_core.exceptions import GoogleAPICallError  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError, InvalidOperation  # noqa: PLC0415
    from google.protobuf.json_format import ParseError, SerializeToJsonError  # noqa: PLC0415
    from requests.exceptions import RequestException, Timeout  # noqa: PLC0415

    try:
        yield
    except GoogleAPICallError as error:
        headers: Mapping[str, str] = getattr(error.response, "headers", None) or {}
        wait = retry_after_s(headers)
        status = int(error.code or 0)
        message = f"{status} {error.message}"
        if hint := _HINTS.get(status):
            message = f"{message.rstrip('.')}. {hint}"
        raise failure(status, message, retry_after_s=retry_delay_s(error.details) if wait is None else wait) from None
    except InvalidOperation:  # of a client that has no credentials, after 401
        raise Refused("401: it requires credentials, but they are not sent to a base URL without TLS", every_request=True) from None
    except GoogleAuthError as error:
        raise credentials_failure(error) from None
    except RequestException as error:
        raise Unavailable(one_line(f"{type(error).__name__}: {error}"), overloaded=isinstance(error, Timeout)) from None
    except SerializeToJsonError as error:  # such as NaN
        raise Refused(f"{_UNSENDABLE}: {one_line(str(error))}") from None
    except (ParseError, AttributeError) as error:  # the latter: google-api-core expects an error to be worded as Google words it
        raise Unavailable(f"the answer is not from Vertex AI: {one_line(str(error))}") from None
