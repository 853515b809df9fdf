"""Panels: several judges that vote together, each with the same share of the votes and nobody in another's place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median_low
from typing import Any

import anyio
import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeSetup
from mlflow_adk_eval.judge.voting import VoteCollector
from mlflow_adk_eval.report.sentences import format_judge_usage
from mlflow_adk_eval.results.outcomes import Errored, Scored
from mlflow_adk_eval.results.usage import JudgeUsage, added
from mlflow_adk_eval.testing import Request, answer_for
from tests.judge.servers import Server, gemini_error, judging, serving
from tests.judge.voting_kit import CELL, Judge, question, response
from tests.tracking.small import eval_set, turn

MATCH = "final_response_match_v2"
CONFIG: dict[str, Any] = {"criteria": {MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 3}}}}
LABELS = ("invalid", "valid")


def decided(panel: Mapping[str, Judge], votes: int, text: str = "42", *, early_stop: bool = True) -> Any:
    collector = VoteCollector(ask=next(iter(panel.values())), num_samples=votes, panel=panel, early_stop=early_stop)

    async def main() -> Any:
        return await collector.decide(question(text=text), CELL)

    return anyio.run(main)


def scripted(votes: Sequence[int]) -> Judge:
    return Judge([response(LABELS[vote]) for vote in votes])


@pytest.mark.parametrize("each", [1, 2])
def test_the_verdict_is_that_of_all_votes_however_they_are_spread(each: int) -> None:
    for votes in product((0, 1), repeat=3 * each):
        panel = {name: scripted(votes[place * each : (place + 1) * each]) for place, name in enumerate("abc")}
        found = decided(panel, 3 * each)
        assert found.results[0].outcome.score == median_low(votes)
        assert all(len(judge.asked) <= each for judge in panel.values())
        complete = {name: scripted(votes[place * each : (place + 1) * each]) for place, name in enumerate("abc")}
        assert decided(complete, 3 * each, early_stop=False).results[0].outcome.score == median_low(votes)
        assert {name: judge.asked for name, judge in complete.items()} == {name: [*range(each)] for name in "abc"}


def test_where_voting_stops_early_all_members_are_asked_about_as_often() -> None:
    asked = dict.fromkeys("abc", 0)
    for number in range(60):
        panel = {name: scripted([1]) for name in "abc"}
        decided(panel, 3, text=f"answer {number}")
        asked = {name: count + len(panel[name].asked) for name, count in asked.items()}
    assert sum(asked.values()) == 120  # two of three agree, so the third is saved
    assert min(asked.values()) >= 25


DOWN = response(None, error="the judge is down", final=True)


def test_a_member_that_is_out_is_not_replaced_and_what_stands_says_so() -> None:
    agreeing = {"a": scripted([1, 1]), "b": scripted([1, 1]), "c": Judge([DOWN] * 2)}
    found = decided(agreeing, 6, early_stop=False).results[0].outcome
    assert isinstance(found, Scored)
    assert found.details["panel"] == {"a": "valid 2", "b": "valid 2", "c": "no vote: c: the judge is down"}
    split = decided({"a": scripted([1, 1]), "b": scripted([0, 0]), "c": Judge([DOWN] * 2)}, 6).results[0].outcome
    assert isinstance(split, Errored)
    assert "4 of 6 votes are available, too few for a verdict" in split.error
    assert "c: the judge is down" in split.error


def test_a_vote_that_cannot_be_read_is_asked_for_again_of_the_same_member_within_a_bound() -> None:
    broken = response(None, error="no JSON")
    panel = {"a": scripted([1]), "b": scripted([0]), "c": Judge([broken, response("valid")])}
    assert decided(panel, 3, early_stop=False).results[0].outcome.score == 1
    assert (panel["a"].asked, panel["b"].asked, panel["c"].asked) == ([0], [0], [0, 1])
    hopeless = {"a": scripted([1]), "b": scripted([0]), "c": Judge([broken] * 9)}
    assert isinstance(decided(hopeless, 3).results[0].outcome, Errored)
    assert hopeless["c"].asked == [0, 1]
    assert (hopeless["a"].asked, hopeless["b"].asked) == ([0], [0])


# Through everything that evaluates


def named(name: str, label: str) -> Any:
    def judge(request: Request) -> Any:
        return answer_for(request, label, rationale=f"{name} says so")

    judge.model = name  # type: ignore[attr-defined]
    return judge


EXPECTED = {f"c{number}": [turn(f"question {number}", f"answer {number}")] for number in range(4)}
ACTUAL = {f"c{number}": [turn(f"question {number}", f"other {number}")] for number in range(4)}


def scored(judge: Any, config: Any = CONFIG, **options: Any) -> adk_eval.Report:
    return adk_eval.score(eval_set(EXPECTED), ACTUAL, config, judge=judge, **{"ledger": False} | options)


def test_a_list_of_judges_is_a_panel_whose_agreement_is_kept_and_shown() -> None:
    config = {"criteria": {MATCH: {**CONFIG["criteria"][MATCH], "early_stop": False}}}
    report = scored([named("a", "valid"), named("b", "valid"), named("c", "invalid")], config)
    assert report.passed
    usage = report.judging
    assert usage is not None
    assert usage.members == {"a": (4, 0, 0), "b": (4, 0, 0), "c": (0, 4, 0)}
    said = format_judge_usage(usage)
    assert said.endswith("a voted with the panel in 4 of 4; b voted with the panel in 4 of 4; c voted with the panel in 0 of 4")
    assert set(report.to_frame("votes")["model"]) == {"a", "b", "c"}
    assert added([usage, usage]).members["c"] == (0, 8, 0)


def test_the_votes_are_rounded_up_to_an_equal_share() -> None:
    options = {"threshold": 0.5, "early_stop": False, "judge_model_options": {"num_samples": 5}}
    report = scored([named("a", "valid"), named("b", "valid"), named("c", "invalid")], {"criteria": {MATCH: options}})
    assert len(report.to_frame("votes")) == 6 * len(EXPECTED)


def test_members_must_differ_and_a_single_one_is_a_judge() -> None:
    alike = named("a", "valid")
    with pytest.raises(UsageError, match="a panel of a, a: wanted different judges with unique names"):
        scored([alike, named("a", "invalid")])
    with pytest.raises(UsageError, match="a panel of nobody"):
        scored([])
    usage = scored([alike]).judging
    assert usage is not None
    assert usage.members == {}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key-for-tests")
    for name in ("GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
        monkeypatch.delenv(name, raising=False)
    with serving(judging(lambda _call: "valid")) as running:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", running.url)
        yield running


PANEL = ["gemini-a", "gemini-b", "gemini-c"]


def test_the_config_names_a_panel_and_each_member_has_answers_of_its_own_in_the_ledger(server: Server, tmp_path: Path) -> None:
    config = {"criteria": {MATCH: {**CONFIG["criteria"][MATCH], "judge_panel": PANEL, "early_stop": False}}}
    for _ in range(2):
        assert scored(None, config, ledger=tmp_path / "ledger.sqlite").passed
    assert sorted(call.model for call in server.calls) == sorted(PANEL * len(EXPECTED))
    two = {"criteria": {MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 2}}}}
    assert scored(["gemini-a", "gemini-d"], two, ledger=tmp_path / "ledger.sqlite").passed
    assert {call.model for call in server.calls[12:]} == {"gemini-d"}


def test_members_without_an_address_do_not_share_the_answers_of_a_run(tmp_path: Path) -> None:
    from mlflow_adk_eval.config.spec import JudgedSettings
    from mlflow_adk_eval.ledger import opened

    with opened(tmp_path / "ledger.sqlite") as ledger:
        setup = JudgeSetup(judge=[named("a", "valid"), named("b", "invalid"), named("c", "invalid")], answers=ledger, scope="run")

        async def main() -> Any:
            session = JudgeSession(setup)
            collector = session.vote_collector(JudgedSettings(threshold=0.5, early_stop=False))
            return [await collector.decide(question(), CELL) for _ in range(2)]

        for found in anyio.run(main):
            assert found.results[0].outcome.details["panel"] == {"a": "valid 2", "b": "invalid 2", "c": "invalid 2"}


def test_an_outage_of_a_member_is_told_and_decides_nothing_that_it_could_have_changed(server: Server) -> None:
    verdicts = {"gemini-a": "valid", "gemini-b": "invalid"}
    server.handler = lambda call: gemini_error(403) if call.model == "gemini-c" else judging(lambda one: verdicts[one.model])(call)
    open_cases = scored(PANEL)
    assert open_cases.verdict == "undecided"
    verdicts["gemini-b"] = "valid"
    config = {"criteria": {MATCH: {**CONFIG["criteria"][MATCH], "early_stop": False}}}
    report = scored(PANEL, config)
    assert report.passed
    assert report.judging is not None
    assert report.judging.members["gemini-c"][2] >= 1
    assert re.match("gemini-c: .*PERMISSION_DENIED", report.judging.outage)
    assert "gemini-c voted with the panel in 0 of 0 and did not vote in" in format_judge_usage(report.judging)
    cell = report.cases[0].results[0].per_invocation[0]
    assert isinstance(cell, Scored)
    assert cell.details["panel"]["gemini-c"].startswith("no vote: gemini-c: ")


def test_usages_of_other_processes_are_added() -> None:
    usage = JudgeUsage(members={"a": (1, 2, 3)})
    assert added([usage, JudgeUsage(members={"a": (1, 0, 0), "b": (0, 0, 1)})]).members == {"a": (2, 2, 3), "b": (0, 0, 1)}
