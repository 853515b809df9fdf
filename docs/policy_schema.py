"""Writes docs/gate.schema.json, the JSON Schema of a policy, from its model."""

from __future__ import annotations

import json
from pathlib import Path

from mlflow_adk_eval.gating.policy.load import policy_schema

if __name__ == "__main__":
    Path(__file__).with_name("gate.schema.json").write_text(json.dumps(policy_schema(), indent=2), "utf-8")
