"""What the judges of a run decided, cell by cell and rubric by rubric, from evidence that can be believed.

The gate's `examine` reads the run. Each cell, and each rubric of a cell, becomes a `Unit` that people may have labelled, with what the judges
said of it: the verdict, the reason and how unanimous they were. `calibrate` holds labels against these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mlflow_adk_eval.analysis.calibration.calibration import outcomes_of
from mlflow_adk_eval.analysis.calibration.labels import JudgeDecision, Unit, Units
from mlflow_adk_eval.config.criteria import CriterionSettings, JudgedSettings, RubricSettings
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.criteria.rubrics import TRAJECTORY, rubrics_of_conversation, rubrics_of_turn, turns_of
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.gating.evidence.documents import Documents, Rows
from mlflow_adk_eval.gating.evidence.examine import ExaminedRun, ReadableRun, examine
from mlflow_adk_eval.gating.evidence.integrity import Evidence, state_problems
from mlflow_adk_eval.judge.voting import early_verdict
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, Vote, mean, reason_of
from mlflow_adk_eval.results.stored import chosen

_WORTH = {"yes": 1.0, "no": 0.0}
_LONGEST_SAYING = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """A run, and what its judges decided."""

    evidence: Evidence
    documents: Documents
    cases: Sequence[CaseResult]
    units: Units
    rows: Rows
    """What was said and done on each turn, by case run."""


def judged_run(evidence: Evidence, run: ExaminedRun | None = None) -> JudgedRun:
    """Return what the judges of a run decided; `run`: its evidence, where that is examined already.

    Raises:
        UsageError: if the run holds no finished evaluation.
        TrackingError: if its evidence cannot be believed.
    """
    if state := state_problems(evidence):
        raise UsageError(f"run {evidence.run_id} cannot be calibrated: {state[0]}")
    run = run or examine(evidence)
    if run.problems or not isinstance(run, ReadableRun):
        raise TrackingError(f"run {evidence.run_id} cannot be believed: {run.problems[0]}")
    cases = chosen(run.report.cases, _in_order)
    return JudgedRun(
        evidence=evidence, documents=run.documents, cases=cases, units=_units(evidence.run_id, run.documents, cases), rows=run.rows
    )


def _in_order(case: CaseResult) -> CaseResult:
    """Return a case with its votes in the order in which they were cast."""
    ordered = (replace(one, votes=tuple(sorted(one.votes, key=lambda vote: vote.vote_index))) for one in case.results)
    return replace(case, results=tuple(ordered))


def _units(run_id: str, documents: Documents, cases: Iterable[CaseResult]) -> Units:
    expected = iter(documents.eval_set.eval_cases)  # in the order of the results
    case: EvalCase | None = None
    judged: dict[Unit, JudgeDecision] = {}
    aliases: dict[Unit, Unit] = {}
    for found in cases:
        while case is None or case.eval_id != found.eval_id:
            case = next(expected)
        for result in found.results:
            if result.decides:
                about = _About(run_id, documents.config, case, found.run_index, result)
                units = dict((*_of_criterion(about), *_of_rubrics(about)))
                single = _single(units)
                aliases |= single
                judged |= {unit: verdict for unit, verdict in units.items() if unit not in single}
    return Units(judged, aliases)


def _single(units: Iterable[Unit]) -> dict[Unit, Unit]:
    """Return what whole cases with a single cell are called, each with that cell."""
    cells: dict[str | None, list[Unit]] = {}
    for unit in units:
        if unit.invocation_index is not None:
            cells.setdefault(unit.rubric_id, []).append(unit)
    return {replace(found[0], invocation_index=None): found[0] for found in cells.values() if len(found) == 1}


@dataclass(frozen=True, slots=True)
class _About:
    """A criterion's result on one case run, and where it belongs."""

    run_id: str
    config: EvalConfig
    case: EvalCase
    run_index: int
    result: CriterionResult

    @property
    def settings(self) -> CriterionSettings:
        """What the config says of the criterion in this case."""
        return self.config.criteria_of(self.case.eval_id)[self.result.criterion]

    def unit(self, index: int | None, rubric_id: str | None = None) -> Unit:
        """Return a turn or, without one, the case."""
        return Unit(
            run_id=self.run_id,
            eval_id=self.case.eval_id,
            run_index=self.run_index,
            invocation_index=index,
            criterion=self.result.criterion,
            rubric_id=rubric_id,
        )

    def votes(self, index: int | None) -> list[Vote]:
        """Return the votes on a turn; there are none on a case with several."""
        return [vote for vote in self.result.votes if vote.invocation_index == index]


