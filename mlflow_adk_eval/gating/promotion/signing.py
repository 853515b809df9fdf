"""Signatures of records: so that who may write to MLflow, but has no key, cannot make up a promotion.

A key is an ed25519 key in a PEM file, or a secret that both sides share (HMAC-SHA256). Whoever promotes signs the bytes of the record
(`load_signer`); whoever verifies, audits or rolls back checks the signature (`load_verifier`). No message shows what a key file holds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mlflow_adk_eval.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = ".sig"
"""What the path of a signature ends with, after that of its record."""
SIGNING_KEY, VERIFY_KEY = "MLFLOW_ADK_EVAL_SIGNING_KEY", "MLFLOW_ADK_EVAL_VERIFY_KEY"
_CONTEXT = b"mlflow-adk-eval gate record\n"
"""Signed with each record, so that what the key signed for another purpose is no signature here."""
_HMAC = "hmac:"
_BEGINNING = "-----BEGIN "
_SHORTEST_SECRET = 16
_WANTED = "wanted a PEM file with an ed25519 key, or what is in it, hmac:PATH for a file with a secret, or hmac:$NAME for a variable that holds one"


class Signer(Protocol):
    """Signs records."""

    def sign(self, content: bytes) -> str:
        """Return the signature of a record."""
        ...


class Verifier(Protocol):
    """Checks the signatures of records."""

    def verifies(self, content: bytes, signature: str) -> bool:
        """Whether this is the signature of a record."""
        ...


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that both who signs and who checks must have."""

    value: bytes = field(repr=False)

    def sign(self, content: bytes) -> str:
        """Return the signature of a record."""
        return "hmac-sha256 " + hmac.new(self.value, _CONTEXT + content, hashlib.sha256).hexdigest()

    def verifies(self, content: bytes, signature: str) -> bool:
        """Whether this is the signature of a record."""
        return hmac.compare_digest(self.sign(content).encode(), signature.strip().encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """An ed25519 key, to sign with."""

    key: Ed25519PrivateKey = field(repr=False)

    def sign(self, content: bytes) -> str:
        """Return the signature of a record."""
        return "ed25519 " + base64.b64encode(self.key.sign(_CONTEXT + content)).decode()


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public part of an ed25519 key, to check with."""

    key: Ed25519PublicKey = field(repr=False)

    def verifies(self, content: bytes, signature: str) -> bool:
        """Whether this is the signature of a record."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - only where records are signed

        kind, _, text = signature.strip().partition(" ")
        try:
            self.key.verify(base64.b64decode(text, validate=True), _CONTEXT + content)
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return kind == "ed25519"


def load_signer(spec: str | Path | None = None) -> Signer | None:
    """Return what signs records; ``None`` if neither `spec` nor the environment names a key.

    Args:
        spec: the path of a PEM file with an ed25519 key or its content, ``hmac:<path>`` for a file with a secret, or ``hmac:$<name>``
            for a variable that holds one; ``None``: what ``MLFLOW_ADK_EVAL_SIGNING_KEY`` says.

    Raises:
        UsageError: if it is no such key. What is in the file is never shown.
    """
    text, source = _spec(spec, SIGNING_KEY)
    if not text:
        return None
    if text.startswith(_HMAC):
        return _secret(text, source)
    key = _private(_pem(text, source))
    if key is None:
        raise UsageError(f"{source} does not name an ed25519 private key without a passphrase; {_WANTED}")
    return PrivateKey(key)


def load_verifier(spec: str | Path | None = None) -> Verifier | None:
    """Return what checks signatures; ``None`` if neither `spec` nor the environment names a key.

    Args:
        spec: as for `load_signer`, and a PEM file with the public part alone; ``None``: what ``MLFLOW_ADK_EVAL_VERIFY_KEY`` says.

    Raises:
        UsageError: if it is no such key.
    """
    text, source = _spec(spec, VERIFY_KEY)
    if not text:
        return None
    if text.startswith(_HMAC):
        return _secret(text, source)
    content = _pem(text, source)
    private = _private(content)
    public = private.public_key() if private else _public(content)
    if public is None:
        raise UsageError(f"{source} does not name an ed25519 key; {_WANTED}")
    return PublicKey(public)


def make_key(path: Path) -> Path:
    """Write a new ed25519 key, readable by its owner alone, and its public part beside it, whose path is returned.

    Raises:
        UsageError: if one of the files exists or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key, public = Ed25519PrivateKey.generate(), path.with_suffix(".pub.pem")
    private_text = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public_text = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    for file, content, mode in ((path, private_text, 0o600), (public, public_text, 0o644)):
        try:
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
                opened.write(content)
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    return public


def _spec(spec: str | Path | None, variable: str) -> tuple[str, str]:
    """Return how a key is named, and who named it so."""
    return (os.environ.get(variable, ""), variable) if spec is None else (str(spec), "the key")


def _pem(text: str, source: str) -> bytes:
    return text.encode() if text.lstrip().startswith(_BEGINNING) else _read(text, source)


def _read(path: str, source: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError):  # what was given may be the key itself, which no message may repeat
        raise UsageError(f"{source} cannot be read as a file; {_WANTED}") from None


def _secret(text: str, source: str) -> Secret:
    where = text.removeprefix(_HMAC)
    value = os.environ.get(where[1:], "").encode() if where.startswith("$") else _read(where, source).strip()
    if len(value) < _SHORTEST_SECRET:
        raise UsageError(f"{source} names a secret of less than {_SHORTEST_SECRET} bytes, or none; {_WANTED}")
    return Secret(value)


def _private(content: bytes) -> Ed25519PrivateKey | None:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PrivateKey) else None


def _public(content: bytes) -> Ed25519PublicKey | None:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PublicKey) else None
