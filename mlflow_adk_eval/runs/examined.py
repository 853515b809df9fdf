"""A run's evidence, examined once: what its table comes to, and every reason not to believe it.

A decision rests on what `examine` returns and on nothing else of the run. The table is read back into a report and every score is computed again. A
run is examined once per decision: the search for a baseline, the comparison and the rules all take the same `ExaminedRun`.

The run is read part by part, so that no more is in memory than a decision needs. For each part its cases are parsed, its rows are held against them
(`TableReader`), and the eval set's digest goes on; then the part is dropped. What stays are the case scores, and where the rest is.

There must be one row for each turn of each run of each case, and no other; each row has one cell for every criterion that was planned there,
with a status and a score in the criterion's range; and each score that only a judge can give has a vote. Whatever is missing or makes no
sense is named with its place; nothing is filled in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, NamedTuple, cast

from mlflow_adk_eval.config.eval_config import EvalConfig, judged_criteria, parse_config
from mlflow_adk_eval.config.spec import CRITERIA, LARGEST_SCORE, CriterionSettings, CustomSettings, JudgedSettings, RubricSettings
from mlflow_adk_eval.criteria.coverage import Coverage
from mlflow_adk_eval.criteria.rubrics import has_rubrics
from mlflow_adk_eval.errors import ConfigError, InputError, shown
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, SetDigest
from mlflow_adk_eval.evalset.observation import NAMES, SILENT, Need
from mlflow_adk_eval.evalset.parse import decode, from_json, no_collection, parse
from mlflow_adk_eval.evalset.world import WORLD_FILE, parse_world
from mlflow_adk_eval.results import outcomes
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.sequence import SEQUENCE, UntilDecided, read_sequence
from mlflow_adk_eval.results.table import columns_of
from mlflow_adk_eval.runs.manifest import CONFIG, FOLDER, MANIFEST, Evidence, Manifest, contradictions, key_of_criterion, state_problems
from mlflow_adk_eval.runs.parts import ACTUAL, CASES, CELLS, VOTES, WHERE, case_columns, cell_columns
from mlflow_adk_eval.runs.replays import REPLAY, WORLD, replay_problems
from mlflow_adk_eval.runs.stored_run import CaseColumns, StoredCases, StoredPart, StoredRun, open_run
from mlflow_adk_eval.text import Few

Columns = Mapping[str, Sequence[Any]]
"""The values of cells, by column."""


class _Fault(NamedTuple):
    """Why a cell or a case score cannot be what a criterion gave."""

    reason: str


class _Criterion(NamedTuple):
    """What is needed to read a criterion's columns."""

    name: str
    columns: tuple[str, str, str, str]
    own: tuple[str, str, str, str]
    """The columns of an outcome of the case that is its own, in parts."""
    bounds: tuple[float, float]
    greater_is_better: bool
    needs: frozenset[str] = frozenset()
    """Without which it has no score."""
    worst_of_nothing: float | None = None
    """The only score that a turn may have in which the agent did nothing; ``None``: any."""
    whole: bool = False
    """Whether it judges the case as a whole."""


