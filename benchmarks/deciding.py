"""What a year of decisions comes to: judges that change, candidates that come again and again, runs that stop when they are decided.

The decisions are those of the gate's own functions. Where each case passes or fails, they depend on the numbers of better and worse cases
alone, so each pair of numbers is decided once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from populations import PASSING, Pairs, Passing
from simulation import ALPHA, CONFIDENCE, by_case, luck_of

from mlflow_adk_eval.analysis.drift import PLANNED, changes_of
from mlflow_adk_eval.analysis.stats.betting import log_evidence, log_wealth
from mlflow_adk_eval.analysis.stats.bound import chance_of
from mlflow_adk_eval.analysis.stats.paired import compare_paired
from mlflow_adk_eval.gating.drift import Change, JudgeDrift, JudgeHistory
from mlflow_adk_eval.gating.policy.model import Spend
from mlflow_adk_eval.gating.rules.attempts import share_of
from mlflow_adk_eval.gating.rules.limits import drop_verdict

MAX_DROP = 0.05
ROUND, GROWTH = 20, 1.5
"""Cases of the first round of a run until decided, and how many times as many there are after each further one."""


@lru_cache(None)
def verdict(worse: int, better: int, cases: int, max_drop: float, error: float) -> str:
    """Return what the gate says where so many cases pass no more, and so many pass now."""
    before = {str(case): [float(not worse <= case < worse + better)] for case in range(cases)}
    after = {str(case): [float(case >= worse)] for case in range(cases)}
    found = compare_paired(before, after, confidence=1 - 2 * error)
    assert found
    return drop_verdict(found, max_drop=max_drop, confidence=1 - error, p_adjusted=found.p_worse)


@lru_cache(None)
def verdict_before(worse: int, better: int, cases: int) -> str:
    """Return whether the gate said *passed* when no worse case among twenty was enough, and the interval was Student's with imagined cases."""
    from scipy.special import stdtrit

    lost = (worse - better) / cases
    if lost > MAX_DROP + 1e-9:
        return "failed" if worse and _tail(worse, worse + better) <= ALPHA else "undecided"
    changed = worse + better
    imagined = 2 * (max(cases - changed, worse, better) / cases) ** 2
    typical, total = (changed + 0.25) / (changed + 0.25), cases + imagined
    middle = -lost * cases / total
    variance = max((changed + imagined * typical) / total - middle * middle, 0.0)
    low = min(-lost, middle - float(stdtrit(max(cases - 1, 1), CONFIDENCE)) * math.sqrt(variance / max(total - 1, 1.0)))
    return "passed" if (not worse and cases >= 20) or -low <= MAX_DROP + 1e-9 else "undecided"


@lru_cache(None)
def excluded(worse: int, better: int, cases: int) -> float:
    """Return the error from which on `verdict` says *passed*: there are too many errors that are spent to ask for each."""
    imagined = 1  # beside the cases, one that came to the worst
    values, counts = np.unique([-1.0] * (worse + imagined) + [1.0] * better + [0.0] * (cases - worse - better), return_counts=True)
    return chance_of(values, counts, -MAX_DROP)


def _tail(worse: int, changed: int) -> float:
    from scipy.special import bdtrc

    return float(bdtrc(worse - 1, changed, 0.5))


class Submitted(NamedTuple):
    """Candidates against one champion, on the same cases."""

    population: Passing
    kept: float = 0.0
    """In which share of the cases a candidate does as the one before it."""
    runs: int = 1
    """How many runs of each there are, of which the best is submitted."""


