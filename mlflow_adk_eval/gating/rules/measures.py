"""What rules can be about: each measure's values by case, computed from what a run's table and votes come to.

`measure` finds a measure by its name: a criterion, ``<criterion>/pass_rate`` and the like, ``pass^k``, or one of all criteria such as
``case_pass_rate`` and ``cost``. The result is a `Measured`: a value per run for each case, and each case run that has none with the
reason. Whoever cannot be measured at all is a sentence instead. Nothing is averaged over a gap.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.spec import CRITERIA, MEASURES, MEASURES_OF_A_CRITERION, PASS_HAT
from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.gating.policy.model import AGENT, COST, Price
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Scored, Verdict, Vote, grouped, mean, reason_of
from mlflow_adk_eval.results.repeats import pass_hat
from mlflow_adk_eval.results.report import CaseScores, Report, scaled, scores_by_case

_MILLION = 1_000_000
_VERSION = re.compile(r"[-@:](?:v?\d[\d.-]*|latest)")
_TOKENS = "token_usage_v1"
_ALIKE = {"not_applicable": "supported", "contradictory": "unsupported", "disputed": "unsupported"}
"""Labels of a sentence that are worth the same, by another of that worth: they do not contradict each other."""


def flip_of(results: Iterable[CriterionResult]) -> float | None:
    """Return the share of the votes on a case run that contradict the verdict that they and others came to; ``None`` where no two votes did."""
    ballots: dict[tuple[str, int, str | None], Counter[str]] = {}
    for vote in (vote for result in results for vote in result.votes):
        if vote.verdict is not None:
            ballot = ballots.setdefault((vote.criterion, vote.invocation_index, vote.rubric_id), Counter())
            ballot[_ALIKE.get(vote.verdict, vote.verdict)] += 1
    compared = [ballot for ballot in ballots.values() if ballot.total() > 1]
    votes = sum(ballot.total() for ballot in compared)
    return sum(ballot.total() - max(ballot.values()) for ballot in compared) / votes if votes else None


def answers_of(results: Iterable[CriterionResult]) -> list[list[Vote]]:
    """Return the answers of judges on a case run, each with its votes: one answer may give a verdict on several things."""
    calls: dict[tuple[str, int, int, float], list[list[Vote]]] = {}
    for vote in (vote for result in results for vote in result.votes):
        answers = calls.setdefault((vote.criterion, vote.invocation_index, vote.vote_index, vote.latency_s), [])
        # Tokens stand with the first vote of an answer, so others that have tokens begin another answer.
        if answers and not (_has_tokens(vote) and any(map(_has_tokens, answers[-1]))):
            answers[-1].append(vote)
        else:
            answers.append([vote])
    return [answer for answers in calls.values() for answer in answers]


def _has_tokens(vote: Vote) -> bool:
    return vote.input_tokens is not None or vote.output_tokens is not None


def tokens_of(results: Iterable[CriterionResult]) -> float | str:
    """Return the tokens of all answers, also of those that were paid for before; a text: a judge does not say them."""
    found = [_tokens(answer) for answer in answers_of(results)]
    unknown = next((text for text in found if isinstance(text, str)), None)
    return unknown or float(sum(into + out for into, out in (pair for pair in found if not isinstance(pair, str))))


def _tokens(answer: Sequence[Vote]) -> tuple[int, int] | str:
    """Return the tokens of an answer, in and out. A call that failed has none unless it says so."""
    counted = [vote for vote in answer if _has_tokens(vote)]
    if not counted and any(vote.verdict is not None or vote.raw for vote in answer):
        return f"the judge {answer[0].model or 'without a name'} does not report token counts"
    return sum(vote.input_tokens or 0 for vote in counted), sum(vote.output_tokens or 0 for vote in counted)


def cost_of(case: CaseResult, prices: Mapping[str, Price]) -> float | str:
    """Return what a case run costs: its judges, and its agent where that has a price. A text says what is not known of it."""
    spent = 0.0
    for answer in answers_of(case.results):
        tokens, price = _tokens(answer), price_of(answer[0].model, prices)
        if isinstance(tokens, str):
            return tokens
        if price is None:
            return f"the policy has no price for the judge {answer[0].model or 'without a name'}"
        into, out = (price.tokens, price.tokens) if price.tokens is not None else (price.input or 0.0, price.output or 0.0)
        spent += (tokens[0] * into + tokens[1] * out) / _MILLION
    if AGENT not in prices:
        return spent
    result = case.result(_TOKENS)
    if result is None:
        return f"the run has no {_TOKENS}, so the agent's cost is unknown"
    if unknown := [cell for cell in result.per_invocation if not isinstance(cell, Scored)]:
        return f"the agent's cost is unknown: {reason_of(unknown[0]) if unknown[0] else f'{_TOKENS} has no score'}"
    total = sum(cell.score for cell in result.per_invocation if isinstance(cell, Scored))
    return spent + total * (prices[AGENT].tokens or 0.0) / _MILLION


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return the price of the version of a model that answered: its own, or that of the model it is a version of, by any provider's name.

    >>> price_of("gemini-2.5-flash-001", {"gemini-2.5-flash": Price(tokens=1.0)}) == Price(tokens=1.0)
    True
    >>> price_of("gpt-5-mini-2025-08-07", {"openai/gpt-5-mini": Price(tokens=1.0), "gpt-5": Price(tokens=2.0)}) == Price(tokens=1.0)
    True
    >>> price_of("gpt-5-mini", {"gpt-5": Price(tokens=1.0)}) is None
    True
    """
    found = [(bare == model, len(bare), name) for name in prices if name != AGENT and (bare := _named(model, name))]
    return prices[max(found)[2]] if found else None


