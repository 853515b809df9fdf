from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.config.eval_config import EvalConfig, default_config, dumps_config, load_config, parse_config
from mlflow_adk_eval.config.spec import CRITERIA, CriterionSettings, CustomSettings, JudgeModelOptions, RubricSettings
from mlflow_adk_eval.criteria.final_response import FinalResponseSettings
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings
from mlflow_adk_eval.errors import ConfigError
from tests.strategies import QUICK, respelt

JUDGE = {"judge_model": "gemini-2.5-pro", "num_samples": 3, "parallelism_limit": 2, "judge_model_config": {"temperature": 0, "seed": None}}
RUBRIC = {"rubric_id": "r1", "rubric_content": {"text_property": "The answer is polite."}, "type": "FINAL_RESPONSE_QUALITY"}
CUSTOM = {"code_config": {"name": "pkg.mod.fn"}, "description": "ours"}
FULL: dict[str, Any] = {
    "criteria": {
        "tool_trajectory_avg_score": {"threshold": 1.0, "match_type": "IN_ORDER", "ignore_args": True},
        "response_match_score": 0.8,
        "response_evaluation_score": 3.5,
        "final_response_match_v2": {"threshold": 0.8, "judge_model_options": JUDGE, "include_intermediate_responses_in_final": True},
        "rubric_based_final_response_quality_v1": {"threshold": 0.5, "judge_model_options": JUDGE, "rubrics": [RUBRIC]},
        "rubric_based_tool_use_quality_v1": 0.5,
        "rubric_based_multi_turn_trajectory_quality_v1": {"threshold": 1, "rubrics": []},
        "hallucinations_v1": {"threshold": 0.9, "evaluate_intermediate_nl_responses": True},
        "safety_v1": 1,
        "per_turn_user_simulator_quality_v1": {"threshold": 0.6, "stop_signal": "BYE"},
        "my_metric": {"threshold": -5, "limit": 3, "unit": None},
    },
    "custom_metrics": {"my_metric": CUSTOM},
    "user_simulator_config": {"type": "llm_backed", "model": "gemini-2.5-flash", "max_allowed_invocations": -1},
    "live_model_config": {"timeout_seconds": 60},
}


def only(value: Any, name: str = "response_match_score") -> CriterionSettings:
    return parse_config({"criteria": {name: value}}, "config").criteria[name]


def problems_of(value: Any) -> dict[str, tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        parse_config(value, "config.json")
    return {problem.path: (problem.wanted, problem.hint) for problem in caught.value.problems}


def test_adks_defaults_where_there_is_no_config(tmp_path: Path) -> None:
    assert load_config(None) is load_config(None, beside=tmp_path) is default_config()
    assert default_config().thresholds() == {"tool_trajectory_avg_score": "1.0", "response_match_score": "0.8"}
    assert default_config().criteria["tool_trajectory_avg_score"] == ToolTrajectorySettings(
        threshold=1.0, match_type="EXACT", ignore_args=False
    )


def test_the_config_beside_the_eval_set_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_config.json").write_text('{"criteria": {"safety_v1": 0.5}}', encoding="utf-8")
    assert load_config(None, beside=tmp_path).thresholds() == {"safety_v1": "0.5"}
    assert load_config({"criteria": {"safety_v1": 0.6}}, beside=tmp_path).thresholds() == {"safety_v1": "0.6"}


def test_a_broken_config_beside_the_eval_set_is_no_reason_for_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "test_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"test_config\.json"):
        load_config(None, beside=tmp_path)


def test_a_named_config_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """ADK takes its defaults."""
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "nowhere.json")


def test_a_config_comes_from_a_file_a_dict_or_an_object(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(FULL).encode())
    config = load_config(str(file))
    assert load_config(file) == config == load_config(FULL)
    assert load_config(config) is config


def test_a_config_made_by_hand_is_held_to_the_same_rules() -> None:
    for criteria in ({}, {"response_match_score": CriterionSettings(threshold=2)}, {"unheard_of": CriterionSettings(threshold=1)}):
        with pytest.raises(ConfigError):
            load_config(EvalConfig(criteria=criteria))


def test_every_field_of_adk_is_read_in_order() -> None:
    config = parse_config(FULL, "config")
    assert list(config.criteria) == list(FULL["criteria"])
    assert config.criteria["final_response_match_v2"] == FinalResponseSettings(
        threshold=0.8, include_intermediate_responses_in_final=True, judge_model_options=JudgeModelOptions(**JUDGE)
    )
    rubrics = config.criteria["rubric_based_final_response_quality_v1"]
    assert isinstance(rubrics, RubricSettings)
    assert rubrics.rubrics[0].rubric_content.text_property == "The answer is polite."
    assert config.user_simulator_config is not None
    assert config.user_simulator_config.max_allowed_invocations == -1
    assert config.live_model_config is not None
    assert config.live_model_config.timeout_seconds == 60


