"""``mlflow-adk-eval capture``: traces of production as an eval set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click

from mlflow_adk_eval.cli.options import COUNT, PATH, check_output, force_option, json_option, store_option
from mlflow_adk_eval.cli.output import tell
from mlflow_adk_eval.errors import UsageError


@click.command()
@click.option("--trace-id", "trace_ids", multiple=True, metavar="ID", help="A trace. Repeatable.")
@click.option("--session", metavar="ID", help="All traces of a session.")
@click.option("--run-id", metavar="ID", help="The traces of an MLflow run.")
@click.option("--filter", "filter_string", metavar="FILTER", help="The traces matching an MLflow filter, each with its whole session.")
@click.option("--experiment", help="The MLflow experiment, by name or id. Default: the current one.")
@click.option("--sample", type=COUNT, help="Draw at most this many cases at random. Default: all.")
@click.option("--seed", type=int, default=0, show_default=True, help="The random seed of --sample.")
@click.option("--eval-set-id", help="The id of the eval set. Default: the name of the file.")
@click.option("--redact", metavar="MODULE:FUNCTION", help="Apply this function to every text of users, tools and the agent.")
@click.option("-o", "--output", required=True, type=PATH, help="The eval set to write.")
@force_option
@store_option
@json_option
def capture(
    *,
    trace_ids: tuple[str, ...],
    output: Path,
    force: bool,
    redact: str | None,
    eval_set_id: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Turn traces into an eval set, one case per session.

    What the agent did becomes the reference that later versions are compared with.
    """
    from mlflow_adk_eval.evalset import stem_of, write_eval_set  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.sentences import counted  # noqa: PLC0415
    from mlflow_adk_eval.tracking.capture import capture as captured  # noqa: PLC0415

    check_output(output, force=force)
    eval_set = captured(trace_ids=trace_ids or None, redact=_function(redact), eval_set_id=eval_set_id or stem_of(output), **options)
    write_eval_set(eval_set, output)
    turns = sum(len(case.conversation or ()) for case in eval_set.eval_cases)
    cases = len(eval_set.eval_cases)
    told = f"{output}: {counted(cases, 'case')}, {counted(turns, 'turn')}"
    tell(told, as_json=as_json, then=f"mlflow-adk-eval run AGENT {output}", file=str(output), cases=cases, turns=turns)


def _function(name: str | None) -> Callable[[str], str] | None:
    """Return the function that ``module:function`` names, also of a module in the working directory."""
    from mlflow_adk_eval.runtime import model_or_object  # noqa: PLC0415 - as above

    found: Any = model_or_object(name, "--redact")
    if name is not None and not callable(found):
        problem = "not a function" if ":" in name else "not a function; wanted MODULE:FUNCTION"
        raise UsageError(f"--redact {name}: {problem}")
    return cast("Callable[[str], str] | None", found)
