"""What people say of cells that a judge has decided: as labels, from tables, and of several people put together.

A `Unit` is what one label is about: a cell, a rubric of it, or a whole case. Labels come from MLflow's assessments (in the tracking package)
or from the rows of a table; `read_labels` resolves each row to a unit, or says what is wrong with it. `opinions_of` then puts
the latest label of each person together into one `Opinion` of each unit.

Most labels of a random sample go to cells on which judge and people would agree anyway. So half of a `CellSample` are *close* cells (votes that
differ, or a score near the threshold), and the rest are as many passed as failed ones. Each of these strata is sampled at random, and each
cell counts for as many as its stratum has for one labelled cell (Horvitz and Thompson), so that the rates are those of all cells.
The sample follows from the run, its size and its seed alone: nothing on the sheet that people fill in tells them a cell's verdict.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import Field

from mlflow_adk_eval.errors import InputError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset.models import Strict
from mlflow_adk_eval.evalset.parse import read_text
from mlflow_adk_eval.results.outcomes import grouped, reaches

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


Stratum = tuple[str, str]
"""A criterion, and what its judge said: *close*, *passed* or *failed*."""

_NEAR = 0.1
"""How near to the threshold a score is close, as a share of the range."""
_TURNS = ("close", "passed", "close", "failed")
_TEXT = re.compile(r"(\d+):(\d+)")


class CellSample(Strict):
    """Which sample it is: the same run, size and seed give the same cells."""

    size: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)

    def __str__(self) -> str:
        """Return the sample as a sheet names it."""
        return f"{self.size}:{self.seed}"

    @staticmethod
    def read(text: str) -> CellSample | None:
        """Return the sample that a sheet names; ``None`` if it is none."""
        match = _TEXT.fullmatch(text)
        return CellSample(size=int(match[1]), seed=int(match[2])) if match and int(match[1]) else None

    def drawn(self, units: Units) -> dict[Unit, Stratum]:
        """Return the cells of the sample with their strata, in an order that tells nothing of them.

        Raises:
            UsageError: if it is too small for the strata that there are.
        """
        strata = _strata(units)
        ranked = grouped((strata[unit], unit) for unit in sorted(strata, key=self._rank))
        criteria = list(dict.fromkeys(name for name, _ in ranked))
        if not ranked:
            raise UsageError("there is nothing to label: these runs have no judged verdicts")
        if self.size < len(ranked):
            raise UsageError(
                f"a sample of {self.size}: wanted at least {len(ranked)}: one for each kind of verdict of {', '.join(criteria)}"
            )
        wanted = min(self.size, len(strata))
        counts = dict.fromkeys(ranked, 1)
        turns = cycle([(name, kind) for kind in _TURNS for name in criteria])
        while sum(counts.values()) < wanted:
            stratum = next(turns)
            if stratum in counts and counts[stratum] < len(ranked[stratum]):
                counts[stratum] += 1
        chosen = {unit: stratum for stratum, count in counts.items() for unit in ranked[stratum][:count]}
        return dict(sorted(chosen.items(), key=lambda item: self._rank(item[0])))

    def weights(self, units: Units, labelled: Collection[Unit]) -> dict[Unit, float]:
        """Return for how many cells each labelled one counts; those of a stratum without a label are counted by nobody."""
        strata = _strata(units)
        sizes, counts = (Counter(strata[unit] for unit in chosen if unit in strata) for chosen in (strata, labelled))
        return {unit: sizes[strata[unit]] / counts[strata[unit]] for unit in labelled if unit in strata}

    def unlabelled(self, units: Units, labelled: Collection[Unit], criterion: str) -> list[str]:
        """Return the kinds of verdicts on a criterion of which no cell is labelled."""
        strata = _strata(units)
        labelled_strata = {strata[unit] for unit in labelled if unit in strata}
        return [kind for name, kind in dict.fromkeys(strata.values()) if name == criterion and (name, kind) not in labelled_strata]

    def _rank(self, unit: Unit) -> bytes:
        return hashlib.sha256(f"{self.seed} {unit}".encode("utf-8", "replace")).digest()


def _strata(units: Units) -> dict[Unit, Stratum]:
    """Return the strata of the cells that can be drawn: those with a verdict on a whole criterion."""
    return {
        unit: (unit.criterion, _kind(judged))
        for unit, judged in units.judged.items()
        if unit.rubric_id is None and judged.judged and judged.passed is not None and unit.invocation_index is not None
    }


def _kind(judged: JudgeDecision) -> str:
    (low, high), score, threshold = judged.bounds, judged.score, judged.threshold
    near = score is not None and threshold is not None and low < score < high and abs(score - threshold) <= _NEAR * (high - low) < math.inf
    return "close" if near or judged.certainty < 1 else "passed" if judged.passed else "failed"
