"""What decisions come to over a year, by simulation: `python benchmarks/decisions.py [a b c d e] [--quick]`.

Each letter is a cell of the results: (a) judges that change, (b) candidates that come again and again, (c) false passes, and unchanged agents that
pass in the end, (d) what stopping early saves, (e) labels. `--quick` has few repetitions and writes nothing. Else the tables go into
decisions.md beside this script, and into docs/development/simulations.md.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deciding
from deciding import Asked, Judge, Submitted
from decisions_ppi import Labelled, covered
from machine import description
from populations import PASSING, beta_scores
from report import Column, markdown
from simulated import PAGE
from simulation import Cell, measured

RESULTS = Path(__file__).parent / "decisions.md"
_BEGIN, _END = "<!-- by benchmarks/decisions.py -->", "<!-- decisions until here -->"
SIZES = (20, 50, 200)
JUDGES = tuple(Judge(flips, anchors, 0.05) for anchors in (10, 25, 50, 100) for flips in (0.02, 0.05, 0.1))
CAPS = (200, 1000, 2000)
DROPS = (0.05, 0.1)
HISTORIES = 250
"""Runs until decided in each scenario."""


def main(argv: Sequence[str]) -> int:
    """Simulate what the arguments name, and return the exit code: 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks/decisions.py", description="What decisions come to over a year, by simulation.")
    parser.add_argument("cells", nargs="*", choices=[*CELLS, []], metavar="CELL", help=f"{', '.join(CELLS)}; all without any")
    parser.add_argument("--quick", action="store_true", help="few repetitions, and nothing is written")
    chosen = parser.parse_args(argv)
    sections = _sections(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    for name in chosen.cells or CELLS:
        start = time.monotonic()
        text = CELLS[name](50 if chosen.quick else 1)
        took = f"`python benchmarks/decisions.py {name}` took {time.monotonic() - start:.0f} seconds. {description()}"
        note = textwrap.fill(f"<sub>{took}</sub>", 110)
        sections[name] = f"{text}\n\n{note}"
        print(sections[name], flush=True)
    if not chosen.quick:
        tables = "\n\n".join(f"<!-- cell {name} -->\n\n{sections[name]}" for name in CELLS if name in sections)
        RESULTS.write_text(f"# Decisions over time\n\nMade by `python benchmarks/decisions.py`.\n\n{tables}\n", "utf-8")
        before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
        PAGE.write_text(f"{before}{_BEGIN}\n\n{tables}\n\n{_END}{rest.partition(_END)[2]}", "utf-8")
    return 0


def _sections(text: str) -> dict[str, str]:
    _, *found = re.split(r"^<!-- cell (\w) -->$", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(found[::2], found[1::2], strict=True)}


def _found(cells: Sequence[Cell]) -> dict[Cell, Any]:
    return measured(cells, len(os.sched_getaffinity(0)))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def judges(quick: int) -> str:
    """Return (a): judges that change, or do not."""
    times, alarms, looks = 60 // min(quick, 30), 400 // (quick * 5 if quick > 1 else 1), 100 // min(quick, 10)
    some = JUDGES if quick == 1 else JUDGES[:2]
    steady = [judge._replace(change=0.0) for judge in some]
    found = _found(
        [Cell(deciding.changes_found, judge, 0, times) for judge in some]
        + [Cell(deciding.false_alarms, judge, looks, alarms) for judge in steady]
    )
    columns = [
        Column("anchors in each run", lambda judge: str(judge.anchors)),
        Column("votes that flip, %", lambda judge: f"{100 * judge.flips:.0f}"),
        Column("changes found", lambda judge: f"{found[Cell(deciding.changes_found, judge, 0, times)]['found']} of {times}"),
        Column("runs until then (median)", lambda judge: f"{found[Cell(deciding.changes_found, judge, 0, times)]['median']:.0f}"),
        Column("blamed before it is found, %", lambda judge: _percent(found[Cell(deciding.changes_found, judge, 0, times)]["blamed"])),
        Column("blamed after, %", lambda _: "0.0"),
        Column("false alarms, %", lambda judge: _percent(found[Cell(deciding.false_alarms, judge._replace(change=0.0), looks, alarms)])),
    ]
    passed, failed = deciding.misjudged(PASSING[0], 200, 4000 // quick)
    return (
        "### (a) Judges that change\n\n"
        "A judge votes once on some answers of earlier runs, which had five votes each. After five runs it becomes 5 points more\n"
        f"lenient or stricter, each in half of {times} histories. A change counts as found if `drift_of` says so within {deciding.WITHIN} runs, and not\n"
        "before. Blamed: how often a run with 200 cases fails although only the judge changed, and became stricter. Once the change\n"
        "is found, `max_drift` makes such decisions *undecided*, so nobody is blamed. False alarms: how often a judge that never\n"
        f"changes is said to have changed in {looks} looks, in {alarms} histories.\n\n"
        f"{markdown(columns, some)}\n\n"
        f"Without anchors, a candidate that is 5 points worse passed in {_percent(passed)} % of the cases where the judge had become 5 points more\n"
        f"lenient, and an equal one failed in {_percent(failed)} % where it had become stricter (Beta(4, 1), 200 cases)."
    )


def submissions(quick: int) -> str:
    """Return (b): candidates that come again and again."""
    histories = 1000 // quick
    sizes = SIZES if quick == 1 else SIZES[:1]
    rows = [(Submitted(population, kept), cases) for population in PASSING for cases in sizes for kept in (0.0, 0.9)]
    dry = [(Submitted(population, 0.0, 5), cases) for population in PASSING[:2] for cases in sizes]
    found = _found([Cell(deciding.promoted, of, cases, histories if of.runs == 1 else histories // 4) for of, cases in rows + dry])

    def share(name: str) -> Any:
        return lambda row: _percent(found[Cell(deciding.promoted, *row, histories if row[0].runs == 1 else histories // 4)][name])

    who = [Column("cases", lambda row: row[0].population.name), Column("number", lambda row: str(row[1]))]
    kept = Column("kept, %", lambda row: f"{100 * row[0].kept:.0f}")
    before = [Column("one, before", share("one, before")), Column("any of 20, before", share("before"))]
    now = [Column("one", share("one")), Column("any of 20, nothing spent", share("all"))]
    spent = [
        Column("any of 20, `spend: 20`", share("20")),
        Column("any of 100, `spend: 100`", share("100")),
        Column("any of 100, `spend: unlimited`", share("unlimited")),
    ]
    allowed = [Column("any of 20, `spend: 20`", share("20")), Column("any of 20, `spend: 100`", share("100 after 20"))]
    return (
        "### (b) Candidates that come again and again\n\n"
        "Candidates that are each exactly 5 points worse than the champion are submitted one after the other, on the same cases and\n"
        f"against the same results of the champion. How often any of them is promoted with `max_drop: 0.05`, in %, in {histories:,} histories.\n"
        "*Kept*: in how many cases each does as the one before it. *Before*: with the rule that no worse case among 20 is enough.\n\n"
        f"{markdown([*who, kept, *before, *now, *spent], rows)}\n\n"
        "Dry runs are not counted. If each submission is the best of five, only a `spend` that allows for them holds:\n\n"
        f"{markdown([*who, *allowed], dry)}"
    )


def passing(quick: int) -> str:
    """Return (c): false passes, and unchanged agents that pass in the end."""
    times, histories = 10_000 // quick, 500 // quick
    sizes = SIZES if quick == 1 else SIZES[:1]
    scores = [beta_scores(drop) for drop in DROPS]
    rows: list[tuple[Any, float]] = [(population, drop) for drop in DROPS for population in PASSING]
    cells = {(name, drop, cases): Cell(deciding.said, Asked(name, drop, drop), cases, times) for name, drop in rows for cases in sizes}
    for pairs, drop in zip(scores, DROPS, strict=True):
        rows.append((pairs, drop))
        cells |= {(pairs, drop, cases): Cell(deciding.said, Asked(pairs, drop, drop), cases, times // 4) for cases in sizes}
    caps = CAPS if quick == 1 else CAPS[:1]
    ends = {
        (one, drop, cap): Cell(deciding.until_decided, Asked(one, drop, 0.05), cap, histories)
        for one in PASSING
        for drop in (0.0, 0.05)
        for cap in caps
    }
    found = _found([*cells.values(), *ends.values()])
    columns = [
        Column("cases", lambda row: row[0].name),
        Column("`max_drop`", lambda row: f"{row[1]:g}"),
        *(Column(f"{cases} cases", lambda row, cases=cases: _percent(found[cells[row[0], row[1], cases]]["passed"])) for cases in sizes),
    ]
    until = [
        Column("cases", lambda one: one.name),
        *(Column(f"unchanged, up to {cap:,}", lambda one, cap=cap: _percent(found[ends[one, 0.0, cap]]["passed"])) for cap in caps),
        *(Column(f"cases taken, up to {cap:,}", lambda one, cap=cap: f"{found[ends[one, 0.0, cap]]['cases']:.0f}") for cap in caps[-1:]),
        *(
            Column(f"5 points worse, up to {cap:,}", lambda one, cap=cap: _percent(found[ends[one, 0.05, cap]]["passed"]))
            for cap in caps[-1:]
        ),
    ]
    return (
        "### (c) False passes, and passing in the end\n\n"
        f"How often a version passes that is worse by exactly `max_drop`, in %, in {times:,} samples ({times // 4:,} of scores):\n\n"
        f"{markdown(columns, rows)}\n\n"
        "How often a version passes `max_drop: 0.05` with `run --until-decided` and one run of each case, in %, by the number of cases that\n"
        f"there are, in {histories:,} histories:\n\n"
        f"{markdown(until, PASSING)}"
    )


def sequential(quick: int) -> str:
    """Return (d): what stopping early saves."""
    most = dict(zip(PASSING, (3000, 1200, 3000, 1200, 500), strict=True))
    rows = PASSING if quick == 1 else PASSING[4:]
    found = _found([Cell(deciding.saved, one, most[one], HISTORIES // quick) for one in rows])

    def of(one: Any) -> dict[str, float]:
        return found[Cell(deciding.saved, one, most[one], HISTORIES // quick)]

    columns = [
        Column("cases", lambda one: one.name),
        Column("at most", lambda one: f"{most[one]:,}"),
        Column("power, %", lambda one: _percent(of(one)["power"])),
        Column("error, %", lambda one: _percent(of(one)["error"])),
        Column("fixed number", lambda one: f"{of(one)['fixed']:,.0f}"),
        *(Column(name, lambda one, name=name: f"{of(one)[name]:,.0f}") for name in deciding.SCENARIOS),
        Column("mean ÷ fixed, %", lambda one: _percent(of(one)["share"])),
        Column("most ÷ fixed, %", lambda one: _percent(max(of(one)[name] for name in deciding.SCENARIOS) / of(one)["fixed"])),
    ]
    mean = sum(of(one)["share"] for one in rows) / len(rows)
    return (
        "### (d) What stopping early saves\n\n"
        "Cases that `run --until-decided` evaluates on average with `max_drop: 0.05`, by how the version differs, and the fixed number of cases\n"
        "with which an unchanged version passes and one that is 10 points worse fails at least as often (power). Error: the larger share of\n"
        "versions 5 points worse that pass and of unchanged ones that fail.\n\n"
        f"{markdown(columns, rows)}\n\n"
        f"On average over the populations and the three kinds of versions: {_percent(mean)} % of the fixed number."
    )


def labels(quick: int) -> str:
    """Return (e): intervals of the pass rate that people would give."""
    draws = 500 // quick
    rows = [
        Labelled(rate, right, few, judged)
        for few, judged in ((60, 600), (200, 2000))
        for rate in (0.5, 0.8, 0.9)
        for right in ((0.95, 0.9), (0.85, 0.8))
    ][: 1 if quick > 1 else None]
    found = _found([Cell(covered, one, one.judged, draws) for one in rows])

    def of(one: Labelled, name: str) -> float:
        return found[Cell(covered, one, one.judged, draws)][name]

    columns = [
        Column("labels", lambda one: f"{one.labels} of {one.judged:,}"),
        Column("pass rate, %", lambda one: f"{100 * one.rate:.0f}"),
        Column("judge's sensitivity, %", lambda one: f"{100 * one.right[0]:.0f}"),
        Column("specificity, %", lambda one: f"{100 * one.right[1]:.0f}"),
        Column("both there, %", lambda one: _percent(of(one, "both"))),
        Column("PPI++ covers, %", lambda one: _percent(of(one, "covered"))),
        Column("Rogan–Gladen covers, %", lambda one: _percent(of(one, "other_covered"))),
        Column("width", lambda one: f"{of(one, 'width'):.3f}"),
        Column("width of Rogan–Gladen's", lambda one: f"{of(one, 'other_width'):.3f}"),
        Column("ratio, %", lambda one: _percent(of(one, "width") / of(one, "other_width"))),
    ]
    ratio = sum(of(one, "width") / of(one, "other_width") for one in rows) / len(rows)
    return (
        "### (e) Fewer labels\n\n"
        "Intervals at 95 % of the pass rate that people would give, from all verdicts of a judge and the labels of a random sample of the same\n"
        f"answers, in {draws:,} samples. Both are to cover the rate of the population. Rogan and Gladen's needs more labels, and there is\n"
        "none in some samples; the others count.\n\n"
        f"{markdown(columns, rows)}\n\n"
        f"On average, PPI++ is {_percent(ratio)} % as wide."
    )


CELLS = {"a": judges, "b": submissions, "c": passing, "d": sequential, "e": labels}

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
