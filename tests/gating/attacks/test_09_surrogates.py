"""Attack 9: an agent, a tool or an exception with halves of surrogate pairs must not cost the evidence that was paid for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import TrackingError, UsageError
from tests.gating.gate_kit import Lab
from tests.tracking.small import CONFIG, eval_set, turn

pytestmark = pytest.mark.slow

HALF = "\ud83d"
CASES = eval_set({"light": [turn("light on", "the light is on", ("switch", {"room": "hall"})), turn("thanks", "you are welcome")]})


def _answer(**intermediate: Any) -> Callable[[str], Any]:
    return lambda text: {"final_response": {"role": "model", "parts": [{"text": "the light is on"}]}, "intermediate_data": intermediate}


def _raising(text: str) -> str:
    raise RuntimeError(f"no such room: {HALF}")


AGENTS: dict[str, Callable[[str], Any]] = {
    "response": lambda text: f"the light is on {HALF}",
    "tool name": _answer(tool_uses=[{"name": f"switch{HALF}", "args": {}}]),
    "argument value": _answer(tool_uses=[{"name": "switch", "args": {"room": HALF}}]),
    "argument name": _answer(tool_uses=[{"name": "switch", "args": {HALF: "hall"}}]),
    "tool answer": _answer(tool_uses=[{"name": "s", "args": {}}], tool_responses=[{"name": "s", "response": {HALF: HALF}}]),
    "model": _answer(invocation_events=[{"author": "a", "content": {"parts": [{"text": "hi"}]}, "model_version": f"m{HALF}"}]),
    "exception": _raising,
}


@pytest.mark.parametrize("where", AGENTS)
def test_a_run_ends_with_its_evidence_and_traces(lab: Lab, where: str) -> None:
    report = adk_eval.evaluate(CASES, AGENTS[where], CONFIG, tracking_uri=lab.uri, experiment="surrogates", traces=True, ledger="off")
    run = lab.client.get_run(report.run_id)
    assert (run.info.status, run.data.tags["adk_eval.status"]) == ("FINISHED", "complete")
    traces = lab.client.search_traces(locations=[run.info.experiment_id], run_id=report.run_id)
    assert len(traces) == int(run.data.params["adk_eval.trace_count"]) > 0
    decision = adk_eval.gate(report.run_id, tracking_uri=lab.uri, raise_on_failure=False)
    assert decision.verdict == report.verdict
    for rows in ("cases", "invocations", "votes", "repeats"):
        report.to_frame(rows).to_json()


def test_what_mlflow_refuses_is_kept_and_uploaded_whatever_it_holds(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The safety net, should a text get past the cleaning: the bundle is whole, and `upload` finishes the run."""
    from mlflow_adk_eval.tracking import bundle, logged_run

    real = bundle.bundle_of

    def spoilt(*args: Any, **options: Any) -> bundle.Bundle:
        found = real(*args, **options)
        return replace(found, traces=tuple(replace(trace, response=HALF, error=HALF) for trace in found.traces))

    monkeypatch.setattr(logged_run.bundles, "bundle_of", spoilt)
    with pytest.raises(TrackingError, match="mlflow-adk-eval upload"):
        adk_eval.evaluate(
            CASES, AGENTS["response"], CONFIG, tracking_uri=lab.uri, experiment="kept", pending_folder=tmp_path, traces=True, ledger="off"
        )
    (folder,) = tmp_path.iterdir()
    run_id = adk_eval.upload(folder, tracking_uri=lab.uri)
    run = lab.client.get_run(run_id)
    assert (run_id, run.info.status, run.data.tags["adk_eval.status"]) == (folder.name, "FINISHED", "complete")


def test_a_run_whose_bundle_cannot_be_made_is_not_left_running(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow_adk_eval.tracking import logged_run

    def broken(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(logged_run.bundles, "bundle_of", broken)
    experiment = lab.client.create_experiment("unmade")
    with pytest.raises(ZeroDivisionError):
        adk_eval.evaluate(CASES, AGENTS["response"], CONFIG, tracking_uri=lab.uri, experiment="unmade", ledger="off")
    (run,) = lab.client.search_runs([experiment])
    assert (run.info.status, run.data.tags["adk_eval.status"]) == ("FAILED", "failed")


def test_an_id_that_no_store_takes_is_refused_before_the_agent_is_called(lab: Lab) -> None:
    def called(text: str) -> str:
        raise AssertionError(text)

    cases = eval_set({f"light{HALF}": [turn("light on", "the light is on")]})
    with pytest.raises(UsageError, match="half a surrogate pair"):
        adk_eval.evaluate(cases, called, CONFIG, tracking_uri=lab.uri, experiment="ids", ledger="off")
