"""What it takes to ask Vertex AI's evaluation service: what is missing is named before anything is sent."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import anyio
import pytest
from google.auth.credentials import AnonymousCredentials

from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.judge.providers import vertex
from mlflow_adk_eval.judge.providers.vertex import vertex_client
from tests.judge.providers.vertex_server import LOCATION, PROJECT, row
from tests.judge.servers import Reply, replies, serving

ENVIRONMENT = (
    "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_API_KEY", "GOOGLE_VERTEX_BASE_URL", "GOOGLE_APPLICATION_CREDENTIALS",
    "GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP", "K_SERVICE", "CLOUD_RUN_JOB", "GAE_ENV", "GAE_RUNTIME",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that knows nothing of Google Cloud."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def refusal() -> str:
    with pytest.raises(JudgeError) as caught:
        vertex_client()
    return str(caught.value)


def given(monkeypatch: pytest.MonkeyPatch, *, project: str = "", location: str = "", base_url: str = "") -> None:
    named = {"GOOGLE_CLOUD_PROJECT": project, "GOOGLE_CLOUD_LOCATION": location, "GOOGLE_VERTEX_BASE_URL": base_url}
    for name, value in named.items():
        monkeypatch.setenv(name, value)


def test_everything_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.aiplatform_v1beta1", None)
    said = refusal()
    for wanted in (
        "Vertex AI's evaluation service needs the extra `vertex`: pip install 'mlflow-adk-eval[vertex]'",
        "GOOGLE_CLOUD_PROJECT is not set",
        "GOOGLE_CLOUD_LOCATION is not set",
        "no Google Cloud credentials: run `gcloud auth application-default login`",
        '"backend": "judge"',
    ):
        assert wanted in said
    assert "GOOGLE_API_KEY" not in said


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({"location": "l", "base_url": "http://here"}, "GOOGLE_CLOUD_PROJECT"),
        ({"project": "p", "base_url": "http://here"}, "GOOGLE_CLOUD_LOCATION"),
        ({"project": "p", "location": "l"}, "no Google Cloud credentials"),
        ({"project": "p", "location": "l", "base_url": "https://vertex.internal"}, "no Google Cloud credentials"),
    ],
)
@pytest.mark.needs("google-cloud-aiplatform")
def test_only_what_is_missing_is_named(known: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **known)
    said = refusal()
    assert [
        name for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "no Google Cloud credentials", "pip install") if name in said
    ] == [missing]
    assert '"backend": "judge"' in said


def test_a_key_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    given(monkeypatch, project="p", location="l")
    assert "(File [GOOGLE_APPLICATION_CREDENTIALS] was not found.)" in refusal()


def test_an_api_key_does_not_do_and_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-0123456789")
    said = refusal()
    assert "GOOGLE_API_KEY is not enough" in said
    assert "AIza" not in said
    assert "GOOGLE_CLOUD_PROJECT" in said


@pytest.mark.needs("google-cloud-aiplatform")
def test_an_old_package_that_would_leave_the_conversation_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("google.cloud.aiplatform_v1beta1")
    old.__spec__ = ModuleSpec(old.__name__, None)
    old.EvaluationInstance = SimpleNamespace(meta=SimpleNamespace(fields={"prompt": None}))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, old.__name__, old)
    given(monkeypatch, project="p", location="l", base_url="http://here")
    said = refusal()
    assert "google-cloud-aiplatform" in said
    assert "is too old: pip install" in said


@pytest.mark.needs("google-cloud-aiplatform")
def test_the_environment_says_where_the_service_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(replies(Reply(body={"metricResults": [row(1)]}))) as server:
        given(monkeypatch, project=PROJECT, location=LOCATION, base_url=f"{server.url}/")
        client = vertex_client()
        anyio.run(partial(client.evaluate, "safety_v1", {}))
        anyio.run(client.aclose)
        assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("location", "endpoint"),
    [
        ("us-central1", "https://us-central1-aiplatform.googleapis.com"),
        ("global", "https://aiplatform.googleapis.com"),
        ("eu", "https://aiplatform.eu.rep.googleapis.com"),
    ],
)
@pytest.mark.needs("google-cloud-aiplatform")
def test_without_a_base_url_the_location_says_where(location: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, project="p", location=location)
    monkeypatch.setattr(vertex, "application_default", lambda: (AnonymousCredentials(), None))
    assert vertex_client().endpoint == endpoint


@pytest.mark.slow
def test_the_package_is_loaded_only_where_it_is_needed() -> None:
    code = "import sys, mlflow_adk_eval.judge.providers.vertex, mlflow_adk_eval.criteria.vertex; print([m for m in sys.modules if 'aiplatform' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
