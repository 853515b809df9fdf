"""Signing without a key: a CI job signs as itself, by the OIDC token that its CI has for it, and Sigstore's services."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.errors import AttestationError, UsageError
from mlflow_adk_eval.gating.attestation.identities import CONFIG, identity_of, open_bundle, read_json, reason_of, trust_config, trusted_root
from mlflow_adk_eval.gating.attestation.keys import SIGNING_KEY, Signer, is_identity, load_signer
from mlflow_adk_eval.runtime import require_extra

if TYPE_CHECKING:
    from sigstore.oidc import IdentityToken
    from sigstore.sign import SigningContext

_logger = logging.getLogger(__name__)

_PAUSES_S = (0, 1, 4)
"""Before each attempt to sign."""


@dataclass(frozen=True, slots=True)
class IdentitySigner:
    """What signs as the OIDC identity that the CI job has when it signs."""

    context: SigningContext = field(repr=False)
    trust: Mapping[str, Any] | None = field(repr=False)
    limit_s: float = 30
    """How long an attempt may take: sigstore's client waits for ever."""

    def seal(self, statement: bytes) -> str:
        """Return the Sigstore bundle of an in-toto statement, as JSON.

        Raises:
            AttestationError: if nothing could be signed, after three attempts, each with a token of its own.
        """
        failure: Exception = TimeoutError()
        for pause in _PAUSES_S:
            time.sleep(pause)
            outcome = _within(self.limit_s, lambda: self._signed(statement))
            if isinstance(outcome, str):
                return outcome
            failure = outcome
        raise AttestationError(f"Sigstore could not sign the evaluation: {reason_of(failure)}") from failure

    def _signed(self, statement: bytes) -> str:
        from sigstore.dsse import Statement  # noqa: PLC0415 - an extra, loaded already

        with self.context.signer(_token()) as signer:
            bundle = signer.sign_dsse(Statement(statement))
        content, signed_as = bundle.to_json(), identity_of(bundle.signing_certificate)
        opened = open_bundle(content.encode(), (signed_as,), self.trust)
        if isinstance(opened, str):  # which the gate would find out too late
            raise AttestationError(f"what it answered {opened}")
        _logger.info("the evaluation is signed", extra={"identity": signed_as.identity, "issuer": signed_as.issuer})
        return content


def load_attester(spec: str | Path | None = None) -> Signer | IdentitySigner | None:
    """Return what signs an evaluation; ``None`` if neither `spec` nor the environment names anything.

    Args:
        spec: a key, as `load_signer` takes it; or ``sigstore``, for the OIDC identity that the CI job has, and ``sigstore:FILE`` for the same
            with the Sigstore services of a ClientTrustConfig; ``None``: what ``MLFLOW_ADK_EVAL_SIGNING_KEY`` says.

    Raises:
        UsageError: if it is no such key, there is no such identity, or the extra is missing.
        AttestationError: if Sigstore's trusted root could not be had.
    """
    named = os.environ.get(SIGNING_KEY) if spec is None else spec
    if not is_identity(named):
        return load_signer(spec)
    with require_extra("sigstore", f"signing with {named}"):
        from sigstore.errors import Error  # noqa: PLC0415 - an extra, for few
        from sigstore.sign import SigningContext  # noqa: PLC0415
    file = str(named).partition(":")[2]
    value = read_json(Path(file)) if file else None
    if file and not (isinstance(value, dict) and value.get("mediaType") == CONFIG):
        raise UsageError(f"{file} does not say where to sign; wanted JSON of Sigstore's ClientTrustConfig")
    _token()
    try:
        return IdentitySigner(SigningContext.from_trust_config(trust_config(value)), trusted_root(value) if file else None)
    except (Error, ValueError) as error:
        raise UsageError(f"{named} cannot be used to sign: {reason_of(error)}") from None


def _token() -> IdentityToken:
    """Return a token of the identity that this job has now: each is good for minutes, and an evaluation may take hours.

    Raises:
        UsageError: if it has none.
    """
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential  # noqa: PLC0415 - an extra, loaded already

    try:
        found = detect_credential()
        if found:
            return IdentityToken(found)
        problem = "this is no CI job that has one (GitHub Actions, GitLab, Google Cloud, Buildkite, CircleCI)"
    except IdentityError as error:
        problem = reason_of(error)
    raise UsageError(f"there is no OIDC identity to sign as: {problem}; in GitHub Actions the job needs `permissions: id-token: write`")


def _within(limit_s: float, work: Callable[[], str]) -> str | Exception:
    """Return what `work` comes to, or why it came to nothing, after a time at most."""
    done: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def worker() -> None:
        try:
            done.put(work())
        except Exception as error:  # noqa: BLE001 - the errors of sigstore's clients have no common root
            done.put(error)

    threading.Thread(target=worker, daemon=True).start()
    try:
        return done.get(timeout=limit_s)
    except queue.Empty:
        return TimeoutError(f"no answer within {limit_s:g} seconds")
