"""What was signed as an identity instead of with a key: by whom, and when, as a Sigstore bundle says it.

Sigstore's Fulcio gives a CI job a certificate for a few minutes that says who it is, by the OIDC token that its CI has for it, and its log Rekor
has when it signed. Both go with the statement into a bundle, which an `IdentitySigner` makes and `open_bundle` opens. Everything is checked by sigstore's own client against a trusted
root: that of the public services, or one that is pinned, with which nothing is asked.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mlflow_adk_eval.errors import AttestationError, UsageError
from mlflow_adk_eval.redact import cut, message_of
from mlflow_adk_eval.runtime import require_extra
from mlflow_adk_eval.signing.keys import PAYLOAD_TYPE, SIGNING_KEY, Signer, is_identity, load_signer

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.models import Bundle, ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.sign import SigningContext
    from sigstore.verify import Verifier

CONFIG, _ROOT = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json", "application/vnd.dev.sigstore.trustedroot"
"""The media types of trust files; of the second the beginning."""
_WANTED_TRUST = "wanted JSON of Sigstore's ClientTrustConfig or TrustedRoot"
_SIGNATURE = re.compile(r"\u2014 (\S+) ([A-Za-z0-9+/]+=*)\n")
_LONGEST = 300


class OidcIdentity(NamedTuple):
    """Somebody whom an OIDC issuer knows."""

    identity: str
    """What the certificate is for: the URL of a workflow, an email address."""
    issuer: str
    """The URL of the issuer."""

    def __str__(self) -> str:
        """Return it as a part of a sentence."""
        return f"{cut(self.identity, _LONGEST)} (issuer {cut(self.issuer, _LONGEST)})"


class Opened(NamedTuple):
    """What somebody signed, and when."""

    payload: bytes
    at: datetime
    """By the log, or a timestamp authority."""


def open_bundle(content: bytes, identities: Sequence[OidcIdentity], trust: Mapping[str, Any] | None = None) -> Opened | str:
    """Return what a Sigstore bundle holds, or why it does not count, as the end of a sentence about it.

    Args:
        content: the bundle.
        identities: of which one must have signed.
        trust: a TrustedRoot as JSON; ``None``: that of the public Sigstore.

    Raises:
        UsageError: if the extra is missing, or the trusted root is none.
        AttestationError: if the public Sigstore's trusted root cannot be downloaded.
    """
    with require_extra("sigstore", "verifying a signature by an OIDC identity"):
        from sigstore.models import Bundle  # noqa: PLC0415 - an extra, for few
    verifier, demand = _verifier("" if trust is None else json.dumps(trust)), _Demand(identities)
    try:
        bundle = Bundle.from_json(content)
        kind, payload = verifier.verify_dsse(bundle, demand)
        if kind != PAYLOAD_TYPE or not _is_exact(content, bundle):
            return "does not verify: it was rewritten"
        for stamped in _by_each_stamp(content):  # of which sigstore passes over what does not verify, where another one does
            verifier.verify_dsse(Bundle.from_json(stamped), demand)
        # The earliest time that it gives, each of which was verified.
        entry = json.loads(content)["verificationMaterial"]["tlogEntries"][0]
        stamps = bundle.verification_material.timestamp_verification_data
        logged = int(entry.get("integratedTime", 0)) if "inclusionPromise" in entry else 0
        times = [datetime.fromtimestamp(logged, UTC)] if logged else []
        return Opened(payload, min(times + [stamp.tst_info.gen_time for stamp in (stamps.rfc3161_timestamps if stamps else ())]))
    except Exception as error:  # noqa: BLE001 - whatever strangers wrote into it, it is no signature
        return demand.refusal or f"does not verify: {reason_of(error)}"


class _Demand:
    """A policy of sigstore: one of the identities, to the letter."""

    def __init__(self, identities: Sequence[OidcIdentity]) -> None:
        self._wanted, self.refusal = identities, ""

    def verify(self, cert: Certificate) -> None:
        """Raise sigstore's error if the certificate is for nobody who is wanted, and say in `refusal` for whom it is."""
        from sigstore.errors import VerificationError  # noqa: PLC0415 - an extra, loaded already
        from sigstore.verify.policy import AnyOf, Identity  # noqa: PLC0415

        try:
            AnyOf([Identity(identity=one.identity, issuer=one.issuer) for one in self._wanted]).verify(cert)
        except VerificationError:
            found = identity_of(cert)
            if issuers := [one.issuer for one in self._wanted if one.identity == found.identity]:
                self.refusal = f"was signed as {found.identity}, but the issuer is {found.issuer}; wanted {' or '.join(issuers)}"
            else:
                self.refusal = f"was signed as {found}; wanted {' or '.join(map(str, self._wanted))}"
            raise


def identity_of(cert: Certificate) -> OidcIdentity:
    """Return for whom Fulcio made a certificate. What decides is sigstore's policy: this is for sentences, and for what was just signed."""
    from cryptography.x509 import ObjectIdentifier, RFC822Name, SubjectAlternativeName, UniformResourceIdentifier  # noqa: PLC0415

    names = cert.extensions.get_extension_for_class(SubjectAlternativeName).value
    plain = [*names.get_values_for_type(UniformResourceIdentifier), *names.get_values_for_type(RFC822Name)]
    issuer: Any = cert.extensions.get_extension_for_oid(ObjectIdentifier("1.3.6.1.4.1.57264.1.1")).value
    return OidcIdentity(plain[0] if plain else "an identity without a URL or address", issuer.value.decode())


