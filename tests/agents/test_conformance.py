"""Folders of ``adk conformance``, recorded by ADK itself: eval sets here, worlds to replay, and the same verdicts as ADK's own test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.agents.recordings import load_recording
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.config.inputs import load_inputs
from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.models import EvalSet, canonical
from mlflow_adk_eval.report.findings import causes_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, run
from tests.agents.conformance_kit import MODES, REAL, REFUNDS, TRAVEL, Adk, refunds, travel, write_tests
from tests.agents.scripted import llm, text
from tests.cli.test_cli import invoke

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:google", "ignore::DeprecationWarning")

CONFIG = parse_config(
    {
        "criteria": {
            "tool_trajectory_avg_score": {"threshold": 1.0, "match_type": "EXACT"},
            "response_match_score": 1.0,
            "final_session_state": {"threshold": 1.0, "match_type": "EXACT", "only_where_expected": True},
        }
    },
    "test_config.json",
)
AGENTS = {"core/travel": travel, "core/refunds": refunds}


@pytest.fixture(scope="module")
def adk(tmp_path_factory: pytest.TempPathFactory) -> Adk:
    return Adk(tmp_path_factory.mktemp("agents"))


@pytest.fixture(scope="module")
def recorded(adk: Adk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tests(tmp_path_factory.mktemp("recorded") / "tests", travel=TRAVEL, refunds=REFUNDS)
    adk.record(folder)
    return folder


@pytest.fixture
def folder(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the recorded tests, to be spoilt."""
    return Path(shutil.copytree(recorded, tmp_path / "tests"))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def replay(folder: Path, eval_id: str, agent: LlmAgent | None = None, **options: Any) -> Report:
    """Evaluate an agent on a test, with the tools as ADK recorded them. Nothing real is called."""
    REAL.clear()
    named = f"{folder}:{eval_id}"
    eval_set, _ = load_inputs(named, CONFIG)
    report = run(eval_set, load_adk_agent(agent or AGENTS[eval_id]), CONFIG, Options(replay=load_recording(named), **options))
    assert REAL == []
    return report


def kinds(report: Report) -> list[str]:
    return [injection.kind for injection in report.cases[0].conversation.injections]


def test_a_test_is_a_case_that_expects_what_adk_recorded(recorded: Path) -> None:
    eval_set, _ = load_inputs(f"{recorded}:core/travel")
    (case,) = eval_set.eval_cases
    assert case.eval_id == "core/travel"
    assert canonical(case.session_input) == {
        "app_name": "travel",
        "user_id": "adk_conformance_test_user",
        "state": {"user_name": "Ada", "currency": "CHF"},
    }
    assert case.final_session_state == {"user_name": "Ada", "currency": "CHF", "searched": ["Bern"], "booked": "Krone"}
    said = [(turn.user_text, [call.name for call in turn.tool_calls], turn.final_text) for turn in case.conversation or ()]
    assert said == [
        ("a hotel in Bern", ["find_hotels", "prices"], "There is Krone; it costs 90 francs."),
        ("book it", ["transfer_to_agent", "book"], "Booked as 12e05."),
    ]
    (answer,) = (call.answer for call in load_recording(recorded / "core" / "travel").runs["core/travel"][0].calls if call.tool == "book")
    assert answer == {"result": "12e05"}, "a text that other readers of YAML take for a number"


@pytest.mark.parametrize("eval_id", AGENTS)
def test_adks_tests_pass_here_as_there(adk: Adk, recorded: Path, eval_id: str) -> None:
    REAL.clear()
    assert adk.test(recorded / eval_id) == {eval_id: ""}
    assert REAL, "ADK calls the tools, and takes no notice of what they answer"
    tools, models = replay(recorded, eval_id), replay(recorded, eval_id, replay_models=True)
    assert (tools.verdict, models.verdict) == ("passed", "passed")
    asked = 5 if eval_id == "core/travel" else 3
    assert (kinds(tools).count("replayed_model"), kinds(models).count("replayed_model")) == (0, asked)
    assert kinds(models).count("replayed") == kinds(tools).count("replayed") == (3 if eval_id == "core/travel" else 1)


def test_a_changed_answer_of_a_tool_fails_here_as_there_and_here_with_the_reason(adk: Adk, folder: Path) -> None:
    edit(
        folder / "core" / "travel" / "generated-recordings.yaml", "response:\n          result: 12e05", "response:\n          result: 12e06"
    )
    assert adk.test(folder / "core" / "travel")["core/travel"]
    report = replay(folder, "core/travel")
    assert report.verdict == "failed"
    assert report.cases[0].conversation.actual[1].final_text == "Booked as 12e06."
    assert [cause.text for cause in causes_of(report).found] == ["response_match_score below its threshold 1"]


def test_a_changed_prompt_is_asked_anew(recorded: Path) -> None:
    changed = travel.clone(update={"instruction": "Help {user_name} at once."})
    report = replay(recorded, "core/travel", changed, replay_models=True)
    assert report.verdict == "passed"
    assert kinds(report).count("replayed_model") == 2, "the requests of the sub-agent, whose prompt is as it was"


def test_an_answer_to_a_call_that_is_not_open_is_an_error_of_the_case(recorded: Path) -> None:
    report = replay(recorded, "core/refunds", llm(lambda _: text("Never."), name="refunds"))
    assert "the user answers the tool 'ask_manager', but the agent has no open call of it" in report.cases[0].conversation.error


