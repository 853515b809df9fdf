"""What a run holds of its judges: votes, metrics, parameters, assessments."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest

from mlflow_adk_eval import score
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.results.outcomes import Vote
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runs.parts import parse_votes
from mlflow_adk_eval.tracking.bundle import Bundle, Run, bundle_of, metrics_of, start_params
from mlflow_adk_eval.tracking.trace_records import Assessed
from tests.tracking import judged, small
from tests.tracking.judged import DOWN, MATCH, MODEL, RUBRICS, TRAJECTORY, USAGE

RUN = Run(
    run_id="0" * 32,
    experiment_id="1",
    model_id="m-1",
    dataset_name="rooms",
    dataset_digest="0123",
    agent_name="agent",
    started_ms=1_700_000_000_000,
)
VOTES = "votes/part-00000.parquet"
SECRET = {"s3cret-42": "[API_KEY]"}


def bundle(report: Report | None = None, **options: Any) -> Bundle:
    return bundle_of(report or judged.report(), RUN, **({"traces": True, "secrets": {}} | options))


def votes_in(found: Bundle) -> tuple[Vote, ...]:
    return parse_votes(found.artifacts[VOTES], "votes")


def with_votes(report: Report, **changes: Any) -> Report:
    """Return the report with other votes on the first case's final responses."""
    first, *others = report.cases
    results = tuple(
        replace(result, votes=tuple(replace(vote, **changes) for vote in result.votes)) if result.criterion == MATCH else result
        for result in first.results
    )
    return replace(report, cases=(replace(first, results=results), *others))


# Votes


def test_every_vote_is_kept_with_the_hash_of_them_all_in_the_manifest() -> None:
    made = bundle()
    report = judged.report()
    assert votes_in(made) == tuple(vote for case in report.cases for result in case.results for vote in result.votes)
    manifest = json.loads(made.artifacts["manifest.json"])
    assert manifest["artifacts"][VOTES] == hashlib.sha256(made.artifacts[VOTES]).hexdigest()


def test_the_file_has_the_columns_of_the_frame() -> None:
    import pandas as pd

    frame = pd.read_parquet(BytesIO(bundle().artifacts[VOTES]))
    assert list(frame.columns) == list(judged.report().to_frame("votes").columns)
    assert int(frame["reused"].sum()) == 1


def test_without_a_single_vote_the_file_is_empty_where_judges_were_to_decide_and_absent_where_not() -> None:
    silent = score(judged.rooms(), {}, {"criteria": {"response_match_score": 0.5}})
    assert VOTES not in bundle(silent).artifacts
    planned = replace(silent, config=parse_config(judged.CONFIG, "config"), cases=())
    assert votes_in(bundle(planned)) == ()


def test_secrets_reach_nothing_that_is_logged_of_a_vote() -> None:
    said = {"explanation": "the key s3cret-42 is in it", "raw": "s3cret-42", "error": "401 for s3cret-42"}
    made = bundle(with_votes(judged.report(), **said), secrets=SECRET)
    first = votes_in(made)[0]
    assert (first.explanation, first.raw, first.error) == ("the key [API_KEY] is in it", "[API_KEY]", "401 for [API_KEY]")
    assert "s3cret-42" not in str(made)


def test_a_secret_is_struck_before_a_long_text_is_cut() -> None:
    details = dict(judged.SPLIT.details) | {"dissent": ["x" * 295 + "s3cret-42"]}
    report = judged.report()
    first, *others = report.cases
    cells = (replace(judged.SPLIT, details=details), judged.UNANIMOUS)
    results = tuple(replace(result, per_invocation=cells) if result.criterion == MATCH else result for result in first.results)
    made = bundle(replace(report, cases=(replace(first, results=results), *others)), secrets=SECRET)
    dissent = feedback(made, "[light #1] light on")[MATCH].metadata["dissent"]
    assert dissent.endswith("[API…")
    assert len(dissent) == 300


# Metrics, parameters, tags


def test_what_judging_took_is_in_the_metrics() -> None:
    assert {name: value for name, value in metrics_of(judged.report()) if name.startswith("judge/")} == {
        "judge/calls": 13,
        "judge/tokens": 1234,
        "judge/calls_saved": 4,
        "judge/reused": 3,
        "judge/asked_elsewhere": 0,
        "judge/shared": 0,
        "judge/flip_rate": 0.25,
    }


