"""The metrics asked of Vertex AI's evaluation service, which computes the computed ones as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlflow_adk_eval.criteria.rapid.messages import RapidRequest, Rated, answer
from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.providers.vertex import Material
from mlflow_adk_eval.judge.providers.vertex_reply import Result
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.runtime import gathered


@dataclass(frozen=True, slots=True)
class VertexBackend:
    """The service, with the limits, the budget and the ledger of an evaluation.

    Raises:
        JudgeError: naming what is missing for it.
    """

    judging: JudgeSession

    def __post_init__(self) -> None:
        """Refuse to begin without the service: nothing has been sent yet."""
        self.judging.vertex()

    async def answer(self, asked: RapidRequest, /) -> Json:
        """Return what the service answers to a request: a computed metric takes all instances at once, any other one at a time.

        Raises:
            JudgeError: if an instance has no result.
        """
        metric, spec = asked.metric, _spec(asked.spec)
        evaluate = self.judging.vertex().evaluate
        found = await gathered(partial(evaluate, metric.name, material, metric.bounds, spec) for material in _materials(asked))
        errors = [f"instance {index}: {one.error}" if len(found) > 1 else one.error for index, one in enumerate(found, 1) if one.error]
        if errors:
            raise JudgeError(f"{metric.name}: {'; '.join(errors)}")
        return answer(asked, [rated for one in found for rated in _rated(one)])

    async def aclose(self) -> None:
        """Give back connections."""
        await self.judging.aclose()


def _spec(given: Mapping[str, Any]) -> Json:
    """Return settings as the service spells them."""
    return {key: value.replace("rougen", "rouge") if key == "rouge_type" else value for key, value in given.items()}


def _materials(asked: RapidRequest) -> list[Material]:
    """Return what is judged in each call."""
    return [list(asked.instances)] if asked.metric.kind == "computed" else [dict(one) for one in asked.instances]


def _rated(result: Result) -> Iterator[Rated]:
    if result.choice is not None:
        yield Rated(choice=result.choice, explanation=result.explanation, confidence=result.confidence)
    yield from (Rated(score=score, explanation=result.explanation, confidence=result.confidence) for score in result.scores)
