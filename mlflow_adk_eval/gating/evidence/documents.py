"""What a run was to evaluate, and what came of it: read part by part, so that no more is in memory than a decision needs.

A run in parts is a sequence of parts, and one in single files is one part. For each part its cases are parsed, its rows are held against them
(`table`), and the eval set's digest goes on; then the part is dropped. What stays are the case scores, and where the rest is.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, Protocol

from pydantic import TypeAdapter

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.errors import ConfigError, InputError, shown
from mlflow_adk_eval.evalset import EvalCase, EvalSet, Invocation
from mlflow_adk_eval.evalset.digest import Copies, SetDigest
from mlflow_adk_eval.evalset.parse import decode, parse
from mlflow_adk_eval.gating.evidence.integrity import (
    CONFIG,
    EVAL_SET,
    FOLDER,
    MANIFEST,
    ONE_FILE,
    TABLE,
    VOTES,
    Evidence,
    Few,
    Manifest,
    key_of_criterion,
    read_manifest,
)
from mlflow_adk_eval.gating.evidence.rows import RowsOfParts, RowsOfTable
from mlflow_adk_eval.gating.evidence.table import RowSource, TableReader
from mlflow_adk_eval.results.outcomes import CaseResult, Vote
from mlflow_adk_eval.results.parts import ACTUAL, CASES, CELLS, PartReader, StoredPart
from mlflow_adk_eval.results.parts import VOTES as VOTES_FOLDER
from mlflow_adk_eval.results.stored import CaseColumns, Stored, StoredCases, stored_eval_set
from mlflow_adk_eval.results.table import parse_table
from mlflow_adk_eval.results.votes import judged_criteria, parse_votes

_EVAL_SET = TypeAdapter(EvalSet)
_MANY_RUNS, _MOST_DIGITS = 1_000, 16

Rows = Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]
"""The turns of each case run, by eval id and run index, with what was said and done there; read when they are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What was to be evaluated, and how."""

    eval_set: EvalSet
    config: EvalConfig
    num_runs: int
    copies: Mapping[str, str] = field(default_factory=dict[str, str])
    """The cases that have the content of an earlier one, by id, with the id of that one."""
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The tags of the cases that have some, by id."""
    simulated: bool = False
    """Whether a model played the user in a case."""
    vote_sources: Mapping[tuple[str, str, str], int] = field(default_factory=dict[tuple[str, str, str], int])
    """How many votes with a verdict there are of each criterion, host and other evaluation that asked for them; empty: this one."""


class Tags(Mapping[str, tuple[str, ...]]):
    """The tags of the cases that have some, by id: a number for each case, as most cases have the tags of many others."""

    def __init__(self, eval_ids: Sequence[str]) -> None:
        """Take the ids, to which more are added."""
        self._eval_ids, self._numbers = eval_ids, array("i")
        self._known: dict[tuple[str, ...], int] = {(): 0}

    def add(self, tags: tuple[str, ...]) -> None:
        """Add the tags of the next case."""
        self._numbers.append(self._known.setdefault(tags, len(self._known)))

    def __getitem__(self, eval_id: str) -> tuple[str, ...]:
        """Return the tags of a case that has some."""
        found = next((tags for name, tags in self.items() if name == eval_id), None)
        if found is None:
            raise KeyError(eval_id)
        return found

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the cases that have tags."""
        return (eval_id for eval_id, number in zip(self._eval_ids, self._numbers, strict=True) if number)

    def __len__(self) -> int:
        """Return the number of cases that have tags."""
        return sum(map(bool, self._numbers))

    def items(self) -> ItemsView[str, tuple[str, ...]]:
        """Return the ids with their tags."""
        return _TagItems(self)

    def pairs(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each id with its tags."""
        tags = list(self._known)
        return ((eval_id, tags[number]) for eval_id, number in zip(self._eval_ids, self._numbers, strict=True) if number)


class _TagItems(ItemsView[str, tuple[str, ...]]):
    """Without looking each id up."""

    _mapping: Tags

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        return self._mapping.pairs()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContents:
    """What the artifacts of a run say, and why that is no evidence."""

    documents: Documents | None = None
    """``None``: they cannot be worked with."""
    cases: Sequence[CaseResult] = ()
    """In the order of the eval set."""
    rows: Rows = field(default_factory=dict[tuple[str, int], Sequence[Mapping[str, Any]]])
    mismatches: tuple[str, ...] = ()
    """Where they are not what the run's parameters say."""
    unusable: tuple[str, ...] = ()
    """Why they cannot be worked with."""
    unvoted: tuple[str, ...] = ()
    """Where votes are missing."""


