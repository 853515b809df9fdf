"""Running an evaluation: the agent on every case, every criterion on what it did. The one place with concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio

from mlflow_adk_eval.agents import Agent, Conversation, Limits, LiveAgent, Recording, load_recording
from mlflow_adk_eval.agents.conversation import converse, described
from mlflow_adk_eval.agents.protocol import ConversationSetups
from mlflow_adk_eval.agents.recordings.recording import Recorded
from mlflow_adk_eval.agents.recordings.save import NOT_HAD, changed_cases, on, save_recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.setup import UserSource, conversation_setups
from mlflow_adk_eval.agents.tool_environment import notes
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.criteria.criterion import CaseRun, Planned, apply, failed, result_of
from mlflow_adk_eval.criteria.plan import Plan, plan, refuse_duplicates
from mlflow_adk_eval.criteria.rubrics import unused_rubrics
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.parse import no_collection, no_rescanning
from mlflow_adk_eval.judge import JudgeOptions
from mlflow_adk_eval.judge.session import (
    BudgetSource,
    JudgeSession,
    JudgeSetup,
    JudgeSource,
    judge_setup,
)
from mlflow_adk_eval.ledger import LedgerSource, opened
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runtime import each, gathered

T = TypeVar("T")

_MAX_NAMED = 5

Progress = Callable[[int, int], None]
"""Called with the number of finished case runs and of all."""


class ConversationStore(Protocol):
    """Conversations that were had earlier in this evaluation, before it was interrupted."""

    def get(self, case: EvalCase, run_index: int, /) -> Conversation | None:
        """Return what came of a conversation, if it is known."""
        ...

    def keep(self, case: EvalCase, run_index: int, played: Conversation, /) -> None:
        """Keep a conversation, before anything else is done with it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the runner works."""

    num_runs: int = 1
    """How often the agent has each conversation."""
    concurrency: int = 4
    """How many conversations are had at the same time."""
    progress: Progress | None = None
    judges: JudgeSetup = field(default_factory=JudgeSetup)
    plays: ConversationStore | None = None
    """Where conversations are kept; ``None``: nowhere."""
    user_simulator: UserSource = None
    """Who plays the user of scenarios; ``None``: the model that the config names."""
    baseline: Recording | None = None
    """What pairwise criteria compare with."""

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
        UsageError: before the agent is called, if the eval set holds an id twice.
        ConfigError: before the agent is called, if a criterion cannot be applied.
    """
    chosen = options or Options()
    began = datetime.now(UTC).isoformat(timespec="seconds")
    judging = JudgeSession(chosen.judges)
    planned = plan(config, eval_set, judging)
    require_baseline(planned, chosen.baseline)
    staging = conversation_setups(config, eval_set, agent, judging, chosen.user_simulator)
    recording = agent if isinstance(agent, Recording) else None
    num_runs = max(chosen.num_runs, recording.num_runs(eval_set.eval_ids) if recording else 1)
    jobs = [(case, run_index) for case in eval_set.eval_cases for run_index in range(num_runs)]
    try:
        cases = await _results(jobs, Player(agent, staging, chosen.plays), planned, chosen)
    finally:
        await judging.aclose()
    return Report(
        eval_set=eval_set,
        config=config,
        cases=cases,
        num_runs=num_runs,
        notes=(*_notes(recording, eval_set), *_on_rubrics(config, eval_set), *(notes(config, cases) if staging else ())),
        judging=judging.usage(),
        simulating=judging.simulating(),
        baseline=chosen.baseline.name if chosen.baseline and planned.pairwise else "",
        origin=recording.origin if recording else Origin(agent=agent.name, recorded_at=began),
    )


