"""Conversation scenarios that a model writes for an agent, from what the agent is told and which tools it has, and rubrics that it writes for cases.

ADK's generator asks a service of Vertex AI for the same and writes the same: scenarios with a starting prompt, a plan and a persona. Here any model that answers
by a JSON schema does. What it wrote is tagged `GENERATED` until a person has accepted it, and so long it is no evidence to the gate. Rubrics are written once,
into the eval set, and before there is an answer: nothing that an agent answered, nor an expected answer, which may once have been one, has a say in them.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlflow_adk_eval.agents.adk.agent import AdkAgent
from mlflow_adk_eval.agents.functions import CallableAgent
from mlflow_adk_eval.agents.protocol import Agent
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.config.surroundings import UserSimulatorConfig
from mlflow_adk_eval.criteria.rubrics import FINAL_RESPONSE
from mlflow_adk_eval.errors import JudgeError, UsageError
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import PERSONAS, ConversationScenario, EvalCase, json_sha256
from mlflow_adk_eval.judge.prompt import Block, load_prompt
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.providers.resolve import resolve_judge
from mlflow_adk_eval.judge.question import decoded, object_of
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeSetup, OneJudge
from mlflow_adk_eval.judge.user_model import UserModel
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runtime import gathered
from mlflow_adk_eval.text import numbered

GENERATED = "generated"
"""The tag of a case that a model has written and no person has accepted."""
_ROUNDS = 3
"""How often a model is asked that repeats itself, or answers with too little."""
_LONGEST_ID = 40
_WORD = re.compile(r"\W+")

_TEXT = {"type": "string"}
_SCENARIO = object_of({"starting_prompt": _TEXT, "conversation_plan": _TEXT, "user_persona": {**_TEXT, "enum": list(PERSONAS)}})
_SCHEMAS = {name: object_of({name: {"type": "array", "items": items}}) for name, items in (("scenarios", _SCENARIO), ("rubrics", _TEXT))}
"""By what is asked for, which is the prompt's name, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a model has written."""

    cases: tuple[EvalCase, ...]
    """Distinct, and tagged `GENERATED`; or, of the given cases, those that have got rubrics."""
    usage: JudgeUsage
    problem: str = ""
    """Why there are fewer than were wished for; empty where there are not."""


@asynccontextmanager
async def _writing(model: OneJudge, setup: JudgeSetup) -> AsyncGenerator[tuple[UserModel, JudgeSession]]:
    judge = resolve_judge(model)
    session = JudgeSession(setup)
    try:
        yield session.user_model(UserSimulatorConfig(), judge), session
    finally:
        await session.aclose()
        await judge.aclose()


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
    scenarios: dict[str, ConversationScenario] = {}
    problem = ""
    async with _writing(model, setup) as (writer, session):
        for place in range(_ROUNDS):
            given, missing = (json.dumps(one.starting_prompt, ensure_ascii=False) for one in scenarios.values()), count - len(scenarios)
            known = {"agent": description, "wanted": instruction, "known": context, "written": "\n".join(given), "count": str(missing)}
            written, failure = await _asked(writer, "scenarios", known, place, again=bool(problem))
            problem = failure or problem
            if written is None:
                break
            for one in written:
                scenarios.setdefault(_WORD.sub(" ", one.starting_prompt.casefold()).strip(), one)
            if len(scenarios) >= count:
                break
        usage = session.simulating() or JudgeUsage()
    if not scenarios:
        raise JudgeError(f"{writer.judge.model} wrote no scenario: {problem or 'the list is empty'}")
    chosen = list(scenarios.values())[:count]
    named = zip(case_ids(one.starting_prompt for one in chosen), chosen, strict=True)
    cases = (EvalCase.model_validate({"eval_id": name, "conversation_scenario": one, "tags": [GENERATED]}) for name, one in named)
    return Generated(cases=tuple(cases), usage=usage, problem="" if len(chosen) == count else problem or "the model repeated itself")


