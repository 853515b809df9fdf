"""Production traces are scored where they are: once, completely, and so that rates are those of all conversations."""

from __future__ import annotations

import fcntl
import json
import math
import random
import subprocess
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.judge.protocol import Request, Unavailable
from mlflow_adk_eval.production.draw import Rate, Stratum, draw, rate_of
from mlflow_adk_eval.production.score import moment_of
from mlflow_adk_eval.production.traffic import Seen
from tests.integrations.genai import QUIET, tracking
from tests.mlflow_kit import Server, copied
from tests.production.traffic_kit import assessments, talk, values

pytestmark = QUIET
CALLS: dict[str, Any] = {"criteria": {"tool_call_count_v1": 1}}
JUDGED: dict[str, Any] = {"criteria": {"rapid_eval_fluency": 3}}


@pytest.fixture
def production(template: Path, tmp_path: Path) -> Iterator[str]:
    store = copied(template, tmp_path)
    with chdir(tmp_path), tracking(store):
        import mlflow

        mlflow.set_experiment("production")
        yield store


def judge(_: Request) -> dict[str, str]:
    return {"rationale": "It reads well.", "verdict": "4"}


def test_scores_are_written_on_the_traces_and_a_run_is_evidence(production: str) -> None:
    one, other = talk("s1", "light on", "thanks", tools=2)
    (alone,) = talk("", "hello")

    scored = adk_eval.score_traces("production", CALLS)

    assert (scored.found, scored.already, scored.unreadable) == (2, 0, ())
    assert (scored.rates[""].value, scored.rates[""].evaluated, scored.rates[""].missing) == (0.5, 2, 0)
    found = assessments(production)
    assert {trace: values(some) for trace, some in found.items()} == {
        one: {"adk_passed": False, "tool_call_count_v1": 2.0},
        other: {"adk_passed": False, "tool_call_count_v1": 2.0},
        alone: {"adk_passed": True, "tool_call_count_v1": 0.0},
    }
    assert scored.report
    assert scored.written == 6
    reasons = {some.name: some.rationale for some in found[one]}
    assert reasons == {"adk_passed": None, "tool_call_count_v1": "The score is 2; the threshold is 1."}
    assert {some.metadata["mlflow.assessment.sourceRunId"] for listed in found.values() for some in listed} == {scored.report.run_id}
    run = MlflowClient(production).get_run(str(scored.report.run_id))
    assert run.data.params["adk_eval.production"] == "score"
    assert run.data.metrics["production/pass_rate"] == 0.5
    sample = json.loads(Path(MlflowClient(production).download_artifacts(run.info.run_id, "adk_eval_production/sample.json")).read_text())
    assert sample == scored.to_json()
    assert sample["strata"] == [{"name": "rest", "conversations": 2, "drawn": 2}]
    assert adk_eval.gate(str(scored.report.run_id), raise_on_failure=False).verdict == "failed"
    assert [turn.invocation_id for turn in scored.report.cases[0].expected or ()] == [one, other]


def test_the_second_call_writes_nothing_and_a_session_that_goes_on_is_scored_again(production: str) -> None:
    talk("s1", "light on")
    talk("s2", "light on")
    adk_eval.score_traces("production", CALLS)
    before = assessments(production)

    again = adk_eval.score_traces("production", CALLS)
    assert (again.report, again.already, again.written) == (None, 2, 0)
    anyway = adk_eval.score_traces("production", CALLS, again=True)
    assert anyway.report
    assert (len(anyway.report.cases), anyway.written) == (2, 0)
    assert {trace: len(some) for trace, some in assessments(production).items()} == {trace: len(some) for trace, some in before.items()}

    (late,) = talk("s1", "and off")
    third = adk_eval.score_traces("production", CALLS)
    assert third.report
    assert [case.eval_id for case in third.report.cases] == ["s1"]
    assert third.written == 2
    assert values(assessments(production)[late]) == {"adk_passed": True, "tool_call_count_v1": 0.0}
    other = adk_eval.score_traces("production", {"criteria": {"tool_call_count_v1": 2}})
    assert other.already == 0, "another config has scored nothing yet"


