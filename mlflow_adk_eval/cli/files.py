"""The files that everything else reads: ``mlflow-adk-eval validate``, ``generate``, ``capture``, ``migrate``, ``export`` and ``eval_set``.

`validate_file` finds out by name and content what kind of file it has before it, and leaves the checking to the reader that every other
command uses for that kind, so that what is valid here is valid there. Only that reader is imported: a check takes a fraction of a second.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli import options as shared
from mlflow_adk_eval.cli.init import only_agent
from mlflow_adk_eval.cli.output import end, print_json, tell
from mlflow_adk_eval.errors import ConfigError, EvalSetError, InputError, PolicyError, Problem, UsageError
from mlflow_adk_eval.redact import command
from mlflow_adk_eval.text import counted

if TYPE_CHECKING:
    from mlflow_adk_eval.tracking.earlier_runs import What


_CONFIG_KEYS = {"criteria", "custom_metrics", "user_simulator_config", "case_criteria", "metrics_to_run"}
_POLICY_KEYS = {"rules", "slices", "must_pass", "mustPass", "thresholds", "waivers"}
_CONFIG, _SET, _LEGACY, _RECORDED = "eval config", "eval set", "legacy eval set", "eval set with recordings"
_EVAL_SETS = (_SET, _LEGACY, _RECORDED)
"""The kinds of files that have cases."""
_YAML = (".yaml", ".yml")
"""Only policies are written in YAML."""


@click.command(epilog=shared.exit_codes("every file is valid", "the command was interrupted", "a file has problems, or bad usage"))
@click.argument("files", nargs=-1, required=True)
@shared.json_option
def validate(files: tuple[str, ...], *, as_json: bool) -> None:
    """List every problem in eval sets, configs and other files.

    Given eval sets and a config, it also lists what the config's criteria cannot decide, and what no criterion reads.

    Detects eval sets of every ADK generation and format, eval configs, gate policies, recordings and result files by name and content.
    Imports the functions of custom metrics. A policy may have rules on custom metrics of a config that you also pass, or that is in the
    policy's folder.
    """
    from mlflow_adk_eval.evalset.files import ConformanceFolder, RowFiles, open_file  # noqa: PLC0415 - `--help` stays fast

    customs = _custom_metrics(files)
    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            named = open_file(file)
            check = _validate_tests if isinstance(named, ConformanceFolder) else _validate_rows if isinstance(named, RowFiles) else None
            rows.append({"file": file, "valid": True, **(check(file) if check else validate_file(Path(file), customs))})
        except InputError as error:
            problems = [{"path": problem.path, "message": str(problem)} for problem in error.problems]
            rows.append({"file": file, "valid": False, "problems": problems, "error": str(error)})
    valid = all(row["valid"] for row in rows)
    if valid:
        _add_coverage(rows)
    if as_json:
        print_json(rows)
    for row in rows if not as_json else []:
        click.echo(f"{row['file']}: {row['kind']}, {row['summary']}" if row["valid"] else row["error"], err=not row["valid"])
        for sentence in (*row.get("obstacles", ()), *row.get("notes", ())):
            click.echo(f"  {row['file']} with {row['config']}: {sentence}")
    end(0 if valid else InputError.exit_code)


def _add_coverage(rows: Sequence[dict[str, Any]]) -> None:
    """Add to each eval set what the criteria of the config that was named with it cannot decide and do not read."""
    configs = [Path(row["file"]) for row in rows if row["kind"] == _CONFIG]
    eval_sets = [row for row in rows if row["kind"] in _EVAL_SETS]
    if not configs or not eval_sets:
        return
    from mlflow_adk_eval.config.inputs import load_inputs  # noqa: PLC0415 - most checks are of single files
    from mlflow_adk_eval.criteria.coverage import coverage_of  # noqa: PLC0415

    for row in eval_sets:
        beside = [config for config in configs if config.parent == Path(row["file"]).parent]
        candidates = configs if len(configs) == 1 else beside
        if len(candidates) != 1:  # of several, nobody has said which one it is for
            continue
        eval_set, config = load_inputs(row["file"], candidates[0], as_needed=True)
        coverage = coverage_of(config, eval_set.eval_cases)
        row["config"] = str(candidates[0])
        row["obstacles"], row["notes"] = list(coverage.obstacles), list(coverage.notes)


@click.command(epilog=shared.NO_VERDICT)
@click.argument("old", metavar="OLD[:CASE,CASE]")
@click.argument("new", type=shared.PATH)
@click.option("--initial-session-file", type=shared.PATH, help="The separate session file of a legacy list of turns.")
@click.option("--actual", metavar="FILE", help="A recording to store in the same rows as its cases.")
@shared.force_option
@shared.json_option
def migrate(old: str, new: Path, *, initial_session_file: Path | None, actual: str | None, force: bool, as_json: bool) -> None:
    """Rewrite an eval set in another format.

    OLD is JSON of any ADK generation, JSON Lines or Parquet. The suffix of NEW sets the format: .jsonl, .ndjson (also .gz and .zst) and
    .parquet are rows, optionally with an agent's conversations; any other suffix is ADK's current JSON.
    """
    shared.check_output(new, force=force)
    recorded = None
    if actual is not None:
        from mlflow_adk_eval.agents.recordings import recorded_run  # noqa: PLC0415 - as above

        recorded = {eval_id: tuple(map(recorded_run, runs)) for eval_id, runs in adk_eval.load_recording(actual).runs.items()}
    count = adk_eval.migrate(old, new, initial_session=initial_session_file, recorded=recorded)
    tell(f"{new}: {counted(count, 'case')}", as_json=as_json, file=str(new), cases=count)


def _custom_metrics(files: Sequence[str]) -> set[str]:
    """Return the names of the custom metrics in configs, and in those beside policies; what cannot be read is told by its own row."""
    beside = (config for file in files if file.endswith(_YAML) for config in Path(file).parent.glob("*config.json"))
    names: set[str] = set()
    for file in {Path(file) for file in files if file.endswith("config.json")} | set(beside):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            head = json.loads(file.read_text(encoding="utf-8"))
            names |= {str(name) for key in ("custom_metrics", "customMetrics") for name in head.get(key) or ()}
    return names


def validate_file(file: Path, customs: Collection[str] = frozenset()) -> dict[str, str]:
    """Return what a file is and holds, as ``kind`` and ``summary``.

    Args:
        file: the file.
        customs: the names of custom metrics, on which rules of a policy may be.

    Raises:
        InputError: with everything that is wrong with it.
    """
    from pydantic.alias_generators import to_snake  # noqa: PLC0415 - `--help` stays fast

    from mlflow_adk_eval.evalset.conversation import is_recording, is_result, parse_recorded, parse_result  # noqa: PLC0415
    from mlflow_adk_eval.evalset.files import parse_eval_set, stem_of  # noqa: PLC0415
    from mlflow_adk_eval.evalset.parse import decode, read_text  # noqa: PLC0415

    if file.suffix in _YAML:
        return _validate_policy(file, customs)
    named_config = file.name.endswith("config.json")
    text = read_text(file, error=ConfigError if named_config else EvalSetError)
    keys = _top_keys(text)
    is_config = named_config or bool(_CONFIG_KEYS & set(map(to_snake, keys)))  # ADK writes them in camel case
    if not is_config and _POLICY_KEYS & keys:
        return _validate_policy(file, customs)
    head = decode(text, str(file), error=ConfigError if is_config else EvalSetError)
    if is_config:
        return _validate_config(head, file)
    if is_recording(text):
        recorded = parse_recorded(text, str(file))
        runs = [run for case in recorded.cases for run in case.runs]
        failed = sum(bool(run.error) for run in runs)
        summary = f"{counted(len(runs), 'conversation')} on {counted(len(recorded.cases), 'case')} of {recorded.eval_set_id or 'an unnamed eval set'}"
        return {"kind": "recording", "summary": f"{summary}, {failed} of them failed" if failed else summary}
    if is_result(text):
        result = parse_result(text, str(file))
        return {"kind": "eval set result", "summary": f"{counted(len(result.eval_case_results), 'case')} of {result.eval_set_id}"}
    eval_set = parse_eval_set(text, str(file), stem=stem_of(file))
    turns = sum(len(case.conversation or ()) for case in eval_set.eval_cases)
    kind = _LEGACY if isinstance(head, list) else _SET
    return {"kind": kind, "summary": f"{counted(len(eval_set.eval_cases), 'case')}, {counted(turns, 'written turn')}"}


def _top_keys(text: bytes) -> set[str]:
    """Return the keys of a JSON object, also of one that repeats some; none where there is no such object."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return set(value)
    return set()