async def _results(jobs: Sequence[tuple[EvalCase, int]], player: Player, planned: Plan, options: Options) -> tuple[CaseResult, ...]:
    """Return the result of each job, in the order of the jobs."""
    results: dict[int, CaseResult] = {}
    speakers = anyio.CapacityLimiter(options.concurrency)

    async def work(index: int) -> None:
        case, run_index = jobs[index]
        async with speakers:
            played = await player.remembered(case, run_index)
        results[index] = await judge_case(case, run_index, played, planned, options.baseline)
        if options.progress:
            options.progress(len(results), len(jobs))

    # While the judges of one case think, the agent goes on with others.
    limit = max(options.concurrency, options.judges.options.max_concurrency) if planned.judged else options.concurrency
    # A live agent or a judge's client may leave cyclic garbage for hours; computing scores of recordings leaves next to none.
    with no_collection() if isinstance(player.agent, Recording) and not planned.judged else no_rescanning():
        await each(work, len(jobs), limit=limit)
    return tuple(results[index] for index in range(len(jobs)))


@dataclass(frozen=True, slots=True)
class Player:
    """Has conversations with an agent."""

    agent: Agent
    staging: ConversationSetups | None = None
    """How those of a live agent are set up; ``None``: their turns are written."""
    plays: ConversationStore | None = None

    async def remembered(self, case: EvalCase, run_index: int) -> Conversation:
        """Return the conversation that is known from before, or have it and keep it. What failed is not kept."""
        known = self.plays.get(case, run_index) if self.plays else None
        if known is not None:
            return known
        played = await self.play(case, run_index)
        if self.plays and not played.error:
            self.plays.keep(case, run_index, played)
        return played

    async def play(self, case: EvalCase, run_index: int) -> Conversation:
        """Return what came of the conversation; if it has another number of turns than the case, that is its error."""
        try:
            played = await self._had(case, run_index)
        except Exception as error:  # noqa: BLE001 - an agent may be anybody's object, and must not cost the other cases
            return Conversation(actual=(), error=described(error))
        wanted = None if case.conversation is None else len(case.conversation)
        if played.error or wanted is None or len(played.actual) == wanted:
            return played
        took_place = "1 turn" if len(played.actual) == 1 else f"{len(played.actual)} turns"
        return replace(played, error=f"{took_place} took place, and the case asks for {wanted}")

    async def _had(self, case: EvalCase, run_index: int) -> Conversation:
        if self.staging and isinstance(self.agent, LiveAgent):
            return await converse(self.agent, case, run_index, self.staging.scene(case, run_index))
        return await self.agent.play(case, run_index)


def _notes(recording: Recording | None, eval_set: EvalSet) -> Iterator[str]:
    """Say where a recording is not of these cases."""
    if recording is None:
        return
    extra = sorted(set(recording.runs) - set(eval_set.eval_ids))
    if extra:
        yield f"{len(extra)} recorded {'case is' if len(extra) == 1 else 'cases are'} not in the eval set: {_few(extra)}"
    changed = changed_cases(recording.origin, eval_set.eval_cases) if recording.origin else []
    if changed:
        yield f"{len(changed)} {'case has' if len(changed) == 1 else 'cases have'} been changed since the recording: {_few(changed)}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")


def _on_rubrics(config: EvalConfig, eval_set: EvalSet) -> tuple[str, ...]:
    """Say which rubrics of the eval set nobody judges by, as they are easily mistaken for rubrics that count."""
    unused = [note for case in eval_set.eval_cases for note in unused_rubrics(config.criteria_of(case.eval_id), case)]
    return (*unused[:_MAX_NAMED], f"and {len(unused) - _MAX_NAMED} more rubrics") if len(unused) > _MAX_NAMED else tuple(unused)


def require_baseline(planned: Plan, baseline: Recording | None) -> None:
    """Refuse a plan with criteria that compare with a baseline where there is none.

    Raises:
        UsageError: naming them.
    """
    if planned.pairwise and baseline is None:
        raise UsageError(f"{', '.join(planned.pairwise)}: wanted a baseline to compare with, given as baseline=")


