"""What an evaluation found: the report, and the results of all case runs, in memory or on disk.

The runner, the gate and the recordings all end in a `Report`: the eval set and config that were asked for, and a `CaseResult` for each
case run. Nothing else is stored. Verdict, reasons, scores, summaries, repeated runs and frames are computed from the cases on demand,
so a report that was read back from a run says exactly what it said when it was made.

`Cases` is a sequence of `CaseResult`. What it says besides follows from the results; a run whose results are on disk (`runs.stored_run`) knows
it without reading them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from mlflow_adk_eval.evalset.models import LazySequence, canonical
from mlflow_adk_eval.evalset.world import World
from mlflow_adk_eval.results.notebook import MOST, summary_html
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, PlannedCriterion, Tally, Verdict, mean, verdict_of
from mlflow_adk_eval.text import counted

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_adk_eval.config.eval_config import EvalConfig
    from mlflow_adk_eval.evalset.conversation import Conversation, Origin
    from mlflow_adk_eval.evalset.models import EvalSet
    from mlflow_adk_eval.results.repeats import Repeats
    from mlflow_adk_eval.results.sequence import UntilDecided
    from mlflow_adk_eval.results.usage import JudgeUsage

V = TypeVar("V")
Change = Callable[[CaseResult], CaseResult | None]
"""Returns a result as it is to be; ``None``: it is left out."""


class Cases(LazySequence[CaseResult]):
    """The results of case runs, in the order of the eval set and of the runs within a case."""

    memo: dict[Any, Any]
    """What was computed of all cases, as that takes a while."""

    def keys(self) -> Iterator[tuple[str, int]]:
        """Yield the eval id and the run index of each case run."""
        return ((case.eval_id, case.run_index) for case in self)

    @cached_property
    def places(self) -> Mapping[tuple[str, int], int]:
        """The place of each case run, by its eval id and run index."""
        return {key: place for place, key in enumerate(self.keys())}

    @cached_property
    def verdicts(self) -> Sequence[Verdict]:
        """The verdict of each case run."""
        return tuple(case.verdict for case in self)

    @property
    def criteria(self) -> Iterable[str]:
        """The names of the criteria that some case has, each once."""
        return dict.fromkeys(planned.criterion for case in self for planned in case.planned)

    @property
    def run_turns(self) -> Sequence[int]:
        """How many rows of the table each case run has."""
        return [case.rows for case in self]

    def tallies(self) -> Iterator[tuple[str, bool, Sequence[Tally]]]:
        """Yield of each case run its id, whether the agent failed in it, and what each criterion came to."""
        for case in self:
            tallies = [
                Tally(PlannedCriterion(one.criterion, one.threshold, one.greater_is_better), one.score, *one.counts) for one in case.results
            ]
            yield case.eval_id, bool(case.conversation.error), tallies

    def courses(self) -> Iterator[Conversation]:
        """Yield the conversations that a simulated user ended, or in which the tool environment did something."""
        return (case.conversation for case in self if case.conversation.ending or case.conversation.injections)

    def of(self, criterion: str) -> Iterator[tuple[CaseResult, CriterionResult]]:
        """Yield the case runs that have a criterion, each with its result."""
        return ((case, result) for case in self if (result := case.result(criterion)) is not None)

    def changed(self, change: Change) -> Cases:
        """Return the results as they are changed, without those of which nothing is left."""
        return ChangedCases(self, change)

    def loaded(self, place: int) -> CaseResult:
        """Return the result at a place with everything of it in memory."""
        return self.at(place)

    def in_memory(self) -> Cases:
        """Return the results with everything of them in memory."""
        return CasesInMemory(map(self.loaded, range(len(self))))


class CasesInMemory(Cases):
    """Results that are in memory."""

    def __init__(self, cases: Iterable[CaseResult] = ()) -> None:
        """Take the results."""
        self.memo, self._cases = {}, tuple(cases)

    def changed(self, change: Change) -> Cases:
        """Return the results as they are changed, at once."""
        return CasesInMemory(result for case in self if (result := change(case)) is not None)

    def at(self, place: int) -> CaseResult:
        """Return the result at a place."""
        return self._cases[place]

    def __iter__(self) -> Iterator[CaseResult]:
        """Yield the results."""
        return iter(self._cases)

    def __len__(self) -> int:
        """Return the number of results."""
        return len(self._cases)

    def __repr__(self) -> str:
        """Return them as a tuple."""
        return repr(self._cases)


class ChangedCases(Cases):
    """Some results of others, changed when somebody looks at them."""

    def __init__(self, cases: Cases, change: Change) -> None:
        """Take the others, and how each is changed."""
        self.memo, self._cases, self._change = {}, cases, change
        self._places = array("q", (place for place, case in enumerate(cases) if change(case) is not None))

    def at(self, place: int) -> CaseResult:
        """Return the result at a place."""
        result = self._change(self._cases.at(self._places[place]))
        if result is None:
            raise LookupError(place)
        return result

    def __len__(self) -> int:
        """Return the number of results."""
        return len(self._places)


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
    scored: int
    """Case runs with a score."""
    missing: int
    """Case runs that should have a score and have none. The mean and its interval know nothing of them."""
    case_scores: Mapping[str, tuple[float, ...]]
    """The evaluated scores by eval id, one per run."""

    @property
    def planned(self) -> int:
        """Case runs that should have a score."""
        return self.scored + self.missing


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """The outcome of an evaluation: every score, with its reason."""

    eval_set: EvalSet
    config: EvalConfig
    cases: Cases
    """In the order of the eval set, then of the runs. A large run's cases are read from disk when you access them."""
    num_runs: int = 1
    run_id: str | None = None
    """The MLflow run; ``None`` if it was not logged."""
    notes: tuple[str, ...] = ()
    """Notes, such as "3 recorded cases are not in the eval set"."""
    judging: JudgeUsage | None = None
    """The judges' calls and tokens; ``None`` without judges."""
    baseline: str = ""
    """The baseline of pairwise criteria, by its run, file or name; empty if there is none."""
    simulating: JudgeUsage | None = None
    """The user simulators' calls and tokens; ``None`` without simulators."""
    from_ledger: int = 0
    """The number of conversations taken from the ledger when the evaluation was resumed."""
    world: World | None = None
    """What answered the agent's calls, where they were replayed or recorded."""
    until_decided: UntilDecided | None = None
    """How a run went that evaluated only until its policy was decided; ``None``: all cases were to be evaluated."""
    origin: Origin | None = field(default=None, compare=False)
    """Who ran the conversations, and when; ``None`` if unknown."""

    def __post_init__(self) -> None:
        """Take results that are listed."""
        given: Sequence[CaseResult] = self.cases
        if not isinstance(given, Cases):
            object.__setattr__(self, "cases", CasesInMemory(given))

    def __repr__(self) -> str:
        """Return the verdict and the scores; the whole report may be a gigabyte."""
        scores = ", ".join(f"{name}={'not evaluated' if score is None else f'{score:.4g}'}" for name, score in self.scores.items())
        return f"<Report {self.verdict}: {len(self.cases)} case runs of {self.eval_set.eval_set_id!r}; {scores}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict, the criteria and the first reasons."""
        (cases, passed), (first, more) = self.case_counts, self.first_reasons(MOST)
        title = f"{passed:,} of {counted(cases, 'case')} passed in {self.eval_set.eval_set_id} · verdict: {self.verdict}"
        known = (one for one in self.summaries().values() if one.scored or one.threshold is not None)
        return summary_html(title, ("criterion", "mean", "threshold", "pass_rate", "scored", "missing"), known, first, more)

    @cached_property
    def criteria(self) -> tuple[str, ...]:
        """The names of all criteria: in the order of the config, then those that are information."""
        return tuple(self._totals.summaries)

    @cached_property
    def verdict(self) -> Verdict:
        """*failed* if a case missed a threshold, else *undecided* if evidence is missing, else *passed*."""
        return verdict_of(self.verdicts)

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """The verdict of each case run."""
        return self.cases.verdicts

    @property
    def whole(self) -> EvalSet:
        """The eval set, with the cases that were not run."""
        return self.until_decided.whole(self.eval_set) if self.until_decided else self.eval_set

    @property
    def passed(self) -> bool:
        """Whether every case was evaluated on every criterion and reached its threshold."""
        return self.verdict == "passed"

    @property
    def case_counts(self) -> tuple[int, int]:
        """The number of cases, and of cases that passed in every run."""
        return self._totals.cases, self._totals.passed

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Why the report did not pass, one sentence per finding, by case; empty if it passed."""
        return tuple(self._reasons())

    def first_reasons(self, most: int) -> tuple[Sequence[str], int]:
        """Return at most `most` reasons, and the number of further ones."""
        first = tuple(islice(self._reasons(), most))
        return first, self._totals.reasons - len(first) if self.cases else 0

    def _reasons(self) -> Iterator[str]:
        if not self.cases:
            yield "the eval set has no cases, so there is nothing to evaluate"
        unpassed = (place for place, verdict in enumerate(self.verdicts) if verdict != "passed")
        for case in map(self.cases.at, unpassed):
            yield from (f"{self.label(case)}: {reason}" for reason in case.reasons())

    def label(self, case: CaseResult) -> str:
        """Return the name of `case` for messages: its id, and its run if there are several."""
        return case.eval_id if self.num_runs == 1 else f"{case.eval_id} (run {case.run_index + 1})"

    @property
    def scores(self) -> dict[str, float | None]:
        """The mean score of each deciding criterion over the evaluated cases; ``None`` where none was evaluated."""
        return {name: summary.mean for name, summary in self.summaries().items() if summary.threshold is not None}

    def summaries(self) -> dict[str, CriterionSummary]:
        """Return each criterion's totals over the cases that have it, in the order of `criteria`."""
        return dict(self._totals.summaries)

    @cached_property
    def _totals(self) -> _Totals:
        order = tuple(self.config.by_criterion)
        if order not in self.cases.memo:
            self.cases.memo[order] = _totals_of(self.cases, order)
        totals: _Totals = self.cases.memo[order]
        return totals

    @cached_property
    def repeats(self) -> Repeats:
        """Repeated runs: pass^k, flaky cases and the variation of scores."""
        from mlflow_adk_eval.results.repeats import repeats_of  # noqa: PLC0415 - seldom needed

        return repeats_of(self.cases, self.criteria, self.num_runs)

    def to_frame(self, rows: Literal["cases", "invocations", "votes", "repeats", "pooled"] = "cases") -> pd.DataFrame:
        """Return a tidy frame with one row per case run, turn (``invocations``) or vote, and criterion.

        ``repeats``: one row per case over all runs. ``pooled``: one row per case and criterion, whose score is the mean over all turns of all
        runs, as ADK's ``MEAN_OVER_INVOCATIONS`` has it, with the numbers of turns that have a score (``scored``) and of those that have none.

        Raises:
            UsageError: for any other word.
        """
        from mlflow_adk_eval.results.table import frame_of  # noqa: PLC0415 - frames are seldom made

        return frame_of(self.cases, rows, self.repeats if rows == "repeats" else None)


