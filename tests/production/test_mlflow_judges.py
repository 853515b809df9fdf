"""Judges of MLflow as criteria for traces, and what MLflow itself schedules: as the page says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from mlflow.genai.judges import make_judge
from mlflow.genai.scorers import ScorerSamplingConfig, get_scorer

from mlflow_adk_eval import scorers
from tests.cli.test_cli import invoke
from tests.integrations.genai import QUIET, tracking
from tests.integrations.test_scorers_stored import as_a_client
from tests.judge.servers import Call, Reply, Server, openai_answer, openai_error, serving
from tests.mlflow_kit import copied
from tests.production.lights import EXPERIMENT, talk

pytestmark = QUIET
PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "production_judges.md").read_text("utf-8")
REFUSED = re.search(r"```text\n(.*?)\n```", PAGE, re.DOTALL)[1].replace("\n", " ")  # type: ignore[index]


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def answer(call: Call) -> Reply:
    """Find an answer helpful unless it says no."""
    said = json.dumps(call.body["messages"])
    if "tired" in said:
        return openai_error(400)
    return openai_answer(json.dumps({"result": "No." not in said, "rationale": "as it says"}))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(answer) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        for name in ("OPENAI_API_BASE", "OPENAI_BASE_URL"):
            monkeypatch.setenv(name, f"{server.url}/v1")
        yield server


@pytest.fixture
def here(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    store = copied(template, tmp_path)
    with tracking(store):
        talk()
        yield store


@pytest.mark.slow
def test_a_judge_of_mlflow_decides_as_the_page_shows(model: Server, here: str) -> None:
    Path("production_judges.py").write_text(block("py"))
    Path("helpful_config.json").write_text(block("json"))
    assert invoke("validate", "helpful_config.json").exit_code == 0
    (line,) = re.findall(r"^mlflow-adk-eval (.*)$", block("bash"), re.MULTILINE)
    scored = invoke(*line.split(), "--tracking-uri", here, "--json")
    assert scored.exit_code == 0, scored.stderr
    rates: dict[str, Any] = {one["criterion"]: one for one in json.loads(scored.stdout)["rates"]}
    assert (rates["helpful_v1"]["evaluated"], rates["helpful_v1"]["missing"]) == (3, 3), "two crashed, and for one the model failed"
    assert len(model.calls) >= 4
    found = mlflow.search_traces(return_type="list", locations=[mlflow.get_experiment_by_name(EXPERIMENT).experiment_id])  # type: ignore[union-attr]
    values = {trace.info.request_preview: one.value for trace in found for one in trace.info.assessments if one.name == "helpful_v1"}
    assert sorted(value for value in values.values() if value is not None) == [0.0, 1.0, 1.0]


def test_mlflow_says_what_the_page_says(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_CUSTOM_SCORERS", "true")
    as_a_client(monkeypatch)
    helpful = make_judge(name="helpful", instructions="Is {{ outputs }} helpful?", model="openai:/gpt-5-mini", feedback_value_type=bool)
    helpful.register(name="helpful")
    scorers.tool_call_count_v1(threshold=2).register(name="calls")
    always = ScorerSamplingConfig(sample_rate=1.0)
    for name in ("helpful", "calls"):
        with pytest.raises(MlflowException) as refused:
            get_scorer(name=name).start(sampling_config=always)
        assert str(refused.value).endswith(REFUSED.replace("helpful", name))
    values = [
        get_scorer(name="calls").run(trace=mlflow.get_trace(one.info.trace_id)).value for one in mlflow.search_traces(return_type="list")
    ]
    assert [value for value in values if value is not None and value >= 0], "not all traces have what it needs"
