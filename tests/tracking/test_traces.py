"""The traces of a run: one per invocation, with assessments and spans, none lost, none doubled."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.kit import turn_json
from tests.tracking import judged
from tests.tracking.small import CONFIG, answering, eval_set, expected_of, many, rooms, turn


def traces_of(store: str, report: Any, *, include_spans: bool = True) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(store)
    experiment = client.get_run(report.run_id).info.experiment_id
    found, token = [], None
    while True:
        page = client.search_traces(
            locations=[experiment], run_id=report.run_id, include_spans=include_spans, max_results=200, page_token=token
        )
        found += page
        token = page.token
        if not token:
            return found


@pytest.mark.parametrize("turns", [60, 300])
def test_no_trace_and_no_assessment_is_lost(store: str, turns: int) -> None:
    from mlflow_adk_eval import evaluate

    cases = many(turns)
    report = evaluate(cases, expected_of(cases), CONFIG, experiment="all", tracking_uri=store)
    traces = traces_of(store, report)
    assert len(traces) == len({trace.info.request_preview for trace in traces}) == turns
    assert sum(len(trace.info.assessments) for trace in traces) == 5 * turns
    assert sum(len(trace.data.spans) for trace in traces) == 2 * turns
    # MLflow lists the latest first, and so in the order of the eval set
    assert [trace.info.request_preview for trace in traces] == [f"[case_{n:04} #1] question {n}" for n in range(turns)]


def test_what_has_arrived_is_counted_without_walking_over_it_again_and_again(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    pages: list[tuple[int, str | None]] = []
    search = MlflowClient.search_traces

    def counted(self: MlflowClient, *args: Any, **kwargs: Any) -> Any:
        page = search(self, *args, **{**kwargs, "max_results": 8})
        pages.append((len(page), kwargs["page_token"]))
        return page

    monkeypatch.setattr(MlflowClient, "search_traces", counted)
    cases = many(30)
    report = evaluate(cases, expected_of(cases), CONFIG, experiment="all", tracking_uri=store)
    assert MlflowClient(store).get_run(report.run_id).data.tags["adk_eval.status"] == "complete"
    assert pages == [(0, None), *[(8, None)] * 4, (2, None)]  # each begins with the last one of the page before


@pytest.mark.parametrize("latest_first", [True, False])
@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 500])
def test_every_trace_is_read_once_also_of_those_of_one_time(store: str, page_size: int, *, latest_first: bool) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import TraceInfo, TraceLocation, TraceState
    from mlflow.tracing.client import TracingClient

    from mlflow_adk_eval.tracking.client import every_trace

    client = MlflowClient(store)
    experiment = client.create_experiment("times")
    times = [1, 2, 2, 2, 2, 2, 3, 4, 4, 5]
    for number, at in enumerate(times):
        location = TraceLocation.from_experiment_id(experiment)
        info = TraceInfo(trace_id=f"tr-{number:032}", trace_location=location, request_time=at, state=TraceState.OK, execution_duration=0)
        TracingClient(store).start_trace(info)
    found = [trace.info for trace in every_trace(client, experiment, latest_first=latest_first, page_size=page_size)]
    assert [info.request_time for info in found] == sorted(times, reverse=latest_first)
    assert len({info.trace_id for info in found}) == len(times)


UNKNOWN_TABLES = {"SqlTraceInfo": "request_id", "SqlSpan": "trace_id and_a_column_of_tomorrow"}


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the fast way of writing to SQLite unavailable, as in a version of MLflow with another column."""
    from mlflow_adk_eval.tracking import traces

    monkeypatch.setattr(traces, "_TABLES", UNKNOWN_TABLES)


