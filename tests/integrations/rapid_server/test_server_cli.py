"""``mlflow-adk-eval rapid-eval``: requests from files, and options that make no sense."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS
from tests.cli.test_cli import invoke
from tests.criteria.rapid.documented import CURL, answers
from tests.integrations.rapid_server.server_kit import EXACT, answer_of, judged_by, request_of

METRIC = RAPID_METRICS["fluency"]


def evaluated(body: str, tmp_path: Path, *options: str) -> Result:
    file = tmp_path / "request.json"
    file.write_text(body, encoding="utf-8")
    return invoke("rapid-eval", "evaluate", file, *options)


def test_the_answer_to_a_file_is_printed(tmp_path: Path) -> None:
    found = evaluated(json.dumps(request_of(METRIC)), tmp_path, *judged_by("judge"))
    assert (found.exit_code, json.loads(found.output)) == (0, answer_of(METRIC))
    assert "weil es gut ist" in found.output


@pytest.mark.parametrize("example", CURL)
def test_the_documented_bodies_can_be_piped(example: str) -> None:
    body = CURL[example].partition("-d '")[2].rstrip().removesuffix("'").replace(r"'\''", "'")
    found = CliRunner().invoke(cli, ["rapid-eval", "evaluate", "-", *judged_by("judge")], input=body)
    assert json.loads(found.output) == answers(example)


def test_a_list_of_requests_is_a_list_of_answers_and_a_missing_one_is_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOODY_JUDGE", str(tmp_path))
    found = evaluated(json.dumps([EXACT, request_of(METRIC)]), tmp_path, *judged_by("moody_judge"), "--judge-outage", "0.2")
    answers = json.loads(found.output)
    assert found.exit_code == 3
    assert answers[0] == {"exact_match_results": {"exact_match_metric_values": [{"score": 1.0}]}}
    assert answers[1]["error"]["status"] == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"fluency_input": {"instance": {"prediction": 3}}}', "$.fluency_input.instance.prediction"),
        ('{"fluency_input": ', "line 1, column 19"),
        ("3", "wanted an object"),
        ('"text"', "wanted an object"),
        ("[3]", "wanted an object"),
    ],
)
def test_a_bad_request_is_64_with_its_place(body: str, words: str, tmp_path: Path) -> None:
    found = evaluated(body, tmp_path)
    assert found.exit_code == 64
    assert words in found.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--judge", "tests.integrations.rapid_server.server_kit:jugde"], "--judge=tests.integrations.rapid_server.server_kit:jugde"),
        (["--judge", "gemini-2.5-pro", "--backend", "vertex"], "--backend vertex has its own judge"),
        (["--num-samples", "0"], "--num-samples"),
        (["--backend", "vertx"], "--backend"),
        (["--host", "0.0.0.0"], "set --token or MLFLOW_ADK_EVAL_RAPID_TOKEN"),  # noqa: S104 - refused
        (["--host", "::"], "set --token or MLFLOW_ADK_EVAL_RAPID_TOKEN"),
        (["--host", "no.such.host.invalid"], "cannot listen at --host no.such.host.invalid"),
        (["--host", "192.0.2.1", "--token", "secret"], "cannot listen at --host 192.0.2.1"),
        (["--port", "70000"], "--port"),
        (["--max-body", "0"], "--max-body"),
    ],
)
def test_what_cannot_be_served_is_64(options: list[str], words: str) -> None:
    found = invoke("rapid-eval", "serve", "--port", "0", *options)
    assert found.exit_code == 64
    assert words in found.output
    assert "listening" not in found.output
    assert "secret" not in found.output


def test_a_port_that_is_taken_is_64() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = invoke("rapid-eval", "serve", "--port", taken.getsockname()[1])
    assert found.exit_code == 64
    assert "Address already in use" in found.output


def test_vertex_without_a_project_is_3(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_VERTEX_BASE_URL", "GOOGLE_CLOUD_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    found = invoke("rapid-eval", "serve", "--backend", "vertex", "--port", "0")
    assert found.exit_code == 3
    assert "GOOGLE_CLOUD_PROJECT" in found.output


def test_the_help_names_the_path() -> None:
    said: Any = invoke("rapid-eval", "serve", "--help")
    assert ":evaluateInstances" in said.output
    assert "MLFLOW_ADK_EVAL_RAPID_TOKEN" in said.output
