"""A comparison of two runs as one HTML file, which needs nothing else and runs no script.

The page is made of the same words as the view in a terminal (`comparison`). What needs work in Python is prepared here: the picture of each
interval, the groups of cases that are shown, which causes are listed already, and what a turn looks like in both runs. Flipped cases come
first; from `MOST_TURNS` turns on the rest is only counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mlflow_adk_eval.analysis.comparison.compare import FLIPS, CaseChange, Cause, Comparison, CriterionChange
from mlflow_adk_eval.analysis.comparison.delta import Delta
from mlflow_adk_eval.analysis.comparison.turns import CallChange, CellChange, ComparedTurn, TurnChange
from mlflow_adk_eval.report import comparison as wording
from mlflow_adk_eval.report.html.page import Texts, environment, marked, on_one_line, policy, source, within
from mlflow_adk_eval.report.html.report import MOST_CALLS, CallView, call_view
from mlflow_adk_eval.results.outcomes import Verdict, explanation_of
from mlflow_adk_eval.text import counted

MOST_TURNS = 2_000
"""As many turns are shown, of flipped cases first."""
HALF_WIDTH = 56
"""Of the picture of an interval, on either side of zero."""
_MOST_NOTICES = 20
_MOST_CAUSES = 50
LOOKS = {"better": "passed", "worse": "failed"}
"""As what a difference is coloured."""


def compare_html(comparison: Comparison, *, secrets: Mapping[str, str], every: bool = False) -> str:
    """Return a comparison as one HTML page, in which no text of others is anything but text.

    Args:
        comparison: what was found to differ.
        secrets: what must not be written down, each with what stands in its place.
        every: whether to show also the cases with the same verdict and the same scores.
    """
    texts = Texts(secrets)
    style = source("report.css") + source("compare.css")
    sides = (("first", comparison.before), ("second", comparison.after))
    groups, left_out = _groups(comparison, texts, every=every)
    # The cases that are not shown, since nothing about them changed that was asked for.
    quiet = [case.eval_id for case in comparison.cases if (case.same if every else not case.changed)]
    same = "Same behaviour, verdict and scores" if every else "Same verdict and scores"
    template = environment().get_template("compare.html.j2")
    return template.render(
        policy=policy(style),
        style=Markup(style),  # noqa: S704 - files of this package
        t=texts,
        title=f"{texts.line(comparison.before.name)} → {texts.line(comparison.after.name)}",
        headline=wording.headline(comparison),
        counts=wording.format_counts(comparison),
        compared=counted(len(comparison.cases), "case"),
        warnings=[texts.line(f"The {which} run: {warning}") for which, side in sides for warning in side.warnings[:_MOST_NOTICES]],
        facts=list(_facts(comparison)),
        differences=[one for one in comparison.differences if not one.intended],
        notes=[texts.line(note) for note in wording.format_pairing(comparison)],
        confidence=comparison.confidence,
        percent=f"{100 * comparison.confidence:g}",
        deciding=[_delta(delta, comparison.confidence, texts) for delta in comparison.deltas if delta.decides],
        information=[_delta(delta, comparison.confidence, texts) for delta in comparison.deltas if not delta.decides],
        judging=list(_judging(comparison)),
        half=HALF_WIDTH,
        groups=groups,
        left_out=left_out,
        quiet=texts.line(f"{same}: {counted(len(quiet), 'case')}, {', '.join(quiet)}") if quiet else "",
    )


def _facts(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yield what each run is: its name for people, its id, its agent; the rest is only named where it differs."""
    sides = (comparison.before, comparison.after)
    facts = {"Run": [side.name for side in sides]}
    if any(side.run_id and side.run_id != side.name for side in sides):
        facts["MLflow run"] = [side.run_id for side in sides]
    facts |= {name: [side.facts.get(name, "") for side in sides] for name in ("Agent", "Agent version", "Judges", "Recorded world")}
    facts["Eval set"] = [side.eval_set.eval_set_id for side in sides]
    yield from ((name, before, after) for name, (before, after) in facts.items() if before or after)


