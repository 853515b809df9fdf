"""Reports of agents whose calls were answered from a recorded world, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.evalset.conversation import Injection, RecordedCall, RecordedCase, RecordedRun, RecordedSet
from mlflow_adk_eval.evalset.world import World, world_digest
from mlflow_adk_eval.results.report import CasesInMemory, Report
from tests.tracking.small import CONFIG, expected_of, rooms


def recorded(answer: Any = "done", calls: int = 1) -> RecordedSet:
    """Return what answers the calls of `rooms`."""
    made = {
        case.eval_id: [
            RecordedCall(turn=index, tool=call.name or "", args=call.args or {}, answer=answer)
            for index, turn in enumerate(case.conversation or ())
            for call in turn.tool_calls * calls
        ]
        for case in rooms().eval_cases
    }
    cases = [RecordedCase(eval_id=name, runs=(RecordedRun(invocations=(), calls=tuple(found)),)) for name, found in made.items()]
    return RecordedSet(cases=tuple(cases))


def world(tools: Any = "strict", answer: Any = "done", **more: Any) -> World:
    calls = recorded(answer)
    return World(**{"tools": tools, "digest": world_digest(calls), "recorded": calls} | more)


def replayed(met: World | None, *injected: str, config: Any = CONFIG, live: tuple[str, ...] = ()) -> Report:
    """Return the report on an agent that does as expected.

    Args:
        met: the world.
        injected: what was answered in the place of models, by agent.
        config: the criteria.
        live: the tools whose calls were made.
    """
    report = adk_eval.score(rooms(), expected_of(rooms()), config)
    cases = []
    for case in report.cases:
        calls = [(index, call.name or "") for index, turn in enumerate(case.actual) for call in turn.tool_calls]
        answered = met is not None and met.tools != "record"
        done = [Injection(invocation_index=index, tool=name, kind="replayed") for index, name in calls if answered and name not in live]
        done += [Injection(invocation_index=0, tool=name, kind="replayed_model") for name in injected]
        cases.append(replace(case, conversation=replace(case.conversation, injections=tuple(done))))
    return replace(report, cases=CasesInMemory(cases), world=met)
