"""What people say of cells that a judge has decided: as labels, from tables, and of several people put together.

A `Unit` is what one label is about: a cell, a rubric of it, or a whole case. Labels come from MLflow's assessments (in the tracking package)
or from the rows of a table; `read_labels` resolves each row to a unit, or says what is wrong with it. `opinions_of` then puts
the latest label of each person together into one `Opinion` of each unit.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from mlflow_adk_eval.errors import InputError, Problem, did_you_mean, shown
from mlflow_adk_eval.evalset.parse import read_text
from mlflow_adk_eval.results.outcomes import reaches

_PASS = frozenset({"true", "yes", "pass", "passed"})
_FAIL = frozenset({"false", "no", "fail", "failed"})
_WANTED = "true or false, yes or no, pass or fail"
_REQUIRED = ("eval_id", "criterion", "label")
PLACE = ("run_id", "eval_id", "run_index", "criterion", "rubric_id", "invocation_index")
"""By what a unit is known."""
_MOST_NAMED = 8
_WHOLE = re.compile(r"^(\d+)\.0+$")
"""How a table that was once full of numbers writes whole ones."""
COLUMNS = ("run_id", "eval_id", "run_index", "invocation_index", "criterion", "rubric_id", "label", "labeller")
"""The columns of a table of labels. A run must be named where there are several; whatever else is empty has a meaning."""
SAMPLE = "sample"
"""The column of a sheet that says which sample its rows are."""
CONTEXT = ("question", "response", "reference", "tool_calls", "rubrics")
"""What a sheet shows those who label, and nobody reads again."""
_KNOWN = (*COLUMNS, SAMPLE, *CONTEXT)


Meaning = tuple[str, str | None]
"""A criterion and, where labels are about one of its rubrics, that."""


class LabelError(InputError):
    """Labels that cannot be read or match no verdict."""

    noun = "set of labels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What one label is about."""

    run_id: str
    eval_id: str
    run_index: int
    invocation_index: int | None
    """``None``: the whole case."""
    criterion: str
    rubric_id: str | None = None

    @property
    def meaning(self) -> Meaning:
        """What a label of it is about, wherever."""
        return self.criterion, self.rubric_id


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeDecision:
    """What a judge decided about a unit, and how a label of it is to be read."""

    passed: bool | None
    """``None``: the judge could not say."""
    said: str = ""
    certainty: float = 1.0
    """The share of the votes that say so."""
    threshold: float | None = None
    """Where a number passes; ``None``: only 0 and 1 can be read."""
    greater_is_better: bool = True
    bounds: tuple[float, float] = (0.0, 1.0)
    """What numbers there are."""
    score: float | None = None
    """What it was given, where that is a number."""
    judged: bool = False
    """Whether a model decides the criterion as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What one person says of a unit."""

    unit: Unit
    passed: bool
    labeller: str
    said: str = ""
    """Why, where the person says so."""
    at: int = 0
    """When, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What all people together say of a unit."""

    labels: tuple[Label, ...]
    """One of each labeller."""

    @property
    def passes(self) -> int:
        """How many say that it passes."""
        return sum(label.passed for label in self.labels)

    @property
    def passed(self) -> bool | None:
        """What the majority says; ``None`` where there is none."""
        twice = 2 * self.passes
        return None if twice == len(self.labels) else twice > len(self.labels)

    @property
    def unanimity(self) -> float:
        """The share of the labels that say what the majority says."""
        return max(self.passes, len(self.labels) - self.passes) / len(self.labels)

    @property
    def answers(self) -> list[bool]:
        """What each of them says."""
        return [label.passed for label in self.labels]

    @property
    def summary(self) -> str:
        """What they say, as text."""
        count = len(self.labels)
        word = "pass" if self.passed else "fail"
        agreeing = [label.said for label in self.labels if label.passed == self.passed and label.said]
        numbers = f" ({round(self.unanimity * count)} of {count})" if count > 1 else ""
        return f"{word}{numbers}" + (f": {agreeing[0]}" if agreeing else "")


def opinions_of(labels: Iterable[Label]) -> dict[Unit, Opinion]:
    """Return what people say of each unit, in which the latest label of each of them counts."""
    latest: dict[Unit, dict[str, Label]] = {}
    for label in sorted(labels, key=lambda label: label.at):
        latest.setdefault(label.unit, {})[label.labeller] = label
    return {unit: Opinion(tuple(labels.values())) for unit, labels in latest.items()}


def read_label(value: Any, judged: JudgeDecision) -> bool | str:
    """Return whether a label says that a unit passes; a text says what was wanted instead."""
    if isinstance(value, bool):
        return value
    word = value.strip().casefold() if isinstance(value, str) else ""
    if word in _PASS or word in _FAIL:
        return word in _PASS
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if judged.threshold is None:
        return bool(number) if number in (0, 1) else f"{_WANTED}, 1 or 0"
    low, high = judged.bounds
    if not math.isfinite(number) or not low <= number <= high:
        return f"{_WANTED}, or a score from {low:g} to {high:g}"
    return reaches(number, judged.threshold, greater_is_better=judged.greater_is_better)


@dataclass(frozen=True, slots=True)
class LabelRow:
    """A row of a table of labels."""

    place: str
    """What messages call it."""
    cells: Mapping[str, str]
    """Its texts by column; without those that are empty."""


