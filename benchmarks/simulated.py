"""The section of the results on statistics: what is simulated, in which sizes, as tables."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import simulation
from machine import description
from populations import ALIKE, CHANGED, GATED, HARD, POPULATIONS, SPARSE, Pairs, Population
from report import Column, markdown, shown
from simulation import Cell, Planned, Rule

SIZES = (10, 20, 30, 50, 100, 200, 500)
REPETITIONS = 8_000
PAGE = Path(__file__).parents[1] / "docs" / "development" / "simulations.md"
_BEGIN, _END = "<!-- by benchmarks/run.py statistics -->", "<!-- until here -->"
_PLANS = tuple(Planned(pairs, power, discordant=pairs.name.startswith("pass")) for pairs in (*CHANGED, *SPARSE[1:]) for power in (0.8, 0.9))
COMPARED = (10, 30, 100)
"""The sizes for which there are other methods beside ours."""
_RULES = tuple(Rule(pairs, 0.05) for pairs in GATED)
_FEWER = 8
"""How many times fewer samples the bootstrap has, which is slow."""
_PAIRED = 4
"""How many times fewer samples comparisons of two versions have: their exact bound takes a few milliseconds."""


def section(repetitions: int, command: str) -> str:
    """Return the section of the results, measured with so many samples of each kind."""
    place, workers = description(), len(os.sched_getaffinity(0))
    found = simulation.measured(_cells(repetitions), workers)
    planned = {plan: plan.cases for plan in _PLANS}
    powers = simulation.measured([_power(plan, cases, repetitions) for plan, cases in planned.items()], workers)
    tables = {
        _ABOUT_MEANS: _table([*POPULATIONS, *HARD], simulation.covered, repetitions, found),
        _ABOUT_OTHERS: _methods(repetitions, found),
        _ABOUT_RATES: _rates(),
        _ABOUT_DIFFERENCES: _table([*ALIKE, *CHANGED, *SPARSE], simulation.covered_difference, repetitions // _PAIRED, found),
        _ABOUT_ALARMS: _alarms(repetitions, found),
        _ABOUT_GATE: _verdicts(repetitions, found),
        _ABOUT_POWER: _powers({plan: (cases, powers[_power(plan, cases, repetitions)]) for plan, cases in planned.items()}),
    }
    samples = {"repetitions": f"{repetitions:,}", "fewer": f"{repetitions // _FEWER:,}", "paired": f"{repetitions // _PAIRED:,}"}
    told = [f"{about.format(**samples)}\n\n{table}" for about, table in tables.items()]
    note = textwrap.fill(f"<sub>`{command}`, repetitions: {repetitions:,}. {place}</sub>", 110)
    return "\n\n".join(["## Statistics by simulation", *told, note])


def pasted(page: str, section: str) -> str:
    """Return a page in which the tables of `section` stand between the marks for them.

    >>> pasted(f"a\\n{_BEGIN}\\nold\\n{_END}\\nb", "## Title\\n\\nnew").split("\\n\\n")[1]
    'new'
    """
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _, _, tables = section.partition("\n\n")
    return f"{before}{_BEGIN}\n\n{tables}\n\n{_END}{after}"


_ABOUT_MEANS = (
    "How often the 95 % interval of a mean covers it, in %, by the number of cases. Each number rests on {repetitions} samples.\n"
    "A sample without an interval counts as a miss."
)
_ABOUT_OTHERS = (
    "The same for Student's interval and scipy's bias-corrected and accelerated bootstrap ({fewer} samples), with 10, 30 and 100 cases:"
)
_ABOUT_RATES = (
    "How often the 95 % interval of a pass rate covers it, in %, over the rates from 50 % to 98 %. This is computed, not simulated.\n"
    "Few cases allow few pass rates, so the coverage of any interval jumps from rate to rate:"
)
_ABOUT_DIFFERENCES = (
    "How often the 95 % interval of the difference between two versions on the same cases covers it, in %, in {paired} samples:"
)
_ABOUT_ALARMS = "How often an equally good version is found worse, in %, in {paired} samples. At most 5 are allowed:"
_ABOUT_GATE = (
    "Decisions of the gate for `max_drop: 0.05`, in %: passed/undecided/failed, in {paired} samples.\n"
    "It tests against no drop at all, so at most 5 fail if nothing has changed. Of versions that are worse by more than 5 points, at most 5 pass:"
)
_ABOUT_POWER = "How often a drop is detected, in %, with the planned number of cases, in {paired} samples:"


def _cells(repetitions: int) -> list[Cell]:
    fewer, paired = repetitions // _FEWER, repetitions // _PAIRED
    return [
        *(Cell(simulation.covered, one, cases, repetitions) for one in (*POPULATIONS, *HARD) for cases in SIZES),
        *(Cell(simulation.covered_by_student, one, cases, repetitions) for one in POPULATIONS for cases in COMPARED),
        *(Cell(simulation.covered_by_bootstrap, one, cases, fewer) for one in POPULATIONS for cases in COMPARED),
        *(Cell(simulation.covered_difference, one, cases, paired) for one in (*ALIKE, *CHANGED, *SPARSE) for cases in SIZES),
        *(Cell(simulation.alarms, one, cases, paired) for one in ALIKE for cases in SIZES),
        *(Cell(simulation.alarms_of_several, ALIKE[:5], cases, paired) for cases in SIZES),
        *(Cell(simulation.verdicts, rule, cases, paired) for rule in _RULES for cases in SIZES),
    ]


def _power(plan: Planned, cases: int, repetitions: int) -> Cell:
    return Cell(simulation.alarms, plan.pairs, cases, repetitions // _PAIRED)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _by_size(cell: Callable[[Any, int], str]) -> list[Column]:
    return [Column(str(cases), lambda row, cases=cases: cell(row, cases)) for cases in SIZES]


def _table(rows: Sequence[Population | Pairs], of: Callable[..., float], repetitions: int, found: dict[Cell, Any]) -> str:
    columns = _by_size(lambda row, cases: _percent(found[Cell(of, row, cases, repetitions)]))
    return markdown([Column("cases", lambda row: row.name), *columns], rows)


def _methods(repetitions: int, found: dict[Cell, Any]) -> str:
    methods = {"here": simulation.covered, "Student": simulation.covered_by_student, "bootstrap": simulation.covered_by_bootstrap}
    columns = [
        Column(
            f"{name}, {cases}",
            lambda row, of=of, cases=cases: _percent(
                found[Cell(of, row, cases, repetitions // (_FEWER if of is simulation.covered_by_bootstrap else 1))]
            ),
        )
        for cases in COMPARED
        for name, of in methods.items()
    ]
    return markdown([Column("", lambda row: row.name), *columns], POPULATIONS)


def _rates() -> str:
    methods = {"Wilson": "wilson", "Clopper and Pearson (`exact`)": "exact"}
    covered = {(name, cases): simulation.covered_rates(method, cases) for name, method in methods.items() for cases in SIZES}
    rows = [
        (name, word, of) for name in methods for word, of in (("mean", lambda all_: sum(all_) / len(all_)), ("least", min), ("most", max))
    ]
    columns = _by_size(lambda row, cases: _percent(row[2](covered[row[0], cases])))
    return markdown([Column("cases", lambda row: f"{row[0]}, {row[1]}"), *columns], rows)


def _alarms(repetitions: int, found: dict[Cell, Any]) -> str:
    single = [(pairs.name, simulation.alarms, pairs) for pairs in ALIKE]
    rows = [*single, ("any of the first five, by Holm's method", simulation.alarms_of_several, ALIKE[:5])]
    columns = _by_size(lambda row, cases: _percent(found[Cell(row[1], row[2], cases, repetitions // _PAIRED)]))
    return markdown([Column("cases", lambda row: row[0]), *columns], rows)


def _verdicts(repetitions: int, found: dict[Cell, Any]) -> str:
    def told(rule: Rule, cases: int) -> str:
        return "/".join(map(_percent, found[Cell(simulation.verdicts, rule, cases, repetitions // _PAIRED)]))

    return markdown([Column("cases", lambda rule: rule.pairs.name), *_by_size(told)], _RULES)


def _powers(found: dict[Planned, tuple[int, float]]) -> str:
    columns = [
        Column("", lambda plan: plan.pairs.name),
        Column("planned cases", lambda plan: shown(found[plan][0])),
        Column("planned power", lambda plan: _percent(plan.power)),
        Column("detected", lambda plan: _percent(found[plan][1])),
    ]
    return markdown(columns, list(found))
