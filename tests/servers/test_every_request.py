"""One request of a command is spoilt, each in turn and in each way: nothing is there twice or left behind, and the command can be repeated.

`make check` spoils a few, spread over all of them; with MLFLOW_ADK_EVAL_SPOILT=all it is every one, which takes hours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import Result

from mlflow_adk_eval.gating.api import audit
from mlflow_adk_eval.gating.registry import MlflowStore, claims_experiment
from mlflow_adk_eval.tracking import agent_versions
from tests.cli.test_cli import EXPECTED, invoke, written
from tests.servers.conftest import Site, sample
from tests.servers.proxy import FAULTS, Fault, Request, kth

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _soon_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take who began a LoggedModel for dead after a second: nobody else is at work here."""
    monkeypatch.setattr(agent_versions, "_MAKING_S", 1.0)


class Journey:
    """Commands on a site, each with names that nobody else has."""

    def __init__(self, site: Site, folder: Path) -> None:
        from mlflow import MlflowClient

        self.site, self.folder, self.name = site, folder, f"journey_{uuid4().hex[:12]}"
        self.client = MlflowClient(site.server.uri, site.server.uri)
        self.cases = written(folder / "lights.evalset.json", EXPECTED)
        actual = json.loads(json.dumps(EXPECTED))
        actual["eval_cases"][0]["conversation"][0]["duration"] = 0.25
        self.recording = written(folder / f"{self.name}.json", actual)

    def run(self) -> Result:
        at = ("--tracking-uri", self.site.uri, "--experiment", self.name, "--register", self.name, "--traces", 0)
        return invoke("run", self.recording, self.cases, *at, "--json")

    def runs(self) -> list[Any]:
        found = self.client.get_experiment_by_name(self.name)
        return [] if found is None else list(self.client.search_runs([found.experiment_id]))

    def check_run(self, *, finished: int = 1) -> None:
        """Check that so many runs hold the evaluation, of one version, and that no other run is not finished."""
        runs = self.runs()
        by_status = sorted((run.info.status, run.data.tags["adk_eval.status"]) for run in runs)
        assert by_status.count(("FINISHED", "complete")) == finished, by_status
        assert set(by_status) <= {("FINISHED", "complete"), ("FAILED", "failed")}
        models = self.client.search_logged_models([runs[0].info.experiment_id])
        assert [str(model.status) for model in models] == ["READY"]
        for run in runs:
            if run.info.status == "FINISHED":
                (told,) = self.client.get_run(run.info.run_id).inputs.dataset_inputs
                assert told.dataset.name == "lights"
                assert "upload" not in run.data.tags["mlflow.note.content"]
                assert invoke("gate", run.info.run_id, "--tracking-uri", self.site.uri).exit_code == 0

    def versions(self) -> list[str]:
        return [version.version for version in self.client.search_model_versions(f"name = '{self.name}'")]


def sound(result: Result, *codes: int) -> Result:
    assert "Traceback" not in result.stderr, result.stderr
    assert result.exit_code in codes, (result.exit_code, result.stderr)
    return result


def spoilt(site: Site, count: int, call: Callable[[], Result], sort: str) -> Iterator[tuple[Fault, list[Request], Callable[[], Result]]]:
    """Give for a sample of all requests of a call and faults how to make the call with that fault."""
    with site.proxy.spoiling(lambda _: None) as seen:
        sound(call(), 0)
    cases: list[tuple[int, Fault]] = [(number, fault) for number in range(1, len(seen) + 1) for fault in FAULTS]
    print(f"\n{sort}: {len(seen)} requests")  # noqa: T201 - how much there is to spoil
    for number, fault in sample(cases, count, site):
        with site.proxy.spoiling(kth(number, fault)) as requests:
            yield fault, requests, call
        print(f"{sort}: request {number} of {len(seen)} {fault}: {requests[number - 1].path if number <= len(requests) else ''}")  # noqa: T201


