"""Attack 4: a run that meets a policy by its config, its cases or its own reflection instead of by what the agent does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.recordings import Recording, load_recording, save_recording
from mlflow_adk_eval.evalset import EvalSet, dump, dumps, load_eval_set
from mlflow_adk_eval.results.decision import Decision
from tests.gating.gate_kit import Lab
from tests.tracking.small import CONFIG, rooms

# What compares with itself


def _loaded(folder: Path) -> EvalSet:
    (folder / "again.evalset.json").write_text(dumps(rooms()))
    return load_eval_set(folder / "again.evalset.json")


def _file(folder: Path) -> Path:
    (folder / "itself.evalset.json").write_text(dumps(rooms()))
    return folder / "itself.evalset.json"


def _respelt(_: Path) -> EvalSet:
    """Return the same with other ids and times of the turns, which mean nothing."""
    value = dump(rooms())
    for case in value["eval_cases"]:
        for index, turn in enumerate(case["conversation"]):
            turn |= {"invocation_id": f"e-{index}", "creation_timestamp": 7.0}
    return EvalSet.model_validate(value)


def _saved(folder: Path) -> Path:
    save_recording(load_recording(rooms()), folder / "saved.json")
    return folder / "saved.json"


ITSELF: dict[str, Callable[[Path], Any]] = {
    "object": lambda _: rooms(),
    "dict": lambda _: {case.eval_id: list(case.conversation or ()) for case in rooms().eval_cases},
    "dict of dicts": lambda _: {case.eval_id: [dump(turn) for turn in case.conversation or ()] for case in rooms().eval_cases},
    "file": _file,
    "path as text": lambda folder: str(_file(folder)),
    "loaded eval set": _loaded,
    "other ids and times": _respelt,
    "recording": lambda _: load_recording(rooms()),
    "recording by hand": lambda _: Recording(load_recording(rooms()).runs, name="night run"),
    "saved recording": _saved,
}


def _decided(lab: Lab, report: adk_eval.Report, policy: Any = None) -> Decision:
    return adk_eval.gate(report.run_id, policy, tracking_uri=lab.uri, raise_on_failure=False)


def _refused_as_itself(lab: Lab, run_id: str) -> None:
    decision = adk_eval.gate(run_id, tracking_uri=lab.uri, raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert any("compared with itself" in reason for reason in decision.reasons)
    lab.client.set_tag(run_id, "adk_eval.status", "complete")  # tags can be edited, the parameter cannot
    assert adk_eval.gate(run_id, tracking_uri=lab.uri, raise_on_failure=False).verdict == "undecided"


@pytest.mark.parametrize("path", ITSELF)
def test_an_eval_set_is_no_recording_of_itself(lab: Lab, tmp_path: Path, path: str) -> None:
    report = adk_eval.evaluate(rooms(), ITSELF[path](tmp_path), CONFIG, tracking_uri=lab.uri, experiment="itself", ledger="off")
    assert report.passed
    _refused_as_itself(lab, report.run_id or "")


def test_nor_is_it_as_a_report_that_is_logged_later(lab: Lab) -> None:
    from mlflow_adk_eval.tracking import log_report

    report = log_report(adk_eval.score(rooms(), rooms(), CONFIG), agent_name="mirror", tracking_uri=lab.uri, experiment="itself")
    _refused_as_itself(lab, report.run_id or "")


def test_nor_by_way_of_an_earlier_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", lab.uri)
    first = adk_eval.evaluate(rooms(), rooms(), CONFIG, tracking_uri=lab.uri, experiment="itself", ledger="off")
    second = adk_eval.evaluate(rooms(), f"runs:/{first.run_id}", CONFIG, tracking_uri=lab.uri, experiment="itself", ledger="off")
    _refused_as_itself(lab, second.run_id or "")
