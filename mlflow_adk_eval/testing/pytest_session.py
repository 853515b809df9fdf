"""A session of pytest that holds an agent to its eval sets. What the hooks share lives here."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from mlflow_adk_eval.agents import Agent, Limits
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.errors import AdkEvalError, JudgeError, RunError
from mlflow_adk_eval.judge.setup import judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.report.ci import append_step_summary
from mlflow_adk_eval.report.tally import CaseLine, case_line
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner import CaseExecutor, ExecutedCase, Options
from mlflow_adk_eval.runtime import BACKGROUND, each, model_or_object
from mlflow_adk_eval.testing.cases import Cases, Job, JobKey
from mlflow_adk_eval.testing.pytest_items import SUFFIXES, AdkOptions, EvalCaseItem, EvalSetFile
from mlflow_adk_eval.testing.pytest_summary import Results, log_results
from mlflow_adk_eval.testing.sources import EvalFile

T = TypeVar("T")

_CLOSING_S = 10.0


class Waiting:
    """The results of jobs: those that were announced are had side by side, any other when it is asked for."""

    def __init__(self, cases: Cases) -> None:
        """Begin with nothing announced."""
        self._cases = cases
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
        try:
            found = coming.result() if coming else BACKGROUND.call(lambda: self._until_closed(lambda: self._cases.execute(job)))
        except CancelledError:
            found = None
        if found is None:
            raise RunError("the session ended before this case was finished")
        return found

    def close(self) -> None:
        """Call off what is under way, wait until it has ended, and give back what the judges hold."""
        BACKGROUND.call(self._end)
        if self._thread:
            self._thread.join(_CLOSING_S)

    def _have(self, jobs: Sequence[Job], coming: dict[JobKey, Future[ExecutedCase]]) -> None:
        async def work(index: int) -> None:
            coming[jobs[index].key].set_result(await self._cases.execute(jobs[index]))

        try:
            BACKGROUND.call(lambda: self._until_closed(partial(each, work, range(len(jobs)), limit=self._cases.executor.limit)))
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
        await self._cases.executor.aclose()


_LINE = "adk_case"
"""The attribute of a test report that carries the result, also from a worker of xdist."""
_JUDGING, _SIMULATING = "adk_judging", "adk_simulating"


@dataclass(frozen=True, slots=True)
class _Ready:
    """An agent and judges that can be used."""

    agent: Agent
    cases: Cases
    waiting: Waiting
    resources: ExitStack


class PytestSession:
    """The plugin that is registered where there is an agent."""

    def __init__(self, config: pytest.Config, options: AdkOptions) -> None:
        """Take the options; nothing is loaded before the first case runs."""
        self.options = options
        self._config = config
        self._ready: _Ready | AdkEvalError | None = None
        self._announced = self._is_on_demand(config)
        self._items: list[EvalCaseItem] = []
        self._done: dict[JobKey, tuple[Job, ExecutedCase]] = {}
        self._results = Results()

    @staticmethod
    def _is_on_demand(config: pytest.Config) -> bool:
        """Whether a case may only begin when its test does: the session may end before, or others share the work."""
        given = (config.getoption(name, None) for name in ("maxfail", "stepwise"))
        return any(given) or hasattr(config, "workerinput")

    def prepare(self, file: EvalFile) -> None:
        """Make sure that a file's cases can run.

        Raises:
            AdkEvalError: if the agent cannot be loaded, a judge cannot be had, or a criterion cannot be applied.
        """
        self._usable().cases.evaluation(file)

    def finished(self, item: EvalCaseItem) -> ExecutedCase:
        """Return what came of an item's case. The first to ask begins with those of all items that will be asked for."""
        waiting = self._usable().waiting
        if not self._announced:
            self._announced = True
            waiting.announce([other.job for other in self._items if self._will_run(other)])
        found = waiting.result(item.job)
        self._done[item.job.key] = item.job, found
        return found

    def _usable(self) -> _Ready:
        if self._ready is None:
            try:
                self._ready = self._made()
            except AdkEvalError as error:
                self._ready = error
        if isinstance(self._ready, AdkEvalError):
            raise self._ready
        return self._ready

    def _made(self) -> _Ready:
        options = self.options
        agent = resolve_agent(options.agent, limits=Limits(case_s=options.case_timeout_s, turn_s=options.turn_timeout_s))
        judge = model_or_object(options.judge, "--adk-judge", error=JudgeError)
        user_simulator = model_or_object(options.user_simulator, "--adk-user-simulator", error=JudgeError)
        with ExitStack() as resources:
            setup = replace(judge_setup(judge=judge), answers=resources.enter_context(opened(None)))
            executor = CaseExecutor(agent, Options(concurrency=options.concurrency, judges=setup, user_simulator=user_simulator))
            cases = Cases(executor)
            return _Ready(agent, cases, Waiting(cases), resources.pop_all())

    def _will_run(self, item: EvalCaseItem) -> bool:
        """Whether a test is sure to ask for its case; one that may be skipped must not cost anything before."""
        if any(item.get_closest_marker(name) for name in ("skip", "skipif")):
            return False
        if any(mark.kwargs.get("run") is False for mark in item.iter_markers("xfail")):
            return False
        try:
            self.prepare(item.job.file)
        except AdkEvalError:
            return False
        return True

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> EvalSetFile | None:
        """Collect an eval set."""
        if not file_path.name.endswith(SUFFIXES):
            return None
        return EvalSetFile.from_parent(parent, path=file_path, adk=self)

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
            setattr(report, _LINE, case_line(item.result, item.nodeid, case=item.case_nodeid).to_json())
            report.duration = item.seconds or 0.0
            if report.failed:
                report.sections += item.sections()
        return report

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, Any] | None:
        """Tell missing evidence from a missed threshold. Both are failures."""
        found = getattr(report, _LINE, None)
        if found and report.failed and found["verdict"] == "undecided":
            return "failed", "?", ("UNDECIDED", {"yellow": True})
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a result."""
        found = getattr(report, _LINE, None)
        if found:
            self._results.lines[report.nodeid] = CaseLine.from_json(found)
        elif report.skipped:
            self._results.planned.discard(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the accounts of a worker's judges, and of the models that played users."""
        output: dict[str, dict[str, Any] | None] = getattr(node, "workeroutput", {})
        for key, usages in ((_JUDGING, self._results.usages), (_SIMULATING, self._results.simulations)):
            if found := output.get(key):
                usages.append(JudgeUsage(**found))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End everything, and hand over what there is."""
        ready = self._ready if isinstance(self._ready, _Ready) else None
        if ready:
            ready.waiting.close()
            ready.resources.close()
        usage, simulating = (ready.cases.usage, ready.cases.simulating) if ready else (None, None)
        to_controller: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if to_controller is not None:
            to_controller[_JUDGING] = asdict(usage) if usage else None
            to_controller[_SIMULATING] = asdict(simulating) if simulating else None
            return
        self._results.usages += [usage] if usage else []
        self._results.simulations += [simulating] if simulating else []
        if ready and self.options.experiment:
            self._log(session, ready, self.options.experiment)
        if self._results.planned and not self._config.option.collectonly:
            self._publish()

    def _log(self, session: pytest.Session, ready: _Ready, experiment: str) -> None:
        done = list(self._done.values())
        try:
            with warnings.catch_warnings(action="ignore"):  # MLflow's own are no fault of these tests, which may treat warnings as errors
                self._results.note(log_results(self._results, done, agent=ready.agent, experiment=experiment))
        except AdkEvalError as error:
            self._results.note(f"NOT logged in MLflow: {error}", bad=True)
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _publish(self) -> None:
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
