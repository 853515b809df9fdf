"""A session of pytest that holds an agent to its eval sets: files, cases, and what they came to on the terminal, for GitHub, in MLflow."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import anyio
import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback, TerminalRepr  # noqa: PLC2701 - what `Item.repr_failure` is to return has no public name
from _pytest._io import TerminalWriter  # noqa: PLC2701 - nor what that is written to

from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.agents.recordings import Recording, load_recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.inputs import EvalFile, merge_files, read_file
from mlflow_adk_eval.errors import AdkEvalError, JudgeError, RunError, TrackingError, foreign_code
from mlflow_adk_eval.judge.setup import judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.report.ci import append_step_summary
from mlflow_adk_eval.report.markdown import step_summary
from mlflow_adk_eval.report.sentences import circumstances, format_outages, format_share
from mlflow_adk_eval.report.tally import CaseLine, case_line, causes_of_lines, flaky_of, totals
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import CasesInMemory, Report
from mlflow_adk_eval.results.usage import JudgeUsage, added
from mlflow_adk_eval.runner.evaluation import CaseExecutor, ExecutedCase, Options
from mlflow_adk_eval.runtime import BACKGROUND, each, model_or_object
from mlflow_adk_eval.testing.evaluator import Cases, Job, JobKey, renamed
from mlflow_adk_eval.testing.failure import Line, Tone, failure_of, kind_of, line, seen, summary_of, text_of, votes_of
from mlflow_adk_eval.text import numbered


@dataclass(frozen=True, slots=True, kw_only=True)
class AdkOptions:
    """What the command line, or else the ini file, says."""

    agent: str
    config: Path | None = None
    num_runs: int = 1
    judge: str | None = None
    concurrency: int = 4
    case_timeout: float | None = None
    turn_timeout: float | None = None
    user_simulator: str | None = None
    replay: str | None = None
    replay_models: bool = False
    experiment: str | None = None


SUFFIXES = (".test.json", ".evalset.json")
"""How the names of eval sets end."""

_MARKUP: dict[Tone, dict[str, bool]] = {
    "head": {"bold": True},
    "expected": {"red": True},
    "actual": {"green": True},
    "missed": {"red": True, "bold": True},
    "unknown": {"yellow": True, "bold": True},
    "dim": {"light": True},
}
_UNSAFE = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BRACKETS = str.maketrans("[]", "()")


class EvalSetFile(pytest.File):
    """An eval set."""

    def __init__(self, *, adk: PytestSession, **node: Any) -> None:
        """Take the session that runs its cases."""
        super().__init__(**node)
        self._adk = adk

    def collect(self) -> Iterator[EvalCaseItem]:
        """Yield a test for each run of each case."""
        options = self._adk.options
        try:
            near = self.path.relative_to(Path.cwd()) if self.path.is_relative_to(Path.cwd()) else self.path  # as messages call it
            file = read_file(near, options.config)
        except AdkEvalError as error:
            raise self.CollectError(str(error)) from None
        names = safe_names(file.eval_set.eval_ids)
        for case in file.eval_set.eval_cases:
            for run_index in range(options.num_runs):
                run = f"[run{run_index + 1}]" if options.num_runs > 1 else ""
                name = f"{names[case.eval_id]}{run}"
                yield EvalCaseItem.from_parent(self, name=name, adk=self._adk, job=Job(file, case, run_index))


class EvalCaseItem(pytest.Item):
    """One run of one case."""

    def __init__(self, *, adk: PytestSession, job: Job, **node: Any) -> None:
        """Take what to do, and who does it."""
        super().__init__(**node)
        self._adk = adk
        self.job = job
        self.result: CaseResult | None = None
        """What came of it, once it has run."""
        self.seconds: float | None = None
        """How long it took, which is not how long this test waited for it."""
        self.add_marker(pytest.mark.adk)
        # Said of most of ADK's own classes; where warnings are errors it would end every conversation.
        self.add_marker(pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning"))

    @foreign_code("the agent")
    def setup(self) -> None:
        """Make the agent and the judges ready."""
        self._adk.prepare(self.job.file)

    @foreign_code("the agent")
    def runtest(self) -> None:
        """Wait for the result."""
        self.result, self.seconds = None, None
        finished = self._adk.finished(self)
        self.result, self.seconds = finished.result, finished.seconds
        scores = {result.criterion: "not evaluated" if result.score is None else result.score for result in finished.result.results}
        properties: dict[str, object] = {"adk_verdict": kind_of(finished.result), **scores}
        self.user_properties = [*(pair for pair in self.user_properties if pair[0] not in properties), *properties.items()]
        if finished.result.verdict != "passed":
            raise CaseNotPassed(finished.result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        """Return what was expected and what the agent did; of an error that explains itself, its message."""
        error = excinfo.value
        if isinstance(error, CaseNotPassed):
            return Failure(failure_of(error.case, self.job.file.config), self.path, summary_of(error.case))
        if isinstance(error, AdkEvalError):
            message = str(error)
            return Failure([line(said, "unknown") for said in message.splitlines()], self.path, message.partition("\n")[0])
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the case stands; pytest wants a line, and JSON has none worth naming."""
        return self.path, 0, self.name


