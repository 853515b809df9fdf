"""google-adk's own judged evaluators, asked through a judge that follows a script and answers in ADK's text formats.

The judge is found as ADK finds any model: by its name, in its registry. Nothing is patched.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mlflow_adk_eval.criteria.rubrics import FINAL_RESPONSE, TOOL_USE, TRAJECTORY
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import ConversationScenario, Invocation

base_llm = pytest.importorskip("google.adk.models.base_llm", reason="the extra [adk] is not installed")
pytest.importorskip("google.adk.evaluation.final_response_match_v2", reason="this google-adk has no judged evaluators")

MATCH, HALLUCINATIONS, SIMULATOR = "final_response_match_v2", "hallucinations_v1", "per_turn_user_simulator_quality_v1"
MODEL = "scripted-for-adk"
_EVALUATORS = {
    MATCH: ("final_response_match_v2", "FinalResponseMatchV2Evaluator", "LlmAsAJudgeCriterion"),
    FINAL_RESPONSE: ("rubric_based_final_response_quality_v1", "RubricBasedFinalResponseQualityV1Evaluator", "RubricsBasedCriterion"),
    TOOL_USE: ("rubric_based_tool_use_quality_v1", "RubricBasedToolUseV1Evaluator", "RubricsBasedCriterion"),
    TRAJECTORY: ("rubric_based_multi_turn_trajectory_evaluator", "RubricBasedMultiTurnTrajectoryEvaluator", "RubricsBasedCriterion"),
    HALLUCINATIONS: ("hallucinations_v1", "HallucinationsV1Evaluator", "HallucinationsCriterion"),
    SIMULATOR: ("simulation.per_turn_user_simulator_quality_v1", "PerTurnUserSimulatorQualityV1", "LlmBackedUserSimulatorCriterion"),
}

Said = str | Exception | None
"""An answer, an error that asking ends in, or no answer at all."""
Script = Callable[[int, str], Said]
"""What is said to the request of a number, from 0, with this prompt."""


class _Judge(base_llm.BaseLlm):  # type: ignore[misc, name-defined]
    """Answers as the script of the moment says."""

    script: ClassVar[Script]
    requests: ClassVar[list[Any]] = []
    in_flight: ClassVar[int] = 0
    most_in_flight: ClassVar[int] = 0

    @classmethod
    def supported_models(cls) -> list[str]:
        return [MODEL]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[Any, None]:
        from google.adk.models.llm_response import LlmResponse

        _Judge.requests.append(llm_request)
        said = _Judge.script(len(_Judge.requests) - 1, _prompt(llm_request))
        _Judge.in_flight += 1
        _Judge.most_in_flight = max(_Judge.most_in_flight, _Judge.in_flight)
        await checkpoint()
        _Judge.in_flight -= 1
        if isinstance(said, Exception):
            raise said
        if said is not None:
            yield LlmResponse(content={"role": "model", "parts": [{"text": said}]})


def _prompt(llm_request: Any) -> str:
    return "".join(part.text or "" for content in llm_request.contents for part in content.parts)


import_module("google.adk.models.registry").LLMRegistry.register(_Judge)


@dataclass(frozen=True, slots=True)
class Heard:
    """What ADK made of a conversation, and what it asked its judge."""

    result: Any
    requests: list[Any]
    most_in_flight: int
    """Requests at the same time."""

    @property
    def prompts(self) -> list[str]:
        """What the judge was asked."""
        return list(map(_prompt, self.requests))

    @property
    def scores(self) -> list[float | None]:
        """The score of each turn."""
        return [found.score for found in self.result.per_invocation_results]

    @property
    def score(self) -> float | None:
        """The score of the case."""
        score: float | None = self.result.overall_score
        return score

    @property
    def status(self) -> str:
        """What ADK makes of the threshold."""
        return str(self.result.overall_eval_status.name)


def judged_by_adk(
    name: str,
    script: Script,
    actual: Sequence[Any],
    expected: Sequence[Any] | None = None,
    scenario: ConversationScenario | None = None,
    *,
    samples: int = 5,
    model: str = MODEL,
    **criterion: Any,
) -> Heard:
    """Return ADK's result on the JSON of the same turns.

    Args:
        name: the criterion.
        script: what the judge says.
        actual: what the agent did.
        expected: what it should have done.
        scenario: the plan of the simulated user.
        samples: how many votes there are.
        model: another judge than the one of the script.
        criterion: further settings, instead of the threshold 0.5.
    """
    _Judge.script, _Judge.requests, _Judge.in_flight, _Judge.most_in_flight = staticmethod(script), [], 0, 0  # type: ignore[assignment]
    options = {"judge_model": model, "num_samples": samples} | criterion.pop("judge_model_options", {})
    result = evaluator(name, judge_model_options=options, **criterion).evaluate_invocations(
        actual_invocations=in_adk(actual),
        expected_invocations=None if expected is None else in_adk(expected),
        conversation_scenario=None if scenario is None else _class("eval_case", "ConversationScenario").model_validate(dump(scenario)),
    )
    return Heard(anyio.run(_awaited, result), _Judge.requests, _Judge.most_in_flight)


async def _awaited(result: Any) -> Any:
    return await result


def evaluator(name: str, **criterion: Any) -> Any:
    """Return one of ADK's evaluators."""
    module, evaluator_class, criterion_class = _EVALUATORS[name]
    chosen = _class("eval_metrics", criterion_class).model_validate({"threshold": 0.5} | criterion)
    return _class(module, evaluator_class)(_class("eval_metrics", "EvalMetric")(metric_name=name, criterion=chosen))


def in_adk(turns: Sequence[Any]) -> list[Any]:
    """Return turns as ADK reads them; those that are ADK's already stay as they are."""
    theirs = _class("eval_case", "Invocation")
    return [theirs.model_validate(dump(found)) if isinstance(found, Invocation) else found for found in turns]


def _class(module: str, name: str) -> Any:
    return getattr(import_module(f"google.adk.evaluation.{module}"), name)


def validity(label: str) -> str:
    """Return an answer of the judge of `final_response_match_v2`."""
    return json.dumps({"reasoning": "it is so", "is_the_agent_response_valid": label})


def verdicts(labels: Mapping[str, str]) -> str:
    """Return an answer of a judge by rubrics, from the id, which is the text too, to the verdict."""
    blocks = (f"ID: {key}\nProperty: {key}\nEvidence: none\nRationale: it is {label}\nVerdict: {label}\n" for key, label in labels.items())
    return "\n".join(blocks)


def sentence_labels(labels: Mapping[str, str]) -> str:
    """Return an answer of the judge of `hallucinations_v1` on some sentences."""
    rest = "rationale: it is so\nsupporting_excerpt: null\ncontradicting_excerpt: null"
    return "\n\n".join(f"sentence: {sentence}\nlabel: {label}\n{rest}" for sentence, label in labels.items())


def asks_for_sentences(prompt: str) -> bool:
    """Whether a prompt of `hallucinations_v1` asks for the sentences of a text, and not about them."""
    return prompt.rstrip().endswith("**Your Sentence Segmentation Output:**")


def segmented(prompt: str) -> str:
    """Return the answer to a prompt that asks for the sentences of a text, each of which ends in a full stop."""
    text = prompt.rpartition("**Response Begin**")[2].partition("**Response End**")[0]
    return "\n".join(f"<sentence>{found.strip()}.</sentence>" for found in text.split(".") if found.strip())


def message_validity(label: str) -> str:
    """Return an answer of the judge of the simulated user."""
    return json.dumps({"is_valid": label == "valid"})
