"""What a reader without a screen asks: ``mlflow-adk-eval plan`` before a run, ``explain`` after it, and ``mcp``, which offers both to coding agents."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from mlflow_adk_eval.cli import options as shared
from mlflow_adk_eval.cli.output import print_json
from mlflow_adk_eval.errors import JudgeError, UsageError
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.text import as_yaml, counted


@click.command("explain", epilog=shared.NO_VERDICT)
@click.argument("run_id", metavar="RUN")
@click.option(
    "--case", "eval_id", metavar="CASE", help="Explain this case turn by turn: what was expected, what came, and the judge's reason."
)
@shared.mlflow_options
def explain_command(run_id: str, *, eval_id: str | None, tracking_uri: str | None, as_json: bool) -> None:
    """List why RUN did not pass, each cause once, or explain one case of it."""
    from mlflow_adk_eval.gating.named_runs import run_id_of  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.gating.registry import store_at  # noqa: PLC0415
    from mlflow_adk_eval.report.explanation import case_explained, causes_json  # noqa: PLC0415
    from mlflow_adk_eval.runs.manifest import part_of  # noqa: PLC0415
    from mlflow_adk_eval.tracking.compare import readable_run  # noqa: PLC0415

    with store_at(tracking_uri) as store:
        run = readable_run(store.evidence(run_id_of(run_id, store)), "explained")
    report = run.report
    head: dict[str, Any] = {"run_id": run.evidence.run_id, "verdict": report.verdict}
    if part := part_of(run.evidence.params):
        head["covers_only"] = part
    head["problems"] = list(run.problems)
    found: dict[str, Any] = {"case_runs": case_explained(report, eval_id) if eval_id else dict(Counter(report.verdicts))}
    if not eval_id:
        found |= {"causes": causes_json(report), "notes": list(report.notes)}
    _show(head | found, as_json=as_json)


@click.command("plan", epilog=shared.NO_VERDICT)
@click.argument("eval_sets", metavar="EVAL_SET[:CASE,CASE]...", nargs=-1, required=True)
@shared.config_option
@click.option("--num-runs", type=shared.COUNT, default=1, help="Times to repeat each conversation.")
@shared.mlflow_options
def plan_command(eval_sets: tuple[str, ...], *, config: Path | None, num_runs: int, tracking_uri: str | None, as_json: bool) -> None:
    """Show what `run` would do on eval sets, and what the last run on them took.

    Runs no agent and asks no judge, but imports the functions of custom metrics. Names what `run` would refuse.
    """
    from mlflow_adk_eval.config.eval_config import judged_criteria  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.config.inputs import load_inputs  # noqa: PLC0415
    from mlflow_adk_eval.criteria.coverage import coverage_of  # noqa: PLC0415
    from mlflow_adk_eval.criteria.plan import plan  # noqa: PLC0415

    shared.agent_path("")  # code in the working directory can be imported
    eval_set, given = load_inputs(list(eval_sets) if eval_sets[1:] else "".join(eval_sets), config)
    cases, obstacles = eval_set.eval_cases, list[str]()
    try:
        plan(given, eval_set)
    except JudgeError as error:  # such as a key that is not set: the numbers are there all the same
        obstacles.append(str(error))
    coverage = coverage_of(given, cases)
    obstacles += coverage.obstacles
    facts: dict[str, Any] = {"eval_set_id": eval_set.eval_set_id, "cases": len(cases), "conversations": len(cases) * num_runs}
    facts["simulated_conversations"] = sum(case.conversation is None for case in cases) * num_runs
    facts["written_turns"] = sum(len(case.conversation or ()) for case in cases) * num_runs
    facts |= {"thresholds": given.thresholds(), "obstacles": obstacles, "notes": list(coverage.notes)}
    asked = ((name, one.judge_panel, one.judge_model_options) for name, listed in judged_criteria(given).items() for one in listed)
    facts["judges"] = {
        name: f"{' and '.join(panel or [one.judge_model])}, {counted(one.num_samples, 'vote')} for each verdict"
        for name, panel, one in asked
    }
    _show(facts | {"last_run": _last_run(eval_set.eval_set_id, tracking_uri)}, as_json=as_json)


def _last_run(eval_set_id: str, tracking_uri: str | None) -> dict[str, Any] | None:
    """Return what the last run on an eval set took, as MLflow lists it; ``None`` where it lists none."""
    from mlflow_adk_eval.gating.registry import store_at  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.runs.listed import listed_runs  # noqa: PLC0415

    with suppress(UsageError), store_at(tracking_uri) as store:
        for row in (row for row in listed_runs(store.client) if row.eval_set == eval_set_id):
            means = {name: number.mean for name, number in row.criteria.items() if number.threshold is None}
            head = {"run_id": row.run_id, "verdict": row.verdict, "cases": row.cases}
            return {**head, "judge_calls": row.calls, "judge_tokens": row.tokens, "mean_per_turn": means}
    return None


@click.command("mcp", epilog=shared.NO_VERDICT)
@click.option(
    "--folder", type=click.Path(exists=True, file_okay=False), default=".", help="The folder to work in. Tools name nothing outside of it."
)
@shared.policy_option
@click.option("--allow-promotion", is_flag=True, help="Also offer the tool `promote`, which decides by --policy.")
@click.option("--max-calls", type=shared.COUNT, help="The most model requests that one tool call may make to judges.")
@shared.store_option
def mcp_command(*, folder: str, policy: Path | None, allow_promotion: bool, max_calls: int | None, tracking_uri: str | None) -> None:
    """Serve coding agents: an MCP server on standard input and output.

    Its tools validate, plan, run, explain, compare and gate. `run` executes the code of the agent that a call names. Needs the extra `mcp`.
    """
    from mlflow_adk_eval.runtime import require_extra  # noqa: PLC0415 - `--help` stays fast

    if allow_promotion and policy is None:
        raise UsageError("--allow-promotion needs --policy: the thresholds in a run are chosen by whoever evaluates")
    with require_extra("mcp", "`mcp`"):
        from mlflow_adk_eval.integrations.mcp_server import make_server  # noqa: PLC0415 - an extra

    server = make_server(policy and policy.resolve(), allow_promotion=allow_promotion, max_calls=max_calls)
    os.chdir(folder)
    os.environ.update({"MLFLOW_TRACKING_URI": tracking_uri} if tracking_uri else {})
    server.run("stdio")


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    print_json(facts) if as_json else click.echo(redacted(as_yaml(facts), secrets_of()), nl=False)