def _delta(delta: Delta, confidence: float, texts: Texts) -> dict[str, Any]:
    """Return one number in both runs, as the row of a table."""
    verdict = wording.verdict_on(delta, confidence)
    return {
        "name": texts.words(wording.name_of(delta)),
        "before": wording.format_value(delta, delta.before),
        "after": wording.format_value(delta, delta.after),
        "difference": wording.format_difference(delta),
        "interval": wording.format_interval(delta),
        "whisker": _whisker(delta),
        "moved": f"{delta.better:,} / {delta.worse:,} / {delta.unchanged:,}" if delta.cases else "–",
        "cases": wording.format_cases(delta),
        "chance": wording.format_p_value(delta),
        "verdict": verdict,
        "look": LOOKS.get(verdict, ""),
        "lower_is_better": not delta.greater_is_better,
    }


def _whisker(delta: Delta) -> dict[str, float] | None:
    """Return the picture of an interval: shares from -1 to 1, and anything else as wide as its own interval reaches."""
    if delta.low is None or delta.high is None or delta.difference is None:
        return None
    reach = max(abs(delta.low), abs(delta.high))
    scale = HALF_WIDTH / (1.0 if delta.decides and reach <= 1 else reach or 1.0)
    return {name: round(value * scale, 1) for name, value in (("low", delta.low), ("high", delta.high), ("middle", delta.difference))}


