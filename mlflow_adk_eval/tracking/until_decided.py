"""Evaluating only until a policy is decided: a few cases at first, and more of them, or more runs of each, only while a demand is open.

The gate itself looks at what there is after each round, as if the run ended there. So what stops a run here is what the gate finds when it
looks at the run later. Nothing depends on whom it is that looks, or when: see `gating.rules.sequential`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate

import anyio.to_thread

from mlflow_adk_eval.agents.recordings import ConversationCache
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet, select
from mlflow_adk_eval.evalset.models import SetDigest
from mlflow_adk_eval.gating.calibration import CheckedCalibration
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.promotion.baseline_search import BaselineSearch
from mlflow_adk_eval.gating.registry import MlflowStore, store_at
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.gating.rules.decide import decide_so_far
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Cases, CasesInMemory, Report
from mlflow_adk_eval.results.sequence import Round, UntilDecided, order_of
from mlflow_adk_eval.runner.evaluation import Evaluation
from mlflow_adk_eval.runs.collect import InParts
from mlflow_adk_eval.runs.examined import ExaminedRun, examine
from mlflow_adk_eval.runs.manifest import Evidence
from mlflow_adk_eval.runtime import each
from mlflow_adk_eval.text import counted
from mlflow_adk_eval.tracking.bundle import evidence_of_report

_FIRST, _GROWTH = 20, 1.5
Then = Callable[[Cases], Awaitable[None]]
_SAME_RUNS = ("case_pass_rate", "flaky_rate")
"""Measures that are comparable only between runs with as many runs of each case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How an evaluation goes on until it is decided."""

    policy: Policy
    max_runs: int = 1
    max_conversations: int | None = None
    model: str | None = None
    """The registered model of the policy's baseline, where the policy names none."""
    on_round: Callable[[str], None] | None = None
    tracking_uri: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be decided, before anything is paid for.

        Raises:
            UsageError: if a number is none, or the baseline's model or version does not exist.
        """
        for name in ("max_runs", "max_conversations"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{name}={value!r}: wanted a whole number of at least 1")
        for _, measure, rule in self.policy.all_rules():
            if self.max_runs > 1 and rule.max_drop is not None and measure in _SAME_RUNS:
                raise UsageError(f"max_runs={self.max_runs}: max_drop of {measure} compares only runs with as many runs of each case")
        if self.policy.compares:
            with store_at(self.tracking_uri) as store:  # nothing is selected for a run that has no results
                self.search(store)(ExaminedRun(evidence=Evidence(run_id="", status="RUNNING"), problems=()))

    def search(self, store: MlflowStore) -> BaselineSearch:
        """Return what finds the baseline."""
        return BaselineSearch(store=store, policy=self.policy, model=self.model)

    async def evaluate(self, planned: Evaluation, parts: InParts, store: ConversationCache | None, then: Then | None = None) -> Report:
        """Have conversations and judge them, round by round, and return the report on those there are."""
        rounds = _Rounds(self, planned, store)
        report = await planned.execute(store, parts, lambda: rounds.go_on(parts), then)
        return replace(report, eval_set=rounds.eval_set(), until_decided=rounds.so_far(), notes=(*report.notes, *rounds.told))


def rounds_of(
    policy: Policy | None = None,
    *,
    until_decided: bool = False,
    max_runs: int = 1,
    max_conversations: int | None = None,
    model: str | None = None,
    on_round: Callable[[str], None] | None = None,
    tracking_uri: str | None = None,
) -> Rounds | None:
    """Return how an evaluation goes on until it is decided; ``None``: it has all cases.

    Raises:
        UsageError: if something is missing, or is wrong.
    """
    if until_decided and policy is None:
        raise UsageError("until_decided: wanted the policy to decide by; set policy= (--policy FILE)")
    if policy and until_decided:
        return Rounds(
            policy=policy,
            max_runs=max_runs,
            max_conversations=max_conversations,
            model=model,
            on_round=on_round,
            tracking_uri=tracking_uri,
        )
    if max_runs != 1 or max_conversations is not None:
        raise UsageError("max_runs and max_conversations limit until_decided=True (--until-decided), which is not set")
    return None


class _Rounds:
    """The rounds of one evaluation."""

    def __init__(self, how: Rounds, planned: Evaluation, store: ConversationCache | None) -> None:
        eval_set = planned.eval_set
        digest = SetDigest(planned.config.surroundings_of)
        for case in eval_set.eval_cases:
            digest.add(case)
        groups = order_of(eval_set.eval_ids, digest.text, how.policy.must_pass, digest.copies)
        self.order = tuple(eval_id for group in groups for eval_id in group)
        self._ends = list(accumulate(map(len, groups)))
        """After how many cases a round may end: those of one content go together."""
        self._how, self._planned, self._store = how, planned, store
        self._results: dict[tuple[str, int], CaseResult] = {}
        self._compared: tuple[datetime, Baseline | None, CheckedCalibration | None] | None = None
        self._rounds: list[Round] = []
        self._stopped = ""
        self._count, self._runs = 0, 1
        self.told: list[str] = []
        """What there is to tell of each round."""

    def eval_set(self) -> EvalSet:
        """Return the eval set of the cases so far."""
        return select(self._planned.eval_set, self.order[: self._count])

    def so_far(self) -> UntilDecided:
        """Return how the rounds went."""
        had = set(self.order[: self._count])
        left = tuple((place, case) for place, case in enumerate(self._planned.eval_set.eval_cases) if case.eval_id not in had)
        baseline = self._compared[1] if self._compared else None
        compared = baseline.run.evidence.sha256 if baseline and baseline.run else ""
        return UntilDecided(
            policy_sha256=self._how.policy.digest(),
            baseline_sha256=compared,
            order=self.order,
            rounds=tuple(self._rounds),
            stopped=self._stopped,
            left=left,
        )

    async def go_on(self, parts: InParts) -> None:
        """Go on until nothing is open, or nothing more may be spent; then hand over the results."""
        must_pass = set(self._how.policy.must_pass).intersection(self.order)
        self._count = self._whole_groups(max(_FIRST, max((self.order.index(eval_id) + 1 for eval_id in must_pass), default=0)))
        while not self._stopped:
            await self._round()
            decision = await anyio.to_thread.run_sync(self._look)
            self._rounds.append(Round(self._count, self._runs, decision.open))
            done = counted(self._count, "case") if self._count == len(self.order) else f"{self._count:,} of {len(self.order):,} cases"
            times = f", run {self._runs}" if self._runs > 1 else ""
            still = f"{', '.join(decision.open)} open" if decision.open else "nothing open"
            self.told.append(f"round {len(self._rounds)}: {done}{times}; {still}")
            if self._how.on_round:
                self._how.on_round(self.told[-1])
            self._next(decision)
        self._planned.num_runs = self._runs
        for case in self.eval_set().eval_cases:
            parts.add(case, [self._results[case.eval_id, run] for run in range(self._runs)])

    def _whole_groups(self, count: int) -> int:
        return next((end for end in self._ends if end >= count), len(self.order))

    async def _round(self) -> None:
        """Execute the cases of this round that have no result."""
        executor, options = self._planned.executor, self._planned.executor.options
        cases = [
            (case, run) for case in self.eval_set().eval_cases for run in range(self._runs) if (case.eval_id, run) not in self._results
        ]
        total = len(self._results) + len(cases)

        async def work(item: tuple[EvalCase, int]) -> None:
            case, run = item
            executed = await executor.execute(self._planned, case, run, self._store)
            self._results[case.eval_id, run] = executed.result
            if options.progress:
                options.progress(len(self._results), total)

        await each(work, cases, limit=max(1, min(executor.limit, len(cases))))

    def _look(self) -> Decision:
        """Return what the gate says of the results so far."""
        cases = CasesInMemory(self._results[case.eval_id, run] for case in self.eval_set().eval_cases for run in range(self._runs))
        planned, baseline = self._planned, self._planned.executor.options.baseline
        report = Report(
            eval_set=self.eval_set(),
            config=planned.config,
            cases=cases,
            num_runs=self._runs,
            judging=planned.executor.judges.usage(),
            baseline=baseline.name if baseline and planned.plan.pairwise else "",
            until_decided=self.so_far(),
        )
        run, policy = examine(evidence_of_report(report)), self._how.policy
        if self._compared is None:
            with store_at(self._how.tracking_uri) as store:
                self._compared = store.clock(), self._how.search(store)(run), store.calibration(policy, run)
        now, compared, measured = self._compared
        unsigned = policy.model_copy(update={"attestation": None})  # which comes once the run has ended
        return decide_so_far(run, unsigned, now=now, baseline=compared, measured=measured)

    def _next(self, decision: Decision) -> None:
        """Choose how far the next round goes, or say why there is none."""
        most, count = self._how.max_conversations, self._count
        failed = [check.title for check in decision.checks if check.verdict == "failed"]
        if failed:
            self._stopped = f"decided: {failed[0]} failed"
        elif not decision.open:
            open_for_good = [check.reason for check in decision.checks if check.verdict == "undecided"]
            why = open_for_good or ([] if decision.passed else list(decision.reasons))
            self._stopped = f"more cases cannot decide it: {why[0]}" if why else "decided: every demand is met"
        elif count < len(self.order):
            self._count = self._whole_groups(math.ceil(count * _GROWTH))
            if most is not None and self._count > most:
                self._count = max((end for end in self._ends if end <= most), default=0)
            if self._count <= count:
                self._count, self._stopped = count, f"the budget of {counted(most or 0, 'conversation')} is used up"
        elif self._runs == self._how.max_runs:
            self._stopped = f"every case ran {counted(self._runs, 'time')}, as often as max_runs allows"
        elif most is not None and count * (self._runs + 1) > most:
            self._stopped = f"the budget of {counted(most, 'conversation')} is used up"
        else:
            self._runs += 1
