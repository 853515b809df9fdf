"""Asking models to judge: clients, prompts, ballots, limits and accounts."""

from __future__ import annotations

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
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.setup import Budget, JudgeOptions
from mlflow_adk_eval.judge.voting import (
    CellKey,
    ItemResult,
    JudgeResponse,
    VoteCollector,
    VotingResult,
)

__all__ = [
    "Answer",
    "Answers",
    "Block",
    "Budget",
    "CellKey",
    "ItemResult",
    "Judge",
    "JudgeOptions",
    "JudgeResponse",
    "JudgedItem",
    "NoAnswer",
    "Prompt",
    "Question",
    "Refused",
    "Request",
    "Unavailable",
    "VoteCollector",
    "VotingResult",
    "load_prompt",
]
