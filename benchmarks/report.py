"""Results as Markdown: medians of all rounds, and ratios of medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from job import Job

Result = Mapping[str, Any]
Results = Mapping[Job, Sequence[Result]]
"""By job, one per round."""

NONE = "–"


class Column(NamedTuple):
    """A column of a table."""

    header: str
    cell: Callable[[Any], str]
    """From what a row is about."""


def markdown(columns: Sequence[Column], rows: Sequence[Any]) -> str:
    """Return a table without the columns that are empty; the first column is text, the others are numbers."""
    lines = [[column.header, ":--" if index == 0 else "--:", *map(column.cell, rows)] for index, column in enumerate(columns)]
    filled = [line for line in lines if set(line[2:]) != {NONE}]
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*filled, strict=True))


def median(results: Sequence[Result], key: str) -> float | None:
    """Return the median of the rounds that have a value."""
    values = [result[key] for result in results if key in result]
    return statistics.median(values) if values else None


def shown(value: float | None) -> str:
    """Return a number as tables show it.

    >>> shown(0.01234), shown(12345.6), shown(0), shown(None)
    ('0.0123', '12,346', '0', '–')
    """
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(results: Sequence[Result], key: str) -> str:
    """Return the median with the least and the most, or why there is none."""
    values = [result[key] for result in results if key in result]
    if not values:
        return next((result["error"] for result in results if "error" in result), NONE)
    return f"{shown(statistics.median(values))} ({shown(min(values))}–{shown(max(values))})"


def ratio(results: Results, above: Job | None, below: Job | None, key: str) -> str:
    """Return how many times as long `above` takes as `below`."""
    upper, lower = (median(results[job], key) if job else None for job in (above, below))
    return f"{shown(upper / lower)}×" if upper and lower else NONE


def worst(results: Sequence[Result], key: str) -> str:
    """Return the agreement of the round that agreed least; that of a reference with itself is ``None``."""
    found = [result[key] for result in results if key in result]
    if None in found:
        return "reference"
    return str(max(found, key=lambda agreement: agreement.missing + agreement.different, default=NONE))


def each(results: Results, key: str, *, per: Callable[[Job], float] = lambda _: 1.0) -> Callable[[Job], str]:
    """Return the cell function of a median, divided by something of the job."""

    def cell(job: Job) -> str:
        value = median(results[job], key)
        return shown(None if value is None else value / per(job))

    return cell


def scoring(results: Results) -> str:
    """Return the tables of loading and of scoring."""
    loaders = list({job.side: job for job in reversed(results)}.values())[::-1]
    who = Column("", lambda job: job.label.partition(":")[0])
    loading = markdown([who, *_times(results, "load"), Column("peak MB", each(results, "loaded_mb"))], loaders)
    checks = [
        Column("peak MB", each(results, "peak_mb")),
        Column("scores as the reference's", lambda job: worst(results[job], "agreement")),
        Column("true trajectories", lambda job: worst(results[job], "truth")),
    ]
    scored = markdown([Column("", lambda job: job.label), *_times(results, "work"), *checks], list(results))
    return f"Loading the eval set and the recording:\n\n{loading}\n\nScoring:\n\n{scored}"


def _times(results: Results, stage: str) -> list[Column]:
    key = f"{stage}_s"
    return [
        Column("s (min–max)", lambda job: spread(results[job], key)),
        Column("CPU s", each(results, f"{stage}_cpu_s")),
        Column("google-adk ÷ it", lambda job: ratio(results, _of(results, side="adk"), job, key)),
        Column("MLflow ÷ it", lambda job: ratio(results, _of(results, side="mlflow_scorers"), job, key)),
        Column("it ÷ floor", lambda job: ratio(results, job, _of(results, side="floor"), key)),
    ]


def _of(results: Results, **wanted: object) -> Job | None:
    """Return the first job with these fields."""
    return next((job for job in results if all(getattr(job, name) == value for name, value in wanted.items())), None)


def growth(results: Results) -> str:
    """Return the tables of seconds by size."""
    sizes = sorted({job.cases for job in results})
    stages = {"Loading": "load_s", "Scoring": "work_s"}
    tables = [f"{title}:\n\n{_by_size(results, sizes, key)}" for title, key in stages.items()]
    return "\n\n".join([*tables, f"Linear would be {shown(sizes[-1] / sizes[0])}× in the last column."])


def _by_size(results: Results, sizes: Sequence[int], key: str) -> str:
    by_label = {label: {job.cases: job for job in results if job.label == label} for label in dict.fromkeys(job.label for job in results)}
    each_size = [Column(f"{size:,} cases, s", lambda label, size=size: each(results, key)(by_label[label][size])) for size in sizes]
    last_to_first = Column("last ÷ first", lambda label: ratio(results, by_label[label][sizes[-1]], by_label[label][sizes[0]], key))
    return markdown([Column("", str), *each_size, last_to_first], list(by_label))


def logging(results: Results) -> str:
    """Return the table of what logging takes and what has arrived."""

    def against(call: str) -> Callable[[Job], str]:
        return lambda job: ratio(results, job, _of(results, side="floor", call=call, logs=job.logs), "work_s")

    return markdown(
        [
            Column("", lambda job: job.label),
            Column("s (min–max)", lambda job: spread(results[job], "work_s")),
            Column("ms a row", each(results, "work_s", per=lambda job: job.rows / 1000)),
            Column("MLflow ÷ it", lambda job: ratio(results, _of(results, side="mlflow_scorers", logs=job.logs), job, "work_s")),
            Column("it ÷ floor, rows", against("log_rows")),
            Column("it ÷ floor, client, per invocation", against("log_invocation_traces")),
            Column("it ÷ floor, client, per case", against("log_case_traces")),
            Column("it ÷ floor, table", against("log_table")),
            Column("traces", each(results, "traces")),
            Column("scores on traces", each(results, "assessments")),
            Column("table rows", each(results, "table_rows")),
            Column("lost", lambda job: _lost(job, results[job])),
            Column("scores as the reference's", lambda job: worst(results[job], "agreement")),
        ],
        list(results),
    )


def _lost(job: Job, results: Sequence[Result]) -> str:
    """Return the worst loss of all rounds."""
    losses = [job.lost(result) for result in results if "work_s" in result]
    return f"{max(losses):,} of {job.logged:,}" if losses else NONE


def judging(results: Results) -> str:
    """Return a table of judging for each group of measurements."""
    groups = dict.fromkeys(job.group for job in results)
    tables = {group: _judging({job: found for job, found in results.items() if job.group == group}) for group in groups}
    return "\n\n".join(f"{group}:\n\n{table}" if group else table for group, table in tables.items())


def _judging(results: Results) -> str:
    def against(side: str, job: Job) -> Job | None:
        """Return who has as many requests in flight, and as many votes if there is such a one."""
        matching = [other for other in results if other.side == side and _in_flight(other) == _in_flight(job)]
        return next((other for other in matching if _votes(other) == _votes(job)), matching[0] if matching else None)

    columns = [
        Column("", lambda job: job.label),
        Column("s (min–max)", lambda job: spread(results[job], "work_s")),
        Column("CPU s", each(results, "work_cpu_s")),
        Column("google-adk ÷ it", lambda job: ratio(results, against("adk", job), job, "work_s")),
        Column("MLflow ÷ it", lambda job: ratio(results, against("mlflow_scorers", job), job, "work_s")),
        Column("it ÷ floor", lambda job: ratio(results, job, against("floor", job), "work_s")),
        Column("calls", each(results, "requests")),
        Column("of them refused", lambda job: _ended(results[job], "429")),
        Column("most in flight", each(results, "peak_in_flight")),
        Column("input tokens, thousands", each(results, "input_tokens", per=lambda _: 1000)),
        Column("lost", lambda job: worst_count(job, results[job], "missing")),
        Column("wrong", lambda job: worst_count(job, results[job], "different")),
    ]
    return markdown(columns, list(results))


def _in_flight(job: Job) -> int | None:
    return job.judging.in_flight if job.judging else None


def _votes(job: Job) -> int | None:
    return job.judging.votes if job.judging else None


def _ended(results: Sequence[Result], end: str) -> str:
    counts = [result["ends"].get(end, 0) for result in results]
    return shown(statistics.median(counts)) if any(counts) else NONE


def worst_count(job: Job, results: Sequence[Result], what: str) -> str:
    """Return how many turns were lost or wrong in the round where it was worst."""
    return f"{max(getattr(result['truth'], what) for result in results):,} of {job.rows:,}" if results else NONE


def importing(results: Results) -> str:
    """Return the table of import times."""
    bare = next(job for job in results if job.is_baseline)
    base = median(results[bare], "peak_mb") or 0.0
    columns = [
        Column("", lambda job: job.label),
        Column("s (min–max)", lambda job: spread(results[job], "import_s")),
        Column("MB over bare Python", lambda job: shown((median(results[job], "peak_mb") or 0.0) - base)),
    ]
    return markdown(columns, [job for job in results if job is not bare])


def memory(results: Results) -> str:
    """Return the table of memory."""
    columns = [
        Column("", lambda job: job.label),
        Column("invocations", lambda job: f"{job.rows:,}"),
        Column("files MB", each(results, "files_mb")),
        Column("peak MB after loading", each(results, "loaded_mb")),
        Column("peak MB after scoring", each(results, "peak_mb")),
        Column("load s", each(results, "load_s")),
        Column("score s", each(results, "work_s")),
        Column("scores as the reference's", lambda job: worst(results[job], "agreement")),
        Column("true trajectories", lambda job: worst(results[job], "truth")),
    ]
    return markdown(columns, list(results))
