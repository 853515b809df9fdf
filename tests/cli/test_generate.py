"""``mlflow-adk-eval generate``: what the model is told, what becomes of its answer, and that nothing of it is evidence before somebody accepts it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.scenarios import GENERATED
from mlflow_adk_eval.evalset.files import load_eval_set, write_eval_set
from mlflow_adk_eval.evalset.models import EvalSet
from tests.cli.test_cli import EXPECTED, invoke, written
from tests.judge.servers import gemini_answer, gemini_error, replies, serving
from tests.mlflow_kit import copied

pytestmark = pytest.mark.filterwarnings("ignore")

AGENT = """
from google.adk.agents import Agent

def opening_hours(day: str) -> str:
    '''Return when the shop is open.'''
    return "nine to six"

helper = Agent(name="cashier", model="gemini-2.5-flash", instruction="Take the money.")
root_agent = Agent(name="shop", model="gemini-2.5-flash", instruction="Tell when the shop is open.", tools=[opening_hours], sub_agents=[helper])
"""
BOT = '''
def answer(message):
    """Tell when the shop is open."""
    return "always"

def silent(message):
    return ""

class Broken:
    model, address = "broken", None

    async def ask(self, request):
        raise OSError("out of order")

    async def aclose(self):
        pass

broken = Broken()

def writes(request):
    return {"scenarios": [{"starting_prompt": "Hello?", "conversation_plan": "Bye.", "user_persona": "NOVICE"}]}
'''


def scenario(prompt: str, **changes: Any) -> dict[str, Any]:
    return {"starting_prompt": prompt, "conversation_plan": "Ask, and go.", "user_persona": "EXPERT"} | changes


def answer(*scenarios: Any) -> Any:
    return gemini_answer(json.dumps({"scenarios": scenarios}))


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bot_of_generate.py").write_text(BOT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bot_of_generate", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    return tmp_path


def test_cases_for_an_agent_of_adk_are_valid_distinct_and_marked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.adk")
    from google.adk.evaluation.conversation_scenarios import ConversationScenario
    from google.adk.evaluation.eval_set import EvalSet as AdkEvalSet

    (project / "shop_of_generate").mkdir()
    (project / "shop_of_generate/agent.py").write_text(AGENT)
    first = answer(scenario("When are you open?"), scenario("when are you OPEN"), scenario(""), scenario("x", user_persona="PIRATE"), "no")
    with serving(replies(gemini_error(503), first, answer(scenario("Can I pay?"), scenario("And on Sunday?")))) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        made = invoke(
            "generate", "shop_of_generate", "-o", "new.evalset.json", "--count", 2, "--instruction", "money", "--context", "till 7"
        )
    assert made.exit_code == 0, made.stderr
    then = "next: review them, then mlflow-adk-eval generate --accept new.evalset.json\n"
    written = r"new\.evalset\.json: 2 generated cases\nWritten by gemini-2\.5-flash at 127\.0\.0\.1:\d+: 3 calls \(1 failed\), "
    assert re.match(written, made.stdout)
    assert made.stdout.endswith(then)
    found = load_eval_set("new.evalset.json")
    assert found.eval_ids == ("when_are_you_open", "can_i_pay")
    assert [case.tags for case in found.eval_cases] == [(GENERATED,)] * 2
    assert [one.user_persona for case in found.eval_cases if (one := case.conversation_scenario)] == ["EXPERT"] * 2
    _, asked, again = (json.dumps(call.body, ensure_ascii=False) for call in server.calls)
    told = (
        "Tell when the shop is open.",
        "opening_hours",
        "(day: str) -> str",
        "Return when the shop is open.",
        "cashier",
        "money",
        "till 7",
    )
    assert [text for text in told if text not in asked] == []
    assert ("When are you open?" in asked, "When are you open?" in again) == (False, True)
    assert invoke("validate", "new.evalset.json").exit_code == 0
    assert invoke("generate", "--accept", "new.evalset.json").exit_code == 0
    if "user_persona" in ConversationScenario.model_fields:  # the oldest ADK knows none
        assert len(AdkEvalSet.model_validate_json(Path("new.evalset.json").read_text()).eval_cases) == 2


def test_a_function_may_write_and_fewer_than_wanted_are_told_of() -> None:
    made = invoke("generate", "bot_of_generate:answer", "-o", "few.json", "--count", 3, "--model", "bot_of_generate:writes")
    assert made.stdout.startswith("few.json: 1 generated case; wanted 3, but the model repeated itself\n"), made.stderr
    again = invoke("generate", "bot_of_generate:answer", "-o", "few.json", "--model", "bot_of_generate:writes")
    assert (again.exit_code, again.stderr) == (64, "error: few.json already exists; --force overwrites it\n")


def test_what_was_paid_for_is_told_and_asked_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def generated(*more: Any) -> dict[str, Any]:
        done = invoke("generate", "bot_of_generate:answer", "-o", "new.json", "--count", 2, "--ledger", "kept.sqlite", "--json", *more)
        return {"exit_code": done.exit_code, **json.loads(done.stdout)}

    with serving(replies(gemini_answer("no JSON"), answer(scenario("A?")), gemini_answer("no JSON"), answer(scenario("B?")))) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        first = generated("--max-calls", 2)
        assert (first["exit_code"], first["cases"], first["wanted"], first["calls"], first["reused"]) == (0, 1, 2, 2, 0)
        assert first["problem"] == "the budget of 2 model calls is used up"
        assert first["tokens"] > 0
        assert generated()["error"] == "new.json already exists; --force overwrites it"
        again = generated("--force")
    assert (again["calls"], again["reused"], again["cases"], again["problem"]) == (2, 1, 2, None), "unreadable answers are asked for again"
    accepted = invoke("generate", "--accept", "new.json:a", "--json")
    assert json.loads(accepted.stdout) == {"file": "new.json", "accepted": 1, "left": 1}


def test_what_fails_is_called_the_model_also_in_json() -> None:
    made = invoke("generate", "bot_of_generate:answer", "-o", "none.json", "--model", "bot_of_generate:broken", "--json")
    wanted = "broken wrote no scenario: the model failed with OSError: out of order"
    assert json.loads(made.stdout) == {"error": wanted, "kind": "JudgeError", "exit_code": 3}
    assert (made.exit_code, made.stderr) == (3, f"error: {wanted}\n")


@pytest.mark.parametrize("reply", [gemini_answer("Sure, here they are"), gemini_answer("[1]"), answer(), gemini_error(400)])
def test_an_answer_that_cannot_be_used_is_one_line(reply: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(replies(reply)) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        made = invoke("generate", "bot_of_generate:answer", "-o", "none.json")
    assert made.exit_code == 3
    assert made.stderr.startswith("error: gemini-2.5-flash wrote no scenario: ")
    assert not Path("none.json").exists()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("bot_of_generate:answer",), "give AGENT and --output, or --accept"),
        (("bot_of_generate:answer", "--accept", "x.json"), "--accept takes only the eval set, without AGENT and --output"),
        (("bot_of_generate:silent", "-o", "x.json"), "nothing describes what silent does; set --instruction"),
        (("--accept", "lights.json"), "lights.json: no case has the tag 'generated', so there is nothing to accept"),
        (("--accept", "lights.json:off"), "eval set 'lights' has no case 'off'"),
        (("--accept", "lights.jsonl"), "lights.jsonl: wanted an eval set in JSON; remove the tag 'generated' from these rows yourself"),
    ],
)
def test_what_makes_no_sense_is_one_line(project: Path, arguments: tuple[str, ...], wanted: str) -> None:
    written(project / "lights.json", EXPECTED)
    invoke("migrate", "lights.json", "lights.jsonl")
    result = invoke("generate", *arguments)
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, line.startswith(f"error: {wanted}")) == (64, True), line


def test_nothing_generated_is_evidence_before_it_is_accepted(project: Path, template: Path) -> None:
    uri = copied(template, project)
    plain = load_eval_set(written(project / "lights.json", EXPECTED))
    first, *rest = plain.eval_cases
    tagged = [first.model_validate(first.model_dump(exclude_unset=True) | {"tags": ["mine", GENERATED]}), *rest]
    write_eval_set(EvalSet(eval_set_id="lights", eval_cases=tuple(tagged)), "lights.json")
    answers = {turn.user_text: turn.final_text for case in plain.eval_cases for turn in case.conversation or ()}

    def lights(message: str) -> str:
        return answers[message]

    def decision() -> Any:
        report = adk_eval.evaluate(
            "lights.json", lights, {"criteria": {"response_match_score": 0.8}}, experiment="lights", tracking_uri=uri
        )
        assert report.passed
        return adk_eval.gate(report, raise_on_failure=False, tracking_uri=uri)

    refused = decision()
    assert refused.verdict == "undecided"
    wanted = f"nobody has reviewed 1 case that a model wrote (tag 'generated'): {first.eval_id}"
    assert wanted in refused.reasons
    accepted = invoke("generate", "--accept", f"lights.json:{first.eval_id}")
    assert (accepted.exit_code, accepted.stdout) == (0, "lights.json: 1 case accepted\n"), accepted.stderr
    assert load_eval_set("lights.json").eval_cases[0].tags == ("mine",)
    assert decision().verdict == "passed"
