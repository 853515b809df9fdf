"""How many functions and files of the package a user's action goes through: `python benchmarks/journeys.py [JOURNEY]...`.

Someone who wants to change what an action does has to know what it passes on its way. Each journey is the smallest one of its kind
(one case, one turn, one criterion) on a SQLite store of its own; what is prepared before it is not counted. A function counts once,
however often it is called, and whatever the environment's variables are. The depth is the largest number of the package's functions that
are inside each other. The command fails where a journey goes through more than `BUDGETS` allow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import mlflow_adk_eval

_PACKAGE = f"{Path(mlflow_adk_eval.__file__).parent}{os.sep}"
_CASE: dict[str, Any] = {
    "eval_id": "light",
    "conversation": [
        {
            "user_content": {"role": "user", "parts": [{"text": "light on"}]},
            "final_response": {"role": "model", "parts": [{"text": "the light is on"}]},
        }
    ],
}
_EVAL_SET: dict[str, Any] = {"eval_set_id": "rooms", "eval_cases": [_CASE]}
_COMPUTED = {"criteria": {"response_match_score": 0.5}}
_JUDGED = {"criteria": {"final_response_match_v2": {"threshold": 0.5, "judge_model_options": {"num_samples": 1}}}}


@dataclass
class Journey:
    """What was entered between `start` and `stop`, in all threads."""

    functions: set[tuple[str, str, int]] = field(default_factory=set)
    """By file, name and line."""
    depth: int = 0
    _here: threading.local = field(default_factory=threading.local)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of a call or a return."""
        code = frame.f_code
        if event not in {"call", "return"} or not code.co_filename.startswith(_PACKAGE) or code.co_name.startswith("<"):
            return
        inside = getattr(self._here, "inside", 0) + (1 if event == "call" else -1)
        self._here.inside = max(inside, 0)
        if event == "call":
            self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))
            self.depth = max(self.depth, inside)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Follow what happens within."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def files(self) -> dict[str, list[str]]:
        """The functions by file."""
        found: dict[str, list[str]] = {}
        for file, name, _ in sorted(self.functions):
            found.setdefault(file.removeprefix(_PACKAGE), []).append(name)
        return found


def _answer(text: str, session: Any) -> str:  # noqa: ARG001 - what a callable agent is called with
    return "the light is on"


def _evaluate() -> Callable[[], object]:
    def action() -> object:
        return mlflow_adk_eval.evaluate(_set(), _answer, _COMPUTED, agent_version=version.model_id)

    import mlflow

    mlflow_adk_eval.evaluate(_set(), _answer, _COMPUTED)  # creates the store and loads everything
    version = mlflow.search_logged_models(output_format="list")[0]
    return action


def _gate() -> Callable[[], object]:
    report = mlflow_adk_eval.evaluate(_set(), _answer, _COMPUTED)
    mlflow_adk_eval.gate(report.run_id)
    return lambda: mlflow_adk_eval.gate(report.run_id)


def _vote() -> Callable[[], object]:
    from mlflow_adk_eval.testing import ScriptedJudge

    recorded = {"light": _CASE["conversation"]}
    answered = {"light": [{**_CASE["conversation"][0], "final_response": {"role": "model", "parts": [{"text": "it is on now"}]}}]}
    mlflow_adk_eval.score(_set(), recorded, _JUDGED, ScriptedJudge("valid"), ledger=False)
    return lambda: mlflow_adk_eval.score(_set(), answered, _JUDGED, ScriptedJudge("valid"), ledger=False)


def _scorer() -> Callable[[], object]:
    (scorer,) = mlflow_adk_eval.scorers.from_config(_COMPUTED)

    def action() -> object:
        return scorer(inputs={"messages": "light on"}, outputs="the light is on", expectations={"expected_response": "the light is on"})

    action()
    return action


JOURNEYS: dict[str, tuple[str, Callable[[], Callable[[], object]]]] = {
    "evaluate": ("`evaluate` of one turn with a function as the agent, to a finished run in MLflow", _evaluate),
    "gate": ("`gate` of that run by its own thresholds", _gate),
    "vote": ("`score` of one turn by one vote of a scripted judge", _vote),
    "scorer": ("one call of a scorer of `mlflow.genai`, the second one", _scorer),
}


BUDGETS = {"evaluate": {"functions": 540, "files": 75}, "gate": {"functions": 285, "files": 46}}
"""The most that a journey may go through. Raise one in a commit of its own that says why."""


def exceeded(figures: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for each figure above its budget."""
    return [
        f"{name} goes through {figures[name][kind]} {kind}; its budget in benchmarks/journeys.py is {most}"
        for name, budget in BUDGETS.items()
        if name in figures
        for kind, most in budget.items()
        if figures[name][kind] > most
    ]


def _set() -> Any:
    return mlflow_adk_eval.EvalSet.model_validate(_EVAL_SET)


def journey(name: str) -> Journey:
    """Go on a journey in a folder of its own and return what it went through."""
    found = Journey()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        action = JOURNEYS[name][1]()
        with found.followed():
            action()
    return found


def main(argv: Sequence[str]) -> int:
    """Print the figures of the journeys that the arguments name."""
    told = "\n".join(f"  {name}: {about}" for name, (about, _) in JOURNEYS.items())
    parser = argparse.ArgumentParser(
        prog="benchmarks/journeys.py", description=f"{__doc__}\njourneys:\n{told}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("journeys", nargs="*", metavar="JOURNEY", help="which ones (default: all)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, one object for all")
    parser.add_argument("--list", action="store_true", help="also print the functions by file")
    chosen = parser.parse_args(argv)
    if unknown := [name for name in chosen.journeys if name not in JOURNEYS]:
        parser.error(f"no journey {unknown[0]!r}; there are {', '.join(JOURNEYS)}")
    for variable in os.environ.keys() - {"PATH", "HOME", "TMPDIR"}:  # CI and a password in a URL, for example, take functions of their own
        del os.environ[variable]
    figures = {}
    for name in chosen.journeys or JOURNEYS:
        found = journey(name)
        figures[name] = {"functions": len(found.functions), "files": len(found.files), "depth": found.depth}
        if not chosen.json:
            print(f"{name}: {len(found.functions)} functions in {len(found.files)} files, {found.depth} deep")
        if chosen.list:
            for file, names in found.files.items():
                print(f"  {file} ({len(names)}): {', '.join(names)}", file=sys.stderr if chosen.json else sys.stdout)
    if chosen.json:
        print(json.dumps(figures))
    problems = exceeded(figures)
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
