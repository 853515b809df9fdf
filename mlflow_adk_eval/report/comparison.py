"""A comparison of two runs in words, for every page that shows one, and its view in a terminal.

`analysis.comparison` finds what changed; nothing is decided here. The first half words it: headings, counts, scores, intervals. Shares of
cases are percentages, and differences of shares are percentage points (*pp*). The second half puts the words into tables for a
terminal; `html.compare` puts the same words into a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mlflow_adk_eval.analysis.comparison.compare import FLIPS, CaseChange, Comparison, Flip
from mlflow_adk_eval.analysis.comparison.delta import CASE_RATE, Delta
from mlflow_adk_eval.report.console import slim_table
from mlflow_adk_eval.report.html.page import Words, on_one_line
from mlflow_adk_eval.report.sentences import format_scored, format_share
from mlflow_adk_eval.results.outcomes import Outcome, Scored, Verdict, verdict_of
from mlflow_adk_eval.text import counted, format_number, listed

HEADINGS: dict[Flip, str] = {
    "worse": "Passed before, fails now",
    "better": "Failed before, passes now",
    "undecided": "Changed to or from undecided",
    "flaky": "Flaky: the runs of one side disagree",
    "none": "Same verdict, different scores",
}
_COUNTS: dict[Flip, tuple[str, str]] = {
    "worse": ("now fails", "now fail"),
    "better": ("now passes", "now pass"),
    "undecided": ("changed to or from undecided", "changed to or from undecided"),
    "flaky": ("is flaky, with a different pass rate", "are flaky, with a different pass rate"),
}
_MOST_NAMED = 20
_MOST_CASES, _MOST_CAUSES = 20, 6
_LONGEST_NAME = 25
_PARTS = re.compile(rf".{{1,{_LONGEST_NAME}}}$|.{{1,{_LONGEST_NAME - 1}}}_|.{{1,{_LONGEST_NAME}}}")
"""What stands on one line of a name: as much as has room, up to the end of a word."""
_WIDTHS = {"p (Holm)": 13, "cases": 9}
_STYLES = {"better": "green", "worse": "red"}


def format_counts(comparison: Comparison) -> dict[Flip, str]:
    """Return how many cases flipped, by how; nothing of what did not happen."""
    return {flip: f"{count:,} {_COUNTS[flip][count != 1]}" for flip, count in comparison.counts.items() if count}


def headline(comparison: Comparison) -> str:
    """Return how many cases flipped, by how, as a sentence."""
    if not comparison.cases:
        return "The runs have no case in common"
    flips = ", ".join(format_counts(comparison).values())
    both = f"{counted(len(comparison.cases), 'case')} in both runs"
    return f"Of {both}, {flips}" if flips else f"No verdict flipped ({both})"


def format_pairing(comparison: Comparison) -> tuple[str, ...]:
    """Return a sentence for each kind of cases that cannot be compared, with their ids."""
    kinds = (
        (comparison.pairing.altered, "in both eval sets with different turns or expectations, so not compared"),
        (comparison.pairing.only_before, "only in the first run"),
        (comparison.pairing.only_after, "only in the second run"),
    )
    return tuple(f"{counted(len(names), 'case')} {what}: {listed(names, _MOST_NAMED)}" for names, what in kinds if names)


def format_verdicts(verdicts: tuple[Verdict, ...]) -> str:
    """Return what the runs of a case came to.

    >>> format_verdicts(("passed",)), format_verdicts(("passed", "failed", "passed"))
    ('passed', '2 of 3 passed')
    """
    return verdicts[0] if len(set(verdicts)) == 1 else f"{verdicts.count('passed')} of {len(verdicts)} passed"


def format_runs(case: CaseChange) -> str:
    """Return which runs of a case are shown for all of them; empty where there is one each."""
    sides = zip(("before", "now"), case.runs, (case.before, case.after), strict=True)
    return ", ".join(f"{when} run {index + 1} of {len(verdicts)}" for when, index, verdicts in sides if len(verdicts) > 1)


def format_score(outcome: Outcome | None) -> str:
    """Return a score as text.

    >>> format_score(Scored(0.66667)), format_score(None)
    ('0.6667', '–')
    """
    return format_number(outcome.score) if isinstance(outcome, Scored) else "–" if outcome is None else "not evaluated"


def name_of(delta: Delta) -> str:
    """Return what a delta is about."""
    return "cases passed" if delta.name == CASE_RATE else delta.name


def format_value(delta: Delta, value: float | None) -> str:
    """Return a delta's value in one run, a share of cases as a percentage; a dash where there is none."""
    if value is None:
        return "–"
    return _with_minus(format(value + 0.0, ".1%" if delta.name == CASE_RATE else ".4g"))


