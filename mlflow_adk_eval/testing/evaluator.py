"""An agent held to its eval sets inside a test, with the names and meanings of ADK's ``AgentEvaluator``."""

from __future__ import annotations

import csv
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from pydantic import BaseModel

from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource, EvalFile, read_file
from mlflow_adk_eval.errors import UsageError, foreign_code
from mlflow_adk_eval.evalset.conversation import TurnPair
from mlflow_adk_eval.evalset.conversion import migrate
from mlflow_adk_eval.evalset.files import parse_eval_set, test_files
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, FunctionCall
from mlflow_adk_eval.evalset.world import World
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.outcomes import CaseResult, Scored, reason_of
from mlflow_adk_eval.results.report import CasesInMemory, Report
from mlflow_adk_eval.results.table import cell_at
from mlflow_adk_eval.runner.evaluation import CaseExecutor, Evaluation, ExecutedCase, Options
from mlflow_adk_eval.runner.keywords import ConversationArgs, keywords, selected
from mlflow_adk_eval.runtime import each
from mlflow_adk_eval.testing.failure import conversation_lines, failure_of, kind_of, text_of

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
    def world(self) -> World | None:
        """What answers tools and models, the same for all files; ``None``: nothing is replayed."""
        return next((one.replay.world() for one in self._evaluations.values() if one.replay), None)

    async def execute(self, job: Job) -> ExecutedCase:
        """Have a conversation, once there is room for it, and judge it."""
        return await self.executor.execute(self.evaluation(job.file), job.case, job.run_index)


def renamed(result: CaseResult, eval_id: str) -> CaseResult:
    """Return the result of a case that has another id in a merged set."""
    if result.eval_id == eval_id:
        return result
    results = tuple(replace(found, votes=tuple(replace(vote, eval_id=eval_id) for vote in found.votes)) for found in result.results)
    return replace(result, eval_id=eval_id, results=results)


_JUDGED = ("eval_set_id", "eval_id", "metric_name", "threshold", "score", "eval_status")
_SAID = ("prompt", "expected_response", "actual_response", "expected_tool_calls", "actual_tool_calls")
COLUMNS = (*_JUDGED, *_SAID, "run_index", "invocation_index", "reason")
"""ADK's eleven, then ours."""


def append_rows(path: Path, reports: Iterable[Report]) -> None:
    """Add a row for each turn and criterion; the header is written once.

    Raises:
        UsageError: if the file cannot be written.
    """
    rows = [row for report in reports for case in report.cases for row in _rows(report.eval_set.eval_set_id, case)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows] if new else rows)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _rows(eval_set_id: str, case: CaseResult) -> Iterator[tuple[object, ...]]:
    for result in case.results:
        for index in range(len(result.per_invocation)):
            cell = cell_at(result, index)
            if cell is None:
                continue
            score = cell.score if isinstance(cell, Scored) else None
            status = {True: "PASSED", False: "FAILED", None: "NOT_EVALUATED"}[result.reached(cell)] if result.decides else "INFORMATIONAL"
            turn = TurnPair(case, index)
            spoken = turn.expected or turn.actual
            judged = (eval_set_id, case.eval_id, result.criterion, result.threshold, score, status)
            answers = (spoken.user_text if spoken else "", turn.expected_answer, turn.answer)
            yield (*judged, *answers, _calls(turn.expected_calls), _calls(turn.calls), case.run_index, index, reason_of(cell))


def _calls(calls: Sequence[FunctionCall]) -> str:
    return "\n".join(f"{call.name}({json.dumps(call.args or {}, ensure_ascii=False, default=str)})" for call in calls)


NUM_RUNS = 2
"""How often each conversation is had where nothing is said, as in ADK."""


class EvaluateAgentArgs(JudgeArgs, ConversationArgs, total=False):
    """What `evaluate_agent` takes besides ADK's arguments."""

    config: ConfigSource
    """The criteria; ``None``: the ``test_config.json`` beside each file, else ADK's defaults."""


