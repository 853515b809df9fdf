"""What commands print and write: a report, a decision, JSON, files; and the exit code that follows from each.

Text goes through rich, to standard output. With ``--json`` standard output is one JSON document and nothing else; notes go to
standard error. A decision is also handed to the CI system: as Markdown, as JUnit XML, and as annotations of GitHub Actions.

With ``--log-format json`` standard error has a line of JSON for each event, for whoever collects the logs of CI. Modules say what happens by
Python's logging, at the level INFO, with the facts as `extra`; nobody hears that otherwise.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from mlflow_adk_eval.errors import AdkEvalError, InputError, OutputError, RunError, UsageError
from mlflow_adk_eval.redact import redacted, secrets_of

if TYPE_CHECKING:
    from mlflow_adk_eval.results.decision import Decision
    from mlflow_adk_eval.results.report import Report

LOGGER = logging.getLogger("mlflow_adk_eval")
NAMED_RUNS = logging.getLogger("mlflow_adk_eval.gating.named_runs")


def log_as_json() -> None:
    """Write what this package does, and all that others warn of, as lines of JSON from now on."""
    from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415 - only who asks for it pays

    class Formatter(JsonFormatter):
        def format(self, record: logging.LogRecord) -> str:
            return redacted(super().format(record), secrets_of())

    os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")  # MLflow would write lines of its own
    handler = logging.StreamHandler()
    names = {"levelname": "level", "name": "logger"}
    handler.setFormatter(Formatter("{levelname}{name}{message}", style="{", timestamp=True, rename_fields=names))
    logging.getLogger().addHandler(handler)
    LOGGER.setLevel(logging.INFO)


class _Notes(logging.StreamHandler[TextIO]):
    """Says on standard error which run a name stands for; standard output is for the result."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the note without secrets."""
        return f"note: {redacted(record.getMessage(), secrets_of())}"


def note_named_runs() -> None:
    """Say from now on which run a name such as ``latest`` stands for."""
    NAMED_RUNS.addHandler(_Notes())
    NAMED_RUNS.setLevel(logging.INFO)
    NAMED_RUNS.propagate = False


def is_json() -> bool:
    """Whether JSON was asked for."""
    return LOGGER.level == logging.INFO


@contextmanager
def ended() -> Generator[None]:
    """End with the command what it asked for: tests run several in one process."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.disable(logging.NOTSET)
        NAMED_RUNS.handlers[:], NAMED_RUNS.propagate = [], True
        for logger in (LOGGER, NAMED_RUNS):
            logger.setLevel(logging.NOTSET)


def print_json(value: Any) -> None:
    """Print a value as JSON without secrets; halves of surrogate pairs, which no terminal takes, as question marks."""
    text = redacted(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False), secrets_of())
    echo_json(text.encode("utf-8", "replace").decode())


def echo_json(text: str) -> None:
    """Print JSON; where standard output takes not all of its characters, with the escapes of JSON."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=2)
    click.echo(text)


def error_json(error: AdkEvalError) -> dict[str, Any]:
    """Return an error as JSON values; what is wrong with a file, problem by problem."""
    values: dict[str, Any] = {"error": str(error), "kind": type(error).__name__, "exit_code": error.exit_code}
    if isinstance(error, InputError):
        values |= {"source": error.source, "problems": [asdict(problem) for problem in error.problems]}
    return values


def tell(text: str, *, as_json: bool, then: str = "", **facts: Any) -> None:
    """Print what a command has done, and what to do next; as JSON the facts alone.

    Args:
        text: what was done, and where to look.
        as_json: whether JSON is printed.
        then: the command to run next; empty where there is none.
        facts: the same as JSON values, by name.
    """
    deliver(text, lambda: print_json(facts) if as_json else click.echo(text + (f"\nnext: {then}" if then else "")))


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file.

    Raises:
        UsageError: if it cannot be written there.
        OutputError: if the disk is full.
    """
    from mlflow_adk_eval.writing import whole_file  # noqa: PLC0415 - `--help` stays fast

    with whole_file(path) as stream:
        stream.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))


class Ended(SystemExit):
    """The end of a command that is our own. Any other `SystemExit` was raised by code that the command runs."""


def write_table(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows with the same columns, at least one, as a CSV file.

    Raises:
        OutputError: if it cannot be written.
    """
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    write_file(path, text.getvalue())


def end(code: int) -> NoReturn:
    """End the command with an exit code."""
    raise Ended(code)


def deliver(done: str, *writes: Callable[[], object]) -> None:
    """Write the result of a command to each place, whether or not the others take it.

    Args:
        done: what was done and stays done, as a sentence without its point.
        writes: what writes it.

    Raises:
        OutputError: saying what was done, and where its result is missing.
    """
    failures: list[str] = []
    for write in (*writes, sys.stdout.flush):
        try:
            write()
        except OSError as error:
            failures.append(f"standard output cannot be written: {error.strerror}")
        except (UsageError, OutputError) as error:
            failures.append(str(error))
    if failures:
        raise OutputError(f"{done}; but {'; '.join(dict.fromkeys(failures))}")


