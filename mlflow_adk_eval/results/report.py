"""What an evaluation found: the report.

The runner, the gate and the recordings all end in a `Report`: the eval set and config that were asked for, and a `CaseResult` for each
case run. Nothing else is stored. Verdict, reasons, scores, summaries, repeated runs and frames are computed from the cases on demand,
so a report that was read back from a run says exactly what it said when it was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Scored, Skipped, Verdict, mean, verdict_of

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
        return criteria_of(self.config, self.cases)

    @property
    def verdict(self) -> Verdict:
        """*failed* if a case missed a threshold, else *undecided* if evidence is missing, else *passed*."""
        return verdict_of(case.verdict for case in self.cases)

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
    found = dict.fromkeys(result.criterion for case in cases for result in case.results)
    configured = dict.fromkeys(name for criteria in (config.criteria, *config.case_criteria.values()) for name in criteria)
    return (*(name for name in configured if name in found), *(name for name in found if name not in configured))


def _summary(results: Sequence[tuple[str, CriterionResult]]) -> CriterionSummary:
    deciding = [result for _, result in results if result.decides]
    first = deciding[0] if deciding else results[0][1]
    cells = Counter(type(cell) for _, result in results for cell in result.per_invocation)
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
        evaluated=cells[Scored],
        errored=cells[Errored],
        skipped=cells[Skipped],
        case_scores=scores,
    )
