"""A private Sigstore on the loopback interface: an OIDC issuer as GitHub Actions has one, Fulcio, a CT log's key, Rekor (v1 or v2) and a timestamp authority.

sigstore's own client talks to it by HTTP and verifies what it answers against `Sigstore.config`, so everything here is as it is in the real services:
certificates with SCTs, log entries with inclusion proofs and signed checkpoints, RFC 3161 timestamps.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

GITHUB = "https://token.actions.githubusercontent.com"
WORKFLOW = "acme/rooms/.github/workflows/evaluate.yml@refs/heads/main"
IDENTITY = f"https://github.com/{WORKFLOW}"
Fault = Literal["503", "lost", "hang", "html", "expired"]
_REQUEST_TOKEN = "gh-request-token-0123456789"  # noqa: S105 - of no account
_OIDC = "1.3.6.1.4.1.57264.1"
_SHA256, _ECDSA, _SIGNED_DATA, _TST_INFO = (
    "2.16.840.1.101.3.4.2.1",
    "1.2.840.10045.4.3.2",
    "1.2.840.113549.1.7.2",
    "1.2.840.113549.1.9.16.1.4",
)
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def spki(key: Key) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def signature(key: Key, content: bytes) -> bytes:
    return key.sign(content) if isinstance(key, ed25519.Ed25519PrivateKey) else key.sign(content, ec.ECDSA(hashes.SHA256()))


def pem_of(cert: x509.Certificate) -> str:
    return cert.public_bytes(Encoding.PEM).decode()


def authority(name: str, key: ec.EllipticCurvePrivateKey, year: datetime) -> x509.Certificate:
    """Return the certificate of a root."""
    named = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "sigstore.test"), x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(named, named, key.public_key(), x509.random_serial_number(), year, year + timedelta(days=3650))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage(key_cert_sign=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256())


def usage(**what: bool) -> x509.KeyUsage:
    names = "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign encipher_only decipher_only"
    return x509.KeyUsage(**{name: what.get(name, False) for name in names.split()})


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    long = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag]) + (bytes([size]) if size < 128 else bytes([0x80 | len(long)]) + long) + content


def der_oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    coded = bytearray([40 * first + second])
    for number in rest:
        groups = [number & 127]
        while number := number >> 7:
            groups.append(number & 127 | 128)
        coded += bytes(reversed(groups))
    return der(6, bytes(coded))


def der_int(number: int) -> bytes:
    return der(2, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def elements(content: bytes) -> list[bytes]:
    """Return the parts of a DER sequence, each with its head."""
    found = []
    while content:
        size, head = content[1], 2
        if size & 0x80:
            head += size & 0x7F
            size = int.from_bytes(content[2:head], "big")
        found.append(content[: head + size])
        content = content[head + size :]
    return found


class Sigstore:
    """The services, each with its keys. `offset` is how far their clock is from this machine's; `faults` what becomes of the next requests."""

    def __init__(self, *, rekor: Literal[1, 2] = 1, stamps: bool = True) -> None:
        self.rekor, self.stamps, self.offset = rekor, stamps, timedelta()
        year = datetime.now(UTC).replace(microsecond=0) - timedelta(days=365)
        self.year = year
        self.root_key, self.ct_key, self.tsa_root_key, self.tsa_key, self.issuer_key = (new_key() for _ in range(5))
        self.log_key: Key = new_key() if rekor == 1 else ed25519.Ed25519PrivateKey.generate()
        self.root, self.tsa_root = authority("Fulcio", self.root_key, year), authority("TSA root", self.tsa_root_key, year)
        self.tsa_cert = self._tsa_certificate()
        self.witness = f"\u2014 witness.test {b64(secrets.token_bytes(76))}"
        """What somebody adds to a checkpoint of Rekor v2, whose key clients do not know."""
        self.leaves: list[bytes] = [b"an entry of somebody else", b"another one", b"a third one"]
        self.claims: dict[str, Any] = {}
        """What the next tokens say instead."""
        self.faults: dict[str, list[Fault]] = {}
        """By the end of the path; each is for one request."""
        self.requests: list[str] = []
        self.lock = threading.Lock()
        self.url = ""

    @property
    def now(self) -> datetime:
        return (datetime.now(UTC) + self.offset).replace(microsecond=0)

    @property
    def log_id(self) -> bytes:
        if isinstance(self.log_key, ed25519.Ed25519PrivateKey):  # the id of a note's key: https://c2sp.org/signed-note
            return hashlib.sha256(b"rekor.test\n\x01" + self.log_key.public_key().public_bytes_raw()).digest()
        return hashlib.sha256(spki(self.log_key)).digest()

    # OIDC

    def token(self) -> str:
        """Return a token such as GitHub Actions gives a job."""
        at = datetime.now(UTC)
        claims = {
            "iss": GITHUB,
            "aud": "sigstore",
            "sub": "repo:acme/rooms:ref:refs/heads/main",
            "job_workflow_ref": WORKFLOW,
            "iat": at,
            "nbf": at - timedelta(seconds=5),
            "exp": at + timedelta(minutes=5),
        }
        return jwt.encode({**claims, **self.claims}, self.issuer_key, "ES256")

    # Fulcio

    def certificate(self, authorization: str, request: dict[str, Any]) -> list[str]:
        """Return a certificate for whom the token is, and the one of its issuer. A token that is no good is a `PyJWTError`."""
        token = authorization.removeprefix("Bearer ")
        claims = jwt.decode(token, self.issuer_key.public_key(), ["ES256"], audience="sigstore")
        key = x509.load_pem_x509_csr(base64.b64decode(request["certificateSigningRequest"])).public_key()
        name = x509.UniformResourceIdentifier(f"https://github.com/{claims['job_workflow_ref']}")
        builder = x509.CertificateBuilder(
            self.root.subject,
            x509.Name([]),
            key,  # type: ignore[arg-type]
            x509.random_serial_number(),
            self.now,
            self.now + timedelta(minutes=10),
        )
        builder = builder.add_extension(usage(digital_signature=True), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.root_key.public_key()), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=True)
        for number, value in ((1, claims["iss"].encode()), (8, der(0x0C, claims["iss"].encode()))):
            builder = builder.add_extension(x509.UnrecognizedExtension(x509.ObjectIdentifier(f"{_OIDC}.{number}"), value), critical=False)
        signed = builder.sign(self.root_key, hashes.SHA256()).tbs_certificate_bytes
        stamps = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2"), der(4, self._scts(signed)))
        return [pem_of(builder.add_extension(stamps, critical=False).sign(self.root_key, hashes.SHA256())), pem_of(self.root)]

    def _scts(self, precertificate: bytes) -> bytes:
        """Return what a CT log says of a certificate (RFC 6962)."""
        issuer, ms = hashlib.sha256(spki(self.root_key)).digest(), int(self.now.timestamp() * 1000)
        entry = issuer + len(precertificate).to_bytes(3, "big") + precertificate
        signed = signature(self.ct_key, struct.pack("!BBQH", 0, 0, ms, 1) + entry + b"\0\0")
        sct = b"\0" + hashlib.sha256(spki(self.ct_key)).digest() + struct.pack("!QHBBH", ms, 0, 4, 3, len(signed)) + signed
        return struct.pack("!HH", len(sct) + 2, len(sct)) + sct

    # Rekor

    def entry_v1(self, proposed: dict[str, Any]) -> dict[str, Any]:
        content = proposed["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        body = {
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(content["envelope"].encode()).hexdigest()},
                "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(base64.b64decode(envelope["payload"])).hexdigest()},
                "signatures": [{"signature": envelope["signatures"][0]["sig"], "verifier": content["verifiers"][0]}],
            },
        }
        leaf, at = json.dumps(body, separators=(",", ":")).encode(), int(self.now.timestamp())
        index, proof = self._logged(leaf)
        promised = {"body": b64(leaf), "integratedTime": at, "logID": self.log_id.hex(), "logIndex": index + 1000}
        promise = signature(self.log_key, json.dumps(promised, separators=(",", ":"), sort_keys=True).encode())
        numbers = {"logIndex": index, "treeSize": len(self.leaves), "rootHash": proof["root"].hex()}
        said = {**numbers, "hashes": [each.hex() for each in proof["path"]], "checkpoint": proof["checkpoint"]}
        return {secrets.token_hex(32): {**promised, "verification": {"signedEntryTimestamp": b64(promise), "inclusionProof": said}}}

    def entry_v2(self, proposed: dict[str, Any]) -> dict[str, Any]:
        request = proposed["hashedRekordRequestV002"]
        record = {"data": {"algorithm": "SHA2_256", "digest": request["digest"]}, "signature": request["signature"]}
        leaf = json.dumps(
            {"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"hashedRekordV002": record}}, separators=(",", ":")
        ).encode()
        index, proof = self._logged(leaf)
        numbers = {"logIndex": str(index), "treeSize": str(len(self.leaves)), "rootHash": b64(proof["root"])}
        said = {**numbers, "hashes": [b64(each) for each in proof["path"]], "checkpoint": {"envelope": proof["checkpoint"]}}
        kind = {"kind": "hashedrekord", "version": "0.0.2"}
        log = {"logIndex": str(index), "logId": {"keyId": b64(self.log_id)}}
        return {**log, "kindVersion": kind, "inclusionProof": said, "canonicalizedBody": b64(leaf)}

    def _logged(self, leaf: bytes) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.leaves += [leaf, b"what came next"]
            index, root = len(self.leaves) - 2, tree_hash(self.leaves)
            note = f"rekor.test{' - 1193050959916656506' if self.rekor == 1 else ''}\n{len(self.leaves)}\n{b64(root)}\n"
            line = f"\u2014 rekor.test {b64(self.log_id[:4] + signature(self.log_key, note.encode()))}\n"
            line += f"{self.witness}\n" if self.rekor == 2 else ""
            return index, {"root": root, "path": path_to(index, self.leaves), "checkpoint": f"{note}\n{line}"}

    # The timestamp authority

    def _tsa_certificate(self) -> x509.Certificate:
        named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "TSA")])
        builder = x509.CertificateBuilder(
            self.tsa_root.subject,
            named,
            self.tsa_key.public_key(),
            x509.random_serial_number(),
            self.year,
            self.year + timedelta(days=3650),
        )
        builder = builder.add_extension(usage(digital_signature=True), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), critical=True)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.tsa_root_key.public_key()), critical=False)
        return builder.sign(self.tsa_root_key, hashes.SHA256())

    def stamp(self, request: bytes) -> bytes:
        """Return the answer to an RFC 3161 request."""
        imprint = elements(elements(elements(request)[0][4 if request[1] & 0x80 else 2 :])[1])[0]
        serial, at = secrets.randbits(60), self.now.strftime("%Y%m%d%H%M%SZ").encode()
        info = der(0x30, der_int(1), der_oid("1.3.6.1.4.1.57264.2"), imprint, der_int(serial), der(0x18, at))
        sha256 = der(0x30, der_oid(_SHA256))
        cert = self.tsa_cert.public_bytes(Encoding.DER)
        essential = der(0x30, der(0x30, der(0x30, der(4, hashlib.sha256(cert).digest()))))
        values = {
            "1.2.840.113549.1.9.3": der_oid(_TST_INFO),
            "1.2.840.113549.1.9.4": der(4, hashlib.sha256(info).digest()),
            "1.2.840.113549.1.9.16.2.47": essential,
        }
        attributes = b"".join(sorted(der(0x30, der_oid(name), der(0x31, value)) for name, value in values.items()))
        who = der(0x30, self.tsa_cert.issuer.public_bytes(), der_int(self.tsa_cert.serial_number))
        signed = signature(self.tsa_key, der(0x31, attributes))
        signer = der(0x30, der_int(1), who, sha256, der(0xA0, attributes), der(0x30, der_oid(_ECDSA)), der(4, signed))
        content = der(0x30, der_oid(_TST_INFO), der(0xA0, der(4, info)))
        data = der(0x30, der_int(3), der(0x31, sha256), content, der(0xA0, cert), der(0x31, signer))
        return der(0x30, der(0x30, der_int(0)), der(0x30, der_oid(_SIGNED_DATA), der(0xA0, data)))

    # What pins it

    @property
    def config(self) -> dict[str, Any]:
        """The ClientTrustConfig: where to sign, and whom to trust."""
        start = {"start": (self.year + timedelta(days=1)).isoformat()}

        def service(path: str, version: int = 1) -> dict[str, Any]:
            return {"url": f"{self.url}{path}", "majorApiVersion": version, "validFor": start, "operator": "sigstore.test"}

        def log(key: Key, key_id: bytes) -> dict[str, Any]:
            kind = "PKIX_ED25519" if isinstance(key, ed25519.Ed25519PrivateKey) else "PKIX_ECDSA_P256_SHA_256"
            public = {"rawBytes": b64(spki(key)), "keyDetails": kind, "validFor": start}
            return {"baseUrl": self.url, "hashAlgorithm": "SHA2_256", "publicKey": public, "logId": {"keyId": b64(key_id)}}

        def certificates(*certs: x509.Certificate) -> dict[str, Any]:
            chain = {"certificates": [{"rawBytes": b64(cert.public_bytes(Encoding.DER))} for cert in certs]}
            return {"subject": {"organization": "sigstore.test", "commonName": "x"}, "certChain": chain, "validFor": start}

        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.log_key, self.log_id)],
            "certificateAuthorities": [certificates(self.root)],
            "ctlogs": [log(self.ct_key, hashlib.sha256(spki(self.ct_key)).digest())],
            "timestampAuthorities": [certificates(self.tsa_cert, self.tsa_root)],
        }
        where = {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service("")],
            "rekorTlogUrls": [service("", self.rekor)],
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaUrls": [service("/timestamp")] if self.stamps else [],
            "tsaConfig": {"selector": "ANY"},
        }
        return {"mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json", "trustedRoot": root, "signingConfig": where}

    def in_github(self, patched: pytest.MonkeyPatch) -> None:
        """Have this process look like a job of GitHub Actions with `id-token: write`."""
        patched.setenv("GITHUB_ACTIONS", "true")
        patched.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", _REQUEST_TOKEN)
        patched.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{self.url}/token?api-version=2.0")


