"""Traces over HTTP to an MLflow server: one request for each, and one for the spans of many, several at the same time.

MLflow's client sends one request after the other, and asks for the server's version in between. A server spends most of the time of such a
request waiting, so several are under way here, on connections that are kept: as many as the server takes without refusing or slowing
down, which the `Limiter` of the judges finds out. A trace with its assessments has to be a request of its own, since no request takes several.

Whatever is sent has the same ids at each attempt, and the server adds to a trace only what it lacks. So an answer that is lost is asked for
again without leaving anything twice.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import Any

import anyio.to_thread
from mlflow.entities import Trace, TraceData, TraceInfo
from mlflow.entities.span import Span
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR, MLFLOW_HTTP_REQUEST_MAX_RETRIES
from mlflow.exceptions import MlflowException
from mlflow.protos.service_pb2 import StartTraceV3
from mlflow.store.tracking.rest_store import RestStore
from mlflow.utils.proto_json_utils import message_to_json
from mlflow.utils.rest_utils import http_request, verify_rest_response
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from mlflow_adk_eval.judge.limiter import CallOutcome, Limiter
from mlflow_adk_eval.redact import without_credentials
from mlflow_adk_eval.runtime import BACKGROUND, each

_logger = logging.getLogger(__name__)

_MOST = 10
"""Requests under way: as many connections as MLflow's client keeps."""
_SPANS_OF, _BATCHES = 25, 2
"""Traces whose spans are sent together, and how many such batches are under way."""
_TRACES, _SPANS = "/api/3.0/mlflow/traces", "/v1/traces"
_LONGEST_PAUSE_S = 30
_STUBBORN = 4
"""How many times more often a request is tried while others get through."""
_TRANSIENT = {0, 200, 408, 429, 500, 502, 503, 504}
"""After these another attempt may succeed. An answer that breaks off or is a page has a status of its own: 200."""
_NO_SUCH_ENDPOINT = {404, 405, 501}
_TOO_LARGE = 413
_MANY = 20
"""From so many traces on it is found out whether requests are dear."""
_DEAR_S, _LONG_S = 0.1, 120

TraceParts = tuple[TraceInfo | None, list[Span]]
"""What is to be written of a trace: itself, unless all of it is there, and its spans."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of one attempt to send a request."""

    status: int
    """0 if there was no answer."""
    error: MlflowException | None
    retry_after_s: float | None = None


