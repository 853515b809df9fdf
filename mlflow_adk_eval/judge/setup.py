"""How a caller chooses judges: the same five arguments at every public function, and what they come to.

`evaluate`, `score`, the metrics, the scorers, `AgentEvaluator`, the pytest plugin and the command line all take `JudgeArgs`. A function
that only passes them on declares ``**judging: Unpack[JudgeArgs]``; `judge_setup` checks them and makes a `JudgeSetup`, from which a
`JudgeSession` makes the judges that the criteria need. Nothing is loaded, opened or sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from mlflow_adk_eval.errors import UsageError, did_you_mean
from mlflow_adk_eval.judge.options import Budget, JudgeOptions
from mlflow_adk_eval.judge.protocol import Answers, Judge

JudgeSource = str | Judge | Callable[..., Any] | None
"""Who judges: a model's name, a judge or a callable; ``None``: the models that the config names."""
BudgetSource = Budget | Mapping[str, int] | None
"""How much may be spent: a `Budget`, or a dict with ``max_calls`` and ``max_tokens``; ``None``: there is no limit."""
LedgerSource = str | Path | Literal[False] | None
"""The ledger's file; ``off`` or ``False``: nothing is kept; ``None``: as ``ADK_EVAL_LEDGER`` says, else ``.adk_eval/ledger.sqlite``."""


class JudgeArgs(TypedDict, total=False):
    """The arguments that say how to judge. Each may be left out; `judge_setup` has the defaults."""

    judge: JudgeSource
    """Who judges, instead of the models that the config names: a model's name, a judge or a callable."""
    judge_options: JudgeOptions | None
    """How judges are asked: how many requests at a time, how long one may take and how often it is repeated."""
    budget: BudgetSource
    """How much may be spent on judges and simulated users: a `Budget`, or a dict with ``max_calls`` and ``max_tokens``."""
    ledger: LedgerSource
    """The file that keeps what judges answered; ``None``: as ``ADK_EVAL_LEDGER`` says, else ``.adk_eval/ledger.sqlite``; ``False``: none."""
    rejudge_failed: bool
    """Whether to ask again where a judge's kept answer cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSetup:
    """How to judge, checked and with every default filled in. Without arguments: the config's own judges, no limit, no ledger.

    Whoever runs an evaluation opens the `ledger` for as long as that takes and passes the setup on with `answers`, and with the
    `scope` of the run: ``replace(setup, answers=opened_ledger, scope=run_id)``.
    """

    judge: JudgeSource = None
    """Who judges, instead of the config's models."""
    options: JudgeOptions = field(default_factory=JudgeOptions)
    budget: Budget = field(default_factory=Budget)
    ledger: LedgerSource = False
    """The file that `answers` are kept in."""
    answers: Answers | None = None
    """The opened ledger; ``None``: answers are not kept."""
    scope: str | None = None
    """What the answers of a judge that has no address are kept under, such as a run's id."""
    rejudge_failed: bool = False
    """Whether to ask again where a kept answer cannot be read."""


def judge_setup(
    *,
    judge: JudgeSource = None,
    judge_options: JudgeOptions | None = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
) -> JudgeSetup:
    """Return what `JudgeArgs` come to. The keywords are theirs, one by one, so that Python itself refuses any other.

    Raises:
        UsageError: if the budget has a key that there is not.
    """
    return JudgeSetup(
        judge=judge, options=judge_options or JudgeOptions(), budget=_budget(budget), ledger=ledger, rejudge_failed=rejudge_failed
    )


def _budget(budget: BudgetSource) -> Budget:
    if budget is None or isinstance(budget, Budget):
        return budget or Budget()
    known = [field.name for field in fields(Budget)]
    for name in budget:
        if name not in known:
            raise UsageError(f"budget: unknown key {name!r}; wanted {' and '.join(known)}. {did_you_mean(name, known)}".rstrip())
    return Budget(**budget)