def test_an_interrupted_call_goes_on_with_what_it_drew(production: str) -> None:
    for number in range(8):
        talk(f"s{number}", "light on")

    def stop(scored: adk_eval.ScoredTraces) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adk_eval.score_traces("production", CALLS, sample=4, before_writing=stop)
    assert not any(assessments(production).values())
    talk("late", "light on")
    seen = list[str]()
    scored = adk_eval.score_traces(
        "production", CALLS, sample=4, before_writing=lambda one: seen.append(str(one.report and one.report.run_id))
    )
    assert scored.found == 8, "the late one was not there when it drew"
    assert scored.written == 8
    runs = MlflowClient(production).search_runs([scored.experiment_id])
    assert [run.info.run_id for run in runs] == seen
    assert sum(map(len, assessments(production).values())) == 8
    assert not list(Path(".adk_eval/traces").glob("*/")), "nothing of what people said is left behind"


def test_two_calls_at_once_are_refused(production: str) -> None:
    talk("s1", "light on")

    def meanwhile(_: adk_eval.ScoredTraces) -> None:
        with pytest.raises(UsageError, match="another process is scoring these traces"):
            adk_eval.score_traces("production", CALLS)

    assert adk_eval.score_traces("production", CALLS, before_writing=meanwhile).written == 2
    with Path(".adk_eval/traces/free.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_conversation_in_which_the_agent_failed_has_not_passed(production: str) -> None:
    failed, after = talk("s1", "light on", "again", fails="light on")
    talk("s2", "light on")
    scored = adk_eval.score_traces("production", CALLS)
    assert scored.rates[""].value == 0.5
    assert (scored.rates["tool_call_count_v1"].value, scored.rates["tool_call_count_v1"].missing) == (1.0, 1)
    assert {one.name: one.drawn for one in scored.strata} == {"errors": 1, "rest": 1}
    assert values(assessments(production)[failed]) == {"adk_passed": False, "tool_call_count_v1": "ERROR"}
    assert {one.rationale for one in assessments(production)[failed] if one.name == "adk_passed"} == {
        "turn 1: FileNotFoundError: [Errno 2] No such file or directory: 'no such room'"
    }
    assert not assessments(production)[after]
    assert adk_eval.score_traces("production", CALLS).report is None


def test_what_a_judge_says_is_on_the_trace_and_what_it_could_not_say_is_asked_again(production: str) -> None:
    (trace,) = talk("s1", "light on")

    def down(_: Request) -> str:
        raise Unavailable("503")

    options = adk_eval.JudgeOptions(attempts=1, outage_s=0.05)
    without = adk_eval.score_traces("production", JUDGED, judge=down, judge_options=options)
    assert (without.written, without.rates[""].value, without.rates[""].missing) == (0, None, 1)
    assert without.rates[""].against(0.0001) == "undecided"
    scored = adk_eval.score_traces("production", JUDGED, judge=judge)
    assert scored.written == 2
    (fluency,) = [one for one in assessments(production)[trace] if one.name == "rapid_eval_fluency"]
    assert "It reads well." in str(fluency.rationale)
    assert fluency.source.source_type == "LLM_JUDGE"


def test_evaluations_of_this_package_are_no_traffic(production: str) -> None:
    talk("s1", "light on")
    adk_eval.evaluate(adk_eval.capture(session="s1", experiment="production"), lambda _: "yes", CALLS, experiment="production")
    assert adk_eval.score_traces("production", CALLS).found == 1


def test_over_a_server_it_is_the_same(server: Server, tmp_path: Path) -> None:
    with chdir(tmp_path), tracking(server.uri):
        import mlflow

        mlflow.set_experiment("over http")
        one, other = talk("s1", "light on", "thanks", tools=2)
        talk("s2", "no", fails="no")
        scored = adk_eval.score_traces("over http", CALLS, tracking_uri=server.uri)
        assert scored.written == 6
        found = assessments(server.uri, "over http")
        assert values(found[one]) == values(found[other]) == {"adk_passed": False, "tool_call_count_v1": 2.0}
        again = adk_eval.score_traces("over http", CALLS, tracking_uri=server.uri, again=True)
        assert again.written == 0
        assert sum(map(len, assessments(server.uri, "over http").values())) == 6
        client = MlflowClient(server.uri)
        client.set_tag(client.get_run(str(scored.report and scored.report.run_id)).info.run_id, "seen", "yes")


def test_a_trace_that_is_deleted_meanwhile_costs_only_its_own_scores(production: str) -> None:
    (gone,) = talk("s1", "light on")
    (stays,) = talk("s2", "light on")

    def delete(scored: adk_eval.ScoredTraces) -> None:
        MlflowClient(production).delete_traces(scored.experiment_id, trace_ids=[gone])

    assert adk_eval.score_traces("production", CALLS, before_writing=delete).written == 2
    assert set(assessments(production)) == {stays}


def test_what_an_interrupted_call_kept_is_not_believed_if_its_run_was_changed(production: str) -> None:
    talk("s1", "light on")
    run_ids = list[str]()

    def stop(scored: adk_eval.ScoredTraces) -> None:
        run_ids.append(str(scored.report and scored.report.run_id))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adk_eval.score_traces("production", CALLS, before_writing=stop)
    MlflowClient(production).log_text(run_ids[0], "{}", "adk_eval/manifest.json")
    with pytest.raises(TrackingError, match="so its scores are not written on the traces"):
        adk_eval.score_traces("production", CALLS)
    assert not any(assessments(production).values())


def test_no_tag_of_a_trace_keeps_it_from_being_scored(production: str) -> None:
    import mlflow

    one, other = talk("s1", "light on", "thanks", tools=2)
    for trace_id in (one, other):
        mlflow.set_trace_tag(trace_id, "adk.eval_case_id", trace_id)
    talk(one, "I am not that trace", tools=2, metadata={"mlflow.sourceRun": "0" * 32})
    scored = adk_eval.score_traces("production", CALLS)
    assert scored.report
    assert [(case.eval_id, len(case.actual)) for case in scored.report.cases] == [("s1", 2), (f"session {one}", 1)]


def test_what_came_with_the_code_is_not_gone_on_with(production: str) -> None:
    talk("s1", "light on")

    def stop(scored: adk_eval.ScoredTraces) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adk_eval.score_traces("production", CALLS, before_writing=stop)
    for words in (["init", "-q"], ["add", "-f", ".adk_eval/traces"]):
        subprocess.run(["git", *words], check=True)
    with pytest.raises(UsageError, match="git tracks this folder of drawn conversations, so anyone with a branch could fake scores"):
        adk_eval.score_traces("production", CALLS)


@pytest.mark.parametrize(
    ("criteria", "says"),
    [
        (None, "wanted the criteria to score by"),
        ({"criteria": {"response_match_score": 0.5}}, "response_match_score needs expectations, which traces do not have; leave it out"),
        ({"criteria": {"final_response_match_v2": 0.5, "tool_trajectory_avg_score": 1}}, "need expectations, which traces do not have"),
        ({"criteria": {"tool_call_cont_v1": 1}}, "Did you mean 'tool_call_count_v1'"),
    ],
)
def test_criteria_that_traces_cannot_be_scored_by(production: str, criteria: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        adk_eval.score_traces("production", criteria)


def test_windows(production: str) -> None:
    assert moment_of("90m", "since", 10_000_000) == 10_000_000 - 90 * 60_000
    assert moment_of("1970-01-01T00:00:01+00:00", "since", 0) == 1000
    assert moment_of(None, "since", 0) is None
    with pytest.raises(UsageError, match="since='soon': wanted how long ago, such as 24h or 7d"):
        moment_of("soon", "since", 0)
    talk("s1", "light on")
    assert adk_eval.score_traces("production", CALLS, until="1h").found == 0
    assert adk_eval.score_traces("production", CALLS, since="1h").found == 1
    with pytest.raises(UsageError, match="since='1h': wanted a time before the end of the window"):
        adk_eval.score_traces("production", CALLS, since="1h", until="2h")
    with pytest.raises(UsageError, match="experiment 'prod' does not exist"):
        adk_eval.score_traces("prod", CALLS)


def seen(name: str, *, failed: bool = False, disliked: bool = False, seconds: float = 0.0) -> Seen:
    return Seen(("session", name), traces=[(f"tr-{name}", 0)], failed=failed, disliked=disliked, seconds=seconds)


def test_what_deserves_a_look_is_drawn_first_and_three_quarters_at_random() -> None:
    traffic = [seen(f"s{number}", failed=number < 20, disliked=20 <= number < 30, seconds=number / 1000) for number in range(1000)]
    drawn = draw(traffic, 100, "seed")
    assert len(drawn.drawn) == 100
    assert len(drawn.at_random) == 75
    counts = {one.name: (one.conversations, one.drawn) for one in drawn.strata}
    assert {name: count for name, (count, _) in counts.items()} == {"errors": 20, "thumbs_down": 10, "slow": 50, "rest": 920}
    assert all(counts[name][1] >= 8 for name in ("errors", "thumbs_down", "slow"))
    assert draw(traffic, 100, "seed") == drawn
    assert draw(traffic, 100, "other").at_random != drawn.at_random
    assert len(draw(traffic, None, "seed").at_random) == 1000


@given(st.integers(1, 60), st.integers(1, 80), st.integers(0, 2**32))
def test_a_draw_has_each_conversation_once_and_counts_all(size: int, sample: int, seed: int) -> None:
    rng = random.Random(seed)
    traffic = [seen(f"s{number}", failed=rng.random() < 0.2, disliked=rng.random() < 0.2, seconds=rng.random()) for number in range(size)]
    drawn = draw(traffic, sample, str(seed))
    names = [one.name for one, _ in drawn.drawn]
    assert len(set(names)) == len(names) == min(size, sample)
    assert sum(one.conversations for one in drawn.strata) == size
    assert sum(one.drawn for one in drawn.strata) == len(names)
    assert drawn.at_random <= set(names)


def test_rates_are_those_of_all_conversations_though_failures_are_drawn_more_often() -> None:
    rng = random.Random(7)
    rates, covered = list[float](), 0
    for number in range(200):
        passes = {f"s{index}": rng.random() < (0.2 if index < 60 else 0.95) for index in range(1000)}
        traffic = [seen(name, failed=index < 60) for index, name in enumerate(passes)]
        drawn = draw(traffic, 120, str(number))
        found = {name: [passes[one.name] for one, stratum in drawn.drawn if stratum == name] for name in ("errors", "rest")}
        rate = rate_of("", drawn.strata, found, 0)
        assert rate.value is not None
        assert rate.low is not None
        assert rate.high is not None
        rates.append(rate.value - fmean(passes.values()))
        covered += rate.low <= 0.06 * 0.2 + 0.94 * 0.95 <= rate.high
    assert abs(fmean(rates)) < 0.005, "the weights make it unbiased"
    assert covered / 200 >= 0.93


def test_a_rate_says_what_is_missing() -> None:
    strata = (Stratum(name="errors", conversations=10, drawn=5), Stratum(name="rest", conversations=90, drawn=5))
    none = rate_of("x", strata, {}, 10)
    assert none == Rate(criterion="x", value=None, low=None, high=None, evaluated=0, missing=10)
    half = rate_of("x", strata, {"rest": [True] * 5}, 5)
    assert (half.value, half.missing, half.against(0.6), half.against(0.4)) == (1.0, 5, "undecided", "passed")
    assert rate_of("x", strata, {"rest": [False] * 5}, 5).against(0.6) == "failed"
    whole = rate_of("x", strata, {"rest": [True] * 5, "errors": [False] * 5}, 0)
    assert whole.value is not None
    assert math.isclose(whole.value, 0.9)
    assert whole.against(0.9) == "passed"
