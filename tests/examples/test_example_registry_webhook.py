"""The guard of the registry, told by a real MLflow server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import Lab
from tests.mlflow_kit import Server, copied, free_port
from tests.waiting import until

PROJECT = Path(__file__).parents[2] / "example_projects" / "registry_webhook"
SECRET = "0123456789abcdef"  # noqa: S105 - of no account
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guarded(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, str, Path]]:
    """A server with the guard beside it: the store, the guard's address and its log."""
    from cryptography.fernet import Fernet
    from mlflow import MlflowClient

    folder, port = tmp_path_factory.mktemp("guarded"), free_port()
    copied(template, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_WEBHOOK_ALLOWED_SCHEMES", "http,https")
        patch.setenv("MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS", "true")
        patch.setenv("MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY", Fernet.generate_key().decode())
        server = Server(folder, free_port()).start()
    env = {**os.environ, "MLFLOW_TRACKING_URI": server.uri, "REGISTRY_WEBHOOK_SECRET": SECRET, "PORT": str(port)}
    with (folder / "guard.log").open("wb") as log:
        guard = subprocess.Popen([sys.executable, "guard.py"], cwd=PROJECT, env=env, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}/mlflow"
    try:
        until(lambda: _answers(address), "the guard starts")
        made = subprocess.run([sys.executable, "register.py", address], cwd=PROJECT, env=env, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        client = MlflowClient(server.uri, server.uri)
        yield Lab(client, server.uri, client.create_experiment("guarded"), folder), address, folder / "guard.log"
    finally:
        guard.kill()
        guard.wait()
        server.kill()


def _answers(address: str) -> bool:
    try:
        return httpx.get(address).status_code == 405
    except httpx.TransportError:
        return False


def test_what_was_moved_by_hand_is_moved_back_and_promotions_are_left_alone(guarded: tuple[Lab, str, Path]) -> None:
    lab, _, log = guarded
    first, second = promoted(lab, "guarded", 2)
    until(lambda: log.read_text().count("is fine") >= 2, "the guard hears of the promotions")
    Entrant(lab, "guarded", good=False).set_by_hand()
    until(lambda: lab.alias("guarded") == second.version, "the alias is restored")
    lab.client.delete_registered_model_alias("guarded", "champion")
    until(lambda: lab.alias("guarded") == second.version, "the alias is restored")
    assert second.verify().passed
    assert first.verify(version=1, alias=None).passed
    assert "restored to version 2" in log.read_text()


def signed(body: bytes, delivery: str, *, secret: str = SECRET, age_s: float = 0) -> dict[str, str]:
    sent = str(int(time.time() - age_s))
    signature = hmac.new(secret.encode(), f"{delivery}.{sent}.".encode() + body, hashlib.sha256).digest()
    return {
        "X-MLflow-Delivery-Id": delivery,
        "X-MLflow-Timestamp": sent,
        "X-MLflow-Signature": "v1," + base64.b64encode(signature).decode(),
    }


def test_only_what_mlflow_signed_is_heard_and_only_once(guarded: tuple[Lab, str, Path]) -> None:
    _, address, _ = guarded
    body = json.dumps({"entity": "model_version_alias", "action": "created", "data": {"name": "none", "alias": "champion"}}).encode()

    def post(headers: dict[str, str], content: bytes = body) -> tuple[int, object]:
        answer = httpx.post(address, content=content, headers=headers)
        return answer.status_code, answer.json().get("audited")

    assert post(signed(body, "one")) == (202, True)
    assert post(signed(body, "one")) == (200, False)
    assert post({}) == (401, None)
    assert post(signed(body, "two", secret="guessed")) == (401, None)  # noqa: S106
    assert post(signed(body, "three", age_s=3600)) == (401, None)
    assert post(signed(body, "four"), body.replace(b"none", b"home")) == (401, None)
    other = json.dumps({"entity": "model_version", "action": "created", "data": {}}).encode()
    assert post(signed(other, "five"), other) == (200, False)
