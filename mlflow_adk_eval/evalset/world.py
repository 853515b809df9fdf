"""The world of an evaluation: what tools and models answered in it, so that the next evaluation can meet the same.

A `World` is a recording without its turns. The digest is that of the calls alone, so a world is the same one whoever recorded it, and when.
As a file or an artifact, `world.json`, it also says how the evaluation that logged it used it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mlflow_adk_eval.evalset.conversation import WORLD, RecordedCase, RecordedRun, RecordedSet, json_of, world_of
from mlflow_adk_eval.evalset.models import Json, Model, json_sha256
from mlflow_adk_eval.evalset.parse import parse

WORLD_FILE = "world.json"
"""What the artifact of a run is called."""
WORLD_MARK = b'"adk_eval_world"'
"""The key that marks a file as a world."""
ToolsMode = Literal["strict", "live", "record"]
"""*strict*: a call that was never recorded is an error; *live*: it is made, and recorded; *record*: all calls are made, and recorded."""


class World(Model, extra="forbid"):
    """What answered an agent's calls, and how an evaluation used it."""

    adk_eval_world: Literal[1] = 1
    tools: ToolsMode
    models: bool = False
    """Whether recorded answers of the agent's own models were used."""
    digest: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
    """Of all calls: those that were given, and those that were added."""
    run_id: str = ""
    """The MLflow run that holds the calls; empty where they are here."""
    recorded: RecordedSet | None = None
    """The calls, by case and run, without the turns; ``None`` where another run holds them."""

    @property
    def mode(self) -> str:
        """How it was used, in plain words: ``strict, models``."""
        return f"{self.tools}, models" if self.models else self.tools


def without_turns(recorded: RecordedSet) -> RecordedSet:
    """Return the world of a recording: its cases with calls, without what was said."""
    worlds = {case.eval_id: [world_of(run) for run in case.runs] for case in recorded.cases}
    runs = {eval_id: tuple(RecordedRun(invocations=(), **one) for one in known) for eval_id, known in worlds.items() if any(known)}
    return recorded.model_copy(update={"cases": tuple(RecordedCase(eval_id=eval_id, runs=known) for eval_id, known in runs.items())})


def world_digest(recorded: RecordedSet) -> str:
    """Return ``sha256:<hex>`` of the calls of a recording."""
    how: Json = {"mode": "json", "fallback": json_of, "include": set(WORLD), "exclude_defaults": True}
    calls = sorted((case.eval_id, [run.model_dump(**how) for run in case.runs]) for case in without_turns(recorded).cases)
    return f"sha256:{json_sha256(calls)}"


def parse_world(text: bytes, source: str) -> World:
    """Return the world in `text`.

    Raises:
        EvalSetError: with every problem of the text.
    """
    return parse(World, text, source)