def show_report(
    report: Report, *, detailed: bool, as_json: bool, extra: Mapping[str, Any] | None = None, then: str = "", trouble: str = ""
) -> NoReturn:
    """Print a report and exit by its verdict.

    Args:
        report: the report.
        detailed: whether every turn is printed.
        as_json: whether JSON is printed.
        extra: what else came of it, by name; ``None`` values are not printed as text.
        then: what to do next; empty where there is nothing.
        trouble: what could not be done with the complete run, and how to do it; empty where all was.
    """
    from mlflow_adk_eval.report.ci import exit_code  # noqa: PLC0415 - `--help` stays fast

    LOGGER.info("evaluated", extra={"verdict": report.verdict, "reasons": list(report.reasons), **(extra or {})})
    from mlflow_adk_eval.report.console import console, report_view  # noqa: PLC0415

    def show() -> None:
        if as_json:
            print_json(_report_json(report) | dict(extra or {}) | ({"error": trouble, "exit_code": RunError.exit_code} if trouble else {}))
            return
        console().print(report_view(report, detailed=detailed))
        lines = [f"{name.replace('_', ' ')}: {value}" for name, value in (extra or {}).items() if value is not None]
        for line in (*lines, f"next: {then}") if then else lines:
            click.echo(line)

    deliver(f"{f'run {report.run_id}' if report.run_id else 'the evaluation'} {report.verdict}", show)
    if trouble:
        click.echo(f"error: {trouble}", err=True)
        end(RunError.exit_code)
    end(exit_code(report))


def _report_json(report: Report) -> dict[str, Any]:
    from mlflow_adk_eval.report.explanation import causes_json  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.runs.ignored_calls import ignored_calls_of  # noqa: PLC0415
    from mlflow_adk_eval.runs.replays import replays_of  # noqa: PLC0415

    shown = ("threshold", "mean", "pass_rate", "evaluated", "errored", "skipped")
    return {
        "verdict": report.verdict,
        "reasons": list(report.reasons),
        "causes": causes_json(report, 5)[:10],
        "eval_set_id": report.eval_set.eval_set_id,
        "cases": len({case.eval_id for case in report.cases}),
        "num_runs": report.num_runs,
        "criteria": {name: {field: getattr(summary, field) for field in shown} for name, summary in report.summaries().items()},
        "judging": asdict(report.judging) | {"flip_rate": report.judging.flip_rate} if report.judging else None,
        "simulating": asdict(report.simulating) if report.simulating else None,
        "endings": dict(Counter(case.ending.reason for case in report.cases if case.ending)),
        "injections": dict(Counter(injection.kind for case in report.cases for injection in case.injections)),
        "replay": {"world": report.world.digest, "mode": report.world.mode, **asdict(replays_of(report))} if report.world else None,
        "ignored_calls": ignored_calls_of(report).calls,
        "notes": list(report.notes),
    }


def show_decision(
    decision: Decision,
    *,
    as_json: bool,
    title: str = "",
    outcome: str = "",
    extra: Mapping[str, Any] | None = None,
    then: str = "",
    files: Mapping[str, Path | None] = MappingProxyType({}),
    basis: tuple[Path | None, str | None] = (None, None),
) -> NoReturn:
    """Print a decision, write it where it was asked for, annotate the job if this is GitHub Actions, and exit by its verdict.

    Each place gets it whether or not the others take it.

    Args:
        decision: the decision.
        as_json: whether JSON is printed.
        title: what it is about, for the summary.
        outcome: what was done about it.
        extra: what the JSON holds besides.
        then: the command to run next; empty where there is none.
        files: for Markdown (``summary``), XML (``junit``) and the page of a pull request (``comment``).
        basis: the policy and the tracking URI, which that page needs.

    Raises:
        OutputError: with the verdict and the outcome, if some place did not take it.
    """
    from mlflow_adk_eval.report import ci  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.console import console, decision_view  # noqa: PLC0415
    from mlflow_adk_eval.report.markdown import decision_summary  # noqa: PLC0415
    from mlflow_adk_eval.text import plain  # noqa: PLC0415

    LOGGER.info("decided", extra={"about": title, "verdict": decision.verdict, "reasons": list(decision.reasons), "outcome": outcome})

    def show() -> None:
        with nullcontext() if as_json else ci.quoted(click.echo):
            if as_json:
                echo_json(ci.quoted_json(asdict(decision) | dict(extra or {})))
                return
            console().print(decision_view(decision))
            for line in filter(None, (outcome, f"next: {then}" if then else "")):
                click.echo(line)

    def write(name: str, file: Path) -> None:
        from mlflow_adk_eval.tracking.compare import review_page  # noqa: PLC0415 - only this page needs it

        make = {"summary": lambda: page, "junit": lambda: ci.junit_of(decision)}
        write_file(file, make.get(name, lambda: review_page(decision, *basis, title=title, outcome=outcome))())

    page = decision_summary(decision, title) + (f"\n{plain(outcome)}\n" if outcome else "")
    writes = [show, lambda: ci.append_step_summary(page)]
    writes += [partial(write, name, file) for name, file in files.items() if file]
    writes += [lambda: click.echo("\n".join(ci.annotations_of(decision)), err=True)] if ci.on_github() else []
    about = f"{title}: " if title else f"run {decision.run_id}: "
    deliver(about + "; ".join(filter(None, (decision.verdict, outcome))), *writes)
    end(ci.EXIT_CODES[decision.verdict])
