"""An agent held to its eval sets inside a test, with the names and meanings of ADK's ``AgentEvaluator``."""

from __future__ import annotations

import csv
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from pydantic import BaseModel

from mlflow_adk_eval.agents import Limits
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalSet, Invocation, migrate, parse_eval_set
from mlflow_adk_eval.foreign import foreign_code
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, reason_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import cell_at
from mlflow_adk_eval.runner import CaseExecutor, Options
from mlflow_adk_eval.runner.keywords import ConversationArgs, keywords, selected
from mlflow_adk_eval.runtime import each
from mlflow_adk_eval.testing.cases import Cases, jobs_of
from mlflow_adk_eval.testing.failure import conversation_of, failure_of, kind_of, text_of
from mlflow_adk_eval.testing.sources import EvalFile, read_files

COLUMNS = (
    "eval_set_id",
    "eval_id",
    "metric_name",
    "threshold",
    "score",
    "eval_status",
    "prompt",
    "expected_response",
    "actual_response",
    "expected_tool_calls",
    "actual_tool_calls",
    "run_index",
    "invocation_index",
    "reason",
)
"""ADK's eleven, then ours."""

_STATUS = {True: "PASSED", False: "FAILED"}


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
            said = (result.criterion, result.threshold, score, _status(result, cell))
            yield (eval_set_id, case.eval_id, *said, *_content(case, index), case.run_index, index, reason_of(cell))


def _status(result: CriterionResult, cell: Outcome) -> str:
    if not result.decides:
        return "INFORMATIONAL"
    reached = result.reached(cell)
    return "NOT_EVALUATED" if reached is None else _STATUS[reached]


def _content(case: CaseResult, index: int) -> tuple[str, ...]:
    actual = case.actual[index] if index < len(case.actual) else None
    expected = case.expected[index] if case.expected and index < len(case.expected) else None
    spoken = expected or actual
    return (
        spoken.user_text if spoken else "",
        expected.final_text if expected else "",
        actual.final_text if actual else "",
        _calls(expected),
        _calls(actual),
    )


def _calls(invocation: Invocation | None) -> str:
    calls = invocation.tool_calls if invocation else []
    return "\n".join(f"{call.name}({json.dumps(call.args or {}, ensure_ascii=False, default=str)})" for call in calls)


NUM_RUNS = 2
"""How often each conversation is had where nothing is said, as in ADK."""


class EvaluateAgentArgs(JudgeArgs, ConversationArgs, total=False):
    """What `evaluate_agent` takes besides ADK's arguments."""

    config: ConfigSource
    """The criteria; ``None``: the ``test_config.json`` beside each file, else ADK's defaults."""