def _validate_rows(named: str) -> dict[str, str]:
    from mlflow_adk_eval.evalset.rows import open_cases  # noqa: PLC0415

    cases = turns = conversations = failed = 0
    for batch in open_cases(named).batches():
        cases += len(batch)
        turns += sum(len(row.case.conversation or ()) for row in batch)
        runs = [run for row in batch for run in row.runs or ()]
        conversations += len(runs)
        failed += sum(bool(run.error) for run in runs)
    summary = f"{counted(cases, 'case')}, {counted(turns, 'written turn')}"
    if not conversations:
        return {"kind": _SET, "summary": summary}
    ended = f", {failed} of them failed" if failed else ""
    return {"kind": _RECORDED, "summary": f"{summary}, {counted(conversations, 'recorded conversation')}{ended}"}


def _validate_tests(named: str) -> dict[str, str]:
    recording = adk_eval.load_recording(named)
    runs = [run for runs in recording.runs.values() for run in runs]
    turns, calls = sum(len(run.actual) for run in runs), sum(len(run.calls) + len(run.model_calls) for run in runs)
    summary = f"{counted(len(runs), 'case')} of agent {recording.name}, {counted(turns, 'turn')}, {counted(calls, 'recorded call')}"
    return {"kind": "conformance tests", "summary": summary}


