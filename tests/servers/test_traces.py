"""Traces over HTTP: the fewest requests, and whatever becomes of one, everything is there once in the end."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Never

import pytest
from mlflow import MlflowClient
from mlflow.entities import Feedback
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient

from mlflow_adk_eval import TrackingError, evaluate, upload
from mlflow_adk_eval.tracking import trace_requests, traces
from mlflow_adk_eval.tracking.bundle import Bundle
from tests.mlflow_kit import Server
from tests.servers.proxy import FAULTS, Fault, Plan, Proxy, Request, at, kth
from tests.tracking import judged
from tests.tracking.small import CONFIG, answering, eval_set, expected_of, many, rooms
from tests.tracking.test_traces import COSTLY, rows_of

pytestmark = pytest.mark.slow

EVERY = os.environ.get("MLFLOW_ADK_EVAL_SPOILT") == "all"
"""Whether each fault is tried at each request; else some, spread over all."""


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[Proxy]:
    running = Proxy(server.uri).start()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows_on(server: Server, run_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a run's traces, without the number of times that MLflow's archive would have to look at a trace again."""
    found = rows_of(f"sqlite:///{server.folder / 'mlflow.db'}", run_id)
    for row in found["trace_info"]:
        assert row.pop("db_payload_generation") > 0
    return {table: sorted(rows, key=repr) for table, rows in found.items()}


@dataclass
class Written:
    """A run whose traces can be written again and again."""

    server: Server
    bundle: Bundle
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What the server's database holds after an undisturbed writing."""

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.server.uri)

    def found(self) -> dict[str, list[dict[str, Any]]]:
        return rows_on(self.server, self.bundle.run.run_id)

    def read(self) -> list[dict[str, Any]]:
        """Return the traces as MLflow's client reads them."""
        page = self.client.search_traces(locations=[self.bundle.run.experiment_id], run_id=self.bundle.run.run_id)
        return [trace.to_dict() for trace in page]

    def forget(self) -> None:
        ids = [traces.trace_id_of(self.bundle.run, record) for record in self.bundle.traces]
        self.client.delete_traces(self.bundle.run.experiment_id, trace_ids=ids)

    def write(self, uri: str) -> None:
        traces.write_traces(MlflowClient(uri), self.bundle.run, self.bundle.traces)

    def missing(self) -> list[str]:
        return traces.missing_traces(self.client, self.bundle.run, self.bundle.traces)


