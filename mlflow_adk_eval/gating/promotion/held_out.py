"""Having the held-out cases of a policy scored, so often and no more: each use is an entry of the claim log before the agent is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from mlflow_adk_eval.errors import AgentError, UsageError
from mlflow_adk_eval.gating.policy.model import Holdout, Policy
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLog
from mlflow_adk_eval.gating.promotion.record import Record, RecordedHoldout, with_problems
from mlflow_adk_eval.gating.promotion.verify import as_then, recorded_pass
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.gating.rules.holdout import HeldOut, HoldoutEvaluator, HoldoutRequest, policy_of, with_holdout
from mlflow_adk_eval.redact import message_of
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runs.examined import ExaminedRun, ReadableRun, examine

_HOW = "give the candidate's agent and the eval set: --agent AGENT --eval-set FILE, or holdout=make_holdout_evaluator(AGENT, eval_set=FILE)"


@dataclass(slots=True, kw_only=True)
class HoldoutUse:
    """What comes of the held-out cases in one promotion, however often it is decided again: they are scored once."""

    store: MlflowStore
    policy: Policy
    holdout: Holdout
    evaluator: HoldoutEvaluator | None
    run: ExaminedRun | None = None
    problem: str = ""
    """Why there is no such run."""
    recorded: RecordedHoldout | None = None
    _digest: str = ""
    _use: int = 0

    def score(self, candidate: ReadableRun, record: Record, claims: ClaimLog, enter: Callable[[str], object]) -> bool:
        """Have the cases scored, unless they were or cannot be; return whether that is an entry of the claim log now.

        Args:
            candidate: the run that is decided on.
            record: the decision so far.
            claims: the claim log.
            enter: enters that the cases with a digest are scored next.

        Raises:
            AliasBusyError: if others took the next number, so that nothing was scored.
        """
        if self.run or self.problem:
            return False
        try:
            evaluator = self._ready(claims, record)
            begin, model_id = partial(enter, self._digest), record.version.model_id or ""
            request = HoldoutRequest(holdout=self.holdout, model_id=model_id, candidate=candidate, begin=begin)
            self.run = examine(self.store.evidence(evaluator.evaluate(request)))
        except (UsageError, AgentError) as error:
            self.problem = f"holdout: {error}"
        except (SystemExit, BaseExceptionGroup) as error:
            if isinstance(error, Exception):
                raise
            # Code that was imported or called must not end the promotion, least of all with exit code 0.
            self.problem = f"holdout: {type(error).__name__}: {message_of(error)}"
        return self.store.claim_log(record.target.name, record.target.alias).next != claims.next

    def _ready(self, claims: ClaimLog, record: Record) -> HoldoutEvaluator:
        """Return what scores the cases, once it is known which these are and that they may be scored.

        Raises:
            UsageError: if they may not.
        """
        if self.evaluator is None:
            raise UsageError(f"the policy holds out cases, and nobody scores them; {_HOW}")
        self._digest = self.evaluator.digest(self.holdout)
        self._use = claims.uses(self._digest) + 1
        if self._use > self.holdout.uses:
            before, allowed = self._use - 1, self.holdout.uses
            raise UsageError(f"the held-out cases were scored {before} times, and the policy allows {allowed}: replace these cases")
        self._champion(record)
        return self.evaluator

    def decided(self, decision: Decision, candidate: ExaminedRun, record: Record, now: datetime) -> Decision:
        """Return a decision that is *passed* together with what the cases came to."""
        if self.run is None:
            return with_problems(decision, [self.problem])
        try:
            champion = self._champion(record)
        except UsageError as error:  # another one than when they were scored
            return with_problems(decision, [f"holdout: {error}"])
        before = champion.run.evidence if champion and champion.run else None
        self.recorded = RecordedHoldout(
            eval_set=self._digest,
            use=self._use,
            run_id=self.run.evidence.run_id,
            sha256=self.run.evidence.sha256,
            champion=champion.name if champion else "",
            champion_run_id=before.run_id if before else "",
            champion_sha256=before.sha256 if before else "",
        )
        held = HeldOut(run=self.run, eval_set=self._digest, use=self._use, champion=champion)
        measured = self.store.calibration(policy_of(self.policy), self.run)
        return with_holdout(decision, self.policy, candidate, held, now=now, measured=measured)

    def _champion(self, record: Record) -> Baseline | None:
        """Return the champion's run of the held-out cases, by its promotion record; ``None`` where none is compared.

        Raises:
            UsageError: if it has none, or that changed.
        """
        champion, source = record.champion, self.policy.baseline
        if self.holdout.max_drop is None or champion is None or champion == record.version or source is None:
            return None
        named = record.compared is not None and record.compared.version is not None
        model, alias = (source.model or record.target.name, source.alias) if named else (record.target.name, record.target.alias)
        name = record.compared.name if named and record.compared else f"version {champion.number} of {model!r}"
        found = recorded_pass(self.store, model, champion.number, alias, self.store.version(model, champion.number))
        problems = [found] if isinstance(found, str) else found.problems
        if problems or isinstance(found, str):
            raise UsageError(problems[0])
        then = found.record.holdout
        if then is None or then.eval_set != self._digest:
            again = "promote it again by this policy, with its agent, to score them"
            raise UsageError(f"the held-out cases were not scored when {name}, was promoted: {again}")
        run = as_then(self.store, f"the held-out cases of {name},", then.run_id, then.sha256)
        return Baseline(name=name, version=champion, run=run)