def _judging(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    before, after = comparison.judging
    if before.votes or after.votes:
        yield "Judges' answers in this run", f"{before.answers:,}", f"{after.answers:,}"
        yield "Judges' tokens", f"{before.tokens:,}" if before.tokens else "–", f"{after.tokens:,}" if after.tokens else "–"
        yield "Votes", f"{before.votes:,}", f"{after.votes:,}"
    if before.reused or after.reused:
        yield "Votes reused from earlier", f"{before.reused:,}", f"{after.reused:,}"


def _groups(comparison: Comparison, texts: Texts, *, every: bool) -> tuple[list[tuple[str, int, list[CaseView]]], int]:
    """Return the cases to show under headings, each with how many there are, and how many are left out of so large a comparison."""
    kinds: list[tuple[str, Sequence[CaseChange]]] = [
        *((wording.HEADINGS[flip], [case for case in comparison.cases if case.flip == flip]) for flip in FLIPS),
        (wording.HEADINGS["none"], comparison.shifted),
    ]
    if every:
        others = [case for case in comparison.cases if not case.changed and not case.same]
        kinds.append(("Same verdict and scores, different behaviour", others))
    room, left_out = MOST_TURNS, 0
    groups: list[tuple[str, int, list[CaseView]]] = []
    for heading, cases in kinds:
        shown = list(within(room, cases, lambda case: len(case.turns)))
        room -= sum(max(1, len(case.turns)) for case in shown)
        left_out += len(cases) - len(shown)
        groups += [(heading, len(cases), [case_view(case, texts) for case in shown])] if cases else []
    return groups, left_out


Causes = tuple[tuple[str, str], ...]
"""Causes in words, each after its turn; for the case as a whole the turn is empty."""


@dataclass(frozen=True, slots=True)
class CaseView:
    """One case in both runs."""

    case: CaseChange
    states: tuple[tuple[str, str], ...]
    """What the runs of each side came to: the verdict, or ``flaky``, and the same in words."""
    runs: str
    opening: str
    causes: Causes
    changes: tuple[tuple[CriterionChange, str, Causes], ...]
    """The criteria whose case score changed: scores and causes, none where those of another criterion say it all."""
    turns: tuple[TurnView, ...]


@dataclass(frozen=True, slots=True)
class StepView:
    """A call of the first run beside that of the second."""

    label: str
    look: str
    """``wrong`` where the second run is at fault, ``right`` where it is not any more, else empty."""
    before: CallView | None
    after: CallView | None
    expected: CallView | None
    """Shown where the second run has another."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn in both runs."""

    turn: TurnChange
    users: tuple[str, ...]
    """What the user said in each run."""
    answers: tuple[str, ...]
    missing: tuple[str, ...]
    """Why a run has no answer; empty where it has one."""
    steps: tuple[StepView, ...]
    calls_left_out: int
    cells: tuple[tuple[CellChange, str], ...]
    """Of the criteria that say something else than before, with their scores."""
    others: str
    """The scores of the rest."""


def case_view(case: CaseChange, texts: Texts) -> CaseView:
    """Return what is shown of a case."""
    known = set[Cause]()
    causes = _causes(case.causes, texts, known)
    turns = tuple(_turn(turn, texts) for turn in case.turns)
    return CaseView(
        case=case,
        states=tuple((state_of(verdicts), wording.format_verdicts(verdicts)) for verdicts in (case.before, case.after)),
        runs=wording.format_runs(case),
        opening=on_one_line(turns[0].users[1] or turns[0].users[0]) if turns else "",
        causes=causes,
        changes=tuple((one, _scores(one), _causes(one.causes, texts, known)) for one in case.criteria),
        turns=turns,
    )


def state_of(verdicts: tuple[Verdict, ...]) -> str:
    """Return what the runs of a case came to: the verdict that they share, or ``flaky``."""
    return verdicts[0] if len(set(verdicts)) == 1 else "flaky"


def _scores(change: CriterionChange | CellChange) -> str:
    return f"{wording.format_score(change.before)} → {wording.format_score(change.after)}"


def _causes(causes: Sequence[Cause], texts: Texts, known: set[Cause]) -> Causes:
    """Return causes in words, without those `known` from another criterion of the case, and add them there."""
    new = [cause for cause in causes if cause not in known]
    known.update(new)
    shown = [("" if cause.turn is None else f"Turn {cause.turn + 1}", texts.words(cause.sentence)) for cause in new[:_MOST_CAUSES]]
    return (*shown, *([("", f"and {len(new) - _MOST_CAUSES} more")] if len(new) > _MOST_CAUSES else []))


def _turn(turn: TurnChange, texts: Texts) -> TurnView:
    sides = (turn.before, turn.after)
    before, after = (texts.words((side.response if side else None) or "") for side in sides)
    deciding = [cell for cell in turn.cells if cell.decides]
    return TurnView(
        turn=turn,
        users=tuple(texts.words(side.user) if side else "" for side in sides),
        answers=marked(before, after) if before and after else (before, after),
        missing=tuple(_missing(side, texts) for side in sides),
        steps=tuple(_step(call, texts) for call in turn.calls[:MOST_CALLS]),
        calls_left_out=max(len(turn.calls) - MOST_CALLS, 0),
        cells=tuple((cell, _scores(cell) if cell.differs else wording.format_score(cell.after)) for cell in deciding if _says_more(cell)),
        others=" · ".join(f"{texts.line(cell.criterion)} {wording.format_score(cell.after)}" for cell in deciding if not _says_more(cell)),
    )


def _missing(side: ComparedTurn | None, texts: Texts) -> str:
    """Return why there is no answer; empty where there is one."""
    if side is None:
        return "the conversation had no such turn"
    if side.error:
        return f"the agent did not finish: {texts.words(side.error)}"
    return "the agent did not get here" if side.response is None else "" if side.response else "the agent did not answer"


_LABELS = {
    "same": "",
    "changed": "other arguments",
    "gone": "no longer called",
    "new": "not called before",
    "moved": "in a different position",
}


def _step(call: CallChange, texts: Texts) -> StepView:
    before, after = (call_view(one, texts) if one else None for one in (call.before, call.after))
    if call.kind == "changed" and before and after:
        left, right = marked(before.args, after.args)
        before, after = CallView(before.name, left), CallView(after.name, right)
    look = ""
    if call.kind != "same":  # wrong: not as expected where the first run was, or what is not expected
        off = call.right_after is False or (call.after is None and call.right_before is True)
        look = "wrong" if off else "right" if call.right_after else ""
    expected = call_view(call.expected, texts) if call.expected and not call.right_after else None
    return StepView(_LABELS[call.kind], look, before, after, expected)


def _says_more(cell: CellChange) -> bool:
    """Whether there is more to say of a cell than its score: not where it reaches its threshold as before, if in other words."""
    return cell.differs or (cell.reached_after is not True and explanation_of(cell.before) != explanation_of(cell.after))
