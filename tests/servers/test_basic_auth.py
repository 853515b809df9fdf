"""Promotions on a server with accounts: what a promoter needs, and that an error says which permission is missing and how it is granted."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request_safe

from mlflow_adk_eval.errors import TrackingError
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import Lab
from tests.mlflow_kit import Server, copied, free_port

pytestmark = pytest.mark.slow
As = Callable[[str], str]
PASSWORD = "a password of eighteen"  # noqa: S105 - of a server that is gone after the test
WITHOUT_FLASK_WTF = '''"""A stand-in for Flask-WTF, which protects the form for new users alone: no test opens that."""


class CSRFProtect:
    def init_app(self, app):
        app.jinja_env.globals["csrf_token"] = str
'''


@pytest.fixture
def accounts(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, As]]:
    """Give the address of a server with `--app-name basic-auth`, and what makes one of its users ask."""
    shipped = (Path(mlflow.__file__).parent / "server" / "auth" / "basic_auth.ini").read_text()
    ini = re.sub(r"(?m)^database_uri *=.*", f"database_uri = sqlite:///{tmp_path}/accounts.db", shipped)
    (tmp_path / "accounts.ini").write_text(f"{ini}\nauth_cache_ttl_seconds = 600\n")
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", str(tmp_path / "accounts.ini"))
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", PASSWORD)
    monkeypatch.setenv("MLFLOW_FLASK_SERVER_SECRET_KEY", "a key")
    with monkeypatch.context() as starting:
        if importlib.util.find_spec("flask_wtf") is None:  # `mlflow[auth]` brings it
            (tmp_path / "instead" / "flask_wtf").mkdir(parents=True)
            (tmp_path / "instead" / "flask_wtf" / "csrf.py").write_text(WITHOUT_FLASK_WTF)
            starting.setenv("PYTHONPATH", str(tmp_path / "instead"), prepend=":")
        (tmp_path / "server").mkdir()
        copied(template, tmp_path / "server")
        server = Server(tmp_path / "server", free_port(), options=("--app-name", "basic-auth")).start()

    def as_user(name: str) -> str:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", name)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
        return name

    as_user("admin")
    for name in ("eva", "ann", "bob"):
        ask(server.uri, "2.0/mlflow/users/create", username=name, password=PASSWORD)
    yield server.uri, as_user
    server.kill()


def granted(error: TrackingError, owner: str, user: str) -> None:
    """Do what an error says that the owner has to do."""
    command = str(error).partition("basic-auth: ")[2]
    arguments = [each.replace("OWNER", f"{owner}:{PASSWORD}").replace("USER", user) for each in shlex.split(command)]
    done = subprocess.run([*arguments, "--silent", "--fail"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def ask(uri: str, path: str, **body: str) -> None:
    """Ask the server for something as the user of the environment."""
    http_request_safe(get_default_host_creds(uri), f"/api/{path}", "POST", json=body)


def test_each_permission_that_a_promoter_lacks_is_named_with_what_grants_it(accounts: tuple[str, As]) -> None:
    (uri, as_user), model = accounts, "shop_bot"
    as_user("eva")
    client = MlflowClient(uri, uri)
    lab = Lab(client, uri, client.create_experiment("shop"), Path())
    first, second = Entrant(lab, model), Entrant(lab, model)

    as_user("ann")
    for what in (
        f"the experiment 'shop' (id {lab.experiment_id}), which you need to store the promotion record",
        f"the registered model {model!r}",
    ):
        with pytest.raises(TrackingError) as refused:
            first.promote()
        assert f"MLflow denies you the permission EDIT on {what}" in str(refused.value)
        granted(refused.value, "eva", "ann")
    assert first.promote().passed

    as_user("eva")
    for kind, key in {"experiment": lab.experiment_id, "registered_model": model}.items():
        ask(uri, "3.0/mlflow/users/permissions/grant", username="bob", resource_type=kind, resource_id=key, permission="EDIT")
    as_user("bob")
    with pytest.raises(TrackingError) as refused:
        second.promote()
    claims = client.get_experiment_by_name(f"adk_eval.gate/{model} promotions")
    named = f"EDIT on the experiment 'adk_eval.gate/{model} promotions' (id {claims.experiment_id}), which you need to set an alias"
    assert named in str(refused.value)
    granted(refused.value, "ann", "bob")
    assert second.promote().passed
    assert second.verify().passed