def promoted(of: Submitted, cases: int, histories: int) -> dict[str, float]:
    """Return how often any of 20 and of 100 submissions is promoted, each 5 points worse than the champion, by how the error is spent.

    The champion's results stay the same, and so do the cases.
    """
    luck = luck_of("promoted", of.population.name, of.kept, of.runs, cases)
    ability = of.population.ability(luck, (histories, cases))
    champion = luck.random(ability.shape) < ability
    now = luck.random(ability.shape) < ability - MAX_DROP
    any_of: dict[str, Any] = {}
    for number in range(1, 101):
        best = None
        for _ in range(of.runs):
            now = np.where(luck.random(ability.shape) < of.kept, now, luck.random(ability.shape) < ability - MAX_DROP)
            run = (champion & ~now).sum(axis=1), (~champion & now).sum(axis=1)
            better = True if best is None else run[1] - run[0] > best[1] - best[0]
            best = run if best is None else tuple(np.where(better, new, old) for new, old in zip(run, best, strict=True))
        assert best
        old, whole = (
            [decide(int(worse), int(better)) == "passed" for worse, better in zip(*best, strict=True)] for decide in _deciders(cases)
        )
        said: dict[str | int, Spend] = {
            "unlimited": "unlimited",
            **({100: 100} if number <= 100 else {}),
            **({20: 20} if number <= 20 else {}),
        }
        if number <= 20:
            any_of["before"] = any_of.get("before", False) | np.array(old)
            any_of["all"] = any_of.get("all", False) | np.array(whole)
        if number == 1:
            any_of |= {"one, before": np.array(old), "one": np.array(whole)}
        for name, spend in said.items():
            some = np.array(
                [excluded(int(worse), int(better), cases) <= ALPHA * share_of(spend, number) for worse, better in zip(*best, strict=True)]
            )
            any_of[str(name)] = any_of.get(str(name), False) | some
            if number == 20:
                any_of[f"{name} after 20"] = any_of[str(name)].copy()
    return {name: float(np.mean(some)) for name, some in any_of.items()}


def _deciders(cases: int) -> tuple[Callable[[int, int], str], Callable[[int, int], str]]:
    """Return what decided before, and what decides now with the whole error."""
    return partial(verdict_before, cases=cases), partial(verdict, cases=cases, max_drop=MAX_DROP, error=ALPHA)


class Asked(NamedTuple):
    """Two versions, and the drop that is allowed."""

    pairs: Pairs | Passing
    drop: float
    max_drop: float


def said(asked: Asked, cases: int, repetitions: int) -> dict[str, float]:
    """Return how often the gate says *passed*, *undecided* and *failed* on so many cases."""
    luck, found = luck_of("said", asked.pairs.name, asked.drop, asked.max_drop, cases), Counter[str]()
    if isinstance(asked.pairs, Passing):
        drawn = luck.multinomial(cases, asked.pairs.changes(asked.drop), size=repetitions)
        found.update(verdict(int(worse), int(better), cases, asked.max_drop, ALPHA) for worse, better, _ in drawn)
    else:
        for _ in range(repetitions):
            paired = compare_paired(*map(by_case, asked.pairs.draw(luck, cases)), confidence=2 * CONFIDENCE - 1)
            assert paired
            found[drop_verdict(paired, max_drop=asked.max_drop, confidence=CONFIDENCE, p_adjusted=paired.p_worse)] += 1
    return {word: found[word] / repetitions for word in ("passed", "undecided", "failed")}


def looks(most: int) -> list[int]:
    """Return how many cases there are after each round."""
    sizes = [ROUND]
    while sizes[-1] < most:
        sizes.append(min(most, math.ceil(sizes[-1] * GROWTH)))
    return sizes


def betting(gains: Sequence[float], spread: float, max_drop: float) -> tuple[str, int]:
    """Return what a run until decided says of the differences of its cases in their order, and after how many cases.

    The bets and the looks are those of `gating.rules.sequential` and `tracking.until_decided`, with the error of the first repetition, half
    of the whole. They are worked out once here, and there again at each look.
    """
    wanted, total = math.log(2 / ALPHA), list(accumulate(gains))
    against = {
        "passed": log_wealth(gains, -max_drop, worst=-1.0, planned=0.0, spread=spread),
        "failed": log_wealth([-gain for gain in gains], 0.0, worst=-1.0, planned=max_drop, spread=spread),
    }
    won = {word: next((place for place, wealth in enumerate(logs, 1) if wealth >= wanted), math.inf) for word, logs in against.items()}
    for cases in looks(len(gains)):
        word = "passed" if -total[cases - 1] <= max_drop * cases + 1e-9 else "failed"
        if won[word] <= cases:
            return word, cases
    return "undecided", len(gains)


def until_decided(asked: Asked, most: int, histories: int) -> dict[str, float]:
    """Return how often a run until decided passes, fails and stays undecided with at most so many cases, and how many it takes on average."""
    luck, found, taken = luck_of("until", asked.pairs.name, asked.drop, asked.max_drop, most), Counter[str](), 0
    assert isinstance(asked.pairs, Passing)
    for _ in range(histories):
        ability = asked.pairs.ability(luck, most)
        before, after = luck.random(most) < ability, luck.random(most) < ability - asked.drop
        rate = float(before.mean())
        word, cases = betting((after.astype(float) - before).tolist(), 2 * rate * (1 - rate), asked.max_drop)
        found[word] += 1
        taken += cases
    return {**{word: found[word] / histories for word in ("passed", "undecided", "failed")}, "cases": taken / histories}


