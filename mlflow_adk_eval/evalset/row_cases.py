"""From rows to cases: each with the runs that are recorded of it, and everything that is wrong with any of them.

A row is an ADK eval case, or has ``eval_id``, ``case``, ``run_index`` and ``recorded``. The rows of one case are its runs and follow each
other. What is wrong is collected in the one pass that reads, so that a file of a million lines is read once to learn of all of its problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

from pydantic_core import to_json

from mlflow_adk_eval.errors import EvalSetError, Problem, nearest, shown
from mlflow_adk_eval.evalset.conversation import RecordedRun
from mlflow_adk_eval.evalset.foreign import dataset_problem, foreign_case
from mlflow_adk_eval.evalset.models import EvalCase, Invocation, Json, Written, canonical, canonical_json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.evalset.row_files import CONVERSATIONS, IDS, SET_IDS, Row
from mlflow_adk_eval.evalset.unread import Level

_MAX_NAMED = 50
"""How many problems of one source are kept."""
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


class _Envelope(Written):
    """A row around a case or around what was recorded of it."""

    level: ClassVar[Level] = "case"
    eval_id: str
    case: Any = None
    run_index: int | None = None
    recorded: Any = None


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

    def __init__(self, source: str, *, again: bool = False, mending: bool = False) -> None:
        """Take how messages call the source.

        Args:
            source: how messages call it.
            again: whether it was gone through before, so that no two cases have one id.
            mending: whether keys that nothing reads where they are come along.
        """
        self._again = again
        self._mending = mending
        self.problems: list[Problem] = []
        """What is wrong with the source."""
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
                self.problems += error.problems
                continue
            if done is not None:
                yield done

    def check(self) -> None:
        """Raise if there was anything wrong.

        Raises:
            EvalSetError: with the first problems, and how many more there are.
        """
        if self.problems:
            raise EvalSetError(self._source, self.problems[:_MAX_NAMED], more=len(self.problems[_MAX_NAMED:]))

    def last(self) -> CaseRow | None:
        """Return the row that is complete now that another one begins, or the source ends."""
        group, self._group = self._group, None
        if group is None or group.case is None:
            return None
        return CaseRow(group.case, None if group.bare else tuple(group.runs), (group.written, *group.recorded))

    def _next(self, row: Row) -> CaseRow | None:
        at = row.at
        if isinstance(row.value, Problem):
            raise EvalSetError(self._source, [row.value])
        if not isinstance(row.value, dict):
            wanted = "an object: an eval case, or an eval_id with a case or a recorded conversation"
            raise EvalSetError(self._source, [Problem(at, shown(row.value), wanted)])
        value = cast("Json", row.value)
        if ONLY_IN_ROWS.isdisjoint(value) and (keys := foreign_case(value)):
            raise EvalSetError(self._source, [dataset_problem(keys, at)])
        if not any(key in value for key in IDS) and any(key in value for key in SET_IDS):
            raise EvalSetError(self._source, [Problem(at, "fields of an eval set", "a case: only the first line may name the set")])
        told = any(key in value for key in CONVERSATIONS)
        misspelt = not told and any(nearest(key, ("case", "run_index", "recorded")) for key in value)
        if value.keys().isdisjoint(ONLY_IN_ROWS) and not misspelt:
            case = parse(EvalCase, value, self._source, at=at, mending=self._mending)
            return self._begun(_Group(case.eval_id, case, value, at, [], [], bare=True))
        flat = value.get("case") is None and told
        own = {key: item for key, item in value.items() if key in (*IDS, *_OF_ROW)} if flat else value
        head = parse(_Envelope, own, self._source, at=at, mending=self._mending)
        written = {key: item for key, item in value.items() if key not in _OF_ROW} if flat else head.case
        case_at = at if flat else f"{at}.case"
        group, done = self._group, None
        if group is None or group.eval_id != head.eval_id:
            group = _Group(head.eval_id, None, written, at, [], [], bare=head.recorded is None)
            done = self._begun(group)
            if group.again:
                return done
            try:
                if written is None:
                    self.problems.append(Problem(case_at, "nothing", f"the case, in the first row of {shown(head.eval_id)}"))
                elif (case := parse(EvalCase, written, self._source, at=case_at, mending=self._mending)).eval_id != head.eval_id:
                    wanted = f"{shown(head.eval_id)}, as in the row's own eval_id"
                    self.problems.append(Problem(f"{case_at}.eval_id", shown(case.eval_id), wanted))
                else:
                    group.case = case
            except EvalSetError as error:
                self.problems += error.problems
        elif not group.again and written is not None and written != group.written and group.case is not None:
            case = parse(EvalCase, written, self._source, at=case_at, mending=self._mending)
            if canonical_json(canonical(case)) != canonical_json(canonical(group.case)):
                wanted = f"the same case as {group.at.removesuffix(': $')}, or no case"
                raise EvalSetError(self._source, [Problem(case_at, "another case", wanted)])
        if not group.again:
            self._add_run(group, head, at)
        return done

    def _begun(self, group: _Group) -> CaseRow | None:
        """Make `group` the current one, and return the one before."""
        follows = self._group is not None and self._group.eval_id == group.eval_id
        done = self.last()
        self._group = group
        if self._again:
            return done
        earlier = self._seen.setdefault(group.eval_id, group.at)
        if earlier != group.at:
            group.again = True
            hint = "" if follows or group.bare else "The runs of one case must follow each other."
            found = f"{shown(group.eval_id)}, the same as {earlier.removesuffix(': $')}"
            self.problems.append(Problem(f"{group.at}.eval_id", found, "a unique id", hint))
        return done

    def _add_run(self, group: _Group, head: _Envelope, at: str) -> None:
        """Add what a row has recorded to its case."""
        if head.recorded is None and group.bare and group.at == at and not head.run_index:
            return
        problems: list[Problem] = []
        number = len(group.runs)
        if group.bare or head.recorded is None:
            wanted = "a recorded conversation, as in the other runs of this case"
            problems.append(Problem(f"{group.at if group.bare else at}.recorded", "nothing", wanted))
        elif (head.run_index or 0) != number:
            found = "nothing" if head.run_index is None else str(head.run_index)
            wanted = f"{number}, the next run of case {shown(group.eval_id)} (runs are counted from 0)"
            problems.append(Problem(f"{at}.run_index", found, wanted))
        try:
            if isinstance(head.recorded, list):
                group.runs.append(RecordedRun(invocations=parse(tuple[Invocation, ...], head.recorded, self._source, at=f"{at}.recorded")))
            elif isinstance(head.recorded, dict):
                group.runs.append(parse(RecordedRun, head.recorded, self._source, at=f"{at}.recorded"))
            elif head.recorded is not None:
                wanted = "a recorded run (an object with invocations), or a list of invocations"
                problems.append(Problem(f"{at}.recorded", shown(head.recorded), wanted))
        except EvalSetError as error:
            problems += error.problems
        group.recorded += [head.recorded] if len(group.runs) > number else []
        self.problems += problems