COMPARED_WITH_ITSELF = "self-comparison: the agent's conversations equal the expected ones in every detail, so the scores prove nothing"


def compares_itself(report: Report) -> bool:
    """Whether what the agent did is what the eval set expects, to the last detail, in every case.

    An agent may well do all that is expected, but what it did has a duration besides, or its own events. So this is the eval set in the place
    of a recording, whether it came as a file, an object or a dict.
    """
    pairs = ((tuple(case.actual), tuple(case.expected or ())) for case in report.cases)
    return bool(report.cases) and all(
        expected and (actual == expected or canonical(actual) == canonical(expected)) for actual, expected in pairs
    )


def criteria_of(config: EvalConfig, cases: Cases) -> tuple[str, ...]:
    """Return the names of all criteria that have results: in the order of the config, then those that are information."""
    places = {name: place for place, name in enumerate(config.by_criterion)}
    return tuple(sorted(dict.fromkeys(cases.criteria), key=lambda name: places.get(name, len(places))))


class _Totals(NamedTuple):
    """What all cases come to."""

    summaries: Mapping[str, CriterionSummary]
    reasons: int
    """How many findings stand between the report and a pass."""
    cases: int
    passed: int
    """How many cases passed in each of their runs."""


@dataclass(slots=True)
class _Count:
    """One criterion's totals, as cases are gone through."""

    planned: PlannedCriterion
    deciding: int = 0
    passed: int = 0
    scored: int = 0
    errored: int = 0
    skipped: int = 0
    missing: int = 0
    places: array[int] = field(default_factory=lambda: array("i"))
    """The case of each score."""
    scores: array[float] = field(default_factory=lambda: array("d"))


