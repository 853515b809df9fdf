"""An evaluation: planned once, before anything is paid for, and then executed, with all concurrency in one place.

Inputs become a plan (which criteria decide which case) and a set-up of conversations (who plays users, what answers tools). Executing a case
turns it into a conversation and that into cells, one for each turn and criterion; all cases together are a report.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import anyio

from mlflow_adk_eval.agents.conversation import ConversationSetups, UserSource, conversation_setups, converse, described
from mlflow_adk_eval.agents.protocol import Agent, LiveAgent
from mlflow_adk_eval.agents.recordings import ConversationCache, Recording, StreamedRecording, changed_cases
from mlflow_adk_eval.agents.replay import Replay
from mlflow_adk_eval.agents.tool_environment import notes
from mlflow_adk_eval.config.eval_config import EvalConfig, judged_criteria
from mlflow_adk_eval.criteria.criterion import CaseRun, Planned, apply, failed, result_of
from mlflow_adk_eval.criteria.plan import plan
from mlflow_adk_eval.errors import UsageError, check_counts, foreign_code
from mlflow_adk_eval.evalset.conversation import Conversation, Origin, ended_by_model
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet
from mlflow_adk_eval.evalset.observation import unwritten
from mlflow_adk_eval.evalset.parse import no_collection, no_rescanning
from mlflow_adk_eval.evalset.rows import StreamedCases
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeSetup
from mlflow_adk_eval.results.outcomes import CaseResult, PlannedCriterion
from mlflow_adk_eval.results.report import Cases, Report
from mlflow_adk_eval.runner.keywords import Progress
from mlflow_adk_eval.runner.unjudged import Unjudged
from mlflow_adk_eval.runs.collect import SMALL_TURNS, Collector, InParts, KeptParts
from mlflow_adk_eval.runs.parts import Cleaner
from mlflow_adk_eval.runtime import each, gathered, guarded_loop
from mlflow_adk_eval.text import counted, listed

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_MAX_NAMED = 5
_LEAST_AHEAD = 1_000
"""How many cases may be begun before the first of them has ended."""
Engine = Callable[[], Awaitable[None]]
"""Executes all cases of an evaluation, and hands the results to a collector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an evaluation is executed."""

    num_runs: int = 1
    """How often the agent has each conversation."""
    concurrency: int = 4
    """How many conversations are had at the same time."""
    workers: int = 1
    """How many processes score; more than one only score recordings by computed criteria."""
    progress: Progress | None = None
    judges: JudgeSetup = field(default_factory=JudgeSetup)
    user_simulator: UserSource = None
    """Who plays the user of scenarios; ``None``: the model that the config names."""
    baseline: Recording | None = None
    """What pairwise criteria compare with."""
    replay: Recording | None = None
    """What answers the agent's tool calls; ``None``: the tools."""
    record: bool = False
    """Whether what tools and models answer is recorded."""
    replay_models: bool = False
    """Whether `replay` answers the agent's requests to models as well."""

    def __post_init__(self) -> None:
        """Refuse numbers below one."""
        check_counts(num_runs=self.num_runs, concurrency=self.concurrency, workers=self.workers)


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
        self.from_ledger = 0
        """How many conversations were had before the evaluation was resumed."""

    @property
    def limit(self) -> int:
        """How many cases are worth executing at the same time: while the judges of one think, the agent goes on with others."""
        concurrency = self.options.concurrency
        return max(concurrency, self.options.judges.options.max_concurrency) if self.judges.asked else concurrency

    async def execute(self, evaluation: Evaluation, case: EvalCase, run_index: int, store: ConversationCache | None = None) -> ExecutedCase:
        """Have a conversation, once there is room for it, and judge it.

        Args:
            evaluation: what says how the conversation is set up, and what decides the case.
            case: what the conversation is about.
            run_index: the run of the case, counted from 0.
            store: where conversations are kept, before anything else is done with them; ``None``: nowhere. One that failed is not kept.
        """
        if self._conversations is None:
            self._conversations = anyio.CapacityLimiter(self.options.concurrency)
        async with self._conversations:
            started = time.perf_counter()
            known = store.get(case, run_index) if store else None
            self.from_ledger += known is not None
            conversation = known or await conversation_with(self.agent, case, run_index, evaluation.setups)
            if evaluation.replay:
                evaluation.replay.keep(case.eval_id, run_index, conversation)
            if store and not known and not conversation.error:
                store.keep(case, run_index, conversation)
        conversation = replace(conversation, from_ledger=known is not None)  # a recording may say it of another evaluation
        criteria = evaluation.plan.of(case.eval_id)
        result = await apply_criteria(case, run_index, conversation, criteria, self.options.baseline)
        return ExecutedCase(result, time.perf_counter() - started)


