"""Traces that are in MLflow, production's above all, as eval cases in ADK's format."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow import MlflowClient

from mlflow_adk_eval.agents.traces import TracedConversation, conversations_of
from mlflow_adk_eval.agents.traces.cases import Redact, cases_of
from mlflow_adk_eval.agents.traces.conversations import CASE, conversation_key
from mlflow_adk_eval.agents.traces.spans import Trace, traces_of
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.tracking.client import connect, existing, experiment_of, reaching_mlflow

_PAGE = 100
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
    """Return traces as eval cases, one for each session, in which what the agent did is the reference.

    Exactly one of `traces` and `trace_ids` may be given, or else any of `session`, `run_id`, `filter_string` and `experiment`.
    A session of which a filter finds one turn is captured with all of its turns.

    Args:
        traces: MLflow's traces, or the frame of ``mlflow.search_traces``.
        trace_ids: the ids of traces.
        session: the id of a session.
        run_id: the MLflow run that the traces belong to.
        filter_string: MLflow's filter for traces.
        experiment: the MLflow experiment, by name or id; ``None``: the current one.
        sample: at most how many cases to capture, drawn at random without replacement; ``None``: all.
        seed: what the draw depends on.
        eval_set_id: the name of the eval set.
        redact: what is done to every text that came from users, tools and the agent. Values of secret environment variables
            and passwords in URLs are taken out anyway.
        tracking_uri: the MLflow server or store; ``None``: as MLflow is configured.

    Raises:
        InputError: if a trace does not say what was said, as where ADK did not capture the content of messages.
        TrackingError: if MLflow cannot be reached.
        UsageError: for arguments that make no sense, and where there is no such trace.
    """
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 1):
        raise UsageError(f"sample={sample!r}: wanted a whole number of at least 1")
    where = {"session": session, "run_id": run_id, "filter_string": filter_string, "experiment": experiment}
    found = _conversations(traces, trace_ids, where, tracking_uri, sample, seed)
    cases = cases_of(sorted(found, key=_order), redact)
    if not cases:
        raise UsageError("there is no such trace, so that nothing can be captured")
    return EvalSet(eval_set_id=eval_set_id, name=eval_set_id, eval_cases=cases, creation_timestamp=cases[-1].creation_timestamp)


def _order(conversation: TracedConversation) -> int:
    """Return what sorts conversations. An evaluation dates its first case last, so that MLflow, which lists the newest first, keeps its order."""
    return -conversation.began if conversation.case else conversation.began


def _conversations(
    traces: Any, trace_ids: Sequence[str] | None, where: Mapping[str, str | None], uri: str | None, sample: int | None, seed: int
) -> Sequence[TracedConversation]:
    named = {"traces": traces, "trace_ids": trace_ids, **where}
    given = [name for name, value in named.items() if value is not None]
    if not given:
        raise UsageError("capture what? wanted traces, trace_ids, session, run_id, filter_string or experiment")
    if len(given) > 1 and {"traces", "trace_ids"} & set(given):
        raise UsageError(f"{' and '.join(given)} together make no sense; wanted one of them")
    if traces is not None:
        return _drawn(conversations_of(traces), sample, seed)
    client = connect(uri)
    with reaching_mlflow("the traces could not be read"):
        if trace_ids is not None:
            return _drawn(conversations_of([_trace(client, trace_id) for trace_id in trace_ids]), sample, seed)
        return _Search(client, _experiment(client, where["experiment"]), where).conversations(sample, seed)


def _drawn(found: Sequence[Any], sample: int | None, seed: int) -> Sequence[Any]:
    return found if sample is None else random.Random(seed).sample(list(found), min(sample, len(found)))  # noqa: S311 - no secret


def _trace(client: MlflowClient, trace_id: str) -> Any:
    with existing(f"trace {trace_id!r}"):
        return client.get_trace(trace_id)


def _experiment(client: MlflowClient, experiment: str | None) -> str:
    """Return an experiment's id; unlike where something is logged, there is none to create."""
    if experiment is None:
        return experiment_of(client, None)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        with existing(f"experiment {experiment!r}"):
            found = client.get_experiment(experiment)
    return str(found.experiment_id)


@dataclass(frozen=True, slots=True)
class _Search:
    """A search in an experiment."""

    client: MlflowClient
    experiment_id: str
    where: Mapping[str, str | None]

    def conversations(self, sample: int | None, seed: int) -> Sequence[TracedConversation]:
        """Return what is found, conversation by conversation; no more than `sample` are loaded."""
        session, filter_string = self.where["session"], self.where["filter_string"]
        if session is not None and filter_string is None:
            return _drawn(self._session(session), sample, seed)
        groups: dict[tuple[str, ...], list[Trace]] = {}
        for trace in self._traces(filter_string, spans=False):
            groups.setdefault(conversation_key(trace), []).append(trace)
        found: dict[tuple[str, ...], TracedConversation] = {}
        for group in _drawn(list(groups.values()), len(groups) if sample else None, seed):
            for conversation in self._whole(group):
                if session in {None, conversation.session}:
                    found.setdefault(conversation_key(conversation.traces[0]), conversation)
            if sample and len(found) >= sample:
                break
        return list(found.values())[:sample]

    def _whole(self, group: Sequence[Trace]) -> Sequence[TracedConversation]:
        """Return the conversations that some traces are of, with what the filter left out of them."""
        loaded = traces_of([_trace(self.client, trace.id) for trace in group])
        sessions = dict.fromkeys(trace.session for trace in loaded if trace.session and CASE not in trace.tags)
        if not sessions:
            return conversations_of(loaded)
        return [conversation for session in sessions for conversation in self._session(session)]

    def _session(self, session: str) -> Sequence[TracedConversation]:
        """Return a session, also those turns that MLflow keeps under the session of an agent that was used as a tool."""
        if '"' in session:
            raise UsageError(f"session {session!r}: MLflow cannot search for an id with a quotation mark")
        stored = self._traces(f'{_SESSION} = "{session}"', spans=True)
        inside = self._traces(f'{_CONVERSATION} LIKE "%{session}%"', spans=True)
        traces = {trace.id: trace for trace in (*stored, *inside) if trace.session == session}
        return conversations_of(list(traces.values()))

    def _traces(self, filter_string: str | None, *, spans: bool) -> Iterator[Trace]:
        token = None
        while True:
            page = self.client.search_traces(
                locations=[self.experiment_id],
                filter_string=filter_string,
                run_id=self.where["run_id"],
                include_spans=spans,
                max_results=_PAGE,
                order_by=["timestamp_ms ASC"],
                page_token=token,
            )
            yield from traces_of(list(page))
            token = page.token
            if not token:
                return
