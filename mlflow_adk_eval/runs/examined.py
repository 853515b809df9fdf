"""A run's evidence, examined once: what its table comes to, and every reason not to believe it.

A decision rests on what `examine` returns and on nothing else of the run. The table is read back into a report and every score is computed again. A
run is examined once per decision: the search for a baseline, the comparison and the rules all take the same `ExaminedRun`.

The run is read part by part, so that no more is in memory than a decision needs. For each part its cases are parsed, its rows are held against them
(`checked_cells`), and the eval set's digest goes on; then the part is dropped. What stays are the case scores, and where the rest is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from mlflow_adk_eval.config.eval_config import EvalConfig, judged_criteria, parse_config
from mlflow_adk_eval.errors import ConfigError, InputError, shown
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, SetDigest
from mlflow_adk_eval.evalset.parse import decode, no_collection, parse
from mlflow_adk_eval.evalset.world import WORLD_FILE, parse_world
from mlflow_adk_eval.results.outcomes import grouped
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.sequence import SEQUENCE, UntilDecided, read_sequence
from mlflow_adk_eval.runs.checked_cells import TableReader
from mlflow_adk_eval.runs.manifest import CONFIG, FOLDER, MANIFEST, Evidence, Manifest, contradictions, key_of_criterion, state_problems
from mlflow_adk_eval.runs.parts import ACTUAL, CASES, VOTES
from mlflow_adk_eval.runs.replays import REPLAY, WORLD, replay_problems
from mlflow_adk_eval.runs.stored_run import CaseColumns, StoredCases, StoredPart, StoredRun, open_run
from mlflow_adk_eval.text import Few

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
        report = Report(eval_set=evaluated, config=reading.config, cases=cases, num_runs=reading.num_runs, until_decided=until_decided)
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
    )


def read_config(evidence: Evidence) -> EvalConfig:
    """Return the config of a run.

    Raises:
        ConfigError: if it cannot be read.
    """
    return parse_config(decode(evidence.artifacts[CONFIG], f"{FOLDER}/{CONFIG}", error=ConfigError), f"{FOLDER}/{CONFIG}")


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
            for eval_id, same in grouped((eval_id, place) for place, eval_id in enumerate(self.eval_ids)).items():
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