class CaseNotPassed(Exception):  # noqa: N818 - a verdict, not a mishap
    """A case missed a threshold, or was not fully evaluated."""

    def __init__(self, case: CaseResult) -> None:
        """Carry the result."""
        super().__init__(kind_of(case))
        self.case = case


class Failure(ReprExceptionInfo):
    """A failure without a traceback, in a shape that keeps its short message on the way from one process to another."""

    def __init__(self, lines: Sequence[Line], path: Path, message: str) -> None:
        """Take the lines, the file and the short message."""
        traceback = ReprTraceback([ReprEntryNative([f"{text_of(lines)}\n"])], None, "native")
        super().__init__(reprtraceback=traceback, reprcrash=ReprFileLocation(str(path), 0, message))
        self._lines = lines

    def __str__(self) -> str:
        return text_of(self._lines)

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write the lines, in colours where the terminal has them."""
        for spans in self._lines:
            for text, tone in spans:
                tw.write(text, **_MARKUP.get(tone, {}))
            tw.line()


def safe_names(eval_ids: Sequence[str]) -> dict[str, str]:
    """Return what tests call cases: their ids without what has a meaning in a node id, each one different.

    >>> safe_names(["a", "a::b", "a:b", "x[1]"])
    {'a': 'a', 'a::b': 'a:b', 'a:b': 'a:b~2', 'x[1]': 'x(1)'}
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for eval_id in eval_ids:
        visible = _UNSAFE.sub(lambda unsafe: unsafe[0].encode("unicode_escape").decode("ascii"), eval_id)
        name = re.sub(r":{2,}", ":", visible.translate(_BRACKETS)).strip(" :") or "(no name)"
        names[eval_id] = numbered(name, taken, "~")
        taken.add(names[eval_id])
    return names


Markup = dict[str, bool]

_MAX_CAUSES, _MAX_FLAKY = 10, 10


_JUDGING, _SIMULATING = "adk_judging", "adk_simulating"


