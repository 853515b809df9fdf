"""google-adk's own judged criteria, on recorded invocations."""

from __future__ import annotations

from typing import Any

from judging import Judging
from truth import FINAL_RESPONSE, HALLUCINATIONS, RUBRIC_BASED

from contenders import Cells, adk
from contenders.judged import import_all

load = adk.load


def imports() -> None:
    """Import all that the work needs."""
    names = ("eval_config", "local_eval_service", FINAL_RESPONSE, HALLUCINATIONS, RUBRIC_BASED)
    import_all("google.adk.models.google_llm", *(f"google.adk.evaluation.{name}" for name in names))


def judge(data: Any, judging: Judging) -> Cells:
    """Score with LocalEvalService: so many cases at once, and so many requests at once for each."""
    from google.adk.evaluation.eval_config import EvalConfig, get_eval_metrics_from_config

    config = judging.config(parallelism_limit=judging.in_flight // judging.cases_at_once)
    metrics = get_eval_metrics_from_config(EvalConfig.model_validate(config))
    return adk.cells(adk.serve(data, metrics, parallelism=judging.cases_at_once))
