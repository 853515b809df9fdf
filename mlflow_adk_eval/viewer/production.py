"""Production over time among the evaluation runs, the sample behind one look at it, and the traces that a look drew.

All of it is what runs say of themselves, which anybody who may write to MLflow may change. It is shown, and decides nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from mlflow_adk_eval.production.draw import Rate, Stratum
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.runs.listed import Rates, RunRow
from mlflow_adk_eval.viewer.listing import FACETS
from mlflow_adk_eval.viewer.query import Query, filtered
from mlflow_adk_eval.viewer.registry import Registry

MOST_LOOKS, MOST_EVALUATIONS, MOST_CRITERIA = 120, 20, 6
"""As many are shown: the latest, and the criteria that most looks have."""
_LARGEST = 16 << 20
_FACETS = {"experiment": ("Experiment", lambda row: row.experiment), "agent": FACETS["agent"]}
_MOST = 10**9
Count = Annotated[int, Field(ge=0, le=_MOST)]
Time = Annotated[AwareDatetime, Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(2101, 1, 1, tzinfo=UTC))]


class DrawnSample(BaseModel):
    """What a look says of the conversations that it drew."""

    number: Literal[1] = Field(alias="schema")
    since: Time = Field(alias="from")
    until: Time = Field(alias="to")
    found: Count
    already_scored: Count
    unfinished: Count = 0
    unreadable: tuple[str, ...]
    strata: tuple[Stratum, ...] = Field(max_length=100)
    rates: tuple[Rate, ...] = Field(max_length=1_000)
    at_random: tuple[str, ...]


def sample_of(content: bytes | None) -> DrawnSample | None:
    """Return the sample that an artifact says; ``None``: there is none, or nobody can read it."""
    with suppress(ValidationError):
        said = DrawnSample.model_validate_json(content if content and len(content) <= _LARGEST else b"")
        counts = [count for one in said.strata for count in (one.conversations, one.drawn)]
        counts += [count for one in said.rates for count in (one.evaluated, one.missing)]
        shares = [share for one in said.rates for share in (one.value, one.low, one.high) if share is not None]
        if all(0 <= count <= _MOST for count in counts) and all(0 <= share <= 1 for share in shares):
            return said
    return None


def traces_of(case: CaseResult, experiment: str) -> list[tuple[int, str, str]]:
    """Return the turns that are traces of MLflow's: the number of the turn, the trace's id, and its address.

    Args:
        case: one of production.
        experiment: the address of the experiment in MLflow; empty where that is not known.
    """
    # An agent that failed has done less than users asked of it.
    ids = (re.match(r"tr-[0-9a-f]{32}\b", turn.invocation_id) for turn in max(case.expected or (), case.actual, key=len))
    return [(turn, one[0], experiment and f"{experiment}/traces?selectedEvaluationId={one[0]}") for turn, one in enumerate(ids, 1) if one]


def production_page(rows: Sequence[RunRow], query: Query, registry: Registry | None) -> dict[str, Any]:
    """Return the looks at production of one experiment, the one asked for or that of the latest look, among the evaluation runs.

    An evaluation run belongs there if it is in that experiment, or of an agent that the looks name.
    """
    latest = next((row.experiment for row in rows if row.production), "")
    query = query if query.get("experiment") else Query(query.path, [*query.params, ("experiment", latest)])
    found, facets = filtered([row for row in rows if row.production], _FACETS, query)
    looks = sorted(found, key=time_of)[-MOST_LOOKS:]
    agents, ids = {row.agent for row in looks} - {""}, {row.experiment_id for row in looks}
    others = [row for row in rows if not row.production and "" in rates_of(row) and (row.agent in agents or row.experiment_id in ids)]
    champion = (registry or Registry()).standing(others, looks[-1].agent) if looks else None
    kept = [*looks, *others[:MOST_EVALUATIONS], *([champion[1]] if champion else [])]
    shown = sorted({row.run_id: row for row in kept}.values(), key=time_of)
    names = [name for name, _ in Counter(chain.from_iterable(map(rates_of, looks))).most_common() if name][:MOST_CRITERIA]
    lowest = {name: min((rates_of(row)[name][1] for row in shown if name in rates_of(row)), default=0.0) for name in ("", *names)}
    charts = {name: min(math.floor(low * 10) / 10, 0.9) for name, low in lowest.items()} if looks else {}
    told = {"looks": looks, "left_out": len(found) - len(looks), "runs": shown, "champion": champion, "unanswered": registry is None}
    several = [replace(one, reset=one.reset if one.name == "agent" else "") for one in facets if len(one.choices) > 1]
    return {**told, "charts": charts, "facets": several}


def time_of(row: RunRow) -> datetime:
    """Return where a run stands in time: a look at the end of the time that it looked at."""
    return (row.production and row.production.until) or row.started


def rates_of(row: RunRow) -> Mapping[str, Rates]:
    """Return the pass rates of a run by criterion; of a look, the estimates."""
    if row.production:
        return row.production.rates
    shares = {"": row.pass_rate, **{name: one.pass_rate for name, one in row.criteria.items()}}
    return {name: (share, share, share) for name, share in shares.items() if share is not None and 0 <= share <= 1}
