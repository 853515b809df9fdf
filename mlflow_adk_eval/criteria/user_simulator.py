"""``per_turn_user_simulator_quality_v1``: whether the simulated user kept to its scenario.

It judges the user and not the agent: an evaluation whose simulated user strays from its plan says little about the agent. It needs a case with
a conversation scenario. The first message is compared with the starting prompt, without a judge; a judge decides on every other message, and
on whether the user ended the conversation where it should have. Kept beside the score is every vote.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pydantic import Field

from mlflow_adk_eval.config.criteria import JudgedSettings
from mlflow_adk_eval.config.spec import CriterionSpec
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.criteria.judged_turns import Cell, asked, judged_turns, place
from mlflow_adk_eval.criteria.personas import persona_text
from mlflow_adk_eval.criteria.transcript import dialogue_text, user_text
from mlflow_adk_eval.evalset import ConversationScenario
from mlflow_adk_eval.judge.prompt import Block, load_prompt
from mlflow_adk_eval.judge.question import Item, Question
from mlflow_adk_eval.judge.voting import Jury
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored, Skipped
from mlflow_adk_eval.runtime import gathered

_NAME = "per_turn_user_simulator_quality_v1"
_STOP = "per_turn_user_simulator_stop"
_WORTH = {"valid": 1.0, "invalid": 0.0}
_WRITTEN = Skipped("the case has no conversation scenario: the user's messages were written, not simulated")
_AS_PLANNED = Scored(1.0, "The user began with the starting prompt.")


class UserSimulatorSettings(JudgedSettings):
    """How the simulated user speaks."""

    stop_signal: str = Field(default="</finished>", description="how the simulated user says that it is done.")


@dataclass(frozen=True, slots=True)
class UserSimulatorQuality:
    """1 for each turn whose user message follows from the scenario, else 0; the case score is the mean.

    The first message must be the starting prompt; a judge decides on the others. The last turn also scores 0 if the
    user ended the conversation elsewhere than it should have.

    Source: ADK's evaluation criteria. All questions are asked at the same time, and a vote that failed is no failed turn.
    """

    settings: UserSimulatorSettings
    jury: Jury

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn, and the end of the conversation with the last one."""
        if run.scenario is None:
            return Judged((_WRITTEN,) * run.turns)
        return await judged_turns(run, partial(self._turn, run, run.scenario))

    async def _turn(self, run: CaseRun, scenario: ConversationScenario, index: int) -> Cell:
        """Judge a turn; whether it was the right one to end with is only asked where the user ended the conversation."""
        questions = [partial(self._message, run, scenario, index)]
        if index == len(run.actual) - 1 and not run.error and not _cut_off(run):
            questions.append(partial(self._end, run, scenario, index))
        return _joined(*await gathered(questions))

    async def _message(self, run: CaseRun, scenario: ConversationScenario, index: int) -> Cell:
        message = user_text(run.actual[index])
        if index == 0:
            return Cell(_first(message.strip(), scenario.starting_prompt.strip()))
        blocks = (*self._plan(scenario), Block("conversation", dialogue_text(run.actual[:index])), Block("message", message))
        return await self._decide(run, index, Question(prompt=load_prompt(_NAME), blocks=blocks, worth=_WORTH))

    async def _end(self, run: CaseRun, scenario: ConversationScenario, index: int) -> Cell:
        signal = Block("message", self.settings.stop_signal)
        blocks = (*self._plan(scenario), Block("conversation", dialogue_text(run.actual)), signal)
        item = Item(id="stop_signal")
        return await self._decide(run, index, Question(prompt=load_prompt(_STOP), blocks=blocks, items=(item,), worth=_WORTH))

    def _plan(self, scenario: ConversationScenario) -> tuple[Block, ...]:
        """Return what the simulated user was told."""
        plan, persona = Block("plan", scenario.conversation_plan), scenario.user_persona
        return (plan, Block("persona", persona_text(persona, self.settings.stop_signal))) if persona else (plan,)

    async def _decide(self, run: CaseRun, index: int, question: Question) -> Cell:
        return await asked(self.jury, question, place(run, index, _NAME))


def _cut_off(run: CaseRun) -> bool:
    """Whether the user was not allowed to speak again, so that it ended nothing."""
    return run.ending is not None and run.ending.reason == "limit"


def _first(said: str, wanted: str) -> Outcome:
    """Return whether the conversation began as it must; nothing about that needs a judge."""
    return _AS_PLANNED if said == wanted else Scored(0.0, f"The user did not begin with the starting prompt, but with: {said}")


def _joined(message: Cell, end: Cell | None = None) -> Cell:
    """Return a turn with what was found about the end of the conversation after it."""
    return Cell(_worse(message.outcome, end.outcome), (*message.votes, *end.votes)) if end else message


def _worse(message: Outcome, end: Outcome) -> Outcome:
    """Return 0 where either of two verdicts is 0, whatever the other one is; otherwise both must be there."""
    match message, end:
        case Scored(), Scored():
            rationale = f"{message.rationale}\n\nThe end of the conversation: {end.rationale}"
            return Scored(min(message.score, end.score), rationale, {**message.details, "stop_signal": dict(end.details)})
        case Errored(error), Scored(score=0.0):
            rationale = f"The end of the conversation: {end.rationale}\n\nThe message of the user has no verdict: {error}"
            return Scored(0.0, rationale, {"stop_signal": dict(end.details)})
        case Scored(score=0.0), Errored(error):
            return Scored(0.0, f"{message.rationale}\n\nThe end of the conversation has no verdict: {error}", message.details)
        case _, Errored(error):
            also = f"{message.error}; " if isinstance(message, Errored) else ""
            return Errored(f"{also}the end of the conversation: {error}")
        case _:
            return message


SPECS = (
    CriterionSpec(
        name=_NAME,
        about="1 for each turn whose user message follows from the scenario, else 0",
        kept="every vote, also on where the conversation ended",
        settings=UserSimulatorSettings,
        needs=("scenario",),
        prompts=(_NAME, _STOP),
        judged_from_turn=1,
        make=UserSimulatorQuality,
    ),
)
