"""Who talks to an agent in a conversation that is not written down: the caller's function, or a model that simulates a user.

A `User` gives one message at a time: `say` gets the turns so far, and returns the next message, or an `Ending` once there is nothing left
to say. A case with a ``conversation_scenario`` has a `FunctionUser` if the caller passes a function, and otherwise a `SimulatedUser`, for which a model reads the plan, the persona and the conversation so far (`user_prompt_of`).
The model is called through the judge's client, so that its answers are paid for once and kept in the ledger as those of judges are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from mlflow_adk_eval.config.surroundings import UserSimulatorConfig, filled, placeholders
from mlflow_adk_eval.criteria.personas import persona_of, role_text
from mlflow_adk_eval.criteria.transcript import conversation_material, dialogue_material
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError, shown
from mlflow_adk_eval.evalset.conversation import Ending
from mlflow_adk_eval.evalset.material import material_of, not_shown, unshown_in
from mlflow_adk_eval.evalset.models import Content, ConversationScenario, EvalCase, Invocation, Model, Part, UserBehavior, UserPersona
from mlflow_adk_eval.judge.prompt import blocks_of, load_prompt
from mlflow_adk_eval.judge.protocol import called
from mlflow_adk_eval.judge.user_model import STOP_SIGNAL, UserMessage, UserModel, UserPrompt, user_message_of
from mlflow_adk_eval.text import listed

UserFunction = Callable[[ConversationScenario, Sequence[Invocation]], Any]
"""From a scenario and the turns so far to the next message; ``None`` ends the conversation. Sync or async."""

_ATTEMPTS = 3
"""How often a model is asked for one message before the conversation is given up."""
_MAX_NAMED = 5
_AT = "$.user_simulator_config"


@dataclass(frozen=True, slots=True)
class FunctionUser:
    """Sends what a function returns. The first message is the scenario's starting prompt, as for a model that simulates the user."""

    function: UserFunction
    scenario: ConversationScenario
    max_allowed_invocations: int
    """How many messages it may send, the starting prompt included; ``-1``: without limit."""

    async def say(self, turns: Sequence[Invocation], /) -> Content | Ending:
        """Return the next message, or that the user is done or has sent as many as it may."""
        settled = _first_or_last(self.scenario, self.max_allowed_invocations, turns)
        if settled:
            return settled
        match answer := await called(self.function, self.scenario, turns):
            case None:
                return Ending(reason="goal")
            case str() if answer.strip():
                return _message(answer)
            case Content() | Ending():
                return answer
            case _:
                wanted = "a non-empty text, or None to end the conversation"
                raise UsageError(f"the simulated user returned {shown(answer)}; wanted {wanted}")


def _first_or_last(scenario: ConversationScenario, limit: int, turns: Sequence[Invocation]) -> Content | Ending | None:
    """Return what is settled without asking anybody: the starting prompt, and that the limit of messages is reached."""
    if 0 <= limit <= len(turns):
        return Ending(reason="limit", detail=f"max_allowed_invocations of {limit}")
    return None if turns else _message(scenario.starting_prompt)


def _message(text: str) -> Content:
    return Content(role="user", parts=(Part(text=text),))


@dataclass(slots=True)
class SimulatedUser:
    """A model as the user of one conversation."""

    settings: UserSimulatorConfig
    model: UserModel
    scenario: ConversationScenario
    eval_id: str
    run_index: int
    """Counted from 0. Each run gets answers of its own."""
    ending: Ending | None = None
    """Why the conversation ends with the message that was sent last."""

    async def say(self, turns: Sequence[Invocation], /) -> Content | Ending:
        """Return the next message, or why the conversation is over."""
        settled = self.ending or _first_or_last(self.scenario, self.settings.max_allowed_invocations, turns)
        if settled:
            return settled
        answer = await self._ask(turns)
        if isinstance(answer, Ending):
            return answer
        ending = Ending(reason="goal", detail=answer.reason)
        if not answer.message:
            return ending
        self.ending = ending if answer.finished else None
        return _message(answer.message)

    async def _ask(self, turns: Sequence[Invocation]) -> UserMessage | Ending:
        """Return the model's answer. One that cannot be used is asked for again; those that earlier runs paid for do not count."""
        prompt = user_prompt_of(self.settings, self.scenario, turns)
        if prompt.unshown:  # a user who has not seen the agent's image would make up what to say of it
            reason = not_shown(prompt.unshown, "the simulated user's model")
            return Ending(reason="error", detail=f"the simulated user has no message for turn {len(turns) + 1}: {reason}")
        problems: list[str] = []
        paid = 0
        for attempt in count():
            result = await self.model.ask(prompt, (self.eval_id, self.run_index, len(turns), attempt), again=bool(attempt))
            read = user_message_of(result.answer) if result.answer else result.error
            if isinstance(read, UserMessage):
                return read
            problems.append(read)
            paid += not result.reused
            if result.answer is None or paid == _ATTEMPTS:
                break
        attempts = f" ({len(problems)} attempts)" if len(problems) > 1 else ""
        reason = "; ".join(dict.fromkeys(problems)) + attempts
        return Ending(reason="error", detail=f"the simulated user gave no message for turn {len(turns) + 1}: {reason}")