def format_difference(delta: Delta) -> str:
    """Return a delta's difference with its sign, one of shares in percentage points; a dash where there is none."""
    return "–" if delta.difference is None else _signed(delta, delta.difference)


def format_interval(delta: Delta) -> str:
    """Return the interval of a difference; empty where there is none."""
    if delta.low is None or delta.high is None:
        return ""
    return f"{_signed(delta, delta.low, unit='')} to {_signed(delta, delta.high)}"


def _signed(delta: Delta, value: float, unit: str = " pp") -> str:
    sign = "+" if value else ""
    if delta.name == CASE_RATE:
        return _with_minus(format(100 * value + 0.0, f"{sign}.1f")) + unit
    return _with_minus(format(value + 0.0, f"{sign}.3g"))


def _with_minus(number: str) -> str:
    return number.replace("-", "−") if "e" not in number else number


def format_p_value(delta: Delta) -> str:
    """Return the adjusted p-value; a dash where there is none."""
    p_value = delta.p_adjusted
    return "–" if p_value is None else "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"  # noqa: PLR2004 - as papers do


def format_cases(delta: Delta) -> str:
    """Return how many cases a delta rests on, and how many lack a value."""
    lacking = {
        "only in A": delta.only_before,
        "only in B": delta.only_after,
        "in neither": delta.neither,
        "not in every run": delta.partial,
    }
    named = ", ".join(f"{count:,} {where}" for where, count in lacking.items() if count)
    return f"{delta.cases:,}" + (f" ({named})" if named else "")


def format_over(delta: Delta) -> str:
    """Return how many of the cases a difference is about; empty where it is about all.

    >>> format_over(Delta(name="a", decides=True, greater_is_better=True, cases=8, only_before=3))
    'over 8 of 11 cases'
    """
    return f"over {delta.cases:,} of {counted(delta.cases + delta.lacking, 'case')}" if delta.lacking else ""


def verdict_on(delta: Delta, confidence: float) -> str:
    """Return what can be said of a difference: *better*, *worse*, that it may be chance, or that there is none where both have a score."""
    if not delta.cases:
        return "cannot be compared"
    if not delta.difference:
        return f"the same {format_over(delta)}".rstrip()
    if not delta.clear(confidence):
        among = f" among {delta.tests} comparisons (p = {delta.p_value:.2g} alone)"
        return "may be chance" + (among if delta.clear_alone(confidence) else "")
    return "better" if delta.improved else "worse"


def comparison_view(comparison: Comparison, words: Words, *, every: bool = False) -> RenderableType:
    """Return what changed: what the runs differ in, the numbers, and the flipped cases with their causes.

    Args:
        comparison: what was found to differ.
        words: what makes texts of others fit to be shown.
        every: whether to list also the cases that kept their verdict, and all of each kind.
    """

    def line(text: str) -> str:
        return on_one_line(words(text))

    sides = (("A", comparison.before), ("B", comparison.after))
    parts: list[RenderableType] = []
    for letter, side in sides:
        results = side.results
        share = f"{format_share(results.verdicts, side.num_runs)} · verdict: {verdict_of(results.verdicts)}"
        parts.append(Text.assemble((f"{letter}  {line(side.name)}", "bold"), f"  {share}"))
    parts += [Text(f"attention: {letter}: {line(text)}", style="yellow") for letter, side in sides for text in side.warnings]
    others = [one for one in comparison.differences if not one.intended]
    parts += [Text("The agent is not the only difference:", style="yellow")] if others else []
    parts += [Text("  - " + line(f"{one.about}: {one.before or 'nothing'} → {one.after or 'nothing'}")) for one in others]
    parts.append(Text(headline(comparison), style="bold"))
    for flip in FLIPS:
        cases = [case for case in comparison.cases if case.flip == flip]
        parts += _cases(HEADINGS[flip], cases, words, _STYLES.get(flip, "yellow"), most=None if every else _MOST_CASES)
    if every:
        parts += _cases(HEADINGS["none"], comparison.shifted, words, "", most=None)
    elif count := len(comparison.shifted):
        verdicts = "case kept its verdict" if count == 1 else "cases kept their verdicts"
        parts.append(Text(f"{count} {verdicts} with different scores; --all lists them", style="dim"))
    parts.append(_deltas(comparison, words))
    if any(delta.lacking for delta in comparison.deltas):
        parts.append(Text("Means and differences are over the cases that have a score in both runs.", style="yellow"))
    parts += [Text(f"note: {line(note)}", style="dim") for note in format_pairing(comparison)]
    return Group(*parts)


