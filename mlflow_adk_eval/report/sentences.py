"""The sentences and number formats that every page shares: terminal, Markdown and HTML.

A page decides where a fact stands and how it is escaped; how the fact is worded is decided here, so that the terminal, the note in
MLflow, the summary of a CI job and the HTML report never contradict each other. The functions named ``format_*`` return plain text
without markup, which may quote texts of others: whoever shows it escapes it. (What a comparison of two runs says is in `comparison`.)

`circumstances` collects what a reader should know besides the verdict: how simulated conversations ended, which tool calls the tool
environment changed, and what the models took. `pass_hat_lines` and `spread_lines` do the same for repeated runs, as rows of a table.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from mlflow_adk_eval.analysis.stats.intervals import Interval, mean_interval
from mlflow_adk_eval.evalset.conversation import REPLAYED, Ending, EndReason, Injection, InjectionKind
from mlflow_adk_eval.evalset.world import World
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import Verdict, reaches
from mlflow_adk_eval.results.repeats import CaseRepeats, Repeats
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runs.ignored_calls import ignored_calls_of
from mlflow_adk_eval.runs.replays import Replays, replays_of
from mlflow_adk_eval.text import counted, format_number

_KINDS: dict[InjectionKind, str] = {"error": "error", "response": "response", "latency": "delay"}
_BOUND = re.compile(r"\d+(?:\.\d+)?")
_MOST_TOOLS = 5
_MOST_RUNS = 10


def format_threshold(threshold: float | None, *, greater_is_better: bool, missing: str = "") -> str:
    """Return a threshold with its relation, such as ``≥ 0.8``; `missing` where there is none."""
    return missing if threshold is None else f"{'≥' if greater_is_better else '≤'} {threshold:g}"


def format_evidence(mean: float | None, threshold: float | None, scored: int, planned: int) -> str:
    """Return a mean, and what it rests on where something is missing.

    >>> format_evidence(1.0, 0.8, 8, 11), format_evidence(None, 0.8, 0, 11), format_evidence(None, None, 0, 0)
    ('1 · 8 of 11 scored', '0 of 11 scored', '–')
    """
    evidence = format_scored(scored, planned)
    return evidence if evidence and mean is None else " · ".join(filter(None, (format_mean(mean, threshold), evidence)))


def format_share(verdicts: Sequence[Verdict], num_runs: int = 1, until_decided: object = None) -> str:
    """Return how many cases passed; of repeated runs, how many case runs; and how many there are, if not all were run.

    >>> format_share(["passed", "failed"]), format_share(["passed"], num_runs=2)
    ('1 of 2 cases passed', '1 of 1 case run passed')
    """
    scope = f" · {until_decided}" if until_decided else ""
    return f"{verdicts.count('passed'):,} of {counted(len(verdicts), 'case' if num_runs == 1 else 'case run')} passed{scope}"


def format_mean(value: float | None, threshold: float | None = None, missing: str = "–") -> str:
    """Return a mean with four digits, or as many more as it takes not to read like a threshold on whose other side it is.

    >>> format_mean(0.79999, 0.8), format_mean(0.8, 0.8), format_mean(2 / 3), format_mean(None)
    ('0.79999', '0.8', '0.6667', '–')
    """
    same = value is None or threshold is None or (reaches(value, threshold) and reaches(threshold, value))
    return format_number(value, missing, unlike=None if same else threshold)


def format_checked(check: Check) -> str:
    """Return the value of a check, with so many digits that it does not read like the number that it missed."""
    bound = _BOUND.search(check.demand) if check.verdict != "passed" else None
    return format_number(check.value, "", unlike=float(bound[0]) if bound else None)


def format_cases(check: Check) -> str:
    """Return the number of cases that a check rests on, and of how many where some have no score."""
    return f"{check.cases} of {check.cases + check.missing}" if check.missing else str(check.cases)


def format_scored(scored: int, planned: int) -> str:
    """Return how many of the planned scores a number rests on; empty where it rests on all.

    >>> format_scored(8, 11), format_scored(11, 11)
    ('8 of 11 scored', '')
    """
    return "" if scored == planned else f"{scored:,} of {planned:,} scored"


def format_missing(missing: int | None, planned: int | None) -> str:
    """Return what a run that is listed lacks behind a mean; empty where it lacks nothing.

    >>> format_missing(3, 11), format_missing(3, None), format_missing(None, None), format_missing(0, None)
    ('8 of 11 scored', '3 not scored', 'scored: unknown', '')
    """
    if missing is None:
        return "scored: unknown"
    return format_scored(planned - missing, planned) if planned else f"{missing:,} not scored" if missing else ""


def format_judge_usage(usage: JudgeUsage) -> str:
    """Return what the judges took, and how far they agreed.

    >>> format_judge_usage(JudgeUsage(calls=7, failed_calls=1, input_tokens=2000, calls_saved=4, votes=6, dissenting_votes=1, models=("m",)))
    'Judged by m: 7 calls (1 failed), 2,000 tokens, 4 votes saved by stopping early; 16.7% of 6 votes disagree with the verdict'
    """
    by = f" by {', '.join(usage.models)}" if usage.models else ""
    members = [
        f"; {name} voted with the panel in {agreeing} of {agreeing + against}" + (f" and did not vote in {missing}" if missing else "")
        for name, (agreeing, against, missing) in sorted(usage.members.items())
    ]
    agreement = ""
    if usage.flip_rate is not None:
        agreement = f"; {usage.flip_rate:.1%} of {counted(usage.votes - usage.lone_votes, 'vote')} disagree with the verdict"
    elif usage.votes:
        agreement = f"; each of {counted(usage.ballots, 'verdict')} rests on one vote, so the judge's consistency is unknown"
    return f"Judged{by}: {', '.join(_consumption(usage))}{agreement}{''.join(members)}"


def format_user_usage(usage: JudgeUsage) -> str:
    """Return what the models that simulated users took.

    >>> format_user_usage(JudgeUsage(calls=7, input_tokens=2000, reused=1, models=("m",)))
    'Users simulated by m: 7 calls, 2,000 tokens, 1 answer reused from the ledger'
    """
    return f"Users simulated by {', '.join(usage.models)}: {', '.join(_consumption(usage))}"


def _consumption(usage: JudgeUsage) -> Iterator[str]:
    yield counted(usage.calls, "call") + (f" ({usage.failed_calls:,} failed)" if usage.failed_calls else "")
    yield counted(usage.tokens, "token")
    if usage.calls_saved:
        yield f"{counted(usage.calls_saved, 'vote')} saved by stopping early"
    if usage.reused:
        others = f" ({usage.asked_elsewhere:,} from other evaluations)" if usage.asked_elsewhere else ""
        yield f"{counted(usage.reused, 'answer')} reused from the ledger{others}"
    if usage.shared:
        yield f"{counted(usage.shared, 'answer')} shared between identical questions"
    if usage.repaired:
        yield f"{counted(usage.repaired, 'answer')} read despite a format error (a code fence, or raw line breaks in a string)"


def format_outages(judging: JudgeUsage | None, simulating: JudgeUsage | None) -> str:
    """Return a sentence on the judges and the models that simulate users that were given up; empty where none was."""
    models = {"a judge": judging, "the user simulator": simulating}
    return "; ".join(f"{model} stopped responding: {usage.outage}" for model, usage in models.items() if usage and usage.outage)


class HasCourse(Protocol):
    """A conversation or a line on one: anything that knows how it ended and which tool calls were not the real ones."""

    @property
    def ending(self) -> Ending | None:
        """Why the simulated user ended it."""

    @property
    def injections(self) -> tuple[Injection, ...]:
        """What the tool environment did."""
        ...


def circumstances(
    of: Report | Iterable[HasCourse], judging: JudgeUsage | None = None, simulating: JudgeUsage | None = None
) -> dict[str, str]:
    """Return sentences on how results came about, each by what it is about, as far as there is something to say.

    Args:
        of: an evaluation, or what is known of its conversations alone.
        judging: what judges took, where that is not the evaluation's.
        simulating: what the models that played users took, likewise.
    """
    replayed = ignored = ""
    if isinstance(of, Report):
        ignored = str(ignored_calls_of(of))
        replayed = format_replays(of.world, replays_of(of)) if of.world else ""
        judging, simulating, of = of.judging, of.simulating, of.cases.courses()
    endings: list[Ending] = []
    injections: list[Injection] = []
    for course in of:
        endings += [course.ending] if course.ending else []
        injections += (injection for injection in course.injections if injection.kind not in REPLAYED)
    return {
        **({"Calls not expected": ignored} if ignored else {}),
        **({"Recordings": replayed} if replayed else {}),
        **({"Endings": format_endings(endings)} if endings else {}),
        **({"Tool environment": format_injections(injections)} if injections else {}),
        **({"Simulated users": format_user_usage(simulating)} if simulating else {}),
        **({"Judges": format_judge_usage(judging)} if judging else {}),
    }


def format_replays(world: World, found: Replays) -> str:
    """Return how much a recording answered, or that one was made.

    >>> format_replays(World(tools="record", digest=f"sha256:{'a' * 64}"), Replays(calls=3))
    'Recorded: 3 tool calls, as sha256:aaaaaaaaaaaa…'
    """
    recorded, replayed = f"Recorded: {counted(found.calls, 'tool call')}, as", f"Replayed: {found.tools}, {found.models}, from"
    did = recorded if world.tools == "record" else replayed
    return f"{did} {world.digest[:19]}…" + (", others made and added" if world.tools == "live" else "")


def format_endings(endings: Sequence[Ending]) -> str:
    """Return how simulated conversations ended.

    >>> format_endings([Ending(reason="goal")] * 2 + [Ending(reason="limit", detail="max_allowed_invocations of 20"), Ending(reason="error")])
    '4 simulated conversations: 2 reached the goal, 1 hit the limit (max_allowed_invocations of 20), 1 broke off'
    """
    counts = Counter(ending.reason for ending in endings)
    limits = dict.fromkeys(ending.detail for ending in endings if ending.reason == "limit" and ending.detail)
    at_limit = f"hit the limit ({', '.join(limits)})" if limits else "hit the limit"
    ways: dict[EndReason, str] = {"goal": "reached the goal", "limit": at_limit, "error": "broke off"}
    by_way = ", ".join(f"{counts[reason]:,} {way}" for reason, way in ways.items() if counts[reason])
    return f"{counted(len(endings), 'simulated conversation')}: {by_way}"


def format_injections(injections: Sequence[Injection]) -> str:
    """Return what the tool environment did.

    >>> once = Injection(invocation_index=0, tool="book", kind="error")
    >>> format_injections([once, once, Injection(invocation_index=1, tool="find", kind="latency", latency_s=2)])
    'The tool environment answered or delayed 3 calls: 2 errors, 1 delay; by tool: book 2, find 1'
    """
    kinds = Counter(injection.kind for injection in injections)
    tools = Counter(injection.tool for injection in injections).most_common()
    what = ", ".join(counted(kinds[kind], noun) for kind, noun in _KINDS.items() if kinds[kind])
    named = ", ".join(f"{tool} {count:,}" for tool, count in tools[:_MOST_TOOLS])
    others = f" and {len(tools) - _MOST_TOOLS} others" if len(tools) > _MOST_TOOLS else ""
    return f"The tool environment answered or delayed {counted(len(injections), 'call')}: {what}; by tool: {named}{others}"


class PassHatLine(NamedTuple):
    """Pass^k over all cases."""

    k: int
    mean: float
    interval: Interval | None
    bounds: str
    """The interval as text; empty where there is none."""


def pass_hat_lines(repeats: Repeats) -> Iterator[PassHatLine]:
    """Yield pass^k for each `k` that is shown, with its interval by case; nothing without cases."""
    for k in repeats.ks:
        chance, interval = repeats.pass_hat(k), mean_interval({case.eval_id: [case.pass_hat(k)] for case in repeats.cases})
        if chance is not None:
            yield PassHatLine(k, chance, interval, f"{interval[0]:.1%} to {interval[1]:.1%}" if interval else "")


SPREAD_HEADINGS = ("criterion", "lowest run", "highest run", "between runs", "within a case", "between cases", "cases")


def spread_lines(repeats: Repeats) -> Iterator[tuple[str, ...]]:
    """Yield a row for each criterion under `SPREAD_HEADINGS`, as text; a dash where a number cannot be computed.

    The lowest and the highest mean of a run, then standard deviations: of the means of the runs, of the runs of a case, and of the
    cases. Last, how many cases have a score in every run.
    """
    for spread in repeats.criteria.values():
        deviations = (None if value is None else math.sqrt(value) for value in (spread.within_variance, spread.between_variance))
        numbers = (min(spread.run_means, default=None), max(spread.run_means, default=None), spread.run_std, *deviations)
        cases = str(spread.complete) if spread.complete == spread.planned else f"{spread.complete} of {spread.planned}"
        yield spread.criterion, *map(format_number, numbers), cases


def format_run_rates(repeats: Repeats) -> str:
    """Return the share of the cases that passed in each run; of many runs, of the first."""
    rates = [f"{rate:.1%}" for rate in repeats.run_pass_rates[:_MOST_RUNS]]
    more = repeats.num_runs - len(rates)
    return ", ".join(rates) + (f" and {more} more" if rates and more else "")


def format_ranges(repeats: Repeats, case: CaseRepeats) -> str:
    """Return between what the scores of a case vary, for the criteria that decide."""
    return ", ".join(
        f"{name} {found[0]:.4g} to {found[1]:.4g}"
        for name, criterion in repeats.criteria.items()
        if criterion.decides and (found := case.score_range(name)) and found[0] < found[1]
    )


def format_flaky(repeats: Repeats) -> str:
    """Return how many cases are flaky, as a sentence."""
    count = len(repeats.flaky)
    if not count:
        return f"No case is flaky: all {repeats.num_runs} runs of each agree"
    return f"{count} of {counted(len(repeats.cases), 'case')} {'is' if count == 1 else 'are'} flaky"