KEEP = ("criteria", "custom_metrics", "case_criteria")


@QUICK
@given(st.integers(0, 2**32))
def test_both_spellings_read_the_same(seed: int) -> None:
    custom = {"customMetrics": {"my_metric": respelt(CUSTOM, seed)}}
    criteria = {name: respelt(given, seed, keep=("judge_model_config",)) for name, given in FULL["criteria"].items() if name != "my_metric"}
    criteria["my_metric"] = FULL["criteria"]["my_metric"]
    rest = respelt({key: item for key, item in FULL.items() if key not in KEEP}, seed)
    assert parse_config({"criteria": criteria} | custom | rest, "config") == parse_config(FULL, "config")


@pytest.mark.parametrize(
    ("given", "threshold"), [(1, 1.0), (0.5, 0.5), (True, 1.0), (False, 0.0), ("0.25", 0.25), (" 1 ", 1.0), (-0.0, 0.0)]
)
def test_thresholds_are_read_as_adk_reads_them(given: Any, threshold: float) -> None:
    assert only(given).threshold == only({"threshold": given}).threshold == threshold


@pytest.mark.needs("google-adk", "1.39")
@pytest.mark.parametrize(
    ("given", "match_type"),
    [
        (0, "EXACT"), (1, "IN_ORDER"), (2, "ANY_ORDER"), ("exact", "EXACT"), ("in-order", "IN_ORDER"), (" any order ", "ANY_ORDER"),
        ("Any_Order", "ANY_ORDER"),
    ],
)  # fmt: skip
def test_match_types_are_read_as_adk_reads_them(given: Any, match_type: str) -> None:
    settings = only({"threshold": 1, "match_type": given}, "tool_trajectory_avg_score")
    assert settings == ToolTrajectorySettings(threshold=1.0, match_type=match_type)  # type: ignore[arg-type]
    adk = pytest.importorskip("google.adk.evaluation.eval_metrics", reason="the extra [adk] is not installed")
    assert adk.ToolTrajectoryCriterion(threshold=1, match_type=given).match_type.name == match_type


@pytest.mark.parametrize("given", ["1", 3, -1, "INORDER", None, ["EXACT"]])
def test_other_match_types_are_refused_by_us_and_by_adk(given: Any) -> None:
    adk = pytest.importorskip("google.adk.evaluation.eval_metrics", reason="the extra [adk] is not installed")
    with pytest.raises(ValueError, match="match_type"):
        adk.ToolTrajectoryCriterion(threshold=1, match_type=given)
    found = problems_of({"criteria": {"tool_trajectory_avg_score": {"threshold": 1, "match_type": given}}})
    assert found == {"$.criteria.tool_trajectory_avg_score.match_type": ("one of 'EXACT', 'IN_ORDER' or 'ANY_ORDER'", "")}


def test_the_simulator_may_be_left_unnamed_as_in_adk() -> None:
    for simulator in ({}, {"type": None}):
        config = parse_config({"criteria": {"safety_v1": 1}, "user_simulator_config": simulator}, "config")
        assert config.user_simulator_config is not None
        assert config.user_simulator_config.type == "llm_backed"
    audio = {"type": "llm_audio", "audio_model": "cloud_tts", "include_text_with_audio": False}
    config = parse_config({"criteria": {"safety_v1": 1}, "user_simulator_config": audio}, "config")
    assert config.to_json()["user_simulator_config"]["audio_model"] == "cloud_tts"