def _totals_of(cases: Cases, order: Sequence[str]) -> _Totals:
    """Return what all cases come to; `order`: the criteria of the config."""
    counts: dict[str, _Count] = {}
    eval_ids: list[str] = []
    reasons = unpassed = last_unpassed = 0
    for (eval_id, agent_failed, tallies), verdict in zip(cases.tallies(), cases.verdicts, strict=True):
        if not eval_ids or eval_ids[-1] != eval_id:
            eval_ids.append(eval_id)
        if verdict != "passed" and last_unpassed != len(eval_ids):
            unpassed, last_unpassed = unpassed + 1, len(eval_ids)
        decided = False
        for tally in tallies:
            planned, score, scored, errored, skipped = tally
            count = counts.get(planned.criterion)
            if count is None:
                count = counts[planned.criterion] = _Count(planned)
            if planned.threshold is not None:
                if not count.deciding:
                    count.planned = planned
                decided = True
                count.deciding += 1
                count.passed += tally.passed
            count.scored += scored
            count.errored += errored
            count.skipped += skipped
            if score is None:
                count.missing += planned.threshold is not None or errored > 0
            else:
                count.places.append(len(eval_ids) - 1)
                count.scores.append(score)
        reasons += agent_failed + (not decided)
    places = {name: place for place, name in enumerate(order)}
    summaries = {
        name: CriterionSummary(
            criterion=name,
            threshold=count.planned.threshold,
            greater_is_better=count.planned.greater_is_better,
            mean=mean(count.scores) if count.scores else None,
            pass_rate=count.passed / count.deciding if count.deciding else None,
            evaluated=count.scored,
            errored=count.errored,
            skipped=count.skipped,
            scored=len(count.scores),
            missing=count.missing,
            case_scores=CaseScores(eval_ids, count.places, count.scores),
        )
        for name, count in sorted(counts.items(), key=lambda item: places.get(item[0], len(places)))
    }
    reasons += sum(count.deciding - count.passed for count in counts.values())
    return _Totals(summaries, reasons, len(eval_ids), len(eval_ids) - unpassed)


