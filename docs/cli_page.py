"""Write docs/reference/cli.md from the commands of click; ``--check`` only says whether the page is true."""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import click
from cloup import Context

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.cli.options import EXIT_CODES, NO_VERDICT

PAGE = Path(__file__).parent / "reference" / "cli.md"
NAME = "mlflow-adk-eval"
EXAMPLES = {
    "init": "init my_agent --example 'When are you open?=It is open until six.'",
    "demo": "demo --folder demo",
    "run": "run my_agent evals/my_agent.evalset.json --num-runs 3 --register my_agent",
    "score": "score evals/my_agent.evalset.json --actual monday.recording.json --detailed",
    "record": "record my_agent evals/my_agent.evalset.json -o monday.recording.json",
    "plan": "plan evals/my_agent.evalset.json --num-runs 3",
    "mcp": "mcp --folder . --policy evals/gate.yaml",
    "upload": "upload adk_eval_pending/8159c69b1af34468a27b29ad5c1d3844",
    "register": "register 8159c69b1af34468a27b29ad5c1d3844 my_agent",
    "runs": "runs --experiment my_agent --limit 10",
    "view": "view --experiment my_agent",
    "explain": "explain latest --case turn_off_light",
    "report": "report 8159c69b1af34468a27b29ad5c1d3844 -o report.html",
    "compare": "compare RUN_A RUN_B -o compare.html",
    "power": "power 8159c69b1af34468a27b29ad5c1d3844 --detect 0.05 --num-runs 3",
    "gate": "gate 8159c69b1af34468a27b29ad5c1d3844 --policy evals/gate.yaml --junit gate.xml",
    "promote": "promote my_agent --version 2 --run-id 8159c69b1af34468a27b29ad5c1d3844 --policy evals/gate.yaml",
    "rollback": "rollback my_agent --reason 'wrong opening hours since Monday'",
    "verify": "verify my_agent 2 --policy production.yaml",
    "audit": "audit my_agent --restore --dry-run",
    "keygen": "keygen -o gate.pem",
    "attestation export": "attestation export 8159c69b1af34468a27b29ad5c1d3844 -o attested",
    "attestation verify": "attestation verify attested --verify-key gate.pub.pem",
    "calibrate": "calibrate 8159c69b1af34468a27b29ad5c1d3844 --labels labels.csv -o calibration.json",
    "judge-bench": "judge-bench gemini-2.5-flash openai/gpt-5-mini --votes 5",
    "ledger show": "ledger show",
    "ledger prune": "ledger prune --older-than 90 --dry-run",
    "rapid-eval evaluate": "rapid-eval evaluate request.json --judge gemini-2.5-pro",
    "rapid-eval serve": "rapid-eval serve --port 8085 --judge gemini-2.5-pro",
    "validate": "validate evals/my_agent.evalset.json evals/gate.yaml",
    "generate": "generate my_agent -o evals/more.evalset.json --count 10",
    "capture": "capture --session monday --experiment production -o monday.evalset.json",
    "traces score": "traces score production --since 24h --criteria hallucinations_v1=0.8",
    "traces watch": "traces watch production --config eval.json --model my_agent --every 1h",
    "traces to-cases": "traces to-cases production --failed --beside evals/my_agent.evalset.json -o failures.evalset.json",
    "migrate": "migrate old.test.json new.evalset.json",
    "export": "export 8159c69b1af34468a27b29ad5c1d3844 rows -o run.parquet",
    "eval-set create": "eval-set create my_agent lights",
    "eval-set add-eval-case": "eval-set add-eval-case my_agent lights --scenarios-file scenarios.json",
}
"""By command: the words that follow the program's name in an example."""

_WIDTH = 84
"""Columns of code that fit into the site at 800 pixels, less what ends a line that goes on."""
_SEVERAL = 3
"""In how many commands an option must be to be described only once."""
_INTRO = """\
# Command line

Every command and option of `mlflow-adk-eval`. `mlflow-adk-eval COMMAND --help` prints the same text.

- Write option names with dashes or underscores: `--num-runs` and `--num_runs` are the same.
- Where a command takes a run, write its id, at least four characters of the start of its id, `latest`, `champion` or
  `MODEL@ALIAS`. See [how runs are named](../how_to/compare.md).
- A command returns one of the [exit codes](exit_codes.md).
- Some options have an [environment variable](environment.md) as their default.
"""


