"""Collecting the results of cases while an evaluation goes on: in memory, or in parts of which only the columns stay in memory.

A collector is given each case with the results of its runs, in the order of the eval set. In the end it gives back a sequence of all results,
which is a tuple in a small run and reads from disk in a large one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.evalset.row_cases import CaseTexts
from mlflow_adk_eval.results.files import new_folder, written_into
from mlflow_adk_eval.results.kept_parts import KeptParts
from mlflow_adk_eval.results.outcomes import CaseResult, PlannedCriterion
from mlflow_adk_eval.results.parts import CASES, PART_TURNS, Cleaner, Part, PartReader, PartWriter, StoredPart, WrittenPart, cleaned
from mlflow_adk_eval.results.stored import CaseColumns, StoredCases, results_of, stored_eval_set
from mlflow_adk_eval.results.table import turns_of

SMALL_TURNS = 2_000
"""Up to how many turns a run stays in memory as a whole, and is shown and exported as a whole."""


class Collector(Protocol):
    """Takes the results of cases, in the order of the eval set."""

    def add(self, case: EvalCase, runs: Sequence[CaseResult], /) -> None:
        """Take a case with the results of all of its runs."""
        ...

    def results(self, eval_set: EvalSet, /) -> tuple[EvalSet, Sequence[CaseResult]]:
        """Return the eval set and all results, once every case was added."""
        ...


class InMemory:
    """Keeps everything in memory."""

    def __init__(self) -> None:
        """Start without any."""
        self._found: list[CaseResult] = []

    def add(self, case: EvalCase, runs: Sequence[CaseResult], /) -> None:  # noqa: ARG002 - the eval set has it
        """Take a case with the results of all of its runs."""
        self._found.extend(runs)

    def results(self, eval_set: EvalSet, /) -> tuple[EvalSet, Sequence[CaseResult]]:
        """Return the eval set as it is, and all results."""
        return eval_set, tuple(self._found)


class InParts:
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
            kept: where parts that have ended are kept until `forget_kept`; ``None``: nowhere.
        """
        self.folder = new_folder()
        self.files = written_into(self.folder)
        self.criteria, self._clean = tuple(criteria), clean
        self._writer = PartWriter(self.folder, criteria, clean, judged=judged, part_turns=part_turns)
        self._texts_of = texts_of or (lambda _: None)
        self._known_ids = eval_ids
        self.kept = kept
        self._small_turns = SMALL_TURNS if small_turns is None else small_turns
        self._kept: list[CaseResult] | None = []
        self._eval_ids: list[str] = []
        self._columns = CaseColumns()
        self.turns = 0
        self.parts: tuple[Part, ...] = ()
        """Once `results` was asked for."""

    @property
    def small(self) -> bool:
        """Whether everything is in memory."""
        return self._kept is not None

    @property
    def cases(self) -> int:
        """How many cases there are so far."""
        return len(self._eval_ids)

    def add(self, case: EvalCase, runs: Sequence[CaseResult], /) -> None:
        """Take a case with the results of all of its runs."""
        texts, ended = self._texts_of(case.eval_id), len(self._writer.parts)
        self._writer.add(case, runs, texts)
        self._keep(case.eval_id, runs)
        if self.kept and texts:
            self.kept.read(texts)
            if len(self._writer.parts) > ended:
                self.kept.keep(self._writer.parts[-1], self.folder)

    def forget_kept(self) -> None:
        """Delete what is kept of the parts elsewhere, once nobody needs to go on with them."""
        if self.kept:
            self.kept.forget()

    def take(self, written: WrittenPart, planned: Callable[[str], Sequence[PlannedCriterion]]) -> Part:
        """Take the next part as another process has written it, before any that is written here.

        Whatever is known of the part is read from its files.

        Args:
            written: the part.
            planned: returns the criteria of a case by its id.

        Raises:
            InputError: if its files do not fit together.
        """
        part = replace(written.part, number=len(self._writer.parts), first_case_no=self._writer.next_case)
        for folder, content in written.files.items():
            fit = content if folder == CASES else cleaned(content, self._clean, part.name(folder))
            (self.folder / part.name(folder)).write_bytes(fit)
        for eval_id, runs in results_of(StoredPart(part, self.files, self.folder.name), planned, whole=self.small):
            self._keep(eval_id, runs)
        self._writer.parts.append(part)
        return part

    def _keep(self, eval_id: str, runs: Sequence[CaseResult]) -> None:
        number = len(self._eval_ids)
        if number < len(self._known_ids) and self._known_ids[number] == eval_id:
            eval_id = self._known_ids[number]
        self._eval_ids.append(eval_id)
        for result in runs:
            self._columns.add(result, eval_id)
            self.turns += turns_of(result)
        if self._kept is not None:
            self._kept.extend(runs)
            if self.turns > self._small_turns:
                self._kept = None

    def results(self, eval_set: EvalSet, /) -> tuple[EvalSet, Sequence[CaseResult]]:
        """Return the eval set and all results; those of a large run are read from the parts, the cases included."""
        self.parts = self._writer.close()
        if self._kept is not None:
            return eval_set, tuple(self._kept)
        reader = PartReader(self.files, self.parts, self.folder.name)
        head: dict[str, Any] = {name: getattr(eval_set, name) for name in eval_set.model_fields_set - {"eval_cases"}}
        return stored_eval_set(reader, self._eval_ids, head), StoredCases(self._columns, reader)
