"""What a page shows of cases, and of which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.evalset.conversation import EndReason
from mlflow_adk_eval.report.html.text import Words, on_one_line
from mlflow_adk_eval.report.html.turns import Tools, TurnView, threshold_text, turn_view
from mlflow_adk_eval.report.repeats import (
    PassHatLine,
    SpreadLine,
    flaky_told,
    pass_hat_lines,
    ranges_told,
    rates_told,
    spread_lines,
)
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Verdict, reason_of
from mlflow_adk_eval.results.repeats import CaseRepeats, Repeats
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.votes import votes_by_turn

_MOST_FLAKY = 200
_MOST_MARKS = 20


@dataclass(frozen=True, slots=True)
class FlakyView:
    """A case whose runs disagree."""

    label: str
    verdicts: tuple[Verdict, ...]
    """By run; of many runs, of the first."""
    counts: str
    pass_rate: str
    ranges: str
    """Between what its scores vary; empty where they do not."""


@dataclass(frozen=True, slots=True)
class RepeatsView:
    """All repeated runs."""

    num_runs: int
    pass_hats: tuple[PassHatLine, ...]
    rates: str
    spreads: tuple[SpreadLine, ...]
    told: str
    flaky: tuple[FlakyView, ...]
    untold: int
    """How many cases are flaky besides."""


def repeats_view(report: Report, words: Words) -> RepeatsView | None:
    """Return what is shown of repeated runs; ``None`` where there are none."""
    if report.num_runs == 1 or not report.cases:
        return None
    repeats = report.repeats
    flaky = repeats.flaky
    return RepeatsView(
        num_runs=repeats.num_runs,
        pass_hats=tuple(pass_hat_lines(repeats)),
        rates=rates_told(repeats),
        spreads=tuple(replace(line, criterion=words(line.criterion)) for line in spread_lines(repeats)),
        told=flaky_told(repeats),
        flaky=tuple(_flaky(repeats, case, words) for case in flaky[:_MOST_FLAKY]),
        untold=max(len(flaky) - _MOST_FLAKY, 0),
    )


def _flaky(repeats: Repeats, case: CaseRepeats, words: Words) -> FlakyView:
    return FlakyView(
        label=on_one_line(words(case.eval_id)),
        verdicts=case.verdicts[:_MOST_MARKS],
        counts=case.told,
        pass_rate=f"{case.pass_rate:.1%}",
        ranges=words(ranges_told(repeats, case)),
    )


MOST_TURNS = 2_000
"""Above so many turns not every case is shown, and of those that are shown no more than so many turns."""

_ORDER: tuple[Verdict, ...] = ("failed", "undecided", "passed")
_EXACTLY = ToolTrajectorySettings(threshold=1.0)
"""How tool calls are compared where no criterion says how."""


@dataclass(frozen=True, slots=True)
class ScoreView:
    """A case score."""

    criterion: str
    reached: bool | None
    score: str
    """Empty where there is none."""
    threshold: str
    reason: str
    """Why there is no score; empty where there is one."""


@dataclass(frozen=True, slots=True)
class EndingView:
    """How the simulated user ended the conversation."""

    badge: str
    look: str
    """The verdict whose colour the badge has; empty: none, since reaching the goal says nothing of the agent."""
    detail: str


_ENDINGS: dict[EndReason, tuple[str, str]] = {
    "goal": ("ended at the goal", ""),
    "limit": ("ended at the limit", "undecided"),
    "error": ("broke off", "failed"),
}


@dataclass(frozen=True, slots=True)
class CaseView:
    """One case in one run."""

    label: str
    verdict: Verdict
    opening: str
    """What the user said first, on one line."""
    scores: tuple[ScoreView, ...]
    """Of the criteria that decide."""
    reasons: tuple[str, ...]
    scenario: tuple[str, str] | None
    """What a simulated user began with, and its plan."""
    turns: tuple[TurnView, ...]
    ending: EndingView | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The cases that are shown."""

    cases: tuple[CaseResult, ...]
    notice: str
    """Which are not shown; empty where all are."""


def shown_cases(report: Report, most: int = MOST_TURNS) -> Selection:
    """Return the cases to show, failed ones first, then undecided ones; of a large run only those, and not more than `most` turns."""
    ranked = sorted(report.cases, key=lambda case: _ORDER.index(case.verdict))
    turns = sum(max(1, case.turns) for case in report.cases)
    if turns <= most:
        return Selection(tuple(ranked), "")
    unpassed = [case for case in ranked if case.verdict != "passed"]
    shown = tuple(_first(unpassed, most))
    of_these = f", and of these the first {len(shown):,} of {len(unpassed):,}" if len(shown) < len(unpassed) else ""
    return Selection(
        shown,
        f"With {turns:,} turns this run is too large to be shown whole. Below are only the cases that did not pass{of_these}. "
        f"All turns are in the run's table adk_eval/invocations.json.",
    )


def _first(cases: Sequence[CaseResult], most: int) -> Iterator[CaseResult]:
    """Yield cases until they have `most` turns."""
    turns = 0
    for case in cases:
        turns += max(1, case.turns)
        if turns > most:
            return
        yield case


def case_view(report: Report, case: CaseResult, plan: EvalCase | None, tools: Tools) -> CaseView:
    """Return what is shown of a case; `plan` is what the eval set says of it."""
    cast = {result.criterion: votes_by_turn(result.votes) for result in case.results if result.votes}
    trajectory = _trajectory(report, case)
    scenario = plan.conversation_scenario if plan else None
    turns = tuple(turn_view(case, index, trajectory, cast, tools) for index in range(case.turns))
    return CaseView(
        label=on_one_line(tools.words(report.label(case))),
        verdict=case.verdict,
        opening=on_one_line(turns[0].user) if turns else "",
        scores=tuple(_score(result, tools) for result in case.results if result.decides),
        reasons=tuple(map(tools.words, case.reasons())),
        scenario=(tools.words(scenario.starting_prompt), tools.words(scenario.conversation_plan)) if scenario else None,
        turns=turns,
        ending=EndingView(*_ENDINGS[case.ending.reason], tools.words(case.ending.detail)) if case.ending else None,
    )


def _trajectory(report: Report, case: CaseResult) -> ToolTrajectorySettings:
    """Return how the case's tool calls are compared."""
    found = report.config.criteria_of(case.eval_id).values()
    return next((settings for settings in found if isinstance(settings, ToolTrajectorySettings)), _EXACTLY)


def _score(result: CriterionResult, tools: Tools) -> ScoreView:
    return ScoreView(
        criterion=on_one_line(tools.words(result.criterion)),
        reached=result.passed,
        score="" if result.score is None else f"{result.score:.4g}",
        threshold=threshold_text(result.threshold, greater_is_better=result.greater_is_better),
        reason=tools.words(reason_of(result.overall)),
    )
