"""A store for the tests of the viewer: three runs on one eval set by two versions, and one whose every text is somebody's attack."""

from __future__ import annotations

from typing import Any

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import Request, ScriptedJudge
from tests.report.pages import ATTACKS, CONFIG, rooms
from tests.tracking.small import answering, eval_set, turn

EXPERIMENT, OTHER, LARGE = "rooms nightly", "attacks", "many turns"


def says(request: Request) -> str:
    """Vote yes, but for one vote of three on an answer about the lamp."""
    return "no" if "is on now" in request.text else "yes"


def evaluated(store: str, agent: Any, name: str, config: dict[str, Any] | None = None) -> Report:
    """Evaluate an agent on the rooms."""
    cases, _ = rooms()
    judge = ScriptedJudge(says, rationale="It says *please*.")
    options: dict[str, Any] = {"experiment": EXPERIMENT, "tracking_uri": store, "run_name": name, "ledger": False}
    return adk_eval.evaluate(cases, agent, config or CONFIG, judge=judge, **options)


def filled(store: str) -> dict[str, str]:
    """Log the runs, and return their ids by name."""
    cases, _ = rooms()
    good, bad = answering(cases), answering(cases, lamp="the lamp in the hall is on now")
    runs = {"first": evaluated(store, good, "first"), "second": evaluated(store, bad, "second"), "third": evaluated(store, good, "third")}
    return {name: report.run_id or "" for name, report in runs.items()}


def hostile(store: str, more: str = "more") -> str:
    """Log a run full of attacks, and return its id."""
    texts = [*ATTACKS, "x" * 1_000_000]
    storable = [text.encode("utf-8", "replace").decode() for text in texts]
    cases = eval_set(
        {f"{number} {text[:200]}": [turn(text, text, (text[:60], {text[:60]: text}))] for number, text in enumerate(storable)}, OTHER
    )

    def agent(text: str, _: Any) -> str:
        return f"{text} and {more}"

    config = {"criteria": {"response_match_score": 1.0, "tool_trajectory_avg_score": 1.0}}
    run = adk_eval.evaluate(cases, agent, config, experiment=OTHER, tracking_uri=store, run_name=ATTACKS[0], traces=False, ledger=False)
    return run.run_id or ""


def large(store: str) -> str:
    """Log a run of more than a thousand turns, of which every eleventh case failed, and return its id."""
    names = [f"case {number:03}" for number in range(260)]
    cases = eval_set({name: [turn(f"{name}, {index}?", f"{name} answers {index}") for index in range(4)] for name in names}, "many")

    def agent(text: str, _: Any) -> str:
        name, _, index = text.removesuffix("?").partition(", ")
        return "no idea" if int(name[-3:]) % 11 == 7 else f"{name} answers {index}"

    config = {"criteria": {"response_match_score": 0.5}}
    options: dict[str, Any] = {"experiment": LARGE, "tracking_uri": store, "run_name": "large", "traces": False, "ledger": False}
    return adk_eval.evaluate(cases, agent, config, **options).run_id or ""
