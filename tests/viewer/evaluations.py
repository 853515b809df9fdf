"""A store for the tests of the viewer: three runs on one eval set by two versions, and one whose every text is somebody's attack.

And four runs of which each has something to say at a glance, by four versions of one agent: `v_good` passed and is the champion, `v_crash` did
not finish three of eleven cases, `v_undecided` met a judge that was down for four, and `v_regressed` does four cases wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.evalset.files import load_eval_set
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import Request, ScriptedJudge, answer_for
from tests.analysis.calibrated import MATCH
from tests.report.pages import ATTACKS, CONFIG, rooms
from tests.tracking.small import answering, eval_set, turn

EXPERIMENT, OTHER, LARGE, HOME = "rooms nightly", "attacks", "many turns", "home"
HOME_CONFIG = {
    "criteria": {
        "tool_trajectory_avg_score": {"threshold": 1.0, "match_type": "EXACT"},
        "response_match_score": 0.8,
        MATCH: {"threshold": 0.8, "judge_model_options": {"judge_model": "gemini-2.5-flash", "num_samples": 1}},
    }
}
HOME_SET = load_eval_set(Path(__file__).parents[2] / "example_projects" / "home_automation" / "home_automation.evalset.json")
TIMED_OUT = "thermostat service timed out after 30 s"
WRONG: dict[str, dict[str, Any]] = {
    "turn_off_light": turn("", "Done.", ("set_device_info", {"device_id": "device_2", "status": "off"})),
    "already_off": turn("", "device_4 is off now.", ("set_device_info", {"device_id": "device_4", "status": "off"})),
    "unknown_device": turn("", "There is no device_99.", ("set_device_info", {"device_id": "device_99", "status": "on"})),
    "set_temperature": turn("", "I have set the Bedroom to 12 degrees.", ("set_temperature", {"room": "Bedroom", "temperature": 12})),
}
WRONG["set_temperature"]["intermediate_data"] |= {
    "tool_responses": [{"name": "set_temperature", "response": {"log": "heating " * 40}}],
    "intermediate_responses": [["home", [{"text": "One moment, please."}]]],
}
"""What `v_regressed` does. The answer about the unknown device is right, and the one about the temperature is so in all words but one."""


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

    def agent(text: str, _: Any) -> Any:
        came = {
            "tool_responses": [{"name": text[:60], "response": {text[:60]: text}}],
            "intermediate_responses": [[text[:60], [{"text": text}]]],
        }
        return turn(text, f"{text} and {more}") | {"intermediate_data": came}

    config = {"criteria": {"response_match_score": 1.0, "tool_trajectory_avg_score": 1.0}}
    run = adk_eval.evaluate(cases, agent, config, experiment=OTHER, tracking_uri=store, run_name=ATTACKS[0], traces=False, ledger=False)
    return run.run_id or ""


def large(store: str, count: int = 260) -> str:
    """Log a run of more than a thousand turns, or of `count` cases, of which every eleventh case failed, and return its id."""
    names = [f"case {number:03}" for number in range(count)]
    cases = eval_set({name: [turn(f"{name}, {index}?", f"{name} answers {index}") for index in range(4)] for name in names}, "many")

    def agent(text: str, _: Any) -> str:
        name, _, index = text.removesuffix("?").partition(", ")
        return "no idea" if int(name[-3:]) % 11 == 7 else f"{name} answers {index}"

    config = {"criteria": {"response_match_score": 0.5}}
    options: dict[str, Any] = {"experiment": LARGE, "tracking_uri": store, "run_name": "large", "traces": False, "ledger": False}
    return adk_eval.evaluate(cases, agent, config, **options).run_id or ""


def expected(session: adk_eval.Session) -> Invocation:
    """Return what is expected of the turn that is under way."""
    (case,) = (case for case in HOME_SET.eval_cases if case.eval_id == session.eval_id)
    return (case.conversation or ())[len(session.history)]


def v_good(_text: str, session: adk_eval.Session) -> Invocation:
    return expected(session)


def v_undecided(_text: str, session: adk_eval.Session) -> Invocation:
    return expected(session)


def v_crash(_text: str, session: adk_eval.Session) -> Invocation:
    if any(call.name == "set_temperature" for call in expected(session).tool_calls):
        raise ConnectionError(TIMED_OUT)
    return expected(session)


def v_regressed(_text: str, session: adk_eval.Session) -> Any:
    return WRONG.get(session.eval_id) or expected(session)


def matches(request: Request) -> Any:
    """Say whether an answer is word for word what was expected."""
    same = request.blocks["response"] == request.blocks["reference"]
    return answer_for(request, "valid" if same else "invalid", rationale=f"The response {'says' if same else 'does not say'} the same.")


def down(request: Request) -> Any:
    """Do not answer about the bedroom."""
    if "Bedroom" in request.text:
        raise ConnectionError("the judge is down")
    return matches(request)


def home(store: str) -> dict[str, str]:
    """Log a run of each version, register and promote the good one, refuse the regressed one, and return the ids by the agents' names."""
    options: dict[str, Any] = {"experiment": HOME, "tracking_uri": store, "ledger": False}
    runs = {
        agent.__name__: adk_eval.evaluate(HOME_SET, agent, HOME_CONFIG, judge=ScriptedJudge(judge, model="words"), **options)
        for agent, judge in ((v_good, matches), (v_crash, matches), (v_undecided, down), (v_regressed, matches))
    }
    for name in ("v_good", "v_regressed"):
        version = adk_eval.register(runs[name], HOME, tracking_uri=store)
        adk_eval.promote(HOME, version, run_id=runs[name], raise_on_failure=False, tracking_uri=store)
    return {name: report.run_id or "" for name, report in runs.items()}
