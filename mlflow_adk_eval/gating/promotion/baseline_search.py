"""Finding what a run is compared with: the run by which the champion was promoted, or another one about the candidate's cases.

A policy names an alias, a version or a run. `BaselineSearch` follows that name to a version and to the run of its record
(`BaselineRef`), then takes the first run that can be compared with the candidate: that of the record, one that is made now by evaluating
the version again, or an attested one of the same version on the same eval set. Whoever can run the baseline's source can leave a poor
run of it, so no other run counts. Each run is read and examined at most once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.policy.model import BaselineSource, Policy
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLog, aliases_in
from mlflow_adk_eval.gating.promotion.record import Record, Target, Version, VersionId, version_problems
from mlflow_adk_eval.gating.promotion.verify import decide_in, moved_by_hand, recorded_pass
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.gating.rules.attempts import Attempt
from mlflow_adk_eval.gating.rules.comparable import Baseline, Reevaluate, ReevaluationRequest, incomparable
from mlflow_adk_eval.redact import message_of
from mlflow_adk_eval.runs.examined import ExaminedRun, ReadableRun, examine
from mlflow_adk_eval.runs.manifest import agent_problems, state_problems

_NAMED = re.compile(r"runs:/([^/@\s]+)|models:/([^/@]+)(?:/(\d+)|@([\w-]+))")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MODEL_ID = re.compile(r"m-[\w-]+")
_HOW_TO_REEVALUATE = (
    "reevaluate=adk_eval.make_reevaluator(eval_set=...) judges its stored answers again; make_reevaluator(AGENT, eval_set=...) runs the agent"
    " again (command line: --reevaluate --eval-set FILE, and --champion-agent AGENT)"
)
_NAME_A_RUN = "--baseline runs:/ID, or baseline: {run: ID} in the policy"
_PENDING = "it has not been evaluated again yet"


def overridden(policy: Policy, named: str | None) -> Policy:
    """Return the policy with another baseline.

    Args:
        policy: what is demanded.
        named: ``runs:/<id>``, ``models:/<name>/<version>`` or ``models:/<name>@<alias>``; ``None``: the policy's own baseline.

    Raises:
        UsageError: if it is nothing of the kind, or the policy compares nothing.
    """
    if named is None:
        return policy
    found = _NAMED.fullmatch(named)
    if found is None:
        raise UsageError(f"baseline {named!r}: wanted runs:/ID, models:/NAME/VERSION or models:/NAME@ALIAS")
    if not policy.compares:
        raise UsageError(f"baseline {named!r}: the policy {policy.name!r} compares nothing: none of its rules has a max_drop")
    run, model, version, alias = found.groups()
    kept = policy.baseline.model_dump(include={"if_missing", "if_incomparable"}) if policy.baseline else {}
    source = BaselineSource(run=run, model=model, version=int(version) if version else None, alias=alias, **kept)
    return policy.model_copy(update={"baseline": source})


def attempt_in(claims: ClaimLog, policy: Policy, run: ExaminedRun, compared: Baseline | None, holder: VersionId | None) -> Attempt:
    """Return the place of a decision on a run, compared with a baseline, about an alias that `holder` holds."""
    champion = compared.version if compared and compared.version else holder
    runs = run.evidence.run_id, compared.run.evidence.run_id if compared and compared.run else ""
    return claims.attempt(policy, champion, runs, eval_set_of(run))


def eval_set_of(run: ExaminedRun) -> str:
    """Return the digest of the eval set of a run; empty where it cannot be read."""
    return run.evidence.params.get("adk_eval.eval_set_digest", "") if isinstance(run, ReadableRun) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRef:
    """What is known of a baseline before its runs are read."""

    name: str
    """How reasons call it."""
    model_id: str
    """Its LoggedModel; empty where its run does not say."""
    agent_version: str
    run_id: str
    """The run of its record, or the one that the policy names; empty where there is no record."""
    sha256: str = ""
    """The hash of the evidence that the record is about; empty where there is no record."""
    version: VersionId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSearch:
    """Finds what a policy compares a candidate with."""

    store: MlflowStore
    policy: Policy
    model: str | None = None
    """The registered model that an alias or a version belongs to where the policy names none."""
    candidate: Target | None = None
    """The version that is to be promoted: one that was given its alias by hand may be promoted first."""
    reevaluate: Reevaluate | None = None
    """Evaluates the baseline again where nothing known of it can be compared; ``None``: nobody does."""
    _examined: dict[str, ExaminedRun] = field(init=False, default_factory=dict[str, ExaminedRun])
    """What was read already, by run id."""
    _made: dict[tuple[str, str], str] = field(init=False, default_factory=dict[tuple[str, str], str])
    """The runs that were made here, by the LoggedModel of the baseline and the candidate's run."""

    def __call__(self, candidate: ExaminedRun, problems: Sequence[str] = ()) -> Baseline | None:
        """Return the baseline of a candidate; ``None`` if the policy compares nothing.

        Args:
            candidate: the run that is decided on.
            problems: what else is known against it, in which case nothing is evaluated again.

        Raises:
            UsageError: if the run, the version or the registered model that the policy names does not exist.
        """
        source = self.policy.baseline
        if source is None or not self.policy.compares:
            return None
        if candidate.evidence.run_id:  # a report that was not logged has none
            self._examined[candidate.evidence.run_id] = candidate
        if source.run:
            model_id = self._examine(source.run).evidence.params.get("adk_eval.model_id", "")
            ref = BaselineRef(name=f"run {source.run}", model_id=model_id, agent_version=model_id, run_id=source.run)
            return self._select(candidate, ref, problems)
        named = self._version(source)
        return named if isinstance(named, Baseline) else self._select(candidate, named, problems)

    def attempt(self, candidate: ExaminedRun, found: Baseline | None) -> Attempt | None:
        """Return the place that a promotion to the alias of the policy's baseline would have now; ``None`` where no claim log is known."""
        source = self.policy.baseline
        model = source and (source.model or self.model)
        with suppress(UsageError):  # without a claim log that can be read, promoting is refused
            if source and source.alias and model and found:
                return attempt_in(self.store.claim_log(model, source.alias), self.policy, candidate, found, None)
        return None

    def _examine(self, run_id: str) -> ExaminedRun:
        if run_id not in self._examined:
            self._examined[run_id] = examine(self.store.evidence(run_id))
        return self._examined[run_id]

    def _version(self, source: BaselineSource) -> BaselineRef | Baseline:
        model = source.model or self.model
        if model is None:
            how = "set --model, model=..., or baseline: {model: NAME, ...} in the policy"
            raise UsageError(f"the policy compares with an alias or a version but names no registered model; {how}")
        try:
            registered = self.store.model(model)
        except UsageError as error:
            hint = f"`mlflow-adk-eval run AGENT EVAL_SET --register {model}` registers its first version"
            raise UsageError(f"{error}, so there is nothing to compare with; {hint}") from None
        number = str(source.version) if source.version else registered.aliases.get(source.alias or "")
        if number is None:
            moved = moved_by_hand(self.store, model, source.alias or "", None)
            return Baseline(name=f"the {source.alias} of {model!r}", problems=(moved,) if moved else ())
        version = self.store.version(model, number, registered)
        candidate = (self.candidate.name, self.candidate.version) if self.candidate else None  # numbers are those of their model
        if (model, number) == candidate and source.alias is not None:
            entries = self.store.claim_log(model, source.alias).entries
            if all(entry.claim.verdict != "passed" for entry in entries):  # nobody ever claimed it, be it in vain
                return Baseline(name=f"the {source.alias} of {model!r}", version=version.id)
        name = (f"the {source.alias}, " if source.alias else "") + f"version {number} of {model!r}"
        if version.id.model_id is None:
            problem = f"it was made from {version.id.source!r}, not from a LoggedModel, so no run can be matched to it"
            return Baseline(name=name, version=version.id, problems=(problem,))
        recorded = self._recorded(model, number, source.alias, version)
        if isinstance(recorded, str):
            return Baseline(name=name, version=version.id, problems=(recorded,))
        run_id, sha256 = (recorded.decision.run_id, recorded.decision.evidence_sha256) if recorded else ("", "")
        model_id, agent_version = version.id.model_id, f"models:/{model}/{number}"
        return BaselineRef(name=name, model_id=model_id, agent_version=agent_version, run_id=run_id, sha256=sha256, version=version.id)

    def _recorded(self, model: str, number: str, alias: str | None, version: Version) -> Record | str | None:
        """Return the record by which a version holds an alias, or held one, or why that does not stand.

        ``None``: no alias is named, and it never held one.
        """
        try:
            if alias is not None and (moved := moved_by_hand(self.store, model, alias, version.id)):
                return f"{moved}; `mlflow-adk-eval audit {model}` says more"
            held = self._held(model, version.id) if alias is None else [alias]
            if isinstance(held, str):
                return held
            passes = [recorded_pass(self.store, model, number, each, version) for each in held]
        except UsageError as error:
            return str(error)
        records = [found.record for found in passes if not isinstance(found, str) and not found.problems]
        if passes and not records:
            first = passes[0]
            return first if isinstance(first, str) else first.problems[0]
        runs = {record.target.alias: record.decision.run_id for record in records}
        if len(set(runs.values())) > 1:  # an alias of little worth is easily had, on a run of little worth
            named = ", ".join(f"{each} by run {run_id}" for each, run_id in runs.items())
            return f"several of its runs led to promotions, to {named}; name one: {_NAME_A_RUN}"
        return records[0] if records else None

    def _held(self, model: str, version: VersionId) -> list[str] | str:
        """Return the aliases that a version holds or held, or that it was another one of its number that did."""
        params = self.store.claims(model)
        logs = (self.store.claim_log(model, each, params) for each in aliases_in(params.params))
        moves = [(log.alias, entry.claim.version) for log in logs for entry in log.moves(self.store.holder(model, log.alias))]
        others = [found for _, found in moves if found.number == version.number] or [found for _, found in moves[-1:]]
        held = list(dict.fromkeys(each for each, promoted in moves if promoted == version))
        if not held and others:  # whether it has the number of one that was promoted, or the name of its model
            promoted = others[-1]
            if promoted.number == version.number or promoted.model_created_ms != version.model_created_ms:
                return promoted.difference(version)
        return held

    def _select(self, candidate: ExaminedRun, ref: BaselineRef, against: Sequence[str]) -> Baseline:
        """Return the first run of a baseline that can be compared: that of its record, one that is made now, or an attested one."""
        if not isinstance(candidate, ReadableRun) or state_problems(candidate.evidence):
            return _none(ref, "it was not examined: the run itself is not valid evidence")
        problems = ["no promotion record names a run of it"]
        if ref.run_id:
            try:
                recorded = self._examine(ref.run_id)
            except UsageError as error:
                problems = [f"its evidence is gone: {error}"]
            else:
                problems = self._problems(candidate, ref, ref.run_id)
                if not problems and ref.sha256 and recorded.evidence.sha256 != ref.sha256:
                    problems = [f"run {ref.run_id}: its evidence was changed after the promotion"]
        if not problems:
            return self._found(ref, ref.run_id)
        if (ref.run_id and self._must_refuse) or not ref.model_id:
            return _none(ref, *problems)
        own = candidate.evidence.run_id
        if own and own != ref.run_id and not self._problems(candidate, ref, own):
            return self._found(ref, own)
        made = self._reevaluated(candidate, ref, problems, against)
        if made.run is None and (other := next(self._attested_runs(candidate, ref), None)):
            return self._found(ref, other, f" (by its attested run {other})")
        return made

    @property
    def _must_refuse(self) -> bool:
        return self.policy.baseline is not None and self.policy.baseline.if_incomparable == "refuse"

    def _found(self, ref: BaselineRef, run_id: str, how: str = "") -> Baseline:
        return Baseline(name=f"{ref.name}{how}", version=ref.version, run=self._examine(run_id))

    def _problems(self, candidate: ExaminedRun, ref: BaselineRef, run_id: str) -> list[str]:
        """Return why a run cannot stand for the baseline."""
        run = self._examine(run_id)
        if about := agent_problems(run.evidence, ref.model_id) if ref.model_id else []:
            return [f"run {run_id}: {problem}" for problem in about]
        demands = (self.policy.judge, *(rule.judge for _, _, rule in self.policy.all_rules()))
        minds = any(demand and demand.minds_time for demand in demands)
        return incomparable(candidate, run, self.policy, self.store.drift(candidate, self.store.clock(), self.policy) if minds else None)

    def _attested_runs(self, candidate: ExaminedRun, ref: BaselineRef) -> Iterator[str]:
        """Yield what else can be compared where the policy demands an attestation, which those runs then have."""
        digest = candidate.evidence.params.get("adk_eval.eval_set_digest", "")
        if self.policy.attestation is None or not _MODEL_ID.fullmatch(ref.model_id) or not _DIGEST.fullmatch(digest):
            return  # a query is made of them
        for run_id in self.store.evaluations(ref.model_id, digest, beside=candidate.evidence.run_id):
            if run_id != ref.run_id and not self._problems(candidate, ref, run_id):
                yield run_id

    def _reevaluated(self, candidate: ReadableRun, ref: BaselineRef, reasons: list[str], against: Sequence[str]) -> Baseline:
        if self.reevaluate is None or self._must_refuse:
            if ref.run_id:
                return _none(ref, *reasons, f"it can be evaluated again: {_HOW_TO_REEVALUATE}")
            evaluate = f"mlflow-adk-eval run AGENT EVAL_SET --agent-version {ref.agent_version}"
            return _none(ref, *reasons, f"evaluate it ({evaluate}) and name that run: {_NAME_A_RUN}")
        # Whatever a run that must not be trusted says is worth no request and no import.
        if obstacles := [*against, *self._obstacles(candidate, ref)]:
            return _none(ref, *reasons, f"it was not evaluated again, because the run cannot pass anyway: {obstacles[0]}")
        key = ref.model_id, candidate.evidence.run_id
        if key not in self._made:
            request = ReevaluationRequest(
                model_id=ref.model_id,
                agent_version=ref.agent_version,
                run_id=ref.run_id,
                candidate=candidate,
                policy=self.policy,
                reasons=tuple(reasons),
            )
            try:
                made = self.reevaluate(request)
                self._examine(made)
            except UsageError as error:
                return _none(ref, *reasons, f"it could not be evaluated again: {error}")
            except (SystemExit, BaseExceptionGroup) as error:
                if isinstance(error, Exception):
                    raise
                # Code that was imported or called must not end the gate, least of all with exit code 0.
                return _none(ref, *reasons, f"it could not be evaluated again: {type(error).__name__}: {message_of(error)}")
            self._made[key] = made
        run_id = self._made[key]
        if problems := self._problems(candidate, ref, run_id):
            return _none(ref, *(f"it was evaluated again, but {problem}" for problem in problems))
        return self._found(ref, run_id, f" (evaluated again as run {run_id})")

    def _obstacles(self, candidate: ReadableRun, ref: BaselineRef) -> list[str]:
        """Return why a candidate cannot pass, whatever it is compared with."""
        decision = decide_in(self.store, candidate, self.policy, now=self.store.clock(), baseline=_none(ref, _PENDING))
        reasons = [reason for reason in decision.reasons if reason != f"not compared with {ref.name}: {_PENDING}"]
        if (target := self.candidate) is not None:
            reasons += version_problems(target, self.store.version(target.name, target.version), candidate.evidence)
        return reasons


def _none(ref: BaselineRef, *problems: str) -> Baseline:
    return Baseline(name=ref.name, version=ref.version, problems=problems)
