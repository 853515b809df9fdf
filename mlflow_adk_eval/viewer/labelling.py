"""The page on which a person labels what judges decided, without seeing what they said before having labelled it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlflow_adk_eval.analysis.calibration.judge_error import FEWEST
from mlflow_adk_eval.analysis.calibration.labels import Label, Unit, opinions_of
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS
from mlflow_adk_eval.config.spec import RubricSettings
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.calibration import JudgedRun, criteria_of
from mlflow_adk_eval.report.calibration import remarks_of, rows_of
from mlflow_adk_eval.report.html.page import Texts
from mlflow_adk_eval.report.html.report import case_views
from mlflow_adk_eval.tracking.calibrate import Labelling
from mlflow_adk_eval.viewer.query import Query, Tab
from mlflow_adk_eval.viewer.store import OpenRun

_TURNS_BEFORE = 10
QUESTIONS: Mapping[str, str] = {
    "final_response_match_v2": "Does the answer say what was expected?",
    "hallucinations_v1": "Does the answer claim only what the agent knew?",
    "safety_v1": "Is the answer safe?",
    "response_evaluation_score": "Is the answer coherent?",
    "per_turn_user_simulator_quality_v1": "Does the simulated user behave as planned?",
    **{metric.criterion: metric.question for metric in RAPID_METRICS.values() if metric.question},
}
"""What a person is asked about a turn, by criterion; for any other, whether it passes."""
_LONGEST_REASON = 5_000


def label_page(opened: OpenRun, judged: JudgedRun, labelling: Labelling, query: Query, texts: Texts) -> dict[str, Any]:
    """Return the next cell without a label of this person, and the one that was labelled last with what the judge said of it.

    Cells come in an order that is random but the same each time, so that the labelled ones are a random sample at any moment.
    """
    criterion = query.get("criterion")
    chosen = [unit for unit in labelling.units if criterion in ("", unit.criterion)]
    left = [unit for unit in chosen if unit not in labelling.labels]
    skipped = set(query.all("skip"))
    unit = min((one for one in left if key_of(one) not in skipped), key=key_of, default=None)
    last = next((one for one in labelling.labels if key_of(one) == query.get("last")), None)
    counts = Counter(one.criterion for one in labelling.units)
    tabs = [Tab("All", len(labelling.units), query(criterion="", last=""), not criterion)]
    tabs += [Tab(name, count, query(criterion=name, last=""), name == criterion) for name, count in counts.items()]
    return {
        "report": opened.report,
        "tabs": tabs,
        "done": len(chosen) - len(left),
        "total": len(chosen),
        "skipped": len(skipped),
        "unit": unit,
        "key": key_of(unit) if unit else "",
        "skip": Query(query.path, [*query.params, ("skip", key_of(unit))])(last="") if unit else "",
        "again": query(last="", skip=""),
        "last": last,
        "last_key": key_of(last) if last else "",
        "last_label": last and labelling.labels[last],
        "last_judged": last and judged.units.judged[last],
        "longest": _LONGEST_REASON,
        "calibrated": _calibrated(judged, labelling, whole=unit is None),
        **(_shown(opened, judged, unit, texts) if unit else {}),
    }


def labelled(labelling: Labelling, form: Mapping[str, str]) -> tuple[Unit, bool, str]:
    """Return what a form says: the cell, whether it passes, and why.

    Raises:
        UsageError: if it is about no cell, or says neither pass nor fail.
    """
    unit = labelled_unit(labelling, form.get("cell", ""))
    if form.get("label") not in ("pass", "fail"):
        raise UsageError(f"Found the label {form.get('label', '')!r}; wanted pass or fail.")
    return unit, form["label"] == "pass", form.get("reason", "").strip()[:_LONGEST_REASON]


def labelled_unit(labelling: Labelling, key: str) -> Unit:
    """Return the cell of a key.

    Raises:
        UsageError: if there is none.
    """
    unit = next((unit for unit in labelling.units if key_of(unit) == key), None)
    if unit is None:
        raise UsageError("No judge decided this turn and criterion in this run.")
    return unit


def _calibrated(judged: JudgedRun, labelling: Labelling, *, whole: bool) -> dict[str, tuple[list[tuple[str, ...]], list[str]]]:
    """Return the numbers of each criterion by this person's labels, as `calibrate` computes them.

    Those come once as many labels are there as a corrected pass rate takes, or nothing is left to label, which is `whole`.
    """
    labels = [Label(unit=unit, passed=passed, labeller="") for unit, passed in labelling.labels.items() if unit in judged.units.judged]
    found = criteria_of([judged], judged.units, opinions_of(labels), "your labels") if labels else {}
    ready = {name: one for name, one in found.items() if whole or min(one.passes, one.failures) >= FEWEST}
    return {name: ([(*row, "", "", "")[:4] for row in rows_of(one)], list(remarks_of(one))) for name, one in ready.items()}


def key_of(unit: Unit) -> str:
    """Return what addresses and forms call a cell."""
    place = "\0".join(map(str, (unit.run_id, unit.eval_id, unit.run_index, unit.invocation_index, unit.criterion)))
    return hashlib.sha256(place.encode("utf-8", "replace")).hexdigest()[:16]


def _shown(opened: OpenRun, judged: JudgedRun, unit: Unit, texts: Texts) -> dict[str, Any]:
    """Return the turn with nothing of what anybody made of it, what was said before, and by what it is to be judged."""
    case = opened.case(opened.place(unit.eval_id, unit.run_index))
    index = unit.invocation_index or 0
    (view,) = case_views(opened.report, [case], texts, slice(max(index - _TURNS_BEFORE, 0), index + 1))
    # What differs from the expectation is what the judge may have gone by: the labeller is to see it without a hint.
    *before, turn = (
        replace(turn, verdict=None, cells=(), information="", steps=tuple(replace(step, tone="quiet", label="") for step in turn.steps))
        for turn in view.turns
    )
    settings = judged.report.config.criteria_of(unit.eval_id)[unit.criterion]
    rubrics = settings.rubrics if isinstance(settings, RubricSettings) else ()
    listed = [texts.words(rubric.rubric_content.text_property or "") for rubric in rubrics]
    question = QUESTIONS.get(unit.criterion, f"Does this turn pass {texts.line(unit.criterion)}?")
    if listed:
        question = f"Is this true? {listed[0]}" if len(listed) == 1 else "Is all of this true?"
    return {"question": question, "label": view.label, "turn": turn, "before": before, "rubrics": listed if len(listed) > 1 else []}
