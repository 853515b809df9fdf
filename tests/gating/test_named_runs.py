"""A run that is named by the beginning of its id, and names that are none."""

from __future__ import annotations

import pytest

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.named_runs import run_id_at
from tests.gating.gate_kit import Lab


def test_a_beginning_of_several_ids_names_none(lab: Lab) -> None:
    found: dict[str, str] = {}
    for number in range(20):  # of the ids that a server chooses, 17 begin with 16 digits
        run_id = lab.client.create_run(lab.experiment_id, run_name=f"run {number}").info.run_id
        found.setdefault(run_id[0], run_id)
    some = next(iter(found.values()))
    assert run_id_at(some[:20], lab.uri) == some
    twin = some[:4] + "f" * 28
    lab.execute("UPDATE runs SET run_uuid = ? WHERE name = 'run 19'", twin)
    with pytest.raises(UsageError, match=f"'{some[:4]}' is ambiguous: ") as ambiguous:
        run_id_at(some[:4], lab.uri)
    assert all(part in str(ambiguous.value) for part in (twin, some, "run 19, started 20"))
    with pytest.raises(UsageError, match=r"'lastest' does not exist in this MLflow store\. Did you mean 'latest'"):
        run_id_at("lastest", lab.uri)
    with pytest.raises(UsageError, match="too short; wanted an id, at least 4 characters"):
        run_id_at(some[:3], lab.uri)
    with pytest.raises(UsageError, match="does not exist"):
        run_id_at("0000000000", lab.uri)