@pytest.fixture(scope="module")
def written(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Three traces with five spans, scores, expectations and errors of judges."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("written"))
        found = Written(server, judged.logged(server.uri, judged.report(), "written"))
    found.rows = found.found()
    return found


def test_both_ways_of_writing_leave_the_same_on_a_server(written: Written) -> None:
    quickly = written.read()
    written.forget()
    assert written.found()["assessments"] == []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(traces, "RestStore", None)
        written.write(written.server.uri)
    assert written.found() == written.rows
    assert written.read() == quickly
    assert [len(trace["info"]["assessments"]) for trace in quickly] == [6, 6, 6]
    assert all(trace["info"]["request_preview"] and trace["info"]["tags"]["adk.eval_case_id"] for trace in quickly)
    assert {trace["info"]["trace_metadata"]["mlflow.sourceRun"] for trace in quickly} == {written.bundle.run.run_id}


def test_both_ways_of_writing_leave_the_same_of_what_models_cost(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow_adk_eval.tracking import logged_run

    kept: list[Bundle] = []
    finish_run = logged_run.finish_run
    monkeypatch.setattr(logged_run, "finish_run", lambda client, bundle, **more: (kept.append(bundle), finish_run(client, bundle, **more)))
    cases = eval_set(COSTLY)
    evaluate(cases, expected_of(cases), {"criteria": {"tool_call_count_v1": 2}}, experiment="costly", tracking_uri=server.uri)
    run = Written(server, kept[0])
    quickly, read = run.found(), run.read()
    assert len(quickly["spans"]) == 7
    run.forget()
    monkeypatch.setattr(traces, "RestStore", None)
    run.write(server.uri)
    assert (run.found(), run.read()) == (quickly, read)


def _places(requests: int) -> list[tuple[Fault, int]]:
    every: list[tuple[Fault, int]] = [(fault, number) for fault in FAULTS for number in range(1, requests + 1)]
    return every if EVERY else every[:: len(every) // 8]


@pytest.mark.parametrize(("fault", "number"), _places(6))
def test_one_spoilt_request_changes_nothing(written: Written, proxy: Proxy, fault: Fault, number: int) -> None:
    """Two requests look for what is there, three are traces, and the last one spans."""
    written.forget()
    with proxy.spoiling(kth(number, fault)) as seen:
        try:
            written.write(proxy.uri)
        except (MlflowException, ValueError):  # MLflow's own client does not ask twice for an answer that it cannot read
            assert number <= 2
            written.write(proxy.uri)
    assert len(seen) >= 6
    assert written.missing() == []
    assert written.found() == written.rows


@pytest.mark.parametrize("number", range(3, 7))
@pytest.mark.parametrize("fault", ["lost", "cut"])
def test_what_was_broken_off_at_a_request_is_completed(
    written: Written, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, fault: Fault, number: int
) -> None:
    written.forget()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with proxy.spoiling(lambda request: fault if request.number >= number else None), pytest.raises(MlflowException):
        written.write(proxy.uri)
    written.write(written.server.uri)
    assert written.missing() == []
    assert written.found() == written.rows
    written.write(written.server.uri)
    assert written.found() == written.rows


def test_a_lost_answer_leaves_a_run_that_is_complete_and_holds_nothing_twice(server: Server, proxy: Proxy) -> None:
    with proxy.spoiling(at("/mlflow/traces", "lost", times=2)) as seen:
        report = evaluate(rooms(), answering(rooms()), CONFIG, experiment="lost", tracking_uri=proxy.uri)
    assert sum(request.path.endswith("/mlflow/traces") for request in seen) == 5 + 2
    client = MlflowClient(server.uri)
    run = client.get_run(report.run_id)
    found = client.search_traces(locations=[run.info.experiment_id], run_id=report.run_id)
    assert run.data.tags["adk_eval.status"] == "complete"
    names = [assessment.name for trace in found for assessment in trace.info.assessments]
    assert (len(found), Counter(names)["adk_passed"], len(names)) == (5, 5, 25)


def test_an_upload_completes_what_was_broken_off(server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    written = 0

    def after_two(request: Request) -> Fault | None:
        nonlocal written
        written += request.path.endswith("/mlflow/traces")
        return "lost" if written > 2 else None

    with proxy.spoiling(after_two), pytest.raises(TrackingError, match="upload adk_eval_pending/"):
        evaluate(rooms(), answering(rooms()), CONFIG, experiment="broken off", tracking_uri=proxy.uri)
    (folder,) = Path("adk_eval_pending").iterdir()
    run_id = upload(folder, tracking_uri=server.uri)
    rows = rows_on(server, run_id)
    assert {table: len(found) for table, found in rows.items()} == {
        "trace_info": 5,
        "trace_tags": 30,
        "trace_request_metadata": 20,
        "assessments": 25,
        "spans": 8,
        "span_metrics": 0,
    }
    assert upload(folder, tracking_uri=server.uri) == run_id
    assert rows_on(server, run_id) == rows


def test_a_turn_takes_one_request_and_its_spans_a_share_of_one(proxy: Proxy) -> None:
    cases = many(60)
    with proxy.spoiling(lambda _: None) as seen:
        evaluate(cases, expected_of(cases), CONFIG, experiment="counted", tracking_uri=proxy.uri)
    counted = Counter(f"{request.method} {request.path}" for request in seen)
    assert counted["POST /api/3.0/mlflow/traces"] == 60
    assert counted["POST /v1/traces"] == 3
    assert counted["POST /api/3.0/mlflow/traces/search"] == 2
    assert not any("assessments" in path or "version" in path for path in counted)
    assert sum(count for path, count in counted.items() if path.startswith("POST") and "traces" in path) <= 1.2 * 60


def test_a_server_that_refuses_every_third_request_gets_all(written: Written, proxy: Proxy) -> None:
    written.forget()
    with proxy.spoiling(lambda request: "503" if request.number % 3 == 2 else None):
        written.write(proxy.uri)
    assert written.found() == written.rows


def test_what_a_server_keeps_refusing_is_an_error_in_its_words(written: Written, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    written.forget()

    def never(path: str, fault: Fault) -> Plan:
        return lambda request: fault if request.path.endswith(path) else None

    with proxy.spoiling(never("/v1/traces", "503")) as seen, pytest.raises(MlflowException, match="/v1/traces failed with error code 503"):
        written.write(proxy.uri)
    assert sum(request.path == "/v1/traces" for request in seen) <= 1 + 4
    with proxy.spoiling(never("/v1/traces", "html")), pytest.raises(MlflowException, match=r"did not answer like MLflow: .<!doctype html>"):
        written.write(proxy.uri)
    written.write(proxy.uri)
    assert written.found() == written.rows


def test_a_server_that_takes_no_spans_keeps_them_as_artifacts(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", written.server.uri)  # where MLflow's client looks for files that the server keeps
    before = written.read()
    written.forget()
    with monkeypatch.context() as patched:
        patched.setattr(trace_requests, "_SPANS", "/v1/unheard_of")
        written.write(written.server.uri)
    assert written.missing() == []
    found = written.read()
    assert not any("mlflow.trace.spansLocation" in trace["info"]["tags"] for trace in found)
    assert [spans_of(trace) for trace in found] == [spans_of(trace) for trace in before]
    written.forget()
    written.write(written.server.uri)


def spans_of(trace: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(span["name"], span["attributes"]) for span in trace["data"]["spans"]]


def test_spans_that_are_too_large_together_are_sent_in_smaller_requests(
    written: Written, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_requests, "_TOO_LARGE", 503)
    written.forget()
    with proxy.spoiling(at("/v1/traces", "503")) as seen:
        written.write(proxy.uri)
    assert sum(request.path == "/v1/traces" for request in seen) == 3
    assert written.found() == written.rows


def test_only_what_is_lacking_is_written(written: Written, proxy: Proxy) -> None:
    info = written.client.search_traces(locations=[written.bundle.run.experiment_id], run_id=written.bundle.run.run_id)[0].info
    person, lost = info.assessments[-1], info.assessments[0]
    tracing = TracingClient(written.server.uri)
    tracing.delete_assessment(info.trace_id, lost.assessment_id)
    assert len(written.missing()) == 1
    with proxy.spoiling(lambda _: None) as seen:
        written.write(proxy.uri)
    assert [request.path for request in seen if request.method == "POST"] == ["/api/3.0/mlflow/traces/search", "/api/3.0/mlflow/traces"]
    assert written.found() == written.rows
    # What a person adds meanwhile is neither too much nor lost.
    added = tracing.log_assessment(info.trace_id, Feedback(name="by_a_person", value=person.name))
    assert written.missing() == []
    written.write(written.server.uri)
    tracing.delete_assessment(info.trace_id, added.assessment_id)
    assert written.found() == written.rows


PASSWORD = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "pw-of-mine"}


def test_a_server_that_hashes_each_password_is_told_of_once(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in PASSWORD.items():
        monkeypatch.setenv(name, value)
    cases = many(20)
    with proxy.spoiling(at("/version", 1.0, times=2)) as seen, caplog.at_level(logging.WARNING, trace_requests.__name__):
        evaluate(cases, expected_of(cases), CONFIG, experiment="dear", tracking_uri=proxy.uri)
    (said,) = [record.getMessage() for record in caplog.records if record.name == trace_requests.__name__]
    assert re.search(r"takes \d\.\d s to check the password on each request, \d+ s for 20 traces: log fewer \(`--traces failed`", said)
    assert "pw-of-mine" not in said
    assert Counter(request.path for request in seen)["/version"] == 2


@pytest.mark.parametrize(("turns", "with_password"), [(20, False), (19, True)])
def test_nothing_is_measured_without_a_password_or_of_few_traces(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, turns: int, *, with_password: bool
) -> None:
    for name, value in PASSWORD.items() if with_password else ():
        monkeypatch.setenv(name, value)
    cases = many(turns)
    with proxy.spoiling(lambda _: None) as seen:
        evaluate(cases, expected_of(cases), CONFIG, experiment="cheap", tracking_uri=proxy.uri)
    assert not {"/version", "/health"} & {request.path for request in seen}


def test_the_ids_of_a_turn_follow_from_what_it_is(written: Written) -> None:
    run, record = written.bundle.run, written.bundle.traces[0]
    ids = {
        traces.trace_id_of(run, record),
        traces.trace_id_of(replace(run, run_id="another"), record),
        traces.trace_id_of(run, written.bundle.traces[1]),
    }
    assert len(ids) == 3
    kept = [row["assessment_id"] for row in written.rows["assessments"]]
    assert len(set(kept)) == len(kept)
    assert all(len(one) == 34 for one in kept)


def test_an_interrupted_writing_sends_nothing_more(written: Written, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Never:
        raise KeyboardInterrupt

    monkeypatch.setattr(trace_requests.BACKGROUND, "call", interrupted)
    written.forget()
    with proxy.spoiling(lambda _: None) as seen, pytest.raises(KeyboardInterrupt):
        written.write(proxy.uri)
    assert not {"/api/3.0/mlflow/traces", "/v1/traces"} & {request.path for request in seen}
    monkeypatch.undo()
    written.write(written.server.uri)
