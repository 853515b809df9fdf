"""The agent's eval set as a test: ``pytest``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from support_bot import support_bot, support_bot_async
from support_bot_regressed import support_bot_regressed

from mlflow_adk_eval.testing import evaluate_agent

EVAL_SET = Path(__file__).parent / "support.evalset.json"


def evaluate(agent: Callable[..., object]) -> None:
    """Hold the agent to every case; whatever it misses is one `AssertionError`, which names case and turn."""
    asyncio.run(evaluate_agent(agent, EVAL_SET, num_runs=1, print_detailed_results=False))


@pytest.mark.parametrize("agent", [support_bot, support_bot_async])
def test_the_agent_does_what_the_eval_set_expects(agent: Callable[..., object]) -> None:
    """In both variants."""
    evaluate(agent)


def test_the_eval_set_notices_an_agent_that_pays_back_what_is_too_old() -> None:
    """An eval set that nothing fails is worth nothing."""
    with pytest.raises(AssertionError, match="expected 'delivered', got 'refunded'"):
        evaluate(support_bot_regressed)
