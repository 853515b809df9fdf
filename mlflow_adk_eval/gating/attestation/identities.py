"""What was signed as an identity instead of with a key: by whom, and when, as a Sigstore bundle says it.

Sigstore's Fulcio gives a CI job a certificate for a few minutes that says who it is, and its log Rekor has when it signed. Both go with the
statement into a bundle, which `identity_signer` makes and `open_bundle` opens. Everything is checked by sigstore's own client against a trusted
root: that of the public services, or one that is pinned, with which nothing is asked.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mlflow_adk_eval.errors import AttestationError, UsageError
from mlflow_adk_eval.gating.attestation.statement import PAYLOAD_TYPE
from mlflow_adk_eval.redact import cut, message_of
from mlflow_adk_eval.runtime import require_extra

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.models import Bundle, ClientTrustConfig
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
        AttestationError: if the trusted root of the public Sigstore cannot be had.
    """
    with require_extra("sigstore", "verifying what was signed as an OIDC identity"):
        from sigstore.models import Bundle  # noqa: PLC0415 - an extra, for few
    verifier, demand = _verifier("" if trust is None else json.dumps(trust)), _Demand(identities)
    try:
        bundle = Bundle.from_json(content)
        kind, payload = verifier.verify_dsse(bundle, demand)
        if kind != PAYLOAD_TYPE or not _is_exact(content, bundle):
            return "does not verify: it is not spelt as it was written"
        for stamped in _by_each_stamp(content):  # of which sigstore passes over what does not verify, where another one does
            verifier.verify_dsse(Bundle.from_json(stamped), demand)
        return Opened(payload, _signed_at(content, bundle))
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
                self.refusal = f"was signed as {found.identity}, but its issuer is {found.issuer}; wanted {' or '.join(issuers)}"
            else:
                self.refusal = f"was signed as {found}; wanted {' or '.join(map(str, self._wanted))}"
            raise


def identity_of(cert: Certificate) -> OidcIdentity:
    """Return for whom Fulcio made a certificate. What decides is sigstore's policy: this is for sentences, and for what was just signed."""
    from cryptography.x509 import ObjectIdentifier, RFC822Name, SubjectAlternativeName, UniformResourceIdentifier  # noqa: PLC0415

    names = cert.extensions.get_extension_for_class(SubjectAlternativeName).value
    plain = [*names.get_values_for_type(UniformResourceIdentifier), *names.get_values_for_type(RFC822Name)]
    issuer: Any = cert.extensions.get_extension_for_oid(ObjectIdentifier("1.3.6.1.4.1.57264.1.1")).value
    return OidcIdentity(plain[0] if plain else "nobody with a URL or an address", issuer.value.decode())


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


def _signed_at(content: bytes, bundle: Bundle) -> datetime:
    """Return the earliest time that a bundle gives, each of which was verified."""
    entry, stamps = json.loads(content)["verificationMaterial"]["tlogEntries"][0], bundle.verification_material.timestamp_verification_data
    logged = int(entry.get("integratedTime", 0)) if "inclusionPromise" in entry else 0
    times = [datetime.fromtimestamp(logged, UTC)] if logged else []
    return min(times + [stamp.tst_info.gen_time for stamp in (stamps.rfc3161_timestamps if stamps else ())])


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
        UsageError: if it is none.
    """
    value = source if isinstance(source, Mapping) else read_json(Path(source))
    try:
        return trusted_root(value)
    except ValueError as error:
        raise UsageError(f"{'the trust' if isinstance(source, Mapping) else source} is no trusted root; {error}") from None


def read_json(path: Path) -> Any:
    """Return what a trust file holds.

    Raises:
        UsageError: if that is no JSON.
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
        message = f"the trusted root of the public Sigstore could not be had: {reason_of(error)}; a trust file needs no network"
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