@keywords(EvaluateAgentArgs, Options, judge_setup)
async def evaluate_agent(  # noqa: PLR0913, PLR0917 - these ten are ADK's, in ADK's order
    agent_module: Any,
    eval_dataset_file_path_or_dir: str | Path,
    num_runs: int = NUM_RUNS,
    agent_name: str | None = None,
    initial_session_file: str | Path | None = None,
    print_detailed_results: bool = True,
    artifact_service: None = None,
    output_file: str | Path | None = None,
    app_name: str | None = None,  # noqa: ARG001 - ADK names files after it that nobody writes here
    eval_set_results_manager: None = None,
    **options: Unpack[EvaluateAgentArgs],
) -> tuple[Report, ...]:
    """Hold an agent to the eval set in a file, or to those of all ``*.test.json`` files of a folder.

    Args:
        agent_module: a module with a ``root_agent``, an ADK agent or a callable.
        eval_dataset_file_path_or_dir: the file, a selection ``path:eval_1,eval_2`` of it, or the folder.
        num_runs: the number of times to run each conversation. Each run must pass.
        agent_name: the sub-agent to evaluate instead of the root agent.
        initial_session_file: the session of legacy files, which have none of their own.
        print_detailed_results: whether to print every turn of every case with its scores.
        artifact_service: there is none to choose; each conversation gets its own.
        output_file: a CSV file to which a row for each turn and criterion is added.
        app_name: taken for the sake of ADK's callers.
        eval_set_results_manager: there is none to choose.
        judge: the judge, instead of the config's models: a model's name, a judge object or a callable; a list is a panel that
            votes together.
        judge_hosts: hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user,
            in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: parallelism, time limits and retries of requests to judges.
        budget: the limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again if a stored answer of a judge cannot be parsed.
        concurrency: the number of conversations to run in parallel.
        case_timeout_s: the time limit for one case, in seconds; ``None``: no limit.
        turn_timeout_s: the time limit for one answer of the agent, in seconds; ``None``: no limit.
        user_simulator: plays the user in conversation scenarios: a model's name, a judge object, or a function of the scenario
            and the turns so far that returns the next message, or ``None`` to end the conversation; ``None``: the model that the
            config names.
        config: the criteria; ``None``: the ``test_config.json`` beside each file, else ADK's defaults.

    Returns:
        A report for each file, in the order of their paths.

    Raises:
        AssertionError: if a case did not pass, or something was not evaluated, with what was expected and what the agent did.
        UsageError: for invalid arguments; its subclass `InputError` lists every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if a judge cannot be set up.
    """
    __tracebackhide__ = True
    _refuse(artifact_service=artifact_service, eval_set_results_manager=eval_set_results_manager)
    source = Path(eval_dataset_file_path_or_dir)
    paths = test_files(source) if source.is_dir() else [eval_dataset_file_path_or_dir]  # noqa: ASYNC240 - nothing else runs yet
    files = [read_file(path, options.get("config"), initial_session=initial_session_file) for path in paths]
    reports = await _reports(files, agent_module, agent_name, num_runs, options)
    _conclude(files, reports, output_file=output_file, detailed=print_detailed_results)
    return reports


class AgentEvaluator:
    """ADK's class of this name, with this package's evaluation behind it."""

    @staticmethod
    def find_config_for_test_file(test_file: str | Path) -> EvalConfig:
        """Return the ``test_config.json`` beside a file, else ADK's defaults.

        Raises:
            ConfigError: with every problem of the config.
        """
        return load_config(None, beside=Path(test_file).parent)

    @staticmethod
    async def evaluate(  # noqa: PLR0913, PLR0917 - ADK's signature
        agent_module: str,
        eval_dataset_file_path_or_dir: str,
        num_runs: int = NUM_RUNS,
        agent_name: str | None = None,
        initial_session_file: str | None = None,
        print_detailed_results: bool = True,
        artifact_service: None = None,
        output_file: str | None = None,
        app_name: str | None = None,
        eval_set_results_manager: None = None,
    ) -> None:
        """Do what `evaluate_agent` does."""
        given = locals()
        __tracebackhide__ = True
        await evaluate_agent(**given)

    @staticmethod
    async def evaluate_eval_set(  # noqa: PLR0913, PLR0917 - ADK's signature
        agent_module: str,
        eval_set: EvalSet | BaseModel,
        criteria: Mapping[str, float] | None = None,
        eval_config: EvalConfig | BaseModel | None = None,
        num_runs: int = NUM_RUNS,
        agent_name: str | None = None,
        print_detailed_results: bool = True,
        artifact_service: None = None,
        output_file: str | None = None,
        app_name: str | None = None,  # noqa: ARG004 - ADK names files after it that nobody writes here
        eval_set_results_manager: None = None,
    ) -> None:
        """Hold an agent to an eval set, ADK's or ours, by `eval_config` or, as ADK once had it, by thresholds alone.

        Raises:
            AssertionError: as `evaluate_agent`.
            UsageError: if nothing says what to evaluate by.
        """
        __tracebackhide__ = True
        _refuse(artifact_service=artifact_service, eval_set_results_manager=eval_set_results_manager)
        if not criteria and eval_config is None:
            raise UsageError("eval_config: wanted criteria")
        given: Any = {"criteria": dict(criteria)} if criteria else eval_config
        if isinstance(given, BaseModel) and not isinstance(given, EvalConfig):  # one of ADK's
            given = given.model_dump(mode="json", exclude_none=True, serialize_as_any=True)
        config = load_config(given)
        loaded = eval_set
        if not isinstance(loaded, EvalSet):  # one of ADK's
            loaded = parse_eval_set(loaded.model_dump_json().encode(), "eval_set", stem="eval_set")
        if not loaded.eval_cases:
            raise UsageError(f"eval set {loaded.eval_set_id!r} has no cases, so there is nothing to evaluate")
        files = [EvalFile(Path(loaded.eval_set_id), loaded, config)]
        reports = await _reports(files, agent_module, agent_name, num_runs, {})
        _conclude(files, reports, output_file=output_file, detailed=print_detailed_results)

    @staticmethod
    def migrate_eval_data_to_new_schema(
        old_eval_data_file: str | Path, new_eval_data_file: str | Path, initial_session_file: str | Path | None = None
    ) -> None:
        """Rewrite an eval set of any generation in today's format.

        Raises:
            EvalSetError: with every problem of the old file.
            UsageError: if the new file cannot be written.
        """
        if not old_eval_data_file or not new_eval_data_file:
            raise UsageError("old_eval_data_file, new_eval_data_file: wanted both, but one is empty")
        migrate(old_eval_data_file, new_eval_data_file, initial_session=initial_session_file)