def read_contents(evidence: Evidence) -> RunContents:
    """Return what the artifacts of a run say, whose hashes were checked."""
    manifest = read_manifest(evidence.manifest or b"")
    if isinstance(manifest, str):
        return RunContents(unusable=(manifest,))
    try:
        config = parse_config(decode(evidence.artifacts[CONFIG], f"{FOLDER}/{CONFIG}", error=ConfigError), f"{FOLDER}/{CONFIG}")
        layout = _OneFile(evidence, config) if manifest.schema == ONE_FILE else _InParts(evidence, manifest, config)
        return _Contents(evidence, config).read(layout)
    except InputError as error:
        return RunContents(unusable=(_unreadable(error),))


def _unreadable(error: InputError) -> str:
    return f"{error.source} cannot be read: {error.problems[0]}"


class _RunPart(Protocol):
    """One part of a run, whatever its layout."""

    @property
    def length(self) -> int:
        """Return how many case runs it can have at most."""
        ...

    def cases(self) -> Iterable[EvalCase]:
        """Return its cases."""
        ...

    def light(self, case: EvalCase, index: int) -> EvalCase:
        """Return the case at a place of the part with as little of it in memory as can be."""
        ...

    def problems(self, cases: Sequence[EvalCase], num_runs: int) -> Iterable[str]:
        """Return where its files contradict each other."""
        ...

    def rows(self) -> RowSource:
        """Return its rows, with the votes."""
        ...


class _Layout(Protocol):
    """How a run is kept."""

    unvoted: list[str]
    """Why its votes cannot be read."""

    def parts(self) -> Iterator[_RunPart]:
        """Yield its parts in their order."""
        ...

    def add(self, case: CaseResult) -> None:
        """Keep the result of a case run."""
        ...

    def contents(self, eval_ids: Sequence[str]) -> tuple[EvalSet, Sequence[CaseResult], Rows]:
        """Return the eval set, the results that were kept and the turns."""
        ...

    def numbered(self, place: int) -> str:
        """Return where the case at a place of the eval set is kept; empty where that need not be said."""
        ...


class _Contents:
    """Reads a run part by part."""

    def __init__(self, evidence: Evidence, config: EvalConfig) -> None:
        self._params, self._config = evidence.params, config
        self._digest, self._copies = SetDigest(), Copies(config.surroundings_of)
        self._eval_ids: list[str] = []
        self._tags = Tags(self._eval_ids)
        self._simulated = False
        self._inside = Few()

    def read(self, layout: _Layout) -> RunContents:
        num_runs = _num_runs(self._params)
        table = TableReader(self._config, num_runs if isinstance(num_runs, int) else 1)
        for part in layout.parts():
            cases: list[EvalCase] = []
            for index, case in enumerate(part.cases()):
                self._add(case)
                cases.append(part.light(case, index))
            if isinstance(num_runs, int) and num_runs > max(part.length, _MANY_RUNS):  # before anything is counted up to it
                num_runs = f"the run's parameter adk_eval.num_runs is {num_runs}, but a part of the run has only {part.length} rows"
            if isinstance(num_runs, int):
                self._inside.add(part.problems(cases, num_runs))
                for result in table.read(cases, part.rows()):
                    layout.add(result)
        mismatches = tuple(_param_problems(self._params, self._digest.text, self._config, layout))
        problems = [*self._set_problems(layout), *([num_runs] if isinstance(num_runs, str) else [])]
        problems = problems or [*self._inside.named, *table.problems]
        if problems or isinstance(num_runs, str):
            return RunContents(mismatches=mismatches, unusable=tuple(problems))
        eval_set, results, rows = layout.contents(self._eval_ids)
        documents = Documents(
            eval_set=eval_set,
            config=self._config,
            num_runs=num_runs,
            copies=self._copies.found,
            tags=self._tags,
            simulated=self._simulated,
            vote_sources=table.vote_sources,
        )
        return RunContents(
            documents=documents, cases=results, rows=rows, mismatches=mismatches, unvoted=tuple(layout.unvoted or table.unvoted)
        )

    def _add(self, case: EvalCase) -> None:
        eval_id = case.eval_id
        self._eval_ids.append(eval_id)
        self._copies.add(eval_id, self._digest.add(case))
        self._simulated = self._simulated or case.conversation is None
        self._tags.add(case.tags)

    def _set_problems(self, layout: _Layout) -> Iterator[str]:
        if not self._eval_ids:
            yield "the eval set has no cases, so there is no evidence"
        found = Few()
        for eval_id, places in self._repeated().items():
            where = dict.fromkeys(layout.numbered(place) for place in places)
            beside = f": in {' and '.join(where)}" if any(where) else ""
            found.add([f"the eval set holds the case {eval_id!r} {len(places)} times{beside}"])
        yield from found.named

    def _repeated(self) -> dict[str, list[int]]:
        """Return the places of the cases that there are several times; a set of all ids only where there may be some."""
        hashes = sorted(map(hash, self._eval_ids))
        if not any(one == other for one, other in pairwise(hashes)):
            return {}
        places: dict[str, list[int]] = {}
        for place, eval_id in enumerate(self._eval_ids):
            places.setdefault(eval_id, []).append(place)
        return {eval_id: found for eval_id, found in places.items() if len(found) > 1}