@pytest.mark.parametrize(
    ("slip", "path", "meant"),
    [
        ({"criterias": {"safety_v1": 1}}, "$.criterias", "criteria"),
        ({"criteria": {"safety_v1": 1}, "customMetric": {}}, "$.customMetric", "custom_metrics"),
        ({"criteria": {"tool_trajectory_score": 1}}, "$.criteria.tool_trajectory_score", "tool_trajectory_avg_score"),
        ({"criteria": {"Safety-V1": 1}}, "$.criteria['Safety-V1']", "safety_v1"),
        ({"criteria": {"responseMatchScore": 1}}, "$.criteria.responseMatchScore", "response_match_score"),
        ({"criteria": {"safety_v1": {"treshold": 1}}}, "$.criteria.safety_v1.treshold", "threshold"),
        (
            {"criteria": {"hallucinations_v1": {"threshold": 1, "judge_model_option": {}}}},
            "$.criteria.hallucinations_v1.judge_model_option",
            "judge_model_options",
        ),
        (
            {"criteria": {"hallucinations_v1": {"threshold": 1, "judgeModelOptions": {"num_sample": 3}}}},
            "$.criteria.hallucinations_v1.judgeModelOptions.num_sample",
            "num_samples",
        ),
        (
            {"criteria": {"safety_v1": 1}, "user_simulator_config": {"max_allowed_invocation": 3}},
            "$.user_simulator_config.max_allowed_invocation",
            "max_allowed_invocations",
        ),
        (
            {"criteria": {"m": {"treshold": 1}}, "custom_metrics": {"m": CUSTOM}},
            "$.criteria.m.treshold",
            "threshold",
        ),
        (
            {"criteria": {"m": 1}, "custom_metrics": {"m": {"code_confg": {"name": "a.b"}}}},
            "$.custom_metrics.m.code_confg",
            "code_config",
        ),
    ],
)  # fmt: skip
def test_a_slip_of_the_pen_is_one_problem_with_its_likely_meaning(slip: Any, path: str, meant: str) -> None:
    """ADK drops the setting, or with it all criteria, and passes."""
    found = problems_of(slip)
    assert list(found) == [path]
    assert found[path][1] == f"Did you mean {meant!r}?"


def test_unknown_keys_are_errors_even_where_nothing_is_similar() -> None:
    rubric = RUBRIC | {"weight": 3}
    criteria = {"rubric_based_tool_use_quality_v1": {"threshold": 1, "rubrics": [rubric], "zzz": None}, "banana": 1}
    found = problems_of({"criteria": criteria, "banana": 1, "live_model_config": {"banana": 1}})
    assert set(found) == {
        "$.banana",
        "$.live_model_config.banana",
        "$.criteria.banana",
        "$.criteria.rubric_based_tool_use_quality_v1.zzz",
        "$.criteria.rubric_based_tool_use_quality_v1.rubrics[0].weight",
    }
    assert found["$.criteria.banana"][1] == f"Known are {', '.join(CRITERIA)}"


@pytest.mark.parametrize("criteria", [{}, None, [], "all", 0])
def test_no_criteria_are_an_error(criteria: Any) -> None:
    """ADK evaluates nothing, and passes."""
    assert list(problems_of({"criteria": criteria})) == ["$.criteria"]
    assert list(problems_of({"criteria": {"safety_v1": 1}, "case_criteria": {"c": criteria}})) == ["$.case_criteria['c']"]


@pytest.mark.parametrize(
    ("name", "threshold", "wanted"),
    [
        ("response_match_score", 1.01, "a number from 0 to 1"),
        ("tool_trajectory_avg_score", -0.1, "a number from 0 to 1"),
        ("response_evaluation_score", 0.5, "a number from 1 to 5"),
        ("response_evaluation_score", 6, "a number from 1 to 5"),
        ("token_usage_v1", -1, "a number of at least 0"),
        ("safety_v1", math.nan, "a finite number"),
        ("token_usage_v1", math.inf, "a finite number"),
        ("safety_v1", "NaN", "a finite number"),
        ("safety_v1", "much", "a number"),
    ],
)
def test_a_threshold_must_be_reachable(name: str, threshold: Any, wanted: str) -> None:
    """ADK takes -1, 5 and NaN."""
    assert problems_of({"criteria": {name: threshold}}) == {f"$.criteria.{name}": (wanted, "")}
    assert problems_of({"criteria": {name: {"threshold": threshold}}}) == {f"$.criteria.{name}.threshold": (wanted, "")}


@pytest.mark.parametrize("criterion", CRITERIA)
def test_both_ends_of_the_range_can_be_asked_for(criterion: str) -> None:
    required: dict[str, Any] = {"tools": ["delete_account"]} if criterion == "forbidden_tools_v1" else {}
    for end in filter(math.isfinite, CRITERIA[criterion].bounds):
        assert only({"threshold": end} | required if required else end, criterion).threshold == end


def test_a_threshold_alone_does_not_hide_what_else_is_required() -> None:
    assert problems_of({"criteria": {"forbidden_tools_v1": 1.0}}) == {"$.criteria.forbidden_tools_v1.tools": ("this required field", "")}


