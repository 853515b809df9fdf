"""Decisions on the first cases of an eval set, which hold however often one looks.

A run until decided evaluates cases in an order that nobody can choose, and stops when its policy is decided. Rules about cases like these
(`max_drop`, `ci_low`, `ci_high`) are then decided by bets (`analysis.stats.betting`): however often one looks and why ever one stops, each errs
as seldom as its confidence says. Rules about the eval set as it is (`use: mean`, thresholds) are decided once the cases to come could not change the
answer. The r-th run of all cases has a share of 2^-r of the error, so that all repetitions together have no more than the whole.

`sequence_problems` believes nothing that the run says of itself: it makes the order again, and looks again as the run did in each round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise, takewhile

from mlflow_adk_eval.analysis.stats.betting import log_wealth
from mlflow_adk_eval.analysis.stats.paired import holm
from mlflow_adk_eval.evalset.files import select
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.rules.checks import RuleTarget, format_exact, format_number, format_percent
from mlflow_adk_eval.gating.rules.limits import Drop, Limit, check_drops
from mlflow_adk_eval.gating.rules.measures import Measured
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import Verdict, mean
from mlflow_adk_eval.results.sequence import UntilDecided, order_of
from mlflow_adk_eval.runs.examined import ReadableRun
from mlflow_adk_eval.text import counted

Looked = tuple[Check, bool]
"""What a demand comes to so far, and whether more cases or runs could decide it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run until decided has come."""

    order: tuple[str, ...]
    """All cases, in the order in which they are run."""
    left: frozenset[str]
    """Those that were not run."""
    runs: int

    @property
    def share(self) -> float:
        """How much of the error this repetition may spend."""
        return 0.5**self.runs


def progress_of(run: ReadableRun, policy: Policy) -> Progress:
    """Return how far a run until decided has come."""
    order = tuple(chain.from_iterable(_groups(run, policy)))
    return Progress(order, frozenset(order).difference(run.report.eval_set.eval_ids), run.report.num_runs)


def _groups(run: ReadableRun, policy: Policy) -> list[list[str]]:
    digest = run.evidence.params.get("adk_eval.eval_set_digest", "")
    return order_of(run.eval_set.eval_ids, digest, policy.must_pass, run.copies)


def mean_above(values: Sequence[float], bound: float, bounds: tuple[float, float], error: float) -> Verdict:
    """Return *passed* if the mean is above `bound`, *failed* if it is below, else *undecided*; each is wrong with a chance of at most `error`.

    Args:
        values: in the order in which they came, within `bounds`.
        bound: what the mean is compared with, between the bounds.
        bounds: the least and the greatest value that there may be, both finite.
        error: the chance to say so although it is not, at any look.
    """
    low, high = bounds
    spread = (high - low) ** 2 / 4
    for verdict, turned, limit, worst in (("passed", values, bound, low), ("failed", [-value for value in values], -bound, -high)):
        if won(log_wealth(turned, limit, worst=worst, spread=spread), error) and mean(turned) > limit:
            return "passed" if verdict == "passed" else "failed"
    return "undecided"


def won(wealth: Sequence[float], error: float) -> bool:
    """Whether bets ever won as much as they do with a chance of at most `error` if their hypothesis is true."""
    return max(wealth, default=0.0) >= math.log(1 / error)


def look_at_limit(check: Check, target: RuleTarget, limit: Limit, measured: Measured, progress: Progress, left: int) -> Looked:
    """Return what a limit comes to on the cases so far.

    Args:
        check: what it comes to as if there were no others.
        target: the rule.
        limit: the limit.
        measured: the values so far.
        progress: how far the run has come.
        left: how many of the cases that the rule is about were not run.
    """
    cases, value, (low, high) = len(measured.values), measured.value or 0.0, measured.bounds
    if limit.use == "mean":
        ends = [value, *((value * cases + end * left) / (cases + left) for end in (low, high) if left)]
        if len({limit.kept(end) for end in ends}) == 1:
            return check, False
        finding = f"mean {format_number(value)} over {counted(cases, 'case')}; the {left:,} that were not run could still change the answer"
        return target.check(limit.demand, "undecided", finding, cases, value=value, needed=cases + left), True
    if limit.use in ("ci_low", "ci_high") and math.isfinite(high - low):
        # As much as each end of the interval that decides other runs may err.
        values = [measured.means[eval_id] for eval_id in progress.order if eval_id in measured.means]
        verdict = mean_above(values, limit.bound, measured.bounds, (1 - target.confidence) / 2)
        said = {"passed": "is surely above", "failed": "is surely below", "undecided": "is not surely above or below"}[verdict]
        so_far = f"mean {format_number(value)} over {counted(cases, 'case')} so far"
        finding = f"{so_far}: that of cases like these {said} {format_exact(limit.bound)}, by bets"
        if not limit.least and verdict != "undecided":
            verdict = "failed" if verdict == "passed" else "passed"
        return target.check(limit.demand, verdict, finding, cases, value=value), verdict == "undecided"
    if left:
        return target.check(limit.demand, "undecided", _only_whole(cases, left), cases), True
    return check, check.verdict == "undecided"


def _only_whole(cases: int, left: int) -> str:
    return f"it is decided only when all cases were run, and {cases:,} of {cases + left:,} were"


def look_at_drops(drops: Sequence[Drop], progress: Progress, left: Mapping[str, int], *, power: float) -> list[Looked]:
    """Return what each comparison of a policy comes to so far; `left`: by slice, how many of its cases were not run."""
    bets = [_bets(drop, progress) for drop in drops]
    adjusted = iter(holm([p_worse for _, p_worse, _ in filter(None, bets)]))
    looked: list[Looked] = []
    for drop, bet in zip(drops, bets, strict=True):
        cases, to_come = drop.paired.cases, left.get(drop.target.slice, 0) + len(drop.after.values) - drop.paired.cases
        if bet:
            looked.append(_look_at_bets(drop, bet[0], next(adjusted), ended=bet[2]))
            continue
        (check,) = check_drops([drop], power=power)
        if to_come and drop.target.rule.use == "mean":
            span = drop.after.bounds[1] - drop.after.bounds[0]
            ends = [(-drop.paired.difference * cases + end * to_come) / (cases + to_come) for end in (-span, span)]
            if len({end <= drop.max_drop for end in (*ends, -drop.paired.difference)}) > 1:
                finding = f"{drop.change}; the {to_come:,} cases without results in both runs could still change the answer"
                check = drop.check("undecided", finding, needed=cases + to_come)
        elif to_come:
            check = drop.check("undecided", f"{drop.change}; {_only_whole(cases, to_come)}", needed=cases + to_come)
        looked.append((check, check.verdict == "undecided"))
    return looked


def _bets(drop: Drop, progress: Progress) -> tuple[list[float], float, bool] | None:
    """Bet on each case in the order in which they were run; ``None``: there are no bets on this measure.

    Returns:
        The logarithm of the stake after each case, against a drop of `max_drop` or more; how likely it is to win as much against that there is
        no drop, if there is none; and whether the baseline has no more of the cases.
    """
    low, high = drop.after.bounds
    if drop.target.rule.use == "mean" or not math.isfinite(high - low):
        return None
    before, after, sign = drop.before.means, drop.after.means, 1.0 if drop.after.greater_is_better else -1.0
    cases = [eval_id for eval_id in progress.order if eval_id in after]
    both = takewhile(before.__contains__, cases)  # what comes later might have been left out by choice
    differences = [sign * (after[eval_id] - before[eval_id]) for eval_id in both]
    # How much to bet follows from the baseline alone, which was known before.
    middle = mean(before.values())
    spread = 2 * mean((value - middle) ** 2 for value in before.values())
    worst, planned = low - high, drop.max_drop or None
    larger = log_wealth(differences, -drop.max_drop, worst=worst, planned=None if planned is None else 0.0, spread=spread)
    worse = log_wealth([-each for each in differences], 0.0, worst=worst, planned=planned, spread=spread)
    return larger, math.exp(-max(worse, default=0.0)), len(differences) < len(cases)


def _look_at_bets(drop: Drop, against_larger: list[float], p_adjusted: float, *, ended: bool) -> Looked:
    error, allowed = 1 - drop.target.confidence, format_exact(drop.max_drop)
    level = f"at {format_percent(1 - error)} confidence, however often one looks"
    verdict: Verdict = "undecided"
    finding = f"{drop.change}, but neither a drop beyond {allowed} is excluded nor is it shown that there is any, {level}"
    finding += "; evaluate the baseline again: its run has no more of these cases" if ended else ""
    if drop.small and won(against_larger, error):
        verdict, finding = "passed", f"{drop.change}; a drop beyond the allowed {allowed} is excluded {level}"
    elif not drop.small and p_adjusted <= error:
        verdict, finding = "failed", f"{drop.change_as_allowed}, and a drop is shown {level}"
    return replace(drop.check(verdict, finding, p_adjusted), low=None, high=None), verdict == "undecided" and not ended


def look_at_threshold(check: Check, left: int) -> Check:
    """Return what the thresholds of a criterion come to while so many cases were not run."""
    reason = f"{check.reason}; {counted(left, 'case')} {'was' if left == 1 else 'were'} not run"
    return replace(check, verdict="undecided", reason=reason) if check.verdict == "passed" and left else check


def sequence_problems(
    run: ReadableRun, found: UntilDecided, policy: Policy, baseline_sha256: str, open_in: Callable[[ReadableRun], Sequence[str]]
) -> Iterator[str]:
    """Yield where a run until decided did not go as eval set, policy and results say.

    Args:
        run: the run.
        found: how it says that it went.
        policy: what is demanded.
        baseline_sha256: the hash of the evidence that it is compared with; empty where nothing is compared.
        open_in: returns the demands that are open in a run that is as far as this one was in a round.
    """
    if found.policy_sha256 != policy.digest():
        digests = f"its digest is {found.policy_sha256[:12]}…, but this one's is {policy.digest()[:12]}…"
        remedy = "run it again with this policy (`run --until-decided --policy`)"
        yield f"the run stopped when another policy was decided: {digests}; {remedy}"
        return
    if way := _wrong_way(run, policy, found):
        yield way
        return
    if decided := next((number for number, one in enumerate(found.rounds[:-1], start=1) if not one.open), 0):
        yield f"the run went on after round {decided}, although it says that nothing was open"
    if found.baseline_sha256 != baseline_sha256:
        then, now = (f"evidence {sha256[:12]}…" if sha256 else "nothing" for sha256 in (found.baseline_sha256, baseline_sha256))
        yield f"the run stopped when it was compared with {then}, but it is compared with {now} now; run it again (its conversations are in the ledger)"
        return
    for number, one in enumerate(found.rounds, start=1):
        if (again := tuple(open_in(_as_of(run, found.order[: one.cases], one.runs)))) != one.open:
            said, looked = (", ".join(names) or "nothing" for names in (one.open, again))
            yield f"after round {number} ({counted(one.cases, 'case')}), the run says that {said} was open; the results say {looked}"
            return


def _wrong_way(run: ReadableRun, policy: Policy, found: UntilDecided) -> str:
    """Return where cases or rounds are others than eval set and policy allow; empty where they are not."""
    groups, evaluated = _groups(run, policy), set(run.report.eval_set.eval_ids)
    order, ends, here = [*chain.from_iterable(groups)], {*accumulate(map(len, groups))}, (run.report.num_runs, len(evaluated))
    for place, (given, wanted) in enumerate(zip(found.order, order, strict=False), start=1):
        if given != wanted:
            return (
                f"the cases were not run in the order that follows from eval set and policy: number {place} is {given!r}; wanted {wanted!r}"
            )
    if len(found.order) != len(order):
        return f"the run's order has {counted(len(found.order), 'case')}; wanted {len(order)}"
    if absent := [eval_id for eval_id in order[: len(evaluated)] if eval_id not in evaluated]:
        return f"the run does not have the first {counted(len(evaluated), 'case')} of its order: it leaves out {absent[0]!r}"
    if skipped := [eval_id for eval_id in policy.must_pass if eval_id in order and eval_id not in evaluated]:
        return f"the run stopped before it came to {skipped[0]!r}, which must pass"
    steps = [(one.runs, one.cases) for one in found.rounds]
    whole = all(cases in ends and (runs == 1 or cases == len(order)) for runs, cases in steps)
    onwards = all(one < other for one, other in pairwise(steps)) and {runs for runs, _ in steps} == {*range(1, here[0] + 1)}
    if whole and onwards and steps[-1:] == [here]:
        return ""
    return f"the rounds of the run do not lead to {counted(here[1], 'case')} with {counted(here[0], 'run')} of each: {steps}"


def _as_of(run: ReadableRun, eval_ids: Sequence[str], runs: int) -> ReadableRun:
    """Return a run as it was when it had so many cases and runs of each."""
    had = set(eval_ids)
    cases = run.report.cases.changed(lambda case: case if case.eval_id in had and case.run_index < runs else None)
    return replace(run, report=replace(run.report, eval_set=select(run.report.eval_set, had), cases=cases, num_runs=runs))