@dataclass(slots=True)
class Results:
    """What the tests of a session found, wherever they ran."""

    planned: set[str] = field(default_factory=set[str])
    """The node ids of the cases that were selected."""
    lines: dict[str, CaseLine] = field(default_factory=dict[str, CaseLine])
    """The results, by node id."""
    took: dict[str, list[JudgeUsage]] = field(default_factory=lambda: {_JUDGING: [], _SIMULATING: []})
    """What the judges of each process, and the models that played users, took."""
    notes: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Sentences, each with whether it is bad news."""

    @property
    def missing(self) -> int:
        """How many of the selected cases have no result."""
        return len(self.planned - self.lines.keys())

    @property
    def judging(self) -> JudgeUsage | None:
        """What all judges took; ``None`` where none was asked."""
        return added(self.took[_JUDGING]) if self.took[_JUDGING] else None

    @property
    def simulating(self) -> JudgeUsage | None:
        """What all models that played users took; ``None`` where none did."""
        return added(self.took[_SIMULATING]) if self.took[_SIMULATING] else None

    def note(self, text: str, *, bad: bool = False) -> None:
        """Add a sentence."""
        self.notes.append((text, bad))

    def markdown(self) -> str:
        """Return the page for GitHub."""
        lines, notes = list(self.lines.values()), [text for text, _ in self.notes]
        return step_summary(lines, missing=self.missing, judging=self.judging, simulating=self.simulating, notes=notes)

    def terminal(self) -> Iterator[tuple[str, Markup]]:
        """Yield the lines for the terminal."""
        lines = list(self.lines.values())
        yield format_share([line.verdict for line in lines]), {"bold": True}
        for cause in causes_of_lines(lines)[:_MAX_CAUSES]:
            yield f"cause: {seen(str(cause))}", {"red" if cause.verdict == "failed" else "yellow": True}
        found = totals(lines)
        columns = zip(*((one.criterion, one.threshold) for one in found), strict=True)
        widths = [max(map(len, texts)) for texts in columns]
        for one in found:
            total = f"{one.criterion:<{widths[0]}}  {one.threshold:<{widths[1]}}  mean {one.evidence}  passed {one.passed} of {len(one.tallies)}"
            missed = one.passed < len(one.scores)
            yield total, {"green" if one.passed == len(one.tallies) else "red" if missed else "yellow": True}
        flaky = flaky_of(lines)
        yield from ((f"flaky: {case.eval_id}: {case.summary}", {"yellow": True}) for case in flaky[:_MAX_FLAKY])
        if len(flaky) > _MAX_FLAKY:
            yield f"and {len(flaky) - _MAX_FLAKY} more flaky cases", {"yellow": True}
        if self.missing:
            yield f"{self.missing} of {len(self.planned)} selected cases did not finish", {"yellow": True}
        if outage := format_outages(self.judging, self.simulating):
            yield outage, {"red": True}
        yield from ((sentence, {}) for sentence in circumstances(lines, self.judging, self.simulating).values())
        yield from ((text, {"red": True} if bad else {}) for text, bad in self.notes)


def log_results(results: Results, done: Sequence[tuple[Job, ExecutedCase]], cases: Cases, experiment: str) -> str:
    """Log a session as one run in MLflow, and return a sentence that names it.

    Raises:
        TrackingError: if MLflow cannot be reached, or the session is not something that a run may stand for.
    """
    if results.missing:
        raise TrackingError(f"{results.missing} of {len(results.planned)} selected cases did not finish")
    report = replace(report_of(done), judging=results.judging, simulating=results.simulating, world=cases.world)
    from mlflow_adk_eval.tracking.evaluate import log_report  # noqa: PLC0415 - imports MLflow

    agent = cases.executor.agent
    logged = log_report(report, agent_name=agent.name, agent=agent, experiment=experiment)
    return f"MLflow run {logged.run_id} in experiment {experiment!r}" + "".join(f"; {note}" for note in report.notes)


def report_of(done: Sequence[tuple[Job, ExecutedCase]]) -> Report:
    """Return results as the report on one eval set: that of their file, or one made of several.

    If only some of a file's cases ran, the eval set holds only these, and so has another digest than the whole.

    Raises:
        TrackingError: if some cases ran more often than others.
    """
    files = {job.file.path: job.file for job, _ in sorted(done, key=lambda one: one[0].key)}
    ran: dict[Path, dict[str, dict[int, CaseResult]]] = {path: {} for path in files}
    for job, executed in done:
        ran[job.file.path].setdefault(job.case.eval_id, {})[job.run_index] = executed.result
    runs = {tuple(sorted(results)) for by_case in ran.values() for results in by_case.values()}
    num_runs = max(map(len, runs), default=0)
    if runs != {tuple(range(num_runs))}:
        raise TrackingError("the selected cases have different numbers of runs, so they cannot be logged as one evaluation")
    parts = [file.selected(list(ran[path])) for path, file in files.items()]
    whole = merge_files(parts)
    cases: list[CaseResult] = [
        renamed(ran[part.path][case.eval_id][run_index], whole.eval_ids[part.path, case.eval_id])
        for part in parts
        for case in part.eval_set.eval_cases
        for run_index in range(num_runs)
    ]
    notes = tuple(
        f"a selection: {len(part.eval_set.eval_cases)} of {len(files[part.path].eval_set.eval_cases)} cases of {part.path}"
        for part in parts
        if part is not files[part.path]
    )
    return Report(eval_set=whole.eval_set, config=whole.config, cases=CasesInMemory(cases), num_runs=num_runs, notes=notes)


T = TypeVar("T")

_CLOSING_S = 10.0


class Waiting:
    """The results of jobs: those that were announced are had side by side, any other when it is asked for."""

    def __init__(self, cases: Cases, resources: ExitStack) -> None:
        """Begin with nothing announced; `resources`: what the cases need, to be given back in the end."""
        self.cases, self._resources = cases, resources
        self._coming: dict[JobKey, Future[ExecutedCase]] = {}
        self._under_way: dict[anyio.CancelScope, anyio.Event] = {}
        self._thread: threading.Thread | None = None

    def announce(self, jobs: Sequence[Job]) -> None:
        """Begin with `jobs`, and come back at once."""
        self._coming = {job.key: Future() for job in jobs}
        self._thread = threading.Thread(target=self._have, args=(jobs, dict(self._coming)), name="adk_cases", daemon=True)
        self._thread.start()

    def result(self, job: Job) -> ExecutedCase:
        """Return what came of a job, once it is there. A job that is asked for again is had again.

        Raises:
            RunError: if everything was called off before.
        """
        coming = self._coming.pop(job.key, None)
        with suppress(CancelledError):
            if found := coming.result() if coming else BACKGROUND.call(lambda: self._until_closed(lambda: self.cases.execute(job))):
                return found
        raise RunError("the session ended before this case was finished")

    def close(self) -> None:
        """Call off what is under way, wait until it has ended, and give back what the judges hold."""
        BACKGROUND.call(self._end)
        if self._thread:
            self._thread.join(_CLOSING_S)
        self._resources.close()

    def _have(self, jobs: Sequence[Job], coming: dict[JobKey, Future[ExecutedCase]]) -> None:
        async def work(index: int) -> None:
            coming[jobs[index].key].set_result(await self.cases.execute(jobs[index]))

        try:
            BACKGROUND.call(lambda: self._until_closed(partial(each, work, range(len(jobs)), limit=self.cases.executor.limit)))
        finally:
            for future in coming.values():
                future.cancel()

    async def _until_closed(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return what `work` returns; ``None`` if `close` was called before."""
        scope = anyio.CancelScope()
        ended = self._under_way[scope] = anyio.Event()
        try:
            with scope:
                return await work()
            return None
        finally:
            del self._under_way[scope]
            ended.set()

    async def _end(self) -> None:
        under_way = dict(self._under_way)
        for scope in under_way:
            scope.cancel()
        with anyio.move_on_after(_CLOSING_S):
            for ended in under_way.values():
                await ended.wait()
        await self.cases.executor.judges.aclose()