class ByCase(Mapping[str, V]):
    """Something of each case, by eval id, read when it is asked for: only where it is, and what was read last, is in memory."""

    def __init__(self, eval_ids: Iterable[str], read: Callable[[range], V]) -> None:
        """Take of which case each thing is, those of a case one after the other, and what reads the things of a case by their places."""
        self._read, self._firsts, self._counts = read, dict[str, int](), dict[str, int]()
        self._last: tuple[str, V] | None = None
        for place, eval_id in enumerate(eval_ids):
            if self._firsts.setdefault(eval_id, place) != place:
                self._counts[eval_id] = self._counts.get(eval_id, 1) + 1

    def count(self, eval_id: str) -> int:
        """Return how many things there are of a case."""
        return self._counts.get(eval_id, int(eval_id in self._firsts))

    def __getitem__(self, eval_id: str) -> V:
        """Return what there is of a case."""
        if self._last is None or self._last[0] != eval_id:
            first = self._firsts[eval_id]
            self._last = eval_id, self._read(range(first, first + self.count(eval_id)))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        """Yield the ids."""
        return iter(self._firsts)

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self._firsts)


class CaseScores(Mapping[str, tuple[float, ...]]):
    """The scores of the cases that were evaluated, by eval id: columns, as a dict of a million tuples takes hundreds of megabytes."""

    def __init__(self, eval_ids: Sequence[str], places: Sequence[int], scores: Sequence[float]) -> None:
        """Take the ids of all cases, and for each score, case by case, the place of its case and the score."""
        self._eval_ids, self._places, self.scores = eval_ids, places, scores
        self._index: dict[str, slice] | None = None

    def __getitem__(self, eval_id: str) -> tuple[float, ...]:
        """Return the scores of a case, one per run."""
        if self._index is None:
            self._index = dict(self.slices())
        return tuple(self.scores[self._index[eval_id]])

    def __iter__(self) -> Iterator[str]:
        """Yield the ids."""
        return (eval_id for eval_id, _ in self.slices())

    def __len__(self) -> int:
        """Return the number of cases."""
        return sum(1 for _ in self.slices())

    def items(self) -> ItemsView[str, tuple[float, ...]]:
        """Return the ids with their scores."""
        return _Items(self)

    def values(self) -> ValuesView[tuple[float, ...]]:
        """Return the scores."""
        return _Values(self)

    def __repr__(self) -> str:
        """Return it as a dict."""
        return repr(dict(self.items()))

    def slices(self) -> Iterator[tuple[str, slice]]:
        """Yield each id, and where its scores are."""
        start = 0
        for end in range(1, len(self._places) + 1):
            if end == len(self._places) or self._places[end] != self._places[start]:
                yield self._eval_ids[self._places[start]], slice(start, end)
                start = end


def scores_by_case(by_case: Iterable[tuple[str, Iterable[float]]]) -> CaseScores:
    """Return the scores of cases, case by case, as columns."""
    eval_ids: list[str] = []
    places, scores = array("i"), array("d")
    for eval_id, values in by_case:
        eval_ids.append(eval_id)
        for value in values:
            places.append(len(eval_ids) - 1)
            scores.append(value)
    return CaseScores(eval_ids, places, scores)


def scaled(by_case: Mapping[str, Sequence[float]], change: Callable[[float], float]) -> CaseScores:
    """Return scores as they are changed."""
    return scores_by_case((eval_id, map(change, values)) for eval_id, values in by_case.items())


class _Items(ItemsView[str, tuple[float, ...]]):
    """Without looking each id up."""

    _mapping: CaseScores

    def __iter__(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        return ((eval_id, tuple(self._mapping.scores[runs])) for eval_id, runs in self._mapping.slices())


class _Values(ValuesView[tuple[float, ...]]):
    """Without looking each id up."""

    _mapping: CaseScores

    def __iter__(self) -> Iterator[tuple[float, ...]]:
        return (tuple(self._mapping.scores[runs]) for _, runs in self._mapping.slices())
