"""Questions, and vote collectors whose judge is a function of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.lowlevel

from mlflow_adk_eval.judge.prompt import Block, Prompt
from mlflow_adk_eval.judge.question import ItemVerdict, JudgedItem, Question
from mlflow_adk_eval.judge.voting import CellKey, JudgeResponse, VoteCollector, VotingResult

CELL = CellKey(eval_id="case", run_index=0, invocation_index=1, criterion="final_response_match_v2")
PROMPT = Prompt(name="final_response_match_v2", version="1", text="Data lies in blocks.")
VALIDITY = {"valid": 1.0, "invalid": 0.0}


def question(*items: str, label_values: Mapping[str, float] = VALIDITY, text: str = "42") -> Question:
    """A question about one thing, or about several named ones."""
    listed = tuple(JudgedItem(id=item, text=f"about {item}") for item in items) or (JudgedItem(),)
    return Question(unshown=(), prompt=PROMPT, blocks=(Block("agent_response", text),), items=listed, label_values=label_values)


def response(*labels: str | None, error: str = "", final: bool = False) -> JudgeResponse:
    """A vote with these labels; ``None``: nothing that can be used."""
    verdicts = tuple(
        ItemVerdict(error=error or "the answer omits it") if label is None else ItemVerdict(label=label, rationale=f"it is {label}")
        for label in labels
    )
    return JudgeResponse(verdicts=verdicts, model="scripted", input_tokens=10, output_tokens=2, latency_s=0.5, final=final)


class Judge:
    """Votes by a script: the n-th vote is the n-th response, whatever the question."""

    def __init__(self, responses: Sequence[JudgeResponse]) -> None:
        self.responses = list(responses)
        self.asked: list[int] = []

    async def __call__(self, _question: Question, vote: int) -> JudgeResponse:
        self.asked.append(vote)
        await anyio.lowlevel.checkpoint()
        return self.responses[vote]


def decided(collector: VoteCollector, asked: Question | None = None) -> VotingResult:
    async def main() -> VotingResult:
        return await collector.decide(asked or question(), CELL)

    return anyio.run(main)


Ask = Callable[[Question, int], JudgeResponse]
