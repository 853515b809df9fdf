"""Which ledger is meant: a file, or a database that a URL names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from mlflow_adk_eval.errors import UsageError, shown
from mlflow_adk_eval.judge.setup import LedgerSource

DEFAULT = Path(".adk_eval") / "ledger.sqlite"
"""Where the ledger is, from the working directory."""
VARIABLE = "ADK_EVAL_LEDGER"
"""The environment variable that names the ledger, or says ``off``."""
CHOOSING = f"with --ledger or {VARIABLE} (`off`: keep nothing)"
"""How to name another ledger, as the end of a sentence."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_POSTGRES = re.compile(r"(postgresql|postgres)(\+\w+)?$")


def ledger_source(source: LedgerSource) -> Path | str | None:
    """Return the file that is meant, or the URL of a PostgreSQL database; ``None`` where nothing is to be kept.

    Raises:
        UsageError: if it is nothing of the kind. What a URL says beside its scheme is not repeated.

    >>> ledger_source("off"), ledger_source(False), ledger_source("somewhere.sqlite"), ledger_source("sqlite:///there.sqlite")
    (None, None, PosixPath('somewhere.sqlite'), PosixPath('there.sqlite'))
    """
    named = os.environ.get(VARIABLE) or DEFAULT if source is None else source
    if named is False or (isinstance(named, str) and named.strip().lower() == "off"):
        return None
    if not isinstance(named, str | Path) or not str(named).strip():
        raise UsageError(f"ledger: wanted a path, a postgresql:// URL or 'off', not {shown(named)}")
    url = _URL.match(named) if isinstance(named, str) else None
    if not url or not isinstance(named, str):
        return Path(named)
    scheme = url[1].lower()
    if scheme == "sqlite" and (path := unquote(named[url.end() :].partition("?")[0]).removeprefix("/")):
        return Path(path)
    if not _POSTGRES.match(scheme):
        raise UsageError(f"ledger: wanted a path, postgresql://…, sqlite:///FILE or 'off', not {scheme}://…")
    return named


def is_shared(source: LedgerSource) -> bool:
    """Whether several hosts can use this ledger at the same time; a file serves the processes of one.

    Raises:
        UsageError: if it is no ledger.

    >>> is_shared("postgresql://db.example/mlflow"), is_shared("ledger.sqlite"), is_shared("off")
    (True, False, False)
    """
    return isinstance(ledger_source(source), str)