def _deltas(comparison: Comparison, words: Words) -> Table:
    """Return the means in a table that fits into 88 columns: the interval is below the difference, and the verdict below the p-value."""
    table = slim_table()
    table.add_column(
        "", overflow="fold", min_width=min(_LONGEST_NAME, max((len(name_of(delta)) for delta in comparison.deltas), default=0))
    )
    for heading in ("A", "B", f"difference,\nbounds {100 * comparison.confidence:g}%", "p (Holm)", "cases"):
        number = heading in ("A", "B")
        table.add_column(heading, justify="right", overflow="fold", no_wrap=number, max_width=_WIDTHS.get(heading))
    for delta in comparison.deltas:
        verdict = verdict_on(delta, comparison.confidence)
        styled = f"[{_STYLES[verdict]}]{verdict}[/]" if verdict in _STYLES else verdict
        known = delta.cases + delta.only_before, delta.cases + delta.only_after
        scored = [format_scored(count, delta.cases + delta.lacking).replace(" scored", "\nscored") for count in known]
        before, after = (
            f"{format_value(delta, value)}\n[yellow]{lacks}[/]" if lacks else format_value(delta, value)
            for value, lacks in zip((delta.before, delta.after), scored, strict=True)
        )
        table.add_row(
            escape("\n".join(_PARTS.findall(words(name_of(delta))))),
            before,
            after,
            f"{format_difference(delta)}\n{format_interval(delta)}".rstrip(),
            f"{format_p_value(delta)}\n{styled}",
            f"{delta.cases:,}"
            + (f" of {delta.cases + delta.lacking:,}" if delta.lacking else "")
            + (f" ({delta.partial:,} not in every run)" if delta.partial else ""),
            style="" if delta.decides else "dim",
        )
    return table


def _cases(title: str, cases: Sequence[CaseChange], words: Words, style: str, *, most: int | None) -> Iterator[Text]:
    """Yield a group of cases, each with its causes; `most`: as many, `None`: all."""
    if cases:
        yield Text(f"{title} ({len(cases)})", style=f"bold {style}".strip())
    for case in cases[:most]:
        yield from _case(case, words, most=None if most is None else _MOST_CAUSES)
    if most is not None and len(cases) > most:
        yield Text(f"  and {len(cases) - most} more; --all lists them", style="dim")


def _case(case: CaseChange, words: Words, *, most: int | None) -> Iterator[Text]:
    verdicts = " → ".join(dict.fromkeys(map(format_verdicts, (case.before, case.after))))
    runs = format_runs(case)
    yield Text.assemble("  ", (on_one_line(words(case.eval_id)), "bold"), f"  {verdicts}" + (f"  ({runs})" if runs else ""))
    causes = list(case.all_causes())
    for criterion, cause in causes[:most]:
        named = f"{on_one_line(words(criterion))} " if criterion else ""
        turn = "" if cause.turn is None else f"turn {cause.turn + 1}: "
        yield Text.assemble("    - ", (named, "dim"), turn, on_one_line(words(cause.sentence)))
    if most is not None and len(causes) > most:
        yield Text(f"    - and {len(causes) - most} more", style="dim")
