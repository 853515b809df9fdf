"""What commands print and write: a report, a decision, JSON, files; and the exit code that follows from each.

Text goes through rich, to standard output. With ``--json`` standard output is one JSON document and nothing else; notes go to
standard error. A decision is also handed to the CI system: as Markdown, as JUnit XML, and as annotations of GitHub Actions.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mlflow_adk_eval.cli.logs import LOGGER
from mlflow_adk_eval.errors import AdkEvalError, InputError, UsageError

if TYPE_CHECKING:
    from mlflow_adk_eval.results.decision import Decision
    from mlflow_adk_eval.results.report import Report


def print_json(value: Any) -> None:
    """Print a value as JSON; halves of surrogate pairs, which no terminal takes, as question marks."""
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    click.echo(text.encode("utf-8", "replace").decode())


def error_json(error: AdkEvalError) -> dict[str, Any]:
    """Return an error as JSON values; what is wrong with a file, problem by problem."""
    found: dict[str, Any] = {"error": str(error), "kind": type(error).__name__, "exit_code": error.exit_code}
    if isinstance(error, InputError):
        found |= {"source": error.source, "problems": [asdict(problem) for problem in error.problems]}
    return found


def tell(text: str, *, as_json: bool, then: str = "", **facts: Any) -> None:
    """Print what a command has done, and what to do next; as JSON the facts alone.

    Args:
        text: what was done, and where to look.
        as_json: whether JSON is printed.
        then: the command to run next; empty where there is none.
        facts: the same as JSON values, by name.
    """
    if as_json:
        print_json(facts)
    else:
        click.echo(text)
        if then:
            click.echo(f"next: {then}")


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file.

    Raises:
        UsageError: if it cannot be written.
    """
    try:
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def show_report(report: Report, *, detailed: bool, as_json: bool, extra: Mapping[str, Any] | None = None, then: str = "") -> NoReturn:
    """Print a report and exit by its verdict.

    Args:
        report: the report.
        detailed: whether every turn is printed.
        as_json: whether JSON is printed.
        extra: what else came of it, by name; ``None`` values are not printed as text.
        then: what to do next; empty where there is nothing.
    """
    from mlflow_adk_eval.report.ci import exit_code  # noqa: PLC0415 - `--help` stays fast

    LOGGER.info("evaluated", extra={"verdict": report.verdict, "reasons": list(report.reasons), **(extra or {})})
    from mlflow_adk_eval.report.console import console, report_view  # noqa: PLC0415

    if as_json:
        print_json(_report_json(report) | dict(extra or {}))
    else:
        console().print(report_view(report, detailed=detailed))
        lines = [f"{name.replace('_', ' ')}: {value}" for name, value in (extra or {}).items() if value is not None]
        for line in (*lines, *filter(None, [f"next: {then}" if then else ""])):
            click.echo(line)
    sys.exit(exit_code(report))


def _report_json(report: Report) -> dict[str, Any]:
    shown = ("threshold", "mean", "pass_rate", "evaluated", "errored", "skipped")
    return {
        "verdict": report.verdict,
        "reasons": list(report.reasons),
        "eval_set_id": report.eval_set.eval_set_id,
        "cases": len({case.eval_id for case in report.cases}),
        "num_runs": report.num_runs,
        "criteria": {name: {field: getattr(summary, field) for field in shown} for name, summary in report.summaries().items()},
        "judging": asdict(report.judging) | {"flip_rate": report.judging.flip_rate} if report.judging else None,
        "simulating": asdict(report.simulating) if report.simulating else None,
        "endings": dict(Counter(case.ending.reason for case in report.cases if case.ending)),
        "injections": dict(Counter(injection.kind for case in report.cases for injection in case.injections)),
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
    summary: Path | None = None,
    junit: Path | None = None,
) -> NoReturn:
    """Print a decision, write it where it was asked for, annotate the job if this is GitHub Actions, and exit by its verdict.

    Args:
        decision: the decision.
        as_json: whether JSON is printed.
        title: what it is about, for the summary.
        outcome: what was done about it.
        extra: what the JSON holds besides.
        then: the command to run next; empty where there is none.
        summary: the file for Markdown.
        junit: the file for XML.
    """
    from mlflow_adk_eval.report import ci  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.console import console, decision_view  # noqa: PLC0415
    from mlflow_adk_eval.report.markdown import decision_summary  # noqa: PLC0415
    from mlflow_adk_eval.results.markdown_text import plain  # noqa: PLC0415

    LOGGER.info("decided", extra={"about": title, "verdict": decision.verdict, "reasons": list(decision.reasons), "outcome": outcome})
    with nullcontext() if as_json else ci.quoted(click.echo):
        if as_json:
            click.echo(ci.quoted_json(asdict(decision) | dict(extra or {})))
        else:
            console().print(decision_view(decision))
            for line in filter(None, (outcome, f"next: {then}" if then else "")):
                click.echo(line)
    page = decision_summary(decision, title) + (f"\n{plain(outcome)}\n" if outcome else "")
    ci.append_step_summary(page)
    if summary is not None:
        write_file(summary, page)
    if junit is not None:
        write_file(junit, ci.junit_of(decision))
    for line in ci.annotations_of(decision) if ci.on_github() else ():
        click.echo(line, err=True)
    sys.exit(ci.EXIT_CODES[decision.verdict])