@keywords(EvaluateAgentArgs, JudgeArgs, ConversationArgs, defaults=(Options, judge_setup))
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
        num_runs: how often the agent has each conversation. Each run must pass.
        agent_name: the sub-agent to evaluate instead of the root agent.
        initial_session_file: the session of legacy files, which have none of their own.
        print_detailed_results: whether to print every turn of every case with its scores.
        artifact_service: there is none to choose; each conversation gets its own.
        output_file: a CSV file to which a row for each turn and criterion is added.
        app_name: taken for the sake of ADK's callers.
        eval_set_results_manager: there is none to choose.

    Returns:
        A report for each file, in the order of their paths.

    Raises:
        AssertionError: if a case did not pass, or something was not evaluated, with what was expected and what the agent did.
        UsageError: for arguments that make no sense; its kind `InputError` names every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if a judge cannot be had.
    """
    __tracebackhide__ = True
    _refuse(artifact_service=artifact_service, eval_set_results_manager=eval_set_results_manager)
    files = read_files(eval_dataset_file_path_or_dir, options.get("config"), initial_session=initial_session_file)
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
        __tracebackhide__ = True
        await evaluate_agent(
            agent_module,
            eval_dataset_file_path_or_dir,
            num_runs,
            agent_name,
            initial_session_file,
            print_detailed_results,
            artifact_service,
            output_file,
            app_name,
            eval_set_results_manager,
        )

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
            raise UsageError("eval_config: wanted the criteria to evaluate by")
        config = load_config({"criteria": dict(criteria)} if criteria else _config(eval_config))
        loaded = _eval_set(eval_set)
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
            raise UsageError("old_eval_data_file, new_eval_data_file: wanted both, and one of them is empty")
        migrate(old_eval_data_file, new_eval_data_file, initial_session=initial_session_file)


_NO_CHOICE = {
    "artifact_service": "each conversation has an artifact service of its own",
    "eval_set_results_manager": "ADK's result file is an artifact of the run that mlflow_adk_eval.evaluate logs",
}


def _refuse(**services: Any) -> None:
    for name, value in services.items():
        if value is not None:
            raise UsageError(f"{name}: none can be chosen here; {_NO_CHOICE[name]}")


def _eval_set(given: EvalSet | BaseModel) -> EvalSet:
    """Return an eval set of ours, also of one of ADK's."""
    loaded = given if isinstance(given, EvalSet) else parse_eval_set(given.model_dump_json().encode(), "eval_set", stem="eval_set")
    if not loaded.eval_cases:
        raise UsageError(f"eval set {loaded.eval_set_id!r} has no cases, so there is nothing to evaluate")
    return loaded


def _config(given: EvalConfig | BaseModel | None) -> EvalConfig | dict[str, Any] | None:
    if given is None or isinstance(given, EvalConfig):
        return given
    dumped: dict[str, Any] = given.model_dump(mode="json", exclude_none=True, serialize_as_any=True)
    return dumped


async def _reports(
    files: Sequence[EvalFile], agent: Any, agent_name: str | None, num_runs: int, options: EvaluateAgentArgs
) -> tuple[Report, ...]:
    """Return the report on each file. The conversations of all files are had side by side, within the same limits."""
    limits = Limits(case_s=options.get("case_timeout_s"), turn_s=options.get("turn_timeout_s"))
    resolved = resolve_agent(agent, agent_name=agent_name, limits=limits)
    jobs = jobs_of(files, num_runs)
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
            await cases.executor.aclose()
    return tuple(
        Report(
            eval_set=file.eval_set,
            config=file.config,
            cases=tuple(found[index] for index, job in enumerate(jobs) if job.file is file),
            num_runs=num_runs,
        )
        for file in files
    )


def _conclude(files: Sequence[EvalFile], reports: Sequence[Report], *, output_file: str | Path | None, detailed: bool) -> None:
    __tracebackhide__ = True
    if output_file:
        append_rows(Path(output_file), reports)
    if detailed:
        for report in reports:
            for case in report.cases:
                print(text_of(conversation_of(case, report.config)), end="\n\n")  # noqa: T201 - the caller asks for it
    failures = [
        _failure(file, report, case)
        for file, report in zip(files, reports, strict=True)
        for case in report.cases
        if case.verdict != "passed"
    ]
    empty = [str(file.path) for file, report in zip(files, reports, strict=True) if not report.cases]
    if failures or empty:
        total = sum(len(report.cases) for report in reports)
        head = ["\n".join((f"{len(failures)} of {total} case runs did not pass", *_flaky(reports)))] if total else []
        raise AssertionError("\n\n".join([*head, *(f"{path}: no cases, so there is no evidence" for path in empty), *failures]))


def _flaky(reports: Sequence[Report]) -> Iterator[str]:
    """Yield a line for each case whose runs came to different verdicts."""
    for report in reports:
        for case in report.repeats.flaky:
            yield f"flaky: {case.eval_id}: {case.summary}"


def _failure(file: EvalFile, report: Report, case: CaseResult) -> str:
    explanation = textwrap.indent(text_of(failure_of(case, report.config)), "  ")
    return f"{kind_of(case)}: {report.label(case)} ({file.path})\n{explanation}"
