"""What simulated users cost: one budget with the judges, accounts of their own, and nothing paid for twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.agents.functions import Session
from mlflow_adk_eval.judge.prompt import load_prompt
from mlflow_adk_eval.judge.setup import Budget, JudgeSetup
from mlflow_adk_eval.judge.usage import UsageTracker
from mlflow_adk_eval.ledger import CallCache
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import Answer, Refused, Request, ScriptedJudge
from tests.agents.users.user_kit import ENDS, QUICK, echo, ending, evaluated, in_order, player, result, said, says, scenario

QUALITY = {"per_turn_user_simulator_quality_v1": {"threshold": 0.5, "judge_model_options": {"num_samples": 1}}}


def with_budget(**limits: int) -> JudgeSetup:
    return JudgeSetup(judge=ScriptedJudge("valid"), options=QUICK, budget=Budget(**limits))


def calls(report: Report) -> tuple[int, int]:
    """How many requests went to the simulated user's model, and how many to judges."""
    assert report.simulating is not None
    return report.simulating.calls, report.judging.calls if report.judging else 0


def test_users_have_accounts_beside_those_of_the_judges() -> None:
    report = evaluated(player(says("one"), model="the user"), criteria=QUALITY, judges=with_budget())
    assert report.passed
    assert report.simulating is not None
    assert report.judging is not None
    assert (report.simulating.models, report.judging.models) == (("the user",), ("scripted",))
    assert calls(report) == (2, 2)
    prompt = load_prompt("user_simulator")
    assert report.simulating.prompts == {f"user_simulator@{prompt.version}": prompt.sha256}
    assert set(report.judging.prompts).isdisjoint(report.simulating.prompts)
    assert report.simulating.input_tokens > 100
    assert report.simulating.output_tokens > 0
    assert (report.simulating.votes, report.judging.votes) == (0, 2)


def test_without_a_model_that_plays_users_there_are_no_such_accounts() -> None:
    report = evaluated(lambda scenario, turns: None, criteria=QUALITY, judges=with_budget())
    assert report.simulating is None
    assert report.judging is not None


def test_without_judges_there_are_only_theirs() -> None:
    report = evaluated(player(says("one")))
    assert report.judging is None
    assert calls(report) == (2, 0)


def test_one_budget_covers_both() -> None:
    report = evaluated(player(says("one"), says("two")), criteria=QUALITY, judges=with_budget(max_calls=4))
    assert calls(report) == (3, 1)
    assert ending(report)[0] == "goal"
    assert report.verdict == "undecided"
    assert any("the budget of 4 model calls is used up" in reason for reason in report.reasons)


def test_a_spent_budget_ends_the_conversation_with_an_error_and_all_its_turns() -> None:
    report = evaluated(player(says("one"), says("two")), judges=with_budget(max_calls=2))
    assert said(report) == ["hi", "one", "two"]
    assert ending(report) == ("error", "the simulated user gave no message for turn 4: the budget of 2 model calls is used up")
    assert report.verdict == "undecided"


def test_tokens_count_together() -> None:
    report = evaluated(player(says("one"), says("two")), criteria=QUALITY, judges=with_budget(max_tokens=600))
    assert report.simulating is not None
    assert ending(report)[0] == "error"
    wanted = f"the budget of 600 tokens for judges and simulated users is used up: {report.simulating.tokens} were used"
    assert result(report).error.endswith(wanted)


def test_accounts_side_by_side_share_what_may_be_spent() -> None:
    woken: list[str] = []
    judges = UsageTracker(Budget(max_calls=2))
    users = judges.sharing_budget()
    judges.when_spent(lambda: woken.append("judges"))
    users.when_spent(lambda: woken.append("users"))
    judges.add(calls=1)
    assert (judges.spent, users.spent, woken) == ("", "", [])
    users.add(calls=1)
    assert judges.spent == users.spent == "the budget of 2 model calls is used up"
    assert woken == ["judges", "users"]
    assert (judges.usage((), {}).calls, users.usage((), {}).calls) == (1, 1)


# The ledger


def played(ledger: CallCache | None, user: Any, *cases: Any, scope: str | None = "run", **more: Any) -> Report:
    setup = JudgeSetup(options=QUICK, answers=ledger, scope=scope)
    return evaluated(user, *cases, judges=setup, **more)


def test_the_same_conversation_is_paid_for_once(tmp_path: Path) -> None:
    user = player(says("one"), says("two"))
    with CallCache(tmp_path / "kept.sqlite") as ledger:
        first = played(ledger, user)
        again = played(ledger, user)
    assert said(first) == said(again) == ["hi", "one", "two"]
    assert ending(first) == ending(again)
    assert len(user.requests) == 3
    assert again.simulating is not None
    assert (again.simulating.calls, again.simulating.reused, again.simulating.tokens) == (0, 3, 0)


def test_an_interrupted_conversation_goes_on_without_repeating_a_call(tmp_path: Path) -> None:
    user = player(says("one"), says("two"))
    broken = True

    def agent(text: str, session: Session) -> Any:
        if broken and text == "two":
            raise ConnectionError("down")
        return echo(text, session)

    with CallCache(tmp_path / "kept.sqlite") as ledger:
        first = played(ledger, user, agent=agent)
        assert said(first) == ["hi", "one"]
        assert len(user.requests) == 2
        broken = False
        assert said(played(ledger, user, agent=agent)) == ["hi", "one", "two"]
    assert len(user.requests) == 3


