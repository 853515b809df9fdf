"""How simulated conversations ended and where tools were not the real ones, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mlflow_adk_eval.evalset.conversation import Ending, EndReason, Injection, InjectionKind
from mlflow_adk_eval.report.tally import CaseLine
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage


def accounts(usage: JudgeUsage) -> str:
    """Return what the judges took, and how far they agreed.

    >>> accounts(JudgeUsage(calls=7, failed_calls=1, input_tokens=2000, calls_saved=4, votes=6, dissenting_votes=1, models=("m",)))
    'Judged by m: 7 calls (1 failed), 2,000 tokens, 4 votes saved by stopping early; 16.7% of 6 votes went against their verdict'
    """
    by = f" by {', '.join(usage.models)}" if usage.models else ""
    agreed = "" if usage.flip_rate is None else f"; {usage.flip_rate:.1%} of {_count(usage.votes, 'vote')} went against their verdict"
    return f"Judged{by}: {', '.join(_taken(usage))}{agreed}"


def accounts_of_users(usage: JudgeUsage) -> str:
    """Return what the models that played users took.

    >>> accounts_of_users(JudgeUsage(calls=7, input_tokens=2000, reused=1, models=("m",)))
    'Users played by m: 7 calls, 2,000 tokens, 1 answer reused from the ledger'
    """
    return f"Users played by {', '.join(usage.models)}: {', '.join(_taken(usage))}"


def _taken(usage: JudgeUsage) -> Iterator[str]:
    yield _count(usage.calls, "call") + (f" ({usage.failed_calls:,} failed)" if usage.failed_calls else "")
    yield _count(usage.tokens, "token")
    if usage.calls_saved:
        yield f"{_count(usage.calls_saved, 'vote')} saved by stopping early"
    if usage.reused:
        yield f"{_count(usage.reused, 'answer')} reused from the ledger"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def outage_of(usage: JudgeUsage | None) -> str:
    """Return a sentence on a judge that was given up; empty where none was."""
    return f"a judge was out of order and was given up: {usage.outage}" if usage and usage.outage else ""


def outages_of(judging: JudgeUsage | None, simulating: JudgeUsage | None) -> str:
    """Return a sentence on the judges and the models that play users that were given up; empty where none was."""
    users = f"a model that plays users was out of order and was given up: {simulating.outage}" if simulating and simulating.outage else ""
    return "; ".join(filter(None, (outage_of(judging), users)))


_KINDS: dict[InjectionKind, str] = {"error": "error", "response": "response", "latency": "delay"}
_MOST_TOOLS = 5


def told(report: Report) -> tuple[str, ...]:
    """Return what a reader should know of how a report came about: endings, injections, and what models took."""
    return (*course_facts(report).values(), *((accounts(report.judging),) if report.judging else ()))


def told_of(cases: Sequence[CaseLine], judging: JudgeUsage | None, simulating: JudgeUsage | None) -> tuple[str, ...]:
    """Return the same of cases without their conversations."""
    endings = [case.ending for case in cases if case.ending]
    injections = [injection for case in cases for injection in case.injections]
    users = (accounts_of_users(simulating),) if simulating else ()
    return (*course_told(endings, injections).values(), *users, *((accounts(judging),) if judging else ()))


def course_facts(report: Report) -> dict[str, str]:
    """Return sentences on endings, injections and the models that played users, by what they are about, as far as there are any."""
    endings = [case.ending for case in report.cases if case.ending]
    injections = [injection for case in report.cases for injection in case.injections]
    facts = course_told(endings, injections)
    return facts | ({"Simulated users": accounts_of_users(report.simulating)} if report.simulating else {})


def course_told(endings: Sequence[Ending], injections: Sequence[Injection]) -> dict[str, str]:
    """Return a sentence on the endings and one on the injections, by what they are about, as far as there are any."""
    ended = {"Endings": endings_told(endings)} if endings else {}
    return ended | ({"Tool environment": injections_told(injections)} if injections else {})


def endings_told(endings: Sequence[Ending]) -> str:
    """Return how simulated conversations ended.

    >>> endings_told([Ending(reason="goal")] * 2 + [Ending(reason="limit", detail="max_allowed_invocations of 20"), Ending(reason="error")])
    '4 simulated conversations: 2 ended at the goal, 1 at the limit (max_allowed_invocations of 20), 1 broke off'
    """
    counts = Counter(ending.reason for ending in endings)
    limits = dict.fromkeys(ending.detail for ending in endings if ending.reason == "limit" and ending.detail)
    at_limit = f"at the limit ({', '.join(limits)})" if limits else "at the limit"
    ways: dict[EndReason, str] = {
        "goal": "ended at the goal",
        "limit": at_limit if counts["goal"] else f"ended {at_limit}",
        "error": "broke off",
    }
    said = ", ".join(f"{counts[reason]:,} {way}" for reason, way in ways.items() if counts[reason])
    return f"{counted(len(endings), 'simulated conversation')}: {said}"


def injections_told(injections: Sequence[Injection]) -> str:
    """Return what the tool environment did.

    >>> once = Injection(invocation_index=0, tool="book", kind="error")
    >>> injections_told([once, once, Injection(invocation_index=1, tool="find", kind="latency", latency_s=2)])
    'The tool environment answered or delayed 3 calls: 2 errors, 1 delay; by tool: book 2, find 1'
    """
    kinds = Counter(injection.kind for injection in injections)
    tools = Counter(injection.tool for injection in injections).most_common()
    what = ", ".join(counted(kinds[kind], noun) for kind, noun in _KINDS.items() if kinds[kind])
    named = ", ".join(f"{tool} {count:,}" for tool, count in tools[:_MOST_TOOLS])
    others = f" and {len(tools) - _MOST_TOOLS} others" if len(tools) > _MOST_TOOLS else ""
    return f"The tool environment answered or delayed {counted(len(injections), 'call')}: {what}; by tool: {named}{others}"


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "turn"), counted(2000, "turn")
    ('1 turn', '2,000 turns')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
