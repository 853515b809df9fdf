"""Parts of an evaluation under way that outlive its process, so that the same evaluation need not score their cases again.

They are copied into a folder whose name is a hash of all that decides cells besides the cases: config, number of runs, this package's code and
whatever else is installed. A part is listed there, once all of its files are, with the hash of the texts that its cases were read from and
those of its files. Whoever finds one of these to be another does not take the part.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.row_cases import CaseTexts
from mlflow_adk_eval.redact import secret_values
from mlflow_adk_eval.results.files import linked
from mlflow_adk_eval.results.parts import PART_FOLDERS, Part, WrittenPart

_logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class KeptPart:
    """A part that is kept, as it is listed."""

    part: Part
    texts: str
    """The hash of what its cases were read from."""
    files: dict[str, str]
    """The hash of each of its files, by folder."""


class KeptParts:
    """The parts that are kept of one evaluation."""

    def __init__(self, folder: Path, decided_by: Sequence[str]) -> None:
        """Take the folder for all evaluations, and what decides the cells of this one besides its cases, this code and what is installed."""
        known = {"by": list(decided_by), "code": _code(), "installed": _installed(), "secrets": sorted(secret_values().values())}
        self._folder = folder / hashlib.sha256(canonical_json(known)).hexdigest()[:32]
        self._texts = hashlib.sha256()
        self._failed = False

    def read(self, texts: CaseTexts) -> None:
        """Take what the next case of the part under way was read from."""
        _add(self._texts, texts)

    def keep(self, part: Part, written: Path) -> None:
        """Keep the part that has ended, from the folder that it was written into. A disk that is full only ends the keeping."""
        texts, self._texts = self._texts.hexdigest(), hashlib.sha256()
        if self._failed:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            names = {folder: part.name(folder) for folder in PART_FOLDERS if (written / part.name(folder)).exists()}
            for name in names.values():
                _replace(self._folder / name, partial(linked, str(written / name)))
            listed = KeptPart(part, texts, {folder: _sha256(self._folder / name) for folder, name in names.items()})
            _replace(self._listed(part.number), lambda path: Path(path).write_text(json.dumps(asdict(listed)), "utf-8"))
        except OSError as error:
            self._failed = True
            _logger.warning("no more parts are kept for an evaluation that goes on with this one: %s", error)

    def listed(self) -> Iterator[KeptPart]:
        """Yield what is kept, in order, up to the first part that is not."""
        number = 0
        with suppress(OSError, ValueError, TypeError, KeyError):
            while True:
                found = json.loads(self._listed(number).read_text("utf-8"))
                yield KeptPart(Part(**found["part"]), str(found["texts"]), dict(found["files"]))
                number += 1

    def taken(self, kept: KeptPart, texts: Sequence[CaseTexts | None]) -> WrittenPart | None:
        """Return a part that is kept; ``None`` if its cases were read from other texts, or its files were changed."""
        found = hashlib.sha256()
        for one in texts:
            if one is None:
                return None
            _add(found, one)
        if len(texts) != kept.part.cases or found.hexdigest() != kept.texts:
            return None
        try:
            files = {folder: (self._folder / kept.part.name(folder)).read_bytes() for folder in kept.files}
        except OSError:
            return None
        same = all(hashlib.sha256(content).hexdigest() == kept.files[folder] for folder, content in files.items())
        return WrittenPart(kept.part, files) if same else None

    def forget(self) -> None:
        """Delete what is kept, once the evaluation has come to its end."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listed(self, number: int) -> Path:
        return self._folder / f"part-{number:05}.json"


def _add(found: Any, texts: CaseTexts) -> None:
    for text in (str(len(texts.runs)), texts.case, *(text for _, text in texts.runs)):
        content = text.encode("utf-8", "surrogatepass")
        found.update(len(content).to_bytes(8))
        found.update(content)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace(target: Path, write: Callable[[str], object]) -> None:
    """Write a file that is either whole or not there."""
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_name(f"{target.name}.{uuid4().hex}")
    write(str(unfinished))
    unfinished.replace(target)


def _code() -> str:
    """Return the hash of this package's files."""
    found = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            found.update(f"{path.relative_to(_PACKAGE).as_posix()} {_sha256(path)}\n".encode())
    return found.hexdigest()


def _installed() -> list[str]:
    """Return which Python this is, and which version of what is installed."""
    folders = [Path(entry) for entry in sys.path if Path(entry).is_dir()]
    return [sys.version, *sorted({path.name for folder in folders for path in folder.glob("*.dist-info")})]
