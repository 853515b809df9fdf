"""``run --watch``: the same evaluation again whenever a file changes, each in a process of its own, since Python imports an agent once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.runtime import require_extra

_ENDINGS = (".json", ".jsonl", ".yaml", ".yml", ".parquet", ".md", ".txt", ".toml")
_WRITTEN = ("mlruns", "mlartifacts", "adk_eval_pending")
"""The folders that an evaluation itself writes to."""
_OPTION = "--watch"


def watch(named: Iterable[str | Path], tracking_uri: str | None) -> None:
    """Evaluate by this process's own command line until it is interrupted, and tell what flipped each time.

    Args:
        named: what to watch besides the working directory: the agent, eval sets and the config, where they are paths.
        tracking_uri: where the runs are.

    Raises:
        UsageError: if the extra is not installed, or JSON is asked for.
    """
    if "--json" in sys.argv:
        raise UsageError(f"{_OPTION}: prints text as it goes; take out --json")
    with require_extra("watch", _OPTION):
        from watchfiles import DefaultFilter, PythonFilter  # noqa: PLC0415 - an extra
        from watchfiles import watch as changed  # noqa: PLC0415

    relevant = PythonFilter(extra_extensions=_ENDINGS)
    relevant.ignore_dirs = [*DefaultFilter.ignore_dirs, *_WRITTEN, ".adk_eval"]
    paths = {Path.cwd(), *(Path(name).resolve() for name in named if Path(name).exists())}
    before, started = "", False
    try:
        # Watching begins before the first evaluation, so that no change is missed during one.
        for changes in changed(*paths, watch_filter=relevant, yield_on_timeout=True, rust_timeout=500):
            if changes or not started:
                started = True
                before = _evaluated(before, tracking_uri)
    except KeyboardInterrupt:
        click.echo("no longer watching")


def _evaluated(before: str, tracking_uri: str | None) -> str:
    """Evaluate once; return the id of the last run that came to its end."""
    words = [word for word in sys.argv[1:] if word != _OPTION]
    ended = subprocess.run([sys.executable, "-m", "mlflow_adk_eval", *words, "--json"], stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own command line
    try:
        said: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        said = {}
    if after := said.get("run_id"):
        click.echo(f"{said['verdict']}: {'; '.join(said['reasons']) or 'every case'} (run {after})")
        if before:
            _tell(before, after, tracking_uri)
    click.echo("watching for changes; Ctrl-C ends")
    return after or before


def _tell(before: str, after: str, tracking_uri: str | None) -> None:
    """Print which cases flipped from one run to the next."""
    from mlflow_adk_eval.report.comparison import HEADINGS, headline  # noqa: PLC0415 - most runs are not watched
    from mlflow_adk_eval.tracking.compare import compare  # noqa: PLC0415

    found = compare(before, after, tracking_uri=tracking_uri)
    click.echo(headline(found))
    for flip in ("worse", "better", "undecided"):
        if named := [case.eval_id for case in found.cases if case.flip == flip]:
            click.echo(f"  {HEADINGS[flip]}: {', '.join(named)}")