def commands() -> Iterator[tuple[str, str, click.Command]]:
    """Yield each command with the title of its section and its full name, groups before their commands, as ``--help`` lists them."""
    for section in cli.list_sections(Context(cli)):
        for name, command in section.commands.items():
            yield from ((section.title, full, one) for full, one in _with_children(name, command))


def _with_children(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for child, one in command.commands.items():
            yield from _with_children(f"{name} {child}", one)


def written() -> str:
    """Return the page as it should be."""
    lines = [_INTRO]
    every = list(commands())
    for title, members in groupby(every, key=lambda each: each[0]):
        lines += [f"**{title}**", "", "| Command | Purpose |", "|---|---|"]
        lines += [
            f"| [`{name}`](#{name.replace(' ', '-')}) | {' '.join(_prose(command.help or '', command).partition(2 * chr(10))[0].split())} |"
            for _, name, command in members
        ]
        lines.append("")
    lines += ["## Options of every command", "", f"Write these before the command: `{NAME} --log-format json run …`", ""]
    lines += _table(cli.params)
    lines += ["## Shared options", "", "Several commands have these. Each command lists the names of those that it takes.", ""]
    lines += _table(SHARED.values(), headings=False)
    for title, members in groupby(every, key=lambda each: each[0]):
        lines += [f"## {title}", ""]
        for _, name, command in members:
            lines += [f"### {name}", "", *_described(name, command)]
    return "\n".join(lines).rstrip() + "\n"


def _described(name: str, command: click.Command) -> Iterable[str]:
    context = Context(command, info_name=f"{NAME} {name}")
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    yield from (
        "```text",
        textwrap.fill(usage, _WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent="    "),
        "```",
        "",
    )
    yield from (_prose(command.help or "", command), "")
    if isinstance(command, click.Group):
        yield from (f"Commands: {', '.join(f'[`{child}`](#{name}-{child})' for child in command.commands)}.", "")
        return
    example = textwrap.wrap(f"{NAME} {EXAMPLES[name]}", _WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent="    ")
    yield from ("```bash", " \\\n".join(example), "```", "")
    yield from _options(command)
    yield from _exit_codes(command.epilog or "")


def _exit_codes(epilog: str) -> Iterable[str]:
    codes = re.findall(r"(\d+)\s+(.+?)\s*(?:[;\n]|\.?$)", epilog.partition(":")[2])
    if epilog in (EXIT_CODES, NO_VERDICT):
        yield from (f"[Exit codes](exit_codes.md): {', '.join(f'`{code}`' for code, _ in codes)}", "")
    elif codes:
        yield from ("[Exit codes](exit_codes.md) here:", "", *(f"- `{code}`: {_code(meaning)}" for code, meaning in codes), "")


def _options(command: click.Command) -> Iterable[str]:
    """Yield the command's own options as a table, and the names of those that it shares with others."""
    shown = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    own = [option for option in shown if _told(option) not in SHARED]
    yield from _table(own) if own else ()
    if shared := [name for option in shown if option not in own for name in _names(option)]:
        together = ", ".join(name.replace(" ", "\0") for name in shared)  # a line does not break within a name
        yield from (textwrap.fill(f"[Shared options](#shared-options): {together}", 110, break_on_hyphens=False).replace("\0", " "), "")


def _table(params: Iterable[click.Parameter], *, headings: bool = True) -> Iterable[str]:
    """Yield a table of options, by default with a row for each heading that ``--help`` shows."""
    headed = False
    yield from ("| Option | Default | Meaning |", "|---|---|---|")
    options = [option for option in params if isinstance(option, click.Option)]
    for heading, members in groupby(options, key=lambda option: headings and getattr(getattr(option, "group", None), "title", "")):
        if heading or headed:
            yield f"| **{heading or 'Other options'}** | | |"
            headed = True
        yield from (_row(option) for option in members)
    yield ""


def _told(option: click.Option) -> tuple[str, ...]:
    return (*option.opts, str(option.help), str(option.required))


def _names(option: click.Option) -> list[str]:
    value = "" if option.is_flag else f" {option.make_metavar(Context(cli))}".replace("INTEGER RANGE", "N").replace("FLOAT RANGE", "NUMBER")
    return [f"`{name}{value}`" for name in option.opts] + [f"`{name}`" for name in option.secondary_opts]


def _row(option: click.Option) -> str:
    context = Context(cli)
    names = [name.replace("|", r"\|") for name in _names(option)]
    meaning, _, told = (option.help or "").partition("Default: ")
    default = re.sub(r"^[\w./-]+$", r"`\g<0>`", told.rstrip(".")) or (
        "" if option.is_flag and not option.secondary_opts else _default_of(option, context)
    )
    extra = [f"Allowed: {limits}." for limits in filter(None, [_limits(option.type)])]
    extra += (
        [f"Environment: [`{option.envvar}`](environment.md)."] if isinstance(option.envvar, str) and option.envvar not in meaning else []
    )
    if option.required:
        default = "required"
    if option.multiple and "epeat" not in meaning:
        extra.append("Repeatable.")
    return f"| {'<br>'.join(names)} | {_code(default)} | {_code(' '.join([meaning.strip(), *extra]))} |"


def _default_of(option: click.Option, context: click.Context) -> str:
    value = option.get_default(context, call=False)
    if option.is_flag:
        return option.opts[0] if value else option.secondary_opts[0]
    return f"`{value}`" if isinstance(value, (str, int, float, Path)) and str(value) else ""


def _limits(kind: click.ParamType) -> str:
    """Return the bounds of a number, as a reader says them; a lower bound of 0 or 1 goes without saying unless there is an upper one."""
    if not isinstance(kind, (click.IntRange, click.FloatRange)) or kind.max is None:
        return ""
    return f"{'above' if kind.min_open else 'from'} {kind.min:g} {'and below' if kind.max_open else 'to'} {kind.max:g}"


def _prose(text: str, command: click.Command) -> str:
    """Return the paragraphs of a help text, each on one line, and the command's arguments as code."""
    arguments = [
        word for one in command.params if isinstance(one, click.Argument) for word in re.findall(r"[A-Z][A-Z_]+", one.human_readable_name)
    ]
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip())]
    coded = [_code(paragraph) for paragraph in paragraphs]
    for word in dict.fromkeys(arguments):
        coded = [re.sub(rf"(?<![`\w]){word}s?(?![`\w])(?=[^`]*(?:`[^`]*`[^`]*)*$)", lambda found: f"`{found[0]}`", one) for one in coded]
    return "\n\n".join(textwrap.fill(one, 110, break_long_words=False, break_on_hyphens=False) for one in coded)


