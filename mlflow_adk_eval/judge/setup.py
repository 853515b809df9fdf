"""How a caller chooses judges: the same five arguments at every public function, and what they come to.

`evaluate`, `score`, the metrics, the scorers, `AgentEvaluator`, the pytest plugin and the command line all take `JudgeArgs`. A function
that only passes them on declares ``**judging: Unpack[JudgeArgs]``; `judge_setup` checks them and makes a `JudgeSetup`, from which a
`JudgeSession` makes the judges that the criteria need. Nothing is loaded, opened or sent here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from mlflow_adk_eval.errors import UsageError, did_you_mean, shown
from mlflow_adk_eval.judge.protocol import Answers, Judge

HOSTS_VARIABLE = "MLFLOW_ADK_EVAL_JUDGE_HOSTS"


def allowed_hosts(hosts: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the hosts that a config may name: those of the environment, and `hosts` of the caller.

    A config is data, and whoever writes it need not be whoever holds the API keys. What the environment or Python itself names as an endpoint
    needs no such permission.

    Raises:
        UsageError: if one is no host.
    """
    if isinstance(hosts, str):
        raise UsageError(f"judge_hosts={shown(hosts)}: wanted a list of hosts")
    of_environment = [name.strip() for name in os.environ.get(HOSTS_VARIABLE, "").split(",") if name.strip()]
    sources = {**dict.fromkeys(of_environment, HOSTS_VARIABLE), **dict.fromkeys(hosts, "judge_hosts")}
    for host, source in sources.items():
        if not re.fullmatch(r"([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:\d+)?", host, re.IGNORECASE):
            raise UsageError(f"{source}: found {shown(host)}; wanted a host or host:port, such as gateway.example.org:8080")
    return tuple(sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """Settings that are numbers above 0, whole ones or seconds, or texts; what may be ``None`` has that as its default."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for option in fields(self):
            value, kind = getattr(self, option.name), str(option.type).partition(" ")[0]
            if value is None and option.default is None:
                continue
            if kind == "str":
                if not isinstance(value, str) or not value:
                    raise UsageError(f"{option.name}={shown(value)}: wanted a text")
            elif isinstance(value, bool) or not isinstance(value, int if kind == "int" else int | float) or not value > 0:
                wanted = "a whole number of at least 1" if kind == "int" else "a number of seconds above 0"
                raise UsageError(f"{option.name}={shown(value)}: wanted {wanted}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions(_Limits):
    """How the requests to a judge are made."""

    max_concurrency: int = 64
    """The most requests in flight to one judge; the actual number adapts to its capacity."""
    timeout_s: float = 120.0
    """The time limit for one request, in seconds."""
    attempts: int = 8
    """The number of attempts while the judge is unavailable."""
    outage_s: float = 60.0
    """After this many seconds with only failures, the judge is not asked again in this run."""
    unreadable: int = 20
    """The same after this many unparsable answers in a row, to several questions."""

    quota: int | None = None
    """The most requests to one judge in any `quota_s` seconds, across all processes that share a ledger; ``None``: no limit."""
    quota_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(_Limits):
    """The limit for judges in one run. Once it is used up, open verdicts stay undecided."""

    max_calls: int | None = None
    max_tokens: int | None = None
    """Input plus output. Requests in flight when the limit is reached still finish."""
    name: str | None = None
    """A name for a budget that processes share through their ledger; ``None``: only for this evaluation."""


OneJudge = str | Judge | Callable[..., Any]
JudgeSource = OneJudge | Sequence[OneJudge] | None
"""Who judges: a model's name, a judge or a callable, or a panel of several; ``None``: the models that the config names."""
BudgetSource = Budget | Mapping[str, Any] | None
"""How much may be spent: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and ``name``; ``None``: there is no limit."""
LedgerSource = str | Path | Literal[False] | None
"""The ledger: a file or the URL of a PostgreSQL database; ``off`` or ``False``: nothing is kept; ``None``: as ``MLFLOW_ADK_EVAL_LEDGER`` says, else ``.adk_eval/ledger.sqlite``."""


class JudgeArgs(TypedDict, total=False):
    """The arguments that say how to judge. Each may be left out; `judge_setup` has the defaults."""

    judge: JudgeSource
    """The judge, instead of the config's models: a model's name, a judge object or a callable; a list is a panel that votes
    together."""
    judge_hosts: Sequence[str] | None
    """Hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user, in addition to
    ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``."""
    judge_options: JudgeOptions | None
    """Parallelism, time limits and retries of requests to judges."""
    budget: BudgetSource
    """The limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and ``name``."""
    ledger: LedgerSource
    """Stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else
    ``.adk_eval/ledger.sqlite``; ``False``: none."""
    rejudge_failed: bool
    """Whether to ask again if a stored answer of a judge cannot be parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSetup:
    """How to judge, checked and with every default filled in. Without arguments: the config's own judges, no limit, no ledger.

    Whoever runs an evaluation opens the `ledger` for as long as that takes and passes the setup on with `answers`, and with the
    `scope` of the run: ``replace(setup, answers=opened_ledger, scope=run_id)``.
    """

    judge: JudgeSource = None
    """Who judges, instead of the config's models."""
    hosts: tuple[str, ...] = field(default_factory=allowed_hosts)
    """The hosts that the config may name."""
    options: JudgeOptions = field(default_factory=JudgeOptions)
    budget: Budget = field(default_factory=Budget)
    ledger: LedgerSource = field(default=False, repr=False)
    """What `answers` are kept in; a URL may hold a password."""
    answers: Answers | None = None
    """The opened ledger; ``None``: answers are not kept."""
    scope: str | None = None
    """What the answers of a judge that has no address are kept under, such as a run's id."""
    rejudge_failed: bool = False
    """Whether to ask again where a kept answer cannot be read."""


def judge_setup(
    *,
    judge: JudgeSource = None,
    judge_hosts: Sequence[str] | None = None,
    judge_options: JudgeOptions | None = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
) -> JudgeSetup:
    """Return what `JudgeArgs` come to. The keywords are theirs, one by one, so that Python itself refuses any other.

    Args:
        judge: the judge, instead of the config's models: a model's name, a judge object or a callable; a list is a panel that votes together.
        judge_hosts: hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user, in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: parallelism, time limits and retries of requests to judges.
        budget: the limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and ``name``.
        ledger: stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again if a stored answer of a judge cannot be parsed.

    Raises:
        UsageError: if the budget has a key that there is not, or a host is none.
    """
    if isinstance(budget, Mapping):
        known = [option.name for option in fields(Budget)]
        for name in budget:
            if name not in known:
                raise UsageError(f"budget: unknown key {name!r}; wanted {', '.join(known)}. {did_you_mean(name, known)}".rstrip())
        budget = Budget(**budget)
    hosts, options = allowed_hosts(judge_hosts or ()), judge_options or JudgeOptions()
    return JudgeSetup(judge=judge, hosts=hosts, options=options, budget=budget or Budget(), ledger=ledger, rejudge_failed=rejudge_failed)
