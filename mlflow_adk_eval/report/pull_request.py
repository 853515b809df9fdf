"""The page of a decision of the gate for a pull request, as Markdown that GitHub or another forge renders.

Every text of others passes through `plain` exactly once, where it is put into the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from mlflow_adk_eval.analysis.comparison.compare import Comparison
from mlflow_adk_eval.analysis.comparison.delta import Delta
from mlflow_adk_eval.gating.policy.model import AGENT, COST, Price
from mlflow_adk_eval.gating.rules.measures import Measured, measure
from mlflow_adk_eval.report import comparison as wording
from mlflow_adk_eval.report.findings import Causes, causes_of
from mlflow_adk_eval.report.markdown import MARKS, table
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.outcomes import Scored, grouped, reason_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.ignored_calls import ignored_calls_of
from mlflow_adk_eval.text import counted, listed, plain

_MAX_COMMENT = 60_000
"""GitHub takes 65,536 characters in a comment, among them what stands around the page."""
_short = partial(plain, limit=300)
_ADDRESS = re.compile(r"https?://[\w.:/#%~-]{1,500}", re.ASCII)
"""Without anything that ends a link, and without a query, which may hold a key."""


def comment_of(
    decision: Decision, report: Report | None, comparison: Comparison | None, prices: Mapping[str, Price], about_it: Mapping[str, str]
) -> str:
    """Return the page of a decision for a pull request: verdict, reasons, causes, what changed since the baseline, and what it cost.

    Args:
        decision: what was decided.
        report: of the run, as far as it could be read.
        comparison: of the run with its baseline, likewise.
        prices: those of the policy.
        about_it: the ``title``, what was done (``outcome``), where a browser shows the run (``page``), and why the page lacks something (``missing``).
    """
    causes = causes_of(report) if report else Causes((), 0)
    why = [f"{MARKS[cause.verdict]} {_short(str(cause))}<br>{_short(cause.example)}" for cause in causes.found]
    why += [f"{counted(causes.unread, 'more case run')} did not pass"] if causes.unread else []
    spent = [*_spent(report, prices)] if report else []
    title, outcome, address, missing = (about_it.get(name, "") for name in ("title", "outcome", "page", "missing"))
    ignored = str(ignored_calls_of(report)) if report else ""
    page = ""
    for most in (5, 3, 1):  # until GitHub takes it
        parts = [
            f"### {MARKS[decision.verdict]} Agent gate: {decision.verdict} · {_short(title or f'run {decision.run_id}')}",
            _short(outcome),
            _folded("", [_short(reason) for reason in decision.reasons], most),
            _folded("**Why cases did not pass**", why, most),
            f"⚠️ {_short(ignored)}" if ignored else "",
            *(_changes(comparison, most) if comparison else ()),
            _folded("**Cost**", spent, len(spent)),
            f"This page is incomplete: {_short(missing)}" if missing else "",
            f"[The run in MLflow]({address})" if _ADDRESS.fullmatch(address) else "",
        ]
        page = "\n\n".join(filter(None, parts)) + "\n"
        if len(page) <= _MAX_COMMENT:
            break
    return page[:_MAX_COMMENT]


def _folded(head: str, lines: Sequence[str], most: int) -> str:
    """Return a list under a heading: its first lines, as many again to unfold, and how many more there are."""
    shown, hidden = (["- " + line for line in part] for part in (lines[:most], lines[most : 2 * most]))
    if hidden:
        hidden += [f"- and {len(lines) - 2 * most:,} more"] if len(lines) > 2 * most else []
        shown += ["", f"<details><summary>{len(lines) - most:,} more</summary>", "", *hidden, "", "</details>"]
    return "\n\n".join(filter(None, (head, "\n".join(shown)))) if shown else ""


def _changes(comparison: Comparison, most: int) -> Iterator[str]:
    """Yield what changed since the baseline: cases, then scores with cost and time, then what makes them hard to compare."""

    def cells(delta: Delta) -> Sequence[str]:
        change = f"{wording.format_difference(delta)} ({wording.format_interval(delta)})".removesuffix(" ()")
        sides = (wording.format_value(delta, value) for value in (delta.before, delta.after))
        return _short(wording.name_of(delta)), *sides, change, wording.verdict_on(delta, comparison.confidence), wording.format_cases(delta)

    flips = grouped((case.flip, _short(case.eval_id)) for case in comparison.flipped)
    differ = [_short(one.about) for one in comparison.differences if not one.intended]
    yield f"**Compared with {_short(comparison.before.name)}**: {wording.headline(comparison)}"
    yield "\n".join(f"- {wording.HEADINGS[flip]}: {listed(cases, most)}" for flip, cases in flips.items())
    heads = ("", "before", "now", "difference", "", "cases")
    yield table(heads, comparison.deltas, cells, most=4 * most, numbers=("before", "now", "cases"))
    yield f"The agent is not the only difference: {listed(differ, most)}" if differ else ""
    yield "\n".join(f"- {_short(line)}" for line in wording.format_pairing(comparison))


def _spent(report: Report, prices: Mapping[str, Price]) -> Iterator[str]:
    """Yield what a run took, and what is not known of it: a sum over a gap is a lower bound."""
    cells = [cell for _, result in report.cases.of("token_usage_v1") for cell in result.per_invocation if cell is not None]
    tokens = tuple(cell.score for cell in cells if isinstance(cell, Scored))
    unknown = tuple(reason_of(cell) for cell in cells if not isinstance(cell, Scored))
    money = "Money at the policy's prices" + ("" if AGENT in prices or not prices else ", without the agent")
    sums: dict[str, Measured | str] = {
        "Tokens of the agent": Measured(values={"": tokens}, missing=unknown, greater_is_better=False) if cells else "not measured",
        "Tokens of judges, with answers from the ledger": measure("judge_tokens", report),
        money: measure(COST, report, prices) if prices else "the policy has no prices",
    }
    for what, found in sums.items():
        known, missing = ({}, [found]) if isinstance(found, str) else (found.values, found.missing)
        total, such = f"{sum(map(sum, known.values())):,.4f}".rstrip("0").rstrip("."), _short(next(iter(missing), ""))
        unsure = f"at least {total} ({len(missing):,} are unknown, such as {such})" if any(known.values()) else f"unknown ({such})"
        yield f"{what}: {unsure if missing else total}"
    yield "Not included: simulated users, tools and the baseline's own evaluation"
