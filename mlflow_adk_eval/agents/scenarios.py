"""Conversation scenarios that a model writes for an agent, from what the agent is told and which tools it has.

ADK's generator asks a service of Vertex AI for the same and writes the same: scenarios with a starting prompt, a plan and a persona. Here any model that answers
by a JSON schema does. What it wrote is tagged `GENERATED` until a person has accepted it, and so long it is no evidence to the gate.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.agents.adk.agent import AdkAgent
from mlflow_adk_eval.agents.functions import CallableAgent
from mlflow_adk_eval.agents.protocol import Agent
from mlflow_adk_eval.config.surroundings import UserSimulatorConfig
from mlflow_adk_eval.errors import JudgeError, UsageError
from mlflow_adk_eval.evalset.models import PERSONAS, ConversationScenario, EvalCase, json_sha256
from mlflow_adk_eval.judge.client import CallResult
from mlflow_adk_eval.judge.prompt import Block, load_prompt
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.providers.resolve import resolve_judge
from mlflow_adk_eval.judge.question import decoded, object_of
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeSetup, OneJudge
from mlflow_adk_eval.judge.user_model import UserModel
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.text import numbered

GENERATED = "generated"
"""The tag of a case that a model has written and no person has accepted."""
_ROUNDS = 3
"""How often a model is asked that repeats itself, or answers with too little."""
_LONGEST_ID = 40
_WORD = re.compile(r"\W+")

_TEXT = {"type": "string"}
_SCENARIO = object_of({"starting_prompt": _TEXT, "conversation_plan": _TEXT, "user_persona": {**_TEXT, "enum": list(PERSONAS)}})
_SCHEMA = object_of({"scenarios": {"type": "array", "items": _SCENARIO}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a model has written."""

    cases: tuple[EvalCase, ...]
    """Distinct, and tagged `GENERATED`."""
    usage: JudgeUsage
    problem: str = ""
    """Why there are fewer than were wished for; empty where there are not."""


async def generated_cases(
    agent: Agent, model: OneJudge, setup: JudgeSetup, *, count: int, instruction: str = "", context: str = ""
) -> Generated:
    """Return cases that a model writes for an agent, at most as many as are wished for.

    What was written before the budget was spent, or the model failed, is kept.

    Args:
        agent: an agent of google-adk, or a function; of others, nothing is known but the instruction.
        model: a model's name, a judge, or a function from a request to the JSON that is asked for.
        setup: the budget, and the opened ledger. An answer that it holds is used again if it can be read.
        count: how many are wished for.
        instruction: what they are to be about; empty: whatever the agent does.
        context: what the agent's tools find, so that people ask for what there is; empty: nothing is known.

    Raises:
        JudgeError: if the model cannot be had, or writes nothing that can be used.
        UsageError: if nothing is known of the agent.
    """
    description = description_of(agent)
    if not (description or instruction):
        raise UsageError(f"nothing describes what {agent.name} does; set --instruction")
    judge = resolve_judge(model)
    session = JudgeSession(setup)
    writer = session.user_model(UserSimulatorConfig(), judge)
    scenarios: dict[str, ConversationScenario] = {}
    problem = ""
    try:
        for place in range(_ROUNDS):
            given, missing = (json.dumps(one.starting_prompt, ensure_ascii=False) for one in scenarios.values()), count - len(scenarios)
            known = {"agent": description, "wanted": instruction, "known": context, "written": "\n".join(given), "count": str(missing)}
            blocks = tuple(Block(name, text) for name, text in known.items() if text)
            result = await _asked(writer, blocks, place, again=bool(problem))
            if result.answer is None:
                problem = result.error.replace("the simulated user's model", "the model")
                break
            written, failure = _read(result.answer)
            problem = failure or problem
            for one in written:
                scenarios.setdefault(_WORD.sub(" ", one.starting_prompt.casefold()).strip(), one)
            if len(scenarios) >= count:
                break
        usage = session.simulating() or JudgeUsage()
    finally:
        await session.aclose()
        await judge.aclose()
    if not scenarios:
        raise JudgeError(f"{judge.model} wrote no scenario: {problem or 'the list is empty'}")
    chosen = list(scenarios.values())[:count]
    named = zip(case_ids(one.starting_prompt for one in chosen), chosen, strict=True)
    cases = (EvalCase.model_validate({"eval_id": name, "conversation_scenario": one, "tags": [GENERATED]}) for name, one in named)
    return Generated(cases=tuple(cases), usage=usage, problem="" if len(chosen) == count else problem or "the model repeated itself")


