"""Keys, and what they sign: so that who may write to MLflow, but has no key, cannot make up an evaluation or a promotion.

What is signed as a whole is an in-toto `Statement`: a predicate about things that are named by their hashes, in the form of
https://github.com/in-toto/attestation (Statement v1), whose verifiers hold the hash of a file against the subjects and leave the predicate to
those who know its type.

Everything is signed as DSSE does it: the signature is over the type of a payload and its bytes. A statement is kept in an envelope that holds
its payload (`Signer.seal`, `Verifier.opened`), a claim beside its signature (`Signer.sign`, `Verifier.verifies`). Whoever evaluates or
promotes has the private key (`load_signer`); whoever verifies needs its public part (`load_verifier`). No message shows what a key file holds.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import value_at

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

ENVELOPE = ".dsse.json"
"""What the path of an envelope ends with, after that of what it is about."""
SIGNING_KEY, VERIFY_KEY = "MLFLOW_ADK_EVAL_SIGNING_KEY", "MLFLOW_ADK_EVAL_VERIFY_KEY"
SIGSTORE = "sigstore"
"""Stands for an OIDC identity in the place of a key: ``sigstore``, or ``sigstore:`` and a file with other services than the public ones."""
_BLOCK = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----", re.DOTALL)
_UNTIL = re.compile(rb"^[ \t]*valid-until:[ \t]*(.*?)[ \t]*$", re.IGNORECASE | re.MULTILINE)
_TIMES = (("at",), ("predicate", "finished_at"), ("predicate", "decision", "decided_at"))
"""Where a claim, an evaluation and a decision say when they were made, by the clock of whoever signed."""
_WANTED = "wanted a PEM file with an ed25519 or ECDSA P-256 key, or its content"
_SCHEMES = ("ed25519", "ecdsa-sha2-nistp256")


@dataclass(frozen=True, slots=True)
class Verifier:
    """The public keys of which one must have signed."""

    keys: tuple[SSlibKey, ...] = field(repr=False)
    until: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Until when a key signed, by its id; what says that it was made later was not signed by its owner."""

    @property
    def key_ids(self) -> tuple[str, ...]:
        """What identifies each key: the hash of its public part, in hex."""
        return tuple(str(key.keyid) for key in self.keys)

    def verifies(self, payload: bytes, payload_type: str, signature: str) -> bool:
        """Whether one of the keys signed a payload.

        Args:
            payload: the bytes.
            payload_type: what they are.
            signature: in Base64.
        """
        return self._signed(payload, payload_type, [{"sig": signature}])

    def opened(self, envelope: bytes, payload_type: str) -> bytes | None:
        """Return the payload of a DSSE envelope that one of the keys signed; ``None`` for anything else."""
        try:
            found = json.loads(envelope)
            payload = base64.b64decode(found["payload"], validate=True)
            signed = found["payloadType"] == payload_type and self._signed(payload, payload_type, found["signatures"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return payload if signed else None

    def _signed(self, payload: bytes, payload_type: str, signatures: list[Mapping[str, Any]]) -> bool:
        """Whether a signature is by one of the keys, whatever key the envelope says that it is by: that is not signed."""
        from securesystemslib.dsse import Envelope  # noqa: PLC0415 - only where something is signed
        from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError  # noqa: PLC0415
        from securesystemslib.signer import Signature  # noqa: PLC0415

        content = Envelope(payload, payload_type, {}).pae()
        for signature in signatures:
            try:
                text = base64.b64decode(signature["sig"], validate=True).hex()
            except (binascii.Error, ValueError, KeyError, TypeError):
                continue
            for key in self.keys:
                try:
                    key.verify_signature(Signature(key.keyid, text), content)
                except (UnverifiedSignatureError, VerificationError):
                    continue
                limit = self.until.get(str(key.keyid))
                if limit is None or ((made := _made_at(payload)) is not None and made <= limit):
                    return True
        return False


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key, to sign with."""

    key: CryptoSigner = field(repr=False)

    @property
    def verifier(self) -> Verifier:
        """What checks its signatures."""
        return Verifier((self.key.public_key,))

    def sign(self, payload: bytes, payload_type: str) -> str:
        """Return the signature of a payload, in Base64.

        Args:
            payload: the bytes.
            payload_type: what they are, which is signed, too: so what is signed for one purpose serves no other.
        """
        return str(self._envelope(payload, payload_type)["signatures"][0]["sig"])

    def seal(self, payload: bytes, payload_type: str) -> str:
        """Return the DSSE envelope of a payload, as JSON."""
        return json.dumps(self._envelope(payload, payload_type))

    def _envelope(self, payload: bytes, payload_type: str) -> dict[str, Any]:
        from securesystemslib.dsse import Envelope  # noqa: PLC0415 - only where something is signed

        envelope = Envelope(payload, payload_type, {})
        envelope.sign(self.key)
        return dict(envelope.to_dict())


def load_signer(spec: str | Path | None = None) -> Signer | None:
    """Return what signs; ``None`` if neither `spec` nor the environment names a key.

    Args:
        spec: the path of a PEM file with an ed25519 or ECDSA P-256 key, or its content; ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``.

    Raises:
        UsageError: if it is no such key, or empty. What is in the file is never shown.
    """
    if is_identity(os.environ.get(SIGNING_KEY) if spec is None else spec):
        what = f"{SIGSTORE} signs only evaluations; promotion records and claims need a key"
        raise UsageError(f"{what}: {_WANTED}, by --signing-key or {SIGNING_KEY}")
    if (found := _content(spec, SIGNING_KEY)) is None:
        return None
    content, source = found
    if (key := _private(content)) is None:
        raise UsageError(f"{source} does not name a private key without a passphrase; {_WANTED}")
    return Signer(key)


def is_identity(spec: str | Path | None) -> bool:
    """Whether what is named in the place of a key is an OIDC identity."""
    return str(spec).partition(":")[0] == SIGSTORE


def load_verifier(spec: str | Path | None = None) -> Verifier | None:
    """Return what checks signatures; ``None`` if neither `spec` nor the environment names a key.

    Args:
        spec: as for `load_signer`, or a PEM file with public keys, of which one must have signed; ``None``: what
            ``MLFLOW_ADK_EVAL_VERIFY_KEY`` says.

    Raises:
        UsageError: if it is no such key, or empty.
    """
    if (found := _content(spec, VERIFY_KEY)) is None:
        return None
    content, source = found
    keys = [(_public(block), _until(above)) for above, block in _blocks(content)]
    known = tuple(key for key, _ in keys if key is not None)
    if not keys or len(known) < len(keys):
        raise UsageError(f"{source} does not name a key; {_WANTED}")
    if any(limit is _NO_TIME for _, limit in keys):
        raise UsageError(f"{source} has an invalid Valid-Until; {_WANTED_TIME}")
    return Verifier(known, {str(key.keyid): limit for key, limit in keys if key is not None and limit is not None})


def public_key_problem(text: str) -> str | None:
    """Return why a text is not the PEM of public keys, without showing any of it; ``None`` if it is."""
    blocks = _blocks(text.encode("utf-8", "replace"))
    if any(b"PRIVATE KEY" in block for _, block in blocks):
        return "a private key: keep it only where you evaluate or promote"
    if any(_until(above) is _NO_TIME for above, _ in blocks):
        return f"an invalid Valid-Until; {_WANTED_TIME}"
    return None if blocks and all(_public(block) for _, block in blocks) else "a text that is not such a key"


_NO_TIME = datetime.min.replace(tzinfo=UTC)
_WANTED_TIME = "wanted a time with a zone above the key, such as Valid-Until: 2027-01-31T00:00:00Z"


def _blocks(content: bytes) -> list[tuple[bytes, bytes]]:
    """Return the keys of a PEM file, each with the text above it."""
    ends = [0, *(found.end() for found in _BLOCK.finditer(content))]
    return [(content[start : found.start()], found[0]) for start, found in zip(ends, _BLOCK.finditer(content), strict=False)]


def _until(above: bytes) -> datetime | None:
    """Return until when a key signed, by the text above it; ``None``: for ever."""
    return min((_time(each.decode("utf-8", "replace")) or _NO_TIME for each in _UNTIL.findall(above)), default=None)


def _made_at(payload: bytes) -> datetime | None:
    said = json.loads(payload)  # which was signed, so it is no bomb of strangers
    value = next((found for path in _TIMES if (found := value_at(said, *path)) is not None), None)
    return _time(value) if isinstance(value, str) else None


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


def make_key(path: Path) -> Path:
    """Write a new ed25519 key pair and return the path of the public key. Only the owner can read the private key.

    Raises:
        UsageError: if one of the files exists or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - only where something is signed
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key, public = Ed25519PrivateKey.generate(), path.with_suffix(".pub.pem")
    private_text = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public_text = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    for file, content, mode in ((path, private_text, 0o600), (public, public_text, 0o644)):
        try:
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
                opened.write(content)
        except OSError as error:
            if not isinstance(error, FileExistsError):
                file.unlink(missing_ok=True)
            raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    return public


def _content(spec: str | Path | None, variable: str) -> tuple[bytes, str] | None:
    """Return the PEM text that is named, and who named it so.

    A variable that is set but empty is what CI makes of a secret that is not there. It must not mean that no key is wanted.
    """
    text, source = (os.environ.get(variable), variable) if spec is None else (str(spec), "the key")
    if text is None:
        return None
    if not text.strip():
        raise UsageError(f"{source} is empty; {_WANTED}" + (", or unset it" if spec is None else ""))
    if "-----BEGIN " in text:
        return text.encode(), source
    try:
        return Path(text).read_bytes(), source
    except (OSError, ValueError):  # what was given may be the key itself, which no message may repeat
        raise UsageError(f"{source} cannot be read as a file; {_WANTED}") from None


def _private(content: bytes) -> CryptoSigner | None:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - only where something is signed
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415
    from securesystemslib.signer import CryptoSigner  # noqa: PLC0415

    try:
        found = CryptoSigner(load_pem_private_key(content, None))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return found if found.public_key.scheme in _SCHEMES else None


def _public(content: bytes) -> SSlibKey | None:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415
    from securesystemslib.signer import SSlibKey  # noqa: PLC0415

    if private := _private(content):
        return private.public_key
    try:
        found = SSlibKey.from_crypto(load_pem_public_key(content))
    except (ValueError, UnsupportedAlgorithm):
        return None
    return found if found.scheme in _SCHEMES else None


PAYLOAD_TYPE = "application/vnd.in-toto+json"
"""What the payload of an envelope with a statement is."""
EVALUATION = "urn:mlflow-adk-eval:evaluation:v1"
"""The type of a predicate about an evaluation."""
DECISION = "urn:mlflow-adk-eval:decision:v1"
"""The type of a predicate about a decision of the gate: its record."""
_TYPE = "https://in-toto.io/Statement/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What was said of what."""

    subjects: Mapping[str, str]
    """The sha256 of each, in hex, by name."""
    predicate_type: str
    predicate: Mapping[str, Any]

    def to_json(self) -> bytes:
        """Return the payload of its envelope."""
        subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in self.subjects.items()]
        value = {"_type": _TYPE, "subject": subjects, "predicateType": self.predicate_type, "predicate": self.predicate}
        return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def read_statement(payload: bytes, predicate_type: str) -> Statement | None:
    """Return the statement in a payload; ``None`` if it is none, or one with another predicate."""
    try:
        value = json.loads(payload)
        subjects = {str(one["name"]): str(one["digest"]["sha256"]) for one in value["subject"]}
        predicate = value["predicate"]
        known = value["_type"] == _TYPE and value["predicateType"] == predicate_type and isinstance(predicate, dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Statement(subjects=subjects, predicate_type=predicate_type, predicate=predicate) if known else None
