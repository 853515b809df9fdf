"""What an evaluation found: outcomes of cells, results of cases, the report and the decision.

A *cell* is case × run × invocation × criterion. Each planned cell ends in exactly one `Outcome`;
there is no number that stands for "no score".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_adk_eval.agents import Recording
    from mlflow_adk_eval.config.eval_config import EvalConfig
    from mlflow_adk_eval.evalset import EvalSet, Invocation
    from mlflow_adk_eval.results.conversation import Ending, Injection, Origin
    from mlflow_adk_eval.results.repeats import Repeats
    from mlflow_adk_eval.results.usage import JudgeUsage

Status = Literal["scored", "skipped", "errored"]
Verdict = Literal["passed", "failed", "undecided"]

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
            msg = f"a score must be a finite number, not {self.score!r}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Skipped:
    """The criterion does not apply to this cell. Not a zero, and not a pass."""

    reason: str


@dataclass(frozen=True, slots=True)
class Errored:
    """The criterion applies but could give no score. Not a zero, and not a pass."""

    error: str


Outcome = Scored | Skipped | Errored


def status_of(outcome: Outcome) -> Status:
    """Return the word that tables use for `outcome`."""
    match outcome:
        case Scored():
            return "scored"
        case Skipped():
            return "skipped"
        case Errored():
            return "errored"


def reason_of(outcome: Outcome) -> str:
    """Return why `outcome` has no score; empty where it has one."""
    match outcome:
        case Scored():
            return ""
        case Skipped(reason):
            return reason
        case Errored(error):
            return error


def mean(values: Iterable[float]) -> float:
    """Return the mean of at least one value, summed without rounding in between.

    >>> mean([0.1] * 10), sum([0.1] * 10) / 10
    (0.1, 0.09999999999999999)
    """
    listed = list(values)
    return math.fsum(listed) / len(listed)


def reaches(score: float, threshold: float, *, greater_is_better: bool = True) -> bool:
    """Whether `score` is at least as good as `threshold`.

    >>> reaches(0.7 - 1e-12, 0.7), reaches(0.69, 0.7), reaches(120, 100, greater_is_better=False)
    (True, False, False)
    """
    return score + TOLERANCE >= threshold if greater_is_better else score - TOLERANCE <= threshold


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
    """The version that answered; where none did, the one that was asked."""
    latency_s: float
    """How long the answer took, in seconds."""
    input_tokens: int | None
    """What the answer cost; of an answer on several items, recorded with the first."""
    output_tokens: int | None
    error: str
    """Why there is no verdict; empty where there is one."""
    raw: str = ""
    """What the judge wrote, where it cannot be used."""
    reused: bool = False
    """Whether the answer was paid for earlier."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a criterion found in one case: an outcome per planned cell."""

    per_invocation: tuple[Outcome | None, ...]
    """By invocation; ``None`` where no cell was planned, as before the last turn of a whole-case criterion."""
    overall: Outcome | None = None
    """Set only by criteria whose case score is not the mean of the cells, which is what ``None`` asks for."""
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class CriterionResult:
    """One criterion on one case in one run."""

    criterion: str
    threshold: float | None
    """The least (or, where lower is better, the most) that passes; ``None``: informational."""
    greater_is_better: bool
    overall: Outcome
    per_invocation: tuple[Outcome | None, ...]
    votes: tuple[Vote, ...] = ()

    @property
    def decides(self) -> bool:
        """Whether the case needs this criterion to pass."""
        return self.threshold is not None

    def reached(self, outcome: Outcome | None) -> bool | None:
        """Whether `outcome` reaches the threshold; ``None`` where there is no score or no threshold."""
        if self.threshold is None or not isinstance(outcome, Scored):
            return None
        return reaches(outcome.score, self.threshold, greater_is_better=self.greater_is_better)

    @property
    def passed(self) -> bool | None:
        """Whether the case score reaches the threshold; ``None`` where it cannot be said."""
        return self.reached(self.overall)

    @property
    def score(self) -> float | None:
        """The case score."""
        return self.overall.score if isinstance(self.overall, Scored) else None


