"""Comparing runs in MLflow, or reports, keeping the page that explains what changed, what a decision rests on, and how many cases a comparison takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import pvariance
from typing import Literal

from mlflow_adk_eval.analysis.comparison.compare import Comparison, compared
from mlflow_adk_eval.analysis.comparison.runs import ComparedRun, compared_run
from mlflow_adk_eval.analysis.stats import intervals
from mlflow_adk_eval.analysis.stats import power as planning
from mlflow_adk_eval.analysis.stats.paired import Values
from mlflow_adk_eval.analysis.stats.power import Source, cases_until_decided, spread_of
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import AdkEvalError, TrackingError, UsageError, did_you_mean
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.gating.drift import JudgeDrift, described
from mlflow_adk_eval.gating.named_runs import run_id_of
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.policy.model import Price, Spend
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.gating.rules.attempts import share_of
from mlflow_adk_eval.report.pull_request import comment_of
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.outcomes import grouped, mean
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import ReadableRun, examine, readable
from mlflow_adk_eval.runs.manifest import Evidence
from mlflow_adk_eval.tracking.client import page_of

PAGES = "adk_eval_compare"
"""The folder of a run's artifacts that holds its comparisons; not among its evidence, to which nothing may be added."""
_MAX_TOLD = 3


def compare(a: str | Report, b: str | Report, *, confidence: float = 0.95, tracking_uri: str | None = None) -> Comparison:
    """Return the changes from run `a` to run `b`: flipped cases with their causes, and differences of means.

    Args:
        a: the earlier run, by its id, or a report, logged or not.
        b: the later run.
        confidence: the confidence level of each interval bound; 1 − confidence is the false-alarm rate. Between 0.5 and 1.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such run, it has no evaluation, or the confidence is invalid.
        TrackingError: if MLflow is unreachable, or a run's evidence cannot be trusted.
    """
    if not 0.5 < confidence < 1:  # noqa: PLR2004 - below, an end of an interval would hold less often than not
        raise UsageError(f"confidence is {confidence!r}; wanted a number between 0.5 and 1")
    sides: list[ComparedRun] = []
    stored: list[ReadableRun] = []
    with ExitStack() as stack:
        for run, name in ((a, "before"), (b, "after")):
            if isinstance(run, Report):
                sides.append(compared_run(run, name))
                continue
            store = stack.enter_context(store_at(tracking_uri))
            stored.append(readable_run(store.evidence(run_id_of(run, store))))
            sides.append(run_of_examined(stored[-1]))
            if len(stored) > 1:
                sides[:] = marked(sides, stored, store.drift(stored[-1], store.clock()))
    return compared(sides[0], sides[1], confidence=confidence)


def marked(sides: Sequence[ComparedRun], runs: Sequence[ReadableRun], drift: JudgeDrift | None) -> tuple[ComparedRun, ComparedRun]:
    """Return the sides of a comparison, each with where it stands to the changes of a judge that come between them."""
    facts: list[dict[str, str]] = [{}, {}]
    for criterion, history in (drift.histories if drift else {}).items():
        moments = [drift.moments(run, criterion) if drift else [] for run in runs]
        for change in history.changes:
            if change.between([*moments[0], *moments[1]]):
                for place, asked in enumerate(moments):
                    since = [moment >= change.since for moment in asked]
                    when = "after" if all(since) else "partly before" if any(since) else "before"
                    facts[place][f"Verdicts of {criterion}"] = f"{when} this change: {described(history.judge, change.drift)}"
    before, after = (replace(side, facts={**side.facts, **found}) for side, found in zip(sides, facts, strict=True))
    return before, after


def readable_run(evidence: Evidence, done: str = "compared") -> ReadableRun:
    """Return what a run holds.

    Args:
        evidence: of the run.
        done: what is to be done to it, for the error.

    Raises:
        UsageError: if it holds no evaluation.
        TrackingError: if its evidence cannot be believed.
    """
    if evidence.manifest is None and "adk_eval.manifest_sha256" not in evidence.params:
        raise UsageError(f"run {evidence.run_id} contains no finished evaluation to compare")
    examined = examine(evidence)
    if not isinstance(examined, ReadableRun):
        problems = examined.problems
        more = f"; and {len(problems) - _MAX_TOLD} more" if len(problems) > _MAX_TOLD else ""
        raise TrackingError(f"run {evidence.run_id} cannot be {done}: {'; '.join(problems[:_MAX_TOLD])}{more}")
    return examined


def run_of_examined(run: ReadableRun) -> ComparedRun:
    """Return a run whose evidence was examined as one side of a comparison; its problems become warnings."""
    evidence, copies = run.evidence, run.copies
    name, digest = evidence.tags.get("mlflow.runName", "") or evidence.run_id, evidence.params.get("adk_eval.eval_set_digest", "")
    scope = [f"it has {run.report.until_decided}"] if run.report.until_decided else []
    side = compared_run(run.report, name, digest=digest, copies=copies)
    return replace(side, run_id=evidence.run_id, facts=dict(_facts(evidence)), warnings=(*run.problems, *scope))