class TableReader:
    """Reads the rows of parts, and collects what makes them no evidence."""

    def __init__(self, config: EvalConfig, num_runs: int) -> None:
        """Take how the cases were to be evaluated, and how often."""
        self._config, self._num_runs = config, num_runs
        self._judged = bool(judged_criteria(config))
        self._kinds = {kind: Few() for kind in ("columns", "malformed", "duplicates", "foreign", "missing", "order", "faults")}
        self.unvoted = Few()
        """The scores of judged criteria that have no vote.

        The worst score needs none, since no judge is asked about an empty answer; nor does what a criterion scores by itself, for the reason that
        stands beside it.
        """
        self.vote_sources = Counter[tuple[str, str, str]]()
        """How many votes with a verdict there are of each criterion, host and evaluation that asked for them."""

    @property
    def problems(self) -> list[str]:
        """Why the rows cannot be used."""
        return [problem for kind in self._kinds.values() for problem in kind.named]

    def read(self, cases: Sequence[EvalCase], stored: StoredPart, columns: Columns | None = None) -> Iterator[outcomes.CaseResult]:
        """Yield the results of a part, case by case and run by run; `columns`: the rows of some cases only."""
        part = _Rows(self._num_runs, cases, stored, stored.cells if columns is None else columns)
        planned = dict.fromkeys(name for case in cases for name in self._config.planned(case))
        lacking = {name: next((column for column in columns_of(name) if column not in part.columns), "") for name in planned}
        unplanned = [f"the criterion {name} is missing: {part.name} has no column {column}" for name, column in lacking.items() if column]
        if self._note({"columns": unplanned, "malformed": part.malformed(), "duplicates": part.duplicates()}):
            return
        if not self._note({"foreign": part.foreign(), "missing": part.missing()}):
            self._note({"order": part.unordered()})
        plans: dict[tuple[str, ...], list[_Criterion]] = {}  # of which informative criteria there are columns may differ between parts
        for case in cases:
            settings = self._config.criteria_of(case.eval_id)
            deciding = tuple(self._config.planned(case))
            key = (*deciding, "", *settings)
            if key not in plans:
                informative = (
                    name for name in CRITERIA.informative if name not in settings and part.columns.keys() >= set(columns_of(name))
                )
                plans[key] = [self._criterion(name, settings.get(name)) for name in (*deciding, *informative)]
            for run_index in range(self._num_runs):
                if rows := part.rows.get((case.eval_id, run_index)):
                    errors = part.columns["agent_error"]
                    yield outcomes.CaseResult(
                        eval_id=case.eval_id,
                        run_index=run_index,
                        conversation=Conversation(actual=(), error=next((str(errors[row]) for row in rows if errors[row]), "")),
                        expected=case.conversation,
                        results=tuple(self._result(part, case, run_index, one, settings.get(one.name)) for one in plans[key]),
                    )

    def _criterion(self, name: str, settings: CriterionSettings | None) -> _Criterion:
        """Return what is needed to read a criterion's columns."""
        columns = (name, cell_columns(name), case_columns(name), self._config.bounds(name), self._config.greater_is_better(name))
        if name in (self._config.custom_metrics or {}):
            return _Criterion(*columns)  # the user's own, which says nothing of what it needs
        spec = CRITERIA[name]
        return _Criterion(
            *columns,
            needs=frozenset(spec.needs_by(settings)),
            worst_of_nothing=spec.worst_of_nothing if settings else None,
            whole=spec.scope == "case",
        )

    def _note(self, findings: Mapping[str, Iterable[str]]) -> bool:
        """Keep findings by kind; return whether there were any."""
        before = sum(self._kinds[kind].count for kind in findings)
        for kind, some in findings.items():
            self._kinds[kind].add(some)
        return sum(self._kinds[kind].count for kind in findings) > before

    def _result(
        self, part: _Rows, case: EvalCase, run_index: int, criterion: _Criterion, settings: CriterionSettings | None
    ) -> outcomes.CriterionResult:
        """Return one criterion's result on one case run, and note what is wrong with it."""
        name, rows = criterion.name, part.rows[case.eval_id, run_index]
        scores, statuses, reasons = (part.columns[column] for column in criterion.columns[:3])
        read = [_cell(scores[row], statuses[row], reasons[row], name, criterion.bounds) for row in rows]
        if details := part.columns.get(criterion.columns[3]):
            for turn, row in enumerate(rows):
                if details[row] is not None and not _is_object(details[row]):
                    read[turn] = _Fault(f"the details of {name} are not a JSON object")
        cells = tuple(outcomes.Errored(cell.reason) if isinstance(cell, _Fault) else cell for cell in read)
        own, last = (part.columns.get(column) for column in criterion.own), rows[-1]
        score, status, reason, own_details = (None if column is None else column[last] for column in own)
        overall: outcomes.Outcome | _Fault | None
        if own_details is not None and not _is_object(own_details):
            overall = _Fault(f"the details of the case outcome of {name} are not a JSON object")
        else:
            overall = _cell(score, status, reason, f"the case outcome of {name}", criterion.bounds, f"the case score of {name}")
            overall = outcomes.case_outcome(cells) if overall is None else overall

        def place(turn: int | None = None) -> str:
            return part.place(case, run_index, None if turn is None else part.keys[rows[turn]][2])

        faults = self._kinds["faults"]
        faults.add(f"{place(turn)}: {cell.reason}" for turn, cell in enumerate(read) if isinstance(cell, _Fault))
        if isinstance(overall, _Fault):
            faults.add([f"{place()}: {overall.reason}"])
            overall = outcomes.Errored(overall.reason)
        faults.add(f"{place(turn)}: {fault}" for turn, fault in _unseen(criterion, cells, [part.columns["unknown"][row] for row in rows]))
        if settings and None in cells:
            faults.add(f"{place(turn)}: {name} has no status" for turn in _gaps(case, name, settings, cells))
        votes = part.stored.votes.get((case.eval_id, run_index, name), ()) if self._judged else ()
        if isinstance(settings, JudgedSettings):
            cast = {vote.invocation_index for vote in votes if vote.verdict is not None}
            self.unvoted.add(
                f"{place(turn)}: {name} has a score, but {part.stored.name(VOTES)} has no vote for it"
                for turn, cell in enumerate(cells)
                if isinstance(cell, outcomes.Scored) and turn not in cast and _needs_judge(name, turn, cell)
            )
            self.vote_sources.update((name, vote.host, vote.asked_in) for vote in votes if vote.verdict is not None)
        planned = outcomes.PlannedCriterion(name, self._config.threshold_of(name, settings), criterion.greater_is_better)
        return outcomes.CriterionResult(*planned, overall=overall, per_invocation=cells, votes=tuple(votes))