@dataclass
class _OneFile:
    """A run whose cases, table and votes are in one file each: its only part."""

    evidence: Evidence
    config: EvalConfig
    unvoted: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        artifacts = self.evidence.artifacts
        self._eval_set = parse(_EVAL_SET, artifacts[EVAL_SET], f"{FOLDER}/{EVAL_SET}")
        self._table = parse_table(artifacts[TABLE], f"{FOLDER}/{TABLE}")
        self._results: list[CaseResult] = []

    def parts(self) -> Iterator[_RunPart]:
        yield self

    @property
    def length(self) -> int:
        return len(self._table.rows)

    def cases(self) -> Sequence[EvalCase]:
        return self._eval_set.eval_cases

    def light(self, case: EvalCase, index: int) -> EvalCase:
        del index
        return case

    def problems(self, cases: Sequence[EvalCase], num_runs: int) -> Iterable[str]:
        del cases, num_runs
        counts = Counter(self._table.columns)
        return (f"the table has {count} columns {column}" for column, count in counts.items() if count > 1)

    def rows(self) -> RowSource:
        values = list(zip(*self._table.rows, strict=True)) or [()] * len(self._table.columns)
        return RowSource(
            name="the table",
            columns=dict(zip(self._table.columns, values, strict=True)),
            votes=_by_result(self._votes()),
            votes_name=f"{FOLDER}/{VOTES}",
            ordered=False,
        )

    def _votes(self) -> Sequence[Vote]:
        judged = judged_criteria(self.config)
        if not judged:
            return ()
        content = self.evidence.artifacts.get(VOTES)
        if content is None:
            self.unvoted.append(f"the run has no {FOLDER}/{VOTES}, though judges decide {', '.join(judged)}")
            return ()
        try:
            return parse_votes(content, f"{FOLDER}/{VOTES}")
        except InputError as error:
            self.unvoted.append(_unreadable(error))
            return ()

    def add(self, case: CaseResult) -> None:
        self._results.append(case)

    def contents(self, eval_ids: Sequence[str]) -> tuple[EvalSet, Sequence[CaseResult], Rows]:
        del eval_ids
        return self._eval_set, tuple(self._results), RowsOfTable(self._table)

    def numbered(self, place: int) -> str:
        del place
        return ""


def _by_result(votes: Iterable[Vote]) -> dict[tuple[str, int, str], list[Vote]]:
    found: dict[tuple[str, int, str], list[Vote]] = {}
    for vote in votes:
        found.setdefault((vote.eval_id, vote.run_index, vote.criterion), []).append(vote)
    return found


@dataclass
class _InParts:
    """A run in parts."""

    evidence: Evidence
    manifest: Manifest
    config: EvalConfig
    unvoted: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        head = parse(_EVAL_SET, {**self.manifest.eval_set, "eval_cases": ()}, f"{FOLDER}/{MANIFEST}", at="$.eval_set")
        self._head = {name: getattr(head, name) for name in head.model_fields_set if name != "eval_cases"}
        self._columns = CaseColumns()
        self.judged = list(judged_criteria(self.config))

    def parts(self) -> Iterator[_RunPart]:
        for part in self.manifest.parts:
            yield _Part(StoredPart(part, self.evidence.artifacts, FOLDER), self)

    def add(self, case: CaseResult) -> None:
        self._columns.add(case, case.eval_id)

    def contents(self, eval_ids: Sequence[str]) -> tuple[EvalSet, Sequence[CaseResult], Rows]:
        reader = PartReader(self.evidence.artifacts, self.manifest.parts, FOLDER)
        results = StoredCases(self._columns, reader)
        return stored_eval_set(reader, eval_ids, self._head), results, RowsOfParts(results, reader, self._columns)

    def numbered(self, place: int) -> str:
        found = next(part for part in self.manifest.parts if part.first_case_no <= place <= part.last_case_no)
        return f"{FOLDER}/{found.name(CASES)}"


