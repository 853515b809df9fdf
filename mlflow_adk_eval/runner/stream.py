"""Evaluating cases that are read from their source as they are needed, so that memory does not grow with their number.

The source is gone through twice: once to find whatever is wrong with it, to plan and to take its digest, before anything is paid for; and once to
execute. `StreamedCases` stands in an eval set where a tuple of cases would. `StreamedRecording` has the conversations that stand beside the
cases, each only from when its case is read until it has been judged.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, overload

from mlflow_adk_eval.agents import Conversation, Recording
from mlflow_adk_eval.agents.recordings import conversation_of, not_held, recording_beside
from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource, folder_of
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet, split_selection
from mlflow_adk_eval.evalset.conversation import RecordedRun
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.evalset.row_cases import CaseTexts
from mlflow_adk_eval.evalset.rows import CaseFiles, CaseSource, is_rows, open_cases
from mlflow_adk_eval.judge.setup import LedgerSource
from mlflow_adk_eval.ledger import VARIABLE, CallCache, opened

_BATCH = 100
"""How many cases are in memory at once, besides those that are being executed."""


@dataclass(slots=True)
class _Survey:
    """What is known of a source once somebody went through it."""

    eval_ids: list[str] = field(default_factory=list[str])
    num_runs: array[int] = field(default_factory=lambda: array("i"))
    """How many runs are recorded beside each case."""
    turns: int = 0
    """How many turns the cases have at least, in one run of each."""
    sha256: Any = field(default_factory=hashlib.sha256)


class StreamedCases(Sequence[EvalCase]):
    """The cases of a source, read from its start whenever somebody goes through them."""

    def __init__(self, source: CaseSource) -> None:
        """Take the source; nothing is read yet."""
        self.source = source
        self._known: _Survey | None = None
        self._waiting: dict[str, list[RecordedRun]] = {}
        self._texts: dict[str, CaseTexts] = {}

    @property
    def _survey(self) -> _Survey:
        if self._known is None:
            for _ in self:
                pass
        assert self._known is not None  # noqa: S101 - whoever went to the end has set it
        return self._known

    def __iter__(self) -> Iterator[EvalCase]:
        """Yield the cases. Whoever goes to the end first also learns the ids, the runs and the digest.

        Raises:
            EvalSetError: with every problem of the source.
        """
        found = _Survey() if self._known is None else None
        for batch in self.source.batches(_BATCH):
            for row in batch:
                if found:
                    found.eval_ids.append(row.case.eval_id)
                    found.num_runs.append(len(row.runs or ()))
                    found.turns += max(1, len(row.case.conversation or ()))
                    found.sha256.update(canonical_json(canonical(row.case)) + b"\n")
                yield row.case
        self._known = self._known or found

    def handing_over(self) -> Iterator[EvalCase]:
        """Yield the cases, each once its recorded runs can be had from `taken` and its texts from `texts_of`."""
        source = replace(self.source, again=True) if self._known and isinstance(self.source, CaseFiles) else self.source
        for batch in source.batches(_BATCH):
            for row in batch:
                if row.runs:
                    self._waiting[row.case.eval_id] = list(row.runs)
                if texts := row.texts():
                    self._texts[row.case.eval_id] = texts
                yield row.case

    def texts_of(self, eval_id: str) -> CaseTexts | None:
        """Return a case that was handed over as its source has it, and forget it; ``None`` where that is no text."""
        return self._texts.pop(eval_id, None)

    def known_texts(self, eval_id: str) -> CaseTexts | None:
        """Return what `texts_of` will, and keep it."""
        return self._texts.get(eval_id)

    def pass_over(self, eval_id: str) -> None:
        """Forget a case that was handed over and need not be executed."""
        self._texts.pop(eval_id, None)
        self._waiting.pop(eval_id, None)

    def taken(self, eval_id: str, run_index: int) -> RecordedRun | None:
        """Return a run of a case that was handed over; the last one is then forgotten, with the others."""
        runs = self._waiting.get(eval_id, [])
        if run_index >= len(runs):
            return None
        if run_index == len(runs) - 1:
            del self._waiting[eval_id]
        return runs[run_index]

    def all_taken(self, eval_id: str) -> list[RecordedRun]:
        """Return all runs of a case that was handed over, and forget them."""
        return self._waiting.pop(eval_id, [])

    @property
    def eval_ids(self) -> tuple[str, ...]:
        """The ids of all cases."""
        return tuple(self._survey.eval_ids)

    @property
    def digest(self) -> str:
        """The digest of the eval set."""
        return f"sha256:{self._survey.sha256.hexdigest()}"

    @property
    def turns(self) -> int:
        """How many turns the cases have at least, in one run of each."""
        return self._survey.turns

    @property
    def recorded(self) -> bool:
        """Whether anything is recorded beside the first cases."""
        return any(row.runs for row in next(iter(self.source.batches(_BATCH)), ()))

    @property
    def num_runs(self) -> int:
        """How many runs are recorded of each case; 0 where none is."""
        return max(self._survey.num_runs, default=0)

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self._survey.eval_ids)

    @overload
    def __getitem__(self, index: int) -> EvalCase: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EvalCase]: ...
    def __getitem__(self, index: int | slice) -> EvalCase | Sequence[EvalCase]:
        """Return a case, or some of them; the source is read up to there."""
        if isinstance(index, slice):
            places = range(*index.indices(len(self)))
            wanted = set(places)
            found = {place: case for place, case in enumerate(self) if place in wanted}
            return tuple(found[place] for place in places)
        place = index + len(self) if index < 0 else index
        case = next(islice(self, place, None), None) if place >= 0 else None
        if case is None:
            raise IndexError(index)
        return case


@dataclass(frozen=True, slots=True)
class StreamedRecording(Recording):
    """The conversations that are recorded beside the cases of a source."""

    cases: StreamedCases | None = None

    def num_runs(self, eval_ids: Any) -> int:  # noqa: ARG002 - it is the recording of all of them
        """Return how many runs of the cases there are; at least one."""
        return max(self.cases.num_runs if self.cases else 1, 1)

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        """Return the recorded conversation, or the error that there is none."""
        run = self.cases.taken(case.eval_id, run_index) if self.cases else None
        if run is None:
            return not_held(case.eval_id, run_index)
        return conversation_of(run)


def streamed(source: CaseSource) -> EvalSet:
    """Return the eval set that a source holds, read as it is needed."""
    cases: Any = StreamedCases(source)  # reads like a tuple
    return EvalSet.model_construct(eval_set_id=source.eval_set_id, eval_cases=cases)


def inputs_read_as_needed(eval_set: Any, config: ConfigSource) -> tuple[EvalSet, EvalConfig] | None:
    """Return the eval set that a file, folder or URI of rows holds, and the config to evaluate it with; ``None`` for anything else.

    Raises:
        InputError: with every problem of the config, or if there is no such file.
        UsageError: if reading the URI needs a package that is not installed.
    """
    if isinstance(eval_set, list | tuple) and len(eval_set) == 1:
        (eval_set,) = eval_set
    if not isinstance(eval_set, str | Path) or split_selection(eval_set)[1] or not is_rows(eval_set):
        return None
    if (folder := folder_of(eval_set)) and folder == Path(eval_set) and any(folder.glob("*.test.json")):
        return None
    return streamed(open_cases(eval_set)), load_config(config, beside=folder)


def recorded_beside(eval_set: EvalSet, named: Any) -> Recording | None:
    """Return what is recorded beside the cases of an eval set; ``None`` where nothing is.

    Args:
        eval_set: the eval set.
        named: what it was read from.

    Raises:
        EvalSetError: with every problem of its source.
    """
    cases: Any = eval_set.eval_cases
    if not isinstance(cases, StreamedCases):
        return recording_beside(named)
    return StreamedRecording(runs={}, cases=cases) if cases.recorded else None


def kept_beside(ledger: CallCache | None) -> Path | None:
    """Return the folder for parts of evaluations under way; ``None`` where there is no ledger that is a file."""
    return None if ledger is None or ledger.shared else ledger.parts


@contextmanager
def ledger_of(source: LedgerSource, *, needed: bool) -> Generator[CallCache | None]:
    """Provide the ledger, or ``None`` where nothing is to be kept.

    Args:
        source: as of `evaluate`.
        needed: whether anybody is asked. Where nobody is, a folder that takes no ledger is no reason to stop, unless one was named.

    Raises:
        UsageError: if the ledger cannot be used.
    """
    with ExitStack() as stack:
        try:
            ledger = stack.enter_context(opened(source))
        except UsageError:
            if needed or source is not None or os.environ.get(VARIABLE):
                raise
            ledger = None
        yield ledger
