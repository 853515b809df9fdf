"""Evaluating only until a policy is decided: a few cases at first, and more of them, or more runs of each, only while a demand is open.

The gate itself looks at what there is after each round, as if the run ended there. So what stops a run here is what the gate finds when it
looks at the run later. Nothing depends on whom it is that looks, or when: see `gating.rules.sequential`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, chain, product
from typing import TYPE_CHECKING

import anyio.to_thread

from mlflow_adk_eval.agents.recordings import ConversationCache
from mlflow_adk_eval.errors import UsageError, check_counts
from mlflow_adk_eval.evalset.files import select
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, SetDigest
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Cases, CasesInMemory, Report
from mlflow_adk_eval.results.sequence import FIRST_ROUND, ROUNDS_GROW, Round, UntilDecided, order_of
from mlflow_adk_eval.runner.evaluation import Evaluation
from mlflow_adk_eval.runs.collect import InParts
from mlflow_adk_eval.runs.examined import ExaminedRun, examine
from mlflow_adk_eval.runs.manifest import Evidence
from mlflow_adk_eval.runtime import each
from mlflow_adk_eval.text import counted
from mlflow_adk_eval.tracking.bundle import evidence_of_report

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.calibration import CheckedCalibration
    from mlflow_adk_eval.gating.rules.comparable import Baseline

Then = Callable[[Cases], Awaitable[None]]
_SAME_RUNS = ("case_pass_rate", "flaky_rate")
"""Measures that are comparable only between runs with as many runs of each case."""


@dataclass(slots=True, kw_only=True)
class Rounds:
    """The rounds of one evaluation. Making it refuses what cannot be decided, before anything is paid for."""

    policy: Policy | None = None
    until_decided: bool = False
    """Whether there are rounds at all."""
    max_runs: int = 1
    max_conversations: int | None = None
    model: str | None = None
    on_round: Callable[[str], None] | None = None
    tracking_uri: str | None = None
    so_far: UntilDecided = field(init=False)
    """How the rounds went."""
    _ends: list[int] = field(init=False)
    """After how many cases a round may end: those of one content go together."""
    _count: int = field(init=False, default=FIRST_ROUND)
    _runs: int = field(init=False, default=1)
    _results: dict[tuple[str, int], CaseResult] = field(init=False, default_factory=dict[tuple[str, int], CaseResult])
    _compared: tuple[datetime, Baseline | None, CheckedCalibration | None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Check everything.

        Raises:
            UsageError: if something is missing or is wrong, or the baseline's model or version does not exist.
        """
        if not self.until_decided:
            if self.max_runs != 1 or self.max_conversations is not None:
                raise UsageError("max_runs and max_conversations limit until_decided=True (--until-decided), which is not set")
            return
        if self.policy is None:
            raise UsageError("until_decided: wanted the policy to decide by; set policy= (--policy FILE)")
        check_counts(max_runs=self.max_runs, max_conversations=1 if self.max_conversations is None else self.max_conversations)
        for _, measure, rule in self.policy.all_rules():
            if self.max_runs > 1 and rule.max_drop is not None and measure in _SAME_RUNS:
                raise UsageError(f"max_runs={self.max_runs}: max_drop of {measure} compares only runs with as many runs of each case")
        if self.policy.compares:
            from mlflow_adk_eval.gating.promotion.baseline_search import BaselineSearch  # noqa: PLC0415 - what decides is loaded by need

            with store_at(self.tracking_uri) as store:  # nothing is selected for a run that has no results
                nothing = ExaminedRun(evidence=Evidence(run_id="", status="RUNNING"), problems=())
                BaselineSearch(store=store, policy=self.policy, model=self.model)(nothing)

    async def evaluate(self, planned: Evaluation, parts: InParts, store: ConversationCache | None, then: Then | None) -> Report:
        """Have conversations and judge them, round by round, and return the report on those there are."""
        policy, whole, told = self.policy or Policy(), planned.eval_set, list[str]()
        digest = SetDigest(planned.config.surroundings_of, whole.eval_cases)
        groups = order_of(whole.eval_ids, digest.text, policy.must_pass, digest.copies)
        order, self._ends = tuple(chain.from_iterable(groups)), list(accumulate(map(len, groups)))
        self.so_far = UntilDecided(policy_sha256=policy.digest(), order=order)
        demanded = [order.index(eval_id) + 1 for eval_id in policy.must_pass if eval_id in order]
        self._count = max([min(FIRST_ROUND, self.max_conversations or FIRST_ROUND), *demanded])
        evaluated = whole

        async def go_on() -> None:
            nonlocal evaluated
            while not self.so_far.stopped:
                self._count = next((end for end in self._ends if end >= self._count), len(order))
                had = frozenset(order[: self._count])
                left = tuple((place, case) for place, case in enumerate(whole.eval_cases) if case.eval_id not in had)
                evaluated, self.so_far = select(whole, had), replace(self.so_far, left=left)
                await self._have(planned, evaluated, store)
                decision = await anyio.to_thread.run_sync(self._look, planned, evaluated, policy)
                rounds = (*self.so_far.rounds, Round(self._count, self._runs, decision.open))
                again = f", run {self._runs}" if self._runs > 1 else ""
                still = f"{', '.join(decision.open) or 'nothing'} open"
                told.append(f"round {len(rounds)}: {self._count:,} of {counted(len(order), 'case')}{again}; {still}")
                if self.on_round:
                    self.on_round(told[-1])
                self.so_far = replace(self.so_far, rounds=rounds, stopped=self._next(decision))
            planned.num_runs = self._runs
            for case in evaluated.eval_cases:
                parts.add(case, [self._results[case.eval_id, run] for run in range(self._runs)])

        report = await planned.execute(store, parts, go_on, then)
        return replace(report, eval_set=evaluated, until_decided=self.so_far, notes=(*report.notes, *told))

    async def _have(self, planned: Evaluation, evaluated: EvalSet, store: ConversationCache | None) -> None:
        """Execute the case runs of this round that have no result."""
        executor, progress = planned.executor, planned.executor.options.progress
        wanted = product(evaluated.eval_cases, range(self._runs))
        items = [(case, run) for case, run in wanted if (case.eval_id, run) not in self._results]
        total = len(self._results) + len(items)

        async def work(item: tuple[EvalCase, int]) -> None:
            case, run = item
            self._results[case.eval_id, run] = (await executor.execute(planned, case, run, store)).result
            if progress:
                progress(len(self._results), total)

        await each(work, items, limit=max(1, min(executor.limit, len(items))))

    def _look(self, planned: Evaluation, evaluated: EvalSet, policy: Policy) -> Decision:
        """Return what the gate says of the results so far."""
        baseline = planned.executor.options.baseline
        report = Report(
            eval_set=evaluated,
            config=planned.config,
            cases=CasesInMemory(self._results[case.eval_id, run] for case, run in product(evaluated.eval_cases, range(self._runs))),
            num_runs=self._runs,
            judging=planned.executor.judges.usage(),
            baseline=baseline.name if baseline and planned.plan.pairwise else "",
            until_decided=self.so_far,
            world=planned.replay.world() if planned.replay else None,
        )
        from mlflow_adk_eval.gating.promotion.baseline_search import BaselineSearch  # noqa: PLC0415 - as above
        from mlflow_adk_eval.gating.rules.decide import decide  # noqa: PLC0415 - as above

        run = examine(evidence_of_report(report))
        if self._compared is None:
            with store_at(self.tracking_uri) as store:
                found = BaselineSearch(store=store, policy=policy, model=self.model)(run)
                self._compared = store.clock(), found, store.calibration(policy, run)
            if found and found.run:
                self.so_far = replace(self.so_far, baseline_sha256=found.run.evidence.sha256)
        now, compared, measured = self._compared
        unsigned = policy.model_copy(update={"attestation": None})  # which comes once the run has ended
        return decide(run, unsigned, now=now, baseline=compared, measured=measured, rounds=False)

    def _next(self, decision: Decision) -> str:
        """Choose how far the next round goes, or return why there is none."""
        most = self.max_conversations or sys.maxsize
        spent = f"the budget of {counted(most, 'conversation')} is used up"
        if failed := [check.title for check in decision.checks if check.verdict == "failed"]:
            return f"decided: {failed[0]} failed"
        if not decision.open:
            reasons = [check.reason for check in decision.checks if check.verdict == "undecided"]
            why = reasons or ([] if decision.passed else list(decision.reasons))
            return f"more cases cannot decide it: {why[0]}" if why else "decided: every demand is met"
        if self._count < self._ends[-1]:
            following = next((end for end in self._ends if end >= self._count * ROUNDS_GROW), self._ends[-1])
            following = max(end for end in self._ends if end <= max(self._count, min(following, most)))
            stopped = spent if following == self._count else ""
            self._count = following
            return stopped
        if self._runs == self.max_runs:
            return f"every case ran {counted(self._runs, 'time')}, as often as max_runs allows"
        if self._count * (self._runs + 1) > most:
            return spent
        self._runs += 1
        return ""