class _Rows:
    """The rows of a part, by the case runs that they are about."""

    def __init__(self, num_runs: int, cases: Sequence[EvalCase], stored: StoredPart, columns: Columns) -> None:
        self.num_runs, self.cases, self.stored, self.columns = num_runs, cases, stored, columns
        self.name = stored.name(CELLS)
        """How reasons call the file."""
        self.keys: list[tuple[Any, Any, Any]] = list(zip(*(columns[name] for name in WHERE), strict=True))
        """What each row is about: a case, a run and a turn."""
        self.rows = outcomes.grouped(((eval_id, run_index), place) for place, (eval_id, run_index, _) in enumerate(self.keys))
        """The places of the rows of each case run, in the order of the turns."""

    def malformed(self) -> Iterator[str]:
        for number, (eval_id, *numbers) in enumerate(self.keys, start=1):
            if not isinstance(eval_id, str):
                yield f"row {number} of {self.name} has the eval_id {eval_id!r}"
            for name, value in zip(WHERE[1:], numbers, strict=True):
                if type(value) is not int or value < 0:
                    yield f"row {number} of {self.name} has the {name} {value!r}"

    def duplicates(self) -> Iterator[str]:
        if len(set(self.keys)) < len(self.keys):
            for (eval_id, run_index, index), count in Counter(self.keys).items():
                if count > 1:
                    yield f"{self.name} has {count} rows for case {eval_id!r}, run_index {run_index!r}, invocation_index {index!r}"

    def foreign(self) -> Iterator[str]:
        known = {case.eval_id for case in self.cases}
        for eval_id, run_index in self.rows:
            if eval_id not in known:
                yield f"{self.name} has rows for case {eval_id!r}, but the part does not contain it"
            elif run_index >= self.num_runs:
                yield f"{self.name} has rows for run {run_index + 1} of case {eval_id!r}, but num_runs is {self.num_runs}"

    def missing(self) -> Iterator[str]:
        """Yield the case runs without rows, and the turns without one: those the case asks for, and those before the last that the table has."""
        for case in self.cases:
            if not any((case.eval_id, run_index) in self.rows for run_index in range(self.num_runs)):
                yield f"case {case.eval_id!r} is not in {self.name}"
                continue
            asked_for = len(case.conversation or ())
            for run_index in range(self.num_runs):
                present = {self.keys[row][2] for row in self.rows.get((case.eval_id, run_index), ())}
                if not present:
                    yield f"run {run_index + 1} of case {case.eval_id!r} is not in {self.name}"
                elif not max(present) == len(present) - 1 >= asked_for - 1:
                    # A turn that is counted in billions must not take as much memory.
                    wanted = max(asked_for, min(max(present), len(self.keys)) + 1)
                    absent = sorted(set(range(wanted)) - present)
                    yield from (f"{self.place(case, run_index, index)}, is not in {self.name}" for index in absent)

    def unordered(self) -> Iterator[str]:
        runs = [(case.eval_id, run_index) for case in self.cases for run_index in range(self.num_runs)]
        wanted = ((*run, index) for run in runs for index in range(len(self.rows.get(run, ()))))
        for number, pair in enumerate(zip(self.keys, wanted, strict=False), start=1):
            if pair[0] != pair[1]:
                given, want = (f"case {eval_id!r}, run {run_index + 1}, turn {index + 1}" for eval_id, run_index, index in pair)
                yield f"row {number} of {self.name} is out of order: found {given}, wanted {want}"
                return

    def place(self, case: EvalCase, run_index: int, index: int | None = None) -> str:
        """Return how reasons call a case, its run where there are several, or one of its turns."""
        run = f", run {run_index + 1}" if self.num_runs > 1 else ""
        return f"case {case.eval_id!r}{run}" + ("" if index is None else f", turn {index + 1}")


