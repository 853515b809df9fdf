"""``mlflow-adk-eval validate`` and ``migrate``: the files that everything else reads.

`validate_file` finds out by name and content what kind of file it has before it, and leaves the checking to the reader that every other
command uses for that kind, so that what is valid here is valid there. Only that reader is imported: a check takes a fraction of a second.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from mlflow_adk_eval.cli.options import EXIT_CODES, PATH, check_output, force_option, json_option
from mlflow_adk_eval.cli.output import print_json
from mlflow_adk_eval.errors import ConfigError, EvalSetError, InputError

_CONFIG_KEYS = {
    "criteria",
    "custom_metrics",
    "customMetrics",
    "user_simulator_config",
    "userSimulatorConfig",
    "case_criteria",
    "caseCriteria",
}
_POLICY_KEYS = {"rules", "slices", "must_pass", "mustPass", "thresholds", "waivers"}
_RESULT_KEYS = {"eval_case_results", "evalCaseResults"}
_YAML = (".yaml", ".yml")
"""Only policies are written in YAML."""


@click.command(epilog=EXIT_CODES)
@click.argument("files", nargs=-1, required=True, type=PATH)
@json_option
def validate(files: tuple[Path, ...], *, as_json: bool) -> None:
    """List every problem in eval sets, configs and other files.

    Eval sets of all ADK generations, eval configs, gate policies, recordings and result files are told apart by name and content.
    """
    rows = [_row(file) for file in files]
    if as_json:
        print_json(rows)
    for row in rows if not as_json else []:
        click.echo(f"{row['file']}: {row['kind']}, {row['summary']}" if row["valid"] else row["error"], err=not row["valid"])
    sys.exit(0 if all(row["valid"] for row in rows) else InputError.exit_code)


@click.command()
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
@click.option("--initial_session_file", type=PATH, help="The separate session file of a legacy list of turns.")
@force_option
def migrate(old: Path, new: Path, *, initial_session_file: Path | None, force: bool) -> None:
    """Rewrite an eval set of any ADK generation in today's format."""
    from mlflow_adk_eval.evalset import migrate as rewrite  # noqa: PLC0415 - `--help` stays fast

    check_output(new, force=force)
    eval_set = rewrite(old, new, initial_session=initial_session_file)
    click.echo(f"{new}: {len(eval_set.eval_cases)} cases")


def _row(file: Path) -> dict[str, Any]:
    """Return what is printed of a file."""
    try:
        return {"file": str(file), "valid": True, **validate_file(file)}
    except InputError as error:
        problems = [{"path": problem.path, "message": str(problem)} for problem in error.problems]
        return {"file": str(file), "valid": False, "problems": problems, "error": str(error)}


def validate_file(file: Path) -> dict[str, str]:
    """Return what a file is and holds, as ``kind`` and ``summary``.

    Raises:
        InputError: with everything that is wrong with it.
    """
    from mlflow_adk_eval.evalset import parse_eval_set, stem_of  # noqa: PLC0415
    from mlflow_adk_eval.evalset.conversation import is_recording  # noqa: PLC0415
    from mlflow_adk_eval.evalset.parse import decode, read_text  # noqa: PLC0415

    if file.suffix in _YAML:
        return _policy(file)
    named_config = file.name.endswith("config.json")
    error = ConfigError if named_config else EvalSetError
    text = read_text(file, error=error)
    head = decode(text, str(file), error=error)
    keys = set(head) if isinstance(head, dict) else set[str]()
    if named_config or _CONFIG_KEYS & keys:
        return _config(head, file)
    if _POLICY_KEYS & keys:
        return _policy(file)
    if is_recording(text):
        return _recording(text, file)
    if isinstance(head, str) or _RESULT_KEYS & keys:
        return _result(text, file)
    eval_set = parse_eval_set(text, str(file), stem=stem_of(file))
    turns = sum(len(case.conversation or ()) for case in eval_set.eval_cases)
    kind = "legacy eval set" if isinstance(head, list) else "eval set"
    return {"kind": kind, "summary": f"{len(eval_set.eval_cases)} cases, {turns} written turns"}


def _config(head: Any, file: Path) -> dict[str, str]:
    from mlflow_adk_eval.config.eval_config import parse_config  # noqa: PLC0415

    thresholds = parse_config(head, str(file)).thresholds()
    return {"kind": "eval config", "summary": ", ".join(f"{name} {threshold}" for name, threshold in thresholds.items())}


def _result(text: bytes, file: Path) -> dict[str, str]:
    from mlflow_adk_eval.evalset.result import parse_result  # noqa: PLC0415

    result = parse_result(text, str(file))
    return {"kind": "eval set result", "summary": f"{len(result.eval_case_results)} cases of {result.eval_set_id}"}


def _recording(text: bytes, file: Path) -> dict[str, str]:
    from mlflow_adk_eval.evalset.conversation import parse_recorded  # noqa: PLC0415

    recorded = parse_recorded(text, str(file))
    runs = [run for case in recorded.cases for run in case.runs]
    failed = sum(bool(run.error) for run in runs)
    summary = f"{len(runs)} conversations on {len(recorded.cases)} cases of {recorded.eval_set_id or 'an unnamed eval set'}"
    return {"kind": "recording", "summary": f"{summary}, {failed} of them failed" if failed else summary}


def _policy(file: Path) -> dict[str, str]:
    from mlflow_adk_eval.gating.policy.load import load_policy  # noqa: PLC0415
    from mlflow_adk_eval.report.sentences import counted  # noqa: PLC0415

    policy = load_policy(file)
    demands = ["every threshold of the run's config"] if policy.thresholds else []
    demands += [counted(len(policy.all_rules()), "rule")] if policy.all_rules() else []
    demands += [f"{counted(len(policy.must_pass), 'case')} that must pass"] if policy.must_pass else []
    demands += [counted(len(policy.waivers), "waiver")] if policy.waivers else []
    return {"kind": "gate policy", "summary": f"{policy.name!r} with {', '.join(demands)}; sha256 {policy.digest()[:12]}…"}
