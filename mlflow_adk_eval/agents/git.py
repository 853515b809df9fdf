"""The state of the working tree that an agent was evaluated in."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mlflow_adk_eval.redact import without_credentials

_TIMEOUT_S = 30
_MAX_DIFF = 5_000_000
_CODE = ("*.py", "*.yaml", "*.yml")
"""What a new, uncommitted file must be called to make another agent. Logs, stores and results lie around untracked, too."""
_NO_DOTENV = (":(exclude,glob)**/.env*", ":(exclude,glob)**/*.env")


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """A commit and what the working tree differs by from it."""

    commit: str
    branch: str
    """Empty where no branch is checked out."""
    repo_url: str
    """Of the remote ``origin``, without credentials; empty where there is none."""
    diff: str
    """Empty for a clean tree. Files called ``.env`` are left out."""

    @property
    def diff_sha256(self) -> str:
        """The hash of the diff; empty for a clean tree."""
        return hashlib.sha256(self.diff.encode("utf-8", "replace")).hexdigest() if self.diff else ""


def git_state(folder: Path) -> GitState | None:
    """Return the state of the repository that `folder` lies in; ``None`` if there is no git, no repository or no commit."""
    git = shutil.which("git")
    commit = _ask(git, folder, "rev-parse", "--verify", "HEAD").strip() if git else ""
    if not git or not commit:
        return None
    root = Path(_ask(git, folder, "rev-parse", "--show-toplevel").strip() or folder)
    diff = _ask(git, root, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--", ".", *_NO_DOTENV)
    return GitState(
        commit=commit,
        branch=_ask(git, folder, "symbolic-ref", "--short", "--quiet", "HEAD").strip(),
        repo_url=without_credentials(_ask(git, folder, "config", "--get", "remote.origin.url").strip()),
        diff=_bounded(diff + _untracked(git, root)),
    )


def _untracked(git: str, root: Path) -> str:
    names = _ask(git, root, "ls-files", "--others", "--exclude-standard", "-z", "--", *_CODE).split("\0")
    return "".join(_ask(git, root, "diff", "--no-index", "--no-color", "--", "/dev/null", name) for name in names if name)


def _bounded(diff: str) -> str:
    if len(diff) <= _MAX_DIFF:
        return diff
    digest = hashlib.sha256(diff.encode("utf-8", "replace")).hexdigest()
    return f"{diff[:_MAX_DIFF]}\n… {len(diff) - _MAX_DIFF} more characters; sha256 of all: {digest}\n"


def _ask(git: str, folder: Path, *arguments: str) -> str:
    """Return what git answers; empty where it refuses."""
    try:
        answer = subprocess.run(  # noqa: S603 - the arguments are ours, and file names go behind "--"
            [git, "--no-optional-locks", *arguments], cwd=folder, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode("utf-8", "replace")
