"""An evaluation: planned once, before anything is paid for, and then executed, with all concurrency in one place.

Inputs become a plan (which criteria decide which case) and a set-up of conversations (who plays users, what answers tools). Executing a case
turns it into a conversation and that into cells, one for each turn and criterion; all cases together are a report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeVar, Unpack

import anyio

from mlflow_adk_eval.agents import Agent, Conversation, LiveAgent, Recording, load_recording
from mlflow_adk_eval.agents.conversation import converse, described
from mlflow_adk_eval.agents.recordings import Recorded, changed_cases
from mlflow_adk_eval.agents.setup import ConversationSetups, UserSource, conversation_setups
from mlflow_adk_eval.agents.tool_environment import notes
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.criteria.criterion import CaseRun, Planned, apply, failed, result_of
from mlflow_adk_eval.criteria.plan import plan
from mlflow_adk_eval.criteria.rubrics import unused_rubrics
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.parse import no_collection, no_rescanning
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeArgs, JudgeSetup, JudgeSource, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.keywords import Progress, ScoreArgs, keywords, selected
from mlflow_adk_eval.runtime import each, gathered

T = TypeVar("T")

_MAX_NAMED = 5


class ConversationStore(Protocol):
    """Conversations that were had earlier in this evaluation, before it was interrupted."""

    def get(self, case: EvalCase, run_index: int, /) -> Conversation | None:
        """Return what came of a conversation, if it is known."""
        ...

    def keep(self, case: EvalCase, run_index: int, conversation: Conversation, /) -> None:
        """Keep a conversation, before anything else is done with it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an evaluation is executed."""

    num_runs: int = 1
    """How often the agent has each conversation."""
    concurrency: int = 4
    """How many conversations are had at the same time."""
    progress: Progress | None = None
    judges: JudgeSetup = field(default_factory=JudgeSetup)
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


@dataclass(frozen=True, slots=True)
class ExecutedCase:
    """What came of one run of a case."""

    result: CaseResult
    seconds: float
    """How long the conversation and its judging took, without what the case waited for its turn."""


class CaseExecutor:
    """Executes cases: has the conversation, applies the criteria to it, returns the result. Nothing else does.

    One executor may serve several eval sets, as in a session of pytest. They then share the agent, the judges with their limits, ledger and
    budget, and the number of conversations that are had at the same time. It lives inside one event loop.
    """

    def __init__(self, agent: Agent, options: Options | None = None) -> None:
        """Take the agent; judges are made when a plan first needs them."""
        self.agent = agent
        self.options = options or Options()
        self.judges = JudgeSession(self.options.judges)
        self._conversations: anyio.CapacityLimiter | None = None

    @property
    def limit(self) -> int:
        """How many cases are worth executing at the same time: while the judges of one think, the agent goes on with others."""
        concurrency = self.options.concurrency
        return max(concurrency, self.options.judges.options.max_concurrency) if self.judges.asked else concurrency

    async def execute(
        self,
        case: EvalCase,
        run_index: int,
        criteria: Sequence[Planned],
        setups: ConversationSetups | None = None,
        store: ConversationStore | None = None,
    ) -> ExecutedCase:
        """Have a conversation, once there is room for it, and judge it.

        Args:
            case: what the conversation is about.
            run_index: the run of the case, counted from 0.
            criteria: what decides the case.
            setups: how a live agent's conversations are set up; ``None``: their turns are written.
            store: where conversations are kept; ``None``: nowhere. One that failed is not kept.
        """
        if self._conversations is None:
            self._conversations = anyio.CapacityLimiter(self.options.concurrency)
        async with self._conversations:
            started = time.perf_counter()
            conversation = store.get(case, run_index) if store else None
            if conversation is None:
                conversation = await conversation_with(self.agent, case, run_index, setups)
                if store and not conversation.error:
                    store.keep(case, run_index, conversation)
        result = await apply_criteria(case, run_index, conversation, criteria, self.options.baseline)
        return ExecutedCase(result, time.perf_counter() - started)

    async def aclose(self) -> None:
        """Give back the connections of the judges."""
        await self.judges.aclose()


async def conversation_with(agent: Agent, case: EvalCase, run_index: int = 0, setups: ConversationSetups | None = None) -> Conversation:
    """Return what came of a conversation; if it has another number of turns than the case, that is its error."""
    try:
        if setups and isinstance(agent, LiveAgent):
            conversation = await converse(agent, case, run_index, setups.setup(case, run_index))
        else:
            conversation = await agent.converse(case, run_index)
    except Exception as error:  # noqa: BLE001 - an agent may be anybody's object, and must not cost the other cases
        return Conversation(actual=(), error=described(error))
    wanted = None if case.conversation is None else len(case.conversation)
    if conversation.error or wanted is None or len(conversation.actual) == wanted:
        return conversation
    took_place = "1 turn" if len(conversation.actual) == 1 else f"{len(conversation.actual)} turns"
    return replace(conversation, error=f"{took_place} took place, and the case asks for {wanted}")


async def apply_criteria(
    case: EvalCase, run_index: int, conversation: Conversation, criteria: Sequence[Planned], baseline: Recording | None = None
) -> CaseResult:
    """Return what criteria make of a conversation. A baseline of fewer runs is compared with again and again."""
    others = baseline.runs.get(case.eval_id, ()) if baseline else ()
    run = CaseRun(
        case=case,
        run_index=run_index,
        actual=conversation.actual,
        session_state=conversation.session_state,
        error=conversation.error,
        unfinished=conversation.unfinished,
        ending=conversation.ending,
        baseline=others[run_index % len(others)].actual if others else None,
    )
    if any(criterion.judged for criterion in criteria):
        results = await gathered(partial(_result, criterion, run) for criterion in criteria)
    else:
        results = [await _result(criterion, run) for criterion in criteria]
    return CaseResult(
        eval_id=case.eval_id,
        run_index=run_index,
        actual=run.actual,
        expected=run.expected,
        results=tuple(results),
        error=run.error,
        unfinished=run.unfinished,
        session_state=run.session_state,
        ending=conversation.ending,
        injections=conversation.injections,
    )


async def _result(criterion: Planned, run: CaseRun) -> CriterionResult:
    if not run.actual:
        return result_of(criterion, run, failed(run, "there is no actual invocation"))
    return await apply(criterion, run)


class Evaluation:
    """One eval set and one config, ready for an executor: everything that can be wrong with them is found when it is made.

    It holds what follows from the inputs, each of it exactly once: the plan (the criteria of each case) and the set-up of the conversations.
    Then it is executed once, as a whole by `execute`, or case by case by `execute_case` where the caller wants each result as soon as it is
    there::

        report = await Evaluation(eval_set, config, CaseExecutor(agent, Options(num_runs=3))).execute()
    """

    def __init__(self, eval_set: EvalSet, config: EvalConfig, executor: CaseExecutor) -> None:
        """Plan the evaluation.

        Raises:
            UsageError: if the eval set holds an id twice, or a pairwise criterion has no baseline.
            ConfigError: naming each criterion that cannot be applied to a case.
            JudgeError: if a judge, or the model that is to play the user, cannot be had.
        """
        self.eval_set = eval_set
        self.config = config
        self.executor = executor
        self.plan = plan(config, eval_set, executor.judges)
        if self.plan.pairwise and executor.options.baseline is None:
            raise UsageError(f"{', '.join(self.plan.pairwise)}: wanted a baseline to compare with, given as baseline=")
        self._setups = conversation_setups(config, eval_set, executor.agent, executor.judges, executor.options.user_simulator)

    @property
    def agent(self) -> Agent:
        """Who has the conversations."""
        return self.executor.agent

    @property
    def recording(self) -> Recording | None:
        """The agent, where it is a recording; ``None`` where it has its conversations now."""
        return self.agent if isinstance(self.agent, Recording) else None

    async def execute_case(self, case: EvalCase, run_index: int, store: ConversationStore | None = None) -> ExecutedCase:
        """Have one conversation and judge it."""
        return await self.executor.execute(case, run_index, self.plan.of(case.eval_id), self._setups, store)

    async def execute(self, store: ConversationStore | None = None) -> Report:
        """Have every conversation, judge it, give back what the judges hold and return the report.

        Args:
            store: where conversations are kept, so that nothing is lost if this is interrupted; ``None``: nowhere.
        """
        options, judges, recording = self.executor.options, self.executor.judges, self.recording
        started = datetime.now(UTC).isoformat(timespec="seconds")
        num_runs = max(options.num_runs, recording.num_runs(self.eval_set.eval_ids) if recording else 1)
        try:
            cases = await self._results([(case, index) for case in self.eval_set.eval_cases for index in range(num_runs)], store)
        finally:
            await judges.aclose()
        return Report(
            eval_set=self.eval_set,
            config=self.config,
            cases=cases,
            num_runs=num_runs,
            notes=(*self._notes(), *(notes(self.config, cases) if self._setups else ())),
            judging=judges.usage(),
            simulating=judges.simulating(),
            baseline=options.baseline.name if options.baseline and self.plan.pairwise else "",
            origin=recording.origin if recording else Origin(agent=self.agent.name, recorded_at=started),
        )

    async def _results(self, runs: Sequence[tuple[EvalCase, int]], store: ConversationStore | None) -> tuple[CaseResult, ...]:
        """Return the result of each run of a case, in their order."""
        progress = self.executor.options.progress
        results: dict[int, CaseResult] = {}

        async def work(index: int) -> None:
            results[index] = (await self.execute_case(*runs[index], store)).result
            if progress:
                progress(len(results), len(runs))

        # A live agent or a judge's client may leave cyclic garbage for hours; computing scores of recordings leaves next to none.
        with no_collection() if self.recording and not self.plan.judged else no_rescanning():
            await each(work, len(runs), limit=self.executor.limit)
        return tuple(results[index] for index in range(len(runs)))

    def _notes(self) -> Iterator[str]:
        """Say where a recording is not of these cases, and which rubrics nobody judges by: they are easily taken for ones that count."""
        recording, eval_set = self.recording, self.eval_set
        extra = sorted(set(recording.runs) - set(eval_set.eval_ids)) if recording else []
        if extra:
            yield f"{len(extra)} recorded {'case is' if len(extra) == 1 else 'cases are'} not in the eval set: {_few(extra)}"
        changed = changed_cases(recording.origin, eval_set.eval_cases) if recording and recording.origin else []
        if changed:
            yield f"{len(changed)} {'case has' if len(changed) == 1 else 'cases have'} been changed since the recording: {_few(changed)}"
        unused = [note for case in eval_set.eval_cases for note in unused_rubrics(self.config.criteria_of(case.eval_id), case)]
        yield from unused[:_MAX_NAMED]
        if len(unused) > _MAX_NAMED:
            yield f"and {len(unused) - _MAX_NAMED} more rubrics"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")


async def arun(eval_set: EvalSet, agent: Agent, config: EvalConfig, options: Options | None = None) -> Report:
    """Have every conversation of `eval_set` with `agent`, judge it by `config` and return the report; see `Evaluation`."""
    return await Evaluation(eval_set, config, CaseExecutor(agent, options)).execute()


def run(eval_set: EvalSet, agent: Agent, config: EvalConfig, options: Options | None = None) -> Report:
    """Do what `arun` does, from ordinary code."""
    return wait(lambda: arun(eval_set, agent, config, options))


@keywords(ScoreArgs, JudgeArgs, defaults=(judge_setup,))
def score(
    eval_set: EvalSetSource, actual: Recorded, config: ConfigSource = None, judge: JudgeSource = None, **options: Unpack[ScoreArgs]
) -> Report:
    """Return the report on recorded conversations, without an agent and without MLflow.

    Args:
        eval_set: what is expected: an eval set, its path, a selection ``path:eval_1,eval_2`` or a folder of tests.
        actual: what the agent did: an eval set whose invocations are that, ADK's result file, a path of either, or a dict
            of invocations by eval id.
        config: the criteria; ``None``: the ``test_config.json`` beside the eval set, else ADK's defaults.
        judge: who judges, instead of the models that the config names: a model's name or a callable.

    Raises:
        InputError: with every problem of a file.
        JudgeError: if a judge cannot be had.
    """
    loaded, chosen = load_inputs(eval_set, config)
    recording, baseline = load_recording(actual), options.get("baseline")
    judges = judge_setup(judge=judge, **selected(options, JudgeArgs))
    beside = None if baseline is None else load_recording(baseline)
    with opened(judges.ledger) as ledger:
        how = Options(judges=replace(judges, answers=ledger), progress=options.get("progress"), baseline=beside)
        report = run(loaded, recording, chosen, how)
        return replace(report, notes=(*report.notes, ledger.trouble)) if ledger and ledger.trouble else report


def wait(start: Callable[[], Awaitable[T]]) -> T:
    """Return what an asynchronous function returns, also where an event loop is running, as in a notebook."""
    found: list[T] = []

    async def main() -> None:
        found.append(await start())  # a task's own result is turned into text when asyncio restores the signal handler

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        anyio.run(main)
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(anyio.run, main).result()
    return found[0]