async def _asked(writer: UserModel, blocks: tuple[Block, ...], place: int, *, again: bool) -> CallResult:
    """Ask for scenarios, or take what the ledger holds for the same question."""
    prompt = load_prompt("scenarios")
    address = await writer.identity.address(writer.settings)
    question = [address, prompt.sha256, [[block.name, block.text] for block in blocks], _SCHEMA, place]
    return await writer.client.request(
        lambda: writer.judge.ask(prompt.request(blocks, _SCHEMA, writer.settings, again=again)),
        json_sha256(question) if address else None,
        may_reuse=lambda answer: bool(_read(answer)[0]),
    )


def _read(answer: Answer) -> tuple[list[ConversationScenario], str]:
    """Return the scenarios of an answer that can be used, and why it has none if it is nothing of the kind, with what the provider says of that."""
    try:
        value = decoded(answer.text)[0]
    except ValueError as error:
        return [], answer.why(str(error))
    written = value.get("scenarios") if isinstance(value, dict) else None
    if not isinstance(written, list):
        return [], answer.why("the answer contains no list of scenarios")
    scenarios: list[ConversationScenario] = []
    for one in written:
        given: dict[str, Any] = one if isinstance(one, dict) else {}
        prompt, plan, persona = (given.get(name) for name in _SCENARIO["properties"])
        if isinstance(prompt, str) and prompt.strip() and isinstance(plan, str) and plan.strip() and persona in PERSONAS:
            scenarios.append(ConversationScenario(starting_prompt=prompt.strip(), conversation_plan=plan.strip(), user_persona=persona))
    return scenarios, ""


def description_of(agent: Agent) -> str:
    """Return what an agent is told and which tools it has, as JSON; empty where nothing is known."""
    root: Any = agent.root if isinstance(agent, AdkAgent) else None
    root = getattr(root, "root_agent", None)
    if root is not None:
        return json.dumps(_agent(root), ensure_ascii=False, indent=1)
    words = inspect.getdoc(agent.function) if isinstance(agent, CallableAgent) else None
    return json.dumps({"name": agent.name, "description": words}, ensure_ascii=False) if words else ""


def _agent(agent: Any) -> dict[str, Any]:
    """Return what google-adk's agents, of whatever kind, say of themselves; instructions that are functions say nothing yet."""
    facts = {name: getattr(agent, name, None) for name in ("name", "description", "instruction", "global_instruction")}
    known: dict[str, Any] = {name: text for name, text in facts.items() if isinstance(text, str) and text}
    if tools := [_tool(tool) for tool in getattr(agent, "tools", None) or ()]:
        known["tools"] = tools
    if sub_agents := [_agent(below) for below in getattr(agent, "sub_agents", None) or ()]:
        known["sub_agents"] = sub_agents
    return known


def _tool(tool: Any) -> dict[str, str]:
    function = tool if inspect.isroutine(tool) else getattr(tool, "func", None)
    facts = {
        "name": getattr(tool, "name", None) or getattr(tool, "__name__", None) or type(tool).__name__,
        "parameters": str(inspect.signature(function)) if function else "",
        "description": getattr(tool, "description", None) or inspect.getdoc(tool),
    }
    return {name: text for name, text in facts.items() if isinstance(text, str) and text}


def case_ids(texts: Iterable[str]) -> Iterator[str]:
    """Yield an id for each text, made of its words.

    >>> list(case_ids(["When are you open?", "when are you OPEN", "?"]))
    ['when_are_you_open', 'when_are_you_open_2', 'case']
    """
    taken: set[str] = set()
    for text in texts:
        words = _WORD.sub("_", text.lower()).strip("_")[:_LONGEST_ID].rstrip("_") or "case"
        name = numbered(words, taken)
        taken.add(name)
        yield name
