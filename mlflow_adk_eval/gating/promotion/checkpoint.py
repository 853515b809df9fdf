"""A checkpoint: where claim logs had come to, in a file that those who may write to MLflow cannot write to.

A claim log proves what it holds, but not that nothing is missing at its end, nor that it is the one that it was yesterday. So CI keeps the
last entry of each log beside the public key. What is read later must still hold that entry, at its number and with its hash, and may only have
gone on from there. The file is JSON, by registered model and alias::

    {"home_automation": {"champion": {"log": "4f1c…", "number": 7, "sha256": "9a0b…"}}}
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from mlflow_adk_eval.errors import InputError, UsageError
from mlflow_adk_eval.evalset.parse import parse, read_text
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLog, ClaimLogError, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The entry of a claim log that must still be in it."""

    log: str
    """The run that holds the claim log."""
    number: int
    sha256: str


Pins = dict[str, dict[str, Pin]]
_PINS = TypeAdapter(Pins)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file of pins. What it does not name yet is taken up when it is seen first (`advance`)."""

    path: Path

    def __post_init__(self) -> None:
        """Refuse a file that is none before MLflow is asked.

        Raises:
            InputError: if it cannot be read, or holds something else.
        """
        self._read()

    def _read(self) -> Pins:
        return parse(_PINS, read_text(self.path, error=InputError), str(self.path), error=InputError) if self.path.exists() else {}

    @property
    def models(self) -> set[str]:
        """The models of which something is pinned."""
        return set(self._read())

    def aliases(self, model: str) -> set[str]:
        """Return the aliases of a model that are pinned."""
        return set(self._read().get(model, {}))

    def check(self, model: str, claims: ClaimLog) -> None:
        """Refuse a claim log that does not hold what was pinned.

        Raises:
            ClaimLogError: if it does not.
        """
        pin = self._read().get(model, {}).get(claims.alias)
        if pin is None:
            return
        what, where = f"the claim log of {model!r}", f"which {self.path} pins"
        entry = claims.entry(pin.number)
        if claims.log != pin.log:
            found = f"is in run {claims.log}" if claims.log else "is gone"
            raise ClaimLogError(f"{what} {found}, not in run {pin.log}, {where}: it was replaced, renamed or deleted")
        if entry is None or entry.sha256 != pin.sha256:
            change = "does not hold" if entry is None else "has changed"
            raise ClaimLogError(f"{what} {change} its entry {key_of(claims.alias, pin.number)}, {where}: it was truncated or rewritten")

    def advance(self, model: str, claims: ClaimLog) -> None:
        """Pin the last entry of a claim log that nothing can be added to any more.

        Raises:
            UsageError: if the file cannot be written.
        """
        self.check(model, claims)
        last = next((entry for entry in reversed(claims.entries) if not entry.pending), None)
        if last is None:
            return
        pins = self._read()
        pins.setdefault(model, {})[claims.alias] = Pin(log=claims.log, number=last.number, sha256=last.sha256)
        try:
            with tempfile.NamedTemporaryFile(dir=self.path.absolute().parent, delete=False) as aside:
                aside.write(_PINS.dump_json(pins, indent=2) + b"\n")
            Path(aside.name).replace(self.path)  # so that no job ever reads half of it
        except OSError as error:
            raise UsageError(f"the checkpoint {self.path} cannot be written: {error.strerror}") from None


def load_checkpoint(path: str | Path | None) -> Checkpoint | None:
    """Return the checkpoint in a file, which need not exist yet; ``None`` for no path.

    Raises:
        InputError: if it cannot be read, or holds something else.
    """
    return None if path is None else Checkpoint(Path(path))