def _is_object(text: str) -> bool:
    try:
        return isinstance(from_json(text), dict)
    except ValueError:
        return False


def _cell(score: Any, status: Any, reason: Any, name: str, bounds: tuple[float, float], what: str = "") -> outcomes.Outcome | _Fault | None:
    if status != "scored":
        if score is not None:
            return _Fault(f"{name} has the score {score!r} but the status {status!r}")
        if status is None:
            return None
        if status in ("skipped", "errored"):
            return (outcomes.Skipped if status == "skipped" else outcomes.Errored)(str(reason or "no reason given"))
        return _Fault(f"{name} has the unknown status {status!r}")
    what = what or f"the score of {name}"
    low, high = bounds
    if isinstance(score, bool) or not isinstance(score, int | float):
        return _Fault(f"{what} is {score!r}, which is not a number")
    if isinstance(score, float) and math.isnan(score):
        return _Fault(f"{what} is NaN, which is not a number")
    # Infinity is outside every range, the open one of a user's metric included, and a huge integer is no float.
    if not low - outcomes.TOLERANCE <= score <= high + outcomes.TOLERANCE or not -LARGEST_SCORE <= score <= LARGEST_SCORE:
        least, most = max(low, -LARGEST_SCORE), min(high, LARGEST_SCORE)
        return _Fault(f"{what} is {shown(score)}, outside its range from {least:g} to {most:g}")
    return outcomes.Scored(float(score), str(reason or ""))


