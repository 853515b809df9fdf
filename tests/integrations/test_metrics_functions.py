from __future__ import annotations

import importlib
import inspect
import json
import pickle
import pydoc
import re
import subprocess
import sys
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import metrics
from mlflow_adk_eval.config.eval_config import default_config
from mlflow_adk_eval.config.spec import CRITERIA, JudgeModelOptions, VertexSettings
from mlflow_adk_eval.errors import ConfigError, JudgeError, UsageError
from mlflow_adk_eval.judge.setup import JudgeArgs
from mlflow_adk_eval.testing import ScriptedJudge

NAMES = list(CRITERIA)
JUDGE_KEYWORDS = ["judge", "judge_hosts", "judge_options", "budget", "ledger", "rejudge_failed"]


VERTEX = {"GOOGLE_CLOUD_PROJECT": "acme", "GOOGLE_CLOUD_LOCATION": "us-central1", "GOOGLE_VERTEX_BASE_URL": "http://127.0.0.1:9"}
"""For the metrics that only Vertex has, which is not asked here."""


REQUIRED: dict[str, dict[str, Any]] = {"forbidden_tools_v1": {"tools": ["delete_account"]}}
"""What a criterion requires besides a threshold."""


def function(name: str) -> Any:
    return getattr(metrics, name)


def needed(name: str) -> dict[str, Any]:
    """What a criterion's function cannot do without here, where there is no Vertex, but for the metrics that only Vertex has."""
    ours = issubclass(CRITERIA[name].settings, VertexSettings) and CRITERIA[name].prompts
    return {"threshold": 1.0, **({"backend": "judge"} if ours else {}), **REQUIRED.get(name, {})}