def _world(source: str | None) -> Recording | None:
    if source is None:
        return None
    if Path(source).exists():
        return load_recording(source)
    from mlflow_adk_eval.tracking.evaluate import replay_source  # noqa: PLC0415 - imports MLflow

    return replay_source(source, None)


_LINE = "adk_case"
"""The attribute of a test report that carries the result, also from a worker of xdist."""


def refuse_silent_exit(config: pytest.Config) -> Callable[[], None]:
    """Let ``os._exit`` in this process end pytest with an error and a sentence; return what undoes that.

    An agent that calls it with 0 would end pytest without a summary and with the exit code of success. Compiled code can still do so.
    """
    exit_at_once, pid = os._exit, os.getpid()

    def exit_with_error(status: int) -> NoReturn:
        if os.getpid() != pid:  # so end the workers of `multiprocessing`, and other forks
            exit_at_once(status)
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture()
        os.write(2, f"\nerror: the agent, a metric or a library called os._exit({status}), which ends pytest without a verdict\n".encode())
        exit_at_once(status or pytest.ExitCode.INTERNAL_ERROR)

    def undo() -> None:
        os._exit = exit_at_once

    os._exit = exit_with_error
    return undo


class PytestSession:
    """The plugin that is registered where there is an agent."""

    def __init__(self, config: pytest.Config, options: AdkOptions) -> None:
        """Take the options; nothing is loaded before the first case runs."""
        self.options = options
        self._config = config
        self._ready: Waiting | AdkEvalError | None = None
        # A case may only begin when its test does where the session may end before, or others share the work.
        self._announced = any(config.getoption(name, None) for name in ("maxfail", "stepwise")) or hasattr(config, "workerinput")
        self._items: list[EvalCaseItem] = []
        self._done: dict[JobKey, tuple[Job, ExecutedCase]] = {}
        self._results = Results()
        self._allow_exit = refuse_silent_exit(config)

    def prepare(self, file: EvalFile) -> None:
        """Make sure that a file's cases can run.

        Raises:
            AdkEvalError: if the agent cannot be loaded, a judge cannot be had, or a criterion cannot be applied.
        """
        self._usable().cases.evaluation(file)

    def finished(self, item: EvalCaseItem) -> ExecutedCase:
        """Return what came of an item's case. The first to ask begins with those of all items that will be asked for."""
        waiting = self._usable()
        if not self._announced:
            self._announced = True
            waiting.announce([other.job for other in self._items if self._will_run(other)])
        found = waiting.result(item.job)
        self._done[item.job.key] = item.job, found
        return found

    def _usable(self) -> Waiting:
        if self._ready is None:
            try:
                options = self.options
                agent = resolve_agent(options.agent, limits=Limits(case_s=options.case_timeout, turn_s=options.turn_timeout))
                judge = model_or_object(options.judge, "--adk-judge", error=JudgeError)
                user_simulator = model_or_object(options.user_simulator, "--adk-user-simulator", error=JudgeError)
                with ExitStack() as resources:
                    # A session has no option to ask again for an answer that could not be read, and whoever starts one wants verdicts.
                    setup = replace(judge_setup(judge=judge, rejudge_failed=True), answers=resources.enter_context(opened(None)))
                    how = Options(concurrency=options.concurrency, judges=setup, user_simulator=user_simulator)
                    how = replace(how, replay=_world(options.replay), replay_models=options.replay_models)
                    executor = CaseExecutor(agent, how)
                    self._ready = Waiting(Cases(executor), resources.pop_all())
            except AdkEvalError as error:
                self._ready = error
        if isinstance(self._ready, AdkEvalError):
            raise self._ready
        return self._ready

    def _will_run(self, item: EvalCaseItem) -> bool:
        """Whether a test is sure to ask for its case; one that may be skipped must not cost anything before."""
        never = any(mark.kwargs.get("run") is False for mark in item.iter_markers("xfail"))
        if never or any(item.get_closest_marker(name) for name in ("skip", "skipif")):
            return False
        with suppress(AdkEvalError):
            self.prepare(item.job.file)
            return True
        return False

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> EvalSetFile | None:
        """Collect an eval set."""
        return EvalSetFile.from_parent(parent, path=file_path, adk=self) if file_path.name.endswith(SUFFIXES) else None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what was selected."""
        self._items = [item for item in session.items if isinstance(item, EvalCaseItem)]
        self._results.planned.update(item.nodeid for item in self._items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:  # noqa: ARG002 - xdist's signature
        """Note what was selected by the workers, which all select the same."""
        self._results.planned.update(nodeid for nodeid in ids if nodeid.partition("::")[0].endswith(SUFFIXES))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the result into the report of its test."""
        report = yield
        if not isinstance(item, EvalCaseItem):
            return report
        if call.excinfo and isinstance(call.excinfo.value, AdkEvalError):
            report.longrepr = item.repr_failure(call.excinfo)  # which pytest asks for only where the test itself fails, not its setup
        if call.when == "call" and item.result is not None:
            all_runs = item.nodeid.removesuffix(f"[run{item.job.run_index + 1}]") if self.options.num_runs > 1 else ""
            setattr(report, _LINE, case_line(item.result, item.nodeid, case=all_runs).to_json())
            report.duration = item.seconds or 0.0
            if report.failed and (votes := text_of(votes_of(item.result))):
                report.sections.append(("Votes of the judges", votes))
        return report

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, Any] | None:
        """Tell missing evidence from a missed threshold. Both are failures."""
        found = getattr(report, _LINE, None)
        is_undecided = found and report.failed and found["verdict"] == "undecided"
        return ("failed", "?", ("UNDECIDED", {"yellow": True})) if is_undecided else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a result."""
        if found := getattr(report, _LINE, None):
            self._results.lines[report.nodeid] = CaseLine.from_json(found)
        elif report.skipped:
            self._results.planned.discard(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the accounts of a worker's judges, and of the models that played users."""
        output: dict[str, dict[str, Any] | None] = getattr(node, "workeroutput", {})
        for key, usages in self._results.took.items():
            if found := output.get(key):
                usages.append(JudgeUsage(**found))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End everything, and hand over what there is."""
        self._allow_exit()
        cases = None
        if isinstance(self._ready, Waiting):
            self._ready.close()
            cases = self._ready.cases
        judges = cases.executor.judges if cases else None
        took = {_JUDGING: judges.usage(), _SIMULATING: judges.simulating()} if judges else {}
        to_controller: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if to_controller is not None:
            to_controller.update((key, asdict(usage)) for key, usage in took.items() if usage)
            return
        for key, usage in took.items():
            self._results.took[key] += [usage] if usage else []
        if self.options.replay:
            self._results.note(f"tool calls {'and models ' * self.options.replay_models}replayed from {self.options.replay}")
        if cases and self.options.experiment:
            done = list(self._done.values())
            try:
                # MLflow's own are no fault of these tests, which may treat warnings as errors.
                with warnings.catch_warnings(action="ignore"):
                    self._results.note(log_results(self._results, done, cases, self.options.experiment))
            except AdkEvalError as error:
                self._results.note(f"NOT logged in MLflow: {error}", bad=True)
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        if self._results.planned and not self._config.option.collectonly:
            try:
                append_step_summary(self._results.markdown())
            except AdkEvalError as error:
                self._results.note(str(error), bad=True)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the totals."""
        if self._config.option.collectonly or not (self._results.planned or self._results.notes):
            return
        terminalreporter.section("ADK evaluation")
        for text, markup in self._results.terminal():
            terminalreporter.write_line(text, **markup)