def test_no_votes_have_no_flip_rate_and_no_judges_no_metrics() -> None:
    unasked = dict(metrics_of(judged.report(usage=JudgeUsage())))
    assert unasked["judge/calls"] == 0
    assert "judge/flip_rate" not in unasked
    assert not [name for name, _ in metrics_of(judged.report(usage=None)) if name.startswith("judge/")]


def test_who_judged_and_by_which_prompts_is_in_the_parameters() -> None:
    params = bundle().params
    assert params["adk_eval.judge_model"] == "gemini-2.5-flash"
    assert params[f"adk_eval.judge.{MATCH}"] == params[f"adk_eval.judge.{RUBRICS}"] == MODEL
    assert params[f"adk_eval.prompt.{MATCH}"] == f"1+1 {'a' * 64}"
    assert params[f"adk_eval.prompt.{RUBRICS}"] == f"2+1 {'b' * 64}"
    assert not [name for name in bundle(judged.report(usage=None)).params if "judge" in name or "prompt" in name]


def test_a_judge_that_never_answered_is_not_said_to_have_judged() -> None:
    made = bundle(with_votes(judged.report(), verdict=None))
    assert made.params[f"adk_eval.judge.{MATCH}"] == MODEL  # the other case's one vote
    report = judged.report()
    assert f"adk_eval.judge.{MATCH}" not in bundle(with_votes(replace(report, cases=report.cases[:1]), verdict=None)).params


def test_several_versions_that_answered_are_all_named() -> None:
    assert bundle(with_votes(judged.report(), model="a-newer-one")).params[f"adk_eval.judge.{MATCH}"] == f"a-newer-one | {MODEL}"


def test_how_often_judges_are_asked_is_known_from_the_config() -> None:
    criteria = judged.CONFIG["criteria"] | {
        "safety_v1": 1.0,
        "multi_turn_task_success_v1": {"threshold": 0.5, "backend": "judge"},
    }
    config = parse_config({"criteria": criteria, "case_criteria": {"heat": {MATCH: 0.8}}}, "config")
    assert {name: value for name, value in start_params(config, "", "").items() if name.startswith("adk_eval.num_samples.")} == {
        f"adk_eval.num_samples.{MATCH}": "3 | 5",
        f"adk_eval.num_samples.{RUBRICS}": "5",
        "adk_eval.num_samples.multi_turn_task_success_v1": "5",
    }


def test_an_outage_is_a_parameter_and_stands_in_the_note() -> None:
    down = bundle(judged.report(usage=replace(USAGE, outage="gemini: 503 s3cret-42 for 60 s")), secrets=SECRET)
    assert down.params["adk_eval.judge_outage"] == "gemini: 503 [API_KEY] for 60 s"
    assert "a judge stopped responding" in down.tags["mlflow.note.content"]
    assert "s3cret" not in str(down)
    assert "adk_eval.judge_outage" not in bundle().params


# Assessments


def feedback(found: Bundle, preview: str) -> dict[str, Assessed]:
    (record,) = (record for record in found.traces if record.request_preview == preview)
    return {assessed.name: assessed for assessed in record.feedback}


def test_an_assessment_says_how_the_votes_went_and_what_the_losing_side_said() -> None:
    found = feedback(bundle(), "[light #1] light on")
    assert (found[MATCH].value, found[MATCH].rationale, found[MATCH].judge) == (1.0, "valid 2:1: it says the same", MODEL)
    assert found[MATCH].metadata == {
        "status": "scored",
        "threshold": "0.8",
        "votes": "3",
        "tally": "valid 2, invalid 1",
        "split": "true",
        "dissent": "invalid: no room",
    }
    assert found[RUBRICS].metadata == {
        "status": "scored",
        "threshold": "0.25",
        "votes": "5",
        "tally": "short: yes 2; polite: no 2, yes 1",
        "split": "true",
        "dissent": "polite: yes: it says please",
    }
    assert (found[TRAJECTORY].judge, found[TRAJECTORY].metadata) == ("", {"status": "scored", "threshold": "1.0"})


