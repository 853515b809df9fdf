"""``final_response_match_v2``: whether the agent's final response means what the reference means.

A judge reads the user's message, the reference and the response, and votes ``valid`` or ``invalid``; the majority decides. Kept beside the score are every vote with its explanation, the tally, and the dissent. A response that says nothing scores 0
without a call, because judges have been seen to accept such texts. A turn whose reference has no response has no score.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from mlflow_adk_eval.config.criteria import JudgedSettings
from mlflow_adk_eval.config.spec import CriterionSpec
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.criteria.judged_turns import (
    TRIVIAL,
    Cell,
    asked,
    judged_pairs,
    place,
    trivial,
)
from mlflow_adk_eval.criteria.transcript import final_text, user_text
from mlflow_adk_eval.evalset import EvalCase, Invocation
from mlflow_adk_eval.judge.prompt import Block, load_prompt
from mlflow_adk_eval.judge.question import Question
from mlflow_adk_eval.judge.voting import Jury
from mlflow_adk_eval.results.outcomes import Errored, Judged, Scored

NAME = "final_response_match_v2"

_WORTH = {"valid": 1.0, "invalid": 0.0}
_NO_REFERENCE = Errored("the reference of this turn has no final response, so there is nothing to compare with")


@dataclass(frozen=True, slots=True)
class FinalResponseMatch:
    """1 for each turn whose final response is valid beside the reference, else 0; the case score is the mean."""

    settings: JudgedSettings
    jury: Jury

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await judged_pairs(run, partial(self._turn, run))

    async def _turn(self, run: CaseRun, index: int) -> Cell:
        actual, expected = run.actual[index], (run.expected or ())[index]
        answer, reference = self._final(actual), self._final(expected)
        if not reference.strip():
            return Cell(_NO_REFERENCE)
        if trivial(answer, reference):
            return Cell(Scored(0.0, TRIVIAL, {"verdict": "invalid"}))
        question = _question(user_text(actual) or user_text(expected), reference, answer)
        return await asked(self.jury, question, place(run, index, NAME))

    def _final(self, turn: Invocation) -> str:
        return final_text(turn, include_intermediate=self.settings.include_intermediate_responses_in_final)


def _question(user: str, reference: str, answer: str) -> Question:
    blocks = (Block("user_message", user or "(no text)"), Block("reference", reference), Block("response", answer))
    return Question(prompt=load_prompt(NAME), blocks=blocks, worth=_WORTH)


def turns_without_reference(settings: JudgedSettings, case: EvalCase) -> tuple[int, ...]:
    """Return the indexes of the turns of a written conversation that have no final response to compare with."""
    included = settings.include_intermediate_responses_in_final
    texts = [final_text(turn, include_intermediate=included) for turn in case.conversation or ()]
    return tuple(index for index, text in enumerate(texts) if not text.strip())


SPECS = (
    CriterionSpec(
        name=NAME,
        about="1 for each turn whose final response a judge finds valid beside the expected one, else 0",
        kept="every vote with its explanation, the tally, the dissent",
        settings=JudgedSettings,
        needs=("reference", "expected_response"),
        prompts=(NAME,),
        make=FinalResponseMatch,
    ),
)
