"""Agents behind an address as versions: what their cards say, before the run and after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mlflow import MlflowClient

from mlflow_adk_eval import A2AAgent, Report, UsageError, evaluate, gate
from tests.agents.http.http_kit import A2AServer, echo_a2a
from tests.judge.servers import Call, Server, serving
from tests.tracking.small import eval_set, turn

CASES = eval_set({"one": [turn("hello", "hello")], "two": [turn("bye", "bye")]})
CONFIG = {"criteria": {"response_match_score": 0.5}}


class Deployed(A2AServer):
    """An agent whose card may change while it talks."""

    then: dict[str, Any] = {}  # noqa: RUF012 - set by a test, of its own

    def __call__(self, call: Call) -> Any:
        answer = super().__call__(call)
        if call.method == "POST":
            self.card = {**self.card, **self.then}
        return answer


@pytest.fixture
def agent() -> Deployed:
    return Deployed(echo_a2a, card={"version": "1.4.0"})


@pytest.fixture
def server(agent: Deployed) -> Iterator[Server]:
    with serving(agent) as running:
        yield running


def evaluated(server: Server, store: str, **options: Any) -> Report:
    return evaluate(CASES, A2AAgent(server.url, name="home", attempts=1), CONFIG, tracking_uri=store, **options)


def version_of(store: str, report: Report) -> Any:
    client = MlflowClient(store)
    return client.get_logged_model(client.get_run(report.run_id).data.params["adk_eval.model_id"])


def test_another_version_on_the_card_is_another_agent_version(store: str, server: Server, agent: Deployed) -> None:
    first, again = evaluated(server, store), evaluated(server, store)
    model = version_of(store, first)
    assert (model.name, model.params["adk_eval.agent.said_version"]) == ("home@1_4_0", "1.4.0")
    assert version_of(store, again).model_id == model.model_id
    assert first.notes == ()
    assert gate(first.run_id, tracking_uri=store).passed
    agent.card = {"version": "1.5.0"}
    assert version_of(store, evaluated(server, store)).model_id != model.model_id
    with pytest.raises(UsageError, match=r"reported version 1\.4\.0, but this one is behind .*version 1\.5\.0"):
        evaluated(server, store, agent_version=model.model_id)
    agent.card = {"version": "1.4.0"}
    assert version_of(store, evaluated(server, store, agent_version=model.model_id)).model_id == model.model_id


@pytest.mark.parametrize("said", [None, "", 7, ["1"]])
def test_a_card_without_a_version_is_an_address(store: str, server: Server, agent: Deployed, said: Any) -> None:
    agent.card = {"version": said}
    report = evaluated(server, store)
    model = version_of(store, report)
    assert (model.name, "adk_eval.agent.said_version" in model.params) == ("home", False)
    assert report.verdict == "passed"


@pytest.mark.parametrize("before", ["1.4.0", ""])
def test_a_version_that_changes_meanwhile_is_told_and_no_evidence(store: str, server: Server, agent: Deployed, before: str) -> None:
    agent.card, agent.then = {"version": before}, {"version": "1.5.0"}
    report = evaluated(server, store)
    (note,) = report.notes
    assert note.startswith(f"the agent reported {f'version {before}' if before else 'no version'} before the evaluation and version 1.5.0")
    tags = MlflowClient(store).get_run(report.run_id).data.tags
    assert tags["adk_eval.status"] == "agent_changed"
    assert note[:40] in tags["mlflow.note.content"]
    decision = gate(report.run_id, tracking_uri=store, raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert any("agent's version changed during the evaluation" in reason for reason in decision.reasons)


def test_an_agent_that_is_down_is_evaluated_as_such(store: str) -> None:
    report = evaluate(CASES, A2AAgent("http://127.0.0.1:9", name="home", attempts=1), CONFIG, tracking_uri=store)
    assert report.verdict == "undecided"
    assert version_of(store, report).name == "home"
