"""What became of each cell and each case: the words that everything above this module speaks.

A *cell* is case × run × invocation × criterion. Each planned cell ends in exactly one `Outcome`: `Scored`, `Skipped` or `Errored`.
There is no number that stands for "no score", so a lost judge can neither pass a case nor drag a mean down.

A criterion returns a `Judged` for a case; the runner makes a `CriterionResult` of it, with the threshold, and collects those in a
`CaseResult`. A case *passed* if every criterion with a threshold was evaluated and reached it, *failed* if one missed its threshold,
and is *undecided* otherwise. `verdict_of` puts many such verdicts together, in that order of precedence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from mlflow_adk_eval.evalset.conversation import REPLAYED
from mlflow_adk_eval.evalset.models import LazySequence
from mlflow_adk_eval.text import format_number

if TYPE_CHECKING:
    from mlflow_adk_eval.evalset.conversation import Conversation, Ending, Injection
    from mlflow_adk_eval.evalset.models import Invocation

T = TypeVar("T")
K = TypeVar("K")

Status = Literal["scored", "skipped", "errored"]
Verdict = Literal["passed", "failed", "undecided"]
VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "undecided")
WORST_FIRST: tuple[Verdict, ...] = ("failed", "undecided", "passed")
"""In the order in which pages list cases."""
AT_TURN = r"turn \d+: "
"""How the error of a conversation begins that names its turn, as a pattern."""

TOLERANCE = 1e-9
"""How far below a threshold a mean may lie and still reach it: three turns of 0.7 reach 0.7."""
_MAX_NAMED = 5
_NO_DETAILS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Scored:
    """The criterion applied and gave a finite score."""

    score: float
    rationale: str = ""
    """Why, in Markdown for people."""
    details: Mapping[str, Any] = field(default_factory=lambda: _NO_DETAILS)
    """Further numbers and findings, JSON-compatible."""

    def __post_init__(self) -> None:
        """Refuse a score that is no number."""
        if not math.isfinite(self.score):
            raise ValueError(f"a score must be a finite number, not {self.score!r}")


@dataclass(frozen=True, slots=True)
class Skipped:
    """The criterion does not apply here. It counts neither as zero nor as a pass."""

    reason: str


@dataclass(frozen=True, slots=True)
class Errored:
    """The criterion applies but has no score. It counts neither as zero nor as a pass."""

    error: str


Outcome = Scored | Skipped | Errored


def status_of(outcome: Outcome) -> Status:
    """Return the word that tables use for `outcome`."""
    return "scored" if isinstance(outcome, Scored) else "skipped" if isinstance(outcome, Skipped) else "errored"


def reason_of(outcome: Outcome) -> str:
    """Return why `outcome` has no score; empty where it has one."""
    if isinstance(outcome, Scored):
        return ""
    return outcome.reason if isinstance(outcome, Skipped) else outcome.error


def explanation_of(outcome: Outcome | None) -> str:
    """Return why a cell has its score, or why it has none; empty where nothing was planned."""
    if outcome is None:
        return ""
    return outcome.rationale if isinstance(outcome, Scored) else reason_of(outcome)


def mean(values: Iterable[float]) -> float:
    """Return the mean of at least one value, summed without rounding in between.

    >>> mean([0.1] * 10), sum([0.1] * 10) / 10
    (0.1, 0.09999999999999999)
    """
    listed = list(values)
    return math.fsum(listed) / len(listed)


def grouped(values: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return values by what they belong to, in their order.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups: dict[K, list[T]] = {}
    for key, value in values:
        groups.setdefault(key, []).append(value)
    return groups


def reaches(score: float, threshold: float, *, greater_is_better: bool = True) -> bool:
    """Whether `score` is at least as good as `threshold`.

    >>> reaches(0.7 - 1e-12, 0.7), reaches(0.69, 0.7), reaches(120, 100, greater_is_better=False)
    (True, False, False)
    """
    return score + TOLERANCE >= threshold if greater_is_better else score - TOLERANCE <= threshold


def verdict_of(verdicts: Iterable[Verdict], *, missing: int = 0) -> Verdict:
    """Return *failed* if a case missed a threshold, else *undecided* if evidence is missing, else *passed*.

    Args:
        verdicts: those of the cases.
        missing: how many cases have no verdict at all.

    >>> verdict_of(["passed", "undecided", "failed"]), verdict_of([]), verdict_of(["passed"], missing=1)
    ('failed', 'undecided', 'undecided')
    """
    kinds = set(verdicts)
    return "failed" if "failed" in kinds else "passed" if kinds == {"passed"} and not missing else "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One answer of a judge."""

    eval_id: str
    run_index: int
    invocation_index: int
    criterion: str
    rubric_id: str | None
    vote_index: int
    verdict: str | None
    explanation: str
    model: str
    """The model version that answered; without an answer, the one that was asked."""
    latency_s: float
    """The duration of the answer, in seconds."""
    input_tokens: int | None
    """The answer's cost; if it covers several items, stored with the first."""
    output_tokens: int | None
    error: str
    """Why there is no verdict; empty if there is one."""
    raw: str = ""
    """The judge's text, if it is unusable."""
    reused: bool = False
    """Whether the answer was reused from the ledger or from an identical question of this evaluation."""
    host: str = ""
    """The host that answered, with its port; ``this process`` for functions and objects in Python; empty: unknown."""
    asked_in: str = ""
    """The id of the evaluation that asked, if it is another one; ``unknown`` if the ledger does not say; empty: this one."""
    asked_at: str = ""
    """When it was asked, in UTC, such as ``2027-01-31T12:00:00Z``; empty: unknown."""
    value: float | None = None
    """The value of the verdict as a score; ``None`` without one."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a criterion found in one case: an outcome per planned cell."""

    per_invocation: tuple[Outcome | None, ...]
    """By invocation; ``None`` where no cell was planned, as before the last turn of a whole-case criterion."""
    overall: Outcome | None = None
    """Set only by criteria whose case score is not the mean of the cells, which is what ``None`` asks for."""
    votes: tuple[Vote, ...] = ()