async def generated_rubrics(
    cases: Sequence[EvalCase], model: OneJudge, setup: JudgeSetup, *, count: int, about: str = "", instruction: str = "", context: str = ""
) -> Generated:
    """Return cases with rubrics for their final responses that a model writes, by what the user says and wants alone.

    What was written before the budget was spent, or the model failed, is kept.

    Args:
        cases: the cases.
        model: as for `generated_cases`.
        setup: as there.
        count: how many rubrics a case gets at most.
        about: what `description_of` says of the agent; empty: nothing is known.
        instruction: what the rubrics are to be about; empty: whatever matters.
        context: what the agent's tools find; empty: nothing is known.

    Raises:
        JudgeError: if the model cannot be had, or writes nothing that can be used.
    """
    known = {"agent": about, "wanted": instruction, "known": context, "count": str(count)}

    async def written_for(case: EvalCase) -> tuple[EvalCase | None, str]:
        said: Any = [turn.user_text for turn in case.conversation or ()]
        if scenario := case.conversation_scenario:
            said = {"starting_prompt": scenario.starting_prompt, "conversation_plan": scenario.conversation_plan}
        written, failure = await _asked(writer, "rubrics", {**known, "case": json.dumps(said, ensure_ascii=False, indent=1)})
        texts = list(dict.fromkeys(written or ()))[:count]
        rubrics = [
            {"rubric_id": name, "rubric_content": {"text_property": text}, "type": CRITERIA[FINAL_RESPONSE].rubric_type}
            for name, text in zip(case_ids(texts), texts, strict=True)
        ]
        plain = dump(case)
        tags = list(dict.fromkeys((*case.tags, GENERATED)))
        found = {"rubrics": [*plain.get("rubrics", ()), *rubrics], "tags": tags} if rubrics else {}
        return EvalCase.model_validate(plain | found) if found else None, failure

    async with _writing(model, setup) as (writer, session):
        found = await gathered(partial(written_for, case) for case in cases)
        usage = session.simulating() or JudgeUsage()
    problem = next((failure for case, failure in found if case is None), "")
    if not (chosen := tuple(case for case, _ in found if case)):
        raise JudgeError(f"{writer.judge.model} wrote no rubric: {problem or 'the list is empty'}")
    return Generated(cases=chosen, usage=usage, problem=problem)


async def _asked(
    writer: UserModel, name: str, known: Mapping[str, str], place: int = 0, *, again: bool = False
) -> tuple[list[Any] | None, str]:
    """Ask for a list, or take what the ledger holds for the same question; ``None`` where the model was not reached, with the reason."""
    address, schema = await writer.identity.address(writer.settings), _SCHEMAS[name]
    prompt, blocks = load_prompt(name), tuple(Block(block, text) for block, text in known.items() if text)
    question = [address, prompt.sha256, [[block.name, block.text] for block in blocks], schema, place]
    result = await writer.client.request(
        lambda: writer.judge.ask(prompt.request(blocks, schema, writer.settings, again=again)),
        json_sha256(question) if address else None,
        may_reuse=lambda answer: bool(_listed(answer, name)[0]),
    )
    if result.answer is None:
        return None, result.error.replace("the simulated user's model", "the model")
    return _listed(result.answer, name)


def _listed(answer: Answer, name: str) -> tuple[list[Any], str]:
    """Return what can be used of the list in an answer, and why there is none if it is nothing of the kind, with what the provider says of that."""
    try:
        value = decoded(answer.text)[0]
    except ValueError as error:
        return [], answer.why(str(error))
    written = value.get(name) if isinstance(value, dict) else None
    return (list(_USABLE[name](written)), "") if isinstance(written, list) else ([], answer.why(f"the answer contains no list of {name}"))


def _scenarios(written: Iterable[Any]) -> Iterator[ConversationScenario]:
    for one in written:
        given: dict[str, Any] = one if isinstance(one, dict) else {}
        prompt, plan, persona = (given.get(name) for name in _SCENARIO["properties"])
        if isinstance(prompt, str) and prompt.strip() and isinstance(plan, str) and plan.strip() and persona in PERSONAS:
            yield ConversationScenario(starting_prompt=prompt.strip(), conversation_plan=plan.strip(), user_persona=persona)


_USABLE: Mapping[str, Callable[[Iterable[Any]], Iterable[Any]]] = {
    "scenarios": _scenarios,
    "rubrics": lambda written: (text.strip() for text in written if isinstance(text, str) and text.strip()),
}


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