def _of_criterion(about: _About) -> Iterator[tuple[Unit, JudgeDecision]]:
    """Yield each turn and the case as a whole."""
    result = about.result
    for index, outcome in (outcomes_of(result, "turn") | outcomes_of(result, "case")).items():
        yield (
            about.unit(index),
            JudgeDecision(
                passed=result.reached(outcome),
                said=_said(outcome),
                certainty=_unanimity(about.votes(index)),
                threshold=result.threshold,
                greater_is_better=result.greater_is_better,
                bounds=about.config.bounds(result.criterion),
                score=outcome.score if isinstance(outcome, Scored) else None,
                judged=isinstance(about.settings, JudgedSettings),
            ),
        )


def _said(outcome: Outcome) -> str:
    return _short(f"score {outcome.score:.4g}; {outcome.rationale}" if isinstance(outcome, Scored) else reason_of(outcome))


def _short(text: str) -> str:
    """Return a text as one line, and not a long one."""
    return cut(" ".join(text.encode("utf-8", "replace").decode().split()).removesuffix(";"), _LONGEST_SAYING)


def _unanimity(votes: Iterable[Vote]) -> float:
    """Return the share of the votes for what most of them say, on average over what was voted on; 1 where nobody had to be asked."""
    items: dict[str | None, Counter[str]] = {}
    for vote in votes:
        if vote.verdict is not None:
            items.setdefault(vote.rubric_id, Counter())[vote.verdict] += 1
    return mean(max(found.values()) / found.total() for found in items.values()) if items else 1.0


def _of_rubrics(about: _About) -> Iterator[tuple[Unit, JudgeDecision]]:
    """Yield each rubric of each turn, and of the case as a whole where that has a single cell."""
    settings = about.settings
    if not isinstance(settings, RubricSettings):
        return
    for index, outcome in outcomes_of(about.result, "turn").items():
        votes, scored = about.votes(index), isinstance(outcome, Scored)
        for rubric_id in dict.fromkeys((*_rubrics(about, settings, index or 0), *(vote.rubric_id for vote in votes))):
            if rubric_id is not None:
                cast = [vote for vote in votes if vote.rubric_id == rubric_id and vote.verdict in _WORTH]
                unasked = JudgeDecision(passed=False, said="no judge was asked")  # of an answer that says nothing: it satisfies no rubric
                # With a score, all rubrics have their verdicts, so that the votes not cast could not have changed them.
                of = len(cast) if scored and cast else settings.judge_model_options.num_samples
                yield about.unit(index, rubric_id), unasked if scored and not votes else _rubric(cast, of)


def _rubrics(about: _About, settings: RubricSettings, index: int) -> Iterable[str]:
    name, case, turns = about.result.criterion, about.case, turns_of(about.case.conversation)
    if name == TRAJECTORY:
        return rubrics_of_conversation(name, settings, case, turns).texts
    return rubrics_of_turn(name, settings, case, *(turns[index] if index < len(turns) else ())).texts


def _rubric(votes: Sequence[Vote], of: int) -> JudgeDecision:
    """Return what so many votes came to."""
    worths = [_WORTH[vote.verdict or ""] for vote in votes[:of]]
    won = early_verdict(worths, of=of, lowest=0.0, highest=1.0)
    said = [vote.explanation for vote, worth in zip(votes, worths, strict=False) if worth == won]
    return JudgeDecision(passed=None if won is None else bool(won), said=_short(said[0]) if said else "", certainty=_unanimity(votes[:of]))
