"""The first cases of a large run, so that a reader has them while all of its evidence is still being examined.

What is shown of these cases is computed from their own rows, in files whose hashes were checked. What needs all rows, the verdict above all,
is left to the examination.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.errors import ConfigError, InputError
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.evalset.parse import decode
from mlflow_adk_eval.gating.evidence.integrity import CONFIG, FOLDER, Evidence, integrity_problems, read_manifest
from mlflow_adk_eval.gating.evidence.table import RowSource, TableReader
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.parquet import Kind
from mlflow_adk_eval.results.parts import CELLS, VOTES, StoredPart
from mlflow_adk_eval.results.report import Report

MOST_AT_ONCE = 1_000
"""A run of up to so many turns is examined before anything of it is shown, as that takes half a second."""
_HEAD: dict[str, Kind] = {"eval_id": "text", "verdict": "text"}
_TRIED = 3
"""So many times as many cases are looked at as are shown, for those that failed."""
_ORDER = {"failed": 0, "undecided": 1, "passed": 2}


_Found = tuple[EvalCase, list[CaseResult]]


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What is known of a large run before it is examined."""

    turns: int
    case_runs: int
    report: Report
    """Of its first cases: those with a failed turn, if there are any."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a case is kept."""

    part: StoredPart
    index: int
    rows: slice
    """Of the part's cells."""


def first_look(evidence: Evidence, most: int) -> FirstLook | None:
    """Return the first case runs of a large run; ``None`` of a small one, and of one that does not hold together, as the examination says why.

    Args:
        evidence: the run.
        most: how many case runs.
    """
    manifest = read_manifest(evidence.manifest or b"")
    if isinstance(manifest, str) or (turns := sum(part.turns for part in manifest.parts)) <= MOST_AT_ONCE or integrity_problems(evidence):
        return None
    parts = [StoredPart(part, evidence.artifacts, FOLDER) for part in manifest.parts]
    try:
        config = parse_config(decode(evidence.artifacts[CONFIG], f"{FOLDER}/{CONFIG}", error=ConfigError), f"{FOLDER}/{CONFIG}")
        places = [place for _, place in sorted(chain.from_iterable(map(_ranked, parts)), key=lambda ranked: ranked[0])]
        found = list(_enough(_results(places[: most * _TRIED], config), most))
    except InputError:
        return None
    if not found:
        return None
    runs = sorted(chain.from_iterable(results for _, results in found), key=lambda result: _ORDER[result.verdict])[:most]
    eval_set = EvalSet(eval_set_id=str(manifest.eval_set.get("eval_set_id", "")), eval_cases=tuple(case for case, _ in found))
    report = Report(eval_set=eval_set, config=config, cases=runs, num_runs=_num_runs(parts[0]))
    return FirstLook(turns, sum(part.case_runs for part in manifest.parts), report)


def _num_runs(part: StoredPart) -> int:
    return part.part.case_runs // max(part.part.cases, 1)


def _ranked(part: StoredPart) -> Iterator[tuple[int, _Place]]:
    """Yield the cases of a part, each with how early it comes."""
    head = part.columns(CELLS, _HEAD, part.part.turns)
    first = 0
    for index, (_, rows) in enumerate(groupby(zip(head["eval_id"], head["verdict"], strict=True), key=lambda row: row[0])):
        ranks = [_ORDER.get(verdict, 2) for _, verdict in rows]
        yield min(ranks), _Place(part, index, slice(first, first := first + len(ranks)))


def _enough(found: Iterable[_Found], most: int) -> Iterator[_Found]:
    """Yield cases until so many case runs have failed: one with a failed turn may have passed all the same."""
    failed = 0
    for one in found:
        yield one
        failed += sum(result.verdict == "failed" for result in one[1])
        if failed >= most:
            return


def _results(places: Sequence[_Place], config: EvalConfig) -> Iterator[_Found]:
    """Yield cases with their results; none from where the files of a part contradict each other."""
    for place in places:
        part, num_runs, table = place.part, _num_runs(place.part), TableReader(config, _num_runs(place.part))
        case = part.case(place.index)
        source = RowSource(
            name=part.part.name(CELLS),
            columns={name: values[place.rows] for name, values in part.cells.items()},
            votes=part.votes,
            votes_name=part.part.name(VOTES),
            ordered=True,
        )
        results = list(table.read([case], source))
        if table.problems:
            return
        said = [part.run(place.index * num_runs + result.run_index) for result in results]
        yield (
            case,
            [
                replace(
                    result,
                    actual=run.invocations,
                    expected=case.conversation,
                    error=run.error,
                    unfinished=run.unfinished,
                    session_state=run.session_state,
                    ending=run.ending,
                    injections=run.injections,
                )
                for result, run in zip(results, said, strict=True)
            ],
        )