def test_each_run_of_a_case_and_each_case_is_a_measurement_of_its_own(tmp_path: Path) -> None:
    user = ScriptedJudge(lambda _: ENDS, address="somewhere")
    with CallCache(tmp_path / "kept.sqlite") as ledger:
        report = played(ledger, user, scenario("a"), scenario("b"), runs=3)
        assert len(report.cases) == len(user.requests) == 6
        assert calls(report) == (6, 0)
        played(ledger, user, scenario("a"), scenario("b"), runs=4)
    assert len(user.requests) == 8


@pytest.mark.parametrize(
    ("address", "scope", "asked"),
    [
        ("somewhere", "another run", 1),  # the same model at the same place: also across runs
        (None, "another run", 2),
        (None, None, 2),
        (None, "run", 1),
    ],
)
def test_answers_of_a_model_without_an_address_belong_to_the_run(tmp_path: Path, address: Any, scope: Any, asked: int) -> None:
    user = ScriptedJudge(lambda _: ENDS, address=address)
    with CallCache(tmp_path / "kept.sqlite") as ledger:
        played(ledger, user)
        played(ledger, user, scope=scope)
    assert len(user.requests) == asked


@pytest.mark.parametrize(
    "change",
    [
        {"model_configuration": {"temperature": 1}},
        {"custom_instructions": "{{ stop_signal }} {{ conversation_plan }} {{ conversation_history }}"},
        {"agent": lambda text, session: "something else"},
        {"cases": [scenario(plan="Another plan.")]},
        {"cases": [scenario(persona="NOVICE")]},
        {"cases": [scenario(prompt="hello")]},
        {"cases": [scenario("another id")]},
    ],
    ids=["settings", "instructions", "agent", "plan", "persona", "prompt", "case"],
)
def test_whatever_an_answer_depends_on_is_another_question(tmp_path: Path, change: dict[str, Any]) -> None:
    user = player(address="somewhere")
    with CallCache(tmp_path / "kept.sqlite") as ledger:
        played(ledger, user)
        played(ledger, user, *change.pop("cases", []), **change)
    assert len(user.requests) == 2


def test_two_wordings_of_own_instructions_are_two_questions(tmp_path: Path) -> None:
    user = player(address="somewhere")
    with CallCache(tmp_path / "kept.sqlite") as ledger:
        for opening in ("Be brief.", "Be polite.", "Be brief."):
            played(ledger, user, custom_instructions=opening + " {{ stop_signal }} {{ conversation_plan }} {{ conversation_history }}")
    assert len(user.requests) == 2


def test_what_limits_a_conversation_is_none_of_the_answers_business(tmp_path: Path) -> None:
    user = player(*[says("more")] * 5, address="somewhere")
    with CallCache(tmp_path / "kept.sqlite") as ledger:
        assert len(said(played(ledger, user, max_allowed_invocations=3))) == 3
        assert len(said(played(ledger, user, max_allowed_invocations=5))) == 5
    assert len(user.requests) == 4


def test_attempts_that_came_to_nothing_are_kept_and_do_not_count_against_the_next_ones(tmp_path: Path) -> None:
    bad = Answer(text="nonsense")
    user = in_order(bad, bad, bad, bad, says("one"), address="somewhere")
    with CallCache(tmp_path / "kept.sqlite") as ledger:
        assert ending(played(ledger, user))[0] == "error"
        assert len(user.requests) == 3
        again = played(ledger, user)
        assert said(again) == ["hi", "one"]
        assert len(user.requests) == 6
        assert said(played(ledger, user)) == ["hi", "one"]
    assert len(user.requests) == 6


def test_requests_without_an_answer_are_not_kept(tmp_path: Path) -> None:
    failing = True

    def script(request: Request) -> Any:
        return Refused("no permission") if failing else ENDS

    user = ScriptedJudge(script, address="somewhere")
    with CallCache(tmp_path / "kept.sqlite") as ledger:
        assert ending(played(ledger, user))[0] == "error"
        failing = False
        assert ending(played(ledger, user)) == ("goal", "all done")


def test_a_resumed_evaluation_has_a_broken_conversation_anew_without_paying_its_user_again(store: str, tmp_path: Path) -> None:
    from mlflow_adk_eval.evalset.models import EvalSet
    from mlflow_adk_eval.tracking.evaluate import evaluate

    user = player(says("one"), says("two"))
    broken = True

    def agent(text: str, session: Session) -> Any:
        if broken and text == "two":
            raise ConnectionError("down")
        return echo(text, session)

    def evaluation(resume: str | None = None) -> Report:
        return evaluate(
            EvalSet(eval_set_id="s", eval_cases=(scenario(),)),
            agent=agent,
            config={"criteria": {"tool_call_count_v1": 100}},
            agent_version=None,
            user_simulator=user,
            tracking_uri=store,
            ledger=tmp_path / "kept.sqlite",
            resume=resume,
        )

    first = evaluation()
    assert (first.verdict, said(first), calls(first)) == ("undecided", ["hi", "one"], (2, 0))
    broken = False
    again = evaluation(first.run_id)
    assert (again.verdict, said(again), calls(again)) == ("passed", ["hi", "one", "two"], (1, 0))
    assert again.simulating is not None
    assert again.simulating.reused == 2
    assert len(user.requests) == 3
