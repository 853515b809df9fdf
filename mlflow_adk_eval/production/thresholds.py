"""What may be demanded of production where nobody knows yet: what most of the latest conversations stay within."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from mlflow_adk_eval.agents.traces.conversations import CASE, conversation_key
from mlflow_adk_eval.agents.traces.spans import Trace
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.observation import unseen
from mlflow_adk_eval.results.outcomes import Scored, case_outcome, grouped
from mlflow_adk_eval.store.reaching import reaching_mlflow
from mlflow_adk_eval.tracking.capture import TraceSearch, experiment_there
from mlflow_adk_eval.tracking.client import connect, every_trace

_PERCENT = 90
"""How many of 100 conversations stay within a threshold."""
_SECONDS = "invocation_duration_v1"
_TRACES, _CONVERSATIONS = 1_000, 200
"""As many of the latest are looked at: these say how it is today, and their number does not grow with the experiment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenThreshold:
    """A threshold, and what it follows from."""

    criterion: str
    threshold: float
    """What `percent` of 100 conversations stay within, rounded up to two digits."""
    seen: float
    """The same, not rounded."""
    conversations: int
    """How many conversations say something about the criterion."""
    percent: int = _PERCENT


def thresholds_of(experiment: str, tracking_uri: str | None = None) -> tuple[SeenThreshold, ...]:
    """Return thresholds for quantities that traces have, such as tokens and seconds, by the latest conversations of an experiment.

    Args:
        experiment: the experiment, by name or id.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such experiment, or nothing to measure in it.
        TrackingError: if MLflow is unreachable.
    """
    client, values = connect(tracking_uri), dict[str, list[float]]()
    with reaching_mlflow("the traces could not be read"):
        search = TraceSearch(client, experiment_there(client, experiment), dict.fromkeys(("session", "run_id", "filter_string")))
        for played in _latest(search):
            for name in CRITERIA.informative:
                if any(unseen(played, turn, CRITERIA[name].needs) for turn in range(len(played.actual))):
                    continue  # what nobody knows is not 0
                outcome = case_outcome([CRITERIA[name].make(None).measure(turn) for turn in played.actual])
                values.setdefault(name, []).extend([outcome.score] if isinstance(outcome, Scored) else [])
    found: list[SeenThreshold] = []
    for name, scores in values.items():
        seen = sorted(scores)[math.ceil(_PERCENT * len(scores) / 100) - 1] if scores else 0.0
        if scores and name == _SECONDS:
            seen = max(seen, 0.001)  # a turn takes some time, also where it is too short to be seen
        if seen > 0:  # what never happens needs no limit, and a limit of 0 would forbid it
            unit = 10.0 ** (math.floor(math.log10(seen)) - 1)
            threshold = float(f"{math.ceil(round(seen / unit, 9)) * unit:.12g}")
            found.append(SeenThreshold(criterion=name, threshold=threshold, seen=seen, conversations=len(scores)))
    if not found:
        raise UsageError(f"experiment {experiment!r} has no conversation in which tokens, calls or seconds can be measured")
    return tuple(found)


def _latest(search: TraceSearch) -> Iterator[Conversation]:
    """Yield the latest conversations that can be read, one in memory at a time."""
    newest = (trace.info for trace in islice(every_trace(search.client, search.experiment_id), _TRACES) if CASE not in trace.info.tags)
    keyed = (
        (conversation_key(Trace(id=info.trace_id, time_ms=info.request_time, metadata=info.trace_metadata)), info.trace_id)
        for info in newest
    )
    for ids in islice(grouped(keyed).values(), _CONVERSATIONS):
        with suppress(UsageError):
            found = search.whole(ids, nested=False)[0]
            yield found.conversation(found.turns())
