"""The server as its users meet it: all metrics by every way to ask, the examples of the API's documentation, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import pytest
from pydantic.alias_generators import to_camel

from mlflow_adk_eval.config.rapid_catalogue import RapidMetric
from mlflow_adk_eval.rapid_eval import evaluate_instances
from tests.criteria.rapid.documented import CURL, PYTHON, answers
from tests.integrations.rapid_server.server_kit import (
    EXACT,
    FLUENCY,
    METRICS,
    Running,
    answer_of,
    error_of,
    judge,
    judged_by,
    post,
    request_of,
    served,
)
from tests.judge.servers import Reply, replies, serving

curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
each_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(*judged_by("judge")) as running:
        yield running


# Every metric by every way to ask


@each_metric
@pytest.mark.needs("sacrebleu")
def test_each_metric_through_python(metric: RapidMetric) -> None:
    assert evaluate_instances(request_of(metric), judge=judge, ledger=False) == answer_of(metric)


@curl
@each_metric
@pytest.mark.needs("sacrebleu")
def test_each_metric_through_curl(metric: RapidMetric, server: Running) -> None:
    headers = ("-H", "Authorization: Bearer whatever", "-H", "Content-Type: application/json")
    given = ("curl", "-sS", "-X", "POST", *headers, server.endpoint, "-d", json.dumps(request_of(metric)))
    assert json.loads(subprocess.run(given, check=True, capture_output=True, timeout=300).stdout) == answer_of(metric)


@pytest.fixture(scope="module")
def client(server: Running) -> Any:
    """Google's own client; only its endpoint is another one."""
    api = pytest.importorskip("google.cloud.aiplatform_v1beta1")
    from google.auth.credentials import AnonymousCredentials

    with api.EvaluationServiceClient(
        credentials=AnonymousCredentials(), transport="rest", client_options={"api_endpoint": server.url}
    ) as made:
        yield partial(_asked, api, made)


def _asked(api: Any, client: Any, body: Any) -> Any:
    from google.protobuf import json_format

    request = api.EvaluateInstancesRequest(location="projects/acme/locations/us-central1")
    json_format.ParseDict(body, type(request).pb(request))
    response = client.evaluate_instances(request)
    return json_format.MessageToDict(type(response).pb(response), preserving_proto_field_name=True)


@each_metric
def test_each_metric_through_googles_client(metric: RapidMetric, client: Any) -> None:
    assert client(request_of(metric)) == answer_of(metric)


def test_googles_client_understands_the_errors(client: Any) -> None:
    from google.api_core.exceptions import BadRequest

    with pytest.raises(BadRequest, match="rouge1 to rouge9") as raised:
        client({"rouge_input": {"metric_spec": {"rouge_type": "rouge10"}, "instances": [{"prediction": "x", "reference": "y"}]}})
    (violation,) = raised.value.details[0]["fieldViolations"]
    assert violation["field"] == "rouge_input.metric_spec.rouge_type"


def test_both_versions_of_the_api_and_both_spellings_are_the_same(server: Running) -> None:
    body = {"toolNameMatchInput": {"metricSpec": {}, "instances": [{"prediction": "x", "reference": "x"}]}}
    for path in ("/v1/projects/p/locations/l:evaluateInstances", "/v1beta1/projects/a%20b/locations/l/:evaluateInstances"):
        response = httpx.post(server.url + path, json=body, timeout=300)
        assert response.json() == {"tool_name_match_results": {"tool_name_match_metric_values": [{"score": 0.0}]}}


# The examples of the documentation, as written


@pytest.fixture(scope="module")
def google_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of somebody with a Google account, to whom a server of ours gives tokens."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path_factory.mktemp("account") / "account.json"
    with serving(replies(Reply(body={"access_token": "a-token", "expires_in": 3600, "token_type": "Bearer"}))) as tokens:
        account = {"type": "service_account", "project_id": "acme", "private_key": key.decode(), "token_uri": f"{tokens.url}/token"}
        file.write_text(json.dumps({**account, "client_email": "someone@acme.example"}), encoding="utf-8")
        yield {**os.environ, "GOOGLE_APPLICATION_CREDENTIALS": str(file)}


@curl
@pytest.mark.parametrize("example", CURL)
def test_the_documented_curl_examples_run_as_written(example: str, server: Running) -> None:
    text = CURL[example].replace("https://${REGION}-aiplatform.googleapis.com", server.url)
    script = f"gcloud() {{ echo a-token; }}\nREGION=us-central1\nPROJECT_ID=acme\n{text}"
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout) == answers(example)


