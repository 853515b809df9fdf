"""Attack 20: a ledger that holds the verdicts, so that no judge is asked; and what a run says of votes that another evaluation asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.judge.client import JudgeClient
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.judge.usage import UsageTracker
from mlflow_adk_eval.ledger.cache import CallCache
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.outcomes import Vote
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.parts import dump_votes, parse_votes
from mlflow_adk_eval.testing import answer_for
from tests.gating.gate_kit import Lab, decide_on, evidence_of, with_votes
from tests.gating.policy_kit import JUDGED, report_with, vote
from tests.judge.simulated import simulated
from tests.tracking.small import eval_set, turn

JSON = dict[str, Any]
MATCH = "final_response_match_v2"
CONFIG = {"criteria": {MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 3}}}}
SET = eval_set({name: [turn(f"question {name}", "good")] for name in ("one", "two")})


class Script:
    """A judge whose answers are kept, since it has an address."""

    model, address = "gemini-2.5-flash", "gemini-2.5-flash at Google"

    def __init__(self, verdict: str) -> None:
        self.verdict, self.asked = verdict, 0

    async def ask(self, request: Any) -> Answer:
        self.asked += 1
        return answer_for(request, self.verdict)

    async def aclose(self) -> None:
        """Have nothing to give back."""


def evaluated(lab: Lab, ledger: Path | None, judge: Script, answer: Any = "Go away.", **options: Any) -> Report:
    agent = answer if callable(answer) else lambda _text: answer
    found = {
        "experiment": lab.client.get_experiment(lab.experiment_id).name,
        "tracking_uri": lab.uri,
        "ledger": ledger,
        "traces": False,
        **options,
    }
    return adk_eval.evaluate(SET, agent, CONFIG, judge=judge, **found)


def decided(lab: Lab, run: Report, judge: JSON | None = None, rule: JSON | None = None) -> Decision:
    policy = {"rules": {MATCH: {"min": 0.5, **({"judge": rule} if rule else {})}}, **({"judge": judge} if judge else {})}
    return adk_eval.gate(run, policy, tracking_uri=lab.uri, raise_on_failure=False)


def test_a_ledger_that_holds_all_verdicts_is_told_and_refused_where_votes_must_be_fresh(lab: Lab, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    theirs = evaluated(lab, ledger, Script("valid"))  # the author of a pull request, and what is committed with it
    evaluation = lab.client.get_run(theirs.run_id).data.params["adk_eval.evaluation"]
    honest = Script("invalid")
    run = evaluated(lab, ledger, honest)
    assert honest.asked == 0
    told = f"4 of 4 votes of {MATCH} were reused from evaluation {evaluation}"  # two votes agree, and the third is saved
    lenient, strict, share = decided(lab, run), decided(lab, run, {"fresh": True}), decided(lab, run, {"max_reused": 0.2})
    assert (lenient.verdict, strict.verdict, share.verdict) == ("passed", "undecided", "undecided")
    assert told in lenient.notes
    assert strict.reasons[0] == f"{told}, but the policy allows none: evaluate again with --ledger off"
    assert share.reasons[0].startswith(f"{told}, but the policy allows 20% of them")
    rule = decided(lab, run, rule={"fresh": True})
    assert rule.verdict == "undecided"
    assert told in "; ".join(rule.reasons)
    assert lab.client.get_run(run.run_id).data.metrics["judge/asked_elsewhere"] == 4
    frame = run.to_frame("votes")
    assert {*frame["asked_in"]} == {evaluation}
    assert all(frame["asked_at"].str.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"))

    fresh = evaluated(lab, None, honest)  # the remedy
    assert honest.asked == 4
    assert decided(lab, fresh, {"fresh": True}).verdict == "failed"
    own = decided(lab, theirs, {"fresh": True})
    assert own.passed, own.reasons
    assert "every vote was asked for in this evaluation" in own.reasons
    assert not any("reused" in note for note in own.notes)


@pytest.mark.parametrize("asked_in", ["", "unknown", "a" * 65, "x\x1b[31m", "no word; or two"])
def test_an_entry_cannot_say_that_this_evaluation_asked(asked_in: Any, tmp_path: Path) -> None:
    with CallCache(tmp_path / "ledger.sqlite") as ledger:
        ledger.put("theirs", Answer(text="{}", host="generativelanguage.googleapis.com", asked_in=asked_in, asked_at="\x1b[2J"))
        for evaluation in ("", "mine"):
            client = JudgeClient(JudgeOptions(), UsageTracker(), ledger, evaluation=evaluation)

            async def work(client: JudgeClient = client) -> Answer:
                found = (await client.request(lambda: None, "theirs")).answer  # type: ignore[arg-type,return-value]
                assert found is not None
                return found

            answer = simulated(work)
            assert (answer.asked_in, answer.asked_at) == ("unknown", "")


def test_equal_questions_of_one_evaluation_are_not_reused(lab: Lab, tmp_path: Path) -> None:
    judge = Script("valid")
    run = evaluated(lab, tmp_path / "ledger.sqlite", judge, num_runs=3)
    assert judge.asked == 4, "each answer was judged once"
    assert {*run.to_frame("votes")["asked_in"]} == {""}
    assert run.judging is not None
    assert run.judging.asked_elsewhere == 0
    assert decided(lab, run, {"fresh": True}).passed


def test_what_was_asked_before_the_evaluation_was_resumed_is_of_this_evaluation_and_told(lab: Lab, tmp_path: Path) -> None:
    """The ledger itself says so: with `resume`, whoever may write to it is believed."""
    ledger, judge = tmp_path / "ledger.sqlite", Script("valid")
    turns = 0

    def dying(_text: str) -> str:
        nonlocal turns
        turns += 1
        if turns == 2:
            raise KeyboardInterrupt
        return "good enough"

    with pytest.raises(KeyboardInterrupt):
        evaluated(lab, ledger, judge, dying, concurrency=1, agent_version=None)
    with CallCache(ledger) as cache:
        (first,) = [run for run in cache.runs() if run.status == "running"]
    run = evaluated(lab, ledger, judge, dying, concurrency=1, resume=first.run_id)
    assert {case.eval_id: case.conversation.from_ledger for case in run.cases} == {"one": True, "two": False}
    assert run.from_ledger == 1
    decision = decided(lab, run, {"fresh": True})
    assert decision.passed, decision.reasons
    assert "1 of the run's conversations come from the ledger: they took place before the evaluation was resumed" in decision.notes


COLUMNS = {"host": "generativelanguage.googleapis.com", "asked_in": "", "asked_at": "2027-01-31T12:00:00Z", "reused": False}


@pytest.mark.parametrize("column", COLUMNS)
def test_where_votes_are_from_cannot_be_edited(column: str, lab: Lab, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    evaluated(lab, ledger, Script("valid"))
    run = evaluated(lab, ledger, Script("invalid"))
    file = lab.artifacts(str(run.run_id)) / "adk_eval" / "votes" / "part-00000.parquet"
    edited = [replace(one, **{column: COLUMNS[column]}) for one in parse_votes(file.read_bytes(), "votes")]
    file.write_bytes(dump_votes(edited))
    decision = decided(lab, run)
    assert decision.verdict == "undecided"
    assert "votes/part-00000.parquet was changed after the run" in decision.reasons[0]


@pytest.mark.parametrize(
    ("reused", "demand", "verdict"),
    [
        (0, {"fresh": True}, "passed"),
        (1, {"fresh": True}, "undecided"),
        (2, {"max_reused": 0.2}, "passed"),
        (3, {"max_reused": 0.2}, "undecided"),
    ],
)
def test_the_share_is_one_of_votes_with_a_verdict(reused: int, demand: JSON, verdict: str) -> None:
    votes = [vote("a", number, "valid") for number in range(10)] + [vote("a", 10, None, asked_in="theirs")]
    report = report_with({JUDGED: {"a": [1]}}, thresholds={JUDGED: 0.5}, votes=votes)

    def edit(found: tuple[Vote, ...]) -> Iterable[Vote]:
        return [replace(one, asked_in="theirs") if one.vote_index < reused else one for one in found]

    policy = load_policy({"thresholds": True, "judge": demand})
    assert decide_on(with_votes(evidence_of(report), edit), policy).verdict == verdict


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ({"fresh": True, "max_reused": 0.5}, "found fresh: true with max_reused 0.5; wanted one of them"),
        ({"fresh": False}, "found a demand on judges that demands nothing"),
        ({"max_reused": 1}, "max_reused"),
        ({"models": [{"model": "m"}]}, "host"),
        ({"models": [{"model": "m", "host": "http://h/v1"}]}, "wanted a host or host:port"),
    ],
)
def test_a_demand_that_means_nothing_is_refused(judge: JSON, said: str) -> None:
    with pytest.raises(adk_eval.errors.PolicyError) as error:
        load_policy({"thresholds": True, "judge": judge})
    assert said in str(error.value)
