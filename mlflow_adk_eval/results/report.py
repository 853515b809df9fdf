"""What an evaluation found: the report.

The runner, the gate and the recordings all end in a `Report`: the eval set and config that were asked for, and a `CaseResult` for each
case run. Nothing else is stored. Verdict, reasons, scores, summaries, repeated runs and frames are computed from the cases on demand,
so a report that was read back from a run says exactly what it said when it was made.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Literal

from mlflow_adk_eval.results.outcomes import CaseResult, PlannedCriterion, Tally, Verdict, mean, tallies_of, verdict_of

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_adk_eval.config.eval_config import EvalConfig
    from mlflow_adk_eval.evalset import EvalSet
    from mlflow_adk_eval.evalset.conversation import Origin
    from mlflow_adk_eval.results.repeats import Repeats
    from mlflow_adk_eval.results.usage import JudgeUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionSummary:
    """One criterion over all cases of a report."""

    criterion: str
    threshold: float | None
    greater_is_better: bool
    mean: float | None
    """Over the evaluated case runs; ``None`` where there is none."""
    pass_rate: float | None
    """Case runs that reached the threshold among all planned ones; ``None`` without a threshold."""
    evaluated: int
    """Cells with a score."""
    errored: int
    """Planned cells that ended in an error."""
    skipped: int
    """Planned cells to which the criterion did not apply."""
    case_scores: Mapping[str, tuple[float, ...]]
    """The evaluated scores by eval id, one per run."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """The outcome of an evaluation: every cell, with its reason."""

    eval_set: EvalSet
    config: EvalConfig
    cases: Sequence[CaseResult]
    """In the order of the eval set, and of the runs within a case. Those of a large run are read from disk when they are looked at."""
    num_runs: int = 1
    run_id: str | None = None
    """The MLflow run that holds it; ``None`` where it was not logged."""
    notes: tuple[str, ...] = ()
    """What the reader should know besides, such as "3 recorded cases are not in the eval set"."""
    judging: JudgeUsage | None = None
    """What the judges took; ``None`` where no criterion asked one."""
    baseline: str = ""
    """What pairwise criteria compared with, by its run, file or name; empty where none did."""
    simulating: JudgeUsage | None = None
    """What the models that played users took; ``None`` where none did."""
    from_ledger: int = 0
    """How many conversations were had before the evaluation was resumed: the ledger held them."""
    origin: Origin | None = field(default=None, compare=False)
    """Who had the conversations, and when; ``None`` where it is not known."""

    def __repr__(self) -> str:
        """Return the verdict and the scores; the whole report may be a gigabyte."""
        scores = ", ".join(f"{name}={'not evaluated' if score is None else f'{score:.4g}'}" for name, score in self.scores.items())
        return f"<Report {self.verdict}: {len(self.cases)} case runs of {self.eval_set.eval_set_id!r}; {scores}>"

    @cached_property
    def criteria(self) -> tuple[str, ...]:
        """The names of all criteria: in the order of the config, then those that are information."""
        return tuple(self._summaries)

    @cached_property
    def verdict(self) -> Verdict:
        """*failed* if a case missed a threshold, else *undecided* if evidence is missing, else *passed*."""
        return verdict_of(self.verdicts)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict of each case run."""
        known: tuple[Verdict, ...] | None = getattr(self.cases, "verdicts", None)  # of cases that are on disk
        return known or tuple(case.verdict for case in self.cases)

    @property
    def passed(self) -> bool:
        """Whether every case was evaluated on every criterion and reached its threshold."""
        return self.verdict == "passed"

    @cached_property
    def case_counts(self) -> tuple[int, int]:
        """How many cases there are, and how many of them passed in each of their runs."""
        if self.num_runs == 1 and hasattr(self.cases, "verdicts"):  # those of cases that are on disk, which have an id each
            return len(self.verdicts), self.verdicts.count("passed")
        passed: dict[str, bool] = {}
        for case, verdict in zip(self.cases, self.verdicts, strict=True):
            passed[case.eval_id] = passed.get(case.eval_id, True) and verdict == "passed"
        return len(passed), sum(passed.values())

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Why the report did not pass, one sentence per finding, by case; empty where it passed."""
        return tuple(self._reasons())

    def first_reasons(self, most: int) -> tuple[Sequence[str], int]:
        """Return the first of the reasons, at most `most`, and how many there are besides."""
        first = tuple(islice(self._reasons(), most))
        return first, self._totals.reasons - len(first) if self.cases else 0

    def _reasons(self) -> Iterator[str]:
        if not self.cases:
            yield "the eval set has no cases, so there is no evidence"
        unpassed = (place for place, verdict in enumerate(self.verdicts) if verdict != "passed")
        for case in map(self.cases.__getitem__, unpassed):
            yield from (f"{self.label(case)}: {reason}" for reason in case.reasons())

    def label(self, case: CaseResult) -> str:
        """Return how messages call `case`: its id, and its run where there are several."""
        return case.eval_id if self.num_runs == 1 else f"{case.eval_id} (run {case.run_index + 1})"

    @property
    def scores(self) -> dict[str, float | None]:
        """The mean score of each deciding criterion over the evaluated cases; ``None`` where none was evaluated."""
        return {name: summary.mean for name, summary in self.summaries().items() if summary.threshold is not None}

    def summaries(self) -> dict[str, CriterionSummary]:
        """Return each criterion's totals over the cases that have it, in the order of `criteria`."""
        return dict(self._summaries)

    @property
    def _summaries(self) -> Mapping[str, CriterionSummary]:
        return self._totals.summaries

    @cached_property
    def _totals(self) -> _Totals:
        memo: dict[object, _Totals] = getattr(self.cases, "memo", {})  # of cases that are on disk
        order = _configured(self.config)
        if order not in memo:
            memo[order] = self._totalled()
        return memo[order]

    def _totalled(self) -> _Totals:
        found: dict[str, _Criterion] = {}
        eval_ids: list[str] = []
        reasons = 0
        for eval_id, failed, tallies in tallies_of(self.cases):
            if not eval_ids or eval_ids[-1] != eval_id:
                eval_ids.append(eval_id)
            decided = False
            for tally in tallies:
                totals = found.get(tally.planned.criterion)
                if totals is None:
                    totals = found[tally.planned.criterion] = _Criterion(eval_ids, tally.planned)
                totals.add(tally)
                decided = decided or tally.planned.threshold is not None
            reasons += failed + (not decided)
        reasons += sum(totals.unpassed for totals in found.values())
        return _Totals({name: found[name].summary() for name in _in_order(self.config, found)}, reasons)

    @cached_property
    def repeats(self) -> Repeats:
        """What the runs of each case come to: pass^k, which cases are flaky, how far scores vary."""
        from mlflow_adk_eval.results.repeats import repeats_of  # noqa: PLC0415 - seldom needed

        return repeats_of(self.cases, self.criteria, self.num_runs)

    def to_frame(self, rows: Literal["cases", "invocations", "votes", "repeats"] = "cases") -> pd.DataFrame:
        """Return a tidy frame with one row per case, per invocation or per vote, and criterion; ``repeats``: per case, of all its runs.

        Raises:
            UsageError: for any other word.
        """
        from mlflow_adk_eval.results.table import frame_of, frame_of_repeats  # noqa: PLC0415 - frames are seldom made

        return frame_of_repeats(self.repeats) if rows == "repeats" else frame_of(self.cases, rows)


