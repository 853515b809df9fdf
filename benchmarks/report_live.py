"""Results of live conversations as Markdown."""

from __future__ import annotations

from job import Job
from report import Column, Results, each, markdown, median, ratio, shown, spread, worst_count
from speaking import CALLS


def live(results: Results) -> str:
    """Return a table for each number of conversations."""
    groups = dict.fromkeys(job.group for job in results)
    tables = {group: _table({job: found for job, found in results.items() if job.group == group}) for group in groups}
    return "\n\n".join(f"{group}:\n\n{table}" for group, table in tables.items())


def _table(results: Results) -> str:
    def against(side: str, job: Job) -> Job | None:
        return next((other for other in results if other.side == side and other.speaking == job.speaking), None)

    columns = [
        Column("", lambda job: job.label),
        Column("s (min–max)", lambda job: spread(results[job], "work_s")),
        Column("CPU s", each(results, "work_cpu_s")),
        Column("CPU ms a model call", each(results, "work_cpu_s", per=_thousand_calls)),
        Column("google-adk ÷ it", lambda job: ratio(results, against("adk", job), job, "work_s")),
        Column("it ÷ Runner alone", lambda job: ratio(results, job, against("floor", job), "work_s")),
        Column("it ÷ ideal", lambda job: _over_ideal(results, job)),
        Column("calls", each(results, "requests")),
        Column("most in flight", each(results, "peak_in_flight")),
        Column("lost", lambda job: worst_count(job, results[job], "missing")),
        Column("wrong", lambda job: worst_count(job, results[job], "different")),
    ]
    return markdown(columns, list(results))


def _thousand_calls(job: Job) -> float:
    return job.rows * CALLS / 1000


def _over_ideal(results: Results, job: Job) -> str:
    found = median(results[job], "work_s")
    return f"{shown(found / job.speaking.ideal_s(job.rows))}×" if found and job.speaking else shown(None)
