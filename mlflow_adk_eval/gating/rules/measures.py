"""What rules can be about: each measure's values by case, computed from what a run's table and votes come to."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mlflow_adk_eval.config.eval_config import EFFICIENCY, SETTINGS
from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.gating.evidence.integrity import few
from mlflow_adk_eval.gating.policy.model import AGENT, COST, Price
from mlflow_adk_eval.gating.voting import calls_of, cost_of, flip_of, tokens_of
from mlflow_adk_eval.results.report import (
    CaseResult,
    CriterionResult,
    Report,
    mean,
    reason_of,
)

SHARE = (0.0, 1.0)
PASS_HAT = re.compile(r"pass(?:\^|_hat_)([1-9]\d{0,5})")
_FEWEST_RUNS = 2
_MAX_NAMED = 3

Value = float | str
"""A value of a case run, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a measure came to in each case."""

    values: Mapping[str, tuple[float, ...]]
    """By case, one per run, or one for all of its runs."""
    greater_is_better: bool
    bounds: tuple[float, float] | None = None
    """The least and the greatest value that there may be; ``None``: there are none."""
    missing: tuple[str, ...] = ()
    """The case runs without a value, each with the reason."""
    proportion: bool = True
    """Whether values of 0 and 1 only make it a share of cases."""

    @property
    def means(self) -> dict[str, float]:
        """The mean of each case over its runs."""
        return {case: mean(values) for case, values in self.values.items()}

    @property
    def value(self) -> float | None:
        """The mean over the cases; ``None`` without any."""
        return mean(self.means.values()) if self.values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What measures are computed from."""

    report: Report
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])


Reader = Callable[[Source], Measured | str]
"""Computes a measure, or says why it cannot be had."""


def measure(name: str, source: Source) -> Measured | str:
    """Return what a measure came to, or why the run does not have it."""
    report = source.report
    if name in report.criteria:
        return _criterion(name, report)
    if found := PASS_HAT.fullmatch(name):
        return _pass_hat(report, int(found[1]))
    if name in OF_ALL:
        return OF_ALL[name](source)
    criterion, _, suffix = name.rpartition("/")
    if suffix in OF_A_CRITERION and criterion in report.criteria:
        return OF_A_CRITERION[suffix](criterion, source)
    known = [*report.criteria, *OF_ALL, "pass^1", *(f"{name}/{suffix}" for name in report.criteria for suffix in OF_A_CRITERION)]
    hint = did_you_mean(name, known) or f"It has {', '.join(report.criteria) or 'no criterion'}; besides, there are {', '.join(OF_ALL)}"
    if (criterion or name) in SETTINGS and criterion not in report.criteria:
        return f"the run has no criterion {criterion or name}. {hint}"
    return f"the run has no measure {name!r}. {hint}"


def criteria_behind(name: str, report: Report) -> list[str]:
    """Return the criteria whose scores a measure rests on."""
    if name in report.criteria:
        return [name]
    criterion = name.rpartition("/")[0]
    if criterion in report.criteria:
        return [criterion]
    return [found for found, summary in report.summaries().items() if summary.threshold is not None]


def compares_runs(name: str) -> bool:
    """Whether a measure is another one where cases have another number of runs."""
    return name in ("case_pass_rate", "flaky_rate")


def _by_case(found: Iterable[tuple[CaseResult, Value]], report: Report) -> tuple[dict[str, tuple[float, ...]], tuple[str, ...]]:
    """Return the values of each case that has one in each of its runs, and what is missing."""
    values: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for case, value in found:
        if isinstance(value, str):
            missing.setdefault(case.eval_id, f"{report.label(case)}: {value}")
        else:
            values.setdefault(case.eval_id, []).append(value)
    return {case: tuple(known) for case, known in values.items() if case not in missing}, tuple(missing.values())


def _results(name: str, report: Report) -> Iterator[tuple[CaseResult, CriterionResult]]:
    return ((case, result) for case in report.cases for result in case.results if result.criterion == name)


def _criterion(name: str, report: Report) -> Measured:
    found = ((case, reason_of(result.overall) if result.score is None else result.score) for case, result in _results(name, report))
    values, missing = _by_case(found, report)
    low, high = report.config.bounds(name)
    return Measured(
        values=values,
        missing=missing,
        greater_is_better=report.config.greater_is_better(name),
        bounds=(low, high) if math.isfinite(low) and math.isfinite(high) else None,
        proportion=name not in EFFICIENCY and (low, high) == SHARE,
    )


