"""Every way in which a run can lack evidence, in a real MLflow store: each is refused for its own reason, and nothing is promoted."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mlflow_adk_eval.gating.api import gate, promote
from mlflow_adk_eval.results.decision import GateFailed
from mlflow_adk_eval.runs.manifest import Evidence
from tests.gating.gate_kit import (
    CONFIG,
    RESPONSE,
    TRAJECTORY,
    Edit,
    Lab,
    changed,
    evidence_of,
    file_of,
    report_of,
    row_of,
    with_artifact,
    with_eval_set,
    with_manifest,
    with_table,
)

Change = Callable[[Evidence], Evidence]
Tamper = Callable[[Lab, str], object]


@dataclass(frozen=True)
class Contest:
    """A registered model whose version 1 is the champion and whose version 2 would like to be."""

    name: str
    model_id: str
    other_id: str


@pytest.fixture(scope="session", params=["lab", pytest.param("served_lab", marks=pytest.mark.slow)], ids=["SQLite", "server"])
def lab(request: pytest.FixtureRequest) -> Lab:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def contest(lab: Lab) -> Contest:
    name, model_id, other_id = "refused", lab.agent(), lab.agent()
    lab.register(name, f"models:/{other_id}")
    lab.register(name, f"models:/{model_id}")
    lab.client.set_registered_model_alias(name, "champion", "1")
    return Contest(name, model_id, other_id)


def cell(eval_id: str, criterion: str, turn: int = 0, **values: Any) -> Change:
    """Return the change of one cell, by a writer that seals what it wrote."""

    def edit(rows: list[dict[str, Any]]) -> None:
        row_of(rows, eval_id, turn).update({f"{criterion}/{column}": value for column, value in values.items()})

    return lambda evidence: with_table(evidence, edit)


def rows(edit: Edit) -> Change:
    return lambda evidence: with_table(evidence, edit)


def without_columns(criterion: str) -> Change:
    return rows(lambda found: [{key: value for key, value in row.items() if not key.startswith(f"{criterion}/")} for row in found])


def renamed(row: dict[str, Any], **values: Any) -> dict[str, Any]:
    return row | values


def tag(name: str, value: str | None) -> Change:
    return lambda evidence: changed(evidence, "tags", {name: value})


def param(name: str, value: str | None) -> Change:
    return lambda evidence: changed(evidence, "params", {name: value})


def text(name: str, content: str) -> Tamper:
    return lambda lab, run_id: lab.client.log_text(run_id, content, f"adk_eval/{name}")


def removed(name: str) -> Tamper:
    def remove(lab: Lab, run_id: str) -> None:
        (lab.artifacts(run_id) / "adk_eval" / name).unlink()

    return remove


def lowered_config(evidence: Evidence) -> Evidence:
    content = json.loads(evidence.artifacts["config.json"])
    content["criteria"][RESPONSE]["threshold"] = 0.1
    return with_artifact(param(f"threshold.{RESPONSE}", "0.1")(evidence), "config.json", json.dumps(content).encode())


def easier_case(evidence: Evidence) -> Evidence:
    def easier(content: Any) -> None:
        content["eval_cases"][0]["conversation"][0]["final_response"]["parts"][0]["text"] = "Anything."

    digest = evidence.params["adk_eval.eval_set_digest"]
    edited = with_eval_set(evidence, easier)
    assert edited.params["adk_eval.eval_set_digest"] != digest
    return changed(edited, "params", {"adk_eval.eval_set_digest": digest})


def no_evaluation(evidence: Evidence) -> Evidence:
    return replace(evidence, tags={}, params={}, metrics={}, artifacts={}, manifest=None, model_ids=())


INSTEAD = "evaluate with `mlflow-adk-eval run` or mlflow_adk_eval.evaluate, which log evidence, and use that run"
CELLS, CASES = file_of("cells", 1), file_of("cases", 1)
REFUSALS: dict[str, tuple[Change | None, Tamper | None, str]] = {
    # the run
    "still running": (lambda e: replace(e, status="RUNNING"), None, "the run is still running"),
    "killed": (lambda e: replace(e, status="KILLED"), None, "the run was killed"),
    "failed": (lambda e: replace(e, status="FAILED"), None, "the run failed"),
    "scheduled": (lambda e: replace(e, status="SCHEDULED"), None, "the run has not started"),
    "deleted": (lambda e: replace(e, lifecycle_stage="deleted"), None, "the run is deleted"),
    "no evaluation": (
        no_evaluation,
        None,
        f"the run contains no evaluation: it has neither adk_eval tags nor artifacts; {INSTEAD}",
    ),
    "scores of mlflow.genai": (
        lambda e: replace(no_evaluation(e), tags={"mlflow.runType": "genai_evaluate"}),
        None,
        f"the run contains no evaluation: mlflow.genai.evaluate logs scores but no evidence; {INSTEAD}",
    ),
    "no schema": (param("adk_eval.schema", None), None, "the run has no parameter adk_eval.schema, so its layout is unknown"),
    "future schema": (param("adk_eval.schema", "3"), None, "the run's parameter adk_eval.schema is '3'; this version of mlflow-adk-eval reads and writes 2"),
    "older schema": (param("adk_eval.schema", "1"), None, "the run's parameter adk_eval.schema is '1'; this version of mlflow-adk-eval reads and writes 2"),
    "manifest of an older schema": (
        lambda e: with_manifest(e, json.dumps({"schema": 1, "artifacts": {}}).encode()),
        None,
        "adk_eval/manifest.json is of schema 1; this version of mlflow-adk-eval reads and writes 2: read the run with the version that wrote",
    ),
    "partial": (tag("adk_eval.status", "partial"), None, "the run contains only part of the evaluation (adk_eval.status is partial)"),
    "not ended": (
        tag("adk_eval.status", "running"),
        None,
        "the evaluation did not finish (adk_eval.status is running)",
    ),
    "evaluation failed": (tag("adk_eval.status", "failed"), None, "the evaluation failed (adk_eval.status is failed)"),
    "unknown status": (tag("adk_eval.status", "fine"), None, "the run's tag adk_eval.status is 'fine'; wanted 'complete'"),
    "no status": (tag("adk_eval.status", None), None, "the run has no tag adk_eval.status, so it may be incomplete"),
    # what vouches for the artifacts
    "no manifest hash": (
        param("adk_eval.manifest_sha256", None),
        None,
        "the run has no parameter adk_eval.manifest_sha256, so its manifest cannot be checked",
    ),
    "manifest missing": (None, removed("manifest.json"), "the run has no adk_eval/manifest.json, so its artifacts cannot be checked"),
    "manifest edited": (
        None,
        text("manifest.json", '{"schema": 1, "artifacts": {}}'),
        "adk_eval/manifest.json was changed after the run: its sha256 is",
    ),
    "manifest unreadable": (lambda e: with_manifest(e, b"{"), None, "adk_eval/manifest.json cannot be read: $: found text that is not JSON"),
    "manifest of another kind": (lambda e: with_manifest(e, b"[]"), None, "adk_eval/manifest.json is not a run's manifest"),
    "table edited": (None, text(CELLS, "{}"), f"the artifact adk_eval/{CELLS} was changed after the run"),
    "config edited": (None, text("config.json", "{}"), "the artifact adk_eval/config.json was changed after the run"),
    "set edited": (None, text(CASES, "{}"), f"the artifact adk_eval/{CASES} was changed after the run"),
    "result missing": (None, removed("result.evalset_result.json"), "the artifact adk_eval/result.evalset_result.json is missing"),
    "artifact added": (None, text("notes/more.json", "{}"), "the artifact adk_eval/notes/more.json is not in the manifest"),
    "table never written": (
        lambda e: with_artifact(e, CELLS, None),
        None,
        "the manifest does not list the table",
    ),
    # what was to be evaluated
    "unreadable config": (lambda e: with_artifact(e, "config.json", b"{"), None, "adk_eval/config.json cannot be read: $: found text"),
    "unreadable set": (lambda e: with_artifact(e, CASES, b"[]"), None, f"adk_eval/{CASES} cannot be read: $: found not a Parquet file"),
    "unreadable table": (lambda e: with_artifact(e, CELLS, b"[]"), None, f"adk_eval/{CELLS} cannot be read: $: found not a Parquet file"),
    "no criteria": (
        lambda e: with_artifact(e, "config.json", b'{"criteria": {}}'),
        None,
        "adk_eval/config.json cannot be read: $.criteria: found no criterion",
    ),
    "config rewritten with its manifest": (lowered_config, None, "adk_eval/config.json is not the evaluated one: its digest is sha256:"),
    "set rewritten with its manifest": (easier_case, None, "adk_eval/cases is not the evaluated one: its digest is sha256:"),
    "no config digest": (param("adk_eval.config_digest", None), None, "the run has no parameter adk_eval.config_digest"),
    "no set digest": (param("adk_eval.eval_set_digest", None), None, "the run has no parameter adk_eval.eval_set_digest"),
    "threshold param edited": (
        param(f"threshold.{TRAJECTORY}", "0.1"),
        None,
        f"the run's parameter threshold.{TRAJECTORY} is 0.1, but its config demands 1.0",
    ),
    "threshold param missing": (
        param(f"threshold.{RESPONSE}", None),
        None,
        f"the run has no parameter threshold.{RESPONSE}, although its config demands 0.5",
    ),
    "threshold of nothing": (
        param("threshold.safety_v1", "1.0"),
        None,
        "the run has a parameter threshold.safety_v1, but its config has no such criterion",
    ),
    "empty set": (
        lambda e: with_eval_set(e, lambda found: found["eval_cases"].clear()),
        None,
        "the eval set has no cases, so there is nothing to evaluate",
    ),
    "duplicate cases": (
        lambda e: with_eval_set(e, lambda found: found["eval_cases"].append(found["eval_cases"][1])),
        None,
        "the eval set contains case 'heating' 2 times: in adk_eval/cases/part-00001.parquet",
    ),
    "number of runs unknown": (
        param("adk_eval.num_runs", None),
        None,
        "the run has no parameter adk_eval.num_runs, so the number of runs per case is unknown",
    ),
    "number of runs senseless": (
        param("adk_eval.num_runs", "0"),
        None,
        "the run's parameter adk_eval.num_runs is '0'; wanted a whole number of at least 1",
    ),
    # what came of it
    "case deleted": (rows(lambda found: [row for row in found if row["eval_id"] != "film"]), None, "case 'film' is not in the table"),
    "turn deleted": (
        rows(lambda found: [row for row in found if row["key"] != "lights #2"]),
        None,
        "case 'lights', turn 2, is not in the table",
    ),
    "table empty": (rows(lambda found: []), None, "case 'lights' is not in the table"),
    "run missing": (param("adk_eval.num_runs", "2"), None, "run 2 of case 'lights' is not in the table"),
    "run too many": (
        rows(lambda found: [*found, *(renamed(row, run_index=1) for row in found)]),
        None,
        "the table has rows for run 2 of case 'lights', but num_runs is 1",
    ),
    "case added": (
        rows(lambda found: [*found, renamed(found[0], eval_id="easy")]),
        None,
        "the table has rows for case 'easy', but the part does not contain it",
    ),
    "duplicate rows": (
        rows(lambda found: [*found, found[0]]),
        None,
        "the table has 2 rows for case 'lights', run_index 0, invocation_index 0",
    ),
    "row of no case": (rows(lambda found: [renamed(found[0], eval_id=None), *found]), None, "row 1 of the table has the eval_id None"),
    "row of no turn": (
        rows(lambda found: [renamed(found[0], invocation_index=-1), *found]),
        None,
        "row 1 of the table has the invocation_index -1",
    ),
    "criterion missing": (
        without_columns(TRAJECTORY),
        None,
        f"the criterion {TRAJECTORY} is missing: the table has no column {TRAJECTORY}/score",
    ),
    "NaN": (
        cell("heating", RESPONSE, score=float("nan")),
        None,
        f"case 'heating', turn 1: the score of {RESPONSE} is NaN, which is not a number",
    ),
    "infinity": (
        cell("heating", RESPONSE, score=float("inf")),
        None,
        f"case 'heating', turn 1: the score of {RESPONSE} is Infinity, outside its range from 0 to 1",
    ),
    "out of bounds": (
        cell("heating", RESPONSE, score=1.5),
        None,
        f"case 'heating', turn 1: the score of {RESPONSE} is 1.5, outside its range from 0 to 1",
    ),
    "score as text": (
        cell("heating", RESPONSE, score="1.0"),
        None,
        f"adk_eval/{CELLS} cannot be read: $: found other types (the column {RESPONSE}/score is of string); wanted numbers in {RESPONSE}/score",
    ),
    "score gone": (
        cell("heating", RESPONSE, score=None),
        None,
        f"case 'heating', turn 1: the score of {RESPONSE} is None, which is not a number",
    ),
    "score of an errored cell": (
        cell("heating", RESPONSE, status="errored"),
        None,
        f"case 'heating', turn 1: {RESPONSE} has the score 1.0 but the status 'errored'",
    ),
    "unknown cell status": (
        cell("heating", RESPONSE, score=None, status="fine"),
        None,
        f"case 'heating', turn 1: {RESPONSE} has the unknown status 'fine'",
    ),
    "cell not planned": (
        cell("lights", RESPONSE, 1, score=None, status=None),
        None,
        f"case 'lights', turn 2: {RESPONSE} has no status",
    ),
    "errored cell": (
        cell("film", TRAJECTORY, 1, score=None, status="errored", reason="judge down"),
        None,
        f"{TRAJECTORY}: 1 of 5 scores errored, so they are missing: film, turn 2: judge down",
    ),
    "skipped cell": (
        cell("film", TRAJECTORY, 1, score=None, status="skipped", reason="not needed"),
        None,
        f"{TRAJECTORY}: 1 of 5 scores skipped, so they are missing: film, turn 2: not needed",
    ),
    "agent did not finish": (
        rows(lambda found: [renamed(row, agent_error="timeout" if row["eval_id"] == "film" else "") for row in found]),
        None,
        "film: the agent did not finish: timeout",
    ),
    # what the run says of it
    "metric edited": (
        cell("heating", RESPONSE, score=0.6),
        lambda lab, run_id: lab.client.log_metric(run_id, f"{RESPONSE}/mean", 1.0),
        f"the logged metric {RESPONSE}/mean is 1, but the table gives 0.866667",
    ),
    "metric NaN": (
        None,
        lambda lab, run_id: lab.client.log_metric(run_id, f"{TRAJECTORY}/mean", float("nan")),
        f"the logged metric {TRAJECTORY}/mean is nan, but the table gives 1",
    ),
    "metric of nothing": (
        None,
        lambda lab, run_id: lab.client.log_metric(run_id, "token_usage_v1/mean", 5.0),
        "the logged metric token_usage_v1/mean is 5, but nothing in the table supports it",
    ),
    "metric edited within what a column shows": (
        cell("heating", RESPONSE, score=0.6),
        lambda lab, run_id: lab.client.log_metric(run_id, f"{RESPONSE}/mean", 0.866668),
        f"the logged metric {RESPONSE}/mean is 0.866668, but the table gives 0.866667",
    ),
    "threshold edited": (
        None,
        lambda lab, run_id: lab.client.log_metric(run_id, f"{TRAJECTORY}/threshold", 0.5),
        f"the logged metric {TRAJECTORY}/threshold is 0.5, but the table gives 1",
    ),
    "number of cases edited": (
        None,
        lambda lab, run_id: lab.client.log_metric(run_id, "cases", 500),
        "the logged metric cases is 500, but the table gives 3",
    ),
    "verdict edited": (
        None,
        lambda lab, run_id: lab.client.set_tag(run_id, "adk_eval.verdict", "failed"),
        "the run's tag adk_eval.verdict is 'failed', but its table gives 'passed'",
    ),
    "verdict missing": (tag("adk_eval.verdict", None), None, "the run has no tag adk_eval.verdict"),
    # which agent it was
    "model id not among the inputs": (
        lambda e: replace(e, model_ids=()),
        None,
        "the run's parameter adk_eval.model_id names the agent version",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSALS)
def test_what_lacks_evidence_is_refused_for_its_own_reason(why: str, lab: Lab, contest: Contest) -> None:
    change, tamper, expected = REFUSALS[why]
    evidence = evidence_of(report_of(), model_id=contest.model_id)
    run_id = lab.log(change(evidence) if change else evidence)
    if tamper:
        tamper(lab, run_id)

    decision = gate(run_id, raise_on_failure=False, tracking_uri=lab.uri)
    assert decision.verdict == "undecided"
    reasons = [re.sub(r"adk_eval/cells/part-\d{5}\.parquet(?! (cannot|was))", "the table", reason) for reason in decision.reasons]
    assert any(reason.startswith(expected) for reason in reasons), reasons
    with pytest.raises(GateFailed) as caught:
        promote(contest.name, 2, run_id=run_id, tracking_uri=lab.uri)
    assert caught.value.exit_code == 2
    assert set(decision.reasons) <= set(caught.value.decision.reasons)
    assert lab.alias(contest.name) == "1"


def test_no_two_ways_have_the_same_reason() -> None:
    expected = sorted(expected for _, _, expected in REFUSALS.values())
    alike = [(one, two) for one, two in itertools.pairwise(expected) if two.startswith(one)]
    assert alike in ([], [("case 'lights' is not in the table",) * 2])


def test_a_missed_threshold_is_refused_as_failed(lab: Lab, contest: Contest) -> None:
    run_id = lab.log(evidence_of(report_of(wrong=["heating"]), model_id=contest.model_id))
    with pytest.raises(GateFailed, match=r"1 of 3 cases below the threshold 1\.0") as caught:
        promote(contest.name, 2, run_id=run_id, tracking_uri=lab.uri)
    assert caught.value.exit_code == 1
    assert lab.alias(contest.name) == "1"


def test_the_metric_of_a_failed_run_edited_upwards_is_refused(lab: Lab, contest: Contest) -> None:
    run_id = lab.log(evidence_of(report_of(wrong=["heating"]), model_id=contest.model_id))
    lab.client.log_metric(run_id, f"{TRAJECTORY}/mean", 1.0)
    lab.client.set_tag(run_id, "adk_eval.verdict", "passed")
    decision = promote(contest.name, 2, run_id=run_id, raise_on_failure=False, tracking_uri=lab.uri)
    assert decision.verdict == "undecided"
    assert decision.reasons[:2] == (
        f"the logged metric {TRAJECTORY}/mean is 1, but the table gives 0.666667",
        "the run's tag adk_eval.verdict is 'passed', but its table gives 'failed'",
    )
    assert lab.alias(contest.name) == "1"


def refused_version(lab: Lab, contest: Contest, name: str, source: str, evidence: Evidence) -> tuple[str, ...]:
    """Return why a version made from `source` is refused; its model has no champion, and must not get one."""
    version = lab.register(name, source)
    decision = promote(name, version, run_id=lab.log(evidence), raise_on_failure=False, tracking_uri=lab.uri)
    assert decision.verdict == "undecided"
    assert lab.alias(name) is None
    return decision.reasons


def test_the_run_of_another_agent_version_is_refused(lab: Lab, contest: Contest, model: str) -> None:
    evidence = evidence_of(report_of(), model_id=contest.other_id)
    reasons = refused_version(lab, contest, model, f"models:/{contest.model_id}", evidence)
    assert reasons == (f"the run evaluated another agent version: {contest.other_id}, not {contest.model_id}",)


def test_a_run_that_got_the_version_as_an_input_later_is_refused(lab: Lab, contest: Contest, model: str) -> None:
    evidence = replace(evidence_of(report_of(), model_id=contest.other_id), model_ids=(contest.other_id, contest.model_id))
    reasons = refused_version(lab, contest, model, f"models:/{contest.model_id}", evidence)
    assert reasons == (f"the run evaluated another agent version: {contest.other_id}, not {contest.model_id}",)


def test_a_run_that_does_not_say_which_agent_it_evaluated_is_refused(lab: Lab, contest: Contest, model: str) -> None:
    evidence = changed(evidence_of(report_of(), model_id=contest.model_id), "params", {"adk_eval.model_id": None})
    reasons = refused_version(lab, contest, model, f"models:/{contest.model_id}", evidence)
    assert reasons == ("the run has no parameter adk_eval.model_id, so the evaluated agent version is unknown",)


def test_a_version_that_is_no_logged_model_is_refused(lab: Lab, contest: Contest, model: str) -> None:
    source = "s3://elsewhere/agent"
    reasons = refused_version(lab, contest, model, source, evidence_of(report_of(), model_id=contest.model_id))
    assert reasons == (f"version 1 of {model!r} was made from {source!r}, not from a LoggedModel, so the gate cannot tell its agent",)


def test_a_version_that_is_not_ready_is_refused(lab: Lab, contest: Contest, model: str) -> None:
    version = lab.register(model, f"models:/{contest.model_id}")
    lab.execute("UPDATE model_versions SET status = 'PENDING_REGISTRATION' WHERE name = ?", model)
    run_id = lab.log(evidence_of(report_of(), model_id=contest.model_id))
    decision = promote(model, version, run_id=run_id, raise_on_failure=False, tracking_uri=lab.uri)
    assert decision.reasons == (f"version 1 of {model!r} is PENDING_REGISTRATION; only a READY version can be promoted",)
    assert lab.alias(model) is None


def test_a_good_run_of_the_same_store_is_not_refused(lab: Lab, contest: Contest) -> None:
    run_id = lab.log(evidence_of(report_of(config=CONFIG), model_id=contest.model_id))
    assert gate(run_id, agent_version=contest.model_id, tracking_uri=lab.uri).passed
