"""mlflow_adk_eval, through the function that users call and the real client of google-genai."""

from __future__ import annotations

from typing import Any

from judging import Judging

from contenders import Cells, ours
from contenders.judged import import_all

load = ours.load


def imports() -> None:
    """Import all that the work needs."""
    ours.imports(logging=False)
    import_all("google.auth.exceptions", "sentencex", "mlflow_adk_eval.judge.providers.gemini")


def judge(data: Any, judging: Judging) -> Cells:
    """Score without MLflow and without a ledger, so that every vote is asked for."""
    import mlflow_adk_eval as adk_eval
    from mlflow_adk_eval.judge.setup import JudgeOptions

    eval_set, actual = data
    options = JudgeOptions(max_concurrency=judging.in_flight, timeout_s=judging.timeout_s)
    return ours.cells(adk_eval.score(eval_set, actual, judging.config(), judge_options=options, ledger=False), (judging.criterion,))
