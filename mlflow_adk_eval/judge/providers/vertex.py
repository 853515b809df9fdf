"""Vertex AI's evaluation service, which judges by metrics of its own, through google-cloud-aiplatform.

The service is reached through that package's client of the v1beta1 API: the only one of its clients that knows both the
predefined metrics and those of the Rapid Eval API, without a download from Cloud Storage. Importing it takes seconds, so it is
done when somebody first needs it.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS
from mlflow_adk_eval.errors import JudgeError, UsageError
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.client import CallResult, JudgeClient
from mlflow_adk_eval.judge.errors import one_line
from mlflow_adk_eval.judge.hosts import endpoint_named_by, host_of
from mlflow_adk_eval.judge.protocol import Answer, Refused
from mlflow_adk_eval.judge.providers.access import application_default
from mlflow_adk_eval.judge.providers.vertex_reply import (
    UNSENDABLE,
    Result,
    answer_of,
    read_result,
    translated_errors,
)
from mlflow_adk_eval.runtime import require_extra

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

COHERENCE = "coherence"
"""What the service calls its rating of an answer in itself: like all metrics of the Rapid Eval API, an input of its own."""

Material = Json | Sequence[Mapping[str, str]]
"""What is judged: an instance, or, for a metric of the Rapid Eval API that is computed, several."""

_API = "google.cloud.aiplatform_v1beta1"
_PROJECT = "GOOGLE_CLOUD_PROJECT is not set: wanted the id of a Google Cloud project in which the Vertex AI API is enabled"
_LOCATION = "GOOGLE_CLOUD_LOCATION is not set: wanted where the service is to work, such as us-central1"
_WAY_OUT = (
    'Or let a judge of your own decide: "backend": "judge" in the settings of the criterion, or backend="local" in evaluate_instances.'
)
_ATTEMPTS = 2
"""An answer without a score is asked for once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexClient:
    """A way to the evaluation service of one project and location."""

    endpoint: str
    """The base URL."""
    project: str
    location: str
    credentials: Credentials
    timeout_s: float = 120.0
    """How long one request may take, in seconds."""
    _idle: list[Any] = field(default_factory=list[Any], init=False, repr=False)
    """Clients of the package that no request uses. Each has a connection of its own, since they are not made for threads."""
    _refreshing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def host(self) -> str:
        """The host that is asked."""
        return host_of(self.endpoint)

    def address(self, metric: str, instance: Material, attempt: int = 0, spec: Json | None = None) -> str:
        """Return what tells an answer from all others.

        Args:
            metric: the metric, as the service calls it.
            instance: what is judged.
            attempt: the number of the answer, from 0, where an earlier one had no score.
            spec: the settings of the metric.
        """
        asked = [self.endpoint, self.project, self.location, metric, instance, *([spec] if spec else []), *([attempt] if attempt else [])]
        return hashlib.sha256(canonical_json(asked)).hexdigest()

    async def evaluate(self, metric: str, instance: Material, spec: Json | None = None) -> Answer:
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
        limiter = anyio.CapacityLimiter(1)  # of its own: how many requests there are is decided elsewhere
        return await anyio.to_thread.run_sync(self._evaluate, metric, instance, spec or {}, abandon_on_cancel=True, limiter=limiter)

    async def aclose(self) -> None:
        """Give back connections."""
        while self._idle:
            self._idle.pop().transport.close()

    def _evaluate(self, metric: str, instance: Material, spec: Json) -> Answer:
        request = self._request(_asked(metric, instance, spec))
        with translated_errors(), self._client() as client:
            self._refresh()
            response = client.evaluate_instances(request, retry=None, timeout=self.timeout_s)
        return replace(answer_of(type(response).pb(response), metric), host=self.host)

    def _request(self, asked: Json) -> Any:
        from google.protobuf import json_format  # noqa: PLC0415

        request = importlib.import_module(_API).EvaluateInstancesRequest()
        parent = {"location": f"projects/{self.project}/locations/{self.location}"}
        try:
            json_format.ParseDict(parent | asked, type(request).pb(request), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise Refused(f"{UNSENDABLE}: {one_line(str(error))}") from None
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

    def _refresh(self) -> None:
        """Get a token, if there is none, for all threads together."""
        from google.auth.transport.requests import Request  # noqa: PLC0415

        with self._refreshing:
            if not self.credentials.valid:
                self.credentials.refresh(Request())


def vertex_client(
    *,
    base_url: str | None = None,
    project: str | None = None,
    location: str | None = None,
    credentials: Credentials | None = None,
    timeout_s: float = 120.0,
) -> VertexClient:
    """Return a way to the evaluation service. Nothing is sent to it.

    Args:
        base_url: where the service is reached; ``None``: ``GOOGLE_VERTEX_BASE_URL``, else Google's endpoint for the location.
        project: the Google Cloud project; ``None``: ``GOOGLE_CLOUD_PROJECT``.
        location: where the service works, such as ``us-central1``; ``None``: ``GOOGLE_CLOUD_LOCATION``.
        credentials: who asks; ``None``: the application default credentials, or nobody where the base URL is without TLS.
        timeout_s: how long one request may take, in seconds.

    Raises:
        JudgeError: naming everything that is missing, and what to do about it.
    """
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT", "")
    location = location or os.environ.get("GOOGLE_CLOUD_LOCATION", "")
    endpoint = _endpoint(base_url or endpoint_named_by("GOOGLE_VERTEX_BASE_URL"), location)
    missing = [*_missing_package(), *(wanted for wanted, there in ((_PROJECT, project), (_LOCATION, location)) if not there)]
    try:
        found = credentials or _credentials(endpoint)
    except JudgeError as error:
        raise JudgeError(_missing([*missing, str(error)])) from None
    if missing:
        raise JudgeError(_missing(missing))
    _refuse_old()
    return VertexClient(endpoint=endpoint, project=project, location=location, credentials=found, timeout_s=timeout_s)


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


def _credentials(endpoint: str) -> Credentials:
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415

    # Without TLS everyone on the way could read a token. What is reached like that is a proxy or a test on the same machine.
    return AnonymousCredentials() if endpoint.startswith("http://") else application_default()[0]


def _missing_package() -> list[str]:
    """Return what to install, if anything; the package itself, which takes seconds, is not imported."""
    try:
        with require_extra("vertex", "Vertex AI's evaluation service"):
            if find_spec(_API) is None:
                raise ModuleNotFoundError(f"No module named {_API!r}")
    except UsageError as error:
        return [str(error)]
    return []


def _missing(wanted: list[str]) -> str:
    lines = "".join(f"\n  - {line}" for line in wanted)
    key = "\nGOOGLE_API_KEY is not enough: it takes a project, a location and credentials." if os.environ.get("GOOGLE_API_KEY") else ""
    return f"Vertex AI's evaluation service cannot be asked:{lines}{key}\n{_WAY_OUT}"


def _refuse_old() -> None:
    """Refuse a package that would leave the conversation out of a request."""
    if "agent_eval_data" not in importlib.import_module(_API).EvaluationInstance.meta.fields:
        raise JudgeError(
            f"google-cloud-aiplatform {version('google-cloud-aiplatform')} is too old: pip install --upgrade 'mlflow-adk-eval[vertex]'. {_WAY_OUT}"
        )


def _asked(metric: str, instance: Material, spec: Json) -> Json:
    """Return what a request asks for."""
    rapid = RAPID_METRICS.get(metric)
    if rapid is None:
        return {"metrics": [{"predefined_metric_spec": {"metric_spec_name": metric}}], "instance": instance}
    return {rapid.input_key: {"metric_spec": spec, "instances" if rapid.kind == "computed" else "instance": instance}}


@dataclass(frozen=True, slots=True)
class VertexService:
    """The evaluation service with the limits, the budget and the ledger of an evaluation."""

    service: VertexClient
    client: JudgeClient
    rejudge_failed: bool = False
    """Whether to ask anew where the ledger's answer has no score."""

    async def evaluate(self, metric: str, instance: Material, bounds: tuple[float, float], spec: Json | None = None) -> Result:
        """Return what the service makes of an instance, or what went wrong.

        Args:
            metric: the metric, as the service calls it.
            instance: what is judged, as the service wants it.
            bounds: the least and the greatest score of the metric.
            spec: the settings of the metric, for one of the Rapid Eval API.
        """
        send = partial(self.service.evaluate, metric, instance, spec)
        read = partial(read_result, bounds=bounds, metric=metric, count=1 if isinstance(instance, Mapping) else len(instance))
        may_reuse = (lambda answer: not read(CallResult(answer=answer)).error) if self.rejudge_failed else None
        result = Result()
        for attempt in range(_ATTEMPTS):
            address = self.service.address(metric, instance, attempt, spec)
            result = read(await self.client.request(send, address, may_reuse=may_reuse))
            if not result.error or not result.answered:
                break
        return result

    async def aclose(self) -> None:
        """Give back connections."""
        await self.service.aclose()
