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
        (("bot_of_generate:answer",), "give AGENT and --output, or --rubrics, or --accept"),
        (("bot_of_generate:answer", "-o", "x.json", "--rubrics", "lights.json"), "give AGENT and --output, or --rubrics, or --accept"),
        (("-o", "x.json"), "give AGENT and --output, or --rubrics, or --accept"),
        (("--rubrics", "lights.json:off"), "eval set 'lights' has no case 'off'"),
        (
            ("--rubrics", "lights.jsonl"),
            "lights.jsonl: wanted an eval set in JSON; edit the rubrics and the tag 'generated' of these rows yourself",
        ),
        (("bot_of_generate:answer", "--accept", "x.json"), "--accept takes only the eval set, without AGENT, --output and --rubrics"),
        (("bot_of_generate:silent", "-o", "x.json"), "nothing describes what silent does; set --instruction"),
        (("--accept", "lights.json"), "lights.json: no case has the tag 'generated', so there is nothing to accept"),
        (("--accept", "lights.json:off"), "eval set 'lights' has no case 'off'"),
        (
            ("--accept", "lights.jsonl"),
            "lights.jsonl: wanted an eval set in JSON; edit the rubrics and the tag 'generated' of these rows yourself",
        ),
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


# Rubrics for cases that exist

SHOP = {
    "eval_set_id": "shop",
    "eval_cases": [
        {
            "eval_id": "open",
            "conversation": [
                {
                    "invocation_id": "1",
                    "user_content": {"parts": [{"text": "When do you open?"}]},
                    "final_response": {"parts": [{"text": "SECRET"}]},
                }
            ],
        },
        {"eval_id": "plan", "conversation_scenario": {"starting_prompt": "Hello", "conversation_plan": "Buy a lamp."}, "tags": ["mine"]},
        {
            "eval_id": "done",
            "conversation": [{"invocation_id": "1", "user_content": {"parts": [{"text": "Bye"}]}}],
            "rubrics": [{"rubric_id": "kind", "rubric_content": {"text_property": "It is kind."}, "type": "FINAL_RESPONSE_QUALITY"}],
        },
    ],
}


def rubrics(*texts: Any) -> Any:
    return gemini_answer(json.dumps({"rubrics": texts}))


def rubrics_in(path: str) -> dict[str, list[tuple[str, str | None, str | None]]]:
    cases = load_eval_set(path).eval_cases
    return {case.eval_id: [(one.rubric_id, one.rubric_content.text_property, one.type) for one in case.rubrics or ()] for case in cases}


def test_rubrics_are_written_into_the_cases_once_and_from_no_answer(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("shop.json").write_text(json.dumps(SHOP))
    with serving(
        replies(rubrics("It names the hour.", " It names the hour. ", 7, "", "It is polite."), rubrics("It offers a lamp."))
    ) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        made = invoke("generate", "bot_of_generate:answer", "--rubrics", "shop.json:open", "--count", "2")
        assert made.exit_code == 0, made.stderr
        assert made.stdout.startswith("shop.json: generated rubrics for 1 case\nWritten by gemini-2.5-flash at 127.0.0.1")
        assert made.stdout.splitlines()[-1] == "next: review them, then mlflow-adk-eval generate --accept shop.json"
        asked = json.dumps([request.body for request in server.calls])
        assert "When do you open?" in asked
        assert "Tell when the shop is open." in asked
        assert "SECRET" not in asked
        invoke("generate", "--rubrics", "shop.json")
        assert "Buy a lamp." in json.dumps(server.calls[1].body)
        again = invoke("generate", "--rubrics", "shop.json")
        assert len(server.calls) == 2
    assert (again.exit_code, again.stderr) == (
        64,
        "error: shop.json: every case has rubrics for final responses, and they stay as they are\n",
    )
    quality = "FINAL_RESPONSE_QUALITY"
    assert rubrics_in("shop.json") == {
        "open": [("it_names_the_hour", "It names the hour.", quality), ("it_is_polite", "It is polite.", quality)],
        "plan": [("it_offers_a_lamp", "It offers a lamp.", quality)],
        "done": [("kind", "It is kind.", quality)],
    }
    assert {case.eval_id: case.tags for case in load_eval_set("shop.json").eval_cases} == {
        "open": (GENERATED,), "plan": ("mine", GENERATED), "done": (),
    }  # fmt: skip


def test_generated_rubrics_are_what_the_criterion_judges_by_and_no_evidence_before_review(project: Path, template: Path) -> None:
    uri = copied(template, project)
    Path("shop.json").write_text(json.dumps({**SHOP, "eval_cases": SHOP["eval_cases"][:1]}))
    (project / "writer_of_rubrics.py").write_text("def writes(request):\n    return {'rubrics': ['It names the hour.']}\n")
    made = invoke("generate", "--rubrics", "shop.json", "--model", "writer_of_rubrics:writes")
    assert made.exit_code == 0, made.stderr

    def decision() -> Any:
        report = adk_eval.evaluate(
            "shop.json",
            lambda message: "At nine.",
            {"criteria": {"rubric_based_final_response_quality_v1": 1.0}},
            judge=adk_eval.testing.ScriptedJudge("yes"),
            experiment="shop",
            tracking_uri=uri,
        )
        assert report.passed
        return adk_eval.gate(report, raise_on_failure=False, tracking_uri=uri)

    assert "nobody has reviewed 1 case that a model wrote (tag 'generated'): open" in decision().reasons
    assert invoke("generate", "--accept", "shop.json").exit_code == 0
    assert rubrics_in("shop.json") == {"open": [("it_names_the_hour", "It names the hour.", "FINAL_RESPONSE_QUALITY")]}
    assert decision().verdict == "passed"


@pytest.mark.parametrize(
    ("replied", "reason"),
    [
        (rubrics(), "the list is empty"),
        (gemini_answer(json.dumps({"texts": []})), "the answer contains no list of rubrics"),
        (gemini_error(400, "no such model"), "no such model"),
    ],
)
def test_without_a_rubric_the_file_stays_as_it_is(project: Path, monkeypatch: pytest.MonkeyPatch, replied: Any, reason: str) -> None:
    Path("shop.json").write_text(json.dumps(SHOP))
    with serving(lambda _: replied) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        made = invoke("generate", "--rubrics", "shop.json:open")
    assert made.exit_code == 3
    assert made.stderr.startswith("error: gemini-2.5-flash wrote no rubric: ")
    assert reason in made.stderr
    assert json.loads(Path("shop.json").read_text()) == SHOP


def test_cases_that_got_no_rubric_are_counted_and_stay_open(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("shop.json").write_text(json.dumps(SHOP))

    def one_of_two(call: Any) -> Any:
        return rubrics("It offers a lamp.") if "Buy a lamp." in json.dumps(call.body) else gemini_error(400, "blocked")

    with serving(one_of_two) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        made = invoke("generate", "--rubrics", "shop.json", "--json")
    said = json.loads(made.stdout)
    assert (made.exit_code, said["cases"], said["wanted"]) == (0, 1, 2)
    assert "blocked" in said["problem"]
    assert [len(found) for found in rubrics_in("shop.json").values()] == [0, 1, 1]
