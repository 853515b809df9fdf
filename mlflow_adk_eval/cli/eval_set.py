"""``mlflow-adk-eval eval_set``: eval sets where ADK keeps them, as ``adk eval_set`` does."""

from __future__ import annotations

from pathlib import Path

import click

from mlflow_adk_eval.cli.options import PATH, json_option, storage_option
from mlflow_adk_eval.cli.output import tell


@click.group("eval_set")
def eval_set_group() -> None:
    """Create eval sets where ADK keeps them.

    They are in the agent's folder, or in a bucket. Takes the arguments of `adk eval_set`.
    """


@eval_set_group.command()
@click.argument("agent")
@click.argument("eval_set_id")
@storage_option
@json_option
def create(agent: str, eval_set_id: str, *, eval_storage_uri: str | None, as_json: bool) -> None:
    """Create an eval set without cases for AGENT."""
    from mlflow_adk_eval.evalset.storage import EvalStorage  # noqa: PLC0415 - `--help` stays fast

    file = EvalStorage(agent, eval_storage_uri).create(eval_set_id)
    add = f"mlflow-adk-eval eval_set add_eval_case {agent} {eval_set_id} --scenarios_file FILE{_at(eval_storage_uri)}"
    tell(f"{file}: a new eval set without cases", as_json=as_json, then=add, file=str(file), cases=0)


@eval_set_group.command("add_eval_case")
@click.argument("agent")
@click.argument("eval_set_id")
@click.option("--scenarios_file", type=PATH, required=True, help="Conversation scenarios, JSON as ADK reads it.")
@click.option("--session_input_file", type=PATH, help="The session that each case begins in, JSON as ADK reads it.")
@storage_option
@json_option
def add_eval_case(
    agent: str,
    eval_set_id: str,
    *,
    scenarios_file: Path,
    session_input_file: Path | None,
    eval_storage_uri: str | None,
    as_json: bool,
) -> None:
    """Add a case for each scenario of a file to an eval set.

    A scenario that is there already is not added again.
    """
    from mlflow_adk_eval.evalset.storage import EvalStorage, cases_of_scenarios  # noqa: PLC0415 - as above

    cases = cases_of_scenarios(scenarios_file, session_input_file)
    storage = EvalStorage(agent, eval_storage_uri)
    new = storage.add(eval_set_id, cases)
    known = len({case.eval_id for case in cases}) - len(new)
    there = f"; {known} {'was' if known == 1 else 'were'} there already" if known else ""
    told = f"{storage.file(eval_set_id)}: {len(new)} new {'case' if len(new) == 1 else 'cases'}{there}"
    run = f"mlflow-adk-eval run {agent} {eval_set_id}{_at(eval_storage_uri)}"
    tell(told, as_json=as_json, then=run, file=str(storage.file(eval_set_id)), new=len(new), known=known)


def _at(eval_storage_uri: str | None) -> str:
    return f" --eval_storage_uri {eval_storage_uri}" if eval_storage_uri else ""