def _pass_rate(name: str, source: Source) -> Measured | str:
    report = source.report
    deciding = [(case, result) for case, result in _results(name, report) if result.decides]
    if not deciding:
        return f"{name} has no threshold in the run's config, so its scores neither pass nor fail"
    values, missing = _by_case(((case, _passed(result)) for case, result in deciding), report)
    return Measured(values=values, missing=missing, greater_is_better=True, bounds=SHARE)


def _passed(result: CriterionResult) -> Value:
    return reason_of(result.overall) if result.passed is None else float(result.passed)


def _case_pass_rate(source: Source) -> Measured:
    report = source.report
    values = {case.eval_id: (float(case.passed == case.runs),) for case in report.repeats.cases}
    return _of_verdicts(report, values)


def _of_verdicts(report: Report, values: Mapping[str, tuple[float, ...]], *, greater_is_better: bool = True) -> Measured:
    """Return a measure of passing and failing, which a case without a verdict does not have."""
    open_cases = {
        case.eval_id: f"{report.label(case)}: {'; '.join(case.reasons())}" for case in report.cases if case.verdict == "undecided"
    }
    kept = {case: value for case, value in values.items() if case not in open_cases}
    return Measured(values=kept, missing=tuple(open_cases.values()), greater_is_better=greater_is_better, bounds=SHARE)


def _pass_hat(report: Report, k: int) -> Measured | str:
    return _too_few_runs(report, k) or _of_verdicts(report, {case.eval_id: (case.pass_hat(k),) for case in report.repeats.cases})


def _flaky_rate(source: Source) -> Measured | str:
    report = source.report
    values = {case.eval_id: (float(case.flaky),) for case in report.repeats.cases}
    return _too_few_runs(report, _FEWEST_RUNS) or _of_verdicts(report, values, greater_is_better=False)


def _too_few_runs(report: Report, wanted: int) -> str:
    if report.num_runs >= wanted:
        return ""
    there = "there is 1" if report.num_runs == 1 else f"there are {report.num_runs}"
    return f"it needs at least {wanted} runs of each case (num_runs {wanted}), and {there}"


def _of_votes(
    report: Report, read: Callable[[CaseResult], Value | None], bounds: tuple[float, float] | None, nothing: str
) -> Measured | str:
    """Return a measure of what judges did, over the cases of which there is something to tell."""
    found = [(case, value) for case in report.cases if (value := read(case)) is not None]
    if not found:
        return nothing
    values, missing = _by_case(found, report)
    return Measured(values=values, missing=missing, greater_is_better=False, bounds=bounds, proportion=False)


def _flip_rate(source: Source) -> Measured | str:
    return _of_votes(source.report, lambda case: flip_of(case.results), SHARE, "no judge has cast a vote, so none has flipped")


def _flip_rate_of(name: str, source: Source) -> Measured | str:
    def flip(case: CaseResult) -> float | None:
        return flip_of([result for result in case.results if result.criterion == name])

    return _of_votes(source.report, flip, SHARE, f"no judge has cast a vote on {name}, so none has flipped")


def _judge_tokens(source: Source) -> Measured | str:
    return _of_votes(source.report, lambda case: tokens_of(case.results), None, "the run has no cases")


def _judge_calls(source: Source) -> Measured | str:
    return _of_votes(source.report, lambda case: float(calls_of(case.results)), None, "the run has no cases")


def _cost(source: Source) -> Measured | str:
    if AGENT not in source.prices and not any(result.votes for case in source.report.cases for result in case.results):
        return "nothing in the run has a price: no judge has voted, and the policy has no price of the agent"
    return _of_votes(source.report, lambda case: cost_of(case, source.prices), None, "the run has no cases")


OF_ALL: Mapping[str, Reader] = {
    "case_pass_rate": _case_pass_rate,
    "flaky_rate": _flaky_rate,
    "judge_flip_rate": _flip_rate,
    COST: _cost,
    "judge_tokens": _judge_tokens,
    "judge_calls": _judge_calls,
}
"""The measures that are none of a single criterion, by name; pass^k is another."""

OF_A_CRITERION: Mapping[str, Callable[[str, Source], Measured | str]] = {"pass_rate": _pass_rate, "flip_rate": _flip_rate_of}
"""What is measured of a criterion besides its score, as ``<criterion>/<name>``."""


def missing_told(measured: Measured) -> str:
    """Return of how many cases there is no value, and why."""
    count = len(measured.missing)
    return f"{count} of {count + len(measured.values)} cases without a value: {'; '.join(few(measured.missing, limit=_MAX_NAMED))}"
