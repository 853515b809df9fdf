"""What a session of pytest came to: totals for the terminal, a page for GitHub, a run in MLflow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlflow_adk_eval.agents import Agent
from mlflow_adk_eval.errors import TrackingError
from mlflow_adk_eval.report.markdown import step_summary
from mlflow_adk_eval.report.sentences import circumstances, format_outages
from mlflow_adk_eval.report.tally import CaseLine, CriterionTotals, flaky_of, totals
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage, added
from mlflow_adk_eval.runner import ExecutedCase
from mlflow_adk_eval.testing.cases import Job, renamed
from mlflow_adk_eval.testing.sources import EvalFile, merged

Markup = dict[str, bool]

_MAX_FLAKY = 10


@dataclass(slots=True)
class Results:
    """What the tests of a session found, wherever they ran."""

    planned: set[str] = field(default_factory=set[str])
    """The node ids of the cases that were selected."""
    lines: dict[str, CaseLine] = field(default_factory=dict[str, CaseLine])
    """The results, by node id."""
    usages: list[JudgeUsage] = field(default_factory=list[JudgeUsage])
    """What the judges of each process took."""
    simulations: list[JudgeUsage] = field(default_factory=list[JudgeUsage])
    """What the models of each process that played users took."""
    notes: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Sentences, each with whether it is bad news."""

    @property
    def missing(self) -> int:
        """How many of the selected cases have no result."""
        return len(self.planned - self.lines.keys())

    @property
    def judging(self) -> JudgeUsage | None:
        """What all judges took; ``None`` where none was asked."""
        return added(self.usages) if self.usages else None

    @property
    def simulating(self) -> JudgeUsage | None:
        """What all models that played users took; ``None`` where none did."""
        return added(self.simulations) if self.simulations else None

    def note(self, text: str, *, bad: bool = False) -> None:
        """Add a sentence."""
        self.notes.append((text, bad))

    def markdown(self) -> str:
        """Return the page for GitHub."""
        return step_summary(
            list(self.lines.values()),
            missing=self.missing,
            judging=self.judging,
            simulating=self.simulating,
            notes=[text for text, _ in self.notes],
        )

    def terminal(self) -> Iterator[tuple[str, Markup]]:
        """Yield the lines for the terminal."""
        found = totals(self.lines.values())
        widths = [
            max((len(text) for text in texts), default=0) for texts in zip(*((one.criterion, one.threshold) for one in found), strict=True)
        ]
        for one in found:
            yield _total(one, *widths), {"green" if one.passed == one.planned else "red": True}
        yield from _flaky(self.lines.values())
        if self.missing:
            yield f"{self.missing} of {len(self.planned)} selected cases did not finish", {"yellow": True}
        if outage := format_outages(self.judging, self.simulating):
            yield outage, {"red": True}
        for sentence in circumstances(self.lines.values(), self.judging, self.simulating).values():
            yield sentence, {}
        for text, bad in self.notes:
            yield text, {"red": True} if bad else {}


def _total(one: CriterionTotals, width: int, threshold_width: int) -> str:
    shown = "–" if one.mean is None else f"{one.mean:.4g}"
    missing = f", {one.planned - one.evaluated} NOT EVALUATED" if one.evaluated < one.planned else ""
    return f"{one.criterion:<{width}}  {one.threshold:<{threshold_width}}  mean {shown}  passed {one.passed} of {one.planned}{missing}"


def _flaky(lines: Iterable[CaseLine]) -> Iterator[tuple[str, Markup]]:
    flaky = flaky_of(lines)
    for case in flaky[:_MAX_FLAKY]:
        yield f"flaky: {case.eval_id}: {case.summary}", {"yellow": True}
    if len(flaky) > _MAX_FLAKY:
        yield f"and {len(flaky) - _MAX_FLAKY} more flaky cases", {"yellow": True}


def log_results(results: Results, done: Sequence[tuple[Job, ExecutedCase]], *, agent: Agent, experiment: str) -> str:
    """Log a session as one run in MLflow, and return a sentence that names it.

    Raises:
        TrackingError: if MLflow cannot be reached, or the session is not something that a run may stand for.
    """
    if results.missing:
        raise TrackingError(f"{results.missing} of {len(results.planned)} selected cases did not finish")
    report = replace(report_of(done), judging=results.judging, simulating=results.simulating)
    from mlflow_adk_eval.tracking.evaluate import log_report  # noqa: PLC0415 - imports MLflow

    logged = log_report(report, agent_name=agent.name, agent=agent, experiment=experiment)
    return f"MLflow run {logged.run_id} in experiment {experiment!r}" + "".join(f"; {note}" for note in report.notes)


def report_of(done: Sequence[tuple[Job, ExecutedCase]]) -> Report:
    """Return results as the report on one eval set: that of their file, or one made of several.

    If only some of a file's cases ran, the eval set holds only these, and so has another digest than the whole.

    Raises:
        TrackingError: if some cases ran more often than others.
    """
    files = {job.file.path: job.file for job, _ in sorted(done, key=lambda one: one[0].key)}
    ran = {path: _ran(path, done) for path in files}
    runs = {tuple(sorted(found)) for by_case in ran.values() for found in by_case.values()}
    num_runs = max(map(len, runs), default=0)
    if runs != {tuple(range(num_runs))}:
        raise TrackingError("not every selected case had the same runs, so they are no eval set with a number of runs")
    parts = [file.selected(list(ran[path])) for path, file in files.items()]
    whole = merged(parts)
    cases: list[CaseResult] = [
        renamed(ran[part.path][case.eval_id][run_index], whole.eval_ids[part.path, case.eval_id])
        for part in parts
        for case in part.eval_set.eval_cases
        for run_index in range(num_runs)
    ]
    return Report(eval_set=whole.eval_set, config=whole.config, cases=tuple(cases), num_runs=num_runs, notes=_selected(files, parts))


def _ran(path: Path, done: Sequence[tuple[Job, ExecutedCase]]) -> dict[str, dict[int, CaseResult]]:
    """Return the results of a file, by case and run."""
    found: dict[str, dict[int, CaseResult]] = {}
    for job, finished in done:
        if job.file.path == path:
            found.setdefault(job.case.eval_id, {})[job.run_index] = finished.result
    return found


def _selected(files: dict[Path, EvalFile], parts: Sequence[EvalFile]) -> tuple[str, ...]:
    return tuple(
        f"a selection: {len(part.eval_set.eval_cases)} of {len(files[part.path].eval_set.eval_cases)} cases of {part.path}"
        for part in parts
        if part is not files[part.path]
    )
