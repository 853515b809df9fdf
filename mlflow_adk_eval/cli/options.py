"""The options that several commands share, each declared once, and what becomes of their values.

A command lists the decorators that it needs and takes their values as ``**options``, named as the arguments of the function of the
API that it calls. `arguments` turns what only the command line says in text (a judge as ``module:name``, four separate limits) into
the objects that the API takes. Names are written with dashes; the root command makes the parser
take dashes and underscores alike. Nothing heavy is imported here: ``--help`` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click
from click import option
from cloup import option_group

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import AdkEvalError, JudgeError, UsageError

Command = Callable[..., Any]
Option = Callable[[Command], Command]

EXIT_CODES = """\b
Exit codes:
  0   passed
  1   a threshold was missed
  2   undecided: something was not evaluated, or there are too few cases
  3   the run itself failed: agent, judge or MLflow unreachable, interrupted, or another promotion held the alias; try again
  4   everything was done, but the result could not be written; see standard error
  64  bad usage or a bad input file
"""
"""What the help of commands that come to a verdict ends with."""


def exit_codes(
    done: str, failed: str, usage: str = "bad usage or a bad input file", unwritten: str = "the result could not be written"
) -> str:
    """Return what the help of a command without a verdict ends with: what its exit codes 0, 3, 64 and 4 mean."""
    return f"Exit codes: 0 {done}; 3 {failed}; 4 {unwritten}; 64 {usage}."


NO_VERDICT = exit_codes(
    "done", "something was unreachable, or the command was interrupted", unwritten="done, but the result could not be written"
)
"""What it ends with where a command has nothing of its own to say."""

COUNT = click.IntRange(min=1)
POSITIVE = click.FloatRange(min=0, min_open=True)
SHARE = click.FloatRange(min=0, max=1, min_open=True, max_open=True)
PATH = click.Path(path_type=Path)


def trace_limit(_: click.Context, __: click.Parameter, value: str) -> int | str:
    """Return how many traces are wanted, or ``failed``."""
    if value == "failed" or value.isdecimal():
        return value if value == "failed" else int(value)
    raise click.BadParameter(f"wanted a number of traces or 'failed', not {value!r}")


def together(*options: Option) -> Option:
    """Return several options as one decorator; ``--help`` lists them in this order."""
    return lambda command: reduce(lambda made, add: add(made), reversed(options), command)


json_option = option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
force_option = option("--force", is_flag=True, help="Overwrite the output file.")
store_option = option("--tracking-uri", metavar="URI", help="The MLflow tracking server or store. Default: MLFLOW_TRACKING_URI.")
mlflow_options = together(store_option, json_option)
"""Of a command that asks MLflow and tells what came of it."""
config_option = option(
    "--config-file-path",
    "--config",
    "config",
    type=PATH,
    help="The eval config. Default: test_config.json in the eval set's folder, else ADK's.",
)
storage_option = option(
    "--eval-storage-uri",
    metavar="URI",
    help="Where ADK keeps eval sets and results: gs://BUCKET, or any fsspec URL. Default: the agent's folder.",
)
detailed_option = option(
    "--print-detailed-results", "--detailed", "detailed", is_flag=True, help="Print every turn with its scores and reasons."
)
redact_option = option("--redact", metavar="MODULE:FUNCTION", help="Apply this function to every text from users, tools and the agent.")
confidence_option = option("--confidence", type=SHARE, default=0.95, help="The confidence level of intervals and tests.")
baseline_option = option("--baseline", metavar="FILE|runs:/ID", help="The recording or earlier run that pairwise criteria compare against.")
workers_option = option("--workers", type=COUNT, default=1, help="Processes that score recordings with computed criteria.")
dry_run_option = option("--dry-run", is_flag=True, help="Report the decision without moving the alias.")
wait_option = option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=60,
    metavar="SECONDS",
    help="Seconds to wait for another promotion to the same alias.",
)
verify_options = together(
    option(
        "--verify-key",
        metavar="PEM",
        help="Require promotion records and claims signed with one of these public keys. Default: MLFLOW_ADK_EVAL_VERIFY_KEY, else none.",
    ),
    option("--checkpoint", type=PATH, help="Require the claim log to continue from the state pinned in this file."),
)
"""Whom to trust when a promotion is verified."""
signing_options = together(
    option(
        "--signing-key", metavar="PEM", help="Sign the promotion record and the claim. Default: MLFLOW_ADK_EVAL_SIGNING_KEY, else unsigned."
    ),
    verify_options,
)
"""The same for what sets an alias, and how it signs that."""

budget_options = together(
    option("--max-calls", type=COUNT, help="Stop after this many model requests; undecided results stay undecided."),
    option("--max-tokens", type=COUNT, help="Stop after this many model tokens, input plus output."),
    option("--budget-name", metavar="NAME", help="Share both limits with all processes that use this name and the same ledger."),
    option(
        "--ledger",
        metavar="FILE|URL|off",
        help="A file or PostgreSQL database that stores model answers for reuse. Default: .adk_eval/ledger.sqlite.",
    ),
)
"""What may be spent on models, and what keeps their answers."""

judge_host_option = option(
    "--judge-host",
    "judge_hosts",
    metavar="HOST[:PORT]",
    multiple=True,
    help="A host that the config may use as the endpoint of a judge or simulated user. Repeatable. Default: MLFLOW_ADK_EVAL_JUDGE_HOSTS.",
)

judge_limit_options = together(
    option("--judge-concurrency", type=COUNT, help="Maximum parallel requests to one judge. Default: 64."),
    option("--judge-quota", type=COUNT, help="Maximum requests per minute to one judge, across all processes that share the ledger."),
    option("--judge-timeout", type=POSITIVE, help="Seconds to wait for one judge request. Default: 120."),
    option("--judge-outage", type=POSITIVE, help="Stop asking a judge after this many seconds with nothing but failures. Default: 60."),
    option("--rejudge-failed", is_flag=True, help="Ask again if a stored answer could not be parsed."),
    budget_options,
)
"""How judges are asked, whoever they are."""

judge_options = together(
    option(
        "--judge",
        metavar="MODEL|MODULE:NAME",
        multiple=True,
        help="A model or function that judges every criterion. Repeat it for a panel. Default: the config's models.",
    ),
    judge_host_option,
    judge_limit_options,
)

judges_group = option_group("Judges", judge_options, help="Judges, requests and budget")
"""The same under a heading, for commands that have many options."""

conversation_options = together(
    option("--num-runs", type=COUNT, default=1, help="Times to repeat each conversation."),
    option("--agent-name", help="The sub-agent to evaluate instead of the root agent."),
    option("--concurrency", type=COUNT, default=4, help="Conversations to run in parallel."),
    option("--case-timeout", "case_timeout_s", type=POSITIVE, help="Seconds allowed for one case. Default: no limit."),
    option("--turn-timeout", "turn_timeout_s", type=POSITIVE, help="Seconds the agent has to answer one message. Default: no limit."),
    option("--user-simulator", metavar="MODEL|MODULE:NAME", help="A model or function that plays the user. Default: the config's model."),
)
"""How conversations with an agent are run."""

published_options = together(
    option("--summary", type=PATH, help="Also write the decision as Markdown. In GitHub Actions, the step summary always gets it."),
    option("--junit", type=PATH, help="Also write the decision as JUnit XML."),
    option("--comment", type=PATH, help="Also write a page for a pull request: verdict, causes, changes since the baseline, cost."),
)
"""Where else a decision is written."""

policy_option = option("--policy", type=PATH, help="The policy, YAML or JSON. Default: every case must reach the run's own thresholds.")

_BUDGET = {"max_calls": "max_calls", "max_tokens": "max_tokens", "budget_name": "name"}
_JUDGE_LIMITS = {"judge_concurrency": "max_concurrency", "judge_quota": "quota", "judge_timeout": "timeout_s", "judge_outage": "outage_s"}
JUDGE_OPTIONS = ("judge", "judge_hosts", "rejudge_failed", "ledger", *_BUDGET, *_JUDGE_LIMITS)
"""The names of `judge_options`."""


def arguments(options: dict[str, Any], *, judge_error: type[AdkEvalError] = JudgeError) -> dict[str, Any]:
    """Turn the values of `judge_options`, `budget_options` and `conversation_options` into arguments of the API.

    Args:
        options: the values by name; those that are passed on as they are, such as ``ledger``, may be among them.
        judge_error: what is raised for a judge that cannot be imported.

    Raises:
        AdkEvalError: if ``module:name`` names nothing that can be imported.
    """
    from mlflow_adk_eval.runtime import model_or_object  # noqa: PLC0415

    values = dict(options)
    values["budget"] = adk_eval.Budget(**{field: values.pop(name) for name, field in _BUDGET.items()})
    if values.keys() >= _JUDGE_LIMITS.keys():
        limits = {field: values.pop(name) for name, field in _JUDGE_LIMITS.items()}
        values["judge_options"] = adk_eval.JudgeOptions(**{field: value for field, value in limits.items() if value is not None})
    if "judge" in values:
        names = (values["judge"],) if isinstance(values["judge"], str) else values["judge"] or ()
        judges = [model_or_object(name, "--judge", error=judge_error) for name in names]
        values["judge"] = judges if len(judges) > 1 else next(iter(judges), None)
    if "user_simulator" in values:
        values["user_simulator"] = model_or_object(values["user_simulator"], "--user-simulator")
    return values


def redact_function(named: str | None) -> Any:
    """Return the function that `redact_option` names; ``None`` without one.

    Raises:
        UsageError: if it cannot be imported, or is no function.
    """
    from mlflow_adk_eval.runtime import model_or_object  # noqa: PLC0415

    function = model_or_object(named, "--redact")
    if named is not None and not callable(function):
        raise UsageError(f"--redact {named}: {'not a function' if ':' in named else 'not a function; wanted MODULE:FUNCTION'}")
    return function


def agent_path(agent: str) -> str:
    """Return `agent`, and let Python import it from the working directory, as ``python -m`` would."""
    sys.path[:0] = [str(Path.cwd())] if str(Path.cwd()) not in sys.path else []
    return agent


def eval_set_paths(agent: str, names: tuple[str, ...], storage_uri: str | None = None) -> str | list[str]:
    """Return what EVAL_SET arguments name: files, folders, or ids of eval sets that ADK keeps for the agent.

    A single path is returned alone, since a single file or folder means something else than a list of one.
    """
    paths: list[str] = []
    for name in names:
        eval_set_id, colon, cases = name.partition(":")
        stored: Any = eval_set_id
        if "/" not in eval_set_id and not Path(eval_set_id).exists():
            from mlflow_adk_eval.evalset.storage import EvalStorage, agent_folder  # noqa: PLC0415 - `--help` stays fast

            beside = agent_folder(agent) / f"{eval_set_id}.evalset.json"
            if storage_uri is not None:
                stored = EvalStorage(agent, storage_uri).file(eval_set_id)
            elif beside.is_file():
                stored = beside
        paths.append(f"{stored}{colon}{cases}")
    return paths if len(paths) > 1 else paths[0]


def check_output(file: Path | None, *, force: bool = False, remedy: str = "--force overwrites it") -> None:
    """Refuse a file that must not, or cannot, be written, before anything is paid for.

    Raises:
        UsageError: if it exists, or its folder does not.
    """
    if file is None:
        return
    if file.exists() and not force:
        raise UsageError(f"{file} already exists; {remedy}")
    if not file.parent.is_dir():
        raise UsageError(f"{file} cannot be written: there is no folder {file.parent}")


def published(options: dict[str, Any]) -> dict[str, Path | None]:
    """Take the files of `published_options` out of the options, and refuse those that cannot be written before anything is decided.

    Raises:
        UsageError: if the folder of one does not exist.
    """
    files = {name: options.pop(name) for name in ("summary", "junit", "comment")}
    for file in files.values():
        check_output(file, force=True)
    return files
