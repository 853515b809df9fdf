"""``final_response_match_v2``: whether the agent's final response means what the reference means.

A judge reads the user's message, the reference and the response, and votes ``valid`` or ``invalid``; the majority decides. Kept beside the score are every vote with its explanation, the tally, and the dissent. A response that says nothing scores 0
without a call, because judges have been seen to accept such texts. A turn whose reference has no response has no score.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from mlflow_adk_eval.config.spec import CriterionSpec, JudgedSettings
from mlflow_adk_eval.criteria.criterion import NO_REFERENCE, CaseRun
from mlflow_adk_eval.criteria.expected import ExpectedResponseSettings
from mlflow_adk_eval.criteria.judged_turns import TRIVIAL, Cell, JudgedTurns, ask_judge, judged_turns, place, says_nothing
from mlflow_adk_eval.criteria.transcript import user_material
from mlflow_adk_eval.evalset.material import Material, unshown_in
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.judge.prompt import blocks_of, load_prompt
from mlflow_adk_eval.judge.question import Question
from mlflow_adk_eval.results.outcomes import Judged, Scored

NAME = "final_response_match_v2"

_NO_TEXT = "(no text)"
_WORTH = {"valid": 1.0, "invalid": 0.0}


class FinalResponseSettings(JudgedSettings, ExpectedResponseSettings):
    """Which responses are judged beside their references."""


@dataclass(frozen=True, slots=True)
class FinalResponseMatch(JudgedTurns[FinalResponseSettings]):
    """1 for each turn whose final response is valid beside the reference, else 0; the case score is the mean."""

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await judged_turns(run, partial(self.turn, run), self.settings, in_pairs=True)

    async def turn(self, run: CaseRun, index: int) -> Cell:
        """Ask whether a response means what its reference means; not if either says nothing."""
        actual, expected = run.actual[index], (run.expected or ())[index]
        answer, reference = self.answer(actual), self.answer(expected)
        if not reference.text.strip() and not reference.unshown:
            return Cell(NO_REFERENCE)
        if says_nothing(answer, reference):
            return Cell(Scored(0.0, TRIVIAL, {"verdict": "invalid"}))
        material = {"user_message": _user(actual, expected), "reference": reference, "response": answer}
        question = Question(
            prompt=load_prompt(NAME),
            blocks=blocks_of(material),
            unshown=unshown_in(material.values()),
            label_values=_WORTH,
        )
        return await ask_judge(self.collector, question, place(run, index, NAME))


def _user(actual: Invocation, expected: Invocation) -> Material:
    """Return what the user said: as it was recorded, or else as the case has it, whose media a recording of words can lack."""
    recorded, written = user_material(actual), user_material(expected)
    return Material(recorded.text or written.text or _NO_TEXT, recorded.unshown or written.unshown)


SPECS = (
    CriterionSpec(
        name=NAME,
        origin="adk",
        about="1 for each turn whose final response matches the expected one, according to a judge, else 0",
        kept="every vote with its explanation, the tally, the dissent",
        settings=FinalResponseSettings,
        reads_intermediate=True,
        needs=("reference", "expected_response"),
        prompts=(NAME,),
        make=FinalResponseMatch,
    ),
)
