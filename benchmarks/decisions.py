"""What decisions come to over a year, by simulation: `python benchmarks/decisions.py [a b c d e] [--quick]`.

Each letter is a cell of the results: (a) judges that change, (b) candidates that come again and again, (c) false passes, and unchanged agents that
pass in the end, (d) what stopping early saves, (e) labels. `--quick` has few repetitions and writes nothing. Else the tables go into
decisions.md beside this script, and into docs/development/simulations.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import deciding
import numpy as np
from deciding import Asked, Followed, Judge, Submitted
from decisions_ppi import Labelled, covered
from machine import description
from populations import PASSING, beta_scores
from report import Column, markdown
from simulated import PAGE
from simulation import Cell, measured

RESULTS = Path(__file__).parent / "decisions.md"
_BEGIN, _END = "<!-- by benchmarks/decisions.py -->", "<!-- decisions until here -->"
SIZES = (20, 50, 200)
FLIPS, CHANGES, MOST_ANCHORS = (0.02, 0.05, 0.1), (0.05, 0.1, 0.2), 50
CAPS = (1000, 2000)
DROPS = (0.05, 0.1)
HISTORIES = 500
"""Runs until decided in each scenario."""


def main(argv: Sequence[str]) -> int:
    """Simulate what the arguments name, and return the exit code: 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks/decisions.py", description="What decisions come to over a year, by simulation.")
    parser.add_argument("cells", nargs="*", choices=[*CELLS, []], metavar="CELL", help=f"{', '.join(CELLS)}; all without any")
    parser.add_argument("--quick", action="store_true", help="few repetitions, and nothing is written")
    chosen = parser.parse_args(argv)
    sections = _sections(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    commit = _git("rev-parse", "--short", "HEAD") + (" with changes" if _git("status", "--porcelain", "--", "*.py") else "")
    missed = 0
    for name in chosen.cells or CELLS:
        start = time.monotonic()
        title, text, goals = CELLS[name](50 if chosen.quick else 1)
        took = f"`python benchmarks/decisions.py {name}` took {time.monotonic() - start:.0f} seconds, at commit"
        note = textwrap.fill(f"<sub>{took} {commit}. {description()}</sub>", 110)
        judged = "\n".join(f"- {'Met' if goal.met else '**Missed**'}: {goal.wanted}. Found: {goal.found}." for goal in goals)
        missed += sum(not goal.met for goal in goals)
        sections[name] = f"### ({name}) {title}\n\n{judged}\n\n{text}\n\n{note}"
        print(sections[name], flush=True)
    if not chosen.quick:
        tables = "\n\n".join(f"<!-- cell {name} -->\n\n{sections[name]}" for name in CELLS if name in sections)
        RESULTS.write_text(f"# Decisions over time\n\nMade by `python benchmarks/decisions.py`.\n\n{tables}\n", "utf-8")
        before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
        PAGE.write_text(f"{before}{_BEGIN}\n\n{tables}\n\n{_END}{rest.partition(_END)[2]}", "utf-8")
    return int(missed > 0)


def _git(*arguments: str) -> str:
    """Return what git says of the project; empty where there is no repository."""
    command = ["git", "-C", str(RESULTS.parent.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


class Goal(NamedTuple):
    """What a cell is to show."""

    met: bool
    wanted: str
    found: str


Shown = tuple[str, str, list[Goal]]
"""The title of a cell, its tables and its goals."""


def _sections(text: str) -> dict[str, str]:
    _, *found = re.split(r"^<!-- cell (\w) -->$", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(found[::2], found[1::2], strict=True)}


def _found(cells: Sequence[Cell]) -> dict[Cell, Any]:
    return measured(cells, len(os.sched_getaffinity(0)))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def judges(quick: int) -> Shown:
    """Return (a): judges that change, or do not."""
    each, few, alarms, runs = (10, 10, 2000, 100) if quick == 1 else (2, 1, 2, 20)
    flips = FLIPS if quick == 1 else FLIPS[1:2]
    signs = (-1, 1)
    changed = {
        (anchors, flip, size, sign): Cell(
            deciding.changes_found, Judge(flip, anchors, sign * size), 0, each if anchors == MOST_ANCHORS else few
        )
        for anchors in (25, MOST_ANCHORS)
        for flip in flips
        for size in CHANGES
        for sign in signs
    }
    steady = {flip: Cell(deciding.false_alarms, Judge(flip, 10), runs, alarms) for flip in flips}
    found = _found([*changed.values(), *steady.values()])

    def of(anchors: int, flip: float, sizes: Sequence[float] = CHANGES, turns: Sequence[int] = signs, most: int = few) -> list[Followed]:
        return [one for size in sizes for sign in turns for one in found[changed[anchors, flip, size, sign]][:most]]

    def count(some: Sequence[Followed]) -> str:
        return f"{sum(one.wait is not None for one in some)} of {len(some)}"

    def until(some: Sequence[Followed]) -> str:
        return f"{float(np.median([one.wait or deciding.WITHIN + 1 for one in some])):.0f}"

    def wrong(some: Sequence[Followed], when: str) -> str:
        verdicts = [bad for one in some for bad in getattr(one, when)]
        return f"{sum(verdicts)} of {len(verdicts)}"

    pooled = [(anchors, flip) for anchors in (25, MOST_ANCHORS) for flip in flips]
    overall = [
        Column("anchors in each run", lambda row: str(row[0])),
        Column("votes that flip, %", lambda row: f"{100 * row[1]:.0f}"),
        Column("changes found", lambda row: count(of(*row))),
        Column("runs until then (median)", lambda row: until(of(*row))),
        Column("false alarms in 100 looks, 10 anchors, %", lambda row: _percent(found[steady[row[1]]])),
    ]
    rows = [(flip, size) for flip in flips for size in CHANGES]
    several = [
        Column("votes that flip, %", lambda row: f"{100 * row[0]:.0f}"),
        Column("points", lambda row: f"{100 * row[1]:.0f}"),
        *(
            column
            for word, sign in zip(("stricter", "more lenient"), signs, strict=True)
            for column in (
                Column(f"{word}: found", lambda row, sign=sign: count(of(MOST_ANCHORS, row[0], [row[1]], [sign], each))),
                Column("runs until then", lambda row, sign=sign: until(of(MOST_ANCHORS, row[0], [row[1]], [sign], each))),
                Column("wrong verdicts before", lambda row, sign=sign: wrong(of(MOST_ANCHORS, row[0], [row[1]], [sign], each), "before")),
                Column("and after", lambda row, sign=sign: wrong(of(MOST_ANCHORS, row[0], [row[1]], [sign], each), "after")),
            )
        ),
    ]
    passed, failed = deciding.misjudged(PASSING[0], 200, 4000 // quick)
    hits = {flip: [one.wait is not None for one in of(MOST_ANCHORS, flip)] for flip in flips}
    stricter = [one for flip in flips for one in of(MOST_ANCHORS, flip, turns=[-1], most=each)]
    blamed, blamed_before = [bad for one in stricter for bad in one.after], [bad for one in stricter for bad in one.before]
    least, most = 0.95 * len(next(iter(hits.values()))), max(found[cell] for cell in steady.values())
    return (
        "Judges that change",
        (
            "A judge votes once on some answers of earlier runs, which had five votes each. After five runs it becomes 5, 10 or 20 points more\n"
            f"lenient or stricter. A change counts as found if `changes_of` says so within {deciding.WITHIN} runs, and not before. The changes of the first\n"
            "table are as many of each size and direction:\n\n"
            f"{markdown(overall, pooled)}\n\n"
            f"By size and direction, with {MOST_ANCHORS} anchors in each run. A verdict is wrong if an equal candidate failed because the judge became\n"
            "stricter, or one 5 points worse passed because it became more lenient. Each candidate has 200 cases and is compared with a run from\n"
            "before the change. *Before*: in the runs until the change is found. *After*: with `max_drift`, in the run that finds it and in the\n"
            "last one.\n\n"
            f"{markdown(several, rows)}\n\n"
            f"Without anchors, a candidate that is 5 points worse passed in {_percent(passed)} % of the cases where the judge had become 5 points more\n"
            f"lenient, and an equal one failed in {_percent(failed)} % where it had become stricter (Beta(4, 1), 200 cases)."
        ),
        [
            Goal(
                all(sum(some) >= least for some in hits.values()),
                f"at least 57 of 60 changes of 5 points or more found within {deciding.WITHIN} runs, with {MOST_ANCHORS} anchors in each",
                ", ".join(f"{sum(some)} of {len(some)} where {100 * flip:.0f} % of the votes flip" for flip, some in hits.items()),
            ),
            Goal(not any(blamed), "no equal candidate fails once a change is found, with `max_drift`", f"{sum(blamed)} of {len(blamed)}"),
            Goal(
                not any(blamed_before),
                "nor before that",
                f"{sum(blamed_before)} of {len(blamed_before)}; until then only `max_apart` helps",
            ),
            Goal(most <= 0.05, f"at most 5 % false alarms over {runs} looks", f"at most {_percent(most)} % of {alarms:,} histories"),
        ],
    )


def submissions(quick: int) -> Shown:
    """Return (b): candidates that come again and again."""
    histories = 1000 // quick
    sizes = SIZES if quick == 1 else SIZES[:1]
    rows = [(Submitted(population, kept), cases) for population in PASSING for cases in sizes for kept in (0.0, 0.9)]
    dry = [(Submitted(population, 0.0, 5), cases) for population in PASSING[:2] for cases in sizes]
    found = _found([Cell(deciding.promoted, of, cases, histories) for of, cases in rows + dry])

    def share(name: str) -> Any:
        return lambda row: _percent(found[Cell(deciding.promoted, row[0], row[1], histories)][name])

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
    held = max(found[Cell(deciding.promoted, of, cases, histories)][name] for of, cases in rows for name in ("20", "100", "unlimited"))
    return (
        "Candidates that come again and again",
        (
            "Candidates that are each exactly 5 points worse than the champion are submitted one after the other, on the same cases and\n"
            f"against the same results of the champion. How often any of them is promoted with `max_drop: 0.05`, in %, in {histories:,} histories.\n"
            "*Kept*: in how many cases each does as the one before it. *Before*: with the rule that no worse case among 20 is enough.\n\n"
            f"{markdown([*who, kept, *before, *now, *spent], rows)}\n\n"
            "Dry runs are not counted. If each submission is the best of five, only a `spend` that allows for them holds:\n\n"
            f"{markdown([*who, *allowed], dry)}"
        ),
        [
            Goal(
                held <= 0.05,
                "any of 20, and of 100, adaptively chosen submissions 5 points worse is promoted in at most 5 %, with `spend`",
                f"at most {_percent(held)} %",
            )
        ],
    )


def passing(quick: int) -> Shown:
    """Return (c): false passes, and unchanged agents that pass in the end."""
    times, histories = 10_000 // quick, HISTORIES // quick
    of_scores = times // 10
    sizes = SIZES if quick == 1 else SIZES[:1]
    rows: list[tuple[Any, float]] = [(population, drop) for drop in DROPS for population in PASSING]
    cells = {(name, drop, cases): Cell(deciding.said, Asked(name, drop, drop), cases, times) for name, drop in rows for cases in sizes}
    scores = beta_scores(0.05)
    rows.append((scores, 0.05))
    cells |= {(scores, 0.05, cases): Cell(deciding.said, Asked(scores, 0.05, 0.05), cases, of_scores) for cases in sizes}
    caps = CAPS if quick == 1 else (200,)
    ends = {
        (one, drop, cap): Cell(deciding.until_decided, Asked(one, drop, 0.05), cap, histories)
        for one in PASSING
        for drop in (0.0, 0.05)
        for cap in caps
    }
    found = _found([*cells.values(), *ends.values()])
    most = max(found[cell]["passed"] for cell in cells.values())
    ended = max(found[ends[one, 0.05, caps[-1]]]["passed"] for one in PASSING)
    least = min(found[ends[one, 0.0, caps[-1]]]["passed"] for one in PASSING)
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
        "False passes, and passing in the end",
        (
            f"How often a version passes that is worse by exactly `max_drop`, in %, in {times:,} samples ({of_scores:,} of scores):\n\n"
            f"{markdown(columns, rows)}\n\n"
            "How often a version passes `max_drop: 0.05` with `run --until-decided` and one run of each case, in %, by the number of cases that\n"
            f"there are, in {histories:,} histories:\n\n"
            f"{markdown(until, PASSING)}"
        ),
        [
            Goal(most <= 0.05, "at most 5 % false passes at the stated drop in each cell", f"at most {_percent(most)} %"),
            Goal(ended <= 0.05, "at most 5 % false passes with `--until-decided` as well", f"at most {_percent(ended)} %"),
            Goal(
                least >= 0.8,
                f"at least 80 % of unchanged agents pass in the end, with up to {caps[-1]:,} cases",
                f"at least {_percent(least)} % in each population",
            ),
        ],
    )


def sequential(quick: int) -> Shown:
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
        "What stopping early saves",
        (
            "Cases that `run --until-decided` evaluates on average with `max_drop: 0.05`, by how the version differs, and the fixed number of cases\n"
            "with which an unchanged version passes and one that is 10 points worse fails at least as often (power),\n"
            "or in 99 %. Error: the larger share of versions 5 points worse that pass and of unchanged ones that fail.\n\n"
            f"{markdown(columns, rows)}\n\n"
            f"On average over the populations and the three kinds of versions: {_percent(mean)} % of the fixed number."
        ),
        [
            Goal(
                mean <= 0.6,
                "at most 60 % of the cases of the fixed design, on average over populations and kinds of versions, at equal error and power",
                f"{_percent(mean)} % on average, {_percent(max(of(one)['share'] for one in rows))} % in the worst population",
            )
        ],
    )


def labels(quick: int) -> Shown:
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
        Column("PPI++ covers, %", lambda one: _percent(of(one, "ours covers"))),
        Column("Rogan–Gladen covers, %", lambda one: _percent(of(one, "other covers"))),
        Column("Rogan–Gladen there, %", lambda one: _percent(of(one, "other there"))),
        Column("width", lambda one: f"{of(one, 'ours width'):.3f}"),
        Column("width of Rogan–Gladen's", lambda one: f"{of(one, 'other width'):.3f}"),
        Column("ratio, %", lambda one: _percent(of(one, "ours width") / of(one, "other width"))),
    ]
    ratios, covers = [of(one, "ours width") / of(one, "other width") for one in rows], [of(one, "ours covers") for one in rows]
    ratio, cover, absent = sum(ratios) / len(rows), sum(covers) / len(rows), sum(draws * (1 - of(one, "other there")) for one in rows)
    return (
        "Fewer labels",
        (
            "Intervals at 95 % of the pass rate that people would give, from all verdicts of a judge and the labels of a random sample of the same\n"
            f"answers, in {draws:,} samples. Both are to cover the rate of the population. Rogan and Gladen's needs more labels: in {absent:,.0f} of\n"
            f"{draws * len(rows):,} samples there is none, and these do not count in widths and ratio. The widths are means.\n\n"
            f"{markdown(columns, rows)}\n\n"
            f"On average, PPI++ covers the rate in {_percent(cover)} % and is {_percent(ratio)} % as wide."
        ),
        [
            Goal(
                cover >= 0.95,
                "PPI++ covers at least 95 %, on average over the rows",
                f"{_percent(cover)} %, at least {_percent(min(covers))} %",
            ),
            Goal(
                ratio <= 0.7,
                "at most 70 % as wide as Rogan–Gladen's at equal labels, on average over the rows",
                f"{_percent(ratio)} %, from {_percent(min(ratios))} to {_percent(max(ratios))} %",
            ),
        ],
    )


CELLS = {"a": judges, "b": submissions, "c": passing, "d": sequential, "e": labels}

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
