"""Looking at every alias of a registered model: who set it, on which record, and whether that verifies today."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.promotion.claim import PATIENCE, Patience
from mlflow_adk_eval.gating.promotion.claims import ClaimLog, Entry, aliases_in, read_claim_log
from mlflow_adk_eval.gating.promotion.record import pass_tag
from mlflow_adk_eval.gating.promotion.rollback import Way
from mlflow_adk_eval.gating.promotion.signing import Verifier, load_signer, load_verifier
from mlflow_adk_eval.gating.promotion.target import check_alias, named
from mlflow_adk_eval.gating.promotion.verify import standing
from mlflow_adk_eval.gating.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasAudit:
    """What was found about one alias."""

    model: str
    alias: str
    version: str | None
    """The version that holds it; ``None``: none does."""
    valid: bool
    """Whether that version's record verifies; also where no version holds an alias that nobody asked for."""
    reasons: tuple[str, ...]
    """Why it is valid, or why not."""
    set_by: str = ""
    """Who set it there, by its ledger; empty where it was moved past the ledger."""
    set_at: str = ""
    kind: str = ""
    """``promotion``, ``rollback`` or ``restore``; empty where it was moved past the ledger."""
    notes: tuple[str, ...] = ()
    """What else the ledger tells, such as moves in the past that went past it."""
    restored: str | None = None
    """The version that it was moved back to."""


def audit_in(
    store: Store,
    name: str,
    alias: str | None = None,
    *,
    restore: bool = False,
    required: bool = True,
    verifier: Verifier | None = None,
    patience: Patience = PATIENCE,
) -> tuple[AliasAudit, ...]:
    """Look at an alias of a model, or at each that was ever promoted; `restore`: and move back what is not valid.

    Args:
        store: where everything is.
        name: the model.
        alias: the alias; ``None``: each that was ever promoted.
        restore: whether to move back what is not valid.
        required: whether `alias` has to be there.
        verifier: checks the signatures that records must have; ``None``: they need none.
        patience: how long claims of others are respected.

    Raises:
        UsageError: if there is no such model.
    """
    params, holders = _claims(store, name), store.aliases(name)  # in this order: no alias is set before its claim
    if isinstance(params, str):
        concerned = [each for each in sorted(holders) if alias in (None, each)] or ([alias] if alias and required else [])
        return tuple(AliasAudit(model=name, alias=each, version=holders.get(each), valid=False, reasons=(params,)) for each in concerned)
    known = sorted({*aliases_in(params), *(_promoted(store, name, holders) if alias is None else holders)})
    concerned = [each for each in known if alias in (None, each)] or ([alias] if alias and required else [])
    wanted = alias is not None and required
    found = [_audit(store, name, read_claim_log(params, each), holders.get(each), verifier, wanted=wanted) for each in concerned]
    return tuple(_restored(store, each, verifier, patience) if restore and not each.valid else each for each in found)


def _claims(store: Store, name: str) -> Mapping[str, str] | str:
    try:
        return store.ledger(name)
    except UsageError as error:
        return str(error)


def _promoted(store: Store, name: str, holders: Mapping[str, str]) -> Iterator[str]:
    """Yield the aliases whose holder has a record for them."""
    for alias, version in holders.items():
        if pass_tag(alias) in store.version(name, version).tags:
            yield alias


def _audit(store: Store, name: str, ledger: ClaimLog, holder: str | None, verifier: Verifier | None, *, wanted: bool) -> AliasAudit:
    moves = ledger.moves(holder)
    last = moves[-1] if moves else None
    if holder is None:
        told = (
            f"no version holds it, though {last.claim} was carried out" if last else "no version holds it, and none ever did by its ledger"
        )
        return AliasAudit(
            model=name, alias=ledger.alias, version=None, valid=not wanted, reasons=(told,), notes=tuple(_notes(ledger, moves))
        )
    decision = standing(store, name, holder, ledger.alias, verifier=verifier).decision
    ours = last is not None and last.claim.version == holder
    notes = [*_notes(ledger, moves), *([] if ours else [_past_the_ledger(last, holder)])]
    return AliasAudit(
        model=name,
        alias=ledger.alias,
        version=holder,
        valid=decision.passed,
        reasons=decision.reasons,
        set_by=last.claim.by if last and ours else "",
        set_at=last.claim.at.isoformat(timespec="seconds") if last and ours else "",
        kind=last.claim.kind if last and ours else "",
        notes=tuple(notes),
    )


def _past_the_ledger(last: Entry | None, holder: str) -> str:
    before = f"from version {last.claim.version} (by {last.claim}) " if last else ""
    return f"it was moved by hand {before}to version {holder}: no claim in its ledger says so"


def _notes(ledger: ClaimLog, moves: Iterable[Entry]) -> Iterator[str]:
    """Yield what else the ledger tells: moves past it, claims that are not ended, and what is no claim."""
    for before, after in pairwise(moves):
        if after.claim.previous != before.claim.version:
            to = named(after.claim.previous)
            yield f"before {after.claim}, it was moved by hand from version {before.claim.version} to {to}"
    tip = ledger.tip
    if tip is not None and tip.pending:
        yield f"{tip.claim} has not ended"
    yield from (f"the ledger's {key} is no claim" for key in ledger.spoilt)


def _restored(store: Store, found: AliasAudit, verifier: Verifier | None, patience: Patience) -> AliasAudit:
    reason = f"{named(found.version)} has no record that verifies: {found.reasons[0]}"
    way = Way(store=store, name=found.model, alias=found.alias, kind="restore", reason=reason, verifier=verifier, patience=patience)
    try:
        move = way.back()
    except UsageError as error:  # without a ledger there is nothing to go back by
        return replace(found, notes=(*found.notes, f"not restored: {error}"))
    if move.version is None:
        return replace(found, notes=(*found.notes, *(f"not restored: {reason}" for reason in move.decision.reasons)))
    return replace(found, restored=move.version)


def audit(
    name: str | None = None,
    alias: str | None = None,
    *,
    restore: bool = False,
    signing_key: str | Path | None = None,
    verify_key: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> tuple[AliasAudit, ...]:
    """Return for each alias of a registered model who set it, on which record, and whether that verifies today.

    Args:
        name: the registered model; ``None``: all of them.
        alias: the alias; ``None``: each that was ever promoted by the gate.
        restore: whether an alias that is not valid is moved back to the last version in its ledger whose record verifies.
        signing_key: signs the records of what is moved back, as for `promote`.
        verify_key: the key by which records must be signed; ``None``: as ``MLFLOW_ADK_EVAL_VERIFY_KEY`` says.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if there is no such model, or a key is none.
        TrackingError: if MLflow cannot be reached.
    """
    from mlflow_adk_eval.gating.mlflow_store import MlflowStore, reaching_mlflow  # noqa: PLC0415 - only the public functions need MLflow

    if alias is not None:
        check_alias(alias)
    signer, verifier = load_signer(signing_key), load_verifier(verify_key)
    with reaching_mlflow():
        store = MlflowStore(tracking_uri, registry_uri, signer=signer)
        names = [name] if name is not None else store.models()
        return tuple(
            found for each in names for found in audit_in(store, each, alias, restore=restore, required=name is not None, verifier=verifier)
        )
