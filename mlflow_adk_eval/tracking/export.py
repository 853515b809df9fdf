"""What a run holds as files that others read: the eval set and the result as ADK has them, or rows of cases with what was recorded.

A small run has the first two among its artifacts. A large one has only its parts, from which they are made here when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Literal

from mlflow_adk_eval.agents.protocol import Conversation
from mlflow_adk_eval.agents.recordings import recorded_run
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.evalset.conversation import RecordedRun, outcome_of
from mlflow_adk_eval.evalset.conversion import write_cases
from mlflow_adk_eval.evalset.result import dumps_result
from mlflow_adk_eval.evalset.rows import CaseRow, CasesInMemory
from mlflow_adk_eval.gating.evidence.examine import ReadableRun, examine
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.stored import StoredCases
from mlflow_adk_eval.tracking.bundle import SELF_COMPARISON
from mlflow_adk_eval.writing import whole_file

_KIND = "adk_eval.evidence"
What = Literal["eval_set", "result", "rows"]


def export(run_id: str, what: What, path: str | Path, *, tracking_uri: str | None = None) -> int:
    """Write what a run holds into a file, and return how many case runs, or cases of an eval set, that are.

    Args:
        run_id: the run.
        what: ``eval_set``: the cases; ``result``: ADK's result file; ``rows``: JSON Lines or Parquet of the cases with what the agent did.
        path: the file. Its ending says in which form an eval set or rows are written. It is overwritten if it exists.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if there is no such run, it holds no evaluation, or the file cannot be written.
        TrackingError: if MLflow cannot be reached, or the run's evidence cannot be believed.
    """
    report, agent, started = _evaluated(run_id, tracking_uri)
    if what == "eval_set":
        return write_cases(CasesInMemory(report.eval_set), path)
    if what == "rows":
        return write_cases(_Rows(report), path)
    with whole_file(path) as stream:
        stream.write(dumps_result(result_of(report, app_name=agent, created=started)).encode())
    return len(report.cases)


def _evaluated(run_id: str, tracking_uri: str | None) -> tuple[Report, str, float]:
    with store_at(tracking_uri) as store:
        evidence = store.evidence(run_id)
    if evidence.manifest is None:
        raise UsageError(f"run {run_id} holds no finished evaluation, so that there is nothing to export")
    if evidence.params.get(_KIND) == SELF_COMPARISON:  # no evidence for the gate, but all of its cases are there
        params = {name: value for name, value in evidence.params.items() if name != _KIND}
        evidence = replace(evidence, tags={**evidence.tags, "adk_eval.status": "complete"}, params=params)
    run = examine(evidence)
    if run.problems or not isinstance(run, ReadableRun):
        raise TrackingError(f"run {run_id}: {run.problems[0]}, so it cannot be exported")
    cases = run.report.cases
    whole = replace(run.report, cases=tuple(cases.whole())) if isinstance(cases, StoredCases) else run.report
    return whole, evidence.tags.get("adk_eval.agent_version", "") or "agent", (evidence.start_time or 0) / 1000


@dataclass(frozen=True, slots=True)
class _Rows:
    """The cases of a report with what the agent did, as a source of rows."""

    report: Report

    @property
    def source(self) -> str:
        """What messages call it."""
        return self.report.eval_set.eval_set_id

    @property
    def eval_set_id(self) -> str:
        """The id of the eval set."""
        return self.report.eval_set.eval_set_id

    @property
    def head(self) -> EvalSet:
        """The eval set without its cases."""
        return self.report.eval_set.model_copy(update={"eval_cases": ()})

    @property
    def num_cases(self) -> int:
        """How many cases there are."""
        return len(self.report.eval_set.eval_cases)

    def batches(self, size: int = 100) -> Iterator[Sequence[CaseRow]]:
        """Yield all rows from the start, in order, at most `size` at a time."""
        runs = (list(found) for _, found in groupby(self.report.cases, key=lambda case: case.eval_id))
        batch: list[CaseRow] = []
        for case, results in zip(self.report.eval_set.eval_cases, runs, strict=True):
            batch.append(CaseRow(case, tuple(map(_recorded, results))))
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch


def _recorded(result: CaseResult) -> RecordedRun:
    return recorded_run(Conversation(actual=tuple(result.actual), session_state=result.session_state, **outcome_of(result)))
