"""Which conversations an experiment has, by what MLflow knows of its traces without their spans.

An experiment may have a million traces, of up to 50 MB each. So the traces are listed without their spans, and what is kept of a conversation is
a few hundred bytes: its traces, when it ended, and the facts by which it belongs to a stratum. `TraceSearch` of `tracking.capture` loads those
that were drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import TraceInfo

from mlflow_adk_eval.agents.traces.conversations import conversation_key
from mlflow_adk_eval.agents.traces.spans import RUN, Trace
from mlflow_adk_eval.store.reaching import unless_absent
from mlflow_adk_eval.tracking.client import every_trace
from mlflow_adk_eval.tracking.traces import CONFIG_DIGEST, THROUGH

STRATA = ("errors", "thumbs_down", "slow", "expensive", "rest")
"""In the order in which a conversation that could be in several is put into one."""
_TOP = 0.05
"""The share of the conversations that counts as slow, or as expensive."""
_NEGATIVE = frozenset({False, "no", "false", "bad", "down", "thumbs_down", "thumbs down", "negative", "dislike"})
_UNKNOWN_SIZE = 1 << 20
_COST, _USAGE, _SIZE = "mlflow.trace.cost", "mlflow.trace.tokenUsage", "mlflow.trace.sizeBytes"


@dataclass(slots=True)
class Seen:
    """A conversation, as far as it is known without its spans."""

    key: tuple[str, ...]
    """What `conversation_key` says of its traces."""
    traces: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """The id of each trace, and its size in bytes where MLflow knows it."""
    began_ms: int = 0
    ended_ms: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    """In dollars where MLflow knows a price, else in tokens."""
    failed: bool = False
    disliked: bool = False
    ended: bool = True
    """Whether each of its traces has ended."""
    through: tuple[str, ...] = ()
    """The trace that was its last one each time it was scored by the same config."""
    facts: Mapping[str, str] | None = None
    """The tags and metadata that were asked for, of its last trace; ``None``: it has none of them."""

    @property
    def name(self) -> str:
        """Its session, else its trace. Who names a session like a trace must not take that one's place."""
        return f"session {self.key[1]}" if self.key[0] == "session" and self.key[1].startswith("tr-") else self.key[1]

    @property
    def scored(self) -> bool:
        """Whether it was scored, and has not gone on since."""
        return self.traces[-1][0] in self.through

    def see(self, info: TraceInfo, config_digest: str, wanted: Iterable[str]) -> None:
        """Take note of a trace; traces come by their time."""
        state, metadata = info.state.value, info.trace_metadata
        size = metadata.get(_SIZE, "")
        self.traces.append((info.trace_id, int(size) if size.isdecimal() else _UNKNOWN_SIZE))
        self.began_ms = self.began_ms or info.request_time
        self.ended_ms = max(self.ended_ms, info.request_time + (info.execution_duration or 0))
        self.seconds += (info.execution_duration or 0) / 1000
        self.cost += _number(metadata.get(_COST, ""), "total_cost") or _number(metadata.get(_USAGE, ""), "total_tokens")
        self.failed |= state == "ERROR"
        self.ended &= state != "IN_PROGRESS"
        for one in info.assessments or ():
            if one.metadata and one.metadata.get(CONFIG_DIGEST) == config_digest:
                self.through += (one.metadata[THROUGH],) if THROUGH in one.metadata else ()
            human = one.feedback is not None and one.valid is not False and one.source.source_type == "HUMAN"
            value: Any = one.feedback.value if human and one.feedback else None
            self.disliked |= human and isinstance(value, bool | str) and (value.lower() if isinstance(value, str) else value) in _NEGATIVE
        if wanted:
            self.facts = {name: text for name in wanted if (text := info.tags.get(name) or metadata.get(name))} or None


def conversations_in(
    client: MlflowClient,
    experiment_id: str,
    *,
    since_ms: int | None,
    until_ms: int,
    filter_string: str | None,
    config_digest: str,
    facts: Iterable[str] = (),
) -> list[Seen]:
    """Return the conversations that an experiment has, by the time of their first trace that was found.

    Traces of evaluations by this package are left out: nobody but an eval set talked to the agent then.

    Args:
        client: where they are.
        experiment_id: the experiment.
        since_ms: when the first trace may have begun, in milliseconds since 1970; ``None``: at any time.
        until_ms: when the last one must have begun.
        filter_string: MLflow's filter for traces; ``None``: all.
        config_digest: whose scores count as there.
        facts: the names of tags and metadata to keep.
    """
    window = [f"attributes.timestamp_ms < {until_ms}"] + ([] if since_ms is None else [f"attributes.timestamp_ms >= {since_ms}"])
    where = " AND ".join([*([filter_string] if filter_string else []), *window])
    found: dict[tuple[str, ...], Seen] = {}
    evaluations: dict[str, bool] = {"": False}
    for trace in every_trace(client, experiment_id, filter_string=where, latest_first=False):
        info = trace.info
        run_id = info.trace_metadata.get(RUN, "")
        if run_id not in evaluations:
            evaluations[run_id] = False
            with unless_absent():
                evaluations[run_id] = "adk_eval.schema" in client.get_run(run_id).data.params
        if evaluations[run_id]:
            continue
        key = conversation_key(Trace(id=info.trace_id, time_ms=info.request_time, metadata=info.trace_metadata))
        found.setdefault(key, Seen(key)).see(info, config_digest, facts)
    return list(found.values())


def strata_of(conversations: Iterable[Seen]) -> dict[str, list[Seen]]:
    """Return conversations by their stratum, in the order of `STRATA`, without empty ones."""
    all_of = list(conversations)
    slow, expensive = _top(one.seconds for one in all_of), _top(one.cost for one in all_of)
    strata: dict[str, list[Seen]] = {name: [] for name in STRATA}
    for one in all_of:
        kinds = (one.failed, one.disliked, one.seconds >= slow, one.cost >= expensive, True)
        strata[STRATA[kinds.index(True)]].append(one)
    return {name: some for name, some in strata.items() if some}


def _top(values: Iterator[float]) -> float:
    """Return what the top values reach; infinity where all are 0."""
    ordered = sorted(values)
    least = ordered[math.ceil(len(ordered) * (1 - _TOP)) - 1] if ordered else 0.0
    return math.nextafter(least, math.inf) if ordered and ordered[-1] > least else math.inf


def _number(text: str, name: str) -> float:
    """Return a number in the JSON of MLflow's metadata, which anybody can write; 0 where there is none."""
    try:
        value = json.loads(text)[name]
    except (ValueError, KeyError, TypeError):
        return 0.0
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