@dataclass(frozen=True)
class _Part:
    """One of several parts."""

    stored: StoredPart
    run: _InParts
    _read: dict[int, Sequence[Invocation]] = field(default_factory=dict[int, Sequence[Invocation]])
    """The turns of the case that somebody looked at last."""

    def _name(self, folder: str) -> str:
        return f"{FOLDER}/{self.stored.part.name(folder)}"

    @property
    def length(self) -> int:
        return len(self.stored.run_ids)

    def cases(self) -> Iterator[EvalCase]:
        return self.stored.cases()

    def light(self, case: EvalCase, index: int) -> EvalCase:
        """Return a case whose turns are read when somebody looks at them, where there are many: those of a part take 40 MB."""
        turns = case.conversation
        if turns is None or len(self.run.manifest.parts) == 1:
            return case
        return case.model_copy(update={"conversation": Stored(len(turns), lambda: self._turns(index))})

    def _turns(self, index: int) -> Sequence[Invocation]:
        if index not in self._read:
            self._read.clear()
            self._read[index] = self.stored.case(index).conversation or ()
        return self._read[index]

    def problems(self, cases: Sequence[EvalCase], num_runs: int) -> Iterator[str]:
        for row, (found, case) in enumerate(zip(self.stored.case_ids, cases, strict=True), start=1):
            if found != case.eval_id:
                yield f"row {row} of {self._name(CASES)} is case {found!r}; wanted case {case.eval_id!r}, as its document says"
        runs = product((case.eval_id for case in cases), range(num_runs))
        for row, (found_run, want_run) in enumerate(zip(self.stored.run_ids, runs, strict=False), start=1):
            if found_run != want_run:
                yield f"row {row} of {self._name(ACTUAL)} is {_run_name(*found_run)}; wanted {_run_name(*want_run)}"
        if (count := len(self.stored.run_ids)) != len(cases) * num_runs:
            yield f"{self._name(ACTUAL)} has {count} case runs; wanted {len(cases)} cases × {num_runs} runs"
        yield from self._vote_problems({case.eval_id for case in cases}, num_runs)

    def _vote_problems(self, eval_ids: set[str], num_runs: int) -> Iterator[str]:
        there = self.stored.part.name(VOTES_FOLDER) in self.stored.files
        if self.run.judged and not there:
            yield f"the run has no {self._name(VOTES_FOLDER)}, though judges decide {', '.join(self.run.judged)}"
        elif there and not self.run.judged:
            yield f"the run has {self._name(VOTES_FOLDER)}, though no judge decides anything"
        elif there:
            for eval_id, run_index, _ in self.stored.votes:
                if eval_id not in eval_ids or not 0 <= run_index < num_runs:
                    yield f"{self._name(VOTES_FOLDER)} has votes on {_run_name(eval_id, run_index)}, which is not in the part"
        elif self.stored.part.votes:
            yield f"the manifest counts {self.stored.part.votes} votes in part {self.stored.part.number}, which has none"

    def rows(self) -> RowSource:
        return RowSource(
            name=self._name(CELLS),
            columns=self.stored.cells,
            votes=self.stored.votes if self.run.judged else {},
            votes_name=self._name(VOTES_FOLDER),
            ordered=True,
        )


def _run_name(eval_id: str | None, run_index: int | None) -> str:
    return f"case {eval_id!r}, run {'None' if run_index is None else run_index + 1}"


def _num_runs(params: Mapping[str, str]) -> int | str:
    text = params.get("adk_eval.num_runs")
    if text is None:
        return "the run has no parameter adk_eval.num_runs, so the number of runs of each case is unknown"
    return (
        int(text)
        if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS and int(text)
        else f"the run's parameter adk_eval.num_runs is {shown(text)}; wanted a whole number of at least 1"
    )


def _param_problems(params: Mapping[str, str], eval_set_digest: str, config: EvalConfig, layout: _Layout) -> Iterator[str]:
    cases = f"{FOLDER}/{EVAL_SET}" if isinstance(layout, _OneFile) else f"{FOLDER}/{CASES}"
    digests = (("eval_set_digest", eval_set_digest, cases), ("config_digest", config.digest(), f"{FOLDER}/{CONFIG}"))
    for name, actual, artifact in digests:
        recorded = params.get(f"adk_eval.{name}")
        if recorded is None:
            yield f"the run has no parameter adk_eval.{name}"
        elif recorded != actual:
            yield f"{artifact} is not what was evaluated: its digest is {actual[:19]}…, the parameter adk_eval.{name} says {recorded[:19]}…"
    yield from _threshold_problems(params, config.thresholds())


def _threshold_problems(params: Mapping[str, str], thresholds: Mapping[str, str]) -> Iterator[str]:
    demanded = {f"threshold.{key_of_criterion(name)}": threshold for name, threshold in thresholds.items()}
    for key, threshold in demanded.items():
        if key not in params:
            yield f"the run has no parameter {key}, though its config demands {threshold}"
        elif params[key] != threshold:
            yield f"the run's parameter {key} is {params[key]}, but its config demands {threshold}"
    for key in params:
        if key.startswith("threshold.") and key not in demanded:
            yield f"the run has a parameter {key}, but its config has no such criterion"
