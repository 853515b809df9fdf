"""Comments in configs: a small set of keys that are left out, so that a typo in any other stays an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.config.eval_config import dumps_config, load_config
from mlflow_adk_eval.errors import ConfigError, InputError
from mlflow_adk_eval.evalset.files import load_eval_set
from mlflow_adk_eval.gating.policy.load import load_policy

PLAIN: dict[str, Any] = {"criteria": {"response_match_score": {"threshold": 0.5}}}
COMMENTED: dict[str, Any] = {
    "$schema": "https://example.com/config.json",
    "_comment": "agreed in May",
    "comment": ["a", "list"],
    "description": "smoke",
    "criteria": {"response_match_score": {"threshold": 0.5, "_why": "as before", "$note": 1}},
    "live_model_config": {"timeout_seconds": 5, "_why": "slow"},
}
CODE = {"code_config": {"name": "os.path.join"}}


def test_comments_change_nothing() -> None:
    plain = load_config({**PLAIN, "live_model_config": {"timeout_seconds": 5}})
    commented = load_config(COMMENTED)
    assert commented == plain
    assert commented.digest() == plain.digest()
    assert dumps_config(commented) == dumps_config(plain)


@pytest.mark.parametrize("key", ["comments", "descriptions", "critera", "note", "Comment", "customMetric"])
def test_any_other_unknown_key_is_an_error(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: found an unknown key"):
        load_config({**PLAIN, key: "x"})


def test_no_comment_stands_where_adk_would_read_it_as_a_criterion() -> None:
    with pytest.raises(ConfigError, match="_why: found an unknown criterion"):
        load_config({"criteria": {"response_match_score": 0.5, "_why": "as before"}})
    with pytest.raises(ConfigError, match="comment: found an unknown key"):
        load_config({"criteria": {"response_match_score": {"threshold": 0.5, "comment": "x"}}})


def test_the_settings_of_a_custom_metric_are_its_own() -> None:
    config = load_config({"criteria": {"mine": {"threshold": 0.5, "_mode": "x"}}, "custom_metrics": {"mine": CODE}})
    assert config.criteria["mine"].model_dump()["_mode"] == "x"


CASE = {"eval_case_id": "hours", "prompt": {"role": "user", "parts": [{"text": "When?"}]}}
DATASETS: list[Any] = [
    {"eval_cases": [CASE]},
    {"evalCases": [{"evalCaseId": "a", "agentData": {}}]},
    {"eval_set_id": "x", "eval_cases": [{"eval_id": "a", "prompt": "p", "reference": "r"}]},
    [CASE, CASE],
]


@pytest.mark.parametrize("value", DATASETS)
def test_a_dataset_of_agents_cli_is_one_error_that_names_it(tmp_path: Path, value: Any) -> None:
    (tmp_path / "set.json").write_text(json.dumps(value))
    with pytest.raises(InputError) as refused:
        load_eval_set(tmp_path / "set.json")
    (problem,) = refused.value.problems
    assert "agents-cli" in problem.found
    assert "user_content" in problem.hint
    assert "Did you mean" not in str(refused.value)
    lines = "".join(
        json.dumps(case) + "\n"
        for case in (value if isinstance(value, list) else next(iter(value.values())) if len(value) == 1 else [CASE])
    )
    (tmp_path / "rows.jsonl").write_text(lines)
    with pytest.raises(InputError, match="agents-cli"):
        load_eval_set(tmp_path / "rows.jsonl")


CONFIG = "metrics_to_run:\n  - quality\ncustom_metrics:\n  - name: quality\n"
AGENT = "# yaml-language-server: x\nname: opener\nmodel: gemini-2.5-flash\ninstruction: Say when we open.\n"


def test_a_config_of_agents_cli_and_an_agent_are_no_policies(tmp_path: Path) -> None:
    (tmp_path / "eval_config.yaml").write_text(CONFIG)
    (tmp_path / "root_agent.yaml").write_text(AGENT)
    (tmp_path / "eval_config.json").write_text('{"metrics_to_run": ["quality"]}')
    for load, name in ((load_policy, "eval_config.yaml"), (load_config, "eval_config.yaml"), (load_config, "eval_config.json")):
        with pytest.raises(ConfigError, match="a config of agents-cli") as refused:
            load(tmp_path / name)
        assert len(refused.value.problems) == 1
    with pytest.raises(InputError, match=r"1 problem in this input\n.*an ADK agent in YAML"):
        load_policy(tmp_path / "root_agent.yaml")
    (tmp_path / "test_config.yaml").write_text("criteria:\n  safety_v1: 1\n")
    with pytest.raises(ConfigError, match="found YAML; wanted JSON with criteria"):
        load_config(tmp_path / "test_config.yaml")


def test_a_policy_that_has_the_name_of_a_model_is_still_a_policy(tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text("name: gemini\nrules:\n  response_match_score: {min: 0.5}\n")
    assert load_policy(tmp_path / "gate.yaml").name == "gemini"