_TOKENS = re.compile(r"(?<![\w`/])(--?[a-z][\w-]*|MLFLOW_[A-Z_]+|[\w./-]*\*[\w./*-]+|(?:POST|GET) /\S*[\w])(?![\w`])")


def _code(text: str) -> str:
    """Return a text with options, variables, patterns and paths set as code, outside of what is code already."""
    parts = text.replace("|", r"\|").split("`")
    return "`".join(part if number % 2 else _TOKENS.sub(r"`\1`", part) for number, part in enumerate(parts))


def _shared() -> dict[tuple[str, ...], click.Option]:
    """Return the options that several commands have with the same words, in the order of the commands, those without a heading last."""
    options = [option for _, _, command in commands() for option in command.params if isinstance(option, click.Option)]
    often = Counter(_told(option) for option in options)
    shared = {_told(option): option for option in options if often[_told(option)] >= _SEVERAL}
    return dict(sorted(shared.items(), key=lambda one: getattr(one[1], "group", None) is None))


SHARED = _shared()


if __name__ == "__main__":
    if "--check" in sys.argv and (not PAGE.exists() or written() != PAGE.read_text("utf-8")):
        sys.exit(f"{PAGE}: not what the commands say; run python docs/cli_page.py")
    PAGE.write_text(written(), "utf-8")