def test_run(site: Site, here: Path) -> None:
    journeys: list[Journey] = []

    def call() -> Result:
        journeys.append(Journey(site, here))
        return journeys[-1].run()

    for _, _, run in spoilt(site, 2, call, "run"):
        code = sound(run(), 0, 3).exit_code
        journey = journeys[-1]
        site.proxy.plan = lambda _: None
        finished = 1
        if pending := list(here.glob("adk_eval_pending/*")):
            (waiting,) = [found for found in journey.runs() if found.info.run_id == pending[0].name]
            assert waiting.data.tags["adk_eval.status"] == "pending"
            assert f"mlflow-adk-eval upload adk_eval_pending/{pending[0].name}" in waiting.data.tags["mlflow.note.content"]
            sound(invoke("upload", pending[0], "--tracking-uri", site.uri), 0)
            pending[0].rename(here / f"uploaded_{pending[0].name}")
        elif code:  # it came to nothing, or only its version was not registered
            finished = 1 + [found.data.tags["adk_eval.status"] for found in journey.runs()].count("complete")
            sound(journey.run(), 0)
        journey.check_run(finished=finished)
        assert len(journey.versions()) == (0 if code and pending else 1)


def test_upload(site: Site, here: Path) -> None:
    journeys: list[tuple[Journey, Path]] = []

    def prepare() -> Path:
        journey = Journey(site, here)
        before, site.proxy.plan = site.proxy.plan, lambda request: "503" if "/artifacts/adk_eval" in request.path else None
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a server that has just started may refuse one
            patch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
            result = sound(journey.run(), 3)
        folders = list(here.glob("adk_eval_pending/*"))
        assert len(folders) == 1, result.stderr
        (folder,) = folders
        kept = folder.rename(here / folder.name)
        site.proxy.plan = before
        site.proxy.seen.clear()
        journeys.append((journey, kept))
        return kept

    def call() -> Result:
        return invoke("upload", prepare(), "--tracking-uri", site.uri)

    for _, _, upload in spoilt(site, 1, call, "upload"):
        code = sound(upload(), 0, 3).exit_code
        site.proxy.plan = lambda _: None
        journey, folder = journeys[-1]
        if code:
            sound(invoke("upload", folder, "--tracking-uri", site.uri), 0)
        journey.check_run()


def test_gate(site: Site, here: Path) -> None:
    journey = Journey(site, here)
    run_id = json.loads(sound(journey.run(), 0).stdout)["run_id"]

    def call() -> Result:
        return invoke("gate", run_id, "--tracking-uri", site.uri)

    for _, _, gate in spoilt(site, 1, call, "gate"):
        sound(gate(), 0, 3)
        site.proxy.plan = lambda _: None
        sound(gate(), 0)


def test_promote(site: Site, here: Path) -> None:
    evaluated = Journey(site, here)
    run_id = json.loads(sound(evaluated.run(), 0).stdout)["run_id"]
    source = evaluated.client.get_model_version(evaluated.name, "1").source
    names: list[str] = []

    def call() -> Result:
        names.append(f"promoted_{uuid4().hex[:12]}")
        evaluated.client.create_registered_model(names[-1])
        evaluated.client.create_model_version(names[-1], source, model_id=source.removeprefix("models:/"))
        return again()

    def again() -> Result:
        return invoke("promote", names[-1], "--version", 1, "--run-id", run_id, "--wait", 0, "--tracking-uri", site.uri)

    for _, _, promote in spoilt(site, 2, call, "promote"):
        code = sound(promote(), 0, 3).exit_code
        site.proxy.plan = lambda _: None
        if code:
            sound(again(), 0)
        (found,) = audit(names[-1], tracking_uri=site.uri)
        assert found.valid, found.reasons
        assert (found.version, found.notes) == ("1", ())
        check_claims(evaluated, names[-1])


def check_claims(journey: Journey, model: str) -> None:
    """Check that nothing is left of how the claim log was made, and that each claim has ended."""
    experiments = [found for found in journey.client.search_experiments() if found.name.startswith(claims_experiment(model))]
    assert [found.name for found in experiments] == [claims_experiment(model)]
    (run,) = journey.client.search_runs([experiments[0].experiment_id])
    assert run.info.status == "FINISHED"
    claims = MlflowStore(journey.site.server.uri).claim_log(model, "champion")
    assert not claims.skipped
    assert not any(entry.pending for entry in claims.entries)