def user_prompt_of(settings: UserSimulatorConfig, scenario: ConversationScenario, turns: Sequence[Invocation]) -> UserPrompt:
    """Return what the model reads before it writes a message. The agent's thoughts are left out: no user would see them."""
    persona, own = scenario.user_persona, settings.custom_instructions
    material = {
        "plan": material_of(scenario.conversation_plan),
        "persona": material_of(role_text(persona, STOP_SIGNAL) if persona else ""),
        "conversation": conversation_material(turns) if settings.include_function_calls else dialogue_material(turns),
    }
    blocks, unshown = blocks_of(material), unshown_in(material.values())
    if own is None:
        return UserPrompt(prompt=load_prompt("user_simulator"), blocks=blocks, unshown=unshown)
    prompt, arranged = load_prompt("user_simulator_custom"), partial(_fill_in, own, persona)
    return UserPrompt(prompt=prompt, blocks=blocks, unshown=unshown, wording=own, arranged=arranged)


def check_scenarios(settings: UserSimulatorConfig, cases: Sequence[EvalCase]) -> None:
    """Refuse settings by which a model could not simulate the users of `cases`.

    Raises:
        ConfigError: with everything that is wrong.
    """
    problems: list[Problem] = []
    if settings.type == "llm_audio":
        heard, written = "llm_audio, a speaking user", "llm_backed, a writing user: audio is not supported"
        problems.append(Problem(f"{_AT}.type", heard, written))
    own = settings.custom_instructions
    if own is not None:
        nameless = [case.eval_id for case in cases if scenario_of(case).user_persona]
        if nameless and "persona" not in placeholders(own):
            wanted = f"this placeholder, because these cases have a persona: {listed(nameless, _MAX_NAMED)}"
            problems.append(Problem(f"{_AT}.custom_instructions", "no {{ persona }}", wanted))
        for case in cases:
            try:
                user_prompt_of(settings, scenario_of(case), ()).request({})
            except ValueError as error:
                refused = f"a template that fails for case {case.eval_id!r}: {error}"
                problems.append(Problem(f"{_AT}.custom_instructions", refused, "one that works for every scenario"))
                break
    if problems:
        raise ConfigError("config", problems)


def scenario_of(case: EvalCase) -> ConversationScenario:
    """Return the scenario of a case that has one."""
    assert case.conversation_scenario is not None  # noqa: S101 - only cases with a scenario get here
    return case.conversation_scenario


class _Behavior(UserBehavior):
    """A trait as ADK's templates know it."""

    def get_behavior_instructions_str(self) -> str:
        return "\n".join(f"  * {line}" for line in self.behavior_instructions)

    def get_violation_rubrics_str(self) -> str:
        return "\n".join(f"  * {line}" for line in self.violation_rubrics)


class _Persona(Model):
    """A persona as ADK's templates know it; as text, all that a model needs to act as it."""

    id: str
    description: str
    behaviors: tuple[_Behavior, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def _fill_in(template: str, persona: UserPersona | str | None, blocks: Mapping[str, str]) -> str:
    """Return the caller's instructions, with the values that ADK's placeholders stand for."""
    actor: _Persona | None = None
    if persona:
        actor = _Persona.model_validate(persona_of(persona, STOP_SIGNAL).model_dump() | {"text": role_text(persona, STOP_SIGNAL)})
    plan, history = blocks.get("plan", ""), blocks.get("conversation", "")
    return filled(template, {"stop_signal": STOP_SIGNAL, "conversation_plan": plan, "conversation_history": history, "persona": actor})
