"""``per_turn_user_simulator_quality_v1``: whether the simulated user kept to its scenario.

It judges the user and not the agent: an evaluation whose simulated user strays from its plan says little about the agent. It needs a case with
a conversation scenario. The first message is compared with the starting prompt, without a judge; a judge decides on every other message, and
on whether the user ended the conversation where it should have. Kept beside the score is every vote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pydantic import Field

from mlflow_adk_eval.config.spec import CriterionSpec, ExpectingSettings, JudgedSettings
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.criteria.judged_turns import Cell, JudgedTurns, ask_judge, judged_turns, place
from mlflow_adk_eval.criteria.personas import persona_text
from mlflow_adk_eval.criteria.transcript import dialogue_material, user_material
from mlflow_adk_eval.evalset.material import Material, material_of, unshown_in
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.judge.prompt import Block, load_prompt
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored, Skipped
from mlflow_adk_eval.runtime import gathered

_NAME = "per_turn_user_simulator_quality_v1"
_STOP = "per_turn_user_simulator_stop"
_WORTH = {"valid": 1.0, "invalid": 0.0}
_WRITTEN = Skipped("the case has no conversation scenario: its user messages are written, not simulated")


class UserSimulatorSettings(JudgedSettings, ExpectingSettings):
    """How the simulated user speaks."""

    stop_signal: str = Field(default="</finished>", description="the simulated user's signal that it is done.")

    def lack(self, case: EvalCase, index: int) -> str:  # noqa: ARG002 - the plan is that of the whole case
        """Return that no user is simulated in a case."""
        return "" if case.conversation is None else "a conversation scenario (its user messages are written)"


@dataclass(frozen=True, slots=True)
class UserSimulatorQuality(JudgedTurns[UserSimulatorSettings]):
    """1 for each turn whose user message follows from the scenario, else 0; the case score is the mean.

    The first message must be the starting prompt; a judge decides on the others. The last turn also scores 0 if the
    user ended the conversation elsewhere than it should have.

    Source: ADK's evaluation criteria. All questions are asked at the same time, and a vote that failed is no failed turn.
    """

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn, and the end of the conversation with the last one."""
        if run.scenario is None:
            return Judged((_WRITTEN,) * run.turns)
        return await judged_turns(run, partial(self.turn, run), self.settings)

    async def turn(self, run: CaseRun, index: int) -> Cell:
        """Judge a turn; whether it was the right one to end with is only asked where the user ended the conversation."""
        scenario, turns, signal = run.scenario, run.actual, self.settings.stop_signal
        if scenario is None:
            return Cell(_WRITTEN)
        plan = {"plan": material_of(scenario.conversation_plan)}
        if scenario.user_persona:
            plan["persona"] = material_of(persona_text(scenario.user_persona, signal))
        said, questions = user_material(turns[index]), list[Question]()
        if index > 0:
            before = dialogue_material(turns[:index])
            questions.append(_question(_NAME, {**plan, "conversation": before, "message": said}))
        cut_off = run.ending is not None and run.ending.reason == "limit"  # a user who may not speak again has ended nothing
        ends = index == len(turns) - 1 and not run.error and not cut_off
        if ends:
            material = {**plan, "conversation": dialogue_material(turns), "message": material_of(signal)}
            questions.append(_question(_STOP, material, JudgedItem(id="stop_signal")))
        cells = await gathered(partial(ask_judge, self.collector, question, place(run, index, _NAME)) for question in questions)
        if len(cells) > 1 and cells[0] == cells[1] and not cells[0].votes:  # nobody was asked, for one reason
            return cells[0]
        if index == 0:  # how it began needs no judge
            as_planned = said.text.strip() == scenario.starting_prompt.strip()
            other = f"The user did not start with the starting prompt, but with: {said.text.strip()}"
            cells = [Cell(Scored(1.0, "The user started with the starting prompt.") if as_planned else Scored(0.0, other)), *cells]
        return Cell(_worse(*(cell.outcome for cell in cells)), tuple(vote for cell in cells for vote in cell.votes)) if ends else cells[0]


def _question(prompt: str, material: Mapping[str, Material], item: JudgedItem | None = None) -> Question:
    """Return a question; each block stands there, even an empty one."""
    return Question(
        prompt=load_prompt(prompt),
        blocks=tuple(Block(name, one.text) for name, one in material.items()),
        unshown=unshown_in(material.values()),
        items=(item or JudgedItem(),),
        label_values=_WORTH,
    )


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
        origin="adk",
        about="1 for each turn whose user message follows from the scenario, else 0",
        kept="every vote, including those on where the conversation ended",
        settings=UserSimulatorSettings,
        needs=("scenario",),
        prompts=(_NAME, _STOP),
        judged_from_turn=1,
        make=UserSimulatorQuality,
    ),
)
