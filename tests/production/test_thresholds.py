"""Who has traces and no agent gets a config with thresholds by what was seen, and a schedule."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import mlflow
import pytest
from ruamel.yaml import YAML

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.production.thresholds import thresholds_of
from tests.cli.test_cli import invoke
from tests.examples.test_workflows_are_safe import problems
from tests.integrations.genai import QUIET, tracking
from tests.mlflow_kit import copied
from tests.production.lights import EXPERIMENT, SESSIONS, talk

pytestmark = QUIET


@pytest.fixture(scope="module")
def written(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("seen")
    store = copied(template, folder)
    with chdir(folder), tracking(store):
        talk()
        yield store


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
    return tmp_path


def test_nine_of_ten_conversations_stay_within_a_threshold(template: Path, here: Path) -> None:
    store = copied(template, here)
    with tracking(store):
        mlflow.set_experiment(EXPERIMENT)
        for calls in range(1, 21):
            with mlflow.start_span("assistant", span_type="AGENT") as span:
                span.set_inputs({"question": f"question {calls}"})
                for _ in range(calls):
                    with mlflow.start_span("look", span_type="TOOL") as tool:
                        tool.set_inputs({})
                        tool.set_outputs("found")
                span.set_outputs("Done.")
        with mlflow.start_span("half-written"):
            pass
        mlflow.flush_trace_async_logging()
        seen = {one.criterion: one for one in thresholds_of(EXPERIMENT, store)}
        calls_seen = seen["tool_call_count_v1"]
        assert (calls_seen.threshold, calls_seen.seen, calls_seen.conversations) == (18.0, 18.0, 20)
        lasted = seen["invocation_duration_v1"]
        assert lasted.seen <= lasted.threshold <= 1.1 * lasted.seen
        assert "token_usage_v1" not in seen
        mlflow.set_experiment("empty")
        with pytest.raises(UsageError, match="experiment 'empty' has no conversation in which tokens, calls or seconds can be measured"):
            thresholds_of("empty", store)
        with pytest.raises(UsageError, match="experiment 'nowhere' does not exist"):
            thresholds_of("nowhere", store)


def test_init_writes_what_scores_the_traces_and_the_next_command_runs(written: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = invoke("init", "--traces", EXPERIMENT, "--yes", "--tracking-uri", written)
    assert made.exit_code == 0, made.stderr
    monkeypatch.setenv("MLFLOW_TRACKING_URI", written)
    (line,) = re.findall(r"^Next: mlflow-adk-eval (.*)$", made.stdout, re.MULTILINE)
    assert line == f"traces score {EXPERIMENT} --config production/production_config.json --since 1d"
    assert "gate" not in made.stdout.partition("Next:")[2]
    config = json.loads(Path("production/production_config.json").read_text())
    finished = sum(all(answer for _, answer in turns) for turns in SESSIONS.values())
    known = {"tool_call_count_v1": finished, "inference_call_count_v1": finished, "invocation_duration_v1": len(SESSIONS)}
    assert config["criteria"].keys() == known.keys(), "of a crash nobody knows what was called before"
    assert invoke("validate", "production/production_config.json").exit_code == 0
    page = Path("production/production.md").read_text()
    for name, threshold in config["criteria"].items():
        assert re.search(rf"^\| `{name}` \| {threshold:,g} \| [\d.,e-]+ \| {known[name]} \|$", page, re.MULTILINE), page
    (cron,) = re.findall(r"^17 \* \* \* \* cd (\S+) && mlflow-adk-eval (.*)$", page, re.MULTILINE)
    assert (cron[0], cron[1]) == (str(here), line)
    scored = invoke(*shlex.split(line))
    assert scored.exit_code == 0, scored.stderr
    assert f"{len(SESSIONS)} conversations: 0 scored before" in scored.stdout
    assert f"{len(SESSIONS)} scored before" in invoke(*shlex.split(line)).stdout


def test_its_workflow_is_safe_and_runs_the_same_command(written: str, here: Path) -> None:
    shutil.rmtree(here / "production", ignore_errors=True)
    made = invoke("init", "--traces", EXPERIMENT, "--judge", "openai/gpt-5-mini", "--yes", "--tracking-uri", written, "--folder", "a/evals")
    assert made.exit_code == 0, made.stderr
    workflow = YAML(typ="safe").load(Path(".github/workflows/production-traces.yml").read_text())
    assert problems(workflow) == []
    steps = {step.get("name"): step for step in workflow["jobs"]["score"]["steps"]}
    assert steps["Install"]["run"] == "pip install 'mlflow-adk-eval[litellm]'"
    assert f"Next: {steps['Score']['run'].strip()}\n" in made.stdout
    config = json.loads(Path("a/production/production_config.json").read_text())
    judged = {"threshold": 0.8, "judge_model_options": {"judge_model": "openai/gpt-5-mini"}}
    assert config["criteria"]["hallucinations_v1"] == judged
    assert invoke("validate", "a/production/production_config.json").exit_code == 0
    refused = invoke("init", "--traces", EXPERIMENT, "--yes", "--tracking-uri", written, "--folder", "a/evals")
    assert refused.exit_code == 64
    assert "a/production/production.md" in refused.stderr


@pytest.mark.parametrize("name", ["50% off; rm -rf $HOME", "it's 'quoted' `x`"])
def test_a_name_of_an_experiment_is_no_command(template: Path, here: Path, name: str) -> None:
    store = copied(template, here)
    with tracking(store):
        mlflow.set_experiment(name)
        with mlflow.start_span("assistant", span_type="AGENT") as span:
            span.set_inputs({"question": "Hi"})
            with mlflow.start_span("look", span_type="TOOL") as tool:
                tool.set_inputs({})
            span.set_outputs("Hi.")
        mlflow.flush_trace_async_logging()
    made = invoke("init", "--traces", name, "--yes", "--name", "shop", "--tracking-uri", store)
    assert made.exit_code == 0, made.stderr
    (line,) = re.findall(r"^17 .* && (mlflow-adk-eval .*)$", Path("production/shop.md").read_text(), re.MULTILINE)
    assert not re.search(r"(?<!\\)%", line), "cron ends a command there"
    assert shlex.split(line.replace("\\%", "%"))[:4] == ["mlflow-adk-eval", "traces", "score", name]
    workflow = YAML(typ="safe").load(Path(".github/workflows/shop-traces.yml").read_text())
    assert shlex.split(workflow["jobs"]["score"]["steps"][-1]["run"])[3] == name


def test_a_name_with_a_line_break_is_refused(template: Path, here: Path) -> None:
    store = copied(template, here)
    with tracking(store):
        experiment = mlflow.set_experiment("a\n* * * * * evil")
        with mlflow.start_span("assistant", span_type="AGENT") as span:
            span.set_inputs({"question": "Hi"})
            span.set_outputs("Hi.")
        mlflow.flush_trace_async_logging()
    refused = invoke("init", "--traces", experiment.name, "--yes", "--name", "shop", "--tracking-uri", store)
    assert refused.exit_code == 64
    assert refused.stderr.endswith("this name fits into no schedule; give the experiment's id\n")
    assert not Path("evals").exists()
    made = invoke("init", "--traces", experiment.experiment_id, "--yes", "--name", "shop", "--tracking-uri", store)
    assert made.exit_code == 0, made.stderr