_PARAMS: Mapping[str, str] = {
    "adk_eval.model_id": "Agent version",
    "adk_eval.judge_model": "Judges",
    "adk_eval.user_simulator.model": "Simulated users",
    "adk_eval.baseline": "Baseline",
    "adk_eval.world": "Recorded world",
}
_PREFIXES: Mapping[str, str] = {"adk_eval.judge.": "Judge of ", "adk_eval.prompt.": "Prompt of ", "adk_eval.version.": "Version of "}


def _facts(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield what a run's parameters say of agent, judges and surroundings. Tags could be rewritten; the agent's name is only shown."""
    yield from ((label, evidence.params[name]) for name, label in _PARAMS.items() if name in evidence.params)
    if "adk_eval.agent_version" in evidence.tags:
        yield "Agent", evidence.tags["adk_eval.agent_version"]
    for prefix, label in _PREFIXES.items():
        for name, value in sorted(evidence.params.items()):
            if name.startswith(prefix):
                yield label + name.removeprefix(prefix), value


def review_page(decision: Decision, policy: Path | None, tracking_uri: str | None = None, *, title: str = "", outcome: str = "") -> str:
    """Return the page of a decision for a pull request, as far as the runs can be read. The decision stands, so nothing is raised.

    Args:
        decision: what was decided.
        policy: by which policy.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        title: what it is about; empty: the run.
        outcome: what was done about it.
    """
    about, report, comparison, prices = {"title": title, "outcome": outcome}, None, None, dict[str, Price]()
    try:
        prices = load_policy(policy).prices
        about["page"] = page_of(decision.run_id, tracking_uri=tracking_uri)
        with store_at(tracking_uri) as store:
            run = readable_run(store.evidence(decision.run_id), "shown")
            report = run.report
            if decision.baseline_run_id:
                before = readable_run(store.evidence(decision.baseline_run_id))
                comparison = compared(run_of_examined(before), run_of_examined(run))
    except AdkEvalError as error:
        about["missing"] = str(error)
    return comment_of(decision, report, comparison, prices, about)


def log_comparison(found: Comparison, html: str, *, tracking_uri: str | None = None) -> str:
    """Keep the page of a comparison with the second run; return where a browser shows it.

    Args:
        found: the comparison.
        html: the page.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if one of the sides is no run of MLflow.
        TrackingError: if MLflow is unreachable.
    """
    before, after = found.before.run_id, found.after.run_id
    if not before or not after:
        raise UsageError("only a comparison of two runs in MLflow can be logged")
    path = f"{PAGES}/{before}.html"
    with store_at(tracking_uri) as store:
        store.client.log_text(after, html, path)
    return page_of(after, f"/artifacts/{path}", tracking_uri)


CASE_PASS_RATE = "case_pass_rate"  # noqa: S105 - not that kind of pass
"""The measure that power is computed for besides the criteria: the share of its runs that a case passed, over the cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one measure takes."""

    measure: str
    """A criterion, or ``case_pass_rate``."""
    cases: int
    """How many cases have it."""
    mean: float
    interval: intervals.Interval | None
    """Of the mean; ``None`` where cases do not say how much cases differ."""
    test: Literal["mcnemar", "permutation"]
    """By which runs will be compared."""
    spread: float | None
    """The standard deviation of a case's difference between two versions that is reckoned with; ``None`` where nothing is known of it."""
    source: Source | None
    """Where the spread comes from."""
    told: str
    """The same as a sentence."""
    drop: float
    """What is to be found, in the unit of the measure: a rise, where lower is better."""
    detectable: float | None
    """The smallest drop that the present cases would show; ``None`` where there is none."""
    needed: int | None
    """How many cases would show `drop`; ``None`` where it cannot be said."""
    to_pass: int | None
    """With how many cases an equally good version passes a `max_drop` of `drop` with the wanted power; ``None`` as above."""
    until_decided: int | None
    """How many cases `run --until-decided` takes for that on average; ``None``: more than can be said, or not planned for one run of each case."""

    @property
    def enough(self) -> bool:
        """Whether the present cases would show it."""
        return self.needed is not None and self.cases >= self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerAnalysis:
    """How many cases each measure takes."""

    run_id: str | None
    baseline_run_id: str | None
    detect: float
    """What is to be found: in the unit of the measure, for quantities as a share of their mean."""
    confidence: float
    power: float
    num_runs: int
    """How often each case is to run."""
    needs: tuple[Need, ...]

    @property
    def enough(self) -> bool:
        """Whether the present cases would show every drop."""
        return all(need.enough for need in self.needs)


def power(  # noqa: PLR0913 - as many options
    run: str | Report,
    detect: float,
    *,
    baseline: str | Report | None = None,
    criteria: Iterable[str] = (),
    confidence: float = 0.95,
    power: float = 0.8,
    num_runs: int | None = None,
    attempts: Spend | None = None,
    tracking_uri: str | None = None,
) -> PowerAnalysis:
    """Return how many cases you need to detect a drop, estimated from the variation in a run.

    Args:
        run: the id of a run, or a report.
        detect: the drop to detect in scores or pass rates; for tokens, calls and durations, the rise relative to their mean.
        baseline: an earlier run of the same cases, to estimate how much versions differ.
        criteria: the measures, such as ``case_pass_rate``; none: that and every criterion with a threshold.
        confidence: 1 − the false-alarm rate.
        power: the probability of detecting the drop.
        num_runs: planned repeats of each case; ``None``: as in the run.
        attempts: what the policy's `attempts` spends, which leaves the first attempt a share of the error; ``None``: all of it.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such run or criterion, or a number is invalid.
        TrackingError: if MLflow is unreachable, or a run's evidence cannot be trusted.
    """
    if not 0 < detect < math.inf:
        raise UsageError(f"detect: {detect!r}; wanted a difference above 0")
    for name, value in (("confidence", confidence), ("power", power)):
        if not 0 < value < 1:
            raise UsageError(f"{name}: {value!r}; wanted a number between 0 and 1, such as 0.95")
    if num_runs is not None and num_runs < 1:
        raise UsageError(f"num_runs: {num_runs!r}; wanted a whole number of at least 1")
    confidence = 1 - (1 - confidence) * share_of(attempts, 1)
    now = _report(run, tracking_uri)
    before = None if baseline is None else _report(baseline, tracking_uri)
    measures, earlier = _measures(now), _measures(before) if before else {}
    for name in (criteria := tuple(criteria)):
        if name not in measures:
            raise UsageError(f"criterion {name!r}: the run has no scores for it. {did_you_mean(name, measures)}".strip())
    deciding = [name for name, summary in now.summaries().items() if summary.threshold is not None]
    if not (chosen := list(dict.fromkeys(criteria)) or [name for name in (CASE_PASS_RATE, *deciding) if name in measures]):
        raise UsageError("the run has no scores to compute power from")
    asked: Json = {"detect": detect, "confidence": confidence, "power": power, "num_runs": num_runs or now.num_runs}
    needs = tuple(_need(name, now, measures[name], earlier.get(name), **asked) for name in chosen)
    return PowerAnalysis(run_id=now.run_id, baseline_run_id=before.run_id if before else None, needs=needs, **asked)


def _report(run: str | Report, tracking_uri: str | None) -> Report:
    """Return a report as it is, or what a run holds, if that can be believed."""
    if isinstance(run, Report):
        return run
    with store_at(tracking_uri) as store:
        evidence = store.evidence(run_id_of(run, store))
    refused = f"run {evidence.run_id} cannot be used to compute power"
    return replace(readable(evidence, lambda why: TrackingError(f"{refused}: {why}")).report, run_id=evidence.run_id)


def _measures(report: Report) -> dict[str, Values]:
    """Return the values of each measure that has any."""
    passed = grouped((case.eval_id, float(case.verdict == "passed")) for case in report.cases)
    scores = {name: summary.case_scores for name, summary in report.summaries().items()}
    return {name: values for name, values in {CASE_PASS_RATE: passed, **scores}.items() if values}


def _need(
    name: str, report: Report, values: Values, before: Values | None, detect: float, confidence: float, power: float, num_runs: int
) -> Need:
    average = mean(value for runs in values.values() for value in runs)
    spread = spread_of(values, before, num_runs, confidence=confidence)
    drop = detect * abs(average) if CRITERIA.is_quantity(name) else detect
    # The smallest drop that so many cases show, and how many show the one that is to be found.
    detectable, needed, to_pass, until_decided = None, None, None, None
    how = {"confidence": confidence, "power": power}
    if spread.value is not None and drop:
        if spread.passes:
            detectable = planning.detectable_rate_drop(spread.value**2, len(values), **how)
            needed = planning.rate_cases_needed(spread.value**2, min(drop, 1.0), **how)
        else:
            detectable = planning.detectable_drop(spread.value, len(values), **how)
            needed = planning.cases_needed(spread.value, drop, **how)
        least, most = (0.0, 1.0) if name == CASE_PASS_RATE else report.config.bounds(name)
        if not (bounded := math.isfinite(least) and math.isfinite(most)):  # then it is the range of what was seen, as for the gate
            least, most = (end(map(mean, values.values())) for end in (min, max))
        width = most - least
        to_pass = planning.cases_to_exclude(drop, spread.value, width=width, **how)
        if bounded and num_runs == 1:
            varies = 2 * pvariance(map(mean, values.values()))
            passes = spread.passes
            until_decided = cases_until_decided(drop, spread.value, width=width, passes=passes, expected=varies, confidence=confidence)
    return Need(
        measure=name,
        cases=len(values),
        mean=average,
        interval=intervals.mean_interval(values, confidence, proportion=not CRITERIA.is_quantity(name)),
        test="mcnemar" if spread.passes else "permutation",
        spread=spread.value,
        source=spread.source,
        told=spread.explanation,
        drop=drop,
        detectable=detectable if detectable is not None and math.isfinite(detectable) else None,
        needed=needed,
        to_pass=to_pass,
        until_decided=until_decided,
    )