def _named(model: str, name: str) -> str:
    """Return the part of the name of a price that names a model, with or without its provider; empty if it is another model."""
    bare = next((text for text in (name, name.rpartition("/")[2]) if text and model.startswith(text)), "")
    return bare if bare == model or _VERSION.fullmatch(model, len(bare)) else ""


SHARE = (0.0, 1.0)
_QUANTITY = (0.0, math.inf)

Value = float | str
"""A value of a case run, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a measure came to in each case."""

    values: Mapping[str, tuple[float, ...]]
    """By case, one per run, or one for all of its runs."""
    greater_is_better: bool
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """The least and the greatest value that there may be; infinite where there is none."""
    by_config: bool = False
    """Whether only the run's own config says so, as of a custom metric."""
    missing: tuple[str, ...] = ()
    """The case runs without a value, each with the reason."""
    proportion: bool = True
    """Whether values of 0 and 1 only make it a share of cases."""

    @property
    def means(self) -> dict[str, float]:
        """The mean of each case over its runs."""
        return {case: mean(values) for case, values in self.values.items()}

    @property
    def value(self) -> float | None:
        """The mean over the cases; ``None`` without any."""
        return mean(map(mean, self.values.values())) if self.values else None

    def pooled(self, copies: Mapping[str, str]) -> Measured:
        """Return the measure with one value for cases of one content: copies of a case say no more of other cases than the case does.

        Args:
            copies: the cases that are another one over again, each with that one.
        """
        if not copies or not any(case in copies for case in self.values):
            return self
        groups = grouped((copies.get(case, case), values) for case, values in self.values.items())
        return replace(self, values=scores_by_case((case, map(mean, zip(*found, strict=False))) for case, found in groups.items()))

    def within(self, limits: tuple[float, float] | None) -> Measured:
        """Return the measure with values beyond some limits counted as the limit; ``None``: as it is."""
        if limits is None:
            return self
        low, high = max(self.bounds[0], limits[0]), min(self.bounds[1], limits[1])
        values = scaled(self.values, lambda value: min(max(value, low), high))
        return replace(self, values=values, bounds=(low, high), by_config=False)


def measure(name: str, report: Report, prices: Mapping[str, Price] | None = None) -> Measured | str:
    """Return what a measure came to, or why it cannot be had; `prices`: those of the policy, for what the run cost."""
    criterion, _, suffix = name.rpartition("/")
    if name in report.criteria:
        scores = ((case, reason_of(result.overall) if result.score is None else result.score) for case, result in report.cases.of(name))
        values, missing = _by_case(scores, report)
        bounds = report.config.bounds(name)
        better, share = report.config.greater_is_better(name), not CRITERIA.is_quantity(name) and bounds == SHARE
        of_config = name not in CRITERIA
        return Measured(values=values, missing=missing, greater_is_better=better, bounds=bounds, by_config=of_config, proportion=share)
    if criterion in report.criteria and suffix == "pass_rate":
        deciding = ((case, result) for case, result in report.cases.of(criterion) if result.decides)
        passes = ((case, reason_of(result.overall) if result.passed is None else float(result.passed)) for case, result in deciding)
        values, missing = _by_case(passes, report)
        if not values and not missing and criterion in report.config.by_criterion:
            return information_only(criterion, report.config)
        if not values and not missing:
            return f"{criterion} has no threshold in the run's config, so its scores neither pass nor fail"
        return Measured(values=values, missing=missing, greater_is_better=True, bounds=SHARE)
    if criterion in report.criteria and suffix == "flip_rate":
        nothing = f"no judge voted twice on the same turn for {criterion}"
        return _of_votes(report, lambda case: flip_of(filter(None, [case.result(criterion)])), SHARE, nothing)
    if hat := PASS_HAT.fullmatch(name):
        k = int(hat[1])
        return _too_few_runs(report, k) or _of_verdicts(report, lambda runs: pass_hat(len(runs), runs.count("passed"), k))
    if name in MEASURES:
        return _of_all(name, report, prices or {})
    known = [*report.criteria, *MEASURES, "pass^1", *(f"{name}/{suffix}" for name in report.criteria for suffix in MEASURES_OF_A_CRITERION)]
    hint = did_you_mean(name, known) or f"It has {', '.join(report.criteria) or 'no criterion'}; other measures are {', '.join(MEASURES)}"
    if (criterion or name) in CRITERIA and criterion not in report.criteria:
        return f"the run has no criterion {criterion or name}. {hint}"
    return f"the run has no measure {name!r}. {hint}"