def test_where_all_agree_there_is_no_dissent_and_where_nobody_was_asked_no_judge() -> None:
    found = feedback(bundle(), "[light #2] thanks")
    assert {name: found[MATCH].metadata.get(name) for name in ("tally", "split", "dissent")} == {
        "tally": "valid 2",
        "split": "false",
        "dissent": None,
    }
    assert (found[RUBRICS].value, found[RUBRICS].judge) == (0.0, "")
    assert found[RUBRICS].metadata == {"status": "scored", "threshold": "0.25"}


def test_a_verdict_that_could_not_be_had_is_an_error_of_the_judge_with_the_votes_that_were_cast() -> None:
    found = feedback(bundle(), "[heat #1] 21 degrees please")
    assert (found[MATCH].value, found[MATCH].code, found[MATCH].error) == (None, "JUDGE_ERROR", judged.LOST.error)
    assert found[MATCH].metadata == {
        "status": "errored",
        "threshold": "0.8",
        "votes": "1",
        "tally": "valid 1",
        "split": "false",
        "vote_errors": DOWN,
    }
    assert found[RUBRICS].metadata["tally"] == "short: yes 2; polite: no 1"


def test_dissent_is_cut_to_a_length_that_can_be_read() -> None:
    report = judged.report()
    first, *others = report.cases
    details = dict(judged.SPLIT.details) | {"dissent": [f"invalid: {number}{'!' * 5000}" for number in range(20)]}
    cells = (replace(judged.SPLIT, details=details), judged.UNANIMOUS)
    results = tuple(replace(result, per_invocation=cells) if result.criterion == MATCH else result for result in first.results)
    made = bundle(replace(report, cases=(replace(first, results=results), *others)))
    dissent = feedback(made, "[light #1] light on")[MATCH].metadata["dissent"]
    assert len(dissent) == 2000
    assert dissent.count("\n") == 6


@pytest.fixture(scope="module")
def kept(template: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of a judged report in a store, with its traces by what they show of the request."""
    import contextlib

    from mlflow import MlflowClient

    from tests.mlflow_kit import copied

    folder = tmp_path_factory.mktemp("judged")
    uri = copied(template, folder)
    with contextlib.chdir(folder):
        made = judged.logged(uri, judged.report(), "judged")
    client = MlflowClient(uri)
    found = client.search_traces(locations=[made.run.experiment_id], run_id=made.run.run_id, include_spans=False)
    traces = {trace.info.request_preview: {one.name: one for one in trace.info.assessments} for trace in found}
    return client.get_run(made.run.run_id), traces


def test_all_of_it_arrives_in_mlflow(kept: Any) -> None:
    run, traces = kept
    assert run.data.tags["adk_eval.status"] == "complete"
    assert run.data.metrics["judge/flip_rate"] == 0.25
    assert run.data.params[f"adk_eval.num_samples.{MATCH}"] == "3"
    assert run.data.params[f"adk_eval.prompt.{RUBRICS}"].startswith("2+1 ")
    assert run.data.params["adk_eval.version.google-genai"]
    found = traces["[light #1] light on"][MATCH]
    assert (found.value, found.source.source_type, found.source.source_id) == (1.0, "LLM_JUDGE", MODEL)
    assert found.metadata["dissent"] == "invalid: no room"
    assert found.rationale == "valid 2:1: it says the same"
    lost = traces["[heat #1] 21 degrees please"][RUBRICS]
    assert (lost.value, lost.error.error_code, lost.source.source_type) == (None, "JUDGE_ERROR", "LLM_JUDGE")
    assert traces["[light #1] light on"][TRAJECTORY].source.source_type == "CODE"
    assert {one.source.source_type for found in traces.values() for one in found.values() if one.name.endswith("_v2")} == {"LLM_JUDGE"}


def test_the_gate_takes_what_was_logged_for_evidence(store: str) -> None:
    from mlflow_adk_eval.gating.api import gate

    made = judged.logged(store, judged.report(lost=False), "gated")
    decision = gate(made.run.run_id, tracking_uri=store)
    assert decision.passed
    assert decision.reasons[0] == "2 cases of eval set 'rooms' evaluated on 3 criteria, nothing left out"


def test_runs_without_judges_are_what_they_were() -> None:
    plain = bundle(score(small.rooms(), small.expected_of(small.rooms()), small.CONFIG))
    assert VOTES not in plain.artifacts
    assert {name.partition(".")[2] for name in plain.params} == {"num_runs", "turns", "traces", "trace_count", "manifest_sha256"}
