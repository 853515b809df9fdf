"""A calibration of judges against people: its numbers with their intervals, as JSON and in a terminal.

`_measures` computes each rate with its interval once; `calibration_json` writes them for programs, `calibration_view` for people. Both also
list where judge and people disagree, and `remarks` says what the numbers do not: too few labels, biased labels, unscored cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mlflow_adk_eval.analysis.calibration.calibration import Calibration, Disagreement, Labelled
from mlflow_adk_eval.analysis.calibration.judge_error import Corrected, JudgeRates
from mlflow_adk_eval.text import counted

_MOST_SHOWN = 10
_HEADINGS = ("criterion", "", "value", "interval", "cells")

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


def _derived(labelled: Labelled, confidence: float) -> dict[str, Any]:
    rates, corrected = labelled, labelled.corrected(confidence=confidence)
    return {
        "labelled": rates.labelled,
        **{name: _bounded(*measure) for name, measure in _measures(rates, confidence).items()},
        "judge_pass_rate": labelled.sample.rate,
        "corrected": None if isinstance(corrected, str) else _bounded(corrected.value, (corrected.low, corrected.high)),
        "not_corrected": corrected if isinstance(corrected, str) else None,
        "labels_wanted": {"pass": rates.passes_wanted(confidence), "fail": rates.failures_wanted(confidence)},
    }


def _measures(rates: JudgeRates, confidence: float) -> dict[str, tuple[float | None, Interval]]:
    return {name: rates.measure(name, confidence) for name in ("agreement", "kappa", "sensitivity", "specificity")}


def _bounded(value: float | None, interval: Interval) -> dict[str, float] | None:
    return None if value is None or interval is None else {"value": value, "low": interval[0], "high": interval[1]}


def calibration_view(calibration: Calibration, confidence: float = 0.95) -> RenderableType:
    """Return a calibration as a table of criteria and rubrics, what it lacks, and where judge and people disagree."""
    labels, runs = calibration.labels, len(calibration.runs)
    title = f"Judges compared with people: {counted(labels.count, 'label')} in {counted(runs, 'run')}, {confidence:.0%} intervals"
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in _HEADINGS:
        named = heading in _HEADINGS[:2]
        table.add_column(heading, justify="left" if named else "right", overflow="fold", no_wrap=named)
    for name, criterion in calibration.criteria.items():
        labelled = {name: criterion} | {f"  {rubric_id}": rubric for rubric_id, rubric in criterion.rubrics.items()}
        for what, one in labelled.items():
            for number, row in enumerate(rows_of(one, confidence)):
                table.add_row("" if number else escape(what), *map(escape, row))
            table.add_section()
    told = [Text(f"  - {line}") for line in remarks(calibration, confidence)]
    return Group(table, *told, *_disagreements(calibration.disagreements))


def rows_of(labelled: Labelled, confidence: float = 0.95) -> Iterator[tuple[str, ...]]:
    """Yield the name of each number, its value, its interval and the cells that it rests on; what is not there is left out at the end."""
    rates, corrected = labelled, labelled.corrected(confidence=confidence)
    counts = {"sensitivity": f"{rates.true_passes} of {rates.passes}", "specificity": f"{rates.true_failures} of {rates.failures}"}
    yield "labelled", str(rates.labelled)
    for name, (value, interval) in _measures(rates, confidence).items():
        if name == "kappa":
            yield "κ", *_estimate(None if interval is None else value, interval, "z.2f")
        else:
            yield name, *_estimate(value, interval), counts.get(name, "")
    yield "judge passes", *_estimate(labelled.sample.rate, None), f"{labelled.sample.passed} of {labelled.sample.judged}"
    rate, within = (corrected.value, (corrected.low, corrected.high)) if isinstance(corrected, Corrected) else (None, None)
    yield "corrected", *_estimate(rate, within)


def _estimate(value: float | None, interval: Interval, form: str = ".0%") -> tuple[str, str]:
    bounds = f"{interval[0]:{form}} to {interval[1]:{form}}" if interval and value is not None else ""
    return "–" if value is None else f"{value:{form}}", bounds


def remarks(calibration: Calibration, confidence: float = 0.95) -> list[str]:
    """Return what the numbers do not tell, and why some are missing, as sentences."""
    sentences = list(calibration.notes)
    for name, criterion in calibration.criteria.items():
        # A criterion of which only rubrics are labelled has nothing to remark.
        parts: dict[str, Labelled] = {name: criterion} if criterion.labelled or not criterion.rubrics else {}
        parts |= {f"{name}, rubric {rubric_id}": rubric for rubric_id, rubric in criterion.rubrics.items()}
        sentences += [f"{what}: {remark}" for what, part in parts.items() for remark in remarks_of(part, confidence)]
    return sentences


def remarks_of(labelled: Labelled, confidence: float = 0.95) -> Iterator[str]:
    """Yield what the numbers of a criterion or rubric do not tell."""
    rates, corrected = labelled, labelled.corrected(confidence=confidence)
    if isinstance(corrected, str):
        yield f"no corrected pass rate: {corrected}"
    wanted = [(rates.passes_wanted(confidence), "pass", "sensitivity"), (rates.failures_wanted(confidence), "fail", "specificity")]
    more = [f"{count:,} more verdicts that people {verb} (for the {what})" for count, verb, what in wanted if count]
    if more:
        yield f"for intervals of ±0.1, label about {' and '.join(more)}"
    if labelled.unscored:
        yield f"{counted(labelled.unscored, 'labelled turn')} without a verdict from the judge, left out"
    if people := labelled.people:
        alpha = "" if people.alpha is None else f", Krippendorff's α {people.alpha:.2f}"
        tied = f"; {counted(people.tied, 'verdict')} with tied labels left out" if people.tied else ""
        yield (
            f"several people labelled {counted(people.cells, 'verdict')} and disagree on {people.disputed}"
            f" ({people.agreement:.0%} of all pairs of labels agree{alpha}){tied}"
        )


def _disagreements(disagreements: tuple[Disagreement, ...]) -> Iterator[RenderableType]:
    if not disagreements:
        return
    yield Text("Disagreements between judge and people, most certain first", style="bold")
    for one in disagreements[:_MOST_SHOWN]:
        run = f" (run {one.run_index + 1})" if one.run_index else ""
        turn = "" if one.invocation_index is None else f", turn {one.invocation_index + 1}"
        what = one.criterion + (f", {one.rubric_id}" if one.rubric_id else "")
        verdict = "pass" if one.judge_passed else "fail"
        said = f": {one.judge_said}" if one.judge_said else ""
        yield Text(f"  - {one.eval_id}{run}{turn}, {what}: {one.people_said} by people, {verdict} by the judge{said}")
    if len(disagreements) > _MOST_SHOWN:
        yield Text(f"  - and {len(disagreements) - _MOST_SHOWN} more; --json lists them all", style="dim")


_RATES = {"accuracy": "accuracy", "kappa": "κ", "sensitivity": "sensitivity", "specificity": "specificity"}


def bench_view(bench: Mapping[str, Any]) -> RenderableType:
    """Return the numbers of a bench as a table with a column for each judge."""
    scores: Sequence[Mapping[str, Any]] = bench["scores"]
    title = f"Judges on {bench['source']}: {scores[0]['items']} items, {bench['confidence']:.0%} intervals"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True, overflow="fold")
    for one in scores:
        table.add_column(escape(one["judge"]), justify="right", overflow="fold")
    for name, word in _RATES.items():
        table.add_row(word, *(_share(one["rates"][name], ".2f" if name == "kappa" else ".0%") for one in scores))
    for criterion in scores[0]["by_criterion"]:
        table.add_row(f"  {criterion}", *(_share(one["by_criterion"][criterion]["accuracy"]) for one in scores))
    for kind in dict.fromkeys(kind for one in scores for kind in one["by_kind"]):
        right = (one["by_kind"].get(kind) for one in scores)
        table.add_row(f"  {escape(kind)}", *("–" if count is None else f"{count[0]} of {count[1]}" for count in right))
    table.add_row("votes against the verdict", *("–" if one["flip_rate"] is None else f"{one['flip_rate']:.1%}" for one in scores))
    for name, word in (("length", "verdict changes with length"), ("position", "verdict changes with order")):
        changes: list[str] = []
        for count in (one[name] for one in scores):
            to_pass, to_fail, pairs = count["towards_pass"], count["towards_fail"], count["pairs"]
            changes.append(f"{to_pass + to_fail} of {pairs} (to pass {to_pass}, to fail {to_fail})" if pairs else "–")
        table.add_row(word, *changes)
    table.add_row("items without a verdict", *(str(one["undecided"]) for one in scores))
    table.add_row("unreadable answers", *(f"{one['unreadable']} of {one['answers']}" for one in scores))
    table.add_row("tokens in, out", *(f"{one['input_tokens']:,}, {one['output_tokens']:,}" for one in scores))
    table.add_row("median answer", *("–" if one["latency_s"] is None else f"{one['latency_s']:.2f} s" for one in scores))
    run = [Text(f"run {bench['run_id']}", style="dim")] if bench["run_id"] else []
    return Group(table, *run)


def _share(bounds: Sequence[float] | None, form: str = ".0%") -> str:
    return f"{bounds[0]:{form}} [{bounds[1]:{form}}–{bounds[2]:{form}}]" if bounds else "–"
