"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mlflow_adk_eval.errors import JudgeError, UsageError
from mlflow_adk_eval.runtime import model_or_object

Command = Callable[..., Any]


def verify_key_option(command: Command) -> Command:
    """Add ``--verify-key``."""
    return click.option(
        "--verify-key",
        "--verify_key",
        "verify_key",
        metavar="PEM|hmac:FILE",
        help="The key by which records must be signed. Default: MLFLOW_ADK_EVAL_VERIFY_KEY; without it, they need no signature.",
    )(command)


def signing_key_option(command: Command) -> Command:
    """Add ``--signing-key``."""
    return click.option(
        "--signing-key",
        "--signing_key",
        "signing_key",
        metavar="PEM|hmac:FILE",
        help="Sign the record with this key. Default: MLFLOW_ADK_EVAL_SIGNING_KEY; without it, it is not signed.",
    )(command)


EXIT_CODES = """\b
Exit codes:
  0   passed
  1   a threshold was missed
  2   not enough evidence: something was not evaluated, or there are too few cases
  3   the run itself failed: agent, judge or MLflow unreachable
  64  bad usage or a bad input file
"""
"""What the help of commands ends with."""


def json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(command)


def config_option(command: Command) -> Command:
    """Add ``--config_file_path``."""
    return click.option(
        "--config_file_path",
        "--config",
        "config",
        type=click.Path(path_type=Path),
        help="The eval config. Default: test_config.json beside the eval set, else ADK's defaults.",
    )(command)


def detailed_option(command: Command) -> Command:
    """Add ``--print_detailed_results``."""
    return click.option(
        "--print_detailed_results", "--detailed", "detailed", is_flag=True, help="Print every turn with its scores and reasons."
    )(command)


def store_option(command: Command) -> Command:
    """Add ``--tracking_uri``."""
    return click.option("--tracking_uri", help="The MLflow server or store. Default: MLFLOW_TRACKING_URI.")(command)


def budget_options(command: Command) -> Command:
    """Add what may be spent on models, and what keeps their answers."""
    return _with(
        command,
        click.option("--max_calls", type=click.IntRange(min=1), help="The most requests to models; what is undecided then stays so."),
        click.option("--max_tokens", type=click.IntRange(min=1), help="The most tokens for models, input and output together."),
        click.option("--ledger", metavar="FILE|off", help="What keeps the models' answers. Default: .adk_eval/ledger.sqlite."),
    )


def judge_options(command: Command) -> Command:
    """Add what can be said of judges."""
    return _with(
        command,
        click.option(
            "--judge", metavar="MODEL|MODULE:NAME", help="Who judges: a model or a function. Default: the models that the config names."
        ),
        click.option("--max_calls", type=click.IntRange(min=1), help="The most requests to judges; what is undecided then stays so."),
        click.option("--max_tokens", type=click.IntRange(min=1), help="The most tokens for judges, input and output together."),
        click.option("--judge_concurrency", type=click.IntRange(min=1), help="The most requests in flight to one judge. Default: 64."),
        click.option("--judge_timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds per request. Default: 120."),
        click.option(
            "--judge_outage",
            type=click.FloatRange(min=0, min_open=True),
            help="Seconds of nothing but failures after which a judge is given up. Default: 60.",
        ),
        click.option(
            "--rejudge-failed", "--rejudge_failed", "rejudge_failed", is_flag=True, help="Ask again where a kept answer cannot be read."
        ),
        click.option("--ledger", metavar="FILE|off", help="What keeps the judges' answers. Default: .adk_eval/ledger.sqlite."),
    )


def baseline_option(command: Command) -> Command:
    """Add what pairwise criteria compare with."""
    return click.option("--baseline", metavar="FILE|runs:/ID", help="What pairwise criteria compare with: a recording or an earlier run.")(
        command
    )


def conversation_options(command: Command) -> Command:
    """Add how conversations are had."""
    return _with(
        command,
        click.option("--num_runs", type=click.IntRange(min=1), default=1, show_default=True, help="How often to have each conversation."),
        click.option("--agent_name", help="The sub-agent to evaluate instead of the root agent."),
        click.option("--concurrency", type=click.IntRange(min=1), default=4, show_default=True, help="Conversations at the same time."),
        click.option(
            "--case_timeout", "case_timeout_s", type=click.FloatRange(min=0, min_open=True), help="Seconds that one case may take."
        ),
        click.option(
            "--turn_timeout",
            "turn_timeout_s",
            type=click.FloatRange(min=0, min_open=True),
            help="Seconds that the agent may take to answer one message.",
        ),
        click.option(
            "--user_simulator",
            metavar="MODEL|MODULE:NAME",
            help="Who plays the user of conversation scenarios: a model or a function. Default: the model that the config names.",
        ),
    )


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def judging(options: dict[str, Any]) -> dict[str, Any]:
    """Turn the options of `judge_options` into arguments of `evaluate` and `score`."""
    from mlflow_adk_eval.judge import JudgeOptions  # noqa: PLC0415 - `--help` stays fast

    given = {
        "max_concurrency": options.pop("judge_concurrency"),
        "timeout_s": options.pop("judge_timeout"),
        "outage_s": options.pop("judge_outage"),
    }
    judge = model_or_object(options.pop("judge"), "--judge", error=JudgeError)
    return budgeted(options) | {
        "judge": judge,
        "judge_options": JudgeOptions(**{name: value for name, value in given.items() if value is not None}),
    }


def budgeted(options: dict[str, Any]) -> dict[str, Any]:
    """Turn what may be spent into an argument of `evaluate`, `score` and `record`."""
    from mlflow_adk_eval.judge import Budget  # noqa: PLC0415 - as above

    return options | {"budget": Budget(max_calls=options.pop("max_calls"), max_tokens=options.pop("max_tokens"))}


def simulated(options: dict[str, Any]) -> dict[str, Any]:
    """Turn the name of who plays users into who that is."""
    return options | {"user_simulator": model_or_object(options["user_simulator"], "--user_simulator")}


def agent_path(agent: str) -> str:
    """Let a folder's contents be imported from where the command was called, as Python itself would."""
    sys.path[:0] = [str(Path.cwd())] if str(Path.cwd()) not in sys.path else []
    return agent


def eval_set_path(agent: str, name: str) -> str:
    """Return the file of an eval set named by its id, which ADK keeps in the agent's folder; else the name as it is."""
    eval_set_id, colon, cases = name.partition(":")
    stored = Path(agent) / f"{eval_set_id}.evalset.json"
    return f"{stored}{colon}{cases}" if not Path(eval_set_id).exists() and stored.is_file() else name


def one_or_several(paths: list[str]) -> str | list[str]:
    """Return a path alone, as that of a single file or folder means something else than a list of one."""
    return paths if len(paths) > 1 else paths[0]


def refuse_overwriting(file: Path | None, *, force: bool = False, way_out: str = "--force overwrites it") -> None:
    """Find out before anything is paid for that a file must not, or cannot, be written.

    Raises:
        UsageError: if it exists, or there is no folder for it.
    """
    if file is None:
        return
    if file.exists() and not force:
        raise UsageError(f"{file} exists already; {way_out}")
    if not file.parent.is_dir():
        raise UsageError(f"{file} cannot be written: there is no folder {file.parent}")
