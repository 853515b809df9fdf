"""The criteria of Vertex AI's evaluation service on a loopback server."""

from __future__ import annotations

from typing import Any

import anyio

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import CaseRun, Planned, apply
from mlflow_adk_eval.judge.client import JudgeClient
from mlflow_adk_eval.judge.providers.vertex import VertexService
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.judge.usage import UsageTracker
from mlflow_adk_eval.results.outcomes import CriterionResult, Scored
from tests.judge.providers.vertex_server import client_of
from tests.judge.servers import Server
from tests.kit import run_of, turn


def by_us(server: Server, name: str, run: CaseRun, **settings: Any) -> CriterionResult:
    """Judge a case by one criterion, as the runner does."""

    async def judged() -> CriterionResult:
        client = client_of(server)
        service = VertexService(client, JudgeClient(JudgeOptions(attempts=2), UsageTracker()))
        criterion = CRITERIA[name].by_service(CRITERIA[name].settings.model_validate({"threshold": 1.0} | settings), service)
        try:
            return await apply(Planned(name=name, criterion=criterion, threshold=1.0), run)
        finally:
            await client.aclose()

    return anyio.run(judged)


def said(*answers: str | None) -> CaseRun:
    turns = [turn(answer, user=f"q{number}") for number, answer in enumerate(answers)]
    return run_of(turns, turns)


def scores(result: CriterionResult) -> list[float | None]:
    return [cell.score if isinstance(cell, Scored) else None for cell in result.per_invocation]
