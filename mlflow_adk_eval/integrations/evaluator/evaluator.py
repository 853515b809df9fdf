"""The evaluator that MLflow calls ``adk``. MLflow loads it at anybody's first ``mlflow.models.evaluate``, so it loads the rest late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlflow.models.evaluation.base import EvaluationResult, ModelEvaluator


class AdkEvaluator(ModelEvaluator):  # type: ignore[misc]  # mypy sees nothing of MLflow
    """Judges what an agent did in conversations by the criteria of an eval config, and logs it as `adk_eval.evaluate` does."""

    @classmethod
    def can_evaluate(cls, *, model_type: str, evaluator_config: Mapping[str, Any] | None = None, **_: Any) -> bool:  # noqa: ARG003 - MLflow's interface
        """Return whether it was asked for, since MLflow asks this in evaluations that are about something else, too."""
        return model_type == "adk"

    def evaluate(  # pyright: ignore[reportIncompatibleMethodOverride] - MLflow says nothing of its result
        self, *, dataset: Any, run_id: str, evaluator_config: Mapping[str, Any] | None, model: Any = None, **more: Any
    ) -> EvaluationResult:
        """Evaluate, log into the run that MLflow has opened, and return the metrics and artifacts.

        Raises:
            UsageError: for settings that make no sense; its kind `InputError` names every problem of a file.
            AgentError: if the agent cannot be loaded.
            JudgeError: if a judge cannot be set up.
            TrackingError: if MLflow cannot take the evaluation, which is then kept in a folder.
        """
        from mlflow_adk_eval.integrations.evaluator.evaluate import evaluated, refuse_extras  # noqa: PLC0415 - loads the package

        refuse_extras(**{name: more.get(name) for name in ("extra_metrics", "custom_artifacts")})
        known = {name: more.get(name) for name in ("predictions", "model_id")}
        return evaluated(evaluator_config or {}, dataset=dataset, model=model, run_id=run_id, **known)
