"""A calibration of judges against people: its numbers with their intervals, as JSON and in a terminal.

`_measures` computes each rate with its interval once; `calibration_json` writes them for programs, `calibration_view` for people. Both also
list where judge and people disagree, and `remarks` says what the numbers do not: too few labels, biased labels, unscored cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mlflow_adk_eval.analysis.calibration.calibration import Calibration, Disagreement, Labelled
from mlflow_adk_eval.analysis.calibration.judge_error import Corrected, JudgeRates
from mlflow_adk_eval.report.sentences import counted

_MOST_SHOWN = 10
_HEADINGS = ("labelled", "agreement", "κ", "sensitivity", "specificity", "judge passes", "corrected")

Interval = tuple[float, float] | None


def calibration_json(calibration: Calibration, confidence: float = 0.95) -> dict[str, Any]:
    """Return a calibration with all that follows from its counts, and where judge and people disagree, as JSON values."""
    value = calibration.model_dump(mode="json")
    for name, criterion in calibration.criteria.items():
        value["criteria"][name] |= _derived(criterion, confidence)
        for rubric_id, rubric in criterion.rubrics.items():
            value["criteria"][name]["rubrics"][rubric_id] |= _derived(rubric, confidence)
    disagreements = [one.model_dump(mode="json") for one in calibration.disagreements]
    return {**value, "confidence": confidence, "disagreements": disagreements}


def _derived(found: Labelled, confidence: float) -> dict[str, Any]:
    rates, corrected = found.rates, found.corrected(confidence=confidence)
    return {
        "labelled": rates.labelled,
        **{name: _bounded(*measure) for name, measure in _measures(rates, confidence).items()},
        "judge_pass_rate": found.sample.rate,
        "corrected": None if isinstance(corrected, str) else _bounded(corrected.value, (corrected.low, corrected.high)),
        "not_corrected": corrected if isinstance(corrected, str) else None,
        "labels_wanted": {"pass": rates.passes_wanted(confidence), "fail": rates.failures_wanted(confidence)},
    }


def _measures(rates: JudgeRates, confidence: float) -> dict[str, tuple[float | None, Interval]]:
    names = ("agreement", "kappa", "sensitivity", "specificity")
    return {name: (getattr(rates, name), getattr(rates, f"{name}_interval")(confidence)) for name in names}


def _bounded(value: float | None, interval: Interval) -> dict[str, float] | None:
    return None if value is None or interval is None else {"value": value, "low": interval[0], "high": interval[1]}


def calibration_view(calibration: Calibration, confidence: float = 0.95) -> RenderableType:
    """Return a calibration as a table of criteria and rubrics, what it lacks, and where judge and people disagree."""
    return Group(
        _table(calibration, confidence),
        *(Text(f"  - {line}") for line in remarks(calibration, confidence)),
        *_disagreements(calibration.disagreements),
    )


def _table(calibration: Calibration, confidence: float) -> Table:
    labels, runs = calibration.labels, len(calibration.runs)
    title = f"Judges against people: {counted(labels.count, 'label')} of {counted(runs, 'run')}, {confidence:.0%} intervals"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("criterion", overflow="fold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", overflow="fold")
    for name, criterion in calibration.criteria.items():
        table.add_row(escape(name), *_cells(criterion, confidence))
        for rubric_id, rubric in criterion.rubrics.items():
            table.add_row(f"  {escape(rubric_id)}", *_cells(rubric, confidence))
    return table


def _cells(found: Labelled, confidence: float) -> Iterator[str]:
    rates, corrected = found.rates, found.corrected(confidence=confidence)
    measures = _measures(rates, confidence)
    yield str(rates.labelled)
    yield _percent(*measures["agreement"])
    yield _number(*measures["kappa"])
    yield _percent(*measures["sensitivity"], f"{rates.true_passes}/{rates.passes}")
    yield _percent(*measures["specificity"], f"{rates.true_failures}/{rates.failures}")
    yield _percent(found.sample.rate, None, f"{found.sample.passed}/{found.sample.judged}")
    yield _percent(corrected.value, (corrected.low, corrected.high)) if isinstance(corrected, Corrected) else "–"


def _percent(value: float | None, interval: Interval, counts: str = "") -> str:
    if value is None:
        return "–"
    bounds = f" [{interval[0]:.0%}–{interval[1]:.0%}]" if interval else ""
    return escape(f"{value:.0%}{bounds}" + (f" {counts}" if counts else ""))


def _number(value: float | None, interval: Interval) -> str:
    return "–" if value is None or interval is None else escape(f"{value:.2f} [{interval[0]:.2f}–{interval[1]:.2f}]")


def remarks(calibration: Calibration, confidence: float = 0.95) -> list[str]:
    """Return what the numbers do not tell, and why some are missing, as sentences."""
    found = list(calibration.notes)
    for name, criterion in calibration.criteria.items():
        # A criterion of which only rubrics are labelled has nothing to remark.
        parts: dict[str, Labelled] = {name: criterion} if criterion.rates.labelled or not criterion.rubrics else {}
        parts |= {f"{name}, rubric {rubric_id}": rubric for rubric_id, rubric in criterion.rubrics.items()}
        found += [f"{what}: {remark}" for what, part in parts.items() for remark in _remarks(part, confidence)]
    return found


def _remarks(found: Labelled, confidence: float) -> Iterator[str]:
    rates, corrected = found.rates, found.corrected(confidence=confidence)
    if isinstance(corrected, str):
        yield f"no corrected pass rate: {corrected}"
    wanted = [(rates.passes_wanted(confidence), "pass", "sensitivity"), (rates.failures_wanted(confidence), "fail", "specificity")]
    more = [f"{count:,} more cells that people {verb} (for the {what})" for count, verb, what in wanted if count]
    if more:
        yield f"for intervals of ±0.1, label about {' and '.join(more)}"
    if found.unscored:
        yield f"{counted(found.unscored, 'labelled cell')} without a score from the judge, left out"
    if people := found.people:
        alpha = "" if people.alpha is None else f", Krippendorff's α {people.alpha:.2f}"
        tied = f"; {counted(people.tied, 'cell')} left out, as neither side had more labels" if people.tied else ""
        yield (
            f"several people labelled {counted(people.cells, 'cell')} and disagree on {people.disputed}"
            f" ({people.agreement:.0%} of all pairs of labels agree{alpha}){tied}"
        )


def _disagreements(found: tuple[Disagreement, ...]) -> Iterator[RenderableType]:
    if not found:
        return
    table = Table(title="Where judge and people disagree, most certain first", title_justify="left", title_style="bold")
    for heading in ("case", "turn", "criterion", "judge", "people"):
        table.add_column(heading, overflow="fold")
    for one in found[:_MOST_SHOWN]:
        table.add_row(*map(escape, _disagreement_cells(one)))
    yield table
    if len(found) > _MOST_SHOWN:
        yield Text(f"  - and {len(found) - _MOST_SHOWN} more; --json lists them all", style="dim")


def _disagreement_cells(one: Disagreement) -> tuple[str, str, str, str, str]:
    verdict = "pass" if one.judge_passed else "fail"
    return (
        one.eval_id + (f" (run {one.run_index + 1})" if one.run_index else ""),
        "all" if one.invocation_index is None else str(one.invocation_index + 1),
        one.criterion + (f", {one.rubric_id}" if one.rubric_id else ""),
        f"{verdict}: {one.judge_said}" if one.judge_said else verdict,
        one.people_said,
    )
