"""Running an evaluation: the agent on every case, every criterion on what it did. The one place with concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from mlflow_adk_eval.agents import Agent, Played, Recording, load_recording
from mlflow_adk_eval.agents.recording import Recorded
from mlflow_adk_eval.config import EvalConfig
from mlflow_adk_eval.criteria import CaseRun, Plan, Planned, apply, plan
from mlflow_adk_eval.criteria.base import failed, result_of
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.outcome import CaseResult, CriterionResult, Report

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called with the number of finished case runs and of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the runner works."""

    num_runs: int = 1
    """How often the agent has each conversation."""
    concurrency: int = 4
    """How many conversations are had at the same time."""
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Refuse numbers below one."""
        for name in ("num_runs", "concurrency"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                msg = f"{name}={value!r}: wanted a whole number of at least 1"
                raise UsageError(msg)


async def arun(eval_set: EvalSet, agent: Agent, config: EvalConfig, options: Options | None = None) -> Report:
    """Have every conversation of `eval_set` with `agent`, judge it by `config` and return the report.

    Raises:
        ConfigError: before the agent is called, if a criterion cannot be applied.
    """
    chosen = options or Options()
    planned = plan(config, eval_set)
    recording = agent if isinstance(agent, Recording) else None
    num_runs = max(chosen.num_runs, recording.num_runs) if recording else chosen.num_runs
    jobs = [(case, run_index) for case in eval_set.eval_cases for run_index in range(num_runs)]
    results: list[CaseResult | None] = [None] * len(jobs)
    finished = 0

    async def work(index: int) -> None:
        nonlocal finished
        case, run_index = jobs[index]
        played = recording.recall(case, run_index) if recording else await agent.play(case, run_index)
        results[index] = await judge_case(case, run_index, played, planned)
        finished += 1
        if chosen.progress:
            chosen.progress(finished, len(jobs))

    with no_collection():
        await _each(work, len(jobs), limit=1 if recording else chosen.concurrency)
    return Report(
        eval_set=eval_set,
        config=config,
        cases=tuple(result for result in results if result is not None),
        num_runs=num_runs,
        notes=_notes(recording, eval_set),
    )


async def _each(work: Callable[[int], Awaitable[None]], count: int, *, limit: int) -> None:
    """Do `work` on each index, in order, at most `limit` at the same time."""
    indexes = iter(range(count))

    async def worker() -> None:
        for index in indexes:
            await work(index)

    if limit == 1:
        await worker()
        return
    async with anyio.create_task_group() as group:
        for _ in range(min(limit, count)):
            group.start_soon(worker)


def _notes(recording: Recording | None, eval_set: EvalSet) -> tuple[str, ...]:
    extra = sorted(set(recording.runs) - set(eval_set.eval_ids)) if recording else []
    return (f"{len(extra)} recorded cases are not in the eval set: {', '.join(extra[:5])}",) if extra else ()


async def judge_case(case: EvalCase, run_index: int, played: Played, planned: Plan) -> CaseResult:
    """Return what the criteria of a case make of what the agent did."""
    run = CaseRun(case=case, run_index=run_index, actual=played.actual, session_state=played.session_state, error=played.error)
    results = [await _result(criterion, run) for criterion in planned.of(case.eval_id)]
    return CaseResult(
        eval_id=case.eval_id,
        run_index=run_index,
        actual=run.actual,
        expected=run.expected,
        results=tuple(results),
        error=run.error,
        session_state=run.session_state,
    )


async def _result(planned: Planned, run: CaseRun) -> CriterionResult:
    if not run.actual:
        reason = f"the agent did not finish: {run.error}" if run.error else "there is no actual invocation"
        return result_of(planned, run, failed(run, reason))
    return await apply(planned, run)


def run(eval_set: EvalSet, agent: Agent, config: EvalConfig, options: Options | None = None) -> Report:
    """Do what `arun` does, from ordinary code."""
    return wait(lambda: arun(eval_set, agent, config, options))


def score(eval_set: EvalSetSource, actual: Recorded, config: ConfigSource = None, judge: Any = None) -> Report:
    """Return the report on recorded conversations, without an agent and without MLflow.

    Args:
        eval_set: what is expected: an eval set, its path, a selection ``path:eval_1,eval_2`` or a folder of tests.
        actual: what the agent did: an eval set whose invocations are that, ADK's result file, a path of either, or a dict
            of invocations by eval id.
        config: the criteria; ``None``: the ``test_config.json`` beside the eval set, else ADK's defaults.
        judge: reserved for criteria that a model decides; no criterion of this version asks one.

    Raises:
        InputError: with every problem of a file.
    """
    refuse_judge(judge)
    loaded, chosen = load_inputs(eval_set, config)
    return run(loaded, load_recording(actual), chosen)


def refuse_judge(judge: Any) -> None:
    """Refuse a judge, which no criterion would ask.

    Raises:
        UsageError: if there is one.
    """
    if judge is not None:
        raise UsageError("judge: no criterion of this version asks a model")


def wait(start: Callable[[], Awaitable[T]]) -> T:
    """Return what an asynchronous function returns, also where an event loop is running, as in a notebook."""

    async def main() -> T:
        return await start()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(main)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, main).result()