def read_rows(source: str | Path | Iterable[Mapping[str, Any]]) -> tuple[str, list[LabelRow]]:
    """Return the name of a table of labels and its rows, from a CSV file or from mappings.

    Raises:
        LabelError: if it is no such table.
    """
    if isinstance(source, str | Path):
        return str(source), _csv_rows(Path(source))
    given = list(source)
    columns = dict.fromkeys(str(name) for row in given for name in row)
    if given and (problems := list(_column_problems("$", list(columns)))):
        raise LabelError("labels", problems)
    return "labels", [LabelRow(f"$[{index}]", _texts(row)) for index, row in enumerate(given)]


def _csv_rows(path: Path) -> list[LabelRow]:
    text = read_text(path, error=LabelError)
    try:
        lines = list(csv.reader(io.StringIO(text.decode(), newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise LabelError(str(path), [Problem("$", f"no table ({error})", "comma-separated values in UTF-8")]) from None
    header = [name.strip() for name in lines[0]] if lines else []
    problems = list(_column_problems("row 1", header))
    rows = [(number, cells) for number, cells in enumerate(lines[1:], start=2) if any(cell.strip() for cell in cells)]
    wanted = f"{len(header)}, as in row 1"
    problems += [Problem(f"row {number}", f"{len(cells)} cells", wanted) for number, cells in rows if len(cells) != len(header)]
    if problems:
        raise LabelError(str(path), problems)
    return [LabelRow(f"row {number}", _texts(dict(zip(header, cells, strict=True)))) for number, cells in rows]


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what is said of each column, numbers of runs and turns without a fraction."""
    texts = {name: str(value).strip() for name, value in row.items() if value is not None and value == value}  # noqa: PLR0124 - NaN
    return {name: _WHOLE.sub(r"\1", text) if name.endswith("_index") else text for name, text in texts.items() if text}


def _column_problems(where: str, columns: Sequence[str]) -> Iterator[Problem]:
    for name in columns:
        if name not in _KNOWN:
            yield Problem(where, f"a column {name!r}", f"the columns {', '.join(COLUMNS)}", did_you_mean(name, _KNOWN))
        elif columns.count(name) > 1:
            yield Problem(where, f"{columns.count(name)} columns {name!r}", "one")
            return
    for name in _REQUIRED:
        if name not in columns:
            yield Problem(where, f"no column {name!r}", f"the columns {', '.join(_REQUIRED)}")


@dataclass(frozen=True, slots=True)
class Units:
    """All that can be labelled, with what judges decided about it."""

    judged: Mapping[Unit, JudgeDecision]
    aliases: Mapping[Unit, Unit]
    """From a whole case that has a single cell to that cell, by criterion and rubric."""

    def find(self, unit: Unit) -> Unit | None:
        """Return the unit that another spelling means; ``None`` if there is no such unit."""
        known = self.aliases.get(unit, unit)
        return known if known in self.judged else None

    def at(self, criterion: str, rubric_id: str | None, *, whole_cases: bool) -> dict[Unit, JudgeDecision]:
        """Return the units of a criterion or rubric: one for each case run, or one for each cell."""
        cells = set(self.aliases.values())
        return {
            unit: judged
            for unit, judged in self.judged.items()
            if unit.meaning == (criterion, rubric_id)
            and (unit.invocation_index is None or unit in cells if whole_cases else unit.invocation_index is not None)
        }


def read_labels(rows: Iterable[LabelRow], units: Units) -> Iterator[Label | Problem]:
    """Yield the label in each row of a table, or what is wrong with it."""
    place, spelt = attrgetter(*PLACE), {unit: unit for unit in units.judged} | dict(units.aliases)  # each way to call a unit
    known = {tuple("" if at is None else str(at) for at in place(spelling)): unit for spelling, unit in spelt.items()}
    runs = dict.fromkeys(key[0] for key in known)
    default = {"run_id": next(iter(runs)) if len(runs) == 1 else "", "run_index": "0"}
    seen: dict[tuple[Unit, str], str] = {}
    for row in rows:
        key = tuple(row.cells.get(column, default.get(column, "")) for column in PLACE)
        if (unit := known.get(key)) is None:
            yield _about_nothing(row, key, known)
            continue
        text, labeller = row.cells.get("label", ""), row.cells.get("labeller", "")
        passed = read_label(text, units.judged[unit])
        earlier = seen.setdefault((unit, labeller), row.place)
        if earlier != row.place:
            yield Problem(f"{row.place}, label", f"a second label for the verdict in {earlier}", "one label per labeller")
        elif isinstance(passed, str):
            yield Problem(f"{row.place}, label", shown(text) if text else "nothing", passed)
        else:
            yield Label(unit=unit, passed=passed, labeller=labeller)


def _about_nothing(row: LabelRow, key: tuple[str, ...], known: Collection[tuple[str, ...]]) -> Problem:
    """Return the first column of a row with which it is about nothing, and what that may be beside the columns before it."""
    number = next(place for place in range(len(key)) if all(other[: place + 1] != key[: place + 1] for other in known))
    given, possible = key[number], list(dict.fromkeys(other[number] for other in known if other[:number] == key[:number]))
    names = [name or "an empty cell" for name in possible]
    more = f" or another of these {len(names)}" if len(names) > _MOST_NAMED else ""
    wanted = f"{'one of ' if len(names) > 1 else ''}{', '.join(names[:_MOST_NAMED])}{more}"
    hint = did_you_mean(given, possible) if given else ""
    return Problem(f"{row.place}, {PLACE[number]}", shown(given) if given else "nothing", wanted, hint)
