"""google-adk's own evaluation of an agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from data import EVAL_SET

from contenders import Cells, adk
from contenders.live import import_all


def imports() -> None:
    """Import all that the work needs."""
    adk.imports(logging=False)
    import_all()


def load(folder: Path) -> Any:
    """Return a service with the agent and the eval set."""
    from google.adk.evaluation.in_memory_eval_sets_manager import InMemoryEvalSetsManager
    from google.adk.evaluation.local_eval_service import LocalEvalService
    from google.adk.evaluation.local_eval_sets_manager import load_eval_set_from_file

    from contenders.live.agent import root_agent

    manager = InMemoryEvalSetsManager()
    manager.create_eval_set(app_name="bench", eval_set_id="bench")
    for case in load_eval_set_from_file(str(folder / EVAL_SET), "bench").eval_cases:
        manager.add_eval_case("bench", "bench", case)
    return LocalEvalService(root_agent=root_agent, eval_sets_manager=manager)


def converse(service: Any, at_once: int) -> Cells:
    """Have all conversations, then score them, as `adk eval` does."""
    from google.adk.evaluation.base_eval_service import EvaluateConfig, EvaluateRequest, InferenceConfig, InferenceRequest

    async def evaluate() -> list[Any]:
        asked = InferenceRequest(app_name="bench", eval_set_id="bench", inference_config=InferenceConfig(parallelism=at_once))
        had = [found async for found in service.perform_inference(asked)]
        config = EvaluateConfig(eval_metrics=adk.metrics(), parallelism=at_once)
        return [found async for found in service.evaluate(EvaluateRequest(inference_results=had, evaluate_config=config))]

    return adk.cells(asyncio.run(evaluate()))