def _unseen(criterion: _Criterion, cells: Sequence[outcomes.Outcome | None], unknown: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Yield the turns that have a score although what it rests on is unknown there, each with that.

    Args:
        criterion: what gave the scores.
        cells: the outcomes of the turns.
        unknown: by turn, the names of what is unknown, as one text.
    """
    if not any(unknown):
        return
    by_turn = [frozenset(str(text or "").split()) for text in unknown]
    of_case, in_all = frozenset[str]().union(*by_turn), frozenset.intersection(*by_turn)
    for turn, cell in enumerate(cells):
        if not isinstance(cell, outcomes.Scored):
            continue
        names = of_case if criterion.whole else by_turn[turn]
        for name in sorted(criterion.needs & names):
            yield turn, f"{criterion.name} has a score, but this is unknown: {NAMES.get(cast('Need', name), name)}"
        worst = criterion.worst_of_nothing
        silent = SILENT in (in_all if criterion.whole else names)
        if silent and worst is not None and abs(cell.score - worst) > outcomes.TOLERANCE:
            yield turn, f"{criterion.name} has the score {cell.score:g}, but the agent did nothing in that turn"


def _gaps(case: EvalCase, name: str, settings: CriterionSettings, cells: Sequence[outcomes.Outcome | None]) -> list[int]:
    """Return the turns that must have a cell and have none."""
    empty = [index for index, cell in enumerate(cells) if cell is None]
    last = [len(cells) - 1] if len(empty) == len(cells) else []
    if isinstance(settings, CustomSettings) or CRITERIA[name].scope == "case":  # a metric of the user's own has one cell or one per turn
        return last
    if isinstance(settings, RubricSettings):  # a turn without a rubric of its own or its case's has no cell
        return [index for index in empty if has_rubrics(name, settings, case, index)] or last
    return [index for index in empty if settings.scores_turn(case, index)]


def _needs_judge(criterion: str, index: int, cell: outcomes.Scored) -> bool:
    """Whether the score of a judged criterion can only come from a judge."""
    spec = CRITERIA[criterion]
    free = (spec.worst, spec.unasked.get(cell.rationale, spec.worst))
    return index >= spec.judged_from_turn and all(abs(cell.score - score) > outcomes.TOLERANCE for score in free)


_MANY_RUNS, _MOST_DIGITS = 1_000, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedRun:
    """A run's evidence, and why it must not be believed.

    One whose artifacts can be read is a `ReadableRun`, which also has a report. It may have problems all the same, such as a metric
    that contradicts its table: then its numbers may be shown, but they decide nothing.
    """

    evidence: Evidence
    problems: tuple[str, ...]
    """As sentences; empty only for a run that can be believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableRun(ExaminedRun):
    """A run whose artifacts could be read, with what they come to."""

    report: Report
    """What its rows come to, computed again, with the judges' votes; of a run in parts, only what decides is in memory."""
    eval_set: EvalSet
    """With the cases that a run until decided did not come to; its report has the others."""
    copies: Mapping[str, str]
    """The cases that have the content of an earlier one, by id, with the id of that one."""
    tags: Sequence[tuple[str, ...]]
    """The tags of each case, in the order of the eval set."""
    simulated: bool
    """Whether a model played the user in a case."""
    vote_sources: Mapping[tuple[str, str, str], int]
    """How many votes with a verdict there are of each criterion, host and other evaluation that asked for them; empty: this one."""
    coverage: Coverage
    """What its criteria read of its cases."""


@no_collection()
def examine(evidence: Evidence) -> ExaminedRun:
    """Return what a run's evidence comes to, a `ReadableRun` unless its artifacts cannot be used at all."""
    problems, opened = state_problems(evidence), open_run(evidence)
    if isinstance(opened, list):
        return ExaminedRun(evidence=evidence, problems=(*problems, *opened))
    try:
        reading = _Reading(evidence, *opened)
        reading.read_parts()
        problems += reading.mismatches()
        if unusable := reading.unusable():
            return ExaminedRun(evidence=evidence, problems=(*problems, *unusable))
        cases = StoredCases(reading.columns, reading.run)
        evaluated, until_decided = reading.run.eval_set(reading.eval_ids, reading.head), reading.until_decided
        report = Report(
            eval_set=evaluated,
            config=reading.config,
            cases=cases,
            num_runs=reading.num_runs,
            until_decided=until_decided,
            notes=reading.coverage.notes,
        )
        problems += [*contradictions(evidence, report), *reading.table.unvoted.named]
        if reading.world or REPLAY in evidence.params or WORLD in evidence.params:
            report = replace(report, world=reading.world)
            problems += replay_problems(evidence.params, report)
    except InputError as error:
        return ExaminedRun(evidence=evidence, problems=(*problems, f"{error.source} cannot be read: {error.problems[0]}"))
    return ReadableRun(
        evidence=evidence,
        problems=tuple(problems),
        report=report,
        eval_set=report.whole,
        copies=reading.digest.copies,
        tags=reading.tags,
        simulated=reading.simulated,
        vote_sources=reading.table.vote_sources,
        coverage=reading.coverage,
    )


def readable(evidence: Evidence, refused: Callable[[str], Exception], *, whole: bool = True) -> ReadableRun:
    """Return a run whose evidence can be read, and of which nothing is amiss (`whole`).

    Args:
        evidence: What MLflow knows of the run.
        refused: Makes the error of the first problem.
        whole: Whether any problem is too much, and not only one that keeps the report from being read.
    """
    run = examine(evidence)
    if not isinstance(run, ReadableRun) or (whole and run.problems):
        raise refused(run.problems[0])
    return run


def read_config(evidence: Evidence) -> EvalConfig:
    """Return the config of a run.

    Raises:
        ConfigError: if it cannot be read.
    """
    return parse_config(decode(evidence.artifacts[CONFIG], f"{FOLDER}/{CONFIG}", error=ConfigError), f"{FOLDER}/{CONFIG}", stored=True)


class _Reading:
    """One way through all parts of a run, whose hashes were checked."""

    def __init__(self, evidence: Evidence, run: StoredRun, manifest: Manifest) -> None:
        self.run, self._params, self.config = run, evidence.params, read_config(evidence)
        head = parse(EvalSet, {**manifest.eval_set, "eval_cases": ()}, f"{FOLDER}/{MANIFEST}", at="$.eval_set")
        self.head = {name: getattr(head, name) for name in head.model_fields_set if name != "eval_cases"}
        self.until_decided: UntilDecided | None = None
        if SEQUENCE in evidence.artifacts:
            self.until_decided = read_sequence(evidence.artifacts[SEQUENCE], f"{FOLDER}/{SEQUENCE}")
        world = evidence.artifacts.get(WORLD_FILE)
        self.world = None if world is None else parse_world(world, f"{FOLDER}/{WORLD_FILE}")
        self._left = dict(self.until_decided.left) if self.until_decided else {}
        self._judged = list(judged_criteria(self.config))
        self.digest = SetDigest(self.config.surroundings_of)
        self.eval_ids: list[str] = []
        self.tags: list[tuple[str, ...]] = []
        self._known_tags: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Most cases have the tags of many others."""
        self.simulated = False
        self._inside = Few()
        text = self._params.get("adk_eval.num_runs")
        self.num_runs, self._unknown_runs = 0, ""
        if text is None:
            self._unknown_runs = "the run has no parameter adk_eval.num_runs, so the number of runs per case is unknown"
        elif text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS and int(text):
            self.num_runs = int(text)
        else:
            self._unknown_runs = f"the run's parameter adk_eval.num_runs is {shown(text)}; wanted a whole number of at least 1"
        self.table = TableReader(self.config, self.num_runs or 1)
        self.columns = CaseColumns()
        self.coverage = Coverage(self.config)

    def read_parts(self) -> None:
        """Take the cases and the rows of all parts.

        Raises:
            InputError: if a file cannot be read.
        """
        for stored in self.run.once():
            self._read_part(stored)  # so that nothing of a part stays in memory while the next one is read
        self._pass_over()

    def _pass_over(self) -> None:
        """Take the cases at this place of the eval set that were not run."""
        while (case := self._left.pop(len(self.tags), None)) is not None:
            self._add(case)

    def _add(self, case: EvalCase) -> None:
        self.digest.add(case)
        self.simulated = self.simulated or case.conversation is None
        self.tags.append(self._known_tags.setdefault(case.tags, case.tags))

    def _read_part(self, stored: StoredPart) -> None:
        cases: list[EvalCase] = []
        for index, case in enumerate(stored.cases()):
            self._pass_over()
            self.eval_ids.append(case.eval_id)
            self._add(case)
            self.coverage.see(case)
            cases.append(stored.light_case(index, case) if len(self.run.parts) > 1 else case)
        length = len(stored.run_ids)
        if not self._unknown_runs and self.num_runs > max(length, _MANY_RUNS):  # before anything is counted up to it
            self._unknown_runs = f"the run's parameter adk_eval.num_runs is {self.num_runs}, but a part of the run has only {length} rows"
        if not self._unknown_runs:
            self._inside.add(self._part_problems(stored, cases))
            for result in self.table.read(cases, stored):
                self.columns.add(result, result.eval_id)

    def unusable(self) -> list[str]:
        """Return why the artifacts cannot be worked with."""
        repeated = Few()
        hashes = sorted(map(hash, self.eval_ids))  # a set of all ids takes more, and is made only where some may be repeated
        if any(one == other for one, other in pairwise(hashes)):
            for eval_id, same in outcomes.grouped((eval_id, place) for place, eval_id in enumerate(self.eval_ids)).items():
                if len(same) > 1:
                    files = dict.fromkeys(self.run.of_case(place)[0].name(CASES) for place in same)
                    repeated.add([f"the eval set contains case {eval_id!r} {len(same)} times: in {' and '.join(files)}"])
        empty = [] if self.eval_ids else ["the eval set has no cases, so there is nothing to evaluate"]
        problems = [*empty, *repeated.named, *filter(None, [self._unknown_runs])]
        return problems or [*self._inside.named, *self.table.problems]

    def _part_problems(self, stored: StoredPart, cases: Sequence[EvalCase]) -> Iterator[str]:
        """Yield where the files of a part contradict each other."""
        for row, (eval_id, case) in enumerate(zip(stored.case_ids, cases, strict=True), start=1):
            if eval_id != case.eval_id:
                yield f"row {row} of {stored.name(CASES)} is case {eval_id!r}; wanted case {case.eval_id!r}, as in its document"
        wanted_runs = product((case.eval_id for case in cases), range(self.num_runs))
        for row, (run, wanted) in enumerate(zip(stored.run_ids, wanted_runs, strict=False), start=1):
            if run != wanted:
                yield f"row {row} of {stored.name(ACTUAL)} is {_run_name(*run)}; wanted {_run_name(*wanted)}"
        if (count := len(stored.run_ids)) != len(cases) * self.num_runs:
            yield f"{stored.name(ACTUAL)} has {count} case runs; wanted {len(cases)} cases × {self.num_runs} runs"
        there = stored.part.name(VOTES) in stored.files
        if self._judged and not there:
            yield f"the run has no {stored.name(VOTES)}, although judges decide {', '.join(self._judged)}"
        elif there and not self._judged:
            yield f"the run has {stored.name(VOTES)}, although no judge decides anything"
        elif there:
            eval_ids = {case.eval_id for case in cases}
            for eval_id, run_index, _ in stored.votes:
                if eval_id not in eval_ids or not 0 <= run_index < self.num_runs:
                    yield f"{stored.name(VOTES)} has votes on {_run_name(eval_id, run_index)}, but the part does not contain it"
        elif votes := stored.part.votes:
            yield f"the manifest lists {votes} votes in part {stored.part.number}, but the part has none"

    def mismatches(self) -> Iterator[str]:
        """Yield where the artifacts are not what the run's parameters say."""
        params = self._params
        digests = (("eval_set_digest", self.digest.text, CASES), ("config_digest", self.config.digest(), CONFIG))
        for name, actual, artifact in digests:
            recorded = params.get(f"adk_eval.{name}")
            if recorded is None:
                yield f"the run has no parameter adk_eval.{name}"
            elif recorded != actual:
                yield (
                    f"{FOLDER}/{artifact} is not the evaluated one: its digest is {actual[:19]}…, but the parameter adk_eval.{name} is {recorded[:19]}…"
                )
        demanded = {f"threshold.{key_of_criterion(name)}": threshold for name, threshold in self.config.thresholds().items()}
        for key, threshold in demanded.items():
            if key not in params:
                yield f"the run has no parameter {key}, although its config demands {threshold}"
            elif params[key] != threshold:
                yield f"the run's parameter {key} is {params[key]}, but its config demands {threshold}"
        for key in params:
            if key.startswith("threshold.") and key not in demanded:
                yield f"the run has a parameter {key}, but its config has no such criterion"


def _run_name(eval_id: str | None, run_index: int | None) -> str:
    return f"case {eval_id!r}, run {'None' if run_index is None else run_index + 1}"