class CellCounts(NamedTuple):
    """How many cells have which outcome."""

    scored: int
    errored: int
    skipped: int


class PlannedCriterion(NamedTuple):
    """A criterion as a case has it, whatever came of it."""

    criterion: str
    threshold: float | None
    greater_is_better: bool

    @property
    def decides(self) -> bool:
        """Whether the case needs this criterion to pass."""
        return self.threshold is not None


class Tally(NamedTuple):
    """What a criterion came to on one case run, in numbers."""

    planned: PlannedCriterion
    score: float | None
    scored: int
    errored: int
    skipped: int

    @property
    def passed(self) -> bool:
        """Whether there is a threshold, and a score that reaches it."""
        threshold = self.planned.threshold
        if threshold is None or self.score is None:
            return False
        return reaches(self.score, threshold, greater_is_better=self.planned.greater_is_better)


class Stored(LazySequence[T]):
    """A sequence that is read when somebody looks into it."""

    def __init__(self, length: int | None, read: Callable[[], Sequence[T]]) -> None:
        """Take the length, if it is known without reading, and what reads the items."""
        self._length, self._read = length, read

    def __len__(self) -> int:
        """Return the length, without reading where it is known."""
        return len(self._read()) if self._length is None else self._length

    def at(self, place: int) -> T:
        """Return an item."""
        return self._read()[place]

    def __iter__(self) -> Iterator[T]:
        """Yield the items."""
        return iter(self._read())

    def __repr__(self) -> str:
        """Return the length; the items may be on disk."""
        return f"<{len(self)} stored>"


class StoredCells(Stored["Outcome | None"]):
    """Cells that are read when somebody looks at them, and how many there are of which outcome."""

    def __init__(self, length: int, read: Callable[[], Sequence[Outcome | None]], counts: CellCounts) -> None:
        """Take what reads the cells, and what is known without reading."""
        super().__init__(length, read)
        self.counts = counts


@dataclass(frozen=True, slots=True)
class CriterionResult:
    """One criterion on one case in one run."""

    criterion: str
    threshold: float | None
    """The minimum (or, if lower is better, maximum) to pass; ``None``: information only."""
    greater_is_better: bool
    overall: Outcome
    per_invocation: Sequence[Outcome | None]
    votes: Sequence[Vote] = ()

    @property
    def counts(self) -> CellCounts:
        """The number of planned scores by outcome."""
        if isinstance(self.per_invocation, StoredCells):
            return self.per_invocation.counts
        kinds = [type(cell) for cell in self.per_invocation]
        return CellCounts(kinds.count(Scored), kinds.count(Errored), kinds.count(Skipped))

    @property
    def decides(self) -> bool:
        """Whether the case needs this criterion to pass."""
        return self.threshold is not None

    def reached(self, outcome: Outcome | None) -> bool | None:
        """Whether `outcome` reaches the threshold; ``None`` without a score or threshold."""
        if self.threshold is None or not isinstance(outcome, Scored):
            return None
        return reaches(outcome.score, self.threshold, greater_is_better=self.greater_is_better)

    @property
    def passed(self) -> bool | None:
        """Whether the case score reaches the threshold; ``None`` if unknown."""
        return self.reached(self.overall)

    @property
    def score(self) -> float | None:
        """The case score."""
        return self.overall.score if isinstance(self.overall, Scored) else None

    @property
    def missed(self) -> str:
        """The sentence for a score that missed the threshold."""
        relation = "below" if self.greater_is_better else "above"
        return f"{self.criterion} is {format_number(self.score, unlike=self.threshold)}, {relation} its threshold {self.threshold:g}"


