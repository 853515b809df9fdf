"""A run's evidence, read and held against itself: what its table comes to, and every reason not to believe it."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_adk_eval.gating.evidence.artifacts import Documents, read_documents
from mlflow_adk_eval.gating.evidence.integrity import Evidence, integrity_problems, state_problems
from mlflow_adk_eval.gating.evidence.table_cells import read_cases
from mlflow_adk_eval.gating.evidence.table_rows import Rows
from mlflow_adk_eval.gating.evidence.votes import read_votes, voteless, with_votes
from mlflow_adk_eval.gating.logged import contradictions
from mlflow_adk_eval.results.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a run has to say."""

    evidence: Evidence
    documents: Documents
    report: Report
    """What its table comes to, computed anew, with the judges' votes."""
    rows: Rows
    """What its table says, by case run."""
    doubts: tuple[str, ...]
    """Why it is no evidence all the same; empty where it is."""


def examine(evidence: Evidence) -> Examined | tuple[str, ...]:
    """Return what a run's evidence comes to, or why nothing can be made of it."""
    state, integrity = state_problems(evidence), integrity_problems(evidence)
    if integrity:
        return (*state, *integrity)
    documents, mismatches = read_documents(evidence)
    if documents is None:
        return (*state, *mismatches)
    reading = read_cases(documents)
    if reading.problems:
        return (*state, *mismatches, *reading.problems)
    votes, unreadable = read_votes(evidence, documents)
    cases = with_votes(reading.cases, votes)
    report = Report(eval_set=documents.eval_set, config=documents.config, cases=cases, num_runs=documents.num_runs)
    unsupported = unreadable or voteless(documents, cases, votes)
    doubts = (*state, *mismatches, *contradictions(evidence, report), *unsupported)
    return Examined(evidence=evidence, documents=documents, report=report, rows=reading.rows, doubts=doubts)
