"""Whether judges stand behind the scores that only judges can give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mlflow_adk_eval.config.eval_config import CriterionSettings, JudgedSettings
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.gating.evidence.artifacts import Documents
from mlflow_adk_eval.gating.evidence.integrity import FOLDER, VOTES, Evidence, few
from mlflow_adk_eval.gating.evidence.table_rows import place
from mlflow_adk_eval.results.report import (
    TOLERANCE,
    CaseResult,
    CriterionResult,
    Scored,
    Vote,
)
from mlflow_adk_eval.results.votes import judged_criteria, parse_votes

_FIRST_TURN_COMPARED = "per_turn_user_simulator_quality_v1"
"""The criterion whose first turn is compared with the starting prompt, without a judge."""

Cells = frozenset[tuple[str, int, int, str]]
"""Cells by case, run, turn and criterion."""


def read_votes(evidence: Evidence, documents: Documents) -> tuple[tuple[Vote, ...], list[str]]:
    """Return the votes of a run, none where no judge decides, and why they cannot be read."""
    judged = judged_criteria(documents.config)
    if not judged:
        return (), []
    content = evidence.artifacts.get(VOTES)
    if content is None:
        return (), [f"the run has no {FOLDER}/{VOTES}, though judges decide {', '.join(judged)}"]
    try:
        return parse_votes(content, f"{FOLDER}/{VOTES}"), []
    except InputError as error:
        return (), [f"{error.source} cannot be read: {error.problems[0]}"]


def with_votes(cases: Iterable[CaseResult], votes: Iterable[Vote]) -> tuple[CaseResult, ...]:
    """Return the cases with the votes on each result."""
    found: dict[tuple[str, int, str], list[Vote]] = {}
    for vote in votes:
        found.setdefault((vote.eval_id, vote.run_index, vote.criterion), []).append(vote)
    return tuple(replace(case, results=tuple(_voted(case, result, found) for result in case.results)) for case in cases)


def _voted(case: CaseResult, result: CriterionResult, votes: Mapping[tuple[str, int, str], Sequence[Vote]]) -> CriterionResult:
    cast = votes.get((case.eval_id, case.run_index, result.criterion))
    return replace(result, votes=tuple(cast)) if cast else result


def voteless(documents: Documents, cases: Iterable[CaseResult], votes: Iterable[Vote]) -> list[str]:
    """Return the scores of judged criteria that no vote speaks for. The worst score needs none: no judge is asked about an empty answer."""
    cast = frozenset((vote.eval_id, vote.run_index, vote.invocation_index, vote.criterion) for vote in votes if vote.verdict is not None)
    return few(_voteless(documents, cases, cast))


def _voteless(documents: Documents, cases: Iterable[CaseResult], cast: Cells) -> Iterator[str]:
    for case in cases:
        criteria = documents.config.criteria_of(case.eval_id)
        for result in case.results:
            for index, cell in enumerate(result.per_invocation):
                asked = isinstance(cell, Scored) and _asked(result.criterion, criteria.get(result.criterion), index, cell.score)
                if asked and (case.eval_id, case.run_index, index, result.criterion) not in cast:
                    where = place(documents, case.eval_id, case.run_index, index)
                    yield f"{where}: {result.criterion} has a score, but {FOLDER}/{VOTES} has no vote for it"


def _asked(criterion: str, settings: CriterionSettings | None, index: int, score: float) -> bool:
    """Whether a score can only come from a judge."""
    if not isinstance(settings, JudgedSettings) or (criterion == _FIRST_TURN_COMPARED and index == 0):
        return False
    return score > settings.bounds[0] + TOLERANCE