def fixed(asked: Asked, cases: int, repetitions: int) -> dict[str, float]:
    """Return how often the gate says *passed* and *failed* on so many cases, by where its verdicts change (`_most_worse`)."""
    assert isinstance(asked.pairs, Passing)
    drawn = luck_of("fixed", asked.pairs.name, asked.drop, cases).multinomial(cases, asked.pairs.changes(asked.drop), size=repetitions)
    passes = {int(better): _most_worse(int(better), cases) for better in np.unique(drawn[:, 1])}
    passed = sum(int(worse) <= passes[int(better)] for worse, better, _ in drawn)
    failed = sum(
        worse - better > MAX_DROP * cases + 1e-9 and _tail(int(worse), int(worse + better)) <= ALPHA + 1e-9 for worse, better, _ in drawn
    )
    return {"passed": passed / repetitions, "failed": failed / repetitions}


@lru_cache(None)
def _most_worse(better: int, cases: int) -> int:
    """Return with how many worse cases at most the gate says *passed*, -1: with none."""
    low, high = -1, better + math.ceil(MAX_DROP * cases)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if excluded(middle, better, cases) <= ALPHA else (low, middle - 1)
    return low


DRAWS = 4_000
"""Samples of a fixed number of cases."""
SCENARIOS = {"unchanged": 0.0, "5 points worse": 0.05, "10 points worse": 0.1}


def saved(population: Passing, most: int, histories: int) -> dict[str, float]:
    """Return the cases that a run until decided takes in each scenario, and those of a fixed number with the same power.

    The fixed number is the least of a grid by 5 % with which an unchanged version passes, and one 10 points worse fails, at least as often,
    or in 99 %: few histories do not show more.
    """
    runs = {name: until_decided(Asked(population, drop, MAX_DROP), most, histories) for name, drop in SCENARIOS.items()}
    powers = {"unchanged": "passed", "10 points worse": "failed"}

    def enough(cases: int) -> bool:
        return all(
            fixed(Asked(population, SCENARIOS[name], MAX_DROP), cases, DRAWS)[word] >= runs[name][word] for name, word in powers.items()
        )

    grid = [round(ROUND * 1.05**step) for step in range(120)]
    low, high = 0, len(grid) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(grid[middle]) else (middle + 1, high)
    cases = grid[low]
    return {
        "fixed": cases,
        "power": min(runs[name][word] for name, word in powers.items()),
        "error": max(runs["5 points worse"]["passed"], runs["unchanged"]["failed"]),
        **{name: run["cases"] for name, run in runs.items()},
        "share": sum(run["cases"] for run in runs.values()) / len(runs) / cases,
    }


class Judge(NamedTuple):
    """A judge that judges single votes of answers again."""

    flips: float
    """How often a vote differs from most others on the same answer."""
    anchors: int
    """How many answers it judges again in each run."""
    change: float = 0.0
    """By how much it becomes more lenient, or stricter below 0."""


VOTES, STEADY, WITHIN = 5, 5, 20
"""Votes of each answer before; runs before a change; and runs within which it is to be found."""


def histories_of(judge: Judge, luck: Generator, runs: int) -> list[tuple[str, list[float]]]:
    found: list[tuple[str, list[float]]] = []
    for run in range(runs):
        likely = np.where(luck.random(judge.anchors) < 0.7, 1 - judge.flips, judge.flips)
        before = luck.binomial(VOTES, likely) / VOTES
        # A change of the pass rate by so many points: of the votes that could change, as many as that takes.
        change = judge.change if run >= STEADY else 0.0
        mean = 0.7 * (1 - judge.flips) + 0.3 * judge.flips
        later = likely + change * (1 - likely) / (1 - mean) if change > 0 else likely + change * likely / mean
        found.append((f"run {run}", ((luck.random(judge.anchors) < later) - before).tolist()))
    return found


class Followed(NamedTuple):
    """What came of a change of a judge."""

    wait: int | None
    """In the how manyth run after it the change is found; ``None``: not within 20, or one was found before there was any."""
    before: list[bool]
    """Of each run until then, whether the verdict is wrong because of the judge."""
    after: list[bool]
    """The same of the run in which it is found, and of the last one, with `max_drift`."""