def test_several_problems_are_told_at_once() -> None:
    found = problems_of({
        "criteria": {"safety_v1": None, "response_match_score": {}, "hallucinations_v1": 2, "nonsense": 1},
        "case_criteria": {"c 1": {"safety_v1": []}},
        "live_model_config": {"timeout_seconds": 0},
    })  # fmt: skip
    assert {path: wanted for path, (wanted, _) in found.items()} == {
        "$.live_model_config.timeout_seconds": "a number above 0",
        "$.criteria.safety_v1": "a threshold, or an object with a threshold",
        "$.criteria.response_match_score.threshold": "this required field",
        "$.criteria.hallucinations_v1": "a number from 0 to 1",
        "$.criteria.nonsense": "one of ADK's criteria, or a name in custom_metrics",
        "$.case_criteria['c 1'].safety_v1": "a threshold, or an object with a threshold",
    }


def test_rubrics_need_ids_of_their_own_and_a_text() -> None:
    rubrics = [RUBRIC, RUBRIC, {"rubric_id": "r2", "rubric_content": {}}, {"rubric_id": "r3", "rubric_content": {"text_property": " "}}]
    at = "$.criteria.rubric_based_tool_use_quality_v1.rubrics"
    found = problems_of({"criteria": {"rubric_based_tool_use_quality_v1": {"threshold": 1, "rubrics": rubrics}}})
    assert list(found) == [f"{at}[1].rubric_id", f"{at}[2].rubric_content.text_property", f"{at}[3].rubric_content.text_property"]


def custom(interval: Any = None, **fields: Any) -> dict[str, Any]:
    info = {"metric_info": {"metric_name": "m", "metric_value_info": {"interval": interval}}} if interval else {}
    return CUSTOM | info | fields


def test_a_custom_metric_takes_settings_of_its_own() -> None:
    config = parse_config(FULL, "config")
    settings = config.criteria["my_metric"]
    assert isinstance(settings, CustomSettings)
    assert settings.model_extra == {"limit": 3, "unit": None}
    assert config.to_json()["criteria"]["my_metric"]["unit"] is None
    assert config.greater_is_better("my_metric")


def test_a_custom_metric_says_which_way_is_better() -> None:
    config = parse_config({"criteria": {"m": 5}, "custom_metrics": {"m": custom(greater_is_better=False)}}, "config")
    assert not config.greater_is_better("m")
    assert not any(config.greater_is_better(name) for name in CRITERIA.informative)


@pytest.mark.parametrize(
    ("interval", "threshold", "wanted"),
    [
        ({"min_value": 0, "max_value": 1}, 5, "a number from 0 to 1"),
        ({"minValue": -10, "maxValue": 10}, -10, None),
        ({"min_value": 0, "max_value": 1, "open_at_max": True}, 1, "a number between 0 and 1"),
        ({"min_value": 0, "max_value": 1, "open_at_min": True}, 0, "a number between 0 and 1"),
        (None, -1e9, None),
    ],
)
def test_a_custom_metric_may_say_its_range(interval: Any, threshold: float, wanted: str | None) -> None:
    value = {"criteria": {"m": threshold}, "custom_metrics": {"m": custom(interval)}}
    if wanted is None:
        assert parse_config(value, "config").criteria["m"].threshold == threshold
    else:
        assert problems_of(value) == {"$.criteria.m": (wanted, "")}


def test_a_custom_metric_that_nothing_asks_for_is_an_error() -> None:
    assert list(problems_of({"criteria": {"safety_v1": 1}, "custom_metrics": {"m": CUSTOM}})) == ["$.custom_metrics.m"]
    in_one_case = {"criteria": {"safety_v1": 1}, "case_criteria": {"c": {"m": 1}}, "custom_metrics": {"m": CUSTOM}}
    assert parse_config(in_one_case, "config").criteria_of("c")["m"].threshold == 1


def test_single_cases_may_have_criteria_of_their_own() -> None:
    value = {"criteria": {"safety_v1": 1, "response_match_score": 0.5}, "caseCriteria": {"c:1": {"response_match_score": 0.75}}}
    config = parse_config(value, "config")
    assert list(config.criteria_of("c:1")) == ["response_match_score"]
    assert config.criteria_of("another") is config.criteria
    assert config.thresholds() == {"safety_v1": "1.0", "response_match_score": "0.5 | 0.75"}


def test_a_config_reads_back_from_its_own_json() -> None:
    for value in (FULL, FULL | {"case_criteria": {"c": {"safety_v1": 0.5}}}, {"criteria": {"safety_v1": 1}}):
        config = parse_config(value, "config")
        again = parse_config(json.loads(dumps_config(config)), "config")
        assert again == config
        assert dumps_config(again) == dumps_config(config)


