"""Attack 27: say that another world was met, or another share of it, than the run shows; or choose it in what the candidate writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.recordings import recording_of_report
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.errors import ConfigError
from mlflow_adk_eval.evalset.world import World
from mlflow_adk_eval.runs.examined import ReadableRun, examine
from mlflow_adk_eval.runs.manifest import Evidence
from mlflow_adk_eval.tracking.bundle import evidence_of_report
from tests.gating.gate_kit import decide_on, with_artifact
from tests.tracking.small import CONFIG, rooms
from tests.tracking.worlds import replayed, world

OTHER = world(answer="refused")


def saying(evidence: Evidence, **fields: Any) -> Evidence:
    """Return the evidence with a world that says something else, and with a manifest for it."""
    said = json.loads(evidence.artifacts["world.json"]) | fields
    return with_artifact(evidence, "world.json", json.dumps(said).encode())


def claiming(evidence: Evidence, met: World) -> Evidence:
    """Return the evidence with another world, and with the parameters of that: what somebody who may write runs can make of one."""
    params = {**evidence.params, "adk_eval.world": met.digest, "adk_eval.replay": met.mode}
    return saying(replace(evidence, params=params), **met.model_dump(mode="json", exclude_none=True))


def replaced_alone(evidence: Evidence) -> Evidence:
    return replace(evidence, artifacts={**evidence.artifacts, "world.json": OTHER.model_dump_json().encode()})


@pytest.mark.parametrize(
    ("attack", "problem"),
    [
        (replaced_alone, "the artifact adk_eval/world.json was changed after the run"),
        (lambda run: saying(run, **OTHER.model_dump(mode="json")), "the run's parameter adk_eval.world is 'sha256:"),
        (lambda run: saying(run, recorded=OTHER.model_dump(mode="json")["recorded"]), "the digest of the calls in adk_eval/world.json is sha256:"),
        (lambda run: with_artifact(run, "world.json", None), "the run's parameter adk_eval.replay is 'strict', but adk_eval/world.json gives None"),
        (lambda run: saying(run, models=True), "the run's parameter adk_eval.replay is 'strict', but adk_eval/world.json gives 'strict, models'"),
        (lambda run: claiming(run, world("record")), "adk_eval/world.json says record, but 3 tool calls were answered from a recording"),
        (lambda run: with_artifact(run, "world.json", b"{" * 5000), "adk_eval/world.json cannot be read"),
        (lambda run: saying(run, tools="lenient"), "adk_eval/world.json cannot be read"),
        (lambda _: claiming(evidence_of_report(replayed(world("record"))), world()), "says strict, but none of 3 tool calls was answered from a"),
        (lambda _: evidence_of_report(replayed(world(), "root")), "says strict, but 3 requests to the agent's model were answered from a recording"),
    ],
)  # fmt: skip
def test_a_world_that_the_run_contradicts_is_no_evidence(attack: Callable[[Evidence], Evidence], problem: str) -> None:
    honest = evidence_of_report(replayed(world()))
    assert decide_on(honest).passed
    decision = decide_on(attack(honest))
    assert decision.verdict == "undecided"
    assert problem in "\n".join(decision.reasons)


def test_answers_of_a_recording_that_was_made_in_a_world_do_not_pass_for_real_ones() -> None:
    laundered = adk_eval.score(rooms(), recording_of_report(replayed(world(models=True), "root")), CONFIG)
    assert laundered.world is None
    run = examine(evidence_of_report(laundered))
    assert isinstance(run, ReadableRun)
    why = "answers in its recording were replayed, but nothing says from which world: evaluate the agent itself with --replay"
    assert run.problems == (why,)


@pytest.mark.parametrize("mode", [{"tools": "live"}, {"mode": "record"}, {"source": "runs:/1"}, {"models": True}])
def test_a_config_does_not_choose_what_is_replayed(mode: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"\$\.replay\.{next(iter(mode))}"):
        parse_config(CONFIG | {"replay": mode}, "config")
