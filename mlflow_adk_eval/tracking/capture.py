"""Traces that are in MLflow, production's above all, as eval cases in ADK's format."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow import MlflowClient
from mlflow.tracing.client import TracingClient

from mlflow_adk_eval.agents.traces.conversations import CASE, Redact, TracedConversation, cases_of, conversation_key, conversations_of
from mlflow_adk_eval.agents.traces.spans import Trace, traces_of
from mlflow_adk_eval.errors import UsageError, check_counts
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.gating.named_runs import run_id_at
from mlflow_adk_eval.results.outcomes import grouped
from mlflow_adk_eval.store.reaching import existing, reaching_mlflow
from mlflow_adk_eval.tracking.client import connect, every_trace, experiment_of

_PAGE, _PAGE_WITH_SPANS = 100, 5
"""How many traces are read at once: with their spans, a trace may take 50 MB."""
_SESSION, _CONVERSATION = "metadata.`mlflow.trace.session`", "span.attributes.gen_ai.conversation.id"


def capture(  # noqa: PLR0913 - one function is the whole of it
    traces: Any = None,
    *,
    trace_ids: Sequence[str] | None = None,
    session: str | None = None,
    run_id: str | None = None,
    filter_string: str | None = None,
    experiment: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    eval_set_id: str = "captured",
    redact: Redact | None = None,
    tracking_uri: str | None = None,
) -> EvalSet:
    """Return traces as eval cases, one per session, with the agent's recorded turns as the reference.

    Give `traces`, or `trace_ids`, or any of `session`, `run_id`, `filter_string` and `experiment`. If a filter matches one turn of
    a session, all its turns are captured.

    Args:
        traces: MLflow's traces, or the frame of ``mlflow.search_traces``.
        trace_ids: the ids of traces.
        session: the id of a session.
        run_id: the MLflow run that the traces belong to.
        filter_string: MLflow's filter for traces.
        experiment: the MLflow experiment, by name or id; ``None``: the active one.
        sample: the most cases to capture, drawn at random without replacement; ``None``: all.
        seed: the random seed of the sample.
        eval_set_id: the name of the eval set.
        redact: applied to every text from users, tools and the agent. Values of secret environment variables and passwords
            in URLs are always removed.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        InputError: if a trace has no messages, for example because ADK did not capture them.
        TrackingError: if MLflow is unreachable.
        UsageError: for invalid arguments, and if there is no such trace.
    """
    check_counts(sample=1 if sample is None else sample)
    of_run = run_id_at(run_id, tracking_uri) if run_id else run_id
    where = {"session": session, "run_id": of_run, "filter_string": filter_string, "experiment": experiment}
    cases = cases_of(_conversations(traces, trace_ids, where, tracking_uri, sample, seed), redact)
    if not cases:
        raise UsageError("found no such trace")
    return EvalSet(eval_set_id=eval_set_id, name=eval_set_id, eval_cases=cases, creation_timestamp=cases[-1].creation_timestamp)


def _conversations(
    traces: Any, trace_ids: Sequence[str] | None, where: Mapping[str, str | None], uri: str | None, sample: int | None, seed: int
) -> Iterator[TracedConversation]:
    named = {"traces": traces, "trace_ids": trace_ids, **where}
    given = [name for name, value in named.items() if value is not None]
    if not given:
        raise UsageError("name the traces to capture: --trace-id, --session, --run-id, --filter or --experiment")
    if len(given) > 1 and {"traces", "trace_ids"} & set(given):
        raise UsageError(f"{' and '.join(given)} cannot be combined; wanted one of them")
    if traces is not None:
        yield from _drawn(conversations_of(traces), sample, seed)
        return
    client = connect(uri)
    with reaching_mlflow("the traces could not be read"):
        if trace_ids is not None:
            yield from _drawn(conversations_of([_trace(client, trace_id) for trace_id in trace_ids]), sample, seed)
            return
        experiment_id = experiment_there(client, where["experiment"])
        yield from TraceSearch(client, experiment_id, where).conversations(sample, seed)


def experiment_there(client: MlflowClient, name: str | None) -> str:
    """Return the id of an experiment, by name or id; unlike where something is logged, none is created. ``None``: the active one.

    Raises:
        UsageError: if there is none.
    """
    if name is None:
        return experiment_of(client, None)
    if (known := client.get_experiment_by_name(name)) is None:
        with existing(f"experiment {name!r}"):
            known = client.get_experiment(name)
    return str(known.experiment_id)


def _drawn(entries: Sequence[Any], sample: int | None, seed: int) -> Sequence[Any]:
    return entries if sample is None else random.Random(seed).sample(list(entries), min(sample, len(entries)))  # noqa: S311 - no secret


def _trace(client: MlflowClient, trace_id: str) -> Any:
    with existing(f"trace {trace_id!r}"):
        return client.get_trace(trace_id)


@dataclass(frozen=True, slots=True)
class TraceSearch:
    """A search in an experiment."""

    client: MlflowClient
    experiment_id: str
    where: Mapping[str, str | None]

    def conversations(self, sample: int | None, seed: int) -> Iterator[TracedConversation]:
        """Yield what is found, one conversation in memory at a time; no more than `sample` are loaded."""
        session, filter_string = self.where["session"], self.where["filter_string"]
        if session is not None and filter_string is None:
            yield from _drawn(self._session(session), sample, seed)
            return
        groups = grouped((conversation_key(trace), trace) for trace in self._traces(filter_string, spans=False))
        seen: set[tuple[str, ...]] = set()
        for group in _drawn(list(groups.values()), len(groups) if sample else None, seed):
            for conversation in self.whole([trace.id for trace in group]):
                key = conversation_key(conversation.traces[0])
                if key in seen or session not in {None, conversation.session}:
                    continue
                seen.add(key)
                yield conversation
                if len(seen) == sample:
                    return

    def whole(self, ids: Sequence[str], *, nested: bool = True) -> Sequence[TracedConversation]:
        """Return the conversations that some traces are of, with what the filter left out of them; `nested` as in `_session`."""
        by_id: Mapping[str, Any] = {}
        if len(ids) > 1:  # several by one request, several requests at the same time
            client = TracingClient(self.client.tracking_uri)
            by_id = {trace.info.trace_id: trace for trace in client.batch_get_traces(list(ids))}
        loaded = traces_of([by_id.get(trace_id) or _trace(self.client, trace_id) for trace_id in ids])
        sessions = dict.fromkeys(trace.session for trace in loaded if trace.session and CASE not in trace.tags)
        if not sessions:
            return conversations_of(loaded)
        return [conversation for session in sessions for conversation in self._session(session, nested=nested)]

    def _session(self, session: str, *, nested: bool = True) -> Sequence[TracedConversation]:
        """Return a session; if `nested`, also those turns that MLflow keeps under the session of an agent that was used as a tool.

        For these MLflow reads all spans of the experiment, which takes seconds where there are many.
        """
        if '"' in session:
            raise UsageError(f"session {session!r}: MLflow cannot search for an id with a quotation mark")
        stored = self._traces(f'{_SESSION} = "{session}"', spans=True)
        inside = self._traces(f'{_CONVERSATION} LIKE "%{session}%"', spans=True) if nested else ()
        traces = {trace.id: trace for trace in (*stored, *inside) if trace.session == session}
        return conversations_of(list(traces.values()))

    def _traces(self, filter_string: str | None, *, spans: bool) -> Iterator[Trace]:
        traces = every_trace(
            self.client,
            self.experiment_id,
            run_id=self.where["run_id"],
            filter_string=filter_string,
            include_spans=spans,
            latest_first=False,
            page_size=_PAGE_WITH_SPANS if spans else _PAGE,
        )
        for trace in traces:
            yield from traces_of([trace])
