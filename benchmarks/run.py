"""Measures mlflow_adk_eval beside google-adk, MLflow and a floor: `python benchmarks/run.py [WORKLOAD]... [--rounds N] [--cases N]`.

Each measurement is a process of its own. In a round every contender has its turn, so that a slow minute of the machine
hits them all alike; reported are medians of the rounds and ratios of medians. The scores are compared as well: the command
fails if a contender's differ from the reference's or from the truth, or if something of ours is lost.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import report
from agreement import Scores, compare, judged_truth, live_truth, truth
from data import ACTUAL, EVAL_SET, data_set
from job import Job, Workload
from judge_process import JudgeProcess, judge_process
from judged_workloads import JUDGED
from live_workloads import LIVE
from machine import absent, description
from process import measured
from report_live import live
from results import merged
from simulated import PAGE, REPETITIONS, pasted, section
from speed_table import stamp
from workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results.md"

_TABLES = {
    "w1": report.scoring,
    "linearity": report.growth,
    "w2": report.logging,
    "integrations": report.logging,
    "defaults": report.logging,
    **dict.fromkeys(JUDGED, report.judging),
    **dict.fromkeys(LIVE, live),
    "import": report.importing,
    "memory": report.memory,
}
SIMULATED = "statistics"
"""What is measured by drawing samples instead of by a clock."""
_NAMES = (*WORKLOADS, SIMULATED)
_OURS = ("ours", "integrations", "floor", "floor_uncollected")
"""Whose failures are ours to repair."""


def main(argv: Sequence[str]) -> int:
    """Measure what the arguments name and return the exit code."""
    chosen = _parser().parse_args(argv)
    names = [name for name in _NAMES if name in chosen.workloads or "all" in chosen.workloads]
    sections, problems = {}, []
    command = shlex.join(["python", "benchmarks/run.py", *argv])
    for name in names:
        sections[name], found = (section(chosen.repetitions, command), []) if name == SIMULATED else _section(name, chosen, command)
        problems += found
        print(sections[name], flush=True)
    out = chosen.out or (None if chosen.cases or chosen.contenders or chosen.repetitions != REPETITIONS else RESULTS)
    if out:
        out.write_text(merged(out.read_text("utf-8") if out.is_file() else "", sections, order=_NAMES), "utf-8")
    if out == RESULTS and SIMULATED in sections:
        PAGE.write_text(pasted(PAGE.read_text("utf-8"), sections[SIMULATED]), "utf-8")
    for problem in problems:
        print(f"WRONG: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description="Measure mlflow_adk_eval beside google-adk, MLflow and a floor.")
    parser.add_argument(
        "workloads", nargs="*", choices=[*_NAMES, "all"], default="all", metavar="WORKLOAD", help=f"{', '.join(_NAMES)} or all"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--cases", type=int, help="a size other than that of the documented tables")
    parser.add_argument(
        "--repetitions", type=int, default=REPETITIONS, help=f"samples of each kind, for {SIMULATED} (default: {REPETITIONS:,})"
    )
    parser.add_argument(
        "--contenders",
        type=lambda text: text.split(","),
        help="only these, such as ours,floor (ours, adk, mlflow_scorers, floor, floor_uncollected)",
    )
    parser.add_argument(
        "--out", type=Path, help=f"the Markdown file to update (default: {RESULTS.name} beside this script, if all is at full size)"
    )
    return parser


def _section(name: str, chosen: argparse.Namespace, command: str) -> tuple[str, list[str]]:
    """Return a workload's part of the report, and what was wrong."""
    workload = WORKLOADS[name]
    cases = chosen.cases or workload.cases
    jobs = [job for job in workload.jobs(cases) if not chosen.contenders or job.side in chosen.contenders or job.is_baseline]
    missing = {side: package for side in dict.fromkeys(job.side for job in jobs) if (package := absent(side))}
    place = description()
    results = _measure(workload, [job for job in jobs if job.side not in missing], chosen.rounds)
    words = {"cases": cases, "rows": cases * workload.turns}
    parts = [f"## {workload.title.format(**words)}", workload.about.format(**words), _TABLES[name](results)]
    parts += [f"{side} took no part: {package} is not installed." for side, package in missing.items()]
    parts.append(f"<sub>`{command}` {stamp(name)}; rounds: {chosen.rounds}. {place}</sub>")
    return "\n\n".join(parts), [f"{name}: {problem}" for job, found in results.items() for problem in _problems(job, found)]


