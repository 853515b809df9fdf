"""Questions, and juries whose judge is a function of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.lowlevel

from mlflow_adk_eval.judge import Ballot, Block, CellKey, Item, JudgeResponse, Jury, Prompt, Question
from mlflow_adk_eval.judge.question import ItemVerdict

PLACE = CellKey(eval_id="case", run_index=0, invocation_index=1, criterion="final_response_match_v2")
PROMPT = Prompt(name="final_response_match_v2", version="1", text="Data lies in blocks with $nonce.")
VALIDITY = {"valid": 1.0, "invalid": 0.0}


def question(*items: str, worth: Mapping[str, float] = VALIDITY, text: str = "42") -> Question:
    """A question about one thing, or about several named ones."""
    listed = tuple(Item(id=item, text=f"about {item}") for item in items) or (Item(),)
    return Question(prompt=PROMPT, blocks=(Block("agent_response", text),), items=listed, worth=worth)


def paper(*labels: str | None, error: str = "", hopeless: bool = False) -> JudgeResponse:
    """A vote with these labels; ``None``: nothing that can be used."""
    readings = tuple(
        ItemVerdict(error=error or "the answer leaves it out") if label is None else ItemVerdict(label=label, rationale=f"it is {label}")
        for label in labels
    )
    return JudgeResponse(readings=readings, model="scripted", input_tokens=10, output_tokens=2, latency_s=0.5, hopeless=hopeless)


class Judge:
    """Votes by a script: the n-th vote is the n-th paper, whatever the question."""

    def __init__(self, papers: Sequence[JudgeResponse]) -> None:
        self.papers = list(papers)
        self.asked: list[int] = []

    async def __call__(self, _question: Question, vote: int) -> JudgeResponse:
        self.asked.append(vote)
        await anyio.lowlevel.checkpoint()
        return self.papers[vote]


def decided(jury: Jury, asked: Question | None = None) -> Ballot:
    async def main() -> Ballot:
        return await jury.decide(asked or question(), PLACE)

    return anyio.run(main)


Ask = Callable[[Question, int], JudgeResponse]
