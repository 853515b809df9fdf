"""``mlflow-adk-eval generate``: cases that a model writes for an agent, until a person accepts them no evidence to the gate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_adk_eval.cli.options import COUNT, PATH, agent_path, arguments, budget_options, check_output, force_option, json_option
from mlflow_adk_eval.cli.output import tell
from mlflow_adk_eval.errors import UsageError

if TYPE_CHECKING:
    from mlflow_adk_eval.evalset import EvalCase


@click.command(
    epilog="Exit codes: 0 written, or accepted; 3 the model wrote nothing; 4 its result could not be written; 64 bad usage or a bad input file."
)
@click.argument("agent", required=False)
@click.option("-o", "--output", type=PATH, help="The eval set to write.")
@click.option("--count", type=COUNT, default=10, show_default=True, help="How many cases.")
@click.option("--model", metavar="MODEL|MODULE:NAME", default="gemini-2.5-flash", show_default=True, help="Who writes them.")
@click.option("--instruction", default="", help="What the cases are to be about. Default: all that the agent does.")
@click.option("--context", default="", help="What the agent's tools find, so that people ask for what there is.")
@click.option("--accept", metavar="FILE[:CASE,CASE]", help="Accept generated cases that you have read, by default all of this eval set.")
@force_option
@budget_options
@json_option
def generate(agent: str | None, *, output: Path | None, accept: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Have a model write cases for AGENT, or accept them.

    Each case is a scenario: what a simulated user says first, a plan and one of ADK's personas. It has the tag "generated" until you accept it with --accept, or
    edit it and take out the tag. Until then the gate refuses runs on it.
    """
    if accept:
        if agent or output:
            raise UsageError("generate --accept: takes neither AGENT nor --output; wanted only the eval set")
        _accept(accept, as_json=as_json)
        return
    if agent is None or output is None:
        raise UsageError("generate: wanted AGENT and --output, or --accept")
    check_output(output, force=force)
    _generate(agent, output, as_json=as_json, **options)


def _generate(agent: str, output: Path, *, as_json: bool, count: int, model: str, instruction: str, context: str, **spending: Any) -> None:
    from mlflow_adk_eval.agents.resolve import resolve_agent  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.agents.scenarios import Wishes, generated_cases  # noqa: PLC0415
    from mlflow_adk_eval.evalset import EvalSet, stem_of, write_eval_set  # noqa: PLC0415
    from mlflow_adk_eval.judge.setup import judge_setup  # noqa: PLC0415
    from mlflow_adk_eval.ledger import opened  # noqa: PLC0415
    from mlflow_adk_eval.report.sentences import counted  # noqa: PLC0415
    from mlflow_adk_eval.runner import wait  # noqa: PLC0415
    from mlflow_adk_eval.runtime import model_or_object  # noqa: PLC0415

    found, setup = resolve_agent(agent_path(agent)), judge_setup(**arguments(spending))
    wishes, writer = Wishes(count=count, generation_instruction=instruction, environment_context=context), model_or_object(model, "--model")
    with opened(setup.ledger) as ledger:
        made = wait(lambda: generated_cases(found, writer, wishes, replace(setup, answers=ledger)))
    name, cases, usage = stem_of(output), len(made.cases), made.usage
    write_eval_set(EvalSet(eval_set_id=name, name=name, eval_cases=made.cases), output)
    fewer = f"; {count} were asked for, but {made.problem}" if made.problem else ""
    failed = f" ({usage.failed_calls:,} failed)" if usage.failed_calls else ""
    reused = f", {counted(usage.reused, 'answer')} reused from the ledger" if usage.reused else ""
    cost = f"{counted(usage.calls, 'call')}{failed}, {counted(usage.tokens, 'token')}{reused}"
    told = f"{output}: {counted(cases, 'generated case')}{fewer}\nWritten by {', '.join(usage.models)}: {cost}"
    spent = {"calls": usage.calls, "tokens": usage.tokens, "reused": usage.reused}
    then = f"read them, and then mlflow-adk-eval generate --accept {output}"
    tell(told, as_json=as_json, then=then, file=str(output), cases=cases, wanted=count, problem=made.problem or None, **spent)


def _accept(named: str, *, as_json: bool) -> None:
    from mlflow_adk_eval.agents.scenarios import GENERATED  # noqa: PLC0415 - as above
    from mlflow_adk_eval.evalset import load_eval_set, select, split_selection, write_eval_set  # noqa: PLC0415
    from mlflow_adk_eval.evalset.rows import is_rows  # noqa: PLC0415
    from mlflow_adk_eval.report.sentences import counted  # noqa: PLC0415

    file, selected = split_selection(named)
    if is_rows(file):
        raise UsageError(f"{file}: wanted an eval set in JSON; take the tag {GENERATED!r} out of these rows yourself")
    eval_set = load_eval_set(file)
    chosen = select(eval_set, selected or eval_set.eval_ids)
    marked = {case.eval_id for case in chosen.eval_cases if GENERATED in case.tags}
    if not marked:
        raise UsageError(f"{named}: no case has the tag {GENERATED!r}, so there is nothing to accept")
    cases = tuple(_without(case, GENERATED) if case.eval_id in marked else case for case in eval_set.eval_cases)
    write_eval_set(eval_set.model_copy(update={"eval_cases": cases}), file)
    left = sum(GENERATED in case.tags for case in cases)
    told = f"{file}: {counted(len(marked), 'case')} accepted" + (f", {left} still to be" if left else "")
    tell(told, as_json=as_json, file=str(file), accepted=len(marked), left=left)


def _without(case: EvalCase, tag: str) -> EvalCase:
    """Return a case without a tag, and without the field where no other is left: google-adk 1 refuses what it does not know."""
    from mlflow_adk_eval.evalset import dump  # noqa: PLC0415 - as above

    plain = dump(case)
    tags = [one for one in plain.pop("tags") if one != tag]
    return type(case).model_validate(plain | ({"tags": tags} if tags else {}))
