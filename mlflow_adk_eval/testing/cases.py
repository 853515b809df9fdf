"""The cases of a session of tests: which there are, and what came of them, for callers that want each result as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner import CaseExecutor, Evaluation, ExecutedCase
from mlflow_adk_eval.testing.sources import EvalFile

JobKey = tuple[Path, str, int]


@dataclass(frozen=True, slots=True)
class Job:
    """One conversation to have and to judge."""

    file: EvalFile
    case: EvalCase
    run_index: int

    @property
    def key(self) -> JobKey:
        """What tells it from all others."""
        return self.file.path, self.case.eval_id, self.run_index


def jobs_of(files: Iterable[EvalFile], num_runs: int) -> list[Job]:
    """Return every run of every case, in order."""
    return [Job(file, case, run_index) for file in files for case in file.eval_set.eval_cases for run_index in range(num_runs)]


class Cases:
    """Executes cases of several files with one executor; each file is an evaluation of its own, planned when it is first needed."""

    def __init__(self, executor: CaseExecutor) -> None:
        """Start with nothing planned."""
        self.executor = executor
        self._evaluations: dict[Path, Evaluation] = {}

    def evaluation(self, file: EvalFile) -> Evaluation:
        """Return the evaluation of a file's cases; see `Evaluation` for what it raises."""
        if file.path not in self._evaluations:
            self._evaluations[file.path] = Evaluation(file.eval_set, file.config, self.executor)
        return self._evaluations[file.path]

    @property
    def usage(self) -> JudgeUsage | None:
        """What the judges took so far; ``None`` where no criterion asks one."""
        return self.executor.judges.usage()

    @property
    def simulating(self) -> JudgeUsage | None:
        """What the model that plays users took so far; ``None`` where none does."""
        return self.executor.judges.simulating()

    async def execute(self, job: Job) -> ExecutedCase:
        """Have a conversation, once there is room for it, and judge it."""
        return await self.evaluation(job.file).execute_case(job.case, job.run_index)


def renamed(result: CaseResult, eval_id: str) -> CaseResult:
    """Return the result of a case that has another id in a merged set."""
    if result.eval_id == eval_id:
        return result
    results = tuple(replace(found, votes=tuple(replace(vote, eval_id=eval_id) for vote in found.votes)) for found in result.results)
    return replace(result, eval_id=eval_id, results=results)
