"""From rows to cases: each with the runs that are recorded of it, and everything that is wrong with any of them.

A row is an ADK eval case, or has ``eval_id``, ``case``, ``run_index`` and ``recorded``. The rows of one case are its runs and follow each
other. What is wrong is collected in the one pass that reads, so that a file of a million lines is read once to learn of all of its problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter
from pydantic_core import to_json

from mlflow_adk_eval.errors import EvalSetError, Problem, nearest, shown
from mlflow_adk_eval.evalset.conversation import RecordedRun
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.evalset.models import EvalCase, Invocation, Json, Model
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.evalset.row_files import CONVERSATIONS, IDS, SET_IDS, Row

_MAX_NAMED = 50
"""How many problems of one source are kept."""
_CASE = TypeAdapter(EvalCase)
_RUN = TypeAdapter(RecordedRun)
_TURNS = TypeAdapter(tuple[Invocation, ...])
ONLY_IN_ROWS = frozenset({"case", "run_index", "runIndex", "recorded"})
"""The keys by which a row is told from an eval case."""
_OF_ROW = ("run_index", "runIndex", "recorded")


class CaseTexts(NamedTuple):
    """A case and its recorded runs as JSON text, in the spelling of their source."""

    case: str
    runs: tuple[tuple[RecordedRun, str], ...]


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One case, and what an agent did on it where that is recorded."""

    case: EvalCase
    runs: tuple[RecordedRun, ...] | None = None
    """The recorded runs, in order; ``None``: nothing is recorded beside the case."""
    written: tuple[Any, ...] | None = None
    """The JSON values that the case and its runs were read from; ``None`` where they were not."""

    def texts(self) -> CaseTexts | None:
        """Return the case and its runs as text; ``None`` where they were not read from text. Writing the models takes five times as long."""
        if self.written is None:
            return None
        case, *runs = self.written
        found = zip(self.runs or (), ({"invocations": run} if isinstance(run, list) else run for run in runs), strict=True)
        return CaseTexts(to_json(case).decode(), tuple((run, to_json(value).decode()) for run, value in found))


@dataclass(slots=True)
class WrittenCase:
    """A case and its recorded runs as JSON values, in the spelling of their source."""

    eval_id: str
    case: Any
    runs: list[Any]

    def texts(self) -> tuple[str, list[str]]:
        """Return the case and its runs as text."""
        return to_json(self.case).decode(), [to_json(run).decode() for run in self.runs]

    @property
    def turns(self) -> list[int]:
        """How many turns the case has, and then each of the runs."""
        recorded = (run if isinstance(run, list) else run.get("invocations") for run in self.runs)
        return [len(turns or ()) for turns in (self.case.get("conversation"), *recorded)]


def written_cases(rows: Iterable[Row], source: str) -> Iterator[WrittenCase]:
    """Yield the cases of a source that a `CaseReader` went through before, without making models of them again.

    Raises:
        EvalSetError: if a row cannot be read any more.
    """
    found: WrittenCase | None = None
    for row in rows:
        if isinstance(row.value, Problem):
            raise EvalSetError(source, [row.value])
        value: Json = row.value
        eval_id = str(next((value[key] for key in IDS if key in value), ""))
        if found is None or found.eval_id != eval_id:
            if found is not None:
                yield found
            flat = value.get("case") is None
            found = WrittenCase(eval_id, {key: item for key, item in value.items() if key not in _OF_ROW} if flat else value["case"], [])
        if value.get("recorded") is not None:
            found.runs.append(value["recorded"])
    if found is not None:
        yield found


class _Envelope(Model):
    """A row around a case or around what was recorded of it."""

    eval_id: str
    case: Any = None
    run_index: int | None = None
    recorded: Any = None


_ENVELOPE = TypeAdapter(_Envelope)


@dataclass(slots=True)
class _Problems:
    """What is wrong with a source: the first problems, and how many there are."""

    source: str
    named: list[Problem] = field(default_factory=list[Problem])
    count: int = 0

    def add(self, *problems: Problem) -> None:
        self.named += problems[: max(_MAX_NAMED - len(self.named), 0)]
        self.count += len(problems)

    def error(self) -> EvalSetError:
        return EvalSetError(self.source, self.named, more=self.count - len(self.named))


@dataclass(slots=True)
class _Group:
    """The rows of one case that were read so far."""

    eval_id: str
    case: EvalCase | None
    written: Any
    """The case as its first row has it."""
    at: str
    runs: list[RecordedRun]
    recorded: list[Any]
    """The runs as their rows have them."""
    bare: bool
    """Whether its first row has nothing recorded."""
    again: bool = False
    """Whether its id was seen before, which is a problem of its own."""


