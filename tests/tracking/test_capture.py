"""Traces in MLflow become eval sets that ADK loads, and evaluations of agents that were traced."""

from __future__ import annotations

import gc
import json
import re
import tracemalloc
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.criteria.criterion import NO_ANSWER
from mlflow_adk_eval.criteria.transcript import content_material
from mlflow_adk_eval.errors import InputError, UsageError
from mlflow_adk_eval.evalset.files import load_eval_set, write_eval_set
from mlflow_adk_eval.evalset.models import EvalSet, Invocation
from mlflow_adk_eval.tracking.capture import capture
from tests.agents.traces.traced import Traced, copy_of, traced
from tests.integrations.genai import QUIET, tracking
from tests.mlflow_kit import Server, copied
from tests.tracking.small import CONFIG, answering, rooms

pytestmark = QUIET
SESSIONS = {"s-one": ("mail ann@example.com", "thanks"), "s-two": ("mail bob@example.com",), "s-three": ("call", "again", "and again")}
KEY = "s3cret-4242"


@pytest.fixture(scope="module")
def production(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with the traces of an agent that people use."""
    import mlflow

    folder = tmp_path_factory.mktemp("production")
    store = copied(template, folder)
    with chdir(folder), tracking(store):
        mlflow.set_experiment("production")
        for session, asked in SESSIONS.items():
            for number, text in enumerate(asked):
                _ask(session, text, number)
        _ask("", "alone", 0)
        mlflow.flush_trace_async_logging()
        yield store


def _ask(session: str, text: str, number: int) -> None:
    import mlflow

    with mlflow.start_span("assistant", span_type="AGENT") as root:
        root.set_inputs({"question": text})
        if session:
            mlflow.update_current_trace(metadata={"mlflow.trace.session": session, "mlflow.trace.user": "eve@example.com"})
        mlflow.update_current_trace(tags={"rating": "bad" if text == "again" else "good"})
        with mlflow.start_span("send", span_type="TOOL") as tool:
            tool.set_inputs({"to": ["ann@example.com"], "n": number, "deep": {"cc": "bob@example.com", "none": None}})
            tool.set_outputs({"sent": True, "log": f"key {KEY} to ann@example.com"})
        root.set_outputs(f"I did: {text}")


def captured(store: str, **options: Any) -> EvalSet:
    return capture(tracking_uri=store, **options)


def texts_of(eval_set: EvalSet) -> dict[str, list[str]]:
    return {case.eval_id: [turn.user_text for turn in case.conversation or ()] for case in eval_set.eval_cases}


def test_an_experiment_is_a_case_for_each_session_in_order_of_time(production: str) -> None:
    found = captured(production, experiment="production", eval_set_id="prod")
    texts = texts_of(found)
    assert list(texts)[:3] == list(SESSIONS)
    assert {name: tuple(said) for name, said in texts.items() if name in SESSIONS} == SESSIONS
    (alone,) = set(texts) - set(SESSIONS)
    assert alone.startswith("tr-")
    assert (found.eval_set_id, texts[alone]) == ("prod", ["alone"])
    first = found.eval_cases[0]
    assert first.session_input is not None
    assert (first.session_input.app_name, first.session_input.user_id) == ("assistant", "eve@example.com")
    turn = (first.conversation or ())[0]
    assert turn.final_text == "I did: mail ann@example.com"
    assert [(call.name, call.args) for call in turn.tool_calls] == [
        ("send", {"to": ["ann@example.com"], "n": 0, "deep": {"cc": "bob@example.com", "none": None}})
    ]
    assert turn.duration is None


def test_a_session_or_ids_or_traces(production: str) -> None:
    import mlflow

    assert texts_of(captured(production, experiment="production", session="s-three")) == {"s-three": list(SESSIONS["s-three"])}
    experiment = mlflow.get_experiment_by_name("production").experiment_id
    frame: Any = mlflow.search_traces(locations=[experiment], filter_string="metadata.`mlflow.trace.session` = 's-one'")
    assert texts_of(captured(production, trace_ids=list(frame["trace_id"]))) == {"s-one": list(SESSIONS["s-one"])}
    assert texts_of(captured(production, traces=frame)) == {"s-one": list(SESSIONS["s-one"])}
    listed = mlflow.search_traces(locations=[experiment], return_type="list", filter_string="metadata.`mlflow.trace.session` = 's-one'")
    last = max(listed, key=lambda trace: trace.data.spans[0].start_time_ns)
    alone = captured(production, trace_ids=[last.info.trace_id])
    assert list(texts_of(alone).values()) == [["thanks"]]


def test_a_filter_that_finds_one_turn_captures_its_whole_session(production: str) -> None:
    found = captured(production, experiment="production", filter_string="tags.rating = 'bad'")
    assert texts_of(found) == {"s-three": list(SESSIONS["s-three"])}
    assert texts_of(captured(production, experiment="production", filter_string="tags.rating = 'bad'", session="s-three")) == texts_of(
        found
    )
    with pytest.raises(UsageError, match="found no such trace"):
        captured(production, experiment="production", filter_string="tags.rating = 'bad'", session="s-one")


def test_a_sample_is_drawn_by_its_seed_without_replacement_and_stays_in_order(production: str) -> None:
    everything = list(texts_of(captured(production, experiment="production")))
    drawn = {seed: list(texts_of(captured(production, experiment="production", sample=2, seed=seed))) for seed in range(6)}
    assert drawn[0] == list(texts_of(captured(production, experiment="production", sample=2, seed=0)))
    for ids in drawn.values():
        assert len(ids) == len(set(ids)) == 2
        assert ids == sorted(ids, key=everything.index)
    assert len({tuple(ids) for ids in drawn.values()}) > 1
    assert list(texts_of(captured(production, experiment="production", sample=99))) == everything


def _hide(text: str) -> str:
    return re.sub(r"\S+@\S+", "[mail]", text)


def test_redaction_reaches_every_text_and_leaves_names_and_keys(production: str) -> None:
    found = captured(production, experiment="production", redact=_hide)
    text = json.dumps(found.model_dump(mode="json"))
    assert "@example.com" not in text
    turn = (found.eval_cases[0].conversation or ())[0]
    assert turn.user_text == "mail [mail]"
    assert turn.tool_calls[0].args == {"to": ["[mail]"], "n": 0, "deep": {"cc": "[mail]", "none": None}}
    assert turn.tool_responses[0].response == {"sent": True, "log": f"key {KEY} to [mail]"}
    seen: list[str] = []
    blank = captured(production, experiment="production", session="s-one", redact=lambda one: seen.append(one) or "")
    assert {"mail ann@example.com", "thanks", "I did: thanks", "ann@example.com", "bob@example.com", "eve@example.com"} <= set(seen)
    assert "send" not in seen
    assert [call.name for call in (blank.eval_cases[0].conversation or ())[0].tool_calls] == ["send"]


def test_a_file_that_redact_cannot_see_is_never_taken_for_a_text() -> None:
    from mlflow_adk_eval.agents.traces.conversations import Redactor

    turn = Invocation.model_validate(
        {
            "user_content": {"parts": [{"text": "ann@example.com"}, {"inline_data": {"mime_type": "image/png", "data": "aGk="}}]},
            "final_response": {
                "parts": [
                    {"file_data": {"file_uri": "gs://b/ann@example.com.pdf", "mime_type": "application/pdf"}},
                    {"executable_code": {"code": "mail('ann@example.com')", "language": "PYTHON"}},
                ]
            },
            "intermediate_data": {
                "tool_responses": [
                    {"name": "plot", "response": {"ok": True}, "parts": [{"inline_data": {"mime_type": "image/gif", "data": "aGk="}}]}
                ]
            },
        }
    )
    kept = Redactor(_hide, {}).reference(turn)
    written = kept.model_dump_json()
    assert "@example.com" not in written
    assert "aGk=" not in written
    assert kept.final_response
    assert list(map(str, content_material(kept.user_content).unshown)) == ["a file (image/png)"]
    assert list(map(str, content_material(kept.final_response).unshown)) == ["a file (application/pdf)"]
    assert (kept.final_response.parts or ())[1].executable_code == {"code": "[mail]", "language": "PYTHON"}
    assert kept.tool_responses[0].parts == [{"inline_data": {"mime_type": "image/gif"}}]
    as_they_are = Redactor(None, {}).reference(turn)
    assert as_they_are.user_content == turn.user_content
    assert as_they_are.tool_responses == turn.tool_responses


def test_secrets_are_taken_out_whatever_redact_does(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_API_KEY", KEY)
    for redact in (None, lambda text: text):
        text = json.dumps(captured(production, experiment="production", redact=redact).model_dump(mode="json"))
        assert KEY not in text
        assert "[MAIL_API_KEY]" in text


@pytest.mark.parametrize(
    ("redact", "wanted"), [(lambda text: 1 / 0, "ZeroDivisionError; nothing was captured"), (lambda text: None, "wanted a text")]
)
def test_a_redact_that_fails_captures_nothing(production: str, redact: Any, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        captured(production, experiment="production", redact=redact)


def test_google_adk_loads_what_was_captured(production: str, tmp_path: Path) -> None:
    from google.adk.evaluation.local_eval_sets_manager import load_eval_set_from_file

    found = captured(production, experiment="production", redact=_hide)
    path = tmp_path / "captured.evalset.json"
    write_eval_set(found, path)
    assert load_eval_set(path) == found
    loaded = load_eval_set_from_file(str(path), "captured")
    assert [case.eval_id for case in loaded.eval_cases] == list(found.eval_ids)
    assert loaded.eval_cases[0].conversation[0].intermediate_data.tool_uses[0].args["to"] == ["[mail]"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "name the traces to capture"),
        ({"trace_ids": ["tr-1"], "session": "s"}, "trace_ids and session cannot be combined"),
        ({"traces": [], "filter_string": "x"}, "traces and filter_string cannot be combined"),
        ({"trace_ids": ["tr-nope"]}, "trace 'tr-nope' does not exist"),
        ({"experiment": "nowhere"}, "experiment 'nowhere' does not exist"),
        ({"experiment": "production", "session": "nobody"}, "found no such trace"),
        ({"experiment": "production", "session": 'a"b'}, "quotation mark"),
        ({"experiment": "production", "sample": 0}, "sample=0: wanted a whole number of at least 1"),
        ({"experiment": "production", "sample": True}, "sample=True"),
        ({"experiment": "production", "filter_string": "nonsense ="}, "nonsense"),
    ],
)
def test_what_makes_no_sense_is_said(production: str, options: dict[str, Any], wanted: str) -> None:
    from mlflow import MlflowClient

    before = len(MlflowClient(production).search_experiments())
    with pytest.raises(Exception, match=wanted) as raised:
        captured(production, **options)
    assert type(raised.value).__module__ == "mlflow_adk_eval.errors"
    assert len(MlflowClient(production).search_experiments()) == before


def test_the_traces_of_a_run_of_ours_are_its_cases_and_score_as_it_did(production: str) -> None:
    import mlflow

    from mlflow_adk_eval import evaluate

    def broken(text: str, session: Any) -> Any:
        raise RuntimeError("out of order")

    agent = answering(rooms(), heat="no idea", both=broken)
    report = evaluate(rooms(), agent, CONFIG, experiment="evaluated", num_runs=2, tracking_uri=production)
    experiment = mlflow.get_experiment_by_name("evaluated").experiment_id
    traces = mlflow.search_traces(locations=[experiment], run_id=report.run_id)
    again = evaluate(rooms(), traces, CONFIG, experiment="evaluated again", tracking_uri=production)
    assert again.num_runs == 2
    assert again.notes == ()
    scores = [
        {(case.eval_id, case.run_index, result.criterion): result.score for case in one.cases for result in case.results if result.decides}
        for one in (report, again)
    ]
    assert scores[0] == scores[1]
    assert [bool(case.error) for case in again.cases] == [bool(case.error) for case in report.cases]
    runs = captured(production, run_id=report.run_id, experiment="evaluated", filter_string="trace.status = 'OK'")
    assert [eval_id.removesuffix("_2") for eval_id in runs.eval_ids] == [
        name for name in rooms().eval_ids if name != "both" for _ in range(2)
    ]
    assert sorted(runs.eval_ids) == ["heat", "heat_2", "light", "light_2"]


def test_tools_are_in_the_order_of_their_calls_in_traces_of_ours(production: str) -> None:
    import mlflow

    from mlflow_adk_eval import evaluate
    from mlflow_adk_eval.agents.traces.conversations import conversation_from_traces
    from tests.tracking.small import eval_set, turn

    made = [(f"tool_{number % 3}", {"n": number}) for number in range(12)]
    cases = eval_set({"many": [turn("go", "done", *made)]})
    report = evaluate(cases, {"many": list(cases.eval_cases[0].conversation or ())}, CONFIG, experiment="order", tracking_uri=production)
    experiment = mlflow.get_experiment_by_name("order").experiment_id
    (found,) = conversation_from_traces(mlflow.search_traces(locations=[experiment], run_id=report.run_id, return_type="list")).actual
    assert [(call.name, call.args) for call in found.tool_calls] == made


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return traced("content", tmp_path_factory)


@pytest.mark.needs("google-adk", "2.10")
@pytest.mark.slow
def test_traces_of_adk_are_captured_with_all_turns_though_mlflow_mistakes_their_session(exported: Traced, tmp_path: Path) -> None:
    store = copy_of(exported.store, tmp_path)
    found = captured(store, experiment="traced", session="session-nested")
    assert texts_of(found) == {"session-nested": ["how?", "and now?"]}
    sampled = captured(store, experiment="traced", filter_string="trace.name LIKE '%outer'", sample=5)
    assert texts_of(sampled) == texts_of(found)
    with pytest.raises(InputError, match="no call of a model"):
        captured(store, experiment="traced")


@pytest.mark.needs("google-adk", "2.10")
@pytest.mark.slow
def test_agents_that_were_traced_are_evaluated_against_what_was_captured(exported: Traced, tmp_path: Path) -> None:
    import mlflow

    from mlflow_adk_eval import evaluate

    store = copy_of(exported.store, tmp_path)
    cases = captured(store, experiment="traced", filter_string="trace.name LIKE '%front' AND trace.status = 'OK'", session="session-single")
    with chdir(tmp_path), tracking(store):
        traces = mlflow.search_traces(locations=["1"], filter_string="metadata.`mlflow.trace.session` = 'session-single'")
        report = evaluate(cases, traces, {"criteria": {"tool_trajectory_avg_score": 1.0}}, experiment="again", tracking_uri=store)
    calls = next(result for result in report.cases[0].results if result.criterion == "tool_trajectory_avg_score")
    assert [getattr(outcome, "score", None) for outcome in calls.per_invocation] == [1.0, 1.0, 1.0, None, 1.0]
    assert calls.per_invocation[3] == NO_ANSWER  # the agent is silent there, so it did not decide against a call
    usage = next(result for result in report.cases[0].results if result.criterion == "token_usage_v1")
    assert [getattr(outcome, "score", None) for outcome in usage.per_invocation] == [24.0, 12.0, 24.0, 12.0, 15.0]


@pytest.mark.slow
def test_spans_that_reach_a_server_by_otlp_read_the_same(exported: Traced, server: Server) -> None:
    import mlflow
    from mlflow.tracing.client import TracingClient

    from mlflow_adk_eval.agents.traces.conversations import conversation_from_traces

    client = mlflow.MlflowClient(server.uri)
    experiment = client.create_experiment("otlp")
    spans = [span for trace in exported.of("team") for span in mlflow.entities.Trace.from_dict(trace).data.spans]
    TracingClient(server.uri).log_spans(experiment, spans)  # which posts them to /v1/traces
    found = captured(server.uri, experiment="otlp", session="session-team")
    assert texts_of(found) == {"session-team": ["bill?", "again"]}
    stored = client.search_traces(locations=[experiment])
    assert [turn.model_dump() for turn in conversation_from_traces(list(stored)).actual] == [
        turn.model_dump() for turn in conversation_from_traces(exported.of("team")).actual
    ]


@pytest.mark.slow
def test_large_traces_are_in_memory_one_conversation_at_a_time(template: Path, tmp_path: Path) -> None:
    import mlflow

    store = copied(template, tmp_path)
    with chdir(tmp_path), tracking(store):
        mlflow.set_experiment("large")
        for number in range(12):
            with mlflow.start_span("assistant", span_type="AGENT") as root:
                root.set_inputs({"question": f"q{number}"})
                mlflow.update_current_trace(metadata={"mlflow.trace.session": f"s{number}"})
                with mlflow.start_span("model", span_type="CHAT_MODEL") as model:
                    model.set_inputs({"history": f"{number} " * 1_000_000})
                root.set_outputs("done")
        mlflow.flush_trace_async_logging()

        def peak(**options: Any) -> int:
            # How often Python looks for cycles depends on what else is in memory, such as what earlier tests have imported.
            gc.collect()
            gc.freeze()
            gc.collect()
            tracemalloc.start()
            try:
                found = captured(store, experiment="large", **options)
                assert len(found.eval_cases) == options.get("sample", 12)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
                gc.unfreeze()

        peak(sample=1)
        assert peak() < 2 * peak(sample=1)