async def conversation_with(agent: Agent, case: EvalCase, run_index: int = 0, setups: ConversationSetups | None = None) -> Conversation:
    """Return what came of a conversation; if it has another number of turns than the case, that is its error."""
    try:
        with foreign_code("the agent"):
            if setups and isinstance(agent, LiveAgent):
                conversation = await converse(agent, case, run_index, setups(case, run_index))
            else:
                conversation = await agent.converse(case, run_index)
    except Exception as error:  # noqa: BLE001 - an agent may be anybody's object, and must not cost the other cases
        return Conversation(actual=(), error=described(error))
    conversation = ended_by_model(conversation)
    took_place, wanted = len(conversation.actual), case.conversation
    if conversation.error or wanted is None or took_place == len(wanted):
        return conversation
    return replace(conversation, error=f"{counted(took_place, 'turn')} took place, but the case has {len(wanted)}")


async def apply_criteria(
    case: EvalCase, run_index: int, conversation: Conversation, criteria: Sequence[Planned], baseline: Recording | None = None
) -> CaseResult:
    """Return what criteria make of a conversation. A baseline of fewer runs is compared with again and again."""
    conversation = ended_by_model(conversation)
    others = baseline.runs.get(case.eval_id, ()) if baseline else ()
    run = CaseRun(
        case=case,
        run_index=run_index,
        actual=tuple(conversation.actual),
        session_state=conversation.session_state,
        injections=conversation.injections,
        error=conversation.error,
        unfinished=conversation.unfinished,
        ending=conversation.ending,
        inner_calls=conversation.inner_calls,
        unknown=conversation.unknown + unwritten(case),
        baseline=tuple(others[run_index % len(others)].actual) if others else None,
    )
    if not run.actual:
        results = [result_of(criterion, run, failed(run, "there is no actual turn")) for criterion in criteria]
    elif any(criterion.judged for criterion in criteria):
        results = await gathered(partial(apply, criterion, run) for criterion in criteria)
    else:
        results = [await apply(criterion, run) for criterion in criteria]
    return CaseResult(
        eval_id=case.eval_id, run_index=run_index, conversation=conversation, expected=case.conversation, results=tuple(results)
    )


