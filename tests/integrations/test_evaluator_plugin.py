"""``mlflow.models.evaluate(..., evaluators="adk")``: the same scores, the same run, and a gate that knows what they are worth."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval import EvalSet, evaluate, gate, score
from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.files import dump, dumps
from mlflow_adk_eval.evalset.models import eval_set_digest
from mlflow_adk_eval.testing import ScriptedJudge, Unavailable
from tests.integrations.plugin_kit import cold, configured_store
from tests.mlflow_kit import Server
from tests.tracking import small
from tests.tracking.small import CONFIG, answering, expected_of, rooms

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # how MLflow takes a table apart

MATCH = "final_response_match_v2"
JUDGED: dict[str, Any] = {"criteria": {MATCH: {"threshold": 0.8, "judge_model_options": {"num_samples": 1}}}}
SHORT = {"criteria": {"response_match_score": 0.5}}


@pytest.fixture(scope="module", autouse=True)
def uri(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow loads its list of evaluators in a way that Python 3.12 has given up
        importlib.import_module("mlflow.models.evaluation.evaluator_registry")
    with configured_store(template, tmp_path_factory.mktemp("plugin")) as configured:
        yield configured


def evaluated(data: Any = None, *, model: Any = None, **config: Any) -> Any:
    import mlflow

    given = mlflow.data.from_adk_evalset(rooms()) if data is None else data
    told = {"config": CONFIG} | config
    return mlflow.models.evaluate(model=model, data=given, model_type="adk", evaluators="adk", evaluator_config=told)


def run_of(result: Any) -> Any:
    import mlflow

    return mlflow.get_run(result.run_id)


def verdict(result: Any) -> Any:
    return gate(result.run_id, raise_on_failure=False)


# The same as evaluate()


def test_the_metrics_are_those_of_evaluate_and_of_the_run() -> None:
    import mlflow

    report = evaluate(rooms(), cold(), CONFIG, experiment="of evaluate")
    result = evaluated(actual=cold())
    assert result.metrics["response_match_score/mean"] == pytest.approx(2 / 3)
    assert result.metrics == mlflow.get_run(report.run_id).data.metrics == run_of(result).data.metrics


def test_the_run_holds_all_that_evaluate_logs() -> None:
    import mlflow

    theirs = mlflow.get_run(evaluate(rooms(), cold(), CONFIG, experiment="logged by evaluate").run_id)
    run = run_of(evaluated(actual=cold()))
    assert run.info.status == "FINISHED"
    assert run.data.tags.keys() == theirs.data.tags.keys() - {"mlflow.adk_eval.creation"}  # MLflow has created this one
    assert run.data.params.keys() == theirs.data.params.keys()
    assert run.data.params["adk_eval.eval_set_digest"] == eval_set_digest(rooms())
    assert (run.data.tags["adk_eval.status"], run.data.tags["adk_eval.verdict"]) == ("complete", "failed")
    (logged,) = run.inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest) == ("rooms", eval_set_digest(rooms()).removeprefix("sha256:")[:36])
    assert [model.model_id for model in run.inputs.model_inputs] == [run.data.params["adk_eval.model_id"]]
    client = mlflow.MlflowClient()
    traces = client.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id, include_spans=False)
    assert min(trace.info.request_preview for trace in traces) == "[both #1] all off"
    assert len(traces) == 5
    metric = next(
        found for found in client.get_logged_model(run.data.params["adk_eval.model_id"]).metrics if found.run_id == run.info.run_id
    )
    assert (metric.dataset_name, metric.dataset_digest) == (logged.dataset.name, logged.dataset.digest)


def test_the_gate_decides_on_its_runs() -> None:
    assert verdict(evaluated(actual=expected_of(rooms()))).verdict == "passed"
    assert verdict(evaluated(actual=cold())).verdict == "failed"


def test_an_agent_has_the_conversations_of_the_data() -> None:
    result = evaluated(agent=answering(rooms(), heat="no"), num_runs=2, concurrency=2)
    assert run_of(result).data.params["adk_eval.num_runs"] == "2"
    assert result.metrics["case_pass_rate"] == pytest.approx(2 / 3)


def test_the_data_may_be_what_the_agent_did() -> None:
    import mlflow

    recorded = EvalSet(eval_set_id="recorded", eval_cases=tuple(case for case in rooms().eval_cases if case.eval_id != "both"))
    result = evaluated(mlflow.data.from_adk_evalset(recorded), expected=rooms())
    assert result.metrics["cases"] == 3
    assert result.metrics["response_match_score/errored"] == 2
    assert verdict(result).verdict == "undecided"
    inputs = {found.dataset.name: found.dataset.digest for found in run_of(result).inputs.dataset_inputs}
    assert inputs["rooms"] == eval_set_digest(rooms()).removeprefix("sha256:")[:36]
    assert set(inputs) == {"rooms", "recorded"}


def test_the_config_beside_the_file_is_taken(tmp_path: Path) -> None:
    import mlflow

    (tmp_path / "rooms.evalset.json").write_text(dumps(rooms()))
    (tmp_path / "test_config.json").write_text(json.dumps({"criteria": {"response_match_score": 0.25}}))
    result = evaluated(mlflow.data.from_adk_evalset(str(tmp_path / "rooms.evalset.json")), config=None, actual=cold())
    assert run_of(result).data.params["threshold.response_match_score"] == "0.25"


# What proves nothing


def test_data_held_against_itself_is_scored_and_refused_by_the_gate() -> None:
    with pytest.warns(UserWarning, match="the data is used as both the expected and the actual turns"):
        result = evaluated()
    assert result.metrics["response_match_score/mean"] == 1.0
    assert run_of(result).data.tags["adk_eval.status"] == "self_comparison"
    decision = verdict(result)
    assert decision.verdict == "undecided"
    assert any("compared with itself" in reason for reason in decision.reasons)


def test_that_stays_so_when_its_tags_are_rewritten() -> None:
    import mlflow

    with pytest.warns(UserWarning, match="the data is used as both the expected and the actual turns"):
        result = evaluated()
    mlflow.MlflowClient().set_tag(run_of(result).info.run_id, "adk_eval.status", "complete")
    decision = verdict(result)
    assert decision.verdict == "undecided"
    assert any("adk_eval.evidence is 'self_comparison'" in reason for reason in decision.reasons)


def test_a_failing_agent_is_no_score_and_no_pass() -> None:
    def broken(text: str, session: Any) -> str:
        raise RuntimeError("the boiler does not answer")

    result = evaluated(agent=answering(rooms(), both=broken))
    assert (result.metrics["response_match_score/evaluated"], result.metrics["response_match_score/errored"]) == (3.0, 2.0)
    decision = verdict(result)
    assert decision.verdict == "undecided"
    assert any("the boiler does not answer" in reason for reason in decision.reasons)


def test_a_judge_that_is_down_is_no_score_and_no_pass() -> None:
    judge = ScriptedJudge(lambda request: Unavailable("503 down", overloaded=False) if "21 degrees" in request.text else "valid")
    result = evaluated(config=JUDGED, actual=expected_of(rooms()), judge=judge, judge_options=_impatient())
    assert (result.metrics[f"{MATCH}/evaluated"], result.metrics[f"{MATCH}/errored"]) == (4.0, 1.0)
    assert result.metrics[f"{MATCH}/mean"] == 1.0
    decision = verdict(result)
    assert decision.verdict == "undecided"
    assert any("503 down" in reason for reason in decision.reasons)


def test_with_a_judge_that_answers_the_votes_are_kept() -> None:
    result = evaluated(config=JUDGED, actual=expected_of(rooms()), judge=ScriptedJudge("valid"), register_prompts=True)
    assert result.metrics[f"{MATCH}/evaluated"] == 5.0
    assert len(result.artifacts["votes"].content) == 5
    assert verdict(result).verdict == "passed"
    assert f"adk_eval.prompt_uri.{MATCH}" in run_of(result).data.params


def _impatient() -> Any:
    from mlflow_adk_eval import JudgeOptions

    return JudgeOptions(attempts=1)


# What comes back


def test_artifacts_load_and_are_saved_as_those_of_any_evaluator(tmp_path: Path) -> None:
    from mlflow.models import EvaluationResult

    result = evaluated(actual=cold())
    documents = {"eval_results_table", "eval_set", "config", "invocations", "report", "result", "manifest"}
    assert set(result.artifacts) == documents | {"actual", "cases", "cells"}
    assert list(result.artifacts["cells"].content["response_match_score/score"]) == [1, 1, 0, 1, 1]
    assert [case["eval_id"] for case in result.artifacts["eval_set"].content["eval_cases"]] == ["light", "heat", "both"]
    result.save(str(tmp_path / "saved"))
    again = EvaluationResult.load(str(tmp_path / "saved"))
    assert again.metrics == result.metrics
    assert again.artifacts["invocations"].content == result.artifacts["invocations"].content
    assert again.artifacts["invocations"].content["columns"][0] == "key"


def test_the_table_is_where_mlflow_keeps_tables() -> None:
    table = evaluated(actual=cold()).tables["eval_results_table"]
    assert list(table["key"]) == ["light #1", "light #2", "heat #1", "both #1", "both #2"]
    assert list(table["verdict"]) == ["passed", "passed", "failed", "passed", "passed"]
    assert list(table["response_match_score/score"]) == [1, 1, 0, 1, 1]


def test_mlflow_validates_the_result() -> None:
    import mlflow
    from mlflow.models import MetricThreshold
    from mlflow.models.evaluation.validation import ModelValidationFailedException

    result = evaluated(actual=cold())
    within = {"case_pass_rate": MetricThreshold(threshold=0.6, greater_is_better=True)}
    mlflow.validate_evaluation_results(validation_thresholds=within, candidate_result=result)
    unknown = {"safety_v1/mean": MetricThreshold(threshold=0.1, greater_is_better=True)}
    with pytest.raises(ModelValidationFailedException, match="safety_v1"):
        mlflow.validate_evaluation_results(validation_thresholds=unknown, candidate_result=result)
    beyond = {"case_pass_rate": MetricThreshold(threshold=0.7, greater_is_better=True)}
    with pytest.raises(ModelValidationFailedException, match="case_pass_rate"):
        mlflow.validate_evaluation_results(validation_thresholds=beyond, candidate_result=result)


# The run


def test_the_users_open_run_is_used_and_left_open() -> None:
    import mlflow

    with mlflow.start_run(run_name="mine") as mine:
        result = evaluated(actual=expected_of(rooms()))
        assert result.run_id == mine.info.run_id == mlflow.active_run().info.run_id
        with pytest.raises(UsageError, match="already contains an evaluation"):
            evaluated(actual=expected_of(rooms()))
    assert run_of(result).info.run_name == "mine"
    assert verdict(result).verdict == "passed"


def test_the_model_that_mlflow_evaluates_is_the_agent_version() -> None:
    import mlflow

    model = mlflow.initialize_logged_model(name="lights")
    data = mlflow.data.from_adk_evalset(rooms())
    told: dict[str, Any] = {"config": CONFIG, "actual": expected_of(rooms())}
    result = mlflow.models.evaluate(data=data, model_type="adk", evaluators="adk", evaluator_config=told, model_id=model.model_id)
    assert run_of(result).data.params["adk_eval.model_id"] == model.model_id
    assert [found.model_id for found in run_of(result).inputs.model_inputs] == [model.model_id]
    assert verdict(result).verdict == "passed"
    other = mlflow.initialize_logged_model(name="lights").model_id
    with pytest.raises(UsageError, match=f"is the model {other}, but MLflow evaluates {model.model_id}"):
        mlflow.models.evaluate(
            data=data, model_type="adk", evaluators="adk", evaluator_config=told | {"agent_version": other}, model_id=model.model_id
        )


@pytest.mark.slow
def test_it_is_the_same_over_http(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    result = evaluated(actual=expected_of(rooms()))
    run = run_of(result)
    assert (run.info.status, run.data.tags["adk_eval.status"], len(run.inputs.dataset_inputs)) == ("FINISHED", "complete", 1)
    assert run.data.metrics == result.metrics
    assert list(result.tables) == ["eval_results_table"]
    assert verdict(result).verdict == "passed"


# Models


@pytest.mark.filterwarnings("ignore:.*(Add type hints to the|Any type hint is inferred):UserWarning")  # MLflow's advice on any function
class TestModels:
    def test_an_agent_as_a_model_gives_the_same_scores(self) -> None:
        from mlflow_adk_eval.integrations.agent_functions import model_fn

        agent = answering(rooms(), heat="no")
        by_model = evaluated(model=model_fn(agent)).metrics
        by_agent = evaluated(agent=agent).metrics
        assert {name: value for name, value in by_model.items() if "duration" not in name} == {
            name: value for name, value in by_agent.items() if "duration" not in name
        }

    def test_any_function_of_a_table_is_one(self) -> None:
        cases = EvalSet.model_validate({"eval_set_id": "echo", "eval_cases": [{"eval_id": "a", "conversation": [small.turn("hi", "hi")]}]})
        asked: list[dict[str, Any]] = []

        def model(table: Any) -> list[str]:
            asked.extend(table.to_dict("records"))
            return list(table["inputs"])

        import mlflow

        result = evaluated(mlflow.data.from_adk_evalset(cases), model=model, config=SHORT)
        assert result.metrics["response_match_score/mean"] == 1.0
        assert asked == [{"eval_id": "a", "inputs": "hi", "session_input": None}]

    def test_what_goes_wrong_with_a_case_is_its_error(self) -> None:
        def model(table: Any) -> list[str]:
            if table["eval_id"][0] == "heat":
                raise RuntimeError("the boiler does not answer")
            return ["one answer to a conversation of two turns"]

        result = evaluated(model=model)
        assert result.metrics["response_match_score/errored"] >= 3
        invocations = result.artifacts["invocations"].content
        errors = [row[invocations["columns"].index("agent_error")] for row in invocations["data"]]
        assert any("the boiler does not answer" in error for error in errors)
        assert any("the case has 2" in error for error in errors)
        assert verdict(result).verdict == "undecided"


# Tables


def table(**columns: Any) -> Any:
    import pandas as pd

    return pd.DataFrame({"inputs": ["light on", "heat?"], "predictions": ["the light is on", "no"], "eval_id": ["a", "b"]} | columns)


def test_a_table_is_scored_row_by_row() -> None:
    result = evaluated(table(targets=["the light is on", "it is on"]), config=SHORT)
    assert result.metrics["response_match_score/mean"] == 0.5
    assert verdict(result).verdict == "failed"
    cases = result.artifacts["eval_set"].content["eval_cases"]
    assert [case["eval_id"] for case in cases] == ["a", "b"]


def test_columns_may_have_other_names_and_rows_of_a_case_are_its_runs() -> None:
    import mlflow

    frame = table(expected=["on", "on"], eval_id=["a", "a"], inputs=["light on", "light on"], said=["on", "off"], run_index=[1, 0])
    result = mlflow.models.evaluate(
        data=frame,
        targets="expected",
        predictions="said",
        model_type="adk",
        evaluators="adk",
        evaluator_config={"config": SHORT, "col_mapping": {"targets": "expected", "predictions": "said"}},
    )
    assert result.metrics["cases"] == 1
    assert run_of(result).data.params["adk_eval.num_runs"] == "2"
    invocations = result.artifacts["invocations"].content
    assert [row[invocations["columns"].index("actual_response")] for row in invocations["data"]] == ["off", "on"]


def test_what_a_table_does_not_say_is_no_evidence() -> None:
    with pytest.raises(EvalSetError, match="case 'a': found no expected_tool_calls; wanted what tool_trajectory_avg_score needs"):
        evaluated(table(targets=["on", "on"]))


def test_rows_of_a_case_expect_the_same() -> None:
    with pytest.raises(EvalSetError, match="rows with different expectations"):
        evaluated(table(targets=["on", "off"], eval_id=["a", "a"]), config=SHORT)


# Wrong calls


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"acutal": {}}, r"unknown key 'acutal'.*Did you mean 'actual'\?"),
        ({"experiment": "x"}, "experiment cannot be set here"),
        ({"actual": {}, "agent": "house"}, "compared with one thing, but you named actual and agent"),
        ({"actual": {}, "num_runs": 0}, "num_runs=0"),
        ({"actual": {}, "traces": -1}, "traces=-1"),
        ({"actual": {}, "config": {"criteria": {"respnse_match_score": 1}}}, "Did you mean 'response_match_score'"),
        ({"actual": 7}, "a recording is"),
    ],
)
def test_settings_that_make_no_sense_are_refused_and_the_run_is_no_evidence(told: dict[str, Any], message: str) -> None:
    import mlflow

    with pytest.raises(UsageError, match=message):
        evaluated(**told)
    run = mlflow.last_active_run()
    assert run.info.status == "FAILED"
    assert gate(run.info.run_id, raise_on_failure=False).verdict == "undecided"


def test_one_side_of_a_table_is_not_replaced() -> None:
    with pytest.raises(UsageError, match=r"agent wants data from mlflow\.data\.from_adk_evalset"):
        evaluated(table(targets=["on", "on"]), agent=answering(rooms()))


def length_metric() -> Any:
    import mlflow

    def length(predictions: Any) -> float:
        return float(len(predictions))

    return mlflow.models.make_metric(eval_fn=length, greater_is_better=True, name="length")


def test_mlflows_own_additions_are_refused_with_a_way_out() -> None:
    import mlflow

    told: dict[str, Any] = {"model_type": "adk", "evaluators": "adk", "data": mlflow.data.from_adk_evalset(rooms())}
    with pytest.raises(UsageError, match="extra_metrics has no effect on the adk evaluator"):
        mlflow.models.evaluate(extra_metrics=[length_metric()], **told)
    with pytest.raises(UsageError, match="custom_artifacts has no effect on the adk evaluator"):
        mlflow.models.evaluate(custom_artifacts=[print], **told)


def test_data_that_is_no_table_is_refused() -> None:
    import numpy as np

    with pytest.raises(UsageError, match=r"the adk evaluator wants data from mlflow\.data\.from_adk_evalset, or a DataFrame"):
        evaluated(np.array([[1.0]]))


def test_other_evaluations_are_left_alone() -> None:
    import mlflow
    import pandas as pd

    frame = pd.DataFrame({"said": ["a", "b"]})
    result = mlflow.models.evaluate(data=frame, predictions="said", extra_metrics=[length_metric()])
    assert result.metrics == {"length": 2.0}
    assert not any(name.startswith("adk_eval") for name in run_of(result).data.tags)


def test_score_agrees() -> None:
    report = score(rooms(), cold(), CONFIG)
    metrics = evaluated(
        actual={eval_id: [dump(turn) if not isinstance(turn, dict) else turn for turn in turns] for eval_id, turns in cold().items()}
    ).metrics
    assert {name: metrics[f"{name}/mean"] for name in CONFIG["criteria"]} == {
        name: float(f"{report.scores[name]:.7g}") for name in CONFIG["criteria"]
    }