def rows_of(store: str, run_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows about the traces of a run, the ids of assessments included."""
    connection = sqlite3.connect(store.removeprefix("sqlite:///"))
    connection.row_factory = sqlite3.Row
    found: dict[str, list[dict[str, Any]]] = {}
    select = "select request_id from trace_request_metadata where key = 'mlflow.sourceRun' and value = ?"
    ids = [row["request_id"] for row in connection.execute(select, [run_id])]
    for table in ("trace_info", "trace_tags", "trace_request_metadata", "assessments", "spans", "span_metrics"):
        key = "trace_id" if table in {"assessments", "spans", "span_metrics"} else "request_id"
        rows = [dict(row) for row in connection.execute(f"select * from {table}") if row[key] in ids]  # noqa: S608
        found[table] = sorted(rows, key=lambda row: sorted((column, repr(value)) for column, value in row.items()))
    connection.close()
    return found


def test_both_ways_of_writing_leave_the_same_rows(store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate, upload
    from mlflow_adk_eval.tracking import logged_run, traces
    from mlflow_adk_eval.tracking.bundle import bundle_of

    def keeping(*args: Any, **kwargs: Any) -> Any:
        bundle = bundle_of(*args, **kwargs)
        bundle.save(tmp_path / "kept")
        return bundle

    def broken(text: str, session: Any) -> Any:
        raise RuntimeError("Straße gesperrt 🚧")

    with monkeypatch.context() as patched:
        patched.setattr(logged_run.bundles, "bundle_of", keeping)
        patched.setattr(traces, "_TABLES", UNKNOWN_TABLES)
        report = evaluate(rooms(), answering(rooms(), heat="no 🙈", both=broken), CONFIG, experiment="ways", tracking_uri=store)
    plain = rows_of(store, report.run_id)
    assert {table: len(rows) for table, rows in plain.items()} == {
        "trace_info": 5,
        "trace_tags": 30,
        "trace_request_metadata": 20,
        "assessments": 25,
        "spans": 6,
        "span_metrics": 0,
    }
    client = MlflowClient(store)
    client.delete_traces(client.get_run(report.run_id).info.experiment_id, trace_ids=[row["request_id"] for row in plain["trace_info"]])
    assert traces_of(store, report) == []
    upload(tmp_path / "kept")
    assert rows_of(store, report.run_id) == plain


def test_both_ways_of_writing_leave_the_same_rows_of_what_judges_said(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval.tracking import traces
    from mlflow_adk_eval.tracking.logged_run import finish_run

    with monkeypatch.context() as patched:
        patched.setattr(traces, "_TABLES", UNKNOWN_TABLES)
        bundle = judged.logged(store, judged.report(), "judged ways")
    plain = rows_of(store, bundle.run.run_id)
    sources = [(row["name"], row["source_type"], row["source_id"], bool(row["error"])) for row in plain["assessments"]]
    assert sources.count((judged.MATCH, "LLM_JUDGE", judged.MODEL, False)) == 2
    assert sources.count((judged.MATCH, "LLM_JUDGE", judged.MODEL, True)) == 1
    client = MlflowClient(store)
    client.delete_traces(bundle.run.experiment_id, trace_ids=[row["request_id"] for row in plain["trace_info"]])
    assert rows_of(store, bundle.run.run_id)["assessments"] == []
    finish_run(client, bundle)
    assert rows_of(store, bundle.run.run_id) == plain


def priced(user: str, *events: dict[str, Any]) -> dict[str, Any]:
    return turn_json(user, "done", intermediate_data={"invocation_events": list(events)})


def thought(tool: str | None = None, **usage: int) -> dict[str, Any]:
    parts = [{"function_call": {"name": tool, "args": {}}}] if tool else []
    return {
        "author": "agent",
        "content": {"role": "model", "parts": parts},
        "usage_metadata": usage or None,
        "model_version": "gemini-x",
    }


COSTLY = {
    "one": [
        priced(
            "go",
            thought("first", prompt_token_count=10, candidates_token_count=3, thoughts_token_count=2),
            thought("second", prompt_token_count=20, candidates_token_count=4),
            thought(),
        )
    ],
    "two": [priced("free")],
}


def test_a_trace_tells_the_models_that_were_asked_and_their_tokens(store: str) -> None:
    from mlflow_adk_eval import evaluate

    cases = eval_set(COSTLY)
    report = evaluate(cases, expected_of(cases), {"criteria": {"tool_call_count_v1": 2}}, experiment="tokens", tracking_uri=store)
    costly, free = traces_of(store, report)
    assert [span.name for span in costly.data.spans[1:]] == ["gemini-x", "first", "gemini-x", "second", "gemini-x"]
    assert costly.info.token_usage == {"input_tokens": 30, "output_tokens": 9, "total_tokens": 39}
    assert free.info.token_usage is None
    assert len(free.data.spans) == 1


def test_the_tokens_of_a_trace_are_those_that_it_was_made_of(store: str) -> None:
    from mlflow_adk_eval import evaluate

    cases = eval_set(COSTLY)
    asked = {"criteria": {"token_usage_v1": 100, "inference_call_count_v1": 5, "tool_trajectory_avg_score": 1.0}}
    report = evaluate(cases, expected_of(cases), asked, experiment="tokens", tracking_uri=store)
    again = evaluate(cases, traces_of(store, report), asked, experiment="tokens", tracking_uri=store)
    first = [result.overall for result in report.cases[0].results]
    assert [overall.score for overall in first[:3]] == [39.0, 3.0, 1.0]
    assert [result.score for result in again.cases[0].results[:3]] == [39.0, 3.0, 1.0]


def test_both_ways_of_writing_leave_the_same_rows_of_what_models_cost(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate
    from mlflow_adk_eval.tracking import logged_run, traces

    kept: list[Any] = []
    finish_run = logged_run.finish_run
    with monkeypatch.context() as patched:
        patched.setattr(traces, "_TABLES", UNKNOWN_TABLES)
        patched.setattr(logged_run, "finish_run", lambda client, bundle, **more: (kept.append(bundle), finish_run(client, bundle, **more)))
        cases = eval_set(COSTLY)
        report = evaluate(cases, expected_of(cases), {"criteria": {"tool_call_count_v1": 2}}, experiment="ways", tracking_uri=store)
    plain = rows_of(store, report.run_id)
    assert len(plain["spans"]) == 7
    client = MlflowClient(store)
    client.delete_traces(kept[0].run.experiment_id, trace_ids=[row["request_id"] for row in plain["trace_info"]])
    finish_run(client, kept[0])
    assert rows_of(store, report.run_id) == plain


def test_sqlite_is_written_to_in_the_fast_way(store: str) -> None:
    from mlflow.tracking.client import TracingClient

    from mlflow_adk_eval.tracking.traces import trace_rows

    assert trace_rows(TracingClient(store).store, "0") is not None


def test_other_tables_than_the_known_ones_are_left_to_mlflow(store: str, one_by_one: None) -> None:
    from mlflow.tracking.client import TracingClient

    from mlflow_adk_eval.tracking.traces import trace_rows

    assert trace_rows(TracingClient(store).store, "0") is None


def test_a_store_that_refuses_the_fast_way_is_written_to_in_the_other(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException

    from mlflow_adk_eval import evaluate
    from mlflow_adk_eval.tracking.traces import TraceRows

    def refuse(*args: Any) -> None:
        raise MlflowException("database is locked")

    monkeypatch.setattr(TraceRows, "write", refuse)
    assert len(traces_of(store, evaluate(rooms(), answering(rooms()), CONFIG, experiment="refused", tracking_uri=store))) == 5


def test_two_runs_of_a_set_pair_row_by_row(store: str) -> None:
    from mlflow_adk_eval import evaluate

    first = evaluate(rooms(), answering(rooms()), CONFIG, experiment="pairs", tracking_uri=store)
    second = evaluate(rooms(), answering(rooms(), heat="no"), CONFIG, experiment="pairs", tracking_uri=store)
    keys = [
        {trace.info.request_preview: trace.info.tags["mlflow.eval.requestId"] for trace in traces_of(store, report, include_spans=False)}
        for report in (first, second)
    ]
    assert keys[0] == keys[1]
    assert len(set(keys[0].values())) == 5
    ids = {trace.info.trace_id for report in (first, second) for trace in traces_of(store, report, include_spans=False)}
    assert len(ids) == 10


def by_preview(store: str, report: Any) -> dict[str, dict[str, Any]]:
    return {
        trace.info.request_preview: {found.name: found for found in trace.info.assessments}
        for trace in traces_of(store, report, include_spans=False)
    }


def test_what_was_not_evaluated_is_an_error_and_no_zero(store: str) -> None:
    from mlflow_adk_eval import evaluate

    def broken(text: str, session: Any) -> Any:
        if session.history:
            raise RuntimeError("the boiler does not answer")
        return expected_of(rooms())["both"][0]

    report = evaluate(rooms(), answering(rooms(), both=broken), CONFIG, experiment="errors", tracking_uri=store)
    traces = by_preview(store, report)
    fine, lost = traces["[both #1] all off"], traces["[both #2] sure?"]
    assert (fine["response_match_score"].value, fine["response_match_score"].error) == (1.0, None)
    assert fine["adk_passed"].value is True
    assert lost["response_match_score"].value is None
    assert lost["response_match_score"].error.error_code == "ERROR"
    assert "the boiler does not answer" in lost["response_match_score"].error.error_message
    assert (lost["adk_passed"].value, lost["adk_passed"].error.error_code) == (None, "NOT_EVALUATED")
    assert lost["expected_response"].value == "yes, all is off"
    states = {trace.info.request_preview: trace.info.state.value for trace in traces_of(store, report)}
    assert (states["[both #1] all off"], states["[both #2] sure?"]) == ("OK", "ERROR")


def test_a_score_says_where_it_comes_from_and_what_was_asked_for(store: str) -> None:
    from mlflow_adk_eval import evaluate

    report = evaluate(rooms(), answering(rooms(), heat="no"), CONFIG, experiment="source", tracking_uri=store)
    found = by_preview(store, report)["[heat #1] 21 degrees please"]
    assert list(found) == ["adk_passed", "tool_trajectory_avg_score", "response_match_score", "expected_response", "expected_tool_calls"]
    score = found["tool_trajectory_avg_score"]
    assert (score.value, score.source.source_type, score.source.source_id) == (0.0, "CODE", "mlflow_adk_eval")
    assert score.metadata == {"threshold": "1.0", "status": "scored", "mlflow.assessment.sourceRunId": report.run_id}
    assert score.rationale
    assert found["expected_tool_calls"].value == [{"name": "heat", "args": {"to": 21}}]


TEXT = "| a | b |\n|---|---|\n<script>alert('1')</script> 🏳️‍🌈 \u202eעברית\u202c \\u0041 %s {x}"


@pytest.mark.parametrize("way", ["fast", "one_by_one", pytest.param("http", marks=pytest.mark.slow)])
def test_texts_arrive_as_they_are(way: str, request: pytest.FixtureRequest, store: str, tmp_path: Path) -> None:
    from mlflow_adk_eval import evaluate

    if way == "one_by_one":
        request.getfixturevalue("one_by_one")
    uri = request.getfixturevalue("server").uri if way == "http" else store
    answer, args = TEXT + "x" * 200_000, {"blob": "é" * 100_000, "deep": [{"a": [None, True, 1.5]}]}
    cases = eval_set({"text": [turn(TEXT, "ok", ("tool", args))]})
    report = evaluate(cases, {"text": [turn(TEXT, answer, ("tool", args))]}, CONFIG, experiment="texts", tracking_uri=uri)
    (trace,) = traces_of(uri, report)
    root, tool = trace.data.spans
    assert (root.inputs, root.outputs) == ({"user_content": TEXT}, {"final_response": answer})
    assert (tool.name, tool.inputs) == ("tool", args)
    assert trace.info.request_preview == f"[text #1] {TEXT}"
    assert trace.info.response_preview == answer[:1000]


@pytest.mark.parametrize("way", ["fast", pytest.param("http", marks=pytest.mark.slow)])
def test_a_long_reason_arrives_whole(
    way: str, request: pytest.FixtureRequest, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow_adk_eval import evaluate

    uri = request.getfixturevalue("server").uri if way == "http" else store
    reason = TEXT + "y" * 200_000

    def broken(text: str, session: Any) -> Any:
        raise RuntimeError(reason)

    cases = eval_set({"reason": [turn("why", "because")]})
    report = evaluate(cases, broken, CONFIG, experiment="reasons", tracking_uri=uri)
    (found,) = by_preview(uri, report).values()
    assert found["response_match_score"].error.error_message.endswith(reason)


def test_what_no_database_keeps_is_replaced(store: str) -> None:
    from mlflow_adk_eval import evaluate

    answer = {
        "final_response": "nul \0 and half a pair \ud83d",
        "intermediate_data": {"tool_uses": [{"name": "t", "args": {"x": float("inf")}}]},
    }
    cases = eval_set({"odd": [turn("hello", "hello")]})
    report = evaluate(cases, lambda text, session: answer, CONFIG, experiment="odd", tracking_uri=store)
    (trace,) = traces_of(store, report)
    assert trace.info.response_preview == "nul \N{REPLACEMENT CHARACTER} and half a pair ?"


def test_a_tools_answer_stands_beside_its_call(store: str) -> None:
    from mlflow_adk_eval import evaluate

    uses = [{"id": "1", "name": "get", "args": {"n": 1}}, {"id": "2", "name": "get", "args": {"n": 2}}, {"name": "put", "args": {}}]
    answers = [{"id": "2", "name": "get", "response": {"got": 2}}, {"id": "1", "name": "get", "response": {"got": 1}}]
    answer = {"final_response": "done", "intermediate_data": {"tool_uses": uses, "tool_responses": answers}}
    cases = eval_set({"tools": [turn("go", "done")]})
    report = evaluate(cases, lambda text, session: answer, CONFIG, experiment="tools", tracking_uri=store)
    (trace,) = traces_of(store, report)
    root, *tools = trace.data.spans
    assert root.span_type == "AGENT"
    assert {span.parent_id for span in tools} == {root.span_id}
    assert sorted((span.name, span.span_type, str(span.inputs), str(span.outputs)) for span in tools) == [
        ("get", "TOOL", "{'n': 1}", "{'got': 1}"),
        ("get", "TOOL", "{'n': 2}", "{'got': 2}"),
        ("put", "TOOL", "{}", "None"),
    ]


def test_the_span_of_a_turn_takes_as_long_as_its_trace(store: str) -> None:
    from mlflow_adk_eval import evaluate

    answer = {"final_response": "done", "duration": 1.5, "intermediate_data": {"tool_uses": [{"name": "put", "args": {}}]}}
    cases = eval_set({"slow": [turn("go", "done")]})
    report = evaluate(cases, lambda text, session: answer, CONFIG, experiment="times", tracking_uri=store)
    (trace,) = traces_of(store, report)
    root, tool = trace.data.spans
    assert root.end_time_ns - root.start_time_ns == trace.info.execution_duration * 1_000_000 == 1_500_000_000
    assert root.start_time_ns < tool.start_time_ns == tool.end_time_ns < root.end_time_ns


def test_above_the_limit_only_what_did_not_pass_has_a_trace_and_the_run_says_so(store: str) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    report = evaluate(rooms(), answering(rooms(), heat="no"), CONFIG, experiment="limit", tracking_uri=store, traces=4)
    assert list(by_preview(store, report)) == ["[heat #1] 21 degrees please"]
    run = MlflowClient(store).get_run(report.run_id)
    params = run.data.params
    assert (params["adk_eval.traces"], params["adk_eval.trace_count"], run.data.tags["adk_eval.status"]) == (
        "failed",
        "1",
        "complete",
    )
    assert "Traces cover 1 of 5 turns; all of these did not pass." in run.data.tags["mlflow.note.content"]


@pytest.mark.parametrize(
    ("traces", "count", "extent"),
    [
        (False, 0, "none"),
        (0, 0, "none"),
        (1, 1, "failed"),
        ("failed", 3, "failed"),
        (4, 3, "failed"),
        (5, 5, "all"),
        (True, 5, "all"),
    ],
)
def test_how_many_traces_are_wanted_can_be_said(store: str, traces: Any, count: int, extent: str) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    report = evaluate(rooms(), answering(rooms(), heat="no", light="no"), CONFIG, experiment="some", tracking_uri=store, traces=traces)
    assert len(traces_of(store, report)) == count
    assert MlflowClient(store).get_run(report.run_id).data.params["adk_eval.traces"] == extent


def test_a_run_that_lost_a_trace_is_partial_and_can_be_completed(store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import TrackingError, evaluate, upload
    from mlflow_adk_eval.tracking import logged_run
    from mlflow_adk_eval.tracking.traces import write_traces

    with monkeypatch.context() as patched:
        patched.setattr(logged_run, "write_traces", lambda client, run, records: write_traces(client, run, records[:3]))
        with pytest.raises(TrackingError, match=r"stored 3 of 5 traces(.|\n)*mlflow-adk-eval upload adk_eval_pending"):
            evaluate(rooms(), answering(rooms()), CONFIG, experiment="partial", tracking_uri=store)
    (folder,) = (tmp_path / "adk_eval_pending").iterdir()
    client = MlflowClient(store)
    assert client.get_run(folder.name).data.tags["adk_eval.status"] == "partial"
    assert upload(folder) == folder.name
    assert client.get_run(folder.name).data.tags["adk_eval.status"] == "complete"
