"""Having the held-out cases of a policy scored, so often and no more: each use is an entry of the claim log before the agent is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

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
        if self.evaluator is None:
            self.problem = f"holdout: the policy holds out cases, and nobody scores them; {_HOW}"
        if self.run or self.problem or self.evaluator is None:
            return False

        def begin(digest: str) -> None:
            self._digest, before, allowed = digest, claims.uses(digest), self.holdout.uses
            self._use = before + 1
            if before >= allowed:
                raise UsageError(f"the held-out cases were scored {before} times, and the policy allows {allowed}: replace these cases")
            self._champion(record)
            enter(digest)

        request = HoldoutRequest(holdout=self.holdout, model_id=record.version.model_id or "", candidate=candidate, begin=begin)
        try:
            self.run = examine(self.store.evidence(self.evaluator(request)))
        except (UsageError, AgentError) as error:
            self.problem = f"holdout: {error}"
        except (SystemExit, BaseExceptionGroup) as error:
            if isinstance(error, Exception):
                raise
            # Code that was imported or called must not end the promotion, least of all with exit code 0.
            self.problem = f"holdout: {type(error).__name__}: {message_of(error)}"
        return self.store.claim_log(record.target.name, record.target.alias).next != claims.next

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
        model, alias = source.model or record.target.name, source.alias or record.target.alias
        name = record.compared.name if record.compared else f"version {champion.number} of {model!r}"
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
