"""Artifacts that lie in a folder and are read when somebody asks for them: those of a large run are more than fits into memory."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path


class StoredFiles(Mapping[str, bytes]):
    """The files of a folder, by their path in it. Two such mappings are equal if the files have the same hashes."""

    def __init__(self, files: Mapping[str, Path] | None, owner: StoredFiles | None = None, folder: Path | None = None) -> None:
        """Take the files, or the folder of those that are there when somebody asks."""
        self.folder = folder
        """Where they are, if that holds nothing else."""
        self._files = None if files is None else dict(files)
        self._hashes: dict[str, str] = {}
        self._owner = owner
        """What removes the folder once nobody uses it any more."""

    @property
    def _listed(self) -> dict[str, Path]:
        if self._files is not None:
            return self._files
        return {} if self.folder is None else _listed(self.folder)

    def __getitem__(self, name: str) -> bytes:
        """Return the content of a file."""
        return self._listed[name].read_bytes()

    def __iter__(self) -> Iterator[str]:
        """Yield the paths."""
        return iter(self._listed)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._listed)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a file; it is not read."""
        return name in self._listed

    def __eq__(self, other: object) -> bool:
        """Whether another mapping holds the same."""
        if not isinstance(other, StoredFiles):
            return isinstance(other, Mapping) and dict(self) == dict(other)
        return self._listed.keys() == other._listed.keys() and all(self.sha256(name) == other.sha256(name) for name in self)

    __hash__ = None  # type: ignore[assignment]  # like every mapping

    def sha256(self, name: str) -> str:
        """Return the hash of a file, in hex, without having all of it in memory."""
        if name in self._hashes:
            return self._hashes[name]
        with self._listed[name].open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if self._files is not None:  # else it may still be written
            self._hashes[name] = found
        return found

    def without(self, name: str) -> StoredFiles:
        """Return the others."""
        return self._some({kept: kept for kept in self if kept != name})

    def below(self, folder: str) -> StoredFiles:
        """Return those in a folder, by their path in that."""
        return self._some({name.removeprefix(f"{folder}/"): name for name in self if name.startswith(f"{folder}/")})

    def _some(self, names: Mapping[str, str]) -> StoredFiles:
        found = StoredFiles({new: self._listed[old] for new, old in names.items()}, self)
        found._hashes = {new: self._hashes[old] for new, old in names.items() if old in self._hashes}
        return found


def _listed(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def files_in(folder: Path) -> StoredFiles:
    """Return the files of a folder that stays."""
    return StoredFiles(_listed(folder), folder=folder)


def linked(source: str, target: str) -> None:
    """Make a file the same as another one, without a copy where that can be."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def new_folder() -> Path:
    """Return a new folder for `kept_in`, or for `written_into`."""
    return Path(tempfile.mkdtemp(prefix="adk_eval_"))


def kept_in(temporary: Path, folder: Path) -> StoredFiles:
    """Return the files of a folder within a temporary one, which is removed as soon as nobody has them any more."""
    return _owning(files_in(folder), temporary)


def written_into(folder: Path) -> StoredFiles:
    """Return the files of a temporary folder that is still written into, and removed as soon as nobody has them any more."""
    return _owning(StoredFiles(None, folder=folder), folder)


def _owning(found: StoredFiles, temporary: Path) -> StoredFiles:
    weakref.finalize(found, shutil.rmtree, temporary, ignore_errors=True)
    return found