def changes_found(judge: Judge, _: int, histories: int) -> list[Followed]:
    """Return what came of changes of a judge.

    Each run after the change is a candidate with 200 cases, compared with a champion that the judge judged before. A verdict is wrong if an
    equal candidate *failed* as the judge became stricter, or one that is worse by `MAX_DROP` *passed* as it became more lenient.
    """
    found: list[Followed] = []
    population, wrong = PASSING[0], "failed" if judge.change < 0 else "passed"
    seeming = population.changes(-judge.change if judge.change < 0 else MAX_DROP - judge.change)
    for history in range(histories):
        luck = luck_of("change", judge, history)
        seen = histories_of(judge, luck, STEADY + WITHIN)
        champion = int(luck.integers(STEADY))
        counts = luck.multinomial(200, seeming, size=WITHIN)
        misled = [verdict(int(worse), int(better), 200, MAX_DROP, ALPHA) == wrong for worse, better, _ in counts]
        crossed = first_crossing(seen)
        wait = None if crossed is None or crossed < STEADY else crossed - STEADY + 1
        after = [
            misled[run - STEADY] and not stopped(seen[: run + 1], champion)
            for run in (STEADY + (wait or 0) - 1, STEADY + WITHIN - 1)
            if wait
        ]
        found.append(Followed(wait, misled[: (wait or WITHIN + 1) - 1], after))
    return found


def first_crossing(seen: Sequence[tuple[str, Sequence[float]]]) -> int | None:
    """Return in which of the runs `changes_of` first finds a change, if it is asked after each of them."""
    gains = log_evidence([values for _, values in seen], planned=PLANNED)
    return next((place for place, gain in enumerate(gains) if gain >= math.log(1 / ALPHA)), None)


def stopped(seen: Sequence[tuple[str, Sequence[float]]], champion: int) -> bool:
    """Whether the gate compares the last run with the champion's no more, with `max_drift`: one was judged before a change, one after it."""
    changes, _ = changes_of([(run_id, [("", one) for one in values]) for run_id, values in seen])
    places = {run_id: place for place, (run_id, _) in enumerate(seen)}
    history = JudgeHistory(
        judge="judge",
        changes=tuple(Change(drift=one, since=places[one.since_run], unsure=tuple(map(places.__getitem__, one.unsure))) for one in changes),
    )
    return bool(JudgeDrift(histories={"judged": history}).between("judged", MAX_DROP, [champion, len(seen) - 1]))


def false_alarms(judge: Judge, runs: int, histories: int) -> float:
    """Return how often a judge that never changes is said to have changed, in so many looks."""
    luck = luck_of("steady", judge)
    likely = np.where(luck.random((histories, runs, judge.anchors)) < 0.7, 1 - judge.flips, judge.flips)
    gaps = (luck.random(likely.shape) < likely) - luck.binomial(VOTES, likely) / VOTES
    return float((evidence_of(gaps) >= math.log(1 / ALPHA)).any(axis=1).mean())


def evidence_of(gaps: Any) -> Any:
    """Return what `log_evidence` returns for each of many histories at once; `gaps`: by history, run and anchor."""
    histories, runs, anchors = gaps.shape
    logs, rest = np.full((histories, runs), -np.inf), 1.0
    for start in range(runs):
        share = 1 / ((start + 1) * (start + 2))
        rest -= share
        for sign in (1, -1):
            values = sign * gaps[:, start:].reshape(histories, -1).T
            wealth, squares = np.zeros(histories), np.full(histories, 10 * 0.05)
            for count, value in enumerate(values):
                bet = np.minimum(PLANNED / (squares / (10 + count) + PLANNED**2), 0.75)
                wealth += np.log1p(bet * value)
                squares += (value - PLANNED) ** 2
                if count % anchors == anchors - 1:
                    at = start + count // anchors
                    logs[:, at] = np.logaddexp(logs[:, at], math.log(share / 2) + wealth)
        logs[:, start] = np.logaddexp(logs[:, start], math.log(rest))
    return logs


def misjudged(population: Passing, cases: int, histories: int) -> tuple[float, float]:
    """Return how often, when the judge has changed by 5 points in between, a worse candidate passed and an equal one failed, as it was decided before."""
    luck = luck_of("misjudged", population.name, cases)
    lenient = luck.multinomial(cases, population.changes(0.0), size=histories)
    strict = luck.multinomial(cases, population.changes(0.05), size=histories)
    passed = sum(verdict_before(int(worse), int(better), cases) == "passed" for worse, better, _ in lenient)
    failed = sum(verdict_before(int(worse), int(better), cases) == "failed" for worse, better, _ in strict)
    return passed / histories, failed / histories