async def judge_case(case: EvalCase, run_index: int, played: Conversation, planned: Plan, baseline: Recording | None = None) -> CaseResult:
    """Return what the criteria of a case make of what the agent did."""
    run = run_of(case, run_index, played, baseline)
    criteria = planned.of(case.eval_id)
    if any(criterion.judged for criterion in criteria):
        results = await gathered(partial(judged_by, criterion, run) for criterion in criteria)
    else:
        results = [await judged_by(criterion, run) for criterion in criteria]
    return CaseResult(
        eval_id=case.eval_id,
        run_index=run_index,
        actual=run.actual,
        expected=run.expected,
        results=tuple(results),
        error=run.error,
        unfinished=run.unfinished,
        session_state=run.session_state,
        ending=played.ending,
        injections=played.injections,
    )


def run_of(case: EvalCase, run_index: int, played: Conversation, baseline: Recording | None = None) -> CaseRun:
    """Return a case after the agent ran, as criteria look at it; a baseline of fewer runs is compared with again and again."""
    runs = baseline.runs.get(case.eval_id, ()) if baseline else ()
    return CaseRun(
        case=case,
        run_index=run_index,
        actual=played.actual,
        session_state=played.session_state,
        error=played.error,
        unfinished=played.unfinished,
        ending=played.ending,
        baseline=runs[run_index % len(runs)].actual if runs else None,
    )


async def judged_by(planned: Planned, run: CaseRun) -> CriterionResult:
    """Return what one criterion makes of a case."""
    if not run.actual:
        return result_of(planned, run, failed(run, "there is no actual invocation"))
    return await apply(planned, run)


def run(eval_set: EvalSet, agent: Agent, config: EvalConfig, options: Options | None = None) -> Report:
    """Do what `arun` does, from ordinary code."""
    return wait(lambda: arun(eval_set, agent, config, options))


def score(  # noqa: PLR0913 - one function is the whole of it
    eval_set: EvalSetSource,
    actual: Recorded,
    config: ConfigSource = None,
    judge: JudgeSource = None,
    *,
    judge_options: JudgeOptions | None = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
    progress: Progress | None = None,
    baseline: Recorded | None = None,
) -> Report:
    """Return the report on recorded conversations, without an agent and without MLflow.

    Args:
        eval_set: what is expected: an eval set, its path, a selection ``path:eval_1,eval_2`` or a folder of tests.
        actual: what the agent did: an eval set whose invocations are that, ADK's result file, a path of either, or a dict
            of invocations by eval id.
        config: the criteria; ``None``: the ``test_config.json`` beside the eval set, else ADK's defaults.
        judge: who judges, instead of the models that the config names: a model's name or a callable.
        judge_options: how judges are asked.
        budget: how much may be spent on them: a `Budget`, or a dict with ``max_calls`` and ``max_tokens``.
        ledger: the file that keeps what judges answered, so that nothing is paid for twice; ``None``: as
            ``ADK_EVAL_LEDGER`` says, else ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again where a judge's kept answer cannot be read.
        progress: called with the number of finished case runs and of all.
        baseline: what pairwise criteria compare with: a recording, as `actual`.

    Raises:
        InputError: with every problem of a file.
        JudgeError: if a judge cannot be had.
    """
    loaded, chosen = load_inputs(eval_set, config)
    recording = load_recording(actual)
    setup = judge_setup(judge, judge_options, budget, rejudge_failed=rejudge_failed)
    beside = None if baseline is None else load_recording(baseline)
    with opened(ledger) as kept:
        report = run(loaded, recording, chosen, Options(judges=replace(setup, answers=kept), progress=progress, baseline=beside))
        return replace(report, notes=(*report.notes, kept.trouble)) if kept and kept.trouble else report


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