class Evaluation:
    """One eval set and one config, ready for an executor: everything that can be wrong with them is found when it is made.

    It holds what follows from the inputs, each of it exactly once: the plan (the criteria of each case) and the set-up of the conversations.
    Then it is executed once, as a whole by `execute`, or case by case by its executor where the caller wants each result as soon as it is
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
        agent, options = executor.agent, executor.options
        self.eval_set, self.config, self.executor = eval_set, config, executor
        self.recording = agent if isinstance(agent, Recording) else None
        """The agent, where it is a recording; ``None`` where it has its conversations now."""
        self.unjudged = Unjudged()
        self.remarks: set[str] = set()
        """What others have to say who execute it."""
        self.plan = plan(config, eval_set, executor.judges)
        if self.plan.coverage:
            if self.recording is None:
                self.plan.coverage.check(config.source)
            for obstacle in self.plan.coverage.obstacles:
                _logger.warning("%s", obstacle)
        if self.plan.pairwise and options.baseline is None:
            raise UsageError(f"{', '.join(self.plan.pairwise)}: wanted a baseline to compare with; set baseline=")
        if options.workers > 1:
            several = f"workers={options.workers}: several processes"
            if self.recording is None:
                raise UsageError(f"{several} can only score recordings; record the agent first, or drop workers")
            if judged := judged_criteria(config):
                raise UsageError(f"{several} can only apply computed criteria, but judges decide {listed(list(judged), _MAX_NAMED)}")
        self.replay: Replay | None = None
        """What replays or records the agent's calls; ``None``: they are real."""
        if options.replay or options.record or options.replay_models:
            ignored = config.replay.ignore if config.replay else ()
            self.replay = Replay(options.replay, record=options.record, models=options.replay_models, ignore=ignored)
        self.setups = conversation_setups(config, eval_set, agent, executor.judges, options.user_simulator, self.replay)
        self.num_runs = max(options.num_runs, self.recording.num_runs(eval_set.eval_ids) if self.recording else 1)
        """How many runs of each case there are to be."""

    def planned(self, eval_id: str) -> tuple[PlannedCriterion, ...]:
        """Return what decides a case, as its results name it."""
        return tuple(PlannedCriterion(one.name, one.threshold, one.greater_is_better) for one in self.plan.of(eval_id))

    async def execute(
        self,
        store: ConversationCache | None = None,
        collector: Collector | None = None,
        engine: Engine | None = None,
        then: Callable[[Cases], Awaitable[None]] | None = None,
    ) -> Report:
        """Have every conversation, judge it, give back what the judges hold and return the report.

        Args:
            store: where conversations are kept, so that nothing is lost if this is interrupted; ``None``: nowhere.
            collector: what takes the results while cases end; ``None``: they stay in memory.
            engine: what executes the cases elsewhere and has the collector take them; ``None``: they are executed here.
            then: what else the judges are needed for, once all results are there; ``None``: nothing.
        """
        options, judges, recording = self.executor.options, self.executor.judges, self.recording
        started = datetime.now(UTC).isoformat(timespec="seconds")
        collector = collector or Collector()
        try:
            # A live agent or a judge's client may leave cyclic garbage for hours; computing scores of recordings leaves next to none.
            with no_collection() if recording and not self.plan.judged else no_rescanning():
                await (engine() if engine else self._execute_cases(store, collector))
            eval_set, cases = collector.results(self.eval_set)
            if then:
                await then(cases)
        finally:
            await judges.aclose()
        return Report(
            eval_set=eval_set,
            config=self.config,
            cases=cases,
            num_runs=self.num_runs,
            notes=(*self._notes(), *(notes(self.config, cases) if self.setups else ()), *judges.notes),
            judging=judges.usage(),
            from_ledger=self.executor.from_ledger,
            simulating=judges.simulating(),
            baseline=options.baseline.name if options.baseline and self.plan.pairwise else "",
            world=self.replay.world() if self.replay else recording.world if recording else None,
            origin=recording.origin if recording else Origin(agent=self.executor.agent.name, recorded_at=started),
        )

    def collector(self, clean: Cleaner | None = None, keep_in: Path | None = None) -> InParts | None:
        """Return what takes the results while cases end; ``None`` for cases that are in memory anyway, as long as nothing is logged.

        Args:
            clean: what makes texts fit to be logged; ``None``: nothing is.
            keep_in: the folder for parts of evaluations under way, so that this one can be gone on with; ``None``: none is kept.
        """
        cases = self.eval_set.eval_cases
        if clean is None and self.executor.options.workers == 1 and not isinstance(cases, StreamedCases):
            return None
        parts = partial(InParts, self.plan.criteria(self.config), clean or Cleaner(), judged=bool(judged_criteria(self.config)))
        if not isinstance(cases, StreamedCases):
            return parts()
        large = cases.turns > SMALL_TURNS  # as is known already, so that nothing is kept in memory meanwhile
        identity = [self.config.digest(), str(self.num_runs), type(clean).__name__]
        kept_parts = KeptParts(keep_in, identity) if keep_in and self.is_kept else None
        return parts(small_turns=0 if large else None, texts_of=cases.texts_of, eval_ids=cases.eval_ids, kept=kept_parts)

    @property
    def is_kept(self) -> bool:
        """Whether its cells follow from many rows, the config and this package alone, so that parts of them can be taken over."""
        cases, options = self.eval_set.eval_cases, self.executor.options
        if not isinstance(cases, StreamedCases) or not isinstance(self.recording, StreamedRecording) or cases.turns <= SMALL_TURNS:
            return False
        return options.workers == 1 and not (self.plan.judged or self.config.custom_metrics or options.baseline)

    async def _execute_cases(self, store: ConversationCache | None, collector: Collector) -> None:
        """Execute each run of each case, and hand the results on in the order of the eval set."""
        options, source, num_runs = self.executor.options, self.eval_set.eval_cases, self.num_runs
        cases, total, done = iter(source), len(source) * num_runs, 0
        if isinstance(source, StreamedCases):
            cases = source.handing_over()
            if isinstance(collector, InParts) and collector.kept:
                cases = self._without_kept(source, cases, collector, collector.kept)
        if isinstance(collector, InParts) and collector.cases:
            done = collector.cases * num_runs
            if options.progress:
                options.progress(done, total)
        limit = self.executor.limit
        line = InOrder(collector, num_runs, ahead=max(_LEAST_AHEAD, limit * 4))

        async def work(item: tuple[int, EvalCase, int]) -> None:
            nonlocal done
            number, case, run_index = item
            await line.turn_of(number)
            executed = await self.executor.execute(self, case, run_index, store)
            result = executed.result
            if self.setups:  # of an agent that had its conversations just now
                self.unjudged.see(case.eval_id, result.conversation, self.config.criteria_of(case.eval_id))
            line.ended(number, case, result)
            done += 1
            if _logger.isEnabledFor(logging.INFO):
                facts = {"eval_id": case.eval_id, "run_index": run_index, "seconds": round(executed.seconds, 3), "case_error": result.error}
                scores = {one.criterion: one.score for one in result.results}
                _logger.info("a case ended", extra={**facts, "scores": scores, "done": done, "total": total})
            if options.progress:
                options.progress(done, total)

        runs = ((number, case, index) for number, case in enumerate(cases) for index in range(num_runs))
        await each(work, runs, limit=min(limit, total))

    def _without_kept(self, source: StreamedCases, cases: Iterator[EvalCase], collector: InParts, kept: KeptParts) -> Iterator[EvalCase]:
        """Have the collector take the parts that are kept of the first cases, and return the other cases."""
        for entry in kept.listed():
            some = list(islice(cases, entry.part.cases))
            written = kept.taken(entry, [source.known_texts(case.eval_id) for case in some])
            if written is None:
                return chain(some, cases)
            collector.take(written, self.planned)
            for case in some:
                source.pass_over(case.eval_id)
        if collector.cases:
            _logger.info("cases were taken over", extra={"cases": collector.cases})
        return cases

    def _notes(self) -> Iterator[str]:
        """Say that cases were picked, where a recording is not of these cases, and what cases expect that nobody reads."""
        recording, eval_set = self.recording, self.eval_set
        if eval_set.picked_from:
            share = f"{len(eval_set.eval_cases)} of {counted(eval_set.picked_from, 'case')}"
            yield f"{share} of the eval set, picked by name: {listed(eval_set.eval_ids, _MAX_NAMED)}"
        if extra := sorted(set(recording.runs) - set(eval_set.eval_ids)) if recording and recording.runs else []:
            yield f"{len(extra)} recorded {'case is' if len(extra) == 1 else 'cases are'} not in the eval set: {listed(extra, _MAX_NAMED)}"
        if changed := changed_cases(recording.origin, eval_set.eval_cases) if recording and recording.origin else []:
            yield f"{len(changed)} {'case has' if len(changed) == 1 else 'cases have'} changed since the recording: {listed(changed, _MAX_NAMED)}"
        yield from sorted(self.remarks)
        yield from self.unjudged.notes()
        if self.plan.coverage:
            yield from self.plan.coverage.notes


