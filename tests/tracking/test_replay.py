"""Runs whose conversations are judged again, and what runs hold of simulated users and of tools that were not the real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.evalset.conversation import Ending
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.earlier_runs import recording_of_run
from tests.agents.environments import ERROR, injecting
from tests.agents.scripted import call, llm, results, text, user_text
from tests.agents.users.user_kit import ENDS, in_order, says
from tests.kit import call as tool_call
from tests.kit import case, cases, scenario, turn

SCENARIOS = ("talks", "never ends")
CONFIG = {
    "criteria": {"tool_trajectory_avg_score": 1, "response_match_score": 0.5},
    "case_criteria": {name: {"tool_call_count_v1": 3} for name in SCENARIOS},
    "user_simulator_config": {"max_allowed_invocations": 3, "model": "player"},
    "environment_simulation_config": injecting(book=[ERROR | {"match_args": {"city": "Rome"}, "injected_latency_seconds": 0.01}]),
}


def trips() -> EvalSet:
    return cases(
        case(
            "books",
            turn("booked Rome", tool_call("book", city="Rome"), tool_call("book", city="Rome"), user="Rome"),
            turn("x", user="boom"),
        ),
        scenario("talks"),
        scenario("never ends"),
        eval_set_id="trips",
    )


def book(city: str) -> dict[str, str]:
    """Book a trip."""
    return {"city": city}


def agent() -> Any:
    """An agent that books what it is told, tries again where that fails, and breaks down at "boom"."""

    def script(request: Any) -> Any:
        said = user_text(request)
        if said == "boom":
            raise RuntimeError("the model is gone")
        failed = any("error_code" in found for found in results(request))
        if said in {"Rome", "Oslo"} and (not results(request) or failed) and len(request.contents) < 4:
            return [call("book", city=said)]
        return text(f"booked {said}")

    return llm(script, tools=[book])


def user(told: Any, turns: Any) -> str | None:
    return None if told.conversation_plan == "ask" and len(turns) == 2 else "Oslo"


def evaluated(store: str, user_simulator: Any = user, **options: Any) -> Report:
    eval_set = trips()
    endless = eval_set.eval_cases[2]
    told = endless.conversation_scenario
    assert told
    other = endless.model_copy(update={"conversation_scenario": told.model_copy(update={"conversation_plan": "go on"})})
    whole = eval_set.model_copy(update={"eval_cases": (*eval_set.eval_cases[:2], other)})
    given: dict[str, Any] = {"agent": agent(), "config": CONFIG, "experiment": "trips", "tracking_uri": store} | options
    return adk_eval.evaluate(whole, user_simulator=user_simulator, **given)


@pytest.fixture
def report(store: str) -> Report:
    return evaluated(store)


def client_of(store: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(store)


def traces_of(store: str, run_id: str) -> dict[tuple[str, str], Any]:
    """The traces of a run by case and turn."""
    client = client_of(store)
    found = client.search_traces(locations=[client.get_run(run_id).info.experiment_id], run_id=run_id)
    return {(one.info.tags["adk.eval_case_id"], one.info.tags["adk.invocation_index"]): one for one in found}


def test_a_run_is_judged_again_without_its_agent(store: str, report: Report) -> None:
    again = adk_eval.evaluate(report.eval_set, agent=f"runs:/{report.run_id}", config=CONFIG, experiment="trips", tracking_uri=store)
    assert again.cases == report.cases
    assert again.run_id != report.run_id
    assert again.notes == ()
    params = [client_of(store).get_run(run_id).data.params for run_id in (report.run_id, again.run_id)]
    assert params[0]["adk_eval.model_id"] == params[1]["adk_eval.model_id"]
    stricter = adk_eval.evaluate(
        report.eval_set, f"runs:/{again.run_id}", {"criteria": {"tool_call_count_v1": 0}}, experiment="trips", tracking_uri=store
    )
    assert stricter.verdict == "failed"
    assert [found.actual for found in stricter.cases] == [found.actual for found in report.cases]


def test_its_recording_is_what_the_report_would_save(store: str, report: Report) -> None:
    found, saved = recording_of_run(str(report.run_id), store), adk_eval.recording_of_report(report)
    assert found.runs == saved.runs
    assert found.origin
    assert saved.origin
    assert (found.origin.eval_set_digest, found.origin.case_digests) == (saved.origin.eval_set_digest, saved.origin.case_digests)
    assert (
        found.origin.agent_version == saved.origin.agent_version == client_of(store).get_run(report.run_id).data.params["adk_eval.model_id"]
    )
    assert found.origin.num_runs == saved.origin.num_runs == 1


def test_a_run_is_not_judged_as_another_version(store: str, report: Report) -> None:
    client, run = client_of(store), client_of(store).get_run(report.run_id)
    model = client.create_logged_model(run.info.experiment_id, name="other")
    given = {"agent_version": model.model_id, "experiment": "trips", "tracking_uri": store}
    recorded = run.data.params["adk_eval.model_id"]
    message = f"the recording is of another version, {recorded}, so it is not evidence about this one"
    for recording in (f"runs:/{report.run_id}", adk_eval.recording_of_report(report)):
        with pytest.raises(UsageError, match=message):
            adk_eval.evaluate(report.eval_set, recording, CONFIG, **given)


@pytest.mark.parametrize("same", [True, False])
def test_a_run_is_judged_as_another_version_of_the_same_source(store: str, report: Report, same: bool) -> None:
    client, run = client_of(store), client_of(store).get_run(report.run_id)
    recorded = client.create_logged_model(run.info.experiment_id, params={"adk_eval.agent.source_sha256": "1" * 64}).model_id
    named = client.create_logged_model(
        run.info.experiment_id, params={"adk_eval.agent.source_sha256": ("1" if same else "2") * 64}
    ).model_id
    recording = adk_eval.recording_of_report(report)
    assert recording.origin
    recording = replace(recording, origin=replace(recording.origin, agent_version=recorded))
    given = {"agent_version": named, "experiment": "trips", "tracking_uri": store}
    if same:
        again = adk_eval.evaluate(report.eval_set, recording, CONFIG, **given)
        assert client.get_run(again.run_id).data.params["adk_eval.model_id"] == named
    else:
        with pytest.raises(UsageError, match="is not evidence about this one"):
            adk_eval.evaluate(report.eval_set, recording, CONFIG, **given)


def test_a_recording_of_a_version_that_is_not_in_the_store_is_told(store: str, report: Report) -> None:
    recording = adk_eval.recording_of_report(report)
    assert recording.origin
    recording = replace(recording, origin=replace(recording.origin, agent_version="m-" + "0" * 32))
    model = client_of(store).create_logged_model(client_of(store).get_run(report.run_id).info.experiment_id, name="other")
    again = adk_eval.evaluate(report.eval_set, recording, CONFIG, agent_version=model.model_id, experiment="trips", tracking_uri=store)
    assert f"the recording is of m-{'0' * 32}, but this MLflow store has no such version" in " ".join(again.notes)


def test_a_run_whose_conversations_were_changed_is_not_believed(store: str, report: Report) -> None:
    client = client_of(store)
    folder = Path(client.download_artifacts(report.run_id, "adk_eval"))
    file = folder / "result.evalset_result.json"
    client.log_text(report.run_id, file.read_text().replace("booked", "cancelled"), "adk_eval/result.evalset_result.json")
    with pytest.raises(
        TrackingError, match=r"result\.evalset_result\.json was changed after the run, so its conversations cannot be trusted"
    ):
        recording_of_run(str(report.run_id), store)


def test_a_run_without_an_evaluation_has_nothing_to_judge(store: str) -> None:
    run_id = client_of(store).create_run("0").info.run_id
    with pytest.raises(UsageError, match="contains no finished evaluation"):
        recording_of_run(run_id, store)
    with pytest.raises(UsageError, match="does not exist"):
        adk_eval.evaluate(trips(), "runs:/nowhere", CONFIG, tracking_uri=store)


def test_the_last_trace_of_a_simulated_conversation_says_why_it_ended(store: str, report: Report) -> None:
    traces = traces_of(store, str(report.run_id))
    endings = {place: one.info.tags["adk_eval.ending"] for place, one in traces.items() if "adk_eval.ending" in one.info.tags}
    assert endings == {("talks", "1"): "goal", ("never ends", "2"): "limit"}
    assert traces["never ends", "2"].info.tags["adk_eval.ending_detail"] == "max_allowed_invocations of 3"
    client = client_of(store)
    experiment = client.get_run(report.run_id).info.experiment_id
    found = client.search_traces(locations=[experiment], filter_string="tags.`adk_eval.ending` = 'limit'")
    assert [one.info.trace_id for one in found] == [traces["never ends", "2"].info.trace_id]


def test_the_span_of_a_tool_says_what_was_done_to_its_call(store: str, report: Report) -> None:
    spans = traces_of(store, str(report.run_id))["books", "0"].data.spans
    told = [(span.name, span.get_attribute("adk_eval.injected")) for span in spans if span.get_attribute("adk_eval.injected")]
    injected = "injected error after 0.01 s"
    assert told == [("invocation", [f"book: {injected}"] * 2), ("book", injected), ("book", injected)]
    oslo = traces_of(store, str(report.run_id))["talks", "1"].data.spans
    assert [span.get_attribute("adk_eval.injected") for span in oslo if span.name == "book"] == [None]


def test_the_run_says_who_played_the_users_and_what_that_took(store: str) -> None:
    player = in_order(*[says("Oslo"), ENDS] * 2, model="player", address="scripted:player")
    report = evaluated(store, player)
    assert {found.ending for found in report.cases} >= {Ending(reason="goal", detail="all done")}
    run = client_of(store).get_run(report.run_id).data
    assert report.simulating
    assert (run.metrics["user_simulator/calls"], run.metrics["user_simulator/tokens"]) == (
        report.simulating.calls,
        report.simulating.tokens,
    )
    assert report.simulating.calls > 0
    assert run.params["adk_eval.user_simulator.model"] == "player"
    named = {f"adk_eval.prompt.{name.partition('@')[0]}": sha256 for name, sha256 in report.simulating.prompts.items()}
    assert named
    assert all(run.params[name].endswith(sha256) for name, sha256 in named.items())
    assert "Users simulated by player: " in run.tags["mlflow.note.content"]
    assert "2 simulated conversations: " in run.tags["mlflow.note.content"]
    assert not any(name.startswith("judge/") for name in run.metrics)


def test_a_run_without_simulated_users_says_nothing_of_them(store: str) -> None:
    report = adk_eval.evaluate(
        cases(case("a", turn("yes"))), lambda text: "yes", {"criteria": {"response_match_score": 1}}, tracking_uri=store
    )
    run = client_of(store).get_run(report.run_id).data
    assert not [name for name in (*run.metrics, *run.params, *run.tags) if "simulator" in name or "ending" in name]


def test_a_report_that_is_logged_later_keeps_what_is_known_of_its_agent(store: str) -> None:
    from mlflow_adk_eval.tracking.evaluate import log_report

    config = adk_eval.load_config({"criteria": {"response_match_score": 1}})
    report = adk_eval.score(cases(case("a", turn("yes"))), {"a": ["yes"]}, config)
    logged = log_report(report, agent_name="fn", tracking_uri=store)
    assert recording_of_run(str(logged.run_id), store).runs == adk_eval.recording_of_report(report).runs
    assert logged.origin is None
    assert resolve_agent(adk_eval.recording_of_report(replace(report, run_id=None))).name == "recording"
