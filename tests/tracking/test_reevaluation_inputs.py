"""By which eval set and config a champion is evaluated again: those that the caller gives or the policy pins, and none that says where requests go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.errors import InputError, UsageError
from mlflow_adk_eval.evalset.models import eval_set_digest
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.tracking.evaluate import make_reevaluator
from tests.tracking.small import many, reevaluation_request

CONFIG = {"criteria": {"tool_trajectory_avg_score": 1.0}}
ELSEWHERE = {"judge_model": "huggingface/https://evil.example"}
HOSTILE = {"criteria": {"safety_v1": {"threshold": 0.5, "backend": "judge", "judge_model_options": ELSEWHERE}}}
EIGHT = many(8)
REQUEST = reevaluation_request(EIGHT, CONFIG)
NOTHING_TO_JUDGE = "models:/helper/1 has no run to judge again"
"""What is said next, once the inputs are in order: nothing was sent or looked up until then."""


def policy_with(*pinned: str) -> Policy:
    return load_policy({"thresholds": True, **{key: {"digest": f"sha256:{'0' * 64}"} for key in pinned}})


@pytest.mark.parametrize(
    ("given", "pinned", "expected"),
    [
        ({}, (), "the eval set is known only from the candidate's run; give it with --eval-set FILE"),
        ({}, ("eval_set",), "the config is known only from the candidate's run; give it with --config-file-path FILE"),
        ({}, ("config",), "the eval set is known only"),
        ({"config": CONFIG}, (), "the eval set is known only"),
        ({"config": CONFIG}, ("config",), "the eval set is known only"),
        ({"eval_set": EIGHT}, ("eval_set", "config"), "the digest of your config"),  # ADK's defaults, as for `evaluate`
        ({"eval_set": many(7), "config": CONFIG}, ("eval_set", "config"), "the digest of your eval set"),
        ({"eval_set": EIGHT, "config": HOSTILE}, (), "the digest of your config"),
        ({"eval_set": EIGHT, "config": CONFIG}, (), NOTHING_TO_JUDGE),
        ({"config": CONFIG}, ("eval_set",), NOTHING_TO_JUDGE),
        ({}, ("eval_set", "config"), NOTHING_TO_JUDGE),
    ],
)
def test_both_are_given_or_pinned_and_the_same(given: dict[str, Any], pinned: tuple[str, ...], expected: str) -> None:
    request = reevaluation_request(EIGHT, CONFIG, policy_with(*pinned))
    with pytest.raises(UsageError) as refused:
        make_reevaluator(**given)(request)
    assert str(refused.value).startswith(expected)


def test_the_remedy_has_the_digest_to_pin() -> None:
    with pytest.raises(UsageError) as refused:
        make_reevaluator()(REQUEST)
    assert f"or pin it in the policy: eval_set: {{digest: {eval_set_digest(EIGHT)}}}" in str(refused.value)


def test_a_host_is_taken_from_the_caller_alone() -> None:
    request = reevaluation_request(EIGHT, HOSTILE, policy_with("eval_set", "config"))
    with pytest.raises(UsageError, match=r"judge_model \(evil\.example\) where or how to send requests"):
        make_reevaluator()(request)
    with pytest.raises(UsageError, match=NOTHING_TO_JUDGE):
        make_reevaluator(config=HOSTILE)(request)


def test_a_mistake_in_a_file_is_told_before_anything_is_decided(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        make_reevaluator(eval_set=tmp_path / "misspelt.evalset.json")
    with pytest.raises(InputError):
        make_reevaluator(config=tmp_path / "misspelt.json")
