"""Repeated runs of the same cases: how often each passes, and how far what is measured varies.

A run of a case *passed* only if all of its evidence is there and every threshold was reached. A run that lacks evidence is
*undecided*: it is one of the runs, it did not pass, and it is counted apart from those that failed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.results.outcomes import VERDICTS, CaseResult, Verdict, mean

_MOST_KS = 8


def pass_hat(runs: int, passed: int, k: int) -> float:
    """Return the estimate of pass^k, the chance that a case passes `k` times in a row.

    It is the share of all choices of `k` of the runs in which each run passed, C(passed, k) / C(runs, k): the unbiased
    estimate of τ-bench (Yao et al. 2024, arXiv 2406.12045), and the opposite of pass@k, for which one pass is enough.

    Raises:
        ValueError: if there are fewer than `k` runs, or `k` is less than 1.

    >>> pass_hat(4, 3, 1), pass_hat(4, 3, 2), pass_hat(4, 3, 4)
    (0.75, 0.5, 0.0)
    """
    if not 1 <= k <= runs:
        raise ValueError(f"k={k!r}: wanted a whole number from 1 to the number of runs, {runs}")
    return math.comb(passed, k) / math.comb(runs, k)


def variance(values: Sequence[float]) -> float:
    """Return the sample variance of at least two values: exactly 0 where all are equal, and never an exception.

    >>> variance([1.0, 2.0, 3.0]), variance([0.1, 0.1, 0.1])
    (1.0, 0.0)
    """
    if min(values) == max(values):
        return 0.0
    middle = mean(values)
    return math.fsum((value - middle) * (value - middle) for value in values) / (len(values) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRepeats:
    """All runs of one case."""

    eval_id: str
    verdicts: tuple[Verdict, ...]
    """By run."""
    scores: Mapping[str, tuple[float | None, ...]]
    """The case scores of each criterion by run; ``None``: not evaluated."""

    @property
    def runs(self) -> int:
        """How many runs there were to be; one without a result is undecided."""
        return len(self.verdicts)

    def count(self, verdict: Verdict) -> int:
        """Return how many runs came to a verdict."""
        return self.verdicts.count(verdict)

    @property
    def passed(self) -> int:
        """How many runs passed."""
        return self.count("passed")

    @property
    def pass_rate(self) -> float:
        """The share of all runs that passed."""
        return self.passed / self.runs

    def pass_hat(self, k: int) -> float:
        """Return the estimate of pass^k; see the function of that name."""
        return pass_hat(self.runs, self.passed, k)

    @property
    def flaky(self) -> bool:
        """Whether not all runs came to the same verdict."""
        return len(set(self.verdicts)) > 1

    @property
    def disagreement(self) -> float:
        """The chance that two of the runs, taken at random, came to different verdicts: 0 where all agree."""
        if self.runs <= 1:
            return 0.0
        return 1 - sum(math.comb(count, 2) for count in Counter(self.verdicts).values()) / math.comb(self.runs, 2)

    @property
    def summary(self) -> str:
        """What the runs came to, as text.

        >>> CaseRepeats(eval_id="a", verdicts=("passed", "failed", "passed"), scores={}).summary
        '2 of 3 runs passed, 1 failed'
        """
        others = "".join(f", {self.count(verdict)} {verdict}" for verdict in VERDICTS[1:] if self.count(verdict))
        return f"{self.passed} of {self.runs} runs passed{others}"

    def known(self, criterion: str) -> list[float]:
        """Return the scores that there are, by run."""
        return [score for score in self.scores.get(criterion, ()) if score is not None]

    def score_range(self, criterion: str) -> tuple[float, float] | None:
        """Return the lowest and the highest score; ``None`` where no run has one."""
        known = self.known(criterion)
        return (min(known), max(known)) if known else None


def most_flaky_first(cases: Iterable[CaseRepeats]) -> tuple[CaseRepeats, ...]:
    """Return those whose runs disagree, the one that disagrees most first, else in the order given."""
    return tuple(sorted((case for case in cases if case.flaky), key=lambda case: -case.disagreement))


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionRepeats:
    """How far the case scores of one criterion vary, over the cases that have a score in every run.

    Of the others it cannot be said whether a run is worse or only lacks the easy cases.
    """

    criterion: str
    decides: bool
    """Whether a case needs it to pass."""
    complete: int
    """How many cases have a score in every run."""
    planned: int
    """How many cases have the criterion."""
    run_means: tuple[float, ...]
    """The mean over the complete cases, by run; empty where there are none."""
    within_variance: float | None
    """How far the runs of a case vary: the mean of their sample variances. ``None`` with one run, or without complete cases."""
    between_variance: float | None
    """How far cases vary besides: the variance of their means less what its runs explain, at least 0. ``None`` with one case."""

    @property
    def run_std(self) -> float | None:
        """The standard deviation of the runs' means."""
        return math.sqrt(variance(self.run_means)) if len(self.run_means) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """All runs of all cases of a report."""

    num_runs: int
    cases: tuple[CaseRepeats, ...]
    """In the order of the eval set."""
    criteria: Mapping[str, CriterionRepeats]
    """Those that decide or have a score, in the order of the report."""

    @property
    def ks(self) -> tuple[int, ...]:
        """The numbers for which pass^k is shown: the first eight, and that of all runs."""
        return (*range(1, min(self.num_runs, _MOST_KS) + 1), *([self.num_runs] if self.num_runs > _MOST_KS else []))

    def pass_hat(self, k: int) -> float | None:
        """Return the mean of pass^k over the cases; ``None`` without cases."""
        return mean(case.pass_hat(k) for case in self.cases) if self.cases else None

    @property
    def run_pass_rates(self) -> tuple[float, ...]:
        """The share of the cases that passed, by run; empty without cases."""
        if not self.cases:
            return ()
        return tuple(sum(case.verdicts[run] == "passed" for case in self.cases) / len(self.cases) for run in range(self.num_runs))

    @property
    def flaky(self) -> tuple[CaseRepeats, ...]:
        """The cases whose runs disagree, the one that disagrees most first."""
        return most_flaky_first(self.cases)