def _validate_config(head: Any, file: Path) -> dict[str, str]:
    from mlflow_adk_eval.config.eval_config import parse_config  # noqa: PLC0415

    config = parse_config(head, str(file))
    problems: list[Problem] = []
    if config.custom_metrics:
        from mlflow_adk_eval.criteria.custom import load_function  # noqa: PLC0415 - as above

        shared.agent_path("")  # code in the working directory can be imported
        for name, custom in config.custom_metrics.items():
            try:
                load_function(name, custom)
            except ConfigError as error:  # as a run would find
                problems += error.problems
    if problems:
        raise ConfigError(str(file), problems)
    return {"kind": _CONFIG, "summary": ", ".join(f"{name} {threshold}" for name, threshold in config.thresholds().items())}


def _validate_policy(file: Path, customs: Collection[str]) -> dict[str, str]:
    from mlflow_adk_eval.gating.policy.load import load_policy, unmeasured  # noqa: PLC0415

    policy = load_policy(file)
    if problems := list(unmeasured(policy, customs)):
        raise PolicyError(str(file), problems)
    demands = ["every threshold in the run's config"] if policy.thresholds else []
    demands += [counted(len(policy.all_rules()), "rule")] if policy.all_rules() else []
    demands += [f"{counted(len(policy.must_pass), 'case')} that must pass"] if policy.must_pass else []
    demands += [counted(len(policy.waivers), "waiver")] if policy.waivers else []
    return {"kind": "gate policy", "summary": f"{policy.name!r} with {', '.join(demands)}; sha256 {policy.digest()[:12]}…"}


