from __future__ import annotations

from typing import Any

import anyio
import pytest

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.config.spec import CustomSettings
from mlflow_adk_eval.criteria.criterion import CaseRun, Planned, apply
from mlflow_adk_eval.criteria.custom import CustomMetric, judged_of, knows_adk, load_function
from mlflow_adk_eval.criteria.plan import plan
from mlflow_adk_eval.errors import ConfigError
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Judged, Scored
from tests.criteria import user_metrics
from tests.kit import call, case, cases, run_of, scenario, turn

OURS, ADKS = "tests.criteria.user_metrics", "tests.criteria.adk_metrics"
adk = pytest.mark.filterwarnings("ignore::UserWarning")
"""ADK's evaluation package warns that it is experimental."""


def config_of(path: str, threshold: float = 0.5, **more: Any) -> Any:
    settings = {key: more.pop(key) for key in ("longest", "most") if key in more}
    metric = {"code_config": {"name": path}} | more
    return parse_config({"criteria": {"mine": {"threshold": threshold} | settings}, "custom_metrics": {"mine": metric}}, "config")


def judge(path: str, run: CaseRun, **settings: Any) -> CriterionResult:
    config = config_of(path, **settings)
    (planned, *_) = plan(config, cases(run.case)).of(run.eval_id)
    return anyio.run(apply, planned, run)


def two_turns(*, missing: int = 0) -> CaseRun:
    return run_of([turn("12345", call("f", x=1)), turn("thank you")][: 2 - missing], [turn("a", call("f", x=1)), turn("b")])


def test_a_list_of_numbers_is_a_score_for_each_turn() -> None:
    result = judge(f"{OURS}.answer_length", two_turns(), longest=10)
    assert result.per_invocation == (Scored(0.5), Scored(0.9))
    assert result.score == pytest.approx(0.7)
    assert result.passed


def test_a_number_is_a_score_of_the_whole_conversation() -> None:
    result = judge(f"{OURS}.politeness", two_turns())
    assert result.per_invocation == (None, Scored(1.0))
    assert result.score == 1.0


def test_a_result_with_a_case_score_of_its_own_keeps_it() -> None:
    result = judge(f"{OURS}.asked", two_turns())
    assert result.per_invocation == (Scored(0.5), Scored(0.5))
    assert result.overall == Scored(0.25)
    assert result.passed is False


@adk
@pytest.mark.needs("google-adk")
def test_functions_that_know_adk_get_and_return_adks_own_objects() -> None:
    run = run_of([turn("a", call("f"), call("g")), turn("b")], [turn(), turn()])
    result = judge(f"{ADKS}.few_calls", run, most=1)
    assert result.per_invocation == (Scored(0.0, "- calls: 2 calls"), Scored(1.0, "- calls: 0 calls"))
    assert result.overall == Scored(0.5)


@adk
@pytest.mark.needs("google-adk")
def test_an_adk_result_may_score_the_conversation_and_no_turn_of_it() -> None:
    for run in (two_turns(), CaseRun(case=scenario("c"), actual=(turn(), turn()))):
        assert judge(f"{ADKS}.whole_conversation", run).per_invocation == (None, Scored(0.75))


@adk
@pytest.mark.needs("google-adk")
def test_an_empty_adk_result_is_an_error() -> None:
    assert judge(f"{ADKS}.nothing", two_turns()).per_invocation == (None, Errored("the metric gave no score"))


@adk
def test_who_knows_adk() -> None:
    from tests.criteria import adk_metrics

    def late(*_: Any) -> Any:
        from google.adk.evaluation.evaluator import EvaluationResult

        return EvaluationResult()

    assert knows_adk(adk_metrics.few_calls)
    assert knows_adk(late)
    assert not knows_adk(user_metrics.politeness)
    assert not knows_adk(user_metrics.asked)
    assert not knows_adk(len)


def test_the_threshold_is_enforced_here_whatever_the_function_says() -> None:
    result = judge(f"{OURS}.says_passed", two_turns(), threshold=0.9)
    assert result.score == pytest.approx(0.4)
    assert result.passed is False


@pytest.mark.parametrize(("greater_is_better", "passed"), [(True, False), (False, True)])
def test_the_direction_is_declared(greater_is_better: bool, passed: bool) -> None:
    result = judge(f"{OURS}.says_passed", two_turns(), threshold=0.9, greater_is_better=greater_is_better)
    assert result.passed is passed


def test_a_function_cannot_change_what_others_see() -> None:
    run = two_turns()
    before = [turn.model_dump() for turn in (*run.actual, *(run.expected or ()))]
    config = config_of(f"{OURS}.vandal", threshold=0.9)
    (planned, *_) = plan(config, cases(run.case)).of("c")
    assert anyio.run(apply, planned, run).score == 1.0
    assert [turn.model_dump() for turn in (*run.actual, *(run.expected or ()))] == before
    assert config.criteria["mine"].threshold == 0.9


def test_a_function_that_raises_is_an_error_of_every_turn() -> None:
    assert judge(f"{OURS}.failing", two_turns()).per_invocation == (Errored("mine raised LookupError: no such thing"),) * 2