@pytest.mark.parametrize("name", NAMES)
class TestEveryCriterion:
    @pytest.mark.needs("google-cloud-aiplatform")
    def test_is_a_metric(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from mlflow.models import EvaluationMetric

        for variable, value in VERTEX.items():
            monkeypatch.setenv(variable, value)
        metric = function(name)(**needed(name), judge=ScriptedJudge("valid"))
        assert isinstance(metric, EvaluationMetric)
        assert (metric.name, metric.version, metric.greater_is_better) == (name, None, name not in {*CRITERIA.informative, VERBOSITY})

    def test_refuses_an_unknown_keyword_and_says_what_was_meant(self, name: str) -> None:
        with pytest.raises(
            ConfigError, match=rf"(?s){name}\(\): 2 problems.*treshold.*Did you mean 'threshold'.*judg: .*Did you mean 'judge'"
        ):
            function(name)(treshold=1.0, judg="gemini-2.5-pro")

    def test_says_if_it_lacks_a_threshold(self, name: str) -> None:
        if name in default_config().criteria:
            assert function(name)().genai_metric_args["threshold"] == default_config().criteria[name].threshold
            return
        with pytest.raises(
            ConfigError, match=rf"1 problem.*\n  \$\.criteria\.{name}\.threshold: found nothing; wanted this required field"
        ):
            function(name)(**REQUIRED.get(name, {}))

    def test_refuses_a_threshold_that_no_score_has(self, name: str) -> None:
        with pytest.raises(ConfigError, match=rf"\$\.criteria\.{name}\.threshold: found -1"):
            function(name)(**needed(name) | {"threshold": -1})

    def test_tells_its_settings(self, name: str) -> None:
        signature = inspect.signature(function(name))
        assert list(signature.parameters) == [*CRITERIA[name].fields, *JUDGE_KEYWORDS]
        assert {parameter.kind for parameter in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
        assert (signature.parameters["threshold"].default is inspect.Parameter.empty) == (name not in default_config().criteria)

    def test_is_documented(self, name: str) -> None:
        doc = function(name).__doc__
        assert doc.startswith(f"Return ``{name}``: {CRITERIA[name].about}.\n")
        assert [line.split(":")[0].strip() for line in doc.splitlines() if line.startswith("    ")][:-2] == list(
            inspect.signature(function(name)).parameters
        )

    def test_says_what_each_keyword_is(self, name: str) -> None:
        described = [line.partition(": ")[2] for line in function(name).__doc__.splitlines() if line.startswith("    ")][:-2]
        assert all(text[:1].strip("`").islower() or text.startswith("``") for text in described)
        assert not any("see the settings" in text for text in described)

    def test_is_a_function_of_its_module(self, name: str) -> None:
        found = function(name)
        assert (found.__name__, found.__qualname__, found.__module__) == (name, name, "mlflow_adk_eval.metrics")
        assert pickle.loads(pickle.dumps(found)) is found  # noqa: S301 - our own bytes
        with pytest.raises(TypeError, match="takes 0 positional arguments"):
            found(1.0)


VERBOSITY = "rapid_eval_summarization_verbosity"  # the distance from the best length


class TestSettings:
    def test_are_those_of_a_config(self) -> None:
        found = metrics.tool_trajectory_avg_score(match_type="IN_ORDER", ignore_args=True).genai_metric_args["settings"]
        assert (found["match_type"], found["ignore_args"], found["threshold"]) == ("IN_ORDER", True, 1.0)

    @pytest.mark.parametrize("options", [{"num_samples": 1}, JudgeModelOptions(num_samples=1)], ids=repr)
    def test_may_be_dicts_or_objects(self, options: Any) -> None:
        metric = metrics.final_response_match_v2(threshold=0.5, judge_model_options=options, judge=ScriptedJudge("valid"))
        assert metric.genai_metric_args["settings"]["judge_model_options"]["num_samples"] == 1

    def test_that_are_wrong_are_named_with_their_path(self) -> None:
        with pytest.raises(ConfigError, match=r"\$\.criteria\.tool_trajectory_avg_score\.match_type: found 'IN_ORDR'"):
            metrics.tool_trajectory_avg_score(match_type="in ordr")

    def test_a_judge_that_cannot_be_had_is_an_error_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(JudgeError):
            metrics.final_response_match_v2(threshold=0.5)

    def test_a_budget_that_is_none_is_an_error(self) -> None:
        with pytest.raises(UsageError, match=r"budget: unknown key 'max_call'.*Did you mean 'max_calls'"):
            metrics.final_response_match_v2(threshold=0.5, budget={"max_call": 3}, judge=ScriptedJudge("valid"))


class TestFromConfig:
    CONFIG: dict[str, Any] = {  # noqa: RUF012 - nobody changes it
        "criteria": {"politeness": 0.5, "response_match_score": 0.8, "tool_call_count_v1": 3, "tool_trajectory_avg_score": 1.0},
        "custom_metrics": {"politeness": {"code_config": {"name": "tests.criteria.user_metrics.politeness"}, "greater_is_better": False}},
    }

    @pytest.mark.parametrize("form", ["dict", "object", "path", "text"])
    def test_follows_the_config_in_every_form(self, form: str, tmp_path: Any) -> None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(self.CONFIG))
        config = {"dict": self.CONFIG, "object": adk_eval.load_config(self.CONFIG), "path": path, "text": str(path)}[form]
        found = [(metric.name, metric.greater_is_better) for metric in metrics.from_config(config)]
        assert found == [
            ("politeness", False),
            ("response_match_score", True),
            ("tool_call_count_v1", False),
            ("tool_trajectory_avg_score", True),
        ]

    def test_without_a_config_is_adk_s(self) -> None:
        assert [metric.name for metric in metrics.from_config()] == ["tool_trajectory_avg_score", "response_match_score"]

    def test_includes_the_criteria_of_single_cases(self) -> None:
        config = {"criteria": {"response_match_score": 0.8}, "case_criteria": {"a": {"response_match_score": 0.5, "tool_call_count_v1": 2}}}
        first, second = metrics.from_config(config)
        assert (first.name, first.genai_metric_args["threshold"]) == ("response_match_score", 0.8)
        assert first.genai_metric_args["case_settings"]["a"]["threshold"] == 0.5
        assert (second.name, second.genai_metric_args["threshold"]) == ("tool_call_count_v1", "2.0")

    def test_refuses_a_name_that_mlflow_has_no_room_for(self) -> None:
        config = {"criteria": {"a/b": 0.5}, "custom_metrics": {"a/b": {"code_config": {"name": "tests.criteria.user_metrics.politeness"}}}}
        with pytest.raises(ConfigError, match="found 'a/b'; wanted a name without '/'"):
            metrics.from_config(config)

    def test_takes_the_keywords_of_judges(self) -> None:
        assert list(inspect.signature(metrics.from_config).parameters) == ["config", *JUDGE_KEYWORDS]
        assert list(JudgeArgs.__annotations__) == JUDGE_KEYWORDS


class TestModule:
    def test_lists_the_criteria(self) -> None:
        assert set(dir(metrics)) == {"from_config", "thresholds", *NAMES}

    def test_is_documented(self) -> None:
        text = re.sub(r"\(\s+\*,\s+", "(*, ", pydoc.render_doc(metrics, renderer=pydoc.plaintext))  # Python 3.13 wraps them
        assert all(f"{name}(*, threshold: float" in text for name in NAMES)

    def test_says_what_was_meant(self) -> None:
        with pytest.raises(AttributeError, match=r"no attribute 'tool_trajectory_score'. Did you mean 'tool_trajectory_avg_score'\?"):
            function("tool_trajectory_score")

    def test_costs_no_mlflow_until_a_metric_is_made(self) -> None:
        code = (
            "import sys; from mlflow_adk_eval.metrics import response_match_score; print('mlflow' in sys.modules, 'pandas' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["False", "False"]

    def test_is_a_public_name(self) -> None:
        assert adk_eval.metrics is importlib.import_module("mlflow_adk_eval.metrics")

    def test_every_criterion_is_described(self) -> None:
        assert all(CRITERIA[name].about and CRITERIA[name].kept for name in NAMES)