_NO_CHOICE = {
    "artifact_service": "each conversation has its own artifact service",
    "eval_set_results_manager": "ADK's result file is an artifact of the run logged by mlflow_adk_eval.evaluate",
}


def _refuse(**services: Any) -> None:
    for name, value in services.items():
        if value is not None:
            raise UsageError(f"{name}: cannot be set here; {_NO_CHOICE[name]}")


async def _reports(
    files: Sequence[EvalFile], agent: Any, agent_name: str | None, num_runs: int, options: EvaluateAgentArgs
) -> tuple[Report, ...]:
    """Return the report on each file. The conversations of all files are had side by side, within the same limits."""
    limits = Limits(case_s=options.get("case_timeout_s"), turn_s=options.get("turn_timeout_s"))
    resolved = resolve_agent(agent, agent_name=agent_name, limits=limits)
    jobs = [Job(file, case, run_index) for file in files for case in file.eval_set.eval_cases for run_index in range(num_runs)]
    found: dict[int, CaseResult] = {}
    judges = judge_setup(**selected(options, JudgeArgs))
    with foreign_code("the agent"), opened(judges.ledger) as ledger:
        how = replace(Options(**selected(options, Options)), num_runs=num_runs, judges=replace(judges, answers=ledger))
        cases = Cases(CaseExecutor(resolved, how))

        async def work(index: int) -> None:
            found[index] = (await cases.execute(jobs[index])).result

        try:
            for file in files:
                cases.evaluation(file)
            await each(work, range(len(jobs)), limit=cases.executor.limit)
        finally:
            await cases.executor.judges.aclose()

    def report_on(file: EvalFile) -> Report:
        cases = CasesInMemory(found[index] for index, job in enumerate(jobs) if job.file is file)
        return Report(eval_set=file.eval_set, config=file.config, cases=cases, num_runs=num_runs)

    return tuple(map(report_on, files))


def _conclude(files: Sequence[EvalFile], reports: Sequence[Report], *, output_file: str | Path | None, detailed: bool) -> None:
    __tracebackhide__ = True
    if output_file:
        append_rows(Path(output_file), reports)
    if detailed:
        for report in reports:
            for case in report.cases:
                print(text_of(conversation_lines(case, report.config)), end="\n\n")  # noqa: T201 - the caller asks for it
    failures, flaky, empty = list[str](), list[str](), list[str]()
    for file, report in zip(files, reports, strict=True):
        for case in report.cases:
            if case.verdict != "passed":
                explanation = textwrap.indent(text_of(failure_of(case, report.config)), "  ")
                failures.append(f"{kind_of(case)}: {report.label(case)} ({file.path})\n{explanation}")
        flaky += [f"flaky: {case.eval_id}: {case.summary}" for case in report.repeats.flaky]
        empty += [] if report.cases else [f"{file.path}: no cases, so there is nothing to evaluate"]
    if failures or empty:
        total = sum(len(report.cases) for report in reports)
        head = ["\n".join((f"{len(failures)} of {total} case runs did not pass", *flaky))] if total else []
        raise AssertionError("\n\n".join([*head, *empty, *failures]))
