"""What a model that plays a user is told: the plan, the persona and the conversation so far, in our words or in the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mlflow_adk_eval.config.criteria import UserSimulatorConfig
from mlflow_adk_eval.config.template import filled, placeholders
from mlflow_adk_eval.criteria.personas import persona_of, role_text
from mlflow_adk_eval.criteria.transcript import conversation_text, dialogue_text
from mlflow_adk_eval.errors import ConfigError, Problem
from mlflow_adk_eval.evalset import ConversationScenario, EvalCase, Invocation
from mlflow_adk_eval.evalset.models import UserBehavior, UserPersona
from mlflow_adk_eval.judge.prompt import blocks_of, load_prompt
from mlflow_adk_eval.judge.user_model import STOP_SIGNAL, UserPrompt

_MAX_NAMED = 5
_AT = "$.user_simulator_config"


def user_prompt_of(settings: UserSimulatorConfig, scenario: ConversationScenario, turns: Sequence[Invocation]) -> UserPrompt:
    """Return what the model is told before it speaks. Thoughts are left out: nobody was told them."""
    persona, own = scenario.user_persona, settings.custom_instructions
    texts = {
        "plan": scenario.conversation_plan,
        "persona": role_text(persona, STOP_SIGNAL) if persona else "",
        "conversation": conversation_text(turns) if settings.include_function_calls else dialogue_text(turns),
    }
    if own is None:
        return UserPrompt(prompt=load_prompt("user_simulator"), blocks=blocks_of(texts))
    prompt = load_prompt("user_simulator_custom")
    return UserPrompt(prompt=prompt, blocks=blocks_of(texts), wording=own, arranged=partial(_in_own_words, own, persona))


def check_scenarios(settings: UserSimulatorConfig, cases: Sequence[EvalCase]) -> None:
    """Refuse settings by which a model could not play the users of `cases`.

    Raises:
        ConfigError: with everything that is wrong.
    """
    if problems := list(_problems(settings, cases)):
        raise ConfigError("config", problems)


def _problems(settings: UserSimulatorConfig, cases: Sequence[EvalCase]) -> Iterator[Problem]:
    if settings.type == "llm_audio":
        yield Problem(f"{_AT}.type", "llm_audio, a user who is heard", "llm_backed, which writes what it would say; nobody speaks here")
    own = settings.custom_instructions
    if own is None:
        return
    at, named = f"{_AT}.custom_instructions", "persona" in placeholders(own)
    nameless = [] if named else [case.eval_id for case in cases if _scenario(case).user_persona]
    if nameless:
        more = f" and {len(nameless) - _MAX_NAMED} more" if len(nameless) > _MAX_NAMED else ""
        yield Problem(at, "no {{ persona }}", f"it, since these cases have a persona: {', '.join(nameless[:_MAX_NAMED])}{more}")
    for case in cases:
        try:
            user_prompt_of(settings, _scenario(case), ()).request({})
        except ValueError as error:
            yield Problem(at, f"a template that case {case.eval_id!r} cannot fill in: {error}", "one that every scenario can fill in")
            return


def _scenario(case: EvalCase) -> ConversationScenario:
    assert case.conversation_scenario is not None  # noqa: S101 - only cases with one are asked about
    return case.conversation_scenario


def _in_own_words(template: str, persona: UserPersona | str | None, blocks: Mapping[str, str]) -> str:
    """Return the caller's instructions with what the model needs to know in its places."""
    return filled(
        template,
        {
            "stop_signal": STOP_SIGNAL,
            "conversation_plan": blocks.get("plan", ""),
            "conversation_history": blocks.get("conversation", ""),
            "persona": _Persona.of(persona) if persona else None,
        },
    )


@dataclass(frozen=True)
class _Behavior:
    """A trait as ADK's templates know it."""

    name: str
    description: str
    behavior_instructions: tuple[str, ...]
    violation_rubrics: tuple[str, ...]

    @classmethod
    def of(cls, behavior: UserBehavior) -> _Behavior:
        return cls(behavior.name, behavior.description, behavior.behavior_instructions, behavior.violation_rubrics)

    def get_behavior_instructions_str(self) -> str:
        return "\n".join(f"  * {line}" for line in self.behavior_instructions)

    def get_violation_rubrics_str(self) -> str:
        return "\n".join(f"  * {line}" for line in self.violation_rubrics)


@dataclass(frozen=True)
class _Persona:
    """A persona as ADK's templates know it; as text, all that its player needs."""

    id: str
    description: str
    behaviors: tuple[_Behavior, ...]
    text: str

    @classmethod
    def of(cls, persona: UserPersona | str) -> _Persona:
        found = persona_of(persona, STOP_SIGNAL)
        return cls(found.id, found.description, tuple(map(_Behavior.of, found.behaviors)), role_text(persona, STOP_SIGNAL))

    def __str__(self) -> str:
        return self.text