def case_outcome(cells: Sequence[Outcome | None]) -> Outcome:
    """Return the outcome of a case: the mean of its cells, if every planned one was scored.

    >>> case_outcome([Scored(1.0), None, Scored(0.0)]).score
    0.5
    >>> case_outcome([Scored(1.0), Errored("judge down")]).error
    'invocation 2 of 2: judge down'
    """
    planned = [cell for cell in cells if cell is not None]
    if not planned:
        return Errored("no turn was evaluated")
    scores = [cell.score for cell in planned if isinstance(cell, Scored)]
    if len(scores) == len(planned):
        return Scored(mean(scores))
    missing = [(index, cell) for index, cell in enumerate(cells) if cell is not None and not isinstance(cell, Scored)]
    reasons = "; ".join(f"invocation {index + 1} of {len(cells)}: {reason_of(cell)}" for index, cell in missing[:_MAX_NAMED])
    if len(missing) > _MAX_NAMED:
        reasons += f"; and {len(missing) - _MAX_NAMED} more"
    skipped = len(missing) == len(planned) and all(isinstance(cell, Skipped) for _, cell in missing)
    return Skipped(reasons) if skipped else Errored(reasons)


class StoredResults(LazySequence[CriterionResult]):
    """The results of a case run, each made when somebody looks at it."""

    def __init__(self, planned: tuple[PlannedCriterion, ...], verdict: Verdict, result_at: Callable[[int], CriterionResult]) -> None:
        """Take the criteria that they are of and what they come to, which is known without reading, and what makes one of them."""
        self.planned, self._result_at = planned, result_at
        self.verdict: Verdict = verdict

    def __len__(self) -> int:
        """Return the number of criteria."""
        return len(self.planned)

    def at(self, place: int) -> CriterionResult:
        """Return a result without making the others."""
        return self._result_at(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case in one run: the agent's conversation and each criterion's result."""

    eval_id: str
    run_index: int
    conversation: Conversation
    expected: Sequence[Invocation] | None
    """The expected turns; ``None`` for a scenario."""
    results: Sequence[CriterionResult]

    @property
    def actual(self) -> Sequence[Invocation]:
        """The agent's turns."""
        return self.conversation.actual

    @property
    def error(self) -> str:
        """Why the agent did not finish this case; empty if it did."""
        return self.conversation.error

    @property
    def session_state(self) -> Mapping[str, Any] | None:
        """The session state after the last turn, if the agent reports one."""
        return self.conversation.session_state

    @property
    def ending(self) -> Ending | None:
        """Why the simulated user ended the conversation; ``None`` for written turns."""
        return self.conversation.ending

    @property
    def injections(self) -> tuple[Injection, ...]:
        """The tool calls that the tool environment answered or delayed."""
        return tuple(injection for injection in self.conversation.injections if injection.kind not in REPLAYED)

    @property
    def turns(self) -> int:
        """The number of turns that were planned or happened."""
        return max(len(self.conversation.actual), len(self.expected or ()))

    @property
    def rows(self) -> int:
        """The number of rows in the table: one for each turn, and one of a case without turns."""
        turns = len(self.conversation.actual), len(self.expected or ())
        return max(1, *turns, *(len(result.per_invocation) for result in self.results))

    @property
    def planned(self) -> Sequence[PlannedCriterion | CriterionResult]:
        """Its criteria, whether or not they have a score."""
        return self.results.planned if isinstance(self.results, StoredResults) else self.results

    def result(self, criterion: str) -> CriterionResult | None:
        """Return the result of a criterion; ``None`` if the case does not have it."""
        place = next((place for place, planned in enumerate(self.planned) if planned.criterion == criterion), None)
        return None if place is None else self.results[place]

    @property
    def verdict(self) -> Verdict:
        """*passed* only if every deciding criterion was evaluated and reached its threshold."""
        if isinstance(self.results, StoredResults):
            return self.results.verdict
        deciding = [result for result in self.results if result.decides]
        if any(result.passed is False for result in deciding):
            return "failed"
        if self.conversation.error or not deciding or any(result.passed is None for result in deciding):
            return "undecided"
        return "passed"

    def reasons(self) -> tuple[str, ...]:
        """Return why this case did not pass, as sentences."""
        error = self.conversation.error
        reasons = [f"the agent did not finish: {error}"] if error else []
        if not any(planned.decides for planned in self.planned):
            reasons.append("no criterion decides this case")
        for result in self.results:
            if not result.decides or result.passed:
                continue
            scored = isinstance(result.overall, Scored)
            reasons.append(result.missed if scored else f"{result.criterion} was not evaluated: {reason_of(result.overall)}")
        return tuple(reasons)