def criteria_of(config: EvalConfig, cases: Iterable[CaseResult]) -> tuple[str, ...]:
    """Return the names of all criteria that have results: in the order of the config, then those that are information."""
    known = getattr(cases, "criteria", None)  # of cases that are on disk
    return _in_order(config, dict.fromkeys(known or (result.criterion for case in cases for result in case.results)))


def _configured(config: EvalConfig) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for criteria in (config.criteria, *config.case_criteria.values()) for name in criteria))


def _in_order(config: EvalConfig, found: Mapping[str, object]) -> tuple[str, ...]:
    configured = _configured(config)
    return (*(name for name in configured if name in found), *(name for name in found if name not in configured))


class CaseScores(Mapping[str, tuple[float, ...]]):
    """The scores of the cases that were evaluated, by eval id: columns, as a dict of a million tuples takes hundreds of megabytes."""

    def __init__(self, eval_ids: Sequence[str], places: Sequence[int], scores: Sequence[float]) -> None:
        """Take the ids of all cases, and for each score, case by case, the place of its case and the score."""
        self._eval_ids, self._places, self._scores = eval_ids, places, scores
        self._index: dict[str, slice] | None = None

    def __getitem__(self, eval_id: str) -> tuple[float, ...]:
        """Return the scores of a case, one per run."""
        if self._index is None:
            self._index = {self._eval_ids[place]: runs for place, runs in self._slices()}
        return tuple(self._scores[self._index[eval_id]])

    def __iter__(self) -> Iterator[str]:
        """Yield the ids."""
        return (self._eval_ids[place] for place, _ in self._slices())

    def __len__(self) -> int:
        """Return the number of cases."""
        return sum(1 for _ in self._slices())

    def items(self) -> ItemsView[str, tuple[float, ...]]:
        """Return the ids with their scores."""
        return _Items(self)

    def values(self) -> ValuesView[tuple[float, ...]]:
        """Return the scores."""
        return _Values(self)

    def pairs(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Yield each id with its scores."""
        return ((self._eval_ids[place], tuple(self._scores[runs])) for place, runs in self._slices())

    def __repr__(self) -> str:
        """Return it as a dict."""
        return repr(dict(self.pairs()))

    def _slices(self) -> Iterator[tuple[int, slice]]:
        start = 0
        for end in range(1, len(self._places) + 1):
            if end == len(self._places) or self._places[end] != self._places[start]:
                yield self._places[start], slice(start, end)
                start = end


def scores_by_case(found: Iterable[tuple[str, Iterable[float]]]) -> CaseScores:
    """Return the scores of cases, case by case, as columns."""
    eval_ids: list[str] = []
    places, scores = array("i"), array("d")
    for eval_id, values in found:
        eval_ids.append(eval_id)
        for value in values:
            places.append(len(eval_ids) - 1)
            scores.append(value)
    return CaseScores(eval_ids, places, scores)


def scaled(found: Mapping[str, Sequence[float]], change: Callable[[float], float]) -> CaseScores:
    """Return scores as they are changed."""
    return scores_by_case((eval_id, map(change, values)) for eval_id, values in found.items())


class _Items(ItemsView[str, tuple[float, ...]]):
    """Without looking each id up."""

    _mapping: CaseScores

    def __iter__(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        return self._mapping.pairs()


class _Values(ValuesView[tuple[float, ...]]):
    """Without looking each id up."""

    _mapping: CaseScores

    def __iter__(self) -> Iterator[tuple[float, ...]]:
        return (scores for _, scores in self._mapping.pairs())


@dataclass(frozen=True, slots=True)
class _Totals:
    """What all cases come to."""

    summaries: Mapping[str, CriterionSummary]
    reasons: int
    """How many findings stand between the report and a pass."""


class _Criterion:
    """One criterion's totals, as cases are gone through."""

    def __init__(self, eval_ids: Sequence[str], first: PlannedCriterion) -> None:
        self._eval_ids, self._first = eval_ids, first
        self._deciding = self._passed = self._scored = self._errored = self._skipped = 0
        self._places, self._scores = array("i"), array("d")

    @property
    def unpassed(self) -> int:
        """How many case runs have not passed it that should have."""
        return self._deciding - self._passed

    def add(self, tally: Tally) -> None:
        planned, score, scored, errored, skipped = tally
        if planned.threshold is not None:
            if not self._deciding:
                self._first = planned
            self._deciding += 1
            self._passed += tally.passed
        self._scored += scored
        self._errored += errored
        self._skipped += skipped
        if score is not None:
            self._places.append(len(self._eval_ids) - 1)
            self._scores.append(score)

    def summary(self) -> CriterionSummary:
        return CriterionSummary(
            criterion=self._first.criterion,
            threshold=self._first.threshold,
            greater_is_better=self._first.greater_is_better,
            mean=mean(self._scores) if self._scores else None,
            pass_rate=self._passed / self._deciding if self._deciding else None,
            evaluated=self._scored,
            errored=self._errored,
            skipped=self._skipped,
            case_scores=CaseScores(self._eval_ids, self._places, self._scores),
        )