def tree_hash(leaves: list[bytes]) -> bytes:
    """Return the root of a Merkle tree (RFC 6962)."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + tree_hash(leaves[:half]) + tree_hash(leaves[half:])).digest()


def path_to(index: int, leaves: list[bytes]) -> list[bytes]:
    """Return the hashes that lead from a leaf to the root (RFC 6962)."""
    if len(leaves) == 1:
        return []
    half = 1 << (len(leaves) - 1).bit_length() - 1
    if index < half:
        return [*path_to(index, leaves[:half]), tree_hash(leaves[half:])]
    return [*path_to(index - half, leaves[half:]), tree_hash(leaves[:half])]


class _Handler(BaseHTTPRequestHandler):
    sigstore: Sigstore

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, content: bytes) -> None:
        path, service = urlsplit(self.path).path, self.sigstore
        service.requests.append(path)
        fault = next((planned.pop(0) for end, planned in service.faults.items() if path.endswith(end) and planned), None)
        if fault == "hang":
            time.sleep(5)
        if fault == "503":
            return self._send(503, b'{"code": 14, "message": "try again later"}')
        if fault == "html":
            return self._send(200, b"<html>Sign in</html>")
        try:
            found = self._found(path, content, expired=fault == "expired")
        except jwt.PyJWTError as error:
            return self._send(401, json.dumps({"message": str(error)}).encode())
        if fault != "lost":  # the connection ends without an answer
            self._send(201 if self.command == "POST" else 200, found)
        return None

    def _found(self, path: str, content: bytes, *, expired: bool) -> bytes:
        service = self.sigstore
        if path == "/token":
            assert self.headers["Authorization"] == f"bearer {_REQUEST_TOKEN}"
            assert parse_qs(urlsplit(self.path).query)["audience"] == ["sigstore"]
            past = {"exp": datetime.now(UTC) - timedelta(minutes=1)} if expired else {}
            return json.dumps(
                {
                    "value": jwt.encode(
                        {**jwt.decode(service.token(), options={"verify_signature": False}), **past}, service.issuer_key, "ES256"
                    )
                }
            ).encode()
        if path == "/api/v2/signingCert":
            chain = service.certificate(self.headers["Authorization"], json.loads(content))
            return json.dumps({"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}).encode()
        if path == "/timestamp":
            return service.stamp(content)
        entry = {"/api/v1/log/entries": service.entry_v1, "/api/v2/log/entries": service.entry_v2}[path]
        return json.dumps(entry(json.loads(content))).encode()

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):  # who asked may have given up
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Sigstore]:
    """Provide the services on a port of the loopback interface."""
    service = Sigstore(**options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"sigstore": service}))
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