@dataclass(slots=True)
class InOrder:
    """Hands the results of cases on in the order of the eval set, and keeps cases from being begun far ahead of one that takes long."""

    collector: Collector
    num_runs: int
    ahead: int
    _next: int = 0
    _waiting: dict[int, tuple[EvalCase, list[CaseResult]]] = field(default_factory=dict[int, tuple[EvalCase, list[CaseResult]]])
    _moved: anyio.Event = field(default_factory=anyio.Event)

    async def turn_of(self, number: int) -> None:
        """Wait until a case may begin."""
        while number >= self._next + self.ahead:
            await self._moved.wait()

    def ended(self, number: int, case: EvalCase, result: CaseResult) -> None:
        """Take the result of one run of a case."""
        self._waiting.setdefault(number, (case, []))[1].append(result)
        before = self._next
        while self._next in self._waiting and len(self._waiting[self._next][1]) == self.num_runs:
            first, runs = self._waiting.pop(self._next)
            self.collector.add(first, sorted(runs, key=lambda run: run.run_index))
            self._next += 1
        if self._next > before:
            self._moved.set()
            self._moved = anyio.Event()


async def arun(eval_set: EvalSet, agent: Agent, config: EvalConfig, options: Options | None = None) -> Report:
    """Have every conversation of `eval_set` with `agent`, judge it by `config` and return the report; see `Evaluation`."""
    return await Evaluation(eval_set, config, CaseExecutor(agent, options)).execute()


def run(eval_set: EvalSet, agent: Agent, config: EvalConfig, options: Options | None = None) -> Report:
    """Do what `arun` does, from ordinary code."""
    return wait(lambda: arun(eval_set, agent, config, options))


def wait(start: Callable[[], Awaitable[T]]) -> T:
    """Return what an asynchronous function returns, also where an event loop is running, as in a notebook."""
    returned: list[T] = []

    async def main() -> None:
        returned.append(await start())  # a task's own result is turned into text when asyncio restores the signal handler

    run_all = partial(anyio.run, main, backend_options={"loop_factory": guarded_loop})
    with foreign_code("code that this evaluation runs"):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            run_all()
        else:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(run_all).result()
    return returned[0]