def case_outcome(cells: Sequence[Outcome | None]) -> Outcome:
    """Return the outcome of a case: the mean of its cells, if every planned one was scored.

    >>> case_outcome([Scored(1.0), None, Scored(0.0)]).score
    0.5
    >>> case_outcome([Scored(1.0), Errored("judge down")]).error
    'invocation 2 of 2: judge down'
    """
    planned = [(index, cell) for index, cell in enumerate(cells) if cell is not None]
    if not planned:
        return Errored("no invocation was evaluated")
    missing = [(index, cell) for index, cell in planned if not isinstance(cell, Scored)]
    if not missing:
        return Scored(mean(cell.score for _, cell in planned if isinstance(cell, Scored)))
    reasons = "; ".join(f"invocation {index + 1} of {len(cells)}: {reason_of(cell)}" for index, cell in missing[:_MAX_NAMED])
    if len(missing) > _MAX_NAMED:
        reasons += f"; and {len(missing) - _MAX_NAMED} more"
    skipped = len(missing) == len(planned) and all(isinstance(cell, Skipped) for _, cell in missing)
    return Skipped(reasons) if skipped else Errored(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case in one run: what the agent did, and what each criterion made of it."""

    eval_id: str
    run_index: int
    actual: tuple[Invocation, ...]
    expected: tuple[Invocation, ...] | None
    results: tuple[CriterionResult, ...]
    error: str = ""
    """Why the agent did not finish this case; empty where it did."""
    unfinished: bool = False
    """Whether the last actual turn is the one in which the agent failed."""
    session_state: Mapping[str, Any] | None = None
    """The state of the session after the last turn, where the agent reports one."""
    ending: Ending | None = None
    """Why the simulated user ended the conversation; ``None`` where its turns were written."""
    injections: tuple[Injection, ...] = ()
    """The tool calls that the tool environment answered or delayed."""

    @property
    def turns(self) -> int:
        """The number of invocations that were planned or happened."""
        return max(len(self.actual), len(self.expected or ()))

    @property
    def verdict(self) -> Verdict:
        """*passed* only if every deciding criterion was evaluated and reached its threshold."""
        deciding = [result for result in self.results if result.decides]
        if any(result.passed is False for result in deciding):
            return "failed"
        if self.error or not deciding or any(result.passed is None for result in deciding):
            return "undecided"
        return "passed"

    def reasons(self) -> tuple[str, ...]:
        """Return what stands between this case and a pass, as sentences."""
        found = [f"the agent did not finish: {self.error}"] if self.error else []
        if not any(result.decides for result in self.results):
            found.append("no criterion decides this case")
        for result in self.results:
            if not result.decides or result.passed:
                continue
            if isinstance(result.overall, Scored):
                relation = "below" if result.greater_is_better else "above"
                found.append(f"{result.criterion} is {result.overall.score:.4g}, {relation} its threshold {result.threshold:.4g}")
            else:
                found.append(f"{result.criterion} was not evaluated: {reason_of(result.overall)}")
        return tuple(found)


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """The outcome of an evaluation: every cell, with its reason."""

    eval_set: EvalSet
    config: EvalConfig
    cases: tuple[CaseResult, ...]
    """In the order of the eval set, and of the runs within a case."""
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
    origin: Origin | None = field(default=None, compare=False)
    """Who had the conversations, and when; ``None`` where it is not known."""

    def __repr__(self) -> str:
        """Return the verdict and the scores; the whole report may be a gigabyte."""
        scores = ", ".join(f"{name}={'not evaluated' if score is None else f'{score:.4g}'}" for name, score in self.scores.items())
        return f"<Report {self.verdict}: {len(self.cases)} case runs of {self.eval_set.eval_set_id!r}; {scores}>"

    @property
    def criteria(self) -> tuple[str, ...]:
        """The names of all criteria: in the order of the config, then those that are information."""
        found = dict.fromkeys(result.criterion for case in self.cases for result in case.results)
        configured = dict.fromkeys(name for criteria in (self.config.criteria, *self.config.case_criteria.values()) for name in criteria)
        return (*(name for name in configured if name in found), *(name for name in found if name not in configured))

    @property
    def verdict(self) -> Verdict:
        """*failed* if a case missed a threshold, else *undecided* if evidence is missing, else *passed*."""
        verdicts = {case.verdict for case in self.cases}
        if "failed" in verdicts:
            return "failed"
        return "passed" if verdicts == {"passed"} else "undecided"

    @property
    def passed(self) -> bool:
        """Whether every case was evaluated on every criterion and reached its threshold."""
        return self.verdict == "passed"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the report did not pass, one sentence per finding, by case; empty where it passed."""
        if not self.cases:
            return ("the eval set has no cases, so there is no evidence",)
        return tuple(f"{self.label(case)}: {reason}" for case in self.cases for reason in case.reasons())

    def label(self, case: CaseResult) -> str:
        """Return how messages call `case`: its id, and its run where there are several."""
        return case.eval_id if self.num_runs == 1 else f"{case.eval_id} (run {case.run_index + 1})"

    @property
    def scores(self) -> dict[str, float | None]:
        """The mean score of each deciding criterion over the evaluated cases; ``None`` where none was evaluated."""
        return {name: summary.mean for name, summary in self.summaries().items() if summary.threshold is not None}

    def summaries(self) -> dict[str, CriterionSummary]:
        """Return each criterion's totals over the cases that have it, in the order of `criteria`."""
        found: dict[str, list[tuple[str, CriterionResult]]] = {name: [] for name in self.criteria}
        for case in self.cases:
            for result in case.results:
                found[result.criterion].append((case.eval_id, result))
        return {name: _summary(results) for name, results in found.items()}

    @property
    def repeats(self) -> Repeats:
        """What the runs of each case come to: pass^k, which cases are flaky, how far scores vary."""
        from mlflow_adk_eval.results.repeats import repeats_of  # noqa: PLC0415 - they are made of reports

        return repeats_of(self)

    def recording(self) -> Recording:
        """Return what the agent did, to be scored again without it, or to be saved with `save_recording`."""
        from mlflow_adk_eval.agents.recordings.save import recording_of_report  # noqa: PLC0415 - recordings are made of reports, and seldom

        return recording_of_report(self)

    def to_frame(self, rows: Literal["cases", "invocations", "votes", "repeats"] = "cases") -> pd.DataFrame:
        """Return a tidy frame with one row per case, per invocation or per vote, and criterion; ``repeats``: per case, of all its runs.

        Raises:
            UsageError: for any other word.
        """
        from mlflow_adk_eval.results.frames import frame_of  # noqa: PLC0415 - frames are made of reports, and seldom

        return frame_of(self, rows)


def _summary(results: Sequence[tuple[str, CriterionResult]]) -> CriterionSummary:
    deciding = [result for _, result in results if result.decides]
    first = deciding[0] if deciding else results[0][1]
    cells = [cell for _, result in results for cell in result.per_invocation if cell is not None]
    scores: dict[str, tuple[float, ...]] = {}
    for eval_id, result in results:
        if isinstance(result.overall, Scored):
            scores[eval_id] = (*scores.get(eval_id, ()), result.overall.score)
    return CriterionSummary(
        criterion=first.criterion,
        threshold=first.threshold,
        greater_is_better=first.greater_is_better,
        mean=mean(score for runs in scores.values() for score in runs) if scores else None,
        pass_rate=sum(result.passed is True for result in deciding) / len(deciding) if deciding else None,
        evaluated=sum(isinstance(cell, Scored) for cell in cells),
        errored=sum(isinstance(cell, Errored) for cell in cells),
        skipped=sum(isinstance(cell, Skipped) for cell in cells),
        case_scores=scores,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one demand of a policy came to, with its numbers; ``None`` where there is no such number."""

    measure: str
    """A criterion, or another measure such as ``case_pass_rate``."""
    slice: str = ""
    """The name of the slice; empty for all cases."""
    demand: str
    """Such as ``min 0.8`` or ``max_drop 0.02``."""
    verdict: Verdict
    reason: str
    """A sentence with the numbers."""
    cases: int
    """How many cases it rests on."""
    value: float | None = None
    low: float | None = None
    """The confidence interval of the value; in a comparison that of the difference, each end of which holds with the confidence."""
    high: float | None = None
    baseline: float | None = None
    """The baseline's value over the same cases."""
    difference: float | None = None
    """The value less the baseline's."""
    p_value: float | None = None
    """Of the hypothesis that it is no worse than the baseline, adjusted for the number of comparisons."""
    needed: int | None = None
    """How many cases would decide it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the gate decided about a run, with the numbers it decided on."""

    verdict: Verdict
    reasons: tuple[str, ...]
    """Sentences with numbers; for a pass, what was checked."""
    run_id: str
    evidence_sha256: str
    """The hash of the run's manifest, and so of every artifact the decision rests on; empty where there is none."""
    policy_sha256: str
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """The case mean of each criterion, recomputed from the run's table."""
    decided_at: str = ""
    """ISO 8601, UTC."""
    decided_by: str = ""
    """Who asked, as ``user@host`` or the CI job."""
    checks: tuple[Check, ...] = ()
    """What each demand of the policy came to."""
    waived: tuple[str, ...] = ()
    """The waivers that were used, as sentences."""
    notes: tuple[str, ...] = ()
    """What the reader should know besides, such as that there was no champion to compare with."""
    baseline_run_id: str = ""
    """The run that it was compared with; empty where there was none."""
    baseline_sha256: str = ""
    """The hash of that run's manifest."""

    @property
    def passed(self) -> bool:
        """Whether the promotion may go ahead."""
        return self.verdict == "passed"
