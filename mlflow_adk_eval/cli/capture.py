"""``mlflow-adk-eval capture``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click

from mlflow_adk_eval.errors import UsageError


@click.command()
@click.option("--trace-id", "--trace_id", "trace_ids", multiple=True, metavar="ID", help="A trace. May be given several times.")
@click.option("--session", metavar="ID", help="All traces of a session.")
@click.option("--run-id", "--run_id", "run_id", metavar="ID", help="The traces of an MLflow run.")
@click.option("--filter", "filter_string", metavar="FILTER", help="The traces that MLflow's filter finds, each with its whole session.")
@click.option("--experiment", help="The MLflow experiment, by name or id. Default: the current one.")
@click.option("--sample", type=click.IntRange(min=1), help="At most how many cases, drawn at random. Default: all.")
@click.option("--seed", type=int, default=0, show_default=True, help="What the draw depends on.")
@click.option("--eval-set-id", "--eval_set_id", "eval_set_id", help="The name of the eval set. Default: that of the file.")
@click.option("--redact", metavar="MODULE:FUNCTION", help="What is done to every text of users, tools and the agent.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write.")
@click.option("--force", is_flag=True, help="Overwrite it.")
@click.option("--tracking_uri", "--tracking-uri", "tracking_uri", help="The MLflow server or store. Default: MLFLOW_TRACKING_URI.")
def capture(*, trace_ids: tuple[str, ...], output: Path, force: bool, redact: str | None, eval_set_id: str | None, **options: Any) -> None:
    """Write traces as an eval set in which what the agent did is the reference, one case for each session."""
    from mlflow_adk_eval.evalset import stem_of, write_eval_set  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.tracking.capture import capture as captured  # noqa: PLC0415

    if output.exists() and not force:
        raise UsageError(f"{output} exists already; --force overwrites it")
    eval_set = captured(trace_ids=trace_ids or None, redact=_function(redact), eval_set_id=eval_set_id or stem_of(output), **options)
    write_eval_set(eval_set, output)
    turns = sum(len(case.conversation or ()) for case in eval_set.eval_cases)
    click.echo(f"{output}: {_counted(len(eval_set.eval_cases), 'case')}, {_counted(turns, 'turn')}")


def _function(name: str | None) -> Callable[[str], str] | None:
    """Return the function that ``module:function`` names, also of a module in the working directory."""
    if name is None:
        return None
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"--redact {name}: wanted MODULE:FUNCTION")
    sys.path[:0] = [str(Path.cwd())] if str(Path.cwd()) not in sys.path else []
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--redact {name}: {error}") from error
    if not callable(found):
        raise UsageError(f"--redact {name}: not a function")
    return cast("Callable[[str], str]", found)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