def repeats_of(results: Sequence[CaseResult], criteria: Sequence[str], num_runs: int) -> Repeats:
    """Return what the runs of each case come to. With one run of each, nothing can vary."""
    num_runs = max([num_runs, *(case.run_index + 1 for case in results)])
    by_case: dict[str, dict[int, CaseResult]] = {}
    for case in results:
        by_case.setdefault(case.eval_id, {})[case.run_index] = case
    cases = tuple(_case(eval_id, [runs.get(index) for index in range(num_runs)]) for eval_id, runs in by_case.items())
    deciding = {result.criterion for case in results for result in case.results if result.decides}
    known = (name for name in criteria if name in deciding or any(case.known(name) for case in cases))
    return Repeats(num_runs=num_runs, cases=cases, criteria={name: _criterion(name, cases, decides=name in deciding) for name in known})


def _case(eval_id: str, runs: Sequence[CaseResult | None]) -> CaseRepeats:
    by_run = [{result.criterion: result.score for result in run.results} if run else {} for run in runs]
    names = dict.fromkeys(name for scores in by_run for name in scores)
    scores = {name: tuple(found.get(name) for found in by_run) for name in names}
    return CaseRepeats(eval_id=eval_id, verdicts=tuple(run.verdict if run else "undecided" for run in runs), scores=scores)


def _criterion(name: str, cases: Sequence[CaseRepeats], *, decides: bool) -> CriterionRepeats:
    planned = [case for case in cases if name in case.scores]
    complete = [known for case in planned if len(known := case.known(name)) == case.runs]
    within = mean(map(variance, complete)) if complete and len(complete[0]) > 1 else None
    between = None
    if within is not None and len(complete) > 1:  # the component of the cases in a one-way analysis of variance with random effects
        between = max(0.0, variance([mean(scores) for scores in complete]) - within / len(complete[0]))
    means, counts = tuple(map(mean, zip(*complete, strict=True))), {"complete": len(complete), "planned": len(planned)}
    return CriterionRepeats(criterion=name, decides=decides, **counts, run_means=means, within_variance=within, between_variance=between)


def table_of_repeats(repeats: Repeats) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return the columns and rows of a table with one row per case."""
    columns = ["eval_id", "flaky", "verdicts", "runs", *VERDICTS, "pass_rate", *(f"pass_hat_{k}" for k in repeats.ks)]
    columns += [f"{name}/{measure}" for name in repeats.criteria for measure in ("mean", "std", "low", "high")]
    rows: list[tuple[Any, ...]] = []
    for case in repeats.cases:
        row: list[Any] = [case.eval_id, case.flaky, ", ".join(case.verdicts), case.runs, *map(case.count, VERDICTS), case.pass_rate]
        row += map(case.pass_hat, repeats.ks)
        for name in repeats.criteria:
            known = case.known(name)
            deviation = math.sqrt(variance(known)) if len(known) > 1 else None
            row += (mean(known) if known else None, deviation, *(case.score_range(name) or (None, None)))
        rows.append(tuple(row))
    return tuple(columns), rows
