"""The world that a run met: logged once per digest, and read back as something to replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import TrackingError
from mlflow_adk_eval.evalset.conversation import RecordedCall, RecordedCase, RecordedRun, RecordedSet
from mlflow_adk_eval.evalset.world import World, parse_world, world_digest
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.bundle import bundle_of
from mlflow_adk_eval.tracking.client import connect
from mlflow_adk_eval.tracking.earlier_runs import world_of_run
from mlflow_adk_eval.tracking.evaluate import log_report
from mlflow_adk_eval.viewer.one_run import run_facts
from mlflow_adk_eval.viewer.store import RunStore
from tests.mlflow_kit import opened
from tests.tracking.small import rooms
from tests.tracking.test_bundle import RUN
from tests.tracking.worlds import replayed, world


@pytest.fixture
def uri(template: Path, tmp_path: Path) -> str:
    return opened(template, tmp_path, "worlds")


def logged(report: Report, uri: str) -> str:
    how: dict[str, Any] = {"tracking_uri": uri, "experiment": "worlds", "traces": False}
    return str(log_report(report, agent_name="agent", **how).run_id)


def held(uri: str, run_id: str) -> World:
    with store_at(uri) as store:
        return parse_world(store.evidence(run_id).artifacts["world.json"], "world.json")


def test_a_world_is_logged_once_and_is_found_by_every_run_that_met_it(uri: str) -> None:
    first, second = (logged(replayed(world(tools)), uri) for tools in ("record", "strict"))
    other = logged(replayed(world(answer="refused")), uri)
    assert [held(uri, run_id).run_id for run_id in (first, second, other)] == ["", first, ""]
    assert held(uri, second).recorded is None
    params = connect(uri).get_run(second).data.params
    assert params["adk_eval.world"] == world().digest
    assert (params["adk_eval.replay"], params["adk_eval.world_run"]) == ("strict", first)
    sources = [world_of_run(run_id, uri) for run_id in (first, second)]
    for source in sources:
        assert {call.answer for runs in source.runs.values() for run in runs for call in run.calls} == {"done"}
        assert source.origin
        assert source.origin.agent_version
    # Pages of a comparison name the worlds where they differ.
    about = [[one.about for one in adk_eval.compare(other, to, tracking_uri=uri).differences] for to in (first, other)]
    assert about == [["Recorded world"], []]
    assert run_facts(RunStore(uri).open(second))["Recordings"].startswith("Replayed: 3 of 3 tool calls")
    # What is judged again met the world that its conversations met.
    again = adk_eval.evaluate(rooms(), f"runs:/{second}", tracking_uri=uri, experiment="worlds", traces=False)
    assert again.world
    assert again.world.digest == world().digest
    assert held(uri, str(again.run_id)).run_id == first
    # Whose calls are gone, or others now, cannot be replayed.
    folder = Path(connect(uri).get_run(first).info.artifact_uri.removeprefix("file://")) / "adk_eval"
    whole = (folder / "world.json").read_bytes()
    (folder / "world.json").write_bytes(whole.replace(b"done", b"gone"))
    with pytest.raises(TrackingError, match=rf"run {first}: the artifact adk_eval/world.json was changed after the run"):
        world_of_run(second, uri)
    (folder / "world.json").write_bytes(whole)


def test_a_run_that_names_another_runs_world_has_the_calls_of_that_only_if_they_are_the_same(uri: str) -> None:
    other = logged(replayed(world(answer="refused")), uri)
    with pytest.raises(TrackingError, match=f"run {other} does not hold the calls with the digest {world().digest} that run"):
        world_of_run(logged(replayed(world(recorded=None, run_id=other)), uri), uri)
    gone = logged(replayed(world(recorded=None, run_id="0" * 32)), uri)
    with pytest.raises(
        TrackingError, match=f"run {gone} met the world that run {'0' * 32} holds, but that cannot be read: run '0+' does not exist"
    ):
        world_of_run(gone, uri)


def test_the_digest_is_that_of_a_world_as_it_is_written_down_without_secrets() -> None:
    answer = {"key": "s3cret-42", "at": "http://ada:pw@host/", "nan": float("nan"), "half": "\ud800"}
    made = bundle_of(replayed(world(answer=answer)), RUN, traces=False, secrets={"s3cret-42": "[API_KEY]"})
    written = parse_world(made.artifacts["world.json"], "world.json")
    assert written.recorded
    assert made.params["adk_eval.world"] == written.digest == world_digest(written.recorded) != world(answer=answer).digest
    assert b"s3cret-42" not in made.artifacts["world.json"]
    assert b"ada:pw" not in made.artifacts["world.json"]
    again = bundle_of(replayed(written), RUN, traces=False, secrets={"s3cret-42": "[API_KEY]"})
    assert again.params["adk_eval.world"] == written.digest, "whoever replays it meets the same world"


def test_a_world_of_ten_thousand_calls_is_kept_as_a_whole() -> None:
    calls = tuple(RecordedCall(turn=0, tool="look", args={"n": number}, answer="x" * 100) for number in range(10_000))
    many = RecordedSet(cases=(RecordedCase(eval_id="light", runs=(RecordedRun(invocations=(), calls=calls),)),))
    met = world(recorded=many, digest=world_digest(many))
    made = bundle_of(replayed(met), RUN, traces=False, secrets={})
    written = parse_world(made.artifacts["world.json"], "world.json")
    assert (written.digest, written.recorded) == (met.digest, many)
    assert len(made.artifacts["report.html"]) < 100_000
