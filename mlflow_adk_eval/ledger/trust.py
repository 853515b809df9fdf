"""Who may have written a ledger: no file that came with the code, and with a key, no entry that was written without it.

What judges answered decides whether a version passes, so a file that git tracks would let the author of a branch decide it.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import canonical_json

KEY_VARIABLE = "MLFLOW_ADK_EVAL_LEDGER_KEY"
"""The environment variable with the key by which entries are authenticated."""
PARTS = "parts"
"""The folder beside the file that has scored parts of evaluations under way."""
_SHORTEST = 32


def refuse_foreign(path: Path, what: str = "ledger file", fake: str = "judges' answers") -> None:
    """Refuse a ledger that came with the code that is evaluated.

    Args:
        path: the ledger, or what else must not come with the code.
        what: what it is called.
        fake: what could be faked by it.

    Raises:
        UsageError: if git tracks a file of it or a link that leads to it, or a log is left without its database.
    """
    places = dict.fromkeys((path, path.resolve()))
    # SQLite's other files are named after the ledger.
    logs = [log for place in places for end in ("-wal", "-shm", "-journal") if os.path.lexists(log := Path(f"{place}{end}"))]
    if logs and not path.exists():
        raise UsageError(f"{logs[0]}: found without its database {path.name}, so its origin is unknown; delete it")
    beside = (*places, *(place.parent / PARTS for place in places))
    entries = [*(entry for entry in beside if os.path.lexists(entry)), *logs, *(folder for folder in path.parents if folder.is_symlink())]
    paths = [entry.parent.resolve() / entry.name for entry in entries]
    # In whichever repository, if there is a git to say so.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    tops = {folder for path in paths for folder in path.parents if (folder / ".git").exists()}  # not what git takes for a bare repository
    for top, entry in ((top, entry) for top in tops for entry in paths if entry.is_relative_to(top)):
        literal = f":(icase,literal){entry.relative_to(top).as_posix()}"  # macOS finds a file by a name in other letters
        listing = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "ls-files", "--", literal]
        with suppress(OSError):
            if subprocess.run(listing, check=False, capture_output=True, cwd=top, env=environ).stdout:  # noqa: S603
                raise UsageError(
                    f"{entry}: git tracks this {what}, so anyone with a branch could fake {fake}; "
                    f"run `git rm --cached {entry}`, and add it to .gitignore"
                )


def ledger_key(file: Path | None) -> tuple[bytes | None, str]:
    """Return the key of a ledger, and what to say of entries without it. ``None``: all entries count.

    In CI, a file inside the checkout has a key without being given one, which no other job knows: it is kept in the folder for temporary files.

    Args:
        file: the ledger's file; ``None``: it is none.

    Raises:
        UsageError: if the key is too short, or others may know that of the job.
    """
    given = os.environ.get(KEY_VARIABLE)
    if given is not None:
        if len(given) < _SHORTEST:
            msg = f"{KEY_VARIABLE}: found {len(given)} characters; wanted at least {_SHORTEST}, such as from `openssl rand -hex 32`, or unset it"
            raise UsageError(msg)
        return given.encode("utf-8", "surrogateescape"), "not written with your key"
    if file is None or os.environ.get("CI", "").lower() not in ("1", "true") or not _in_checkout(file):
        return None, ""
    folder = Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir())
    path = folder / f"adk_eval_ledger_key_{os.getuid() if os.name == 'posix' else ''}"
    with tempfile.NamedTemporaryFile(dir=folder) as new:  # which only its owner can read
        new.write(secrets.token_bytes(_SHORTEST))
        new.flush()
        with suppress(FileExistsError):
            os.link(new.name, path)
    owner = path.lstat()
    is_own = os.name != "posix" or (owner.st_uid == os.getuid() and stat.S_ISREG(owner.st_mode) and not owner.st_mode & 0o077)
    if _in_checkout(path) or not is_own:
        msg = f"{path}: someone else may have written this key; set {KEY_VARIABLE}, or set RUNNER_TEMP to a folder outside the checkout"
        raise UsageError(msg)
    return path.read_bytes(), f"not written by this CI job (keep the ledger outside the checkout, or set {KEY_VARIABLE})"


def _in_checkout(path: Path) -> bool:
    real = path.resolve()
    named = [os.environ[name] for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE") if os.environ.get(name)]
    roots = [root for root in map(Path.resolve, (Path.cwd(), *map(Path, named))) if root != root.parent]
    return any(map(real.is_relative_to, roots)) or any((folder / ".git").exists() for folder in real.parents)


def code_of(key: bytes | None, kind: str, names: tuple[str, ...], body: bytes) -> bytes | None:
    """Return by what an entry is recognized: the HMAC-SHA256 of all that it says, its place included; ``None`` without a key."""
    return None if key is None else hmac.digest(key, canonical_json([kind, *names]) + b"\0" + body, "sha256")
