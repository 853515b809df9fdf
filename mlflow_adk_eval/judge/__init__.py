"""Asking models to judge: clients, prompts, ballots, limits and accounts."""

from __future__ import annotations

from mlflow_adk_eval.judge.options import Budget, JudgeOptions
from mlflow_adk_eval.judge.prompt import Block, Prompt, load_prompt
from mlflow_adk_eval.judge.protocol import (
    Answer,
    Answers,
    Judge,
    NoAnswer,
    Refused,
    Request,
    Unavailable,
)
from mlflow_adk_eval.judge.question import Item, Question
from mlflow_adk_eval.judge.voting import (
    Ballot,
    CellKey,
    Finding,
    JudgeResponse,
    Jury,
)

__all__ = [
    "Answer",
    "Answers",
    "Ballot",
    "Block",
    "Budget",
    "CellKey",
    "Finding",
    "Item",
    "Judge",
    "JudgeOptions",
    "JudgeResponse",
    "Jury",
    "NoAnswer",
    "Prompt",
    "Question",
    "Refused",
    "Request",
    "Unavailable",
    "load_prompt",
]