def test_what_a_model_streamed_is_read_where_nothing_else_is(adk: Adk, tmp_path: Path) -> None:
    if MODES is None:
        pytest.skip("this google-adk records no streams")
    folder = write_tests(tmp_path / "tests", refunds=REFUNDS)
    adk.record(folder, streaming_mode=MODES.SSE)
    assert [file.name for file in folder.rglob("generated-*") if "sse" not in file.name] == []
    assert replay(folder, "core/refunds", replay_models=True).verdict == "passed"


def test_older_recordings_have_one_answer_each(folder: Path) -> None:
    before = load_recording(folder / "core" / "refunds")
    file = folder / "core" / "refunds" / "generated-recordings.yaml"
    text = file.read_text()
    file.write_text(
        text.replace("      llm_responses:\n        - ", "      llm_response:\n          ") if "llm_responses" in text else text
    )
    assert "llm_responses" not in file.read_text()
    assert load_recording(folder / "core" / "refunds").runs == before.runs


SPEC, SESSION, CALLS = "spec.yaml", "generated-session.yaml", "generated-recordings.yaml"
BAD: dict[str, tuple[str, Callable[[str], str], str, str]] = {
    "truncated": (CALLS, lambda text: text[: text.index("tool_call:") + 4], "$.recordings[1].tool_recording", "an object"),
    "no answer": (CALLS, lambda text: text[: text.index("      tool_response:")], "$.recordings[1].tool_recording.tool_response", "required"),
    "no such message": (CALLS, lambda text: text.replace("index: 1", "index: 7"), "$.recordings[4].user_message_index", "less than 2"),
    "of another agent": (CALLS, lambda text: text.replace("name: travel", "name: hotel").replace("name: booking", "name: desk"), "$.recordings[0].agent_name", "booking, travel"),
    "of another test": (CALLS, lambda text: text.replace("id: adk-", "id: other-"), "$.recordings", "calls of another session"),
    "an unknown key": (CALLS, lambda text: text.replace("tool_recording:", "tool_recordings:", 1), "$.recordings[1].tool_recordings", "tool_recording"),
    "neither call nor request": (CALLS, lambda text: text + "  - user_message_index: 0\n    agent_name: travel\n", "$.recordings[9]", "llm_recording or tool_recording"),
    "an object of Python": (CALLS, lambda text: text + "  - !!python/object/apply:os.system ['touch owned']\n", "$", "not YAML"),
    "a bomb": (SESSION, lambda text: "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)) + text, "$", "more than 10,000,000 values"),
    "of another app": (SESSION, lambda text: text.replace("app_name: travel", "app_name: hotel"), "$.app_name", "'travel'"),
    "cut short": (SESSION, lambda text: text[: text.index("  - content:\n      parts:\n        - text: book it")], "$.events", "record the test again"),
    "without session": (SESSION, lambda _: "", "$", "a file that exists"),
    "a misspelt field": (SPEC, lambda text: text.replace("initial_state", "inital_state"), "$.inital_state", "Did you mean 'initial_state'?"),
    "a late change": (SPEC, lambda text: text + "    state_delta: {currency: EUR}\n", "$.user_messages[1].state_delta", "first message only"),
    "nothing said": (SPEC, lambda text: text.replace("text: book it", "state_delta: {}"), "$.user_messages[1]", "text or content"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_one_clear_error(folder: Path, what: str) -> None:
    name, spoil, path, wanted = BAD[what]
    file = folder / "core" / "travel" / name
    spoilt = spoil(file.read_text())
    file.write_text(spoilt) if spoilt else file.unlink()
    with pytest.raises(EvalSetError) as refused:
        load_recording(folder / "core" / "travel")
    assert str(file.resolve()) in str(refused.value)
    assert refused.value.problems[0].path == path
    assert wanted in str(refused.value)
    assert not Path("owned").exists()


def test_tests_of_several_agents_are_selected(recorded: Path, folder: Path) -> None:
    with pytest.raises(EvalSetError, match=r"found tests of 2 agents: refunds, travel; wanted those of one. Select them: .*tests:refunds"):
        load_inputs(recorded)
    with pytest.raises(UsageError, match=r"no test and no agent 'core/travle'. Did you mean 'core/travel'\?"):
        load_inputs(f"{recorded}:core/travle")
    assert load_recording(f"{recorded}:refunds").runs.keys() == {"core/refunds"}
    shutil.copytree(folder / "core" / "travel", folder / "more" / "core" / "travel")
    with pytest.raises(EvalSetError, match=r"found two tests core/travel: .*core/travel and .*core/travel; wanted different names"):
        load_inputs(f"{folder}:travel")
    shutil.rmtree(folder / "more")
    (folder / "test_config.json").write_text(
        json.dumps({"criteria": {"response_match_score": 1.0}, "case_criteria": {"core/refunds": {"response_match_score": 0.5}}})
    )
    (folder / "core" / "refunds" / SESSION).unlink()
    eval_set, config = load_inputs(f"{folder}:travel")
    assert (eval_set.eval_ids, config.case_criteria) == (("core/travel",), {})


def test_validate_and_migrate_take_a_folder(folder: Path, tmp_path: Path) -> None:
    travels, new = folder / "core" / "travel", tmp_path / "new.evalset.json"
    checked = invoke("validate", travels)
    assert checked.output == f"{travels}: conformance tests, 1 case of agent travel, 2 turns, 9 recorded calls\n"
    assert invoke("migrate", travels, new).exit_code == 0
    assert EvalSet.model_validate_json(new.read_text()).eval_ids == ("core/travel",)
    new.rename(folder / "new.test.json")
    assert load_inputs(folder)[0].eval_ids == ("core/travel",), "a folder of ADK's test files, whatever spec.yaml is in it"
    assert invoke("score", travels, "--actual", travels, "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db").exit_code == 0