def test_errors_do_not_show_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_API_KEY", "no such thing")
    assert judge(f"{OURS}.failing", two_turns()).per_invocation[0] == Errored("mine raised LookupError: [WEATHER_API_KEY]")


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (None, "the metric returned null"),
        ("0.9", "the metric returned '0.9'"),
        ({"score": 1}, "the metric returned an object with score"),
        ([1.0], "the metric returned 1 scores for 2 turns"),
        ({"per_invocation_results": [{"score": 1.0}] * 3, "overall_score": 1.0}, "the metric returned 3 scores for 2 turns"),
        (object(), "the metric returned <object"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_an_error_of_every_turn(answer: Any, wrong: str) -> None:
    with pytest.raises(TypeError, match=wrong):
        judged_of(answer, two_turns())


@pytest.mark.parametrize(
    ("answer", "cells"),
    [
        (True, (None, Scored(1.0))),
        ([1, None], (Scored(1.0), Errored("the metric gave no score"))),
        ([1, "1"], (Scored(1.0), Errored("the metric gave '1', not a number"))),
        ([1, float("nan")], (Scored(1.0), Errored("the metric gave no usable score: a score must be a finite number, not nan"))),
        ({"overall_score": 0.5}, (None, Scored(0.5))),
        ({"overall_score": None, "per_invocation_results": []}, (None, Errored("the metric gave no score"))),
        ({"per_invocation_results": [{"score": 1}, {}]}, (Scored(1.0), Errored("the metric gave no score"))),
    ],
)
def test_what_answers_mean(answer: Any, cells: Any) -> None:
    assert judged_of(answer, two_turns()).per_invocation == cells


def test_numpys_numbers_are_numbers() -> None:
    import numpy as np

    assert judged_of([np.float32(0.5), np.int64(1)], two_turns()) == Judged((Scored(0.5), Scored(1.0)))


@pytest.mark.parametrize("overall", [0.8, float("inf"), "good"])
def test_a_case_score_counts_only_if_every_turn_has_a_score(overall: Any) -> None:
    answer = {"overall_score": overall, "per_invocation_results": [{"score": 1.0}, {"score": None}]}
    result = _result(answer)
    assert result.score is None
    assert isinstance(result.overall, Errored)


def test_a_case_score_that_is_no_number_is_an_error_in_the_table_too() -> None:
    result = _result({"overall_score": float("nan"), "per_invocation_results": [{"score": 1.0}, {"score": 1.0}]})
    assert isinstance(result.overall, Errored)
    assert result.per_invocation == (Scored(1.0), result.overall)


def test_a_case_score_that_is_the_mean_is_none_of_its_own() -> None:
    answer = {"overall_score": sum([0.1, 0.2, 0.3]) / 3, "per_invocation_results": [{"score": found} for found in (0.1, 0.2, 0.3)]}
    assert judged_of(answer, run_of([turn()] * 3, [turn()] * 3)).overall is None


def _result(answer: Any) -> CriterionResult:
    metric = CustomMetric("mine", lambda *_: answer, CustomSettings(threshold=0.5))
    return anyio.run(apply, Planned(name="mine", criterion=metric, threshold=0.5), two_turns())


def test_a_turn_that_is_missing_is_missing_for_a_custom_metric_too() -> None:
    run = two_turns(missing=1)
    unfinished = CaseRun(case=run.case, actual=run.actual, error="gave up")
    assert judge(f"{OURS}.politeness", unfinished).per_invocation == (None, Errored("the agent did not finish: gave up"))


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("no_such_module.fn", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        ("plain", "cannot be imported"),
        (f"{OURS}.answer_lenght", "has no function answer_lenght; wanted package.module.function. Did you mean 'answer_length'?"),
        (f"{OURS}.NOT_A_FUNCTION", "has no function NOT_A_FUNCTION"),
        (f"{OURS}.too_few", "does not take them (too many positional arguments)"),
    ],
)
def test_a_function_that_cannot_be_had_is_a_config_error(path: str, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_function("mine", config_of(path).custom_metrics["mine"])
    assert caught.value.problems[0].path == "$.custom_metrics.mine.code_config.name"
    assert found in str(caught.value)


def test_a_module_that_fails_is_a_config_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_metrics.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"RuntimeError: no licence"):
        load_function("mine", config_of("broken_metrics.fn").custom_metrics["mine"])


def test_functions_that_do_not_tell_their_parameters_are_taken() -> None:
    assert load_function("mine", config_of("builtins.dict").custom_metrics["mine"]) is dict


def test_slow_functions_of_several_conversations_run_at_the_same_time() -> None:
    from mlflow_adk_eval.runner.recordings import score

    eval_set = cases(*(case(f"c{index}", turn()) for index in range(8)))
    report = score(eval_set, eval_set, config_of(f"{OURS}.sociable"))
    assert report.passed, "each waits until four are there"
    assert report.scores == {"mine": 1.0}


@pytest.mark.parametrize(
    "name", ["response_match_score", "token_usage_v1", "case_pass_rate", "pass^3", "pass_hat_2", "cost", "response_match_score/pass_rate"]
)
def test_a_custom_metric_has_a_name_of_its_own(name: str) -> None:
    """A rule on that name, or ADK's criterion in the next config, would be about something else."""
    with pytest.raises(ConfigError) as caught:
        parse_config({"criteria": {name: 0.9}, "custom_metrics": {name: {"code_config": {"name": f"{OURS}.answer_length"}}}}, "config")
    (problem,) = [found for found in caught.value.problems if found.path.startswith("$.custom_metrics")]
    assert problem.wanted == "a unique name"
