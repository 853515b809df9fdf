"""``mlflow-adk-eval capture``: what it writes, says and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from mlflow_adk_eval.evalset.files import load_eval_set
from tests.cli.test_cli import invoke
from tests.integrations.genai import QUIET, tracking
from tests.mlflow_kit import copied

pytestmark = QUIET


@pytest.fixture(scope="module")
def store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with two sessions of three turns together."""
    import mlflow

    folder = tmp_path_factory.mktemp("cli")
    uri = copied(template, folder)
    with chdir(folder), tracking(uri):
        mlflow.set_experiment("bot")
        for session, text in (("s1", "I am ann@example.com"), ("s1", "bye"), ("s2", "hello")):
            with mlflow.start_span("bot", span_type="AGENT") as span:
                span.set_inputs({"question": text})
                mlflow.update_current_trace(metadata={"mlflow.trace.session": session})
                span.set_outputs("yes")
        mlflow.flush_trace_async_logging()
        yield uri


def ids(store: str) -> list[str]:
    from mlflow import MlflowClient

    client = MlflowClient(store)
    found = client.search_traces(locations=[client.get_experiment_by_name("bot").experiment_id])
    return [trace.info.trace_id for trace in sorted(found, key=lambda trace: trace.data.spans[0].start_time_ns)]


def test_traces_by_id_become_a_file(store: str, tmp_path: Path) -> None:
    first, second, _ = ids(store)
    path = tmp_path / "bots.evalset.json"
    result = invoke("capture", "--trace-id", first, "--trace-id", second, "-o", path, "--tracking-uri", store)
    assert (result.exit_code, result.stdout) == (
        0,
        (
            f"{path}: 1 case, 2 turns\n"
            "  the traces do not say which tools were called in 1 case: write that, and remove the tag 'open calls'\n"
            f"next: mlflow-adk-eval run AGENT {path}\n"
        ),
    ), result.stderr
    found = load_eval_set(path)
    assert [case.tags for case in found.eval_cases] == [("open calls",)]
    assert (found.eval_set_id, found.eval_ids) == ("bots", ("s1",))


def test_a_session_a_filter_a_sample_and_a_function_that_redacts(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hiding.py").write_text("def mails(text):\n    return text.replace('ann@example.com', '[mail]')\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "one.json"
    where = ("-o", path, "--tracking-uri", store, "--experiment", "bot")
    result = invoke("capture", "--session", "s1", "--redact", "hiding:mails", "--eval-set-id", "mine", *where)
    assert result.exit_code == 0, result.stderr
    assert json.loads(path.read_text())["eval_cases"][0]["conversation"][0]["user_content"]["parts"] == [{"text": "I am [mail]"}]
    assert load_eval_set(path).eval_set_id == "mine"
    refused = invoke("capture", "--session", "s2", *where)
    assert (refused.exit_code, refused.stderr) == (64, f"error: {path} already exists; --force overwrites it\n")
    result = invoke("capture", "--filter", "trace.status = 'OK'", "--sample", 1, "--seed", 3, "--force", *where)
    assert result.exit_code == 0, result.stderr
    assert len(load_eval_set(path).eval_cases) == 1


@pytest.mark.parametrize(
    ("arguments", "exit_code", "wanted"),
    [
        (("--redact", "nowhere:f", "--session", "s1"), 64, "--redact=nowhere:f: No module named 'nowhere'"),
        (("--redact", "json", "--session", "s1"), 64, "wanted MODULE:FUNCTION"),
        (("--redact", "json:__name__", "--session", "s1"), 64, "not a function"),
        (("--session", "nobody"), 64, "found no such trace"),
        (("--trace-id", "tr-1", "--session", "s1"), 64, "cannot be combined"),
        (("--sample", "0"), 64, "Invalid value for '--sample'"),
    ],
)
def test_what_makes_no_sense_is_said(store: str, tmp_path: Path, arguments: tuple[str, ...], exit_code: int, wanted: str) -> None:
    path = tmp_path / "x.json"
    experiment = () if "--trace-id" in arguments else ("--experiment", "bot")
    result = invoke("capture", *arguments, *experiment, "-o", path, "--tracking-uri", store)
    assert result.exit_code == exit_code
    assert wanted in result.stderr
    assert not path.exists()


def test_a_store_that_does_not_answer_is_a_failed_run(tmp_path: Path) -> None:
    result = invoke("capture", "--session", "s", "-o", tmp_path / "x.json", "--tracking-uri", "http://127.0.0.1:9")
    assert result.exit_code == 3
    assert "cannot be reached" in result.stderr