def _is_exact(content: bytes, bundle: Bundle) -> bool:
    """Whether a bundle is spelt as it was written. What sigstore does not check could be altered unseen otherwise: spaces, names, sizes."""
    value = json.loads(content)
    entry = value["verificationMaterial"]["tlogEntries"][0]
    note, _, signatures = entry["inclusionProof"]["checkpoint"]["envelope"].partition("\n\n")
    origin, size, *_ = note.split("\n")
    lines = _SIGNATURE.findall(signatures)
    return (
        bundle.to_json().encode() == content
        and value["mediaType"] == str(bundle.BundleType.BUNDLE_0_3)
        and value["dsseEnvelope"]["signatures"] == [{"sig": base64.b64encode(bundle.signature).decode()}]
        and entry["inclusionProof"]["treeSize"] == size
        and ("inclusionPromise" in entry or entry["logIndex"] == entry["inclusionProof"]["logIndex"])
        and "".join(f"\u2014 {name} {text}\n" for name, text in lines) == signatures
        and lines[0][0] == origin.partition(" ")[0]
        and (len(lines) == 1 or "inclusionPromise" not in entry)
        and all(base64.b64encode(base64.b64decode(text)).decode() == text for _, text in lines)
    )


def _by_each_stamp(content: bytes) -> Iterator[str]:
    """Yield a bundle as if a stamp of it alone said when it was signed, for each."""
    value = json.loads(content)
    material = value["verificationMaterial"]
    stamps = material.get("timestampVerificationData", {}).get("rfc3161Timestamps", [])
    material["tlogEntries"][0].pop("integratedTime", None)
    for stamp in stamps:
        material["timestampVerificationData"] = {"rfc3161Timestamps": [stamp]}
        yield json.dumps(value)


def trusted_root(value: Any) -> dict[str, Any]:
    """Return the TrustedRoot of what a trust file holds: that, or a ClientTrustConfig that has one.

    Raises:
        ValueError: if it is neither.
    """
    kind = value.get("mediaType") if isinstance(value, Mapping) else None
    root = value.get("trustedRoot") if kind == CONFIG else value
    if not isinstance(root, Mapping) or not str(root.get("mediaType")).startswith(_ROOT):
        raise ValueError(_WANTED_TRUST)
    return dict(root)


def load_trust(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return the TrustedRoot of a trust file, or of its value.

    Raises:
        UsageError: if it is not an agent.
    """
    value = source if isinstance(source, Mapping) else read_json(Path(source))
    try:
        return trusted_root(value)
    except ValueError as error:
        raise UsageError(f"{'the trust' if isinstance(source, Mapping) else source} is not a trusted root; {error}") from None


def read_json(path: Path) -> Any:
    """Return what a trust file holds.

    Raises:
        UsageError: if that is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise UsageError(f"{path} cannot be read as JSON; {_WANTED_TRUST}") from None


def trust_config(value: Mapping[str, Any] | None) -> ClientTrustConfig:
    """Return Sigstore's services and their keys; ``None``: the public ones, as they are now."""
    from sigstore.errors import Error  # noqa: PLC0415 - an extra, loaded already
    from sigstore.models import ClientTrustConfig  # noqa: PLC0415

    if value is not None:
        return ClientTrustConfig.from_json(json.dumps(value))
    try:
        return ClientTrustConfig.production()
    except (Error, OSError) as error:
        message = f"the public Sigstore's trusted root could not be downloaded: {reason_of(error)}; a trust file needs no network"
        raise AttestationError(message) from error


@lru_cache(maxsize=8)
def _verifier(trust: str) -> Verifier:
    from sigstore.errors import Error  # noqa: PLC0415 - an extra, loaded already
    from sigstore.verify import Verifier  # noqa: PLC0415

    nowhere = {"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"}
    value = {"mediaType": CONFIG, "trustedRoot": json.loads(trust), "signingConfig": nowhere} if trust else None
    try:
        return Verifier(trusted_root=trust_config(value).trusted_root)
    except (Error, ValueError) as error:
        raise UsageError(f"the trusted root cannot be used: {reason_of(error)}") from None


def reason_of(error: BaseException) -> str:
    """Return what an error says, with what brought it about: sigstore's own often say little, or nothing."""
    before = error.__cause__ or error.__context__
    said = [cut(message_of(one), _LONGEST) for one in (error, before) if one and str(one)]
    return " (".join(dict.fromkeys(said)) + ")" * (len(set(said)) - 1) if said else type(error).__name__


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
            with the Sigstore services of a ClientTrustConfig; ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``.

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
        if found := detect_credential():
            return IdentityToken(found)
        problem = "this is not a CI job with an identity (GitHub Actions, GitLab, Google Cloud, Buildkite, CircleCI)"
    except IdentityError as error:
        problem = reason_of(error)
    raise UsageError(f"no OIDC identity to sign with: {problem}; in GitHub Actions, the job needs `permissions: id-token: write`")


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
