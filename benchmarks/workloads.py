"""What is measured: the jobs of each workload."""

from __future__ import annotations

from job import OURS, Job, Workload
from judged_workloads import JUDGED
from live_workloads import LIVE

_TRACES = f"{OURS}: a trace per invocation"
_SERVICE = "google-adk: LocalEvalService, as AgentEvaluator uses it"


def _scoring(cases: int) -> list[Job]:
    return [
        Job(OURS, "ours", "score", cases),
        Job(_SERVICE, "adk", "service", cases),
        Job("google-adk: evaluator classes in a loop", "adk", "classes", cases),
        Job("MLflow: its ADK scorers in a loop", "mlflow_scorers", "loop", cases),
        Job("floor", "floor", "score", cases),
        Job("floor, no garbage collection", "floor_uncollected", "score", cases),
    ]


def _growth(cases: int) -> list[Job]:
    return [
        job
        for size in (cases // 4, cases // 2, cases, cases * 2)
        for job in (Job(OURS, "ours", "score", size), Job(_SERVICE, "adk", "service", size), Job("floor", "floor", "score", size))
    ]


def _logging(cases: int) -> list[Job]:
    return [
        Job(_TRACES, "ours", "log_traces", cases, "traces"),
        Job("MLflow: `mlflow.genai.evaluate`, 4 workers, no rate limit", "mlflow_scorers", "evaluate_tuned", cases, "traces"),
        Job("floor: a trace per invocation, as rows of SQL", "floor", "log_rows", cases, "traces"),
        Job("floor: a trace per invocation, by MLflow's client", "floor", "log_invocation_traces", cases, "traces"),
        Job("floor: a trace per case, by MLflow's client", "floor", "log_case_traces", cases, "traces"),
        Job(f"{OURS}: no traces", "ours", "log_table", cases, "table"),
        Job("google-adk: LocalEvalService, `log_table` by hand", "adk", "service_and_table", cases, "table"),
        Job("floor: `log_table`", "floor", "log_table", cases, "table"),
    ]


def _integrations(cases: int) -> list[Job]:
    return [
        Job(_TRACES, "ours", "log_traces", cases, "traces"),
        Job(f'{OURS}: `evaluators="adk"`', "integrations", "evaluator", cases, "traces"),
        Job(f"{OURS}: scorers in `mlflow.genai.evaluate`, 4 workers, no rate limit", "integrations", "scorers", cases, "traces"),
        Job("MLflow: its ADK scorers in `mlflow.genai.evaluate`, likewise", "mlflow_scorers", "evaluate_tuned", cases, "traces"),
        Job(f"{OURS}: metrics in `mlflow.models.evaluate`", "integrations", "metrics", cases, "table"),
    ]


def _defaults(cases: int) -> list[Job]:
    return [
        Job(_TRACES, "ours", "log_traces", cases, "traces"),
        Job("MLflow: `mlflow.genai.evaluate` as it comes", "mlflow_scorers", "evaluate", cases, "traces", most_rounds=1),
    ]


def _imports(_cases: int) -> list[Job]:
    return [
        Job("nothing", "ours", targets=()),
        Job("`import mlflow_adk_eval`", "ours", targets=("mlflow_adk_eval",)),
        Job("… and what loading and scoring need", "ours", targets=("mlflow_adk_eval:load_eval_set", "mlflow_adk_eval:score")),
        Job("`import google.adk.evaluation.local_eval_service`", "adk", targets=("google.adk.evaluation.local_eval_service",)),
        Job("`import mlflow`", "mlflow_scorers", targets=("mlflow",)),
    ]


def _memory(cases: int) -> list[Job]:
    return [
        Job(OURS, "ours", "score", cases),
        Job(_SERVICE, "adk", "service", cases),
        Job("floor", "floor", "score", cases),
        Job(OURS, "ours", "score", cases * 10),
    ]


WORKLOADS = {
    "w1": Workload(
        "Loading and scoring {rows:,} recorded invocations",
        "tool_trajectory_avg_score (EXACT) and response_match_score (ROUGE-1) on {cases:,} recorded conversations of five turns.",
        _scoring,
        2_000,
    ),
    "linearity": Workload("Growth with the number of cases", "The same work on eval sets of four sizes.", _growth, 2_000),
    "w2": Workload(
        "Scoring and logging {rows:,} invocations into SQLite",
        "The same two criteria, visible in MLflow with their reasons. Creating the store and the first trace are outside the clock.",
        _logging,
        200,
    ),
    "integrations": Workload(
        "{rows:,} invocations through what evaluates in MLflow",
        "The same two criteria as metrics, as scorers and as an evaluator. What MLflow itself does per row is most of the time of the first two.",
        _integrations,
        40,
        reference="ours",
    ),
    "defaults": Workload(
        "Logging {rows:,} invocations with MLflow's default settings",
        "`mlflow.genai.evaluate` writes from more threads than a SQLite store has connections for.",
        _defaults,
        12,
        reference="ours",
    ),
    **JUDGED,
    **LIVE,
    "import": Workload("Importing", "In a fresh process with warm file caches.", _imports),
    "memory": Workload("Memory", "The most that the process has held.", _memory, 2_000),
}
