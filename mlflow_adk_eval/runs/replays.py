"""How much of an evaluation was answered from a recording, counted in its conversations, and where these contradict its world.

The world of a run says how it was used. Each answer that came from a recording is an injection of its conversation, so the two can be held
against each other. Calls within an agent that is a tool leave no event of their own, but an injection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlflow_adk_eval.evalset.conversation import STEERING
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.evalset.world import WORLD_FILE, world_digest
from mlflow_adk_eval.results.outcomes import Scored
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.manifest import FOLDER

WORLD, REPLAY, WORLD_RUN = "adk_eval.world", "adk_eval.replay", "adk_eval.world_run"
"""The parameters that hold the digest of the world that a run met, how it used that (``strict, models``), and which run holds its calls."""
HERE, UNKNOWN = "this run", "in a recording"
"""The value of `WORLD_RUN` of a run that holds them itself, and of `REPLAY` where a recording holds replayed answers without their world."""


@dataclass(slots=True)
class Replays:
    """How many tool calls and requests to the agent's models there were, and how many of them a recording answered."""

    calls: int = 0
    replayed: int = 0
    live: str = ""
    """The first call of a finished conversation that only the tool can have answered, as part of a sentence; empty: there is none."""
    requests: int | None = 0
    """``None``: they cannot be counted."""
    replayed_requests: int = 0

    @property
    def tools(self) -> str:
        """How many tool calls were replayed, as part of a sentence."""
        return f"{self.replayed:,} of {self.calls:,} tool calls"

    @property
    def models(self) -> str:
        """How many requests to models were replayed, likewise."""
        among = "an unknown number of" if self.requests is None else f"{self.requests:,}"
        return f"{self.replayed_requests:,} of {among} requests to the agent's model"


def replays_of(report: Report) -> Replays:
    """Return how much a recording answered; where there is no world, nothing was, and nothing is counted."""
    found, requests = Replays(), list[int | None]()
    known: Replays | None = report.cases.memo.get(Replays)
    if report.world is None or known:
        return known or found
    for case in map(report.cases.loaded, range(len(report.cases))):
        own = STEERING.union(*(turn.app_details.agent_details for turn in case.actual if turn.app_details))
        made = [(index, call.name or "") for index, turn in enumerate(case.actual) for call in turn.tool_calls]
        made += [(one.turn, one.tool) for one in case.conversation.inner_calls or () if not one.unseen]
        called = Counter(call for call in made if call[1] not in own)
        answered = Counter[tuple[int, str]]()
        requests += map(_requests, case.actual)
        for one in case.conversation.injections:
            found.replayed += one.kind == "replayed"
            found.replayed_requests += one.kind == "replayed_model"
            answered[one.invocation_index, one.tool] += one.kind not in ("latency", "replayed_model")
        found.calls += (called | answered).total()
        live = () if case.error else called - answered  # a call that nobody may make breaks the conversation off
        found.live = found.live or next((f"{tool} in turn {turn + 1} of {report.label(case)}" for turn, tool in live), "")
    seen = [count for count in requests if count is not None]
    # Where more were replayed than events show, some were within an agent that is a tool.
    found.requests = sum(seen) if len(seen) == len(requests) and sum(seen) >= found.replayed_requests else None
    report.cases.memo[Replays] = found
    return found


def _requests(turn: Invocation) -> int | None:
    """Return how many requests to models a turn took; ``None``: its events do not show all of them."""
    from mlflow_adk_eval.criteria.efficiency import inference_calls  # noqa: PLC0415 - only runs with a world need it

    counted = inference_calls(turn)
    said = [event for event in turn.events if event.content and event.content.role != "user"]
    unseen = any(event.usage_metadata is None and event.model_version is None for event in said)
    return int(counted.score) if isinstance(counted, Scored) and not unseen and (counted.score or not turn.final_response) else None


def replay_problems(params: Mapping[str, str], report: Report) -> Iterator[str]:
    """Yield where the parameters and the conversations of a run contradict its world."""
    world, found = report.world, replays_of(report)
    there = {WORLD: world.digest, REPLAY: world.mode} if world else {}
    said = f"{FOLDER}/{WORLD_FILE} says {there.get(REPLAY)}, but"
    if world is None and params.get(REPLAY) == UNKNOWN:
        yield "answers in its recording were replayed, but nothing says from which world: evaluate the agent itself with --replay"
        return
    for name in (WORLD, REPLAY):
        if params.get(name) != there.get(name):
            yield f"the run's parameter {name} is {params.get(name)!r}, but {FOLDER}/{WORLD_FILE} gives {there.get(name)!r}"
    if world and world.recorded and (actual := world_digest(world.recorded)) != world.digest:
        yield f"the digest of the calls in {FOLDER}/{WORLD_FILE} is {actual[:19]}…, but it says {world.digest[:19]}…"
    if world and world.tools == "strict" and found.live and not found.replayed:
        yield f"{said} none of {found.calls:,} tool calls was answered from a recording, such as {found.live}"
    if world and world.tools == "record" and found.replayed:
        yield f"{said} {found.replayed:,} tool calls were answered from a recording"
    if world and not world.models and found.replayed_requests:
        yield f"{said} {found.replayed_requests:,} requests to the agent's model were answered from a recording"
