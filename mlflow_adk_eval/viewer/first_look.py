"""The first cases of a large run, so that a reader has them while all of its evidence is still being examined.

What is shown of these cases is computed from their own rows, in files whose hashes were checked. What needs all rows, the verdict above all,
is left to the examination.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter

from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet
from mlflow_adk_eval.results.outcomes import WORST_FIRST, CaseResult
from mlflow_adk_eval.results.report import CasesInMemory, Report
from mlflow_adk_eval.runs.examined import TableReader, read_config
from mlflow_adk_eval.runs.files import Kind
from mlflow_adk_eval.runs.manifest import Evidence, read_manifest
from mlflow_adk_eval.runs.parts import CELLS
from mlflow_adk_eval.runs.stored_run import StoredPart, open_run

MOST_AT_ONCE = 1_000
"""A run of up to so many turns is examined before anything of it is shown, as that takes half a second."""
_HEAD: dict[str, Kind] = {"eval_id": "text", "verdict": "text"}
_TRIED = 3
"""So many times as many cases are looked at as are shown, for those that failed."""


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What is known of a large run before it is examined."""

    turns: int
    case_runs: int
    report: Report
    """Of its first cases: those with a failed turn, if there are any."""


def first_look(evidence: Evidence, most: int) -> FirstLook | None:
    """Return the first case runs of a large run; ``None`` of a small one, and of one that does not hold together, as the examination says why.

    Args:
        evidence: the run.
        most: how many case runs.
    """
    manifest = read_manifest(evidence.manifest or b"")
    if isinstance(manifest, str) or (turns := sum(part.turns for part in manifest.parts)) <= MOST_AT_ONCE:
        return None
    opened = open_run(evidence)
    if isinstance(opened, list):
        return None
    run, _ = opened
    num_runs = manifest.parts[0].case_runs // max(manifest.parts[0].cases, 1)
    if any(part.case_runs != part.cases * num_runs for part in manifest.parts):
        return None
    cases: list[EvalCase] = []
    results: list[CaseResult] = []
    try:
        config = read_config(evidence)
        ranked = sorted(chain.from_iterable(map(_ranked, run.once())), key=itemgetter(0))
        for _, part, place, rows in ranked[: most * _TRIED]:
            case, table = part.case(place), TableReader(config, num_runs)
            of_case = list(table.read([case], part, {name: values[rows] for name, values in part.cells.items()}))
            if table.problems:
                break
            cases.append(case)
            results += [replace(result, conversation=part.conversation(place * num_runs + result.run_index)) for result in of_case]
            if sum(result.verdict == "failed" for result in results) >= most:  # one with a failed turn may have passed all the same
                break
    except InputError:
        return None
    if not cases:
        return None
    first = sorted(results, key=lambda result: WORST_FIRST.index(result.verdict))[:most]
    eval_set = EvalSet(eval_set_id=str(manifest.eval_set.get("eval_set_id", "")), eval_cases=tuple(cases))
    report = Report(eval_set=eval_set, config=config, cases=CasesInMemory(first), num_runs=num_runs)
    return FirstLook(turns, sum(part.case_runs for part in manifest.parts), report)


def _ranked(part: StoredPart) -> Iterator[tuple[int, StoredPart, int, slice]]:
    """Yield the cases of a part: how early each comes, the part, its place there, and the rows of its cells."""
    head = part.columns(CELLS, part.part.turns, _HEAD)
    first = 0
    for place, (_, rows) in enumerate(groupby(zip(head["eval_id"], head["verdict"], strict=True), key=itemgetter(0))):
        ranks = [WORST_FIRST.index(verdict) if verdict in WORST_FIRST else 2 for _, verdict in rows]
        yield min(ranks), part, place, slice(first, first := first + len(ranks))
