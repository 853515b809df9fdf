"""A comparison of two runs as one HTML file, which needs nothing else and runs no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup

from mlflow_adk_eval.analysis.comparison.compare import FLIPS, CaseChange, Comparison, JudgeCost
from mlflow_adk_eval.analysis.comparison.delta import Delta
from mlflow_adk_eval.analysis.comparison.differences import Difference
from mlflow_adk_eval.report.compare_words import (
    HEADINGS,
    cases_told,
    chance_told,
    counts_told,
    headline,
    interval_told,
    name_of,
    pairing_told,
    value_told,
    verdict_on,
)
from mlflow_adk_eval.report.html.compare_cases import CaseView, case_view
from mlflow_adk_eval.report.html.page import policy, source, template
from mlflow_adk_eval.report.html.text import Words, on_one_line, rationale_html, words_for
from mlflow_adk_eval.report.html.turns import Tools
from mlflow_adk_eval.report.sentences import counted

MOST_TURNS = 2_000
"""As many turns are shown, of flipped cases first."""
_RATIONALES = 10_000
_MOST_NOTICES = 20
HALF_WIDTH = 56
"""Of the picture of an interval, on either side of zero."""


def compare_html(found: Comparison, *, secrets: Mapping[str, str], every: bool = False) -> str:
    """Return a comparison as one HTML page, in which no text of others is anything but text.

    Args:
        found: the comparison.
        secrets: what must not be written down, each with what stands in its place.
        every: whether to show also the cases with the same verdict and the same scores.
    """
    words = words_for(secrets)
    style = source("report.css") + source("compare.css")
    groups, left_out = _groups(found, words, every=every)
    return template("compare.html.j2").render(
        policy=policy(style),
        style=Markup(style),  # noqa: S704 - files of this package
        title=on_one_line(words(found.before.name)) + " → " + on_one_line(words(found.after.name)),
        headline=headline(found),
        counts=list(counts_told(found).items()),
        compared=counted(len(found.cases), "case"),
        warnings=list(_warnings(found, words)),
        facts=list(_facts(found, words)),
        differences=[_difference(one, words) for one in found.differences if not one.intended],
        notes=[on_one_line(words(note)) for note in pairing_told(found)],
        confidence=f"{found.confidence:.3g}",
        percent=f"{100 * found.confidence:g}",
        deciding=[_delta(delta, found.confidence, words) for delta in found.deltas if delta.decides],
        information=[_delta(delta, found.confidence, words) for delta in found.deltas if not delta.decides],
        judging=list(_judging(found)),
        half=HALF_WIDTH,
        groups=groups,
        left_out=left_out,
        quiet=_quiet(found, words, every=every),
    )


def _warnings(found: Comparison, words: Words) -> Iterator[str]:
    for which, side in (("first", found.before), ("second", found.after)):
        yield from (on_one_line(words(f"The {which} run: {warning}")) for warning in side.warnings[:_MOST_NOTICES])


def _facts(found: Comparison, words: Words) -> Iterator[tuple[str, str, str]]:
    """Yield what each run is: its name for people, its id, its agent; the rest is only told where it differs."""
    sides = (found.before, found.after)
    yield "Run", words(sides[0].name), words(sides[1].name)
    if any(side.run_id and side.run_id != side.name for side in sides):
        yield "MLflow run", words(sides[0].run_id) or "–", words(sides[1].run_id) or "–"
    for name in ("Agent", "Agent version", "Judges"):
        told = [words(side.facts.get(name, "")) for side in sides]
        if any(told):
            yield name, told[0] or "–", told[1] or "–"
    yield "Eval set", words(sides[0].eval_set.eval_set_id), words(sides[1].eval_set.eval_set_id)


@dataclass(frozen=True, slots=True)
class DifferenceView:
    """Something besides the agent that is not the same in both runs."""

    about: str
    before: str
    after: str


def _difference(found: Difference, words: Words) -> DifferenceView:
    about, before, after = (on_one_line(words(text)) for text in (found.about, found.before, found.after))
    return DifferenceView(about, before or "nothing", after or "nothing")


@dataclass(frozen=True, slots=True)
class Whisker:
    """An interval as a picture, in its units from the middle."""

    low: float
    high: float
    middle: float


@dataclass(frozen=True, slots=True)
class DeltaView:
    """One number in both runs."""

    name: str
    before: str
    after: str
    difference: str
    interval: str
    whisker: Whisker | None
    moved: str
    cases: str
    chance: str
    verdict: str
    look: str
    """The verdict whose colour it has; empty: none."""
    lower_is_better: bool


_LOOKS = {"better": "passed", "worse": "failed"}


def _delta(delta: Delta, confidence: float, words: Words) -> DeltaView:
    verdict = verdict_on(delta, confidence)
    return DeltaView(
        name=words(name_of(delta)),
        before=value_told(delta, delta.before),
        after=value_told(delta, delta.after),
        difference=value_told(delta, delta.difference, signed=True),
        interval=interval_told(delta),
        whisker=_whisker(delta),
        moved=f"{delta.better:,} / {delta.worse:,} / {delta.unchanged:,}" if delta.cases else "–",
        cases=cases_told(delta),
        chance=chance_told(delta),
        verdict=verdict,
        look=_LOOKS.get(verdict, ""),
        lower_is_better=not delta.greater_is_better,
    )


def _whisker(delta: Delta) -> Whisker | None:
    """Return the picture of an interval: shares from -1 to 1, and anything else as wide as its own interval reaches."""
    if delta.low is None or delta.high is None or delta.difference is None:
        return None
    reach = max(abs(delta.low), abs(delta.high))
    scale = HALF_WIDTH / (1.0 if delta.decides and reach <= 1 else reach or 1.0)
    return Whisker(*(round(value * scale, 1) for value in (delta.low, delta.high, delta.difference)))


def _judging(found: Comparison) -> Iterator[tuple[str, str, str]]:
    before, after = found.judging
    if before.votes or after.votes:
        yield "Judges' answers paid for", f"{before.answers:,}", f"{after.answers:,}"
        yield "Judges' tokens", _tokens(before), _tokens(after)
        yield "Votes", f"{before.votes:,}", f"{after.votes:,}"
    if before.reused or after.reused:
        yield "Votes paid for earlier", f"{before.reused:,}", f"{after.reused:,}"


def _tokens(cost: JudgeCost) -> str:
    return f"{cost.tokens:,}" if cost.tokens else "–"


@dataclass(frozen=True, slots=True)
class Group:
    """Cases of which the same became."""

    heading: str
    count: int
    cases: tuple[CaseView, ...]


def _groups(found: Comparison, words: Words, *, every: bool) -> tuple[list[Group], int]:
    """Return the cases to show by what became of them, and how many are left out of so large a comparison."""
    tools = Tools(words, lru_cache(_RATIONALES)(rationale_html))
    kinds: list[tuple[str, Sequence[CaseChange]]] = [
        (HEADINGS[flip], [case for case in found.cases if case.flip == flip]) for flip in FLIPS
    ]
    kinds.append((HEADINGS["none"], found.shifted))
    if every:
        kinds.append(
            ("Same verdict, same scores, but not the same deeds", [case for case in found.cases if not case.changed and not case.same])
        )
    room = MOST_TURNS
    groups, left_out = [], 0
    for heading, cases in kinds:
        shown = _first(cases, room)
        room -= sum(max(1, len(case.turns)) for case in shown)
        left_out += len(cases) - len(shown)
        if cases:
            groups.append(Group(heading, len(cases), tuple(case_view(case, tools) for case in shown)))
    return groups, left_out


def _first(cases: Sequence[CaseChange], most: int) -> list[CaseChange]:
    """Return cases until they have `most` turns."""
    shown: list[CaseChange] = []
    for case in cases:
        most -= max(1, len(case.turns))
        if most < 0:
            break
        shown.append(case)
    return shown


def _quiet(found: Comparison, words: Words, *, every: bool) -> str:
    """Return which cases are not shown, since nothing about them changed that was asked for; empty where all are."""
    quiet = [case.eval_id for case in found.cases if (case.same if every else not case.changed)]
    what = "Did, said and scored the same" if every else "Kept verdict and scores"
    return on_one_line(words(f"{what}: {counted(len(quiet), 'case')}, {', '.join(quiet)}")) if quiet else ""
