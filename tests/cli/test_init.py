"""``mlflow-adk-eval init``: what it writes is valid, and passes at once. test_first_hour.py takes it through gate and workflow."""

from __future__ import annotations

import json
import os
import pty
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.errors import ConfigError
from mlflow_adk_eval.evalset.files import load_eval_set
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeSetup
from tests.cli.shop_agent import adk_agent
from tests.cli.test_cli import EXPECTED, invoke, written
from tests.mlflow_kit import copied

pytestmark = pytest.mark.filterwarnings("ignore")

BOT = """
def answer(message, session=None):
    return "It is open until six." if "open" in message else "Sorry, no."

class Broken:
    pass

def fails(message):
    raise ValueError("out of order")

def same(request):
    alike = request.blocks["response"] == request.blocks["reference"]
    return {"rationale": "compared", "verdict": "valid" if alike else "invalid"}

address = "http://127.0.0.1:9/"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with an agent that is a function, and one of google-adk."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "bot.py").write_text(BOT)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/agent.py").write_text(adk_agent("shop"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("bot", "shop", "shop.agent"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"MLFLOW_ADK_EVAL_LEDGER", "GITHUB_STEP_SUMMARY"}}
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False, env=kept)


def steps(workflow: Path) -> dict[str, str]:
    document = YAML(typ="safe").load(workflow.read_text())
    return {step["name"]: step["run"] for step in document["jobs"]["evaluate"]["steps"] if "run" in step}


@pytest.mark.slow
def test_what_is_written_for_an_agent_of_adk_passes_at_once(project: Path) -> None:
    pytest.importorskip("google.adk")
    made = started("mlflow_adk_eval", "init", "--example", "When are you open?", "--example", "On Monday?=It is open from nine to six.")
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith(
        'user      When are you open?\ncalled    opening_hours({"day": "Monday"})\nanswered  It is open from nine to six.\n'
        "wrote evals/shop.evalset.json\nwrote evals/test_config.json\nwrote evals/gate.yaml\nwrote evals/test_shop.py\n"
        "wrote .github/workflows/shop-eval.yml\n\nNext: mlflow-adk-eval run shop evals/shop.evalset.json --experiment shop\n"
        "Review the recorded answers, then: mlflow-adk-eval generate --accept evals/shop.evalset.json\n"
    )
    assert [case.tags for case in load_eval_set("evals/shop.evalset.json").eval_cases] == [("generated",), ()], "nobody was asked"
    expected = criteria(calls=True)
    expected["tool_trajectory_avg_score"]["only_where_expected"] = True  # the typed answer says nothing of calls
    assert json.loads(Path("evals/test_config.json").read_text())["criteria"] == expected
    turns = [turn for case in load_eval_set("evals/shop.evalset.json").eval_cases for turn in case.conversation or ()]
    assert [[call.args for call in turn.tool_calls] for turn in turns] == [[{"day": "Monday"}], []], "one was asked, one was typed"
    passes_at_once(project, "shop")


def passes_at_once(project: Path, name: str) -> None:
    """Hold what was written to `validate`, and the agent to its test."""
    checked = invoke("validate", *project.glob("evals/*.json"), "evals/gate.yaml")
    assert checked.exit_code == 0, checked.stderr
    tested = started("pytest", "-q", "-p", "no:cacheprovider", "evals")
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout


@pytest.mark.slow
def test_what_is_written_for_a_function_passes_at_once(project: Path) -> None:
    """The steps of the workflow are run in test_first_hour.py, with a good and with a worse agent."""
    examples = ("--example", "When are you open?=It is open until six.", "--example", "Do you sell cars?")
    assert invoke("init", "bot:answer", *examples).exit_code == 0
    passes_at_once(project, "answer")
    assert steps(project / ".github/workflows/answer-eval.yml")["Install"] == "pip install 'mlflow-adk-eval[adk]'"


def test_a_recording_becomes_the_cases_and_calls_of_tools_a_criterion(project: Path) -> None:
    lights = written(project / "lights.evalset.json", EXPECTED)
    made = invoke("init", "bot:answer", "--recording", lights, "--name", "my lights", "--folder", "tests/evals")
    assert made.exit_code == 0, made.stderr
    found = load_eval_set("tests/evals/my_lights.evalset.json")
    assert found.eval_ids == load_eval_set(lights).eval_ids
    assert [turn.final_text for case in found.eval_cases for turn in case.conversation or ()] == [
        turn.final_text for case in load_eval_set(lights).eval_cases for turn in case.conversation or ()
    ]
    assert json.loads(Path("tests/evals/test_config.json").read_text())["criteria"] == criteria(calls=True)
    assert 'HERE / "../.."' in Path("tests/evals/test_my_lights.py").read_text()


def criteria(*, calls: bool) -> dict[str, Any]:
    trajectory = {"tool_trajectory_avg_score": {"threshold": 1.0, "match_type": "EXACT"}}
    return {**(trajectory if calls else {}), "response_match_score": 0.8}


def test_a_function_may_judge_in_every_file_that_is_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = invoke("init", "bot:answer", "--example", "Are you open?=It is open until six.", "--judge", "bot:same")
    assert made.exit_code == 0, made.stderr
    label = "mlflow-adk-eval view --label, then mlflow-adk-eval calibrate latest -o evals/calibration.json"
    assert f"--experiment answer\nCalibrate the judge: label its verdicts with {label}\nThen: " in made.stdout
    judged = {"threshold": 0.8, "judge_model_options": {"judge_model": "bot:same"}}
    assert json.loads(Path("evals/test_config.json").read_text())["criteria"] == {"final_response_match_v2": judged}
    with pytest.raises(ConfigError, match="judge_model"):  # as a run in MLflow may hold it, whoever wrote that
        JudgeSession(JudgeSetup()).check(parse_config({"criteria": {"final_response_match_v2": judged}}, "a run"))
    assert YAML(typ="safe").load(Path("evals/gate.yaml"))["calibration"] == "calibration.json"
    assert " --experiment answer --json " in steps(project / ".github/workflows/answer-eval.yml")["Evaluate"]

    written_test = runpy.run_path("evals/test_answer.py")["test_answer"]
    written_test(monkeypatch)
    (project / "bot.py").write_text(BOT.replace("It is open until six.", "Who knows?"))
    monkeypatch.delitem(sys.modules, "bot")
    with pytest.raises(AssertionError, match="final_response_match_v2 is 0, below its threshold"):
        written_test(monkeypatch)


def test_a_model_that_judges_stands_in_the_config_and_its_client_is_installed(project: Path) -> None:
    made = invoke("init", "bot:answer", "--example", "Hi=Sorry, no.", "--judge", "openai/gpt-5-mini")
    assert made.exit_code == 0, made.stderr
    assert "--judge" not in made.stdout
    judged = {"threshold": 0.8, "judge_model_options": {"judge_model": "openai/gpt-5-mini"}}
    assert json.loads(Path("evals/test_config.json").read_text())["criteria"] == {"final_response_match_v2": judged}
    assert steps(project / ".github/workflows/answer-eval.yml")["Install"] == "pip install 'mlflow-adk-eval[adk,litellm]'"
    assert invoke("validate", "evals/test_config.json").exit_code == 0


def test_traces_become_the_cases(project: Path, template: Path) -> None:
    import mlflow

    from tests.integrations.genai import tracking

    (project / "store").mkdir()
    uri = copied(template, project / "store")
    with tracking(uri):
        mlflow.set_experiment("production")
        with mlflow.start_span("bot", span_type="AGENT") as span:
            span.set_inputs({"question": "Are you open?"})
            span.set_outputs("It is open until six.")
        mlflow.flush_trace_async_logging()
    shutil.rmtree(project / "shop")
    made = invoke("init", "--traces", "production", "--yes", "--tracking-uri", uri)
    assert made.exit_code == 0, made.stderr
    (case,) = load_eval_set("evals/production.evalset.json").eval_cases
    assert [(turn.user_text, turn.final_text) for turn in case.conversation or ()] == [("Are you open?", "It is open until six.")]
    assert case.tags == ("open calls",)  # a span without steps does not say which tools were called
    assert json.loads(Path("evals/test_config.json").read_text())["criteria"] == criteria(calls=False)
    assert sorted(path.name for path in Path("evals").iterdir()) == ["gate.yaml", "production.evalset.json", "test_config.json"]
    assert made.stdout.endswith("With an agent: mlflow-adk-eval init AGENT --eval-set evals/production.evalset.json\n")
    later = invoke("init", "bot:answer", "--eval-set", "evals/production.evalset.json")
    assert "kept evals/gate.yaml\nwrote evals/test_answer.py\n" in later.stdout, later.stderr


def test_nothing_is_overwritten_without_force_and_a_second_agent_has_its_own_folder(project: Path) -> None:
    Path("evals").mkdir()
    Path("evals/gate.yaml").write_text("mine")
    init = ("init", "bot:answer", "--example", "Hi=Sorry, no.")
    refused = invoke(*init, "--folder", "evals")
    wanted = "error: evals/gate.yaml already exists; --force overwrites, --name writes others\n"
    assert (refused.exit_code, refused.stderr) == (64, wanted)
    assert ([path.name for path in Path("evals").iterdir()], Path("evals/gate.yaml").read_text()) == (["gate.yaml"], "mine")
    beside = invoke(*init)
    assert (beside.exit_code, Path("evals/gate.yaml").read_text()) == (0, "mine"), beside.stderr
    assert "--experiment answer\nThen: mlflow-adk-eval gate latest --policy evals/answer/gate.yaml" in beside.stdout
    assert 'HERE / "../.."' in Path("evals/answer/test_answer.py").read_text()
    assert invoke(*init).exit_code == 64
    assert invoke(*init, "--folder", "evals", "--force").exit_code == 0
    assert "min_cases: 1 " in Path("evals/gate.yaml").read_text()


@pytest.mark.needs("google-adk")
def test_an_eval_set_that_exists_has_the_cases(project: Path) -> None:
    refused = invoke("init", "bot:answer", "--yes")
    assert refused.stderr.startswith("error: give cases with one of "), "there is none yet"
    written(project / "shop/first.test.json", EXPECTED)
    written(project / "shop/test_config.json", {"criteria": {"response_match_score": 0.5}})
    made = invoke("init", "shop")
    files = "kept shop/first.test.json\nkept shop/test_config.json\nwrote shop/gate.yaml\nwrote shop/test_shop.py\nwrote .github/"
    assert (made.exit_code, made.stdout.startswith(files)) == (0, True), made.stderr
    assert YAML(typ="safe").load(Path("shop/gate.yaml"))["eval_set"] == {"id": "lights"}
    assert 'HERE / "first.test.json"' in Path("shop/test_shop.py").read_text()
    written(project / "shop/second.evalset.json", EXPECTED)
    several = invoke("init", "shop").stderr
    assert several == "error: found several eval sets: shop/first.test.json, shop/second.evalset.json; name one with --eval-set\n"
    judged = invoke("init", "shop", "--eval-set", "shop/second.evalset.json", "--judge", "bot:same")
    assert "error: --judge: shop/test_config.json is there already" in judged.stderr


def test_below_the_root_of_a_repository_the_workflow_works_in_the_projects_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "inner").mkdir()
    (project / "inner/bot2.py").write_text(BOT)
    (project / "inner/requirements.txt").write_text("")
    monkeypatch.chdir(project / "inner")
    made = invoke("init", "bot2:answer", "--example", "Hi=Sorry, no.")
    assert "wrote ../.github/workflows/answer-eval.yml\n" in made.stdout, made.stderr
    job = YAML(typ="safe").load((project / ".github/workflows/answer-eval.yml").read_text())["jobs"]["evaluate"]
    assert job["defaults"] == {"run": {"working-directory": "inner"}}
    assert job["steps"][3]["run"] == "pip install 'mlflow-adk-eval[adk]' -r requirements.txt"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("bot:answer",), "give cases with one of --example QUESTION=ANSWER, --eval-set FILE, --recording FILE or --traces EXPERIMENT"),
        (("bot:answer", "--example", "a=b", "--recording", "x.json"), "give cases with one of"),
        (("bot:answer", "--example", "=b"), "--example '=b': wanted QUESTION=ANSWER"),
        (("bot:answers", "--example", "a=b"), "bot:answers: module 'bot' has no agent 'answers'. Did you mean 'answer'?"),
        (("bot:address", "--example", "a=b"), "bot:address: module 'bot' has no agent 'address'."),
        (("bott:answer", "--example", "a=b"), "there is no module 'bott'"),
        (("bot:fails", "--example", "a"), "--example: the agent failed on case 'a': "),
        (("bot:answer", "--recording", "empty.json"), "empty.json: no conversation in it is complete"),
        (("lights.json", "--example", "a=b"), "lights.json is a recording; name the agent, and pass this file with --recording"),
        (("--example", "a=b"), "init: found several agents: other/agent, shop; name one"),
        (("bot:answer", "--example", "a=b", "--judge", "bot:nobody"), "--judge=bot:nobody: module 'bot' has no attribute 'nobody'"),
    ],
)
def test_what_is_wrong_is_one_line(project: Path, arguments: tuple[str, ...], wanted: str) -> None:
    written(project / "lights.json", EXPECTED)
    written(project / "empty.json", {"eval_set_id": "empty", "eval_cases": []})
    (project / "other/agent").mkdir(parents=True)
    (project / "other/agent/root_agent.yaml").write_text("name: other\n")
    (project / "no_agent").mkdir()
    (project / "no_agent/agent.py").write_text("x = 1\n")
    result = invoke("init", *arguments)
    assert (result.exit_code, result.stdout) != (0, ""), result.stdout
    assert result.exit_code == 64
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {wanted}")
    assert not Path("evals").exists()


@pytest.mark.slow
def test_a_terminal_is_asked_for_what_no_option_says(project: Path) -> None:
    shutil.rmtree(project / "shop")
    ours, theirs = pty.openpty()
    typed = "bot:answer\n\nAre you open?\n\nIs 2+2=4?\nSorry, no.\nAre you there?=Yes.\nHi\n\nBye\n\n\ny\ns\ne\nGoodbye.\n"
    process = subprocess.Popen([sys.executable, "-m", "mlflow_adk_eval", "init"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
    os.write(ours, typed.encode())
    _, errors = process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0, errors
    turns = [turn for case in load_eval_set("evals/answer.evalset.json").eval_cases for turn in case.conversation or ()]
    assert [(turn.user_text, turn.final_text) for turn in turns] == [
        ("Are you open?", "It is open until six."),
        ("Is 2+2=4?", "Sorry, no."),
        ("Are you there?", "Yes."),
        ("Bye", "Goodbye."),
    ]
    assert not any(case.tags for case in load_eval_set("evals/answer.evalset.json").eval_cases)
