"""Collecting the results of cases while an evaluation goes on: in memory, or in parts of which only the columns stay in memory.

A collector is given each case with the results of its runs, in the order of the eval set. In the end it gives back a sequence of all results,
which is a tuple in a small run and reads from disk in a large one.

`KeptParts` are parts of an evaluation under way that outlive its process, so that the same evaluation need not score their cases again. They are
copied into a folder whose name is a hash of all that decides cells besides the cases: config, number of runs, this package's code and whatever else is
installed. A part is listed there, once all of its files are, with the hash of the texts that its cases were read from and those of its files. Whoever
finds one of these to be another does not take the part.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, canonical_json
from mlflow_adk_eval.evalset.row_cases import CaseTexts
from mlflow_adk_eval.redact import secret_values
from mlflow_adk_eval.results.outcomes import CaseResult, PlannedCriterion
from mlflow_adk_eval.results.report import Cases, CasesInMemory
from mlflow_adk_eval.runs.files import file_sha256, files_in, linked, new_folder, replaced
from mlflow_adk_eval.runs.parts import CASES, PART_FOLDERS, PART_TURNS, Cleaner, Part, PartWriter, WrittenPart, cleaned
from mlflow_adk_eval.runs.stored_run import CaseColumns, StoredCases, StoredPart, StoredRun

_logger = logging.getLogger(__name__)
_PACKAGE = Path(__file__).parents[1]

SMALL_TURNS = 2_000
"""Up to how many turns a run stays in memory as a whole, and is shown and exported as a whole."""


class Collector:
    """Takes the results of cases, in the order of the eval set, and keeps them in memory."""

    def __init__(self) -> None:
        """Start without any."""
        self._cases: list[CaseResult] = []

    def add(self, case: EvalCase, runs: Sequence[CaseResult], /) -> None:  # noqa: ARG002 - the eval set has it
        """Take a case with the results of all of its runs."""
        self._cases.extend(runs)

    def results(self, eval_set: EvalSet, /) -> tuple[EvalSet, Cases]:
        """Return the eval set as it is, and all results."""
        return eval_set, CasesInMemory(self._cases)


class InParts(Collector):
    """Writes parts into a temporary folder; also keeps everything in memory for as long as that is little.

    The folder is deleted when the collector, the results and all that was made of them are gone.
    """

    def __init__(
        self,
        criteria: Sequence[str],
        clean: Cleaner,
        *,
        judged: bool,
        small_turns: int | None = None,
        part_turns: int = PART_TURNS,
        texts_of: Callable[[str], CaseTexts | None] | None = None,
        eval_ids: Sequence[str] = (),
        kept: KeptParts | None = None,
    ) -> None:
        """Start without any.

        Args:
            criteria: as of a `PartWriter`, like `clean`, `judged` and `part_turns`.
            clean: what makes texts fit to be kept.
            judged: whether judges decide any criterion.
            small_turns: up to how many turns everything stays in memory; ``None``: `SMALL_TURNS`.
            part_turns: after how many turns a part ends.
            texts_of: returns the texts that a case was read from, by its id.
            eval_ids: the ids of the cases, if they are in memory anyway, so that there is no second copy of each.
            kept: where parts that have ended are kept until they are forgotten; ``None``: nowhere.
        """
        self.folder = new_folder()
        self.files = files_in(self.folder, growing=True, temporary=self.folder)
        self.criteria, self._clean = tuple(criteria), clean
        self._writer = PartWriter(self.folder, criteria, clean, judged=judged, part_turns=part_turns)
        self._texts_of = texts_of or (lambda _: None)
        self._known_ids = eval_ids
        self.kept = kept
        self._small_turns = SMALL_TURNS if small_turns is None else small_turns
        self._in_memory: list[CaseResult] | None = []
        """All results, as long as they are few; then they are in the columns."""
        self._columns: CaseColumns | None = None
        self._eval_ids: list[str] = []
        self.cases = self.turns = 0
        """How many there are so far."""
        self.parts: tuple[Part, ...] = ()
        """Once `results` was asked for."""

    def add(self, case: EvalCase, runs: Sequence[CaseResult], /) -> None:
        """Take a case with the results of all of its runs."""
        texts, ended = self._texts_of(case.eval_id), len(self._writer.parts)
        self._writer.add(case, runs, texts)
        self._keep(case.eval_id, runs)
        if self.kept and texts:
            self.kept.read(texts)
            if len(self._writer.parts) > ended:
                self.kept.keep(self._writer.parts[-1], self.folder)

    def take(self, written: WrittenPart, planned: Callable[[str], Sequence[PlannedCriterion]]) -> Part:
        """Take the next part as another process has written it, before any that is written here.

        Whatever is known of the part is read from its files.

        Args:
            written: the part.
            planned: returns the criteria of a case by its id.

        Raises:
            InputError: if its files do not fit together.
        """
        earlier = self._writer.parts
        part = replace(written.part, number=len(earlier), first_case_no=sum(part.cases for part in earlier))
        for folder, content in written.files.items():
            fit = content if folder == CASES else cleaned(content, self._clean, part.name(folder))
            (self.folder / part.name(folder)).write_bytes(fit)
        for eval_id, runs in StoredPart(part, self.files, self.folder.name).results(planned, whole=self._in_memory is not None):
            self._keep(eval_id, runs)
        earlier.append(part)
        return part

    def _keep(self, eval_id: str, runs: Sequence[CaseResult]) -> None:
        if self.cases < len(self._known_ids) and self._known_ids[self.cases] == eval_id:
            eval_id = self._known_ids[self.cases]
        self._eval_ids.append(eval_id)
        self.cases += 1
        self.turns += sum(result.rows for result in runs)
        if self._in_memory is not None:
            self._in_memory.extend(runs)
            if self.turns <= self._small_turns:
                return
            runs, self._in_memory = self._in_memory, None
        self._columns = self._columns or CaseColumns()
        ids = {known: known for known in self._eval_ids[-len(runs) :]}
        for result in runs:
            self._columns.add(result, ids[result.eval_id])

    def results(self, eval_set: EvalSet, /) -> tuple[EvalSet, Cases]:
        """Return the eval set and all results; those of a large run are read from the parts, the cases included."""
        self.parts = self._writer.close()
        if self._in_memory is not None:
            return eval_set, CasesInMemory(self._in_memory)
        run = StoredRun(self.files, self.parts, self.folder.name)
        head: dict[str, Any] = {name: getattr(eval_set, name) for name in eval_set.model_fields_set - {"eval_cases"}}
        return run.eval_set(self._eval_ids, head), StoredCases(self._columns or CaseColumns(), run)


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
        code = hashlib.sha256()
        for path in sorted(_PACKAGE.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                code.update(f"{path.relative_to(_PACKAGE).as_posix()} {file_sha256(path)}\n".encode())
        folders = [Path(entry) for entry in sys.path if Path(entry).is_dir()]
        installed = [sys.version, *sorted({path.name for entry in folders for path in entry.glob("*.dist-info")})]
        known = {"by": list(decided_by), "code": code.hexdigest(), "installed": installed, "secrets": sorted(secret_values().values())}
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
                (self._folder / name).parent.mkdir(exist_ok=True)
                replaced(self._folder / name, partial(linked, written / name))
            listed = KeptPart(part, texts, {folder: file_sha256(self._folder / name) for folder, name in names.items()})
            replaced(self._listed(part.number), lambda path: path.write_text(json.dumps(asdict(listed)), "utf-8"))
        except OSError as error:
            self._failed = True
            _logger.warning("no more finished parts are saved for a resumed evaluation: %s", error)

    def listed(self) -> Iterator[KeptPart]:
        """Yield what is kept, in order, up to the first part that is not."""
        number = 0
        with suppress(OSError, ValueError, TypeError, KeyError):
            while True:
                entry = json.loads(self._listed(number).read_text("utf-8"))
                yield KeptPart(Part(**entry["part"]), str(entry["texts"]), dict(entry["files"]))
                number += 1

    def taken(self, kept: KeptPart, texts: Sequence[CaseTexts | None]) -> WrittenPart | None:
        """Return a part that is kept; ``None`` if its cases were read from other texts, or its files were changed."""
        digest = hashlib.sha256()
        for one in filter(None, texts):
            _add(digest, one)
        if None in texts or len(texts) != kept.part.cases or digest.hexdigest() != kept.texts:
            return None
        try:
            files = {folder: (self._folder / kept.part.name(folder)).read_bytes() for folder in kept.files}
        except OSError:
            return None
        same = all(hashlib.sha256(content).hexdigest() == kept.files[folder] for folder, content in files.items())
        return WrittenPart(kept.part, files) if same else None

    def forget(self) -> None:
        """Delete what is kept, once nobody needs to go on with it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listed(self, number: int) -> Path:
        return self._folder / f"part-{number:05}.json"


def _add(digest: Any, texts: CaseTexts) -> None:
    for text in (str(len(texts.runs)), texts.case, *(text for _, text in texts.runs)):
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8))
        digest.update(content)