def test_the_digest_is_that_of_the_meaning() -> None:
    digest = parse_config({"criteria": {"safety_v1": 1, "response_match_score": 0.8}}, "config").digest()
    same = {"criteria": {"response_match_score": {"threshold": "0.8"}, "safety_v1": {"threshold": 1.0}}, "customMetrics": None}
    assert parse_config(same, "config").digest() == digest
    judged: list[Any] = [{"threshold": 1, "judge_model_options": {"judge_model_config": {"temperature": zero}}} for zero in (0, 0.0, 1)]
    first, second, third = (parse_config({"criteria": {"hallucinations_v1": given}}, "config").digest() for given in judged)
    assert first == second != third
    changed = [{"criteria": {"safety_v1": 1, "response_match_score": 0.81}}, {"criteria": {"safety_v1": 1}}]
    assert len({digest, *(parse_config(value, "config").digest() for value in changed)}) == 3


def test_the_digest_is_stable_across_versions() -> None:
    assert default_config().digest() == "sha256:2839b7cb07366be67ea196ec2238a5bb6b8009ced3b4e9f70db7a933fdb8df71"


@pytest.mark.needs("google-adk", "2.10")
def test_adk_reads_the_json_of_a_config_with_the_same_meaning() -> None:
    eval_config = pytest.importorskip("google.adk.evaluation.eval_config", reason="the extra [adk] is not installed")
    from google.adk.evaluation import eval_metrics

    config = parse_config(FULL | {"case_criteria": {"c": {"safety_v1": 1}}}, "config")
    theirs = eval_config.EvalConfig.model_validate_json(dumps_config(config))
    original = eval_config.EvalConfig.model_validate(FULL)
    assert list(theirs.criteria) == list(original.criteria)
    assert theirs.custom_metrics == original.custom_metrics
    assert theirs.live_model_config == original.live_model_config
    assert theirs.user_simulator_config == original.user_simulator_config
    classes = {
        ToolTrajectorySettings: eval_metrics.ToolTrajectoryCriterion,
        FinalResponseSettings: eval_metrics.LlmAsAJudgeCriterion,
        **{
            type(settings): eval_metrics.RubricsBasedCriterion
            for settings in config.criteria.values()
            if isinstance(settings, RubricSettings)
        },
        type(config.criteria["hallucinations_v1"]): eval_metrics.HallucinationsCriterion,
        type(config.criteria["per_turn_user_simulator_quality_v1"]): eval_metrics.LlmBackedUserSimulatorCriterion,
    }
    for name, settings in config.criteria.items():
        criterion = classes.get(type(settings), eval_metrics.BaseCriterion)
        ours = {"early_stop", "backend"} | ({"judge_model_options"} if criterion is eval_metrics.BaseCriterion else set())
        mine, given = theirs.criteria[name].model_dump(exclude=ours), original.criteria[name]
        assert criterion.model_validate(mine) == criterion.model_validate(
            {"threshold": given} if isinstance(given, float) else given.model_dump()
        )


@pytest.mark.needs("google-adk", "2.10")
def test_our_defaults_are_adks() -> None:
    eval_config = pytest.importorskip("google.adk.evaluation.eval_config", reason="the extra [adk] is not installed")
    from google.adk.evaluation import eval_metrics

    assert default_config().thresholds() == {
        name: repr(threshold) for name, threshold in eval_config.get_evaluation_criteria_or_default(None).criteria.items()
    }
    theirs = {metric.value for metric in eval_metrics.PrebuiltMetrics} | {"tool_parameter_match"}  # which is on ADK's main branch
    assert theirs == {spec.name for spec in CRITERIA.values() if spec.origin == "adk"}
    assert JudgeModelOptions().model_dump() == eval_metrics.JudgeModelOptions().model_dump()


def test_what_adk_does_with_mistakes() -> None:
    """The other side of the strictness: each of these is valid for ADK."""
    eval_config = pytest.importorskip("google.adk.evaluation.eval_config", reason="the extra [adk] is not installed")
    assert eval_config.EvalConfig.model_validate({"criterias": {"safety_v1": 1}}).criteria == {}
    for criteria in (
        {"unheard_of": 1},
        {"safety_v1": -1},
        {"safety_v1": 5},
        {"hallucinations_v1": {"threshold": 1, "judge_model_option": {}}},
    ):
        assert list(eval_config.EvalConfig.model_validate({"criteria": criteria}).criteria) == list(criteria)
        assert problems_of({"criteria": criteria})
