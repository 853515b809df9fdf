"""Evaluating a champion anew, on the cases and by the criteria of a candidate that it could not be compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlflow_adk_eval.agents import Recording
from mlflow_adk_eval.agents.setup import UserSource
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.evalset.digest import canonical
from mlflow_adk_eval.gating.baseline.comparable import Reevaluate, ReevaluationRequest
from mlflow_adk_eval.gating.evidence.integrity import Documents, few, integrity_problems, read_documents
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.judge import JudgeOptions
from mlflow_adk_eval.judge.session import BudgetSource, JudgeSource
from mlflow_adk_eval.ledger import LedgerSource
from mlflow_adk_eval.runner import Progress
from mlflow_adk_eval.tracking.client import connect, existing, reaching_mlflow
from mlflow_adk_eval.tracking.evaluate import evaluate
from mlflow_adk_eval.tracking.replay import recording_of_run

_MAX_NAMED = 4


def reevaluation(  # noqa: PLR0913 - as evaluate
    agent: Any = None,
    *,
    judge: JudgeSource = None,
    judge_options: JudgeOptions | None = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
    agent_name: str | None = None,
    concurrency: int = 4,
    case_timeout_s: float | None = None,
    turn_timeout_s: float | None = None,
    user_simulator: UserSource = None,
    tracking_uri: str | None = None,
    progress: Progress | None = None,
) -> Reevaluate:
    """Return what `gate` and `promote` take as `reevaluate`: it evaluates the champion on the candidate's cases, by the candidate's config.

    The new run is about the champion's LoggedModel and lies beside the candidate's run, so that it is found the next time, and not made again.

    Args:
        agent: the champion as it can be run, like the agent of `evaluate`; ``None``: what it did in its earlier run is judged again,
            which is possible where it was asked the same in every case.
        judge: as of `evaluate`, and so are the other arguments that are named like there.
        judge_options: how judges are asked.
        budget: how much may be spent on judges.
        ledger: the file that keeps what was paid for.
        rejudge_failed: whether to ask again where a judge's kept answer cannot be read.
        agent_name: the sub-agent to evaluate instead of the root agent.
        concurrency: how many conversations are had at the same time.
        case_timeout_s: how long one case may take, in seconds.
        turn_timeout_s: how long the agent may take to answer one message, in seconds.
        user_simulator: who plays the user of conversation scenarios.
        tracking_uri: the MLflow server or store; ``None``: as MLflow is configured.
        progress: called with the number of finished case runs and of all.
    """

    def reevaluate(rematch: ReevaluationRequest) -> str:
        """Evaluate anew and return the id of the run."""
        played, num_runs = (agent, rematch.num_runs) if agent is not None else _recorded(rematch, tracking_uri)
        report = evaluate(
            rematch.eval_set,
            agent=played,
            config=rematch.config,
            agent_version=rematch.model_id,
            judge=judge,
            num_runs=num_runs,
            experiment=_experiment_of(rematch.candidate_run_id or rematch.run_id, tracking_uri),
            run_name=f"{rematch.agent_version} evaluated anew",
            budget=budget,
            judge_options=judge_options,
            ledger=ledger,
            rejudge_failed=rejudge_failed,
            agent_name=agent_name,
            concurrency=concurrency,
            case_timeout_s=case_timeout_s,
            turn_timeout_s=turn_timeout_s,
            user_simulator=user_simulator,
            tracking_uri=tracking_uri,
            progress=progress,
        )
        return report.run_id or ""

    return reevaluate


def _experiment_of(run_id: str, tracking_uri: str | None) -> str | None:
    if not run_id:
        return None
    client = connect(tracking_uri)
    with reaching_mlflow("the run's experiment could not be looked up"), existing(f"run {run_id!r}"):
        return str(client.get_run(run_id).info.experiment_id)


def _recorded(rematch: ReevaluationRequest, tracking_uri: str | None) -> tuple[Recording, int]:
    """Return what the champion did in its earlier run, and how often it had each conversation.

    Raises:
        UsageError: if that says nothing about the candidate's cases.
    """
    if not rematch.run_id:
        raise UsageError(f"there is no run of {rematch.agent_version} to judge again; name the agent, to be run anew")
    with store_at(tracking_uri) as store:
        evidence = store.evidence(rematch.run_id)
    doubts = integrity_problems(evidence)
    documents, unread = (None, doubts) if doubts else read_documents(evidence)
    if documents is None:
        raise UsageError(f"what it did in run {rematch.run_id} cannot be judged again, since {unread[0]}; name the agent, to be run anew")
    missing = few(_unplayed(rematch, documents), limit=_MAX_NAMED)
    if missing:
        raise UsageError(f"what it did in run {rematch.run_id} is not enough: {'; '.join(missing)}; name the agent, to be run anew")
    return recording_of_run(rematch.run_id, tracking_uri), min(rematch.num_runs, documents.num_runs)


def _unplayed(rematch: ReevaluationRequest, then: Documents) -> Iterator[str]:
    """Yield the cases in which the champion was not asked what the candidate was."""
    known = {case.eval_id: case for case in then.eval_set.eval_cases}
    now = rematch.config
    for case in rematch.eval_set.eval_cases:
        before = known.get(case.eval_id)
        if before is None:
            yield f"it never had case {case.eval_id!r}"
        elif _asked(before) != _asked(case):
            yield f"case {case.eval_id!r} asks for something else now"
        elif then.config.environment_of(case.eval_id) != now.environment_of(case.eval_id):
            yield f"case {case.eval_id!r} has another tool environment now"
        elif case.conversation is None and then.config.user_simulator_config != now.user_simulator_config:
            yield f"the user of case {case.eval_id!r} is played in another way now"


def _asked(case: EvalCase) -> list[Any]:
    """Return all of a case that reaches the agent."""
    said = [canonical(turn.user_content) for turn in case.conversation or ()]
    rest = (case.session_input, case.conversation_scenario)
    return [said, *(None if part is None else canonical(part) for part in rest)]
