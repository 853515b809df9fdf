"""Scoring recorded conversations, without an agent and without MLflow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

from mlflow_adk_eval.agents import load_recording
from mlflow_adk_eval.agents.recordings import Recorded
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.setup import JudgeArgs, JudgeSource, judge_setup
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.votes import judged_criteria
from mlflow_adk_eval.runner.batches import engine_of
from mlflow_adk_eval.runner.evaluation import CaseExecutor, Evaluation, Options, wait
from mlflow_adk_eval.runner.keywords import ScoreArgs, keywords, selected
from mlflow_adk_eval.runner.stream import inputs_read_as_needed, kept_beside, ledger_of, recorded_beside


@keywords(ScoreArgs, JudgeArgs, defaults=(Options, judge_setup))
def score(
    eval_set: EvalSetSource,
    actual: Recorded | None = None,
    config: ConfigSource = None,
    judge: JudgeSource = None,
    **options: Unpack[ScoreArgs],
) -> Report:
    """Return the report on recorded conversations, without an agent and without MLflow.

    Args:
        eval_set: what is expected: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of tests, or a file, folder or
            URI of JSON Lines or Parquet, which is read as it is needed, so that memory does not grow with the number of cases.
        actual: what the agent did: an eval set whose invocations are that, ADK's result file, a path of either, a dict
            of invocations by eval id, or a list of any of these, one after the other's runs; ``None``: what is recorded beside the cases, in rows of JSON Lines or Parquet.
        config: the criteria; ``None``: the ``test_config.json`` beside the eval set, else ADK's defaults.
        judge: who judges, instead of the models that the config names: a model's name or a callable.

    Raises:
        InputError: with every problem of a file.
        UsageError: if it is not said what the agent did.
        JudgeError: if a judge cannot be had.
    """
    loaded, chosen = inputs_read_as_needed(eval_set, config) or load_inputs(eval_set, config)
    recording, baseline = recorded_beside(loaded, eval_set) if actual is None else load_recording(actual), options.get("baseline")
    if recording is None:
        raise UsageError(
            "actual: wanted what the agent did, since nothing is recorded beside the cases: a recording, an eval set or a result of ADK"
        )
    judges = judge_setup(judge=judge, **selected(options, JudgeArgs))
    beside = None if baseline is None else load_recording(baseline)
    with ledger_of(judges.ledger, needed=bool(judged_criteria(chosen))) as ledger:
        given: dict[str, Any] = {**selected(options, Options), "judges": replace(judges, answers=ledger), "baseline": beside}
        evaluation = Evaluation(loaded, chosen, CaseExecutor(recording, Options(**given)))
        parts = evaluation.collector(keep_in=kept_beside(ledger))
        report = wait(lambda: evaluation.execute(collector=parts, engine=engine_of(evaluation, parts)))
        if parts:
            parts.forget_kept()
        return replace(report, notes=(*report.notes, trouble)) if ledger and (trouble := ledger.settle()) else report
