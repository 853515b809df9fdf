"""Simulated weeks of production under the alarms of `traces watch`: ``python benchmarks/watching.py``, in about two minutes.

A look draws 20 of 400 conversations as `production.draw` does: 15 at random, and 5 from the strata with errors, thumbs-down, long times and high costs,
which hold 15 % of all. In one half of the rows conversations there fail as often as others ("alike"), in the other half four times as often ("telling").
`production.alarms` does the rest. Counted are the conversations that were drawn until the alarm, those not drawn at random included.

- Without a change: how many of the watches raise an alarm within 200 looks.
- A drop of 10 points from look 1 or 50 on: after how many conversations it is found, of a computed and of a judged criterion.
- A judge that becomes stricter at look 50 while the agent stays the same: what is reported within 100 looks. A share of conversations is judged anew
  each time (`noise`), the others always alike. 250 earlier conversations are judged again.

``--write`` writes the tables into docs/explanation/statistics.md, ``--quick`` makes few watches.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from mlflow_adk_eval.production.alarms import ALPHA, Drawn, Watched

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "statistics.md"
BEGIN, END = "<!-- watching: written by benchmarks/watching.py --write -->", "<!-- end of watching -->"
CONVERSATIONS, DRAWN, AT_RANDOM, EARLIER = 400, 20, 15, 250
STRATA = (8, 12, 20, 20, 340)
"""The conversations with errors, with a thumbs-down, slow ones, expensive ones, and the rest."""
LEVELS, KINDS = (0.9, 0.95), (("alike", 1.0), ("telling", 4.0))


def drawn_from(rng: random.Random) -> list[int]:
    """Return how many conversations of each stratum a look draws."""
    places = rng.sample(range(CONVERSATIONS), AT_RANDOM)
    ends = [sum(STRATA[: number + 1]) for number in range(len(STRATA))]
    counts = Counter(next(number for number, end in enumerate(ends) if place < end) for place in places)
    drawn, turn = [counts[number] for number in range(len(STRATA))], 0
    while sum(drawn) < DRAWN:
        if drawn[turn] < STRATA[turn]:
            drawn[turn] += 1
        turn = (turn + 1) % (len(STRATA) - 1)
    return drawn


def look(rng: random.Random, passing: float, telling: float) -> list[Drawn]:
    """Return what a look sees where this share of all conversations passes."""
    worst = sum(STRATA[:-1]) / CONVERSATIONS
    rest = (1 - passing) / (1 + worst * (telling - 1))
    failing = [*[min(rest * telling, 1.0)] * (len(STRATA) - 1), rest]
    return [
        Drawn(found, drawn, sum(rng.random() < failed for _ in range(drawn)))
        for found, drawn, failed in zip(STRATA, drawn_from(rng), failing, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Week:
    """What happens in production."""

    level: float
    telling: float = 1.0
    change_at: int = 1
    drop: float = 0.0
    """Of the agent."""
    stricter: float = 0.0
    """The judge: the share of conversations that do not pass any more."""
    judged: bool = False
    noise: float = 0.05
    keys: int = 1
    looks: int = 200


def outcome(week: Week, seed: int) -> tuple[str, int]:
    """Return what the first alarm is about, empty for none, and at which look it comes."""
    rng = random.Random(seed)
    watched = Watched(criterion="", level=week.level, judged=week.judged)
    before = [(rng.random() < week.level, rng.random() < week.noise) for _ in range(EARLIER)]
    for number in range(1, week.looks + 1):
        changed = number >= week.change_at
        passing = week.level - (week.drop + week.stricter if changed else 0.0)
        watched = watched.after(look(rng, passing, week.telling))
        earlier = min(EARLIER, (number - 1) * DRAWN)
        if week.judged and watched.worth_asking(week.keys, earlier):
            lost = week.stricter / week.level if changed else 0.0
            anew = [(rng.random() < week.level if noisy else old) and rng.random() >= lost for old, noisy in before[:earlier]]
            pairs = zip(before, anew, strict=False)
            watched = watched.judged_again(week.keys, [float(new) - float(old) for (old, _), new in pairs])
        elif not week.judged and watched.suspected(week.keys):
            return "agent", number
        if watched.cause:
            return watched.cause, number
    return "", week.looks


def watches(week: Week, count: int) -> list[tuple[str, int]]:
    """Return the outcomes of so many watches."""
    return [outcome(week, seed) for seed in range(count)]


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)])


def false_alarms(count: int) -> Iterator[Sequence[str]]:
    for level in LEVELS:
        for name, telling in KINDS:
            for judged, number in ((False, count), (True, count // 20)):
                found = watches(Week(level=level, telling=telling, judged=judged), number)
                share = sum(cause == "agent" for cause, _ in found) / number
                yield f"{level:.0%}", name, "judged" if judged else "computed", f"{number:,}", f"{share:.1%}"


def drops(count: int) -> Iterator[Sequence[str]]:
    for level in LEVELS:
        for name, telling in KINDS:
            for judged, keys, number in ((False, 1, count), (False, 4, count), (True, 1, count // 5)):
                cells = []
                for at in (1, 50):
                    week = Week(level=level, telling=telling, change_at=at, drop=0.1, judged=judged, keys=keys, looks=at + 99)
                    found = [place - at + 1 for cause, place in watches(week, number) if cause == "agent" and place >= at]
                    cells += [f"{median(found) * DRAWN:.0f}", f"{len(found) / number:.0%}"]
                yield f"{level:.0%}", name, "judged" if judged else "computed", str(keys), *cells


def judges(count: int) -> Iterator[Sequence[str]]:
    for level in LEVELS:
        for stricter in (0.05, 0.1, 0.2):
            for noise in (0.05, 0.2):
                week = Week(level=level, change_at=50, stricter=stricter, judged=True, noise=noise, looks=149)
                found = Counter(cause for cause, _ in watches(week, count))
                yield (
                    f"{level:.0%}",
                    f"{stricter:.0%}",
                    f"{noise:.0%}",
                    *(f"{found[cause] / count:.1%}" for cause in ("agent", "judge", "")),
                )


def page(count: int) -> str:
    """Return the tables."""
    return "\n\n".join(
        [
            f"Alarms about an agent that meets its level, within 200 looks (at most {ALPHA:.0%} is promised):",
            table(("Level", "Strata", "Criterion", "Watches", "False alarms"), false_alarms(count)),
            "Conversations drawn until a drop of 10 points is found (median), and how often it is found within 100 looks:",
            table(
                ("Level", "Strata", "Criterion", "Watched", "From look 1", "Found", "From look 50", "Found"),
                drops(count // 4),
            ),
            "A judge becomes stricter at look 50, the agent stays the same. Reported within 100 looks:",
            table(("Level", "Stricter by", "Noise", "The agent", "The judge", "Not known yet"), judges(max(count // 20, 1))),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the tables into docs/explanation/statistics.md")
    parser.add_argument("--quick", action="store_true", help="few watches, to see that it runs")
    arguments = parser.parse_args()
    found = page(40 if arguments.quick else 2000)
    print(found, flush=True)
    if arguments.write:
        text = PAGE.read_text("utf-8")
        PAGE.write_text(re.sub(rf"{re.escape(BEGIN)}.*{re.escape(END)}", f"{BEGIN}\n\n{found}\n\n{END}", text, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