@pytest.mark.slow
@pytest.mark.parametrize("example", PYTHON)
def test_the_documented_python_examples_run_as_written(
    example: str, server: Running, google_account: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "example.py"
    text = PYTHON[example].replace("https://${REGION}-aiplatform.googleapis.com", server.url)
    script.write_text(f"REGION = 'us-central1'\nPROJECT_ID = 'acme'\n{text}", encoding="utf-8")
    done = subprocess.run([sys.executable, "-W", "ignore", script], check=True, capture_output=True, env=google_account, timeout=300)
    assert json.loads(done.stdout) == answers(example)


# What is refused


BAD: dict[str, tuple[Any, str]] = {
    "two inputs": ({**FLUENCY, **EXACT}, "$"),
    "no input": ({}, "$"),
    "unknown metric": ({"fluencies_input": {"instance": {}}}, "fluencies_input"),
    "missing field": ({"bleu_input": {"instances": [{"prediction": "x"}]}}, "bleu_input.instances[0].reference"),
    "rouge10": (
        {"rouge_input": {"metric_spec": {"rouge_type": "rouge10"}, "instance": {"prediction": "x", "reference": "y"}}},
        "rouge_input.metric_spec.rouge_type",
    ),
    "a number for a text": ({"fluencyInput": {"instance": {"prediction": 5}}}, "fluency_input.instance.prediction"),
    "a text for a switch": (
        {"rouge_input": {"metric_spec": {"use_stemmer": "yes"}, "instance": {"prediction": "x", "reference": "y"}}},
        "rouge_input.metric_spec.use_stemmer",
    ),
    "a list": ([FLUENCY], "$"),
}


@pytest.mark.parametrize(("body", "field"), BAD.values(), ids=BAD)
def test_bad_requests_are_named_with_their_fields(body: Any, field: str, server: Running) -> None:
    response = post(server, body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["status"] == "INVALID_ARGUMENT"
    assert error["details"][0]["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    assert [violation["field"] for violation in error["details"][0]["fieldViolations"]] == [field]


RAW: dict[str, tuple[bytes, dict[str, str], int]] = {
    "nothing": (b"", {}, 400),
    "no JSON": (b'{"a":', {}, 400),
    "NaN": (b'{"fluency_input": {"instance": {"prediction": NaN}}}', {}, 400),
    "a bomb": (b"[" * 900_000, {}, 400),
    "no UTF-8": (b'{"\xfc": 1}', {}, 400),
    "half a character": (b'{"fluency_input": {"instance": {"prediction": "\\ud800"}}}', {}, 400),
    "too large": (b" " * 1_000_001, {}, 413),
    "much too large": (b" " * 20_000_000, {}, 413),
    "a web page": (b"{}", {"origin": "https://example.com"}, 403),
}


@pytest.mark.parametrize(("raw", "headers", "status"), RAW.values(), ids=RAW)
def test_other_bodies_are_refused_in_the_same_shape(raw: bytes, headers: dict[str, str], status: int, server: Running) -> None:
    response = post(server, None, content=raw, headers={"content-type": "application/json", **headers})
    assert response.status_code == status
    error_of(response)


def test_a_large_request_without_a_length_is_refused(server: Running) -> None:
    response = post(server, None, content=(b" " * 100_000 for _ in range(20)), headers={"content-type": "application/json"})
    assert error_of(response)["code"] == 413


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("GET", "/health/", 404), ("PUT", "/health", 405)])
def test_other_paths_and_methods_are_refused_in_the_same_shape(method: str, path: str, status: int, server: Running) -> None:
    response = httpx.request(method, server.url + path)
    assert response.status_code == status
    assert "/health" in error_of(response)["message"] or set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_it_says_that_it_is_up_and_what_it_takes(server: Running) -> None:
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    described = httpx.get(f"{server.url}/openapi.json").json()
    assert {f"{''.join(map(str.title, metric.name.split('_')))}Request" for metric in METRICS} <= set(described["components"]["schemas"])


@pytest.mark.parametrize("metric", [METRICS[0], METRICS[7], METRICS[-1]], ids=lambda metric: metric.name)
def test_keys_in_camel_case(metric: RapidMetric, server: Running) -> None:
    body = {to_camel(key): value for key, value in request_of(metric).items()}
    assert post(server, body).json() == answer_of(metric)


def test_answers_are_not_held_back_for_acknowledgements(server: Running) -> None:
    taken = [1.0]
    with httpx.Client() as client:
        while min(taken) >= 0.03 and len(taken) < 1000:  # where TCP waits, each takes 0.04 s, and on a busy machine most do
            began = perf_counter()
            assert client.post(server.endpoint, json=EXACT).status_code == 200
            taken.append(perf_counter() - began)
    assert min(taken) < 0.03