@click.command(epilog=shared.exit_codes("written, or accepted", "the model wrote nothing"))
@click.argument("agent", required=False)
@click.option("-o", "--output", type=shared.PATH, help="The eval set to write.")
@click.option(
    "--rubrics", metavar="FILE[:CASE,CASE]", help="Add rubrics for final responses to these cases, if they have none. AGENT is optional."
)
@click.option("--count", type=shared.COUNT, default=10, help="The number of cases, or the most rubrics for a case.")
@click.option("--model", metavar="MODEL|MODULE:NAME", default="gemini-2.5-flash", help="The model that writes them.")
@click.option("--instruction", default="", help="The topic. Default: everything the agent does.")
@click.option("--context", default="", help="Data that the agent's tools can return, so that users ask for things that exist.")
@click.option(
    "--accept", metavar="FILE[:CASE,CASE]", help="Accept generated cases after you have reviewed them; by default all in this eval set."
)
@shared.force_option
@shared.budget_options
@shared.json_option
def generate(
    agent: str | None,
    *,
    output: Path | None,
    rubrics: str | None,
    accept: str | None,
    model: str,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Let a model write cases for AGENT, or rubrics for your cases, or accept them.

    Each case is a scenario: a simulated user's first message, a plan and one of ADK's personas. It has the tag "generated" until you accept it with --accept or
    remove the tag. Until then, the gate refuses runs on it.

    The model writes rubrics from the user's messages, never from an answer. They stay in the eval set, so every run uses the same ones.
    """
    if accept:
        if agent or output or rubrics:
            raise UsageError("--accept takes only the eval set, without AGENT, --output and --rubrics")
        _accept(accept, as_json=as_json)
        return
    if (output is not None) == (rubrics is not None) or (output and agent is None):
        raise UsageError("give AGENT and --output, or --rubrics, or --accept")
    if output:
        shared.check_output(output, force=force)
    from mlflow_adk_eval.agents.resolve import resolve_agent  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.agents.scenarios import description_of, generated_cases, generated_rubrics  # noqa: PLC0415
    from mlflow_adk_eval.criteria.rubrics import FINAL_RESPONSE, own_rubrics  # noqa: PLC0415
    from mlflow_adk_eval.evalset.files import stem_of, write_eval_set  # noqa: PLC0415
    from mlflow_adk_eval.judge.setup import judge_setup  # noqa: PLC0415
    from mlflow_adk_eval.ledger import opened  # noqa: PLC0415
    from mlflow_adk_eval.runner.evaluation import wait  # noqa: PLC0415
    from mlflow_adk_eval.runtime import model_or_object  # noqa: PLC0415

    wanted = {name: options.pop(name) for name in ("count", "instruction", "context")}
    subject = resolve_agent(shared.agent_path(agent)) if agent else None
    setup, writer = judge_setup(**shared.arguments(options)), model_or_object(model, "--model")
    file, eval_set, chosen = _selected(rubrics) if rubrics else (output or "", None, ())
    without = [case for case in chosen if not own_rubrics(FINAL_RESPONSE, case, *(case.conversation or ()))]
    if rubrics and not without:
        raise UsageError(f"{rubrics}: every case has rubrics for final responses, and they stay as they are")
    with opened(setup.ledger) as ledger:
        setup = replace(setup, answers=ledger)
        if subject and not eval_set:
            generated = wait(lambda: generated_cases(subject, writer, setup, **wanted))
        else:
            about = description_of(subject) if subject else ""
            generated = wait(lambda: generated_rubrics(without, writer, setup, about=about, **wanted))
    if eval_set:
        _rewrite(eval_set, generated.cases, file)
    elif output:
        write_eval_set(adk_eval.EvalSet(eval_set_id=stem_of(output), name=stem_of(output), eval_cases=generated.cases), output)
    cases, usage, asked_for = len(generated.cases), generated.usage, len(without) or wanted["count"]
    fewer = f"; wanted {asked_for}, but {generated.problem}" if generated.problem else ""
    failed = f" ({usage.failed_calls:,} failed)" if usage.failed_calls else ""
    reused = f", {counted(usage.reused, 'answer')} reused from the ledger" if usage.reused else ""
    cost = f"{counted(usage.calls, 'call')}{failed}, {counted(usage.tokens, 'token')}{reused}"
    written = counted(cases, "generated case") if output else f"generated rubrics for {counted(cases, 'case')}"
    text = f"{file}: {written}{fewer}\nWritten by {', '.join(usage.models)}: {cost}"
    spent = {"calls": usage.calls, "tokens": usage.tokens, "reused": usage.reused}
    then = f"review them, then mlflow-adk-eval generate --accept {file}"
    tell(text, as_json=as_json, then=then, file=str(file), cases=cases, wanted=asked_for, problem=generated.problem or None, **spent)


def _accept(named: str, *, as_json: bool) -> None:
    from mlflow_adk_eval.agents.scenarios import GENERATED  # noqa: PLC0415 - as above
    from mlflow_adk_eval.evalset.files import dump  # noqa: PLC0415

    file, eval_set, chosen = _selected(named)
    if not (marked := [case for case in chosen if GENERATED in case.tags]):
        raise UsageError(f"{named}: no case has the tag {GENERATED!r}, so there is nothing to accept")
    accepted: list[adk_eval.EvalCase] = []
    for case in marked:
        plain = dump(case)
        tags = [tag for tag in plain.pop("tags") if tag != GENERATED]
        # Without the field where no other is left: google-adk 1 refuses what it does not know.
        accepted.append(type(case).model_validate(plain | ({"tags": tags} if tags else {})))
    _rewrite(eval_set, accepted, file)
    left = sum(GENERATED in case.tags for case in eval_set.eval_cases) - len(marked)
    text = f"{file}: {counted(len(marked), 'case')} accepted" + (f", {left} left to review" if left else "")
    tell(text, as_json=as_json, file=str(file), accepted=len(marked), left=left)


def _selected(named: str) -> tuple[str | Path, adk_eval.EvalSet, Sequence[adk_eval.EvalCase]]:
    """Return the file of an eval set in JSON, what it holds, and the cases that are selected behind a colon, or all."""
    from mlflow_adk_eval.evalset.files import RowFiles, file_at, select, split_selection  # noqa: PLC0415 - as above

    file, selected = split_selection(named)
    if isinstance(file_at(file), RowFiles):
        raise UsageError(f"{file}: wanted an eval set in JSON; edit the rubrics and the tag 'generated' of these rows yourself")
    eval_set = adk_eval.load_eval_set(file)
    return file, eval_set, select(eval_set, selected or eval_set.eval_ids).eval_cases


def _rewrite(eval_set: adk_eval.EvalSet, cases: Iterable[adk_eval.EvalCase], file: str | Path) -> None:
    """Write an eval set back into its file, with other cases of the same ids."""
    from mlflow_adk_eval.evalset.files import write_eval_set  # noqa: PLC0415 - as above

    changed = {case.eval_id: case for case in cases}
    kept = tuple(changed.get(case.eval_id, case) for case in eval_set.eval_cases)
    write_eval_set(eval_set.model_copy(update={"eval_cases": kept}), file)


@click.command(epilog=shared.NO_VERDICT)
@click.option("--trace-id", "trace_ids", multiple=True, metavar="ID", help="A trace. Repeatable.")
@click.option("--session", metavar="ID", help="All traces of a session.")
@click.option("--run-id", metavar="ID", help="The traces of an MLflow run.")
@click.option("--filter", "filter_string", metavar="FILTER", help="The traces matching an MLflow filter, each with its whole session.")
@click.option("--experiment", help="The MLflow experiment, by name or id. Default: the active one.")
@click.option("--sample", type=shared.COUNT, help="Draw at most this many cases at random. Default: all.")
@click.option("--seed", type=int, default=0, help="The random seed of --sample.")
@click.option("--eval-set-id", help="The id of the eval set. Default: the file name.")
@shared.redact_option
@click.option("-o", "--output", required=True, type=shared.PATH, help="The eval set to write.")
@shared.force_option
@shared.mlflow_options
def capture(
    *, trace_ids: tuple[str, ...], output: Path, force: bool, redact: str | None, eval_set_id: str | None, as_json: bool, **options: Any
) -> None:
    """Turn traces into an eval set, one case per session.

    The recorded behavior becomes the reference for later versions.
    """
    from mlflow_adk_eval.evalset.files import stem_of, write_eval_set  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.evalset.models import OPEN_CALLS  # noqa: PLC0415

    shared.check_output(output, force=force)
    function = shared.redact_function(redact)
    eval_set = adk_eval.capture(trace_ids=trace_ids or None, redact=function, eval_set_id=eval_set_id or stem_of(output), **options)
    write_eval_set(eval_set, output)
    cases, turns = len(eval_set.eval_cases), sum(len(case.conversation or ()) for case in eval_set.eval_cases)
    text = f"{output}: {counted(cases, 'case')}, {counted(turns, 'turn')}"
    agent = only_agent(asks=False, needed=False) or "AGENT"
    opened = sum(OPEN_CALLS in case.tags for case in eval_set.eval_cases)
    if opened:
        text += (
            f"\n  the traces do not say which tools were called in {counted(opened, 'case')}: write that, and remove the tag {OPEN_CALLS!r}"
        )
    tell(text, as_json=as_json, then=command("run", agent, output), file=str(output), cases=cases, turns=turns, open=opened)


@click.command("export", epilog=shared.NO_VERDICT)
@click.argument("run_id")
@click.argument("what", type=click.Choice(["eval-set", "result", "rows"]))
@click.option(
    "-o", "--output", type=shared.PATH, required=True, help="The file to write. Its suffix sets the format: .json, .jsonl or .parquet."
)
@shared.force_option
@shared.mlflow_options
def export_command(run_id: str, what: What, *, output: Path, force: bool, tracking_uri: str | None, as_json: bool) -> None:
    """Export a run's eval set or results as files for ADK, or as rows.

    WHAT is eval-set (the cases), result (ADK's result file) or rows (the cases with the agent's conversations). A run with more than 2,000 turns stores no ADK files; this command
    builds them. Refuses a run that was changed after the evaluation.
    """
    from mlflow_adk_eval.tracking.earlier_runs import export  # noqa: PLC0415 - `--help` stays fast

    shared.check_output(output, force=force)
    count = export(run_id, what, output, tracking_uri=tracking_uri)
    text = f"{output}: the {what.replace('-', ' ')} of run {run_id}, {counted(count, 'case')}"
    tell(text, as_json=as_json, file=str(output), cases=count)


@click.group("eval-set")
def eval_set_group() -> None:
    """Create eval sets where ADK keeps them.

    That is the agent's folder or a bucket. Takes the arguments of `adk eval_set`.
    """


@eval_set_group.command(epilog=shared.NO_VERDICT)
@click.argument("agent")
@click.argument("eval_set_id")
@shared.storage_option
@shared.json_option
def create(agent: str, eval_set_id: str, *, eval_storage_uri: str | None, as_json: bool) -> None:
    """Create an eval set without cases for AGENT."""
    from mlflow_adk_eval.evalset.storage import EvalStorage  # noqa: PLC0415 - `--help` stays fast

    file = EvalStorage(agent, eval_storage_uri).create(eval_set_id)
    add = command("eval-set", "add-eval-case", agent, eval_set_id, scenarios_file="FILE", eval_storage_uri=eval_storage_uri)
    tell(f"{file}: a new eval set without cases", as_json=as_json, then=add, file=str(file), cases=0)


@eval_set_group.command("add-eval-case", epilog=shared.NO_VERDICT)
@click.argument("agent")
@click.argument("eval_set_id")
@click.option("--scenarios-file", type=shared.PATH, required=True, help="Conversation scenarios, in ADK's JSON format.")
@click.option("--session-input-file", type=shared.PATH, help="The session in which each case starts, in ADK's JSON format.")
@shared.storage_option
@shared.json_option
def add_eval_case(
    agent: str, eval_set_id: str, *, scenarios_file: Path, session_input_file: Path | None, eval_storage_uri: str | None, as_json: bool
) -> None:
    """Add a case to an eval set for each scenario in a file.

    Scenarios that it already contains are skipped.
    """
    from mlflow_adk_eval.evalset.storage import EvalStorage, cases_of_scenarios  # noqa: PLC0415 - as above

    cases = cases_of_scenarios(scenarios_file, session_input_file)
    storage = EvalStorage(agent, eval_storage_uri)
    new = storage.add(eval_set_id, cases)
    known = len({case.eval_id for case in cases}) - len(new)
    there = f"; {known} {'was' if known == 1 else 'were'} there already" if known else ""
    text = f"{storage.file(eval_set_id)}: {len(new)} new {'case' if len(new) == 1 else 'cases'}{there}"
    run = command("run", agent, eval_set_id, eval_storage_uri=eval_storage_uri)
    tell(text, as_json=as_json, then=run, file=str(storage.file(eval_set_id)), new=len(new), known=known)