@dataclass(slots=True, kw_only=True)
class TraceRequests:
    """An MLflow server that takes traces."""

    store: RestStore
    experiment_id: str
    without_spans: list[Span] = field(default_factory=list[Span])
    """Spans that could not be sent, because the server takes none in bulk."""
    _limiter: Limiter = field(default_factory=lambda: Limiter(_MOST, longest_pause_s=_LONGEST_PAUSE_S))
    _succeeded: int = 0
    _stopped: bool = False

    def write(self, traces: Iterable[TraceParts]) -> None:
        """Write traces. Those that exist get what they lack.

        Raises:
            MlflowException: if the server does not take one; others may be written.
        """
        left = iter(traces)
        batches = iter(lambda: list(islice(left, _SPANS_OF)), [])
        try:
            BACKGROUND.call(partial(each, self._write_batch, batches, limit=_BATCHES))
        except BaseException:
            self._stopped = True  # what is under way in the loop ends, whatever it was that interrupted this thread
            raise

    async def _write_batch(self, traces: Sequence[TraceParts]) -> None:
        await each(self._start, [info for info, _ in traces if info is not None], limit=_MOST)
        await self._send_spans([span for _, spans in traces for span in spans])

    async def _start(self, info: TraceInfo) -> None:
        body = message_to_json(StartTraceV3(trace=Trace(info, TraceData([])).to_proto()), pretty=False)
        if error := (await self._send(_TRACES, body.encode(), {"Content-Type": "application/json"})).error:
            raise error

    async def _send_spans(self, spans: Sequence[Span]) -> None:
        if not spans:
            return
        request = ExportTraceServiceRequest()
        request.resource_spans.add().scope_spans.add().spans.extend(span.to_otel_proto() for span in spans)
        headers = {"Content-Type": "application/x-protobuf", "x-mlflow-experiment-id": self.experiment_id}
        answer = await self._send(_SPANS, request.SerializeToString(), headers)
        if answer.status in _NO_SUCH_ENDPOINT:
            self.without_spans += spans
        elif answer.status == _TOO_LARGE and len(spans) > 1:
            await self._send_spans(spans[: len(spans) // 2])
            await self._send_spans(spans[len(spans) // 2 :])
        elif answer.error:
            raise answer.error

    async def _send(self, endpoint: str, body: bytes, headers: Mapping[str, str]) -> _Answer:
        """Send a request until the server takes it, or trying is of no use. As long as others get through, it is tried longer."""
        retries = MLFLOW_HTTP_REQUEST_MAX_RETRIES.get()
        pause_s = MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR.get()
        before, attempt = self._succeeded, 0
        while True:
            answer, attempt = await self._attempt(endpoint, body, headers), attempt + 1
            self._succeeded += answer.error is None
            stubborn = self._succeeded > before and answer.status not in {200, 500}
            final = answer.error is None or answer.status not in _TRANSIENT or answer.status == _TOO_LARGE
            if final or attempt > retries * (_STUBBORN if stubborn else 1) or self._stopped:
                return answer
            # As MLflow's client does: at once, then after 2, 4, ... times the factor.
            wait_s = 0.0 if attempt == 1 else min(pause_s * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
            await anyio.sleep(wait_s + random.uniform(0, 0.1))  # noqa: S311 - no secret

    async def _attempt(self, endpoint: str, body: bytes, headers: Mapping[str, str]) -> _Answer:
        permit = self._limiter.acquire_nowait() or await self._limiter.acquire()
        answer = _Answer(0, None)
        outcome = CallOutcome.NOTHING
        try:
            answer = await anyio.to_thread.run_sync(self._asked, endpoint, body, headers)
            overloaded = answer.status in {0, 408, 429, 503}
            outcome = CallOutcome.ANSWER if answer.error is None else CallOutcome.OVERLOAD if overloaded else CallOutcome.FAILURE
        finally:
            self._limiter.release(permit, outcome, retry_after_s=answer.retry_after_s)
        return answer

    def _asked(self, endpoint: str, body: bytes, headers: Mapping[str, str]) -> _Answer:
        try:
            response = self._request("POST", endpoint, data=body, extra_headers=dict(headers))
        except MlflowException as error:
            return _Answer(0, error)
        # What is not MLflow's answer is a page, such as that of a login, or what is left of one.
        good = endpoint == _SPANS and not response.headers.get("Content-Type", "").startswith("text/html")
        with suppress(ValueError):
            good |= endpoint != _SPANS and isinstance(json.loads(response.content), dict)
        problem = None if good else MlflowException(f"{endpoint} did not answer like MLflow: {response.text[:80]!r}")
        try:
            verify_rest_response(response, endpoint)
        except MlflowException as error:
            problem = error
        retry_after_s = None
        with suppress(TypeError, ValueError):  # none, or a date, which is not worth the trouble
            retry_after_s = max(0.0, float(response.headers.get("Retry-After"))) if problem else None
        return _Answer(response.status_code, problem, retry_after_s)

    def _request(self, method: str, endpoint: str, **more: Any) -> Any:
        return http_request(self.store.get_host_creds(), endpoint, method, max_retries=0, raise_on_status=False, **more)

    def tell_if_dear(self, traces: int) -> None:
        """Tell the user if the server needs long for each request because it hashes the password each time."""
        creds = self.store.get_host_creds()
        if traces < _MANY or not (creds.username and creds.password):
            return
        with suppress(MlflowException):
            extra_s = self._seconds_of("/version") - self._seconds_of("/health")
            if extra_s > _DEAR_S:
                in_all_s = extra_s * traces
                _logger.warning(
                    "MLflow at %s takes %.1f s to check the password on each request, %s for %s traces:"
                    " log fewer (`--traces failed`, or `--traces 0` for none), or ask for auth_cache_ttl_seconds in the"
                    " server's basic_auth.ini",
                    without_credentials(creds.host),
                    extra_s,
                    f"{in_all_s:.0f} s" if in_all_s < _LONG_S else f"{in_all_s / 60:.0f} min",
                    f"{traces:,}",
                )

    def _seconds_of(self, endpoint: str) -> float:
        """Return how long the server needs for a request of no work; ``/health`` is one that needs no password."""
        times = [time.perf_counter()]
        for _ in range(2):
            self._request("GET", endpoint, timeout=10)
            times.append(time.perf_counter())
        return min(after - before for before, after in pairwise(times))