def _of_all(name: str, report: Report, prices: Mapping[str, Price]) -> Measured | str:
    """Return a measure that is none of a single criterion."""
    if name == "case_pass_rate":
        return _of_verdicts(report, lambda runs: float(all(verdict == "passed" for verdict in runs)))
    if name == "flaky_rate":
        return _too_few_runs(report, 2) or _of_verdicts(report, lambda runs: float(len(set(runs)) > 1), greater_is_better=False)
    if name == "judge_flip_rate":
        return _of_votes(report, lambda case: flip_of(case.results), SHARE, "no judge voted twice on the same turn")
    if name == COST and AGENT not in prices and not any(result.votes for case in report.cases for result in case.results):
        return "nothing in the run has a price: no judge voted, and the policy has no price for the agent"
    quantities: dict[str, Callable[[CaseResult], Value]] = {
        "judge_tokens": lambda case: tokens_of(case.results),
        "judge_calls": lambda case: float(len(answers_of(case.results))),
        COST: lambda case: cost_of(case, prices),
    }
    return _of_votes(report, quantities[name], _QUANTITY, "the run has no cases")


def criteria_behind(name: str, report: Report) -> list[str]:
    """Return the criteria whose scores a measure rests on."""
    if name in report.criteria:
        return [name]
    criterion = name.rpartition("/")[0]
    if criterion in report.criteria:
        return [criterion]
    return [found for found, summary in report.summaries().items() if summary.threshold is not None]


def information_only(criterion: str, config: EvalConfig) -> str:
    """Return that a criterion of a config neither passes nor fails."""
    thresholds = config.thresholds()[criterion]
    return f"every possible score reaches the threshold {thresholds} of {criterion} in the run's config, so it is information only"


def _by_case(found: Iterable[tuple[CaseResult, Value]], report: Report) -> tuple[CaseScores, tuple[str, ...]]:
    """Return the values of each case that has one in each of its runs, and what is missing."""
    missing: dict[str, str] = {}

    def known() -> Iterator[tuple[str, list[float]]]:
        for eval_id, runs in groupby(found, key=lambda one: one[0].eval_id):
            values: list[float] = []
            for case, value in runs:
                if isinstance(value, str):
                    missing.setdefault(eval_id, f"{report.label(case)}: {value}")
                else:
                    values.append(value)
            if eval_id not in missing:
                yield eval_id, values

    return scores_by_case(known()), tuple(missing.values())


def _of_verdicts(report: Report, value_of: Callable[[Sequence[Verdict]], float], *, greater_is_better: bool = True) -> Measured:
    """Return a measure of passing and failing, which a case without a verdict does not have."""
    open_cases: list[str] = []

    def known() -> Iterator[tuple[str, tuple[float]]]:
        for eval_id, found in groupby(report.cases, key=lambda case: case.eval_id):
            runs = list(found)
            if undecided := [case for case in runs if case.verdict == "undecided"]:
                open_cases.append(f"{report.label(undecided[-1])}: {'; '.join(undecided[-1].reasons())}")
            else:
                yield eval_id, (value_of([case.verdict for case in runs]),)

    values = scores_by_case(known())
    return Measured(values=values, missing=tuple(open_cases), greater_is_better=greater_is_better, bounds=SHARE)


def _too_few_runs(report: Report, wanted: int) -> str:
    if report.num_runs >= wanted:
        return ""
    there = "there is 1" if report.num_runs == 1 else f"there are {report.num_runs}"
    return f"it needs at least {wanted} runs of each case (num_runs {wanted}), but {there}"


def _of_votes(report: Report, read: Callable[[CaseResult], Value | None], bounds: tuple[float, float], nothing: str) -> Measured | str:
    """Return a measure of what judges did, over the cases of which there is something to tell."""
    values, missing = _by_case(((case, value) for case in report.cases if (value := read(case)) is not None), report)
    if not values and not missing:
        return nothing
    return Measured(values=values, missing=missing, greater_is_better=False, bounds=bounds, proportion=False)
