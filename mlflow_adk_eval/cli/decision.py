"""What commands do with a decision: print it, hand it to the CI system, and exit by its verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mlflow_adk_eval.errors import UsageError

if TYPE_CHECKING:
    from mlflow_adk_eval.results.decision import Decision

Command = Callable[..., Any]


def policy_option(command: Command) -> Command:
    """Add ``--policy``."""
    return click.option(
        "--policy", type=click.Path(path_type=Path), help="The policy, YAML or JSON. Default: the run's own thresholds, on every case."
    )(command)


def published_options(command: Command) -> Command:
    """Add where a decision is written besides."""
    summary = click.option(
        "--summary",
        type=click.Path(path_type=Path),
        help="Write the decision as Markdown. In GitHub Actions it is added to the step's summary in any case.",
    )
    junit = click.option("--junit", type=click.Path(path_type=Path), help="Write the decision as JUnit's XML.")
    return summary(junit(command))


def conclude(
    decision: Decision,
    *,
    as_json: bool,
    title: str = "",
    done: str = "",
    extra: Mapping[str, Any] | None = None,
    summary: Path | None = None,
    junit: Path | None = None,
) -> NoReturn:
    """Print a decision, write it where it was asked for, annotate the job of GitHub Actions if this is one, and exit.

    Args:
        decision: what was decided.
        as_json: whether to print JSON.
        title: about what, for the summary.
        done: what was done about it.
        extra: what the JSON holds besides.
        summary: the file for Markdown.
        junit: the file for XML.
    """
    from mlflow_adk_eval.report.ci import EXIT_CODES, quoted, quoted_json  # noqa: PLC0415
    from mlflow_adk_eval.report.console import console, decision_view  # noqa: PLC0415 - `--help` stays fast

    with nullcontext() if as_json else quoted(click.echo):
        if as_json:
            click.echo(quoted_json(asdict(decision) | dict(extra or {})))
        else:
            console().print(decision_view(decision))
            click.echo(done) if done else None
    _publish(decision, title=title, done=done, summary=summary, junit=junit)
    sys.exit(EXIT_CODES[decision.verdict])


def _publish(decision: Decision, *, title: str, done: str, summary: Path | None, junit: Path | None) -> None:
    from mlflow_adk_eval.report.ci import annotations_of, append_step_summary, junit_of, on_github  # noqa: PLC0415
    from mlflow_adk_eval.report.markdown import decision_summary, plain  # noqa: PLC0415

    text = decision_summary(decision, title) + (f"\n{plain(done)}\n" if done else "")
    append_step_summary(text)
    for path, content in ((summary, text), (junit, junit_of(decision))):
        if path is not None:
            _write(path, content)
    for line in annotations_of(decision) if on_github() else ():
        click.echo(line, err=True)


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