def record(  # noqa: PLR0913 - one function is the whole of it
    eval_set: EvalSetSource,
    agent: Any,
    config: ConfigSource = None,
    *,
    num_runs: int = 1,
    agent_name: str | None = None,
    agent_version: str = "",
    concurrency: int = 4,
    case_timeout_s: float | None = None,
    turn_timeout_s: float | None = None,
    user_simulator: UserSource = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    progress: Progress | None = None,
    save_to: str | Path | None = None,
) -> Recording:
    """Have every conversation of an eval set with an agent and return what it did. Nothing is judged, and no MLflow is needed.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files or several paths.
        agent: a module with a ``root_agent``, an ADK agent or a callable.
        config: how users are simulated, and which tools are answered for; ``None``: the ``test_config.json`` beside the eval set. Its
            criteria do not matter here.
        num_runs: how often the agent has each conversation.
        agent_name: the sub-agent to speak with instead of the root agent.
        agent_version: what the recording is to say of the agent's version.
        concurrency: how many conversations are had at the same time.
        case_timeout_s: how long one case may take, in seconds; ``None``: as long as it takes.
        turn_timeout_s: how long the agent may take to answer one message, in seconds; ``None``: as long as it takes.
        user_simulator: who plays the user of conversation scenarios; as of `evaluate`.
        budget: how much may be spent on a model that plays users: a `Budget`, or a dict with ``max_calls`` and ``max_tokens``.
        ledger: the file that keeps what such a model said; as of `evaluate`.
        progress: called with the number of finished conversations and of all.
        save_to: a file for the recording. If this is interrupted, it gets whatever was recorded by then.

    Raises:
        UsageError: for arguments that make no sense; its kind `InputError` names every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if the model that is to play the user cannot be had.
    """
    loaded, chosen = load_inputs(eval_set, config)
    limits = Limits(case_s=case_timeout_s, turn_s=turn_timeout_s)
    speaker = resolve_agent(agent, agent_name=agent_name, limits=limits, eval_set=loaded)
    with opened(ledger) as kept:
        options = Options(
            num_runs=num_runs,
            concurrency=concurrency,
            progress=progress,
            judges=replace(judge_setup(None, None, budget), answers=kept),
            user_simulator=user_simulator,
        )
        tape = Tape(loaded, speaker, chosen, options, agent_version)
        try:
            wait(tape.run)
        finally:
            if save_to and tape.played:
                save_recording(tape.recording(), save_to)
    return tape.recording()


@dataclass(slots=True)
class Tape:
    """Conversations that are being recorded. What there is of them can be had at any time, also after an interruption."""

    eval_set: EvalSet
    agent: Agent
    config: EvalConfig
    options: Options
    agent_version: str = ""
    played: dict[tuple[str, int], Conversation] = field(default_factory=dict[tuple[str, int], Conversation])
    """What came of the conversations that have ended, by eval id and run."""
    simulating: JudgeUsage | None = None
    """What a model that played users took."""
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    async def run(self) -> None:
        """Have the conversations. Those that fail are recorded with their errors.

        Raises:
            UsageError: before the agent is called, if the eval set holds an id twice.
            JudgeError: before the agent is called, if the model that is to play the user cannot be had.
        """
        refuse_duplicates(self.eval_set)
        judging = JudgeSession(self.options.judges)
        player = Player(self.agent, conversation_setups(self.config, self.eval_set, self.agent, judging, self.options.user_simulator))
        jobs = [(case, run_index) for case in self.eval_set.eval_cases for run_index in range(self.options.num_runs)]

        async def work(index: int) -> None:
            case, run_index = jobs[index]
            self.played[case.eval_id, run_index] = await player.play(case, run_index)
            if self.options.progress:
                self.options.progress(len(self.played), len(jobs))

        try:
            with no_rescanning():
                await each(work, len(jobs), limit=self.options.concurrency)
        finally:
            self.simulating = judging.simulating()
            await judging.aclose()

    def recording(self) -> Recording:
        """Return what was recorded. A conversation that was not had to its end is one that failed."""
        num_runs = self.options.num_runs
        not_had = Conversation(actual=(), error=NOT_HAD)
        runs = {
            eval_id: tuple(self.played.get((eval_id, run_index), not_had) for run_index in range(num_runs))
            for eval_id in self.eval_set.eval_ids
        }
        origin = Origin(agent=self.agent.name, agent_version=self.agent_version, recorded_at=self.began, num_runs=num_runs)
        return Recording(runs, origin=on(self.eval_set, origin), simulating=self.simulating)
