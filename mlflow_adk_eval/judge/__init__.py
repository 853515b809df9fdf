"""Asking models to judge: from a question to a verdict.

A criterion makes a `Question` (`question`): a prompt of our own (`prompt`), the material between delimiters that its authors could not know,
the items to decide and the labels that a judge may give them. Its `VoteCollector` (`voting`) asks for votes until the verdict stands. Each
vote is a request to the `Judge` (`protocol`, made in `providers`) through a `JudgeClient` (`client`), which looks in the ledger first, waits
for the limiter (`limiter`), repeats what failed for now and counts what it cost (`usage`). `JudgeSession` (`session`) holds the judges of one
evaluation together; `setup` says how a caller chooses them. `user_model` asks models in the same way for the messages of simulated users.
"""

from __future__ import annotations

from mlflow_adk_eval.judge.prompt import Block, Prompt, load_prompt
from mlflow_adk_eval.judge.protocol import Answer, Answers, Judge, NoAnswer, Refused, Request, Unavailable
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.setup import Budget, JudgeOptions
from mlflow_adk_eval.judge.voting import CellKey, JudgeResponse, VoteCollector, VotedItem, VotingResult

__all__ = [
    "Answer",
    "Answers",
    "Block",
    "Budget",
    "CellKey",
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
    "VotedItem",
    "VotingResult",
    "load_prompt",
]
