"""What judging a report took, as a sentence."""

from __future__ import annotations

from collections.abc import Iterator

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