def _measure(workload: Workload, jobs: Sequence[Job], rounds: int) -> dict[Job, list[dict[str, Any]]]:
    """Return the results of all rounds, with their scores already compared."""
    with judge_process() if any(job.judging or job.speaking for job in jobs) else nullcontext() as judge:
        return _measured(workload, jobs, rounds, judge)


def _measured(workload: Workload, jobs: Sequence[Job], rounds: int, judge: JudgeProcess | None) -> dict[Job, list[dict[str, Any]]]:
    results: dict[Job, list[dict[str, Any]]] = {job: [] for job in jobs}
    for number in range(rounds):
        scores: dict[Job, Scores] = {}
        for job in jobs:
            if number < job.most_rounds:
                result = _one(job) if judge is None else _live(job, judge) if job.speaking else _judged(job, judge, number + 1)
                print(f"round {number + 1}/{rounds}: {job.name}, {job.rows} invocations: {_summary(result)}", file=sys.stderr, flush=True)
                scores[job] = result.pop("scores", {})
                results[job].append(result)
        _compare(workload, scores, {job: found[-1] for job, found in results.items() if job in scores})
    return results


def _one(job: Job) -> dict[str, Any]:
    if job.targets is not None:
        return measured("measure_import.py", *job.targets)
    folder = data_set(job.cases, job.turns)
    with tempfile.TemporaryDirectory(prefix="adk_eval_bench_") as scratch:
        work = {"contender": job.side, "call": job.call, "logs": job.logs, "data": str(folder), "scratch": scratch}
        result = measured("measure_work.py", json.dumps(work))
    return {**result, "files_mb": sum((folder / name).stat().st_size for name in (EVAL_SET, ACTUAL)) / (1 << 20)}


def _judged(job: Job, judge: JudgeProcess, seed: int) -> dict[str, Any]:
    """Return a result with what the judge says of it, and how its scores agree with the truth. Each round has luck of its own."""
    assert job.judging
    judging = replace(job.judging, conditions=replace(job.judging.conditions, seed=seed))
    judge.configure(judging.conditions)
    folder = data_set(job.cases, job.turns, "judged")
    work = {"contender": job.side, "judging": asdict(judging), "data": str(folder), "url": judge.url}
    result = measured("measure_judging.py", json.dumps(work), limit_s=job.limit_s)
    return {**result, **judge.stats(), "truth": compare(result.get("scores", {}), judged_truth(folder, judging))}


def _live(job: Job, judge: JudgeProcess) -> dict[str, Any]:
    """Return a result with what the model's server says of it, and how its scores agree with the truth."""
    assert job.speaking
    judge.configure(job.speaking.conditions)
    latency_ms = 0.0 if job.speaking.by_client else job.speaking.conditions.latency_ms
    folder = data_set(job.cases, job.turns, "live")
    work = {"contender": job.side, "at_once": job.speaking.at_once, "data": str(folder), "url": judge.url, "latency_ms": latency_ms}
    result = measured("measure_live.py", json.dumps(work))
    return {
        **result,
        **(judge.stats() if job.speaking.by_client else {}),
        "truth": compare(result.get("scores", {}), live_truth(job.cases, job.turns)),
    }


def _summary(result: Mapping[str, Any]) -> str:
    return result.get("error") or ", ".join(f"{key} {report.shown(value)}" for key, value in result.items() if isinstance(value, float))


def _compare(workload: Workload, scores: Mapping[Job, Scores], results: Mapping[Job, dict[str, Any]]) -> None:
    """Add to each result how its scores agree with the reference's and with the truth."""
    for job, result in results.items():
        if job.judging or job.speaking or not scores[job]:
            continue
        sides = {other.side: other for other in reversed(list(scores)) if other.cases == job.cases and scores[other]}
        reference = sides.get(workload.reference) or sides.get("floor")
        if reference:
            result["agreement"] = None if reference == job else compare(scores[job], scores[reference])
        result["truth"] = compare(scores[job], truth(data_set(job.cases, job.turns)))


def _problems(job: Job, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what must not be: a score that differs, or anything of ours that failed or was lost.

    What others make of a judge that fails is a result, and no problem.
    """
    if job.judging and job.side not in _OURS:
        return []
    return [f"{job.name}: {problem}" for result in results for problem in _wrong(job, result)]


def _wrong(job: Job, result: Mapping[str, Any]) -> list[str]:
    ours = job.side in _OURS
    if ours and "error" in result:
        return [result["error"]]
    checks = [result[key] for key in ("agreement", "truth") if result.get(key)]
    found = [str(check) for check in checks if check.different or (check.missing and ours)]
    if ours and job.logs and job.lost(result):
        found.append(f"{job.lost(result):,} of {job.logged:,} lost")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
