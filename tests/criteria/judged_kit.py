"""Juries whose judge is a function of the test, for the criteria that ask one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import CaseRun, Planned, result_of
from mlflow_adk_eval.judge.question import ItemVerdict, Question
from mlflow_adk_eval.judge.voting import JudgeResponse, VoteCollector
from mlflow_adk_eval.results.outcomes import CriterionResult

Says = Callable[[Question, int], Mapping[str | None, str | None]]
"""What a vote says of each item, by its id; an item that is left out has no verdict."""


class Bench:
    """A collector that remembers what it was asked."""

    def __init__(self, says: Says | str, *, num_samples: int = 5, early_stop: bool = True) -> None:
        self.says: Says = (
            (lambda question, _vote: dict.fromkeys([item.id for item in question.items], says)) if isinstance(says, str) else says
        )
        self.asked: list[Question] = []
        self.collector = VoteCollector(ask=self.ask, num_samples=num_samples, early_stop=early_stop)

    async def ask(self, question: Question, vote: int) -> JudgeResponse:
        self.asked.append(question)
        await checkpoint()
        labels = self.says(question, vote)
        return JudgeResponse(verdicts=tuple(_reading(labels.get(item.id)) for item in question.items), model="scripted")

    @property
    def questions(self) -> list[Question]:
        """What was asked, without repetitions."""
        return list({id(question): question for question in self.asked}.values())

    @property
    def blocks(self) -> list[dict[str, str]]:
        """What each question showed, by the names of its blocks."""
        return [{block.name: block.text for block in question.blocks} for question in self.questions]

    @property
    def rubrics(self) -> list[list[str | None]]:
        """The ids of the items of each question."""
        return [[item.id for item in question.items] for question in self.questions]


def _reading(label: str | None) -> ItemVerdict:
    return ItemVerdict(error="the judge left it out") if label is None else ItemVerdict(label=label, rationale=f"It is {label}.")


def judged(factory: Callable[[Any, VoteCollector], Any], name: str, bench: Bench, run: CaseRun, **settings: Any) -> CriterionResult:
    """Return the result of a judged criterion on a case."""
    criterion = factory(CRITERIA[name].settings.model_validate({"threshold": 0.5} | settings), bench.collector)
    found = anyio.run(criterion, run)
    return result_of(Planned(name=name, criterion=criterion, threshold=0.5), run, found)
