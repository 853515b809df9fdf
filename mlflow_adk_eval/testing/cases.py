"""Having and judging single conversations, for callers that want each result as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from mlflow_adk_eval.agents import Agent
from mlflow_adk_eval.agents.setup import UserSource, conversation_setups
from mlflow_adk_eval.criteria.plan import Plan, plan
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.judge.session import JudgeSession, JudgeSetup
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner import Player, judge_case
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


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of a job."""

    result: CaseResult
    seconds: float
    """How long it took, without what it waited for its turn."""


def jobs_of(files: Iterable[EvalFile], num_runs: int) -> list[Job]:
    """Return every run of every case, in order."""
    return [Job(file, case, run_index) for file in files for case in file.eval_set.eval_cases for run_index in range(num_runs)]


class Cases:
    """Has and judges conversations of several eval sets, with one agent and one set of judges. It lives inside one event loop."""

    def __init__(self, agent: Agent, setup: JudgeSetup, *, concurrency: int = 4, user_simulator: UserSource = None) -> None:
        """Begin with nothing planned.

        Args:
            agent: who has the conversations.
            setup: who judges them.
            concurrency: how many conversations are had at the same time.
            user_simulator: who plays the user of scenarios; ``None``: the model that the config names.

        Raises:
            UsageError: if `concurrency` is no number above zero.
        """
        if concurrency < 1:
            raise UsageError(f"concurrency={concurrency!r}: wanted a whole number of at least 1")
        self._agent = agent
        self._setup = setup
        self._judging = JudgeSession(setup)
        self._concurrency = concurrency
        self._speakers: anyio.CapacityLimiter | None = None
        self._user_simulator = user_simulator
        self._plans: dict[Path, Plan] = {}
        self._players: dict[Path, Player] = {}

    def plan(self, file: EvalFile) -> Plan:
        """Return the criteria of a file's cases.

        Raises:
            ConfigError: naming each criterion that cannot be applied to a case.
            JudgeError: if a judge cannot be had.
        """
        if file.path not in self._plans:
            self._plans[file.path] = plan(file.config, file.eval_set, self._judging)
            staging = conversation_setups(file.config, file.eval_set, self._agent, self._judging, self._user_simulator)
            self._players[file.path] = Player(self._agent, staging)
        return self._plans[file.path]

    @property
    def limit(self) -> int:
        """How many jobs are worth starting at the same time: while the judges of one think, the agent goes on with others."""
        return max(self._concurrency, self._setup.options.max_concurrency) if self._judging.asked else self._concurrency

    @property
    def usage(self) -> JudgeUsage | None:
        """What the judges took so far; ``None`` where no criterion asks one."""
        return self._judging.usage()

    @property
    def simulating(self) -> JudgeUsage | None:
        """What the model that plays users took so far; ``None`` where none does."""
        return self._judging.simulating()

    async def finish(self, job: Job) -> Finished:
        """Have a conversation, once there is room for it, and judge it."""
        planned = self.plan(job.file)
        if self._speakers is None:
            self._speakers = anyio.CapacityLimiter(self._concurrency)
        async with self._speakers:
            started = time.perf_counter()
            played = await self._players[job.file.path].play(job.case, job.run_index)
        result = await judge_case(job.case, job.run_index, played, planned)
        return Finished(result, time.perf_counter() - started)

    async def aclose(self) -> None:
        """Give back the connections of the judges."""
        await self._judging.aclose()


def renamed(result: CaseResult, eval_id: str) -> CaseResult:
    """Return the result of a case that has another id in a merged set."""
    if result.eval_id == eval_id:
        return result
    results = tuple(replace(found, votes=tuple(replace(vote, eval_id=eval_id) for vote in found.votes)) for found in result.results)
    return replace(result, eval_id=eval_id, results=results)