class CaseReader:
    """One pass over the rows of a source."""

    def __init__(self, source: str, *, again: bool = False) -> None:
        """Take how messages call the source; `again`: it was gone through before, so no two cases have one id."""
        self._again = again
        self.problems = _Problems(source)
        self.count = 0
        self._source = source
        self._seen: dict[str, str] = {}
        self._group: _Group | None = None

    def cases(self, rows: Iterable[Row]) -> Iterator[CaseRow]:
        """Yield the cases that are complete, all but the last, which `last` returns."""
        for row in rows:
            self.count += 1
            try:
                done = self._next(row)
            except EvalSetError as error:
                self.problems.add(*error.problems)
                continue
            if done is not None:
                yield done

    def last(self) -> CaseRow | None:
        """Return the row that the end of the source completes."""
        return self._closed()

    def _next(self, row: Row) -> CaseRow | None:
        at, value = row.at, row.value
        if isinstance(value, Problem):
            raise EvalSetError(self._source, [value])
        if not isinstance(value, dict):
            raise EvalSetError(
                self._source, [Problem(at, shown(value), "an object: an eval case, or an eval_id with a case or what was recorded")]
            )
        found = cast("Json", value)
        if "eval_id" not in found and any(key in found for key in SET_IDS) and "evalId" not in found:
            raise EvalSetError(self._source, [Problem(at, "fields of an eval set", "a case: only the first line of all may name the set")])
        if found.keys().isdisjoint(ONLY_IN_ROWS) and not _misspelt(found):
            case = parse(_CASE, found, self._source, at=at)
            return self._begun(_Group(case.eval_id, case, found, at, [], [], bare=True))
        return self._wrapped(found, at)

    def _wrapped(self, value: Json, at: str) -> CaseRow | None:
        flat = value.get("case") is None and any(key in value for key in CONVERSATIONS)
        kept = (*IDS, *_OF_ROW)
        head = parse(_ENVELOPE, {key: item for key, item in value.items() if key in kept} if flat else value, self._source, at=at)
        written = {key: item for key, item in value.items() if key not in _OF_ROW} if flat else head.case
        group = self._group
        if group is not None and group.eval_id == head.eval_id:
            if not group.again:
                self._same(group, written, at if flat else f"{at}.case")
                self._run(group, head, at)
            return None
        return self._first(head, written, at, at if flat else f"{at}.case")

    def _first(self, head: _Envelope, written: Any, at: str, case_at: str) -> CaseRow | None:
        """Begin with the first row of a case."""
        group = _Group(head.eval_id, None, written, at, [], [], bare=head.recorded is None)
        done = self._begun(group)
        if not group.again:
            try:
                group.case = self._case(head, written, case_at)
            except EvalSetError as error:
                self.problems.add(*error.problems)
            self._run(group, head, at)
        return done

    def _case(self, head: _Envelope, written: Any, at: str) -> EvalCase:
        if written is None:
            raise EvalSetError(self._source, [Problem(at, "nothing", f"the case, in the first row of {shown(head.eval_id)}")])
        case = parse(_CASE, written, self._source, at=at)
        if case.eval_id != head.eval_id:
            problem = Problem(f"{at}.eval_id", shown(case.eval_id), f"{shown(head.eval_id)}, as in the row's own eval_id")
            raise EvalSetError(self._source, [problem])
        return case

    def _begun(self, group: _Group) -> CaseRow | None:
        """Make `group` the current one, and return the one before."""
        follows = self._group is not None and self._group.eval_id == group.eval_id
        done = self._closed()
        self._group = group
        if self._again:
            return done
        earlier = self._seen.setdefault(group.eval_id, group.at)
        if earlier != group.at:
            group.again = True
            hint = "" if follows or group.bare else "The runs of one case must follow each other."
            found = f"{shown(group.eval_id)}, which {_where(earlier)} has too"
            self.problems.add(Problem(f"{group.at}.eval_id", found, "an id of its own", hint))
        return done

    def _closed(self) -> CaseRow | None:
        group, self._group = self._group, None
        if group is None or group.case is None:
            return None
        return CaseRow(group.case, None if group.bare else tuple(group.runs), (group.written, *group.recorded))

    def _same(self, group: _Group, written: Any, at: str) -> None:
        """Refuse another case of the same id."""
        if written is None or written == group.written or group.case is None:
            return
        case = parse(_CASE, written, self._source, at=at)
        if canonical_json(canonical(case)) != canonical_json(canonical(group.case)):
            problem = Problem(at, "another case", f"the case of {_where(group.at)}, whose runs these are, or no case")
            raise EvalSetError(self._source, [problem])

    def _run(self, group: _Group, head: _Envelope, at: str) -> None:
        """Add what a row has recorded to its case."""
        if head.recorded is None and group.bare and group.at == at and not head.run_index:
            return
        problems: list[Problem] = []
        wanted = len(group.runs)
        if group.bare or head.recorded is None:
            problems.append(
                Problem(f"{group.at if group.bare else at}.recorded", "nothing", "what was recorded, as in the other runs of this case")
            )
        elif (head.run_index or 0) != wanted:
            found = "nothing" if head.run_index is None else str(head.run_index)
            problems.append(
                Problem(f"{at}.run_index", found, f"{wanted}, the next run of case {shown(group.eval_id)} (runs are counted from 0)")
            )
        if head.recorded is not None:
            try:
                group.runs.append(self._recorded(head.recorded, f"{at}.recorded"))
                group.recorded.append(head.recorded)
            except EvalSetError as error:
                problems += error.problems
        self.problems.add(*problems)

    def _recorded(self, value: Any, at: str) -> RecordedRun:
        if isinstance(value, list):
            return RecordedRun(invocations=parse(_TURNS, value, self._source, at=at))
        if isinstance(value, dict):
            return parse(_RUN, value, self._source, at=at)
        wanted = "a recorded run (an object with invocations), or a list of invocations"
        raise EvalSetError(self._source, [Problem(at, shown(value), wanted)])


def _where(at: str) -> str:
    """Return the file, line or row of a place."""
    return at.removesuffix(": $")


def _misspelt(value: Json) -> bool:
    """Whether a row without a conversation has a key that is likely one of a row's own."""
    return all(key not in value for key in CONVERSATIONS) and any(nearest(key, ("case", "run_index", "recorded")) for key in value)
