"""``mlflow-adk-eval validate`` and ``migrate``: the files that everything else reads.

`validate_file` finds out by name and content what kind of file it has before it, and leaves the checking to the reader that every other
command uses for that kind, so that what is valid here is valid there. Only that reader is imported: a check takes a fraction of a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_adk_eval.cli.options import EXIT_CODES, PATH, agent_path, check_output, force_option, json_option
from mlflow_adk_eval.cli.output import end, print_json, tell
from mlflow_adk_eval.errors import ConfigError, EvalSetError, InputError, PolicyError, Problem

if TYPE_CHECKING:
    from mlflow_adk_eval.config.eval_config import EvalConfig
    from mlflow_adk_eval.evalset.conversation import RecordedRun
    from mlflow_adk_eval.gating.policy.model import Policy

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
@click.argument("files", nargs=-1, required=True)
@json_option
def validate(files: tuple[str, ...], *, as_json: bool) -> None:
    """List every problem in eval sets, configs and other files.

    Eval sets of all ADK generations and formats, eval configs, gate policies, recordings and result files are told apart by name and
    content. The functions of custom metrics are imported. A rule of a policy may be on a custom metric of a config that is named, too, or
    that lies beside the policy.
    """
    customs = _customs(files)
    rows = [_row(file, customs) for file in files]
    if as_json:
        print_json(rows)
    for row in rows if not as_json else []:
        click.echo(f"{row['file']}: {row['kind']}, {row['summary']}" if row["valid"] else row["error"], err=not row["valid"])
    end(0 if all(row["valid"] for row in rows) else InputError.exit_code)


@click.command()
@click.argument("old", metavar="OLD[:CASE,CASE]")
@click.argument("new", type=PATH)
@click.option("--initial_session_file", type=PATH, help="The separate session file of a legacy list of turns.")
@click.option("--actual", metavar="FILE", help="A recording whose conversations are written beside their cases.")
@force_option
@json_option
def migrate(old: str, new: Path, *, initial_session_file: Path | None, actual: str | None, force: bool, as_json: bool) -> None:
    """Rewrite an eval set in another format.

    OLD is JSON of any ADK generation, JSON Lines or Parquet. The name of NEW decides the format: .jsonl, .ndjson (also .gz and .zst) and
    .parquet are rows, which may also hold what an agent did; anything else is today's JSON of ADK.
    """
    from mlflow_adk_eval.evalset import migrate as rewrite  # noqa: PLC0415 - `--help` stays fast

    check_output(new, force=force)
    count = rewrite(old, new, initial_session=initial_session_file, recorded=None if actual is None else _recorded(actual))
    tell(f"{new}: {_counted(count, 'case')}", as_json=as_json, file=str(new), cases=count)


def _recorded(actual: str) -> dict[str, tuple[RecordedRun, ...]]:
    from mlflow_adk_eval.agents.recordings import load_recording, recorded_run  # noqa: PLC0415 - as above

    return {eval_id: tuple(map(recorded_run, runs)) for eval_id, runs in load_recording(actual).runs.items()}


def _customs(files: Sequence[str]) -> set[str]:
    """Return the names of the custom metrics in configs, and in those beside policies; what cannot be read is told by its own row."""
    beside = (config for file in files if file.endswith(_YAML) for config in Path(file).parent.glob("*config.json"))
    names: set[str] = set()
    for file in {Path(file) for file in files if file.endswith("config.json")} | set(beside):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            head = json.loads(file.read_text(encoding="utf-8"))
            names |= {str(name) for key in ("custom_metrics", "customMetrics") for name in head.get(key) or ()}
    return names


def _row(file: str, customs: AbstractSet[str]) -> dict[str, Any]:
    """Return what is printed of a file."""
    from mlflow_adk_eval.evalset.rows import is_rows  # noqa: PLC0415 - as above

    try:
        return {"file": file, "valid": True, **(_rows(file) if is_rows(file) else validate_file(Path(file), customs))}
    except InputError as error:
        problems = [{"path": problem.path, "message": str(problem)} for problem in error.problems]
        return {"file": file, "valid": False, "problems": problems, "error": str(error)}


def validate_file(file: Path, customs: AbstractSet[str] = frozenset()) -> dict[str, str]:
    """Return what a file is and holds, as ``kind`` and ``summary``.

    Args:
        file: the file.
        customs: the names of custom metrics, on which rules of a policy may be.

    Raises:
        InputError: with everything that is wrong with it.
    """
    from mlflow_adk_eval.evalset import parse_eval_set, stem_of  # noqa: PLC0415
    from mlflow_adk_eval.evalset.conversation import is_recording  # noqa: PLC0415
    from mlflow_adk_eval.evalset.parse import decode, read_text  # noqa: PLC0415

    if file.suffix in _YAML:
        return _policy(file, customs)
    named_config = file.name.endswith("config.json")
    error = ConfigError if named_config else EvalSetError
    text = read_text(file, error=error)
    head = decode(text, str(file), error=error)
    keys = set(head) if isinstance(head, dict) else set[str]()
    if named_config or _CONFIG_KEYS & keys:
        return _config(head, file)
    if _POLICY_KEYS & keys:
        return _policy(file, customs)
    if is_recording(text):
        return _recording(text, file)
    if isinstance(head, str) or _RESULT_KEYS & keys:
        return _result(text, file)
    eval_set = parse_eval_set(text, str(file), stem=stem_of(file))
    turns = sum(len(case.conversation or ()) for case in eval_set.eval_cases)
    kind = "legacy eval set" if isinstance(head, list) else "eval set"
    return {"kind": kind, "summary": f"{_counted(len(eval_set.eval_cases), 'case')}, {_counted(turns, 'written turn')}"}


def _rows(named: str) -> dict[str, str]:
    from mlflow_adk_eval.evalset.rows import open_cases  # noqa: PLC0415

    cases = turns = conversations = failed = 0
    for batch in open_cases(named).batches():
        cases += len(batch)
        turns += sum(len(row.case.conversation or ()) for row in batch)
        runs = [run for row in batch for run in row.runs or ()]
        conversations += len(runs)
        failed += sum(bool(run.error) for run in runs)
    summary = f"{_counted(cases, 'case')}, {_counted(turns, 'written turn')}"
    if not conversations:
        return {"kind": "eval set", "summary": summary}
    ended = f", {failed} of them failed" if failed else ""
    return {"kind": "eval set with recordings", "summary": f"{summary}, {_counted(conversations, 'recorded conversation')}{ended}"}


def _config(head: Any, file: Path) -> dict[str, str]:
    from mlflow_adk_eval.config.eval_config import parse_config  # noqa: PLC0415

    config = parse_config(head, str(file))
    problems = list(_unusable(config))
    if problems:
        raise ConfigError(str(file), problems)
    thresholds = config.thresholds()
    return {"kind": "eval config", "summary": ", ".join(f"{name} {threshold}" for name, threshold in thresholds.items())}


def _unusable(config: EvalConfig) -> Iterator[Problem]:
    """Yield the custom metrics whose function cannot be had, as a run would find."""
    if config.custom_metrics:
        from mlflow_adk_eval.criteria.custom import load_function  # noqa: PLC0415 - as above

        agent_path("")  # code in the working directory can be imported
        for name, custom in config.custom_metrics.items():
            try:
                load_function(name, custom)
            except ConfigError as error:
                yield from error.problems


def _result(text: bytes, file: Path) -> dict[str, str]:
    from mlflow_adk_eval.evalset.result import parse_result  # noqa: PLC0415

    result = parse_result(text, str(file))
    return {"kind": "eval set result", "summary": f"{_counted(len(result.eval_case_results), 'case')} of {result.eval_set_id}"}


def _recording(text: bytes, file: Path) -> dict[str, str]:
    from mlflow_adk_eval.evalset.conversation import parse_recorded  # noqa: PLC0415

    recorded = parse_recorded(text, str(file))
    runs = [run for case in recorded.cases for run in case.runs]
    failed = sum(bool(run.error) for run in runs)
    held = f"{_counted(len(runs), 'conversation')} on {_counted(len(recorded.cases), 'case')}"
    summary = f"{held} of {recorded.eval_set_id or 'an unnamed eval set'}"
    return {"kind": "recording", "summary": f"{summary}, {failed} of them failed" if failed else summary}


def _policy(file: Path, customs: AbstractSet[str]) -> dict[str, str]:
    from mlflow_adk_eval.gating.policy.load import load_policy  # noqa: PLC0415

    policy = load_policy(file)
    problems = list(_unmeasured(policy, customs))
    if problems:
        raise PolicyError(str(file), problems)
    demands = ["every threshold of the run's config"] if policy.thresholds else []
    demands += [_counted(len(policy.all_rules()), "rule")] if policy.all_rules() else []
    demands += [f"{_counted(len(policy.must_pass), 'case')} that must pass"] if policy.must_pass else []
    demands += [_counted(len(policy.waivers), "waiver")] if policy.waivers else []
    return {"kind": "gate policy", "summary": f"{policy.name!r} with {', '.join(demands)}; sha256 {policy.digest()[:12]}…"}


def _unmeasured(policy: Policy, customs: AbstractSet[str]) -> Iterator[Problem]:
    """Yield the rules on what nothing measures, which the gate could not decide."""
    from mlflow_adk_eval.config.spec import CRITERIA, PASS_HAT  # noqa: PLC0415 - as above
    from mlflow_adk_eval.errors import did_you_mean, json_path  # noqa: PLC0415
    from mlflow_adk_eval.gating.rules.measures import OF_A_CRITERION, OF_ALL  # noqa: PLC0415

    criteria = {*CRITERIA, *customs}
    for named, measure, _ in policy.all_rules():
        criterion, _, of_it = measure.rpartition("/")
        if measure in criteria or measure in OF_ALL or PASS_HAT.fullmatch(measure) or (criterion in criteria and of_it in OF_A_CRITERION):
            continue
        path = json_path("$", ["slices", named, "rules", measure] if named else ["rules", measure])
        wanted = f"a criterion, a custom metric of a config that is named here or lies beside the policy, or one of {', '.join(OF_ALL)}"
        yield Problem(path, "a rule on what nothing measures", wanted, did_you_mean(measure, [*criteria, *OF_ALL]))


def _counted(number: int, noun: str) -> str:
    from mlflow_adk_eval.report.sentences import counted  # noqa: PLC0415 - `--help` stays fast

    return counted(number, noun)
