"""The page on which a person labels what judges decided, without seeing what they said before having labelled it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlflow_adk_eval.analysis.calibration.labels import Unit
from mlflow_adk_eval.config.spec import RubricSettings
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.calibration import JudgedRun
from mlflow_adk_eval.report.html.page import Texts
from mlflow_adk_eval.report.html.report import case_views
from mlflow_adk_eval.tracking.calibrate import Labelling
from mlflow_adk_eval.viewer.pages import Tab
from mlflow_adk_eval.viewer.query import Query
from mlflow_adk_eval.viewer.store import OpenRun

_TURNS_BEFORE = 10
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
        "last_label": last and labelling.labels[last],
        "last_judged": last and judged.units.judged[last],
        "longest": _LONGEST_REASON,
        **(_shown(opened, judged, unit, texts) if unit else {}),
    }


def labelled(labelling: Labelling, form: Mapping[str, str]) -> tuple[Unit, bool, str]:
    """Return what a form says: the cell, whether it passes, and why.

    Raises:
        UsageError: if it is about no cell, or says neither pass nor fail.
    """
    unit = next((unit for unit in labelling.units if key_of(unit) == form.get("cell")), None)
    if unit is None:
        raise UsageError("No judge decided this turn and criterion in this run.")
    if form.get("label") not in ("pass", "fail"):
        raise UsageError(f"Found the label {form.get('label', '')!r}; wanted pass or fail.")
    return unit, form["label"] == "pass", form.get("reason", "").strip()[:_LONGEST_REASON]


def key_of(unit: Unit) -> str:
    """Return what addresses and forms call a cell."""
    place = "\0".join(map(str, (unit.run_id, unit.eval_id, unit.run_index, unit.invocation_index, unit.criterion)))
    return hashlib.sha256(place.encode("utf-8", "replace")).hexdigest()[:16]


def _shown(opened: OpenRun, judged: JudgedRun, unit: Unit, texts: Texts) -> dict[str, Any]:
    """Return the turn with nothing of what anybody made of it, what was said before, and by what it is to be judged."""
    case = opened.case(opened.place(unit.eval_id, unit.run_index))
    index = unit.invocation_index or 0
    (view,) = case_views(opened.report, [case], texts, slice(max(index - _TURNS_BEFORE, 0), index + 1))
    *before, turn = (replace(turn, verdict=None, cells=(), information="") for turn in view.turns)
    settings = judged.documents.config.criteria_of(unit.eval_id)[unit.criterion]
    rubrics = settings.rubrics if isinstance(settings, RubricSettings) else ()
    return {
        "label": view.label,
        "turn": turn,
        "before": before,
        "rubrics": [texts.words(rubric.rubric_content.text_property or "") for rubric in rubrics],
    }
