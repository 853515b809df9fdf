"""Models that play users by a script, scenarios for them, and evaluations of what comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mlflow_adk_eval.agents.functions import CallableAgent, Session
from mlflow_adk_eval.agents.protocol import Agent
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.evalset.models import ConversationScenario, EvalCase, EvalSet
from mlflow_adk_eval.judge.setup import JudgeOptions, JudgeSetup
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, run
from mlflow_adk_eval.testing import Answer, Request, ScriptedJudge

STOP = "</finished>"
CRITERIA = {"tool_call_count_v1": 100}
"""A criterion that needs no reference and no judge."""
QUICK = JudgeOptions(attempts=1, outage_s=0.2)

Spoken = Answer | Exception


def says(message: str = "", *, finished: bool = False, reason: str = "so it goes") -> Answer:
    """An answer as it is asked for."""
    return Answer(text=json.dumps({"reason": reason, "finished": finished, "message": message}, ensure_ascii=False))


ENDS = says(finished=True, reason="all done")


def turn_of(request: Request) -> int:
    """How many turns there were before a request."""
    return sum("user" in json.loads(line) for line in request.blocks["conversation"].split("\n"))


def player(*lines: Spoken, **told: Any) -> ScriptedJudge:
    """A model that says one line after the other, by turn, whichever conversation it is; after the last one, that it is over."""
    return ScriptedJudge(lambda request: (*lines, ENDS)[min(turn_of(request) - 1, len(lines))], **told)


def in_order(*answers: Spoken, **told: Any) -> ScriptedJudge:
    """A model that gives one answer after the other, whatever the turn is."""
    listed = iter(answers)
    return ScriptedJudge(lambda _: next(listed, ENDS), **told)


def scenario(eval_id: str = "c", *, prompt: str = "hi", plan: str = "Ask for rain, then stop.", persona: Any = None) -> EvalCase:
    told = ConversationScenario(starting_prompt=prompt, conversation_plan=plan, user_persona=persona)
    return EvalCase(eval_id=eval_id, conversation_scenario=told)


def echo(text: str, session: Session) -> Mapping[str, Any]:
    """Answer, and say that nothing was called."""
    return {"final_response": f"echo {text}", "intermediate_data": {}}


def evaluated(
    user: Any,
    *cases: EvalCase,
    agent: Agent | Callable[..., Any] = echo,
    criteria: Mapping[str, Any] | None = None,
    runs: int = 1,
    judges: JudgeSetup | None = None,
    **settings: Any,
) -> Report:
    """Return the report on conversations between `user` and an agent; `settings` are those of the config's user simulator."""
    config = parse_config({"criteria": criteria or CRITERIA, "user_simulator_config": settings}, "config")
    spoken_with = CallableAgent(function=agent, name="fn") if callable(agent) else agent
    options = Options(num_runs=runs, user_simulator=user, judges=judges or JudgeSetup(options=QUICK))
    return run(EvalSet(eval_set_id="s", eval_cases=cases or (scenario(),)), spoken_with, config, options)


def result(report: Report) -> CaseResult:
    (found,) = report.cases
    return found


def said(found: CaseResult | Report) -> list[str]:
    """What the user said, in order."""
    case = result(found) if isinstance(found, Report) else found
    return [turn.user_text for turn in case.actual]


def ending(found: CaseResult | Report) -> tuple[str, str]:
    """Why a conversation ended."""
    case = result(found) if isinstance(found, Report) else found
    assert case.ending is not None
    return case.ending.reason, case.ending.detail
