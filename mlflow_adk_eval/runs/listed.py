"""The runs of evaluations as MLflow lists them: rows of the viewer and of the command line, read from metrics, parameters and tags alone.

Anybody who may write to the MLflow store may change those. They are shown, and decide nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.runs.anchors import ANCHORS_PARAM
from mlflow_adk_eval.runs.manifest import UNTIL_DECIDED
from mlflow_adk_eval.store.reaching import every_page

if TYPE_CHECKING:
    from mlflow import MlflowClient

MOST_RUNS = 2_000
"""As many runs are listed, the latest."""
_YEARS = range(2000, 2101)
_RATE = re.compile(r"production/(?:(.+)/)?pass_rate")
Rates = tuple[float, float, float]
"""A rate, and the ends of its 95% interval: itself where it has none."""


@dataclass(frozen=True, slots=True)
class Number:
    """What a criterion came to in a run."""

    threshold: float | None
    """``None``: it is information."""
    mean: float | None
    pass_rate: float | None
    low: float | None
    high: float | None
    """The ends of the 95% interval of the mean."""
    missing: int | None
    """Case runs that should have a score and have none; ``None``: the run does not say."""
    planned: int | None
    """Case runs that should have a score, where some are missing."""

    @property
    def complete(self) -> bool:
        """Whether there is a mean, and nothing is missing behind it."""
        return self.mean is not None and self.missing == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """What a run says of the production traces that it scored."""

    until: datetime | None
    """The end of the time that it looked at; ``None``: nobody can read it."""
    rates: Mapping[str, Rates]
    """Pass rates among all conversations, by criterion; empty: the conversation passed."""
    alarm: str
    """A sentence; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run, as MLflow lists it. What it says of itself is shown, and decides nothing."""

    run_id: str
    experiment_id: str
    name: str
    started: datetime
    verdict: str
    """*passed*, *failed*, *undecided*, or the status of a run that has not ended well, such as ``running``."""
    eval_set: str
    agent: str
    version: str
    """As people call it."""
    model_id: str
    """The LoggedModel."""
    commit: str
    cases: int
    until_decided: str
    """How many of the cases it has; empty: all of them."""
    pass_rate: float | None
    criteria: Mapping[str, Number]
    """By the criterion's key in MLflow; those that decide first."""
    judges: str
    calls: int | None
    tokens: int | None
    anchored: bool
    """Whether it has anchors (`runs.anchors`)."""
    tags: Mapping[str, str]
    """Those that people gave it."""
    experiment: str
    """The name; empty where only the run was read."""
    production: Production | None
    """``None``: it evaluated an eval set."""

    @property
    def passed(self) -> str:
        """How many cases passed."""
        share = "–" if self.pass_rate is None else f"{round(self.pass_rate * self.cases):,} of {self.cases:,}"
        return " · ".join(filter(None, (share, self.until_decided)))

    @property
    def deciding(self) -> list[str]:
        """The criteria that decide."""
        return [name for name, number in self.criteria.items() if number.threshold is not None]


def row_of(run: Any, experiment: str = "") -> RunRow:
    """Return MLflow's entity of a run, in the experiment of that name, as a row of the list."""
    tags, params, metrics = run.data.tags, run.data.params, run.data.metrics
    label = tags.get("adk_eval.agent_version", "")
    agent, _, version = label.partition("@")
    thresholds: dict[str, float | None] = {}
    for name, value in params.items():
        if name.startswith("threshold."):
            thresholds[name.removeprefix("threshold.")] = None
            with suppress(ValueError):
                thresholds[name.removeprefix("threshold.")] = float(value)
    known = {name: value for name, value in metrics.items() if math.isfinite(value)}

    def number(name: str) -> Number:
        mean, pass_rate, low, high = (known.get(f"{name}/{key}") for key in ("mean", "pass_rate", "ci_low", "ci_high"))
        return Number(thresholds.get(name), mean, pass_rate, low, high, count(f"{name}/missing"), count(f"{name}/planned"))

    def count(name: str) -> int | None:
        return round(known[name]) if name in known else None

    means = [name.removesuffix("/mean") for name in known if name.endswith("/mean")]
    return RunRow(
        run_id=run.info.run_id,
        experiment_id=run.info.experiment_id,
        name=run.info.run_name or run.info.run_id,
        started=datetime.fromtimestamp((run.info.start_time or 0) / 1000, UTC),
        verdict=tags.get("adk_eval.verdict") or tags.get("adk_eval.status", "unknown"),
        eval_set=tags.get("adk_eval.eval_set_id", ""),
        agent=agent,
        version=version or label,
        model_id=params.get("adk_eval.model_id", ""),
        commit=tags.get("mlflow.source.git.commit", "")[:8],
        cases=count("cases") or 0,
        until_decided=params.get(UNTIL_DECIDED, ""),
        pass_rate=known.get("case_pass_rate"),
        criteria={name: number(name) for name in dict.fromkeys((*thresholds, *means))},
        judges=params.get("adk_eval.judge_model", ""),
        calls=count("judge/calls"),
        tokens=count("judge/tokens"),
        anchored=ANCHORS_PARAM in params,
        tags={name: value for name, value in tags.items() if not name.startswith(("mlflow.", "adk_eval."))},
        experiment=experiment,
        production=_production(params, known, tags) if "adk_eval.production" in params else None,
    )


def _production(params: Mapping[str, str], known: Mapping[str, float], tags: Mapping[str, str]) -> Production:
    """Return what a run says of production, without rates that are none and a time that this software cannot have met."""
    rates: dict[str, Rates] = {}
    for name, value in known.items():
        if (found := _RATE.fullmatch(name)) and 0 <= value <= 1:
            low, high = known.get(f"{name}_low", value), known.get(f"{name}_high", value)
            rates[found[1] or ""] = (value, low, high) if 0 <= low <= value <= high <= 1 else (value, value, value)
    until = None
    with suppress(ValueError):
        at = datetime.fromisoformat(params.get("adk_eval.production_to", ""))
        until = at.replace(tzinfo=at.tzinfo or UTC) if at.year in _YEARS else None
    return Production(until=until, rates=rates, alarm=tags.get("adk_eval.alarm", ""))


def listed_runs(client: MlflowClient, experiment: str | None = None, most: int = MOST_RUNS) -> Iterator[RunRow]:
    """Yield the evaluations in an MLflow store, latest first, up to `most`.

    Args:
        client: of the store.
        experiment: the name or id of the experiment; ``None``: all.
        most: as many at most.

    Raises:
        UsageError: if there is no such experiment.
    """
    names = {one.experiment_id: one.name for one in client.search_experiments() if experiment in (None, one.name, one.experiment_id)}
    if not names:
        raise UsageError(f"the MLflow store has no experiment {experiment!r}")
    wanted, order = "tags.`adk_eval.status` LIKE '%'", ["attributes.start_time DESC"]
    found = every_page(
        lambda token: client.search_runs(list(names), wanted, max_results=min(1_000, most), order_by=order, page_token=token)
    )
    yield from (row_of(run, names.get(run.info.experiment_id, "")) for run in islice(found, most))


def runs_before(row: RunRow, runs: Iterable[RunRow], *, passed: bool = False) -> Iterator[RunRow]:
    """Return those of `runs` that started before a run on the same eval set, in their order; `passed`: only those that passed."""
    return (one for one in runs if one.eval_set == row.eval_set and one.started < row.started and (not passed or one.verdict == "passed"))
