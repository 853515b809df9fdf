"""Evaluating a champion anew, on the cases and by the criteria of a candidate that it could not be compared with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

from mlflow_adk_eval.agents import Recording
from mlflow_adk_eval.config.endpoints import endpoints_in
from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet, eval_set_digest
from mlflow_adk_eval.evalset.digest import canonical
from mlflow_adk_eval.gating.baseline.comparable import Reevaluate, ReevaluationRequest
from mlflow_adk_eval.gating.evidence.documents import Documents
from mlflow_adk_eval.gating.evidence.examine import ReadableRun, examine
from mlflow_adk_eval.gating.evidence.integrity import few, state_problems
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.runner import Options
from mlflow_adk_eval.runner.keywords import AgentArgs, ConversationArgs, keywords
from mlflow_adk_eval.tracking.client import connect, existing, reaching_mlflow
from mlflow_adk_eval.tracking.earlier_runs import recording_of_run
from mlflow_adk_eval.tracking.evaluate import evaluate

_MAX_NAMED = 4


class ReevaluationArgs(JudgeArgs, AgentArgs, total=False):
    """The keywords of `reevaluation`."""

    tracking_uri: str | None
    """The MLflow server or store; ``None``: as MLflow is configured."""
    signing_key: str | Path | None
    """Signs the new evaluation, as for `evaluate`; ``None``: what ``MLFLOW_ADK_EVAL_SIGNING_KEY`` says."""


@keywords(ReevaluationArgs, JudgeArgs, AgentArgs, ConversationArgs, defaults=(Options, judge_setup))
def reevaluation(
    agent: Any = None,
    *,
    eval_set: EvalSetSource | None = None,
    config: ConfigSource = None,
    **options: Unpack[ReevaluationArgs],
) -> Reevaluate:
    """Return what `gate` and `promote` take as `reevaluate`: it evaluates the champion on the candidate's cases, by the candidate's config.

    The new run is about the champion's LoggedModel and lies beside the candidate's run. Eval set and config come from you, or from the
    candidate's run where the policy pins their digests: who wrote that run must not say by what it is judged.

    Args:
        agent: the champion as it can be run, like the agent of `evaluate`; ``None``: what it did in its earlier run is judged again,
            which is possible where it was asked the same in every case.
        eval_set: what the candidate was evaluated on, like the eval set of `evaluate`; ``None``: what the policy pins.
        config: by what; ``None``: with `eval_set`, the ``test_config.json`` beside it, else ADK's defaults; without, what the policy pins.

    Raises:
        InputError: with every problem of a file.
    """
    given_set: EvalSet | None = None
    given_config = None if config is None else load_config(config)
    if eval_set is not None:
        given_set, given_config = load_inputs(eval_set, config)

    def reevaluate(request: ReevaluationRequest) -> str:
        """Evaluate anew and return the id of the run."""
        _check_inputs(request, given_set, given_config)
        uri = options.get("tracking_uri")
        source, num_runs = (agent, request.num_runs) if agent is not None else _recorded(request, uri)
        report = evaluate(
            given_set or request.eval_set,
            agent=source,
            config=given_config or request.config,
            agent_version=request.model_id,
            num_runs=num_runs,
            experiment=_experiment_of(request.candidate_run_id or request.run_id, uri),
            run_name=f"{request.agent_version} evaluated anew",
            **options,
        )
        return report.run_id or ""

    return reevaluate


def _check_inputs(request: ReevaluationRequest, eval_set: EvalSet | None, config: EvalConfig | None) -> None:
    """Refuse an eval set or a config on the word of the candidate's run alone.

    Raises:
        UsageError: if one is neither given nor pinned, is given and another than the run's, or says where requests go and is not given.
    """
    for what, option, given, pinned, run in (
        ("eval set", "--eval-set FILE", eval_set and eval_set_digest(eval_set), request.eval_set_pinned, eval_set_digest(request.eval_set)),
        ("config", "--config_file_path FILE", config and config.digest(), request.config_pinned, request.config.digest()),
    ):
        if given is None and not pinned:
            name = what.replace(" ", "_")
            raise UsageError(
                f"the {what} is only known from the candidate's run; give it with {option} or reevaluation({name}=...),"
                f" or pin it in the policy: {name}: {{digest: {run}}}"
            )
        if given not in (None, run):
            raise UsageError(
                f"the digest of the {what} that you gave is {given}, that of the candidate's run {run}; give the {what} by which the"
                " candidate was evaluated, or evaluate the candidate again"
            )
    if config is None and (endpoints := endpoints_in(request.config)):
        path, host = endpoints[0]
        raise UsageError(
            f"the config of the candidate's run says at {path}{f' ({host})' if host else ''} where or how requests are sent, which is only"
            " taken from you; give the config with --config_file_path FILE or reevaluation(config=...)"
        )


def _experiment_of(run_id: str, tracking_uri: str | None) -> str | None:
    if not run_id:
        return None
    client = connect(tracking_uri)
    with reaching_mlflow("the run's experiment could not be looked up"), existing(f"run {run_id!r}"):
        return str(client.get_run(run_id).info.experiment_id)


def _recorded(request: ReevaluationRequest, tracking_uri: str | None) -> tuple[Recording, int]:
    """Return what the champion did in its earlier run, and how often it had each conversation.

    Raises:
        UsageError: if that says nothing about the candidate's cases.
    """
    if not request.run_id:
        raise UsageError(f"there is no run of {request.agent_version} to judge again; name the agent, to be run anew")
    with store_at(tracking_uri) as store:
        run = examine(store.evidence(request.run_id))
    if not isinstance(run, ReadableRun):
        state = state_problems(run.evidence)  # which does not matter: what it did then may be whole all the same
        why = next(problem for problem in run.problems if problem not in state)
        raise UsageError(f"what it did in run {request.run_id} cannot be judged again, since {why}; name the agent, to be run anew")
    documents = run.documents
    missing = few(_unplayed(request, documents), limit=_MAX_NAMED)
    if missing:
        raise UsageError(f"what it did in run {request.run_id} is not enough: {'; '.join(missing)}; name the agent, to be run anew")
    return recording_of_run(request.run_id, tracking_uri), min(request.num_runs, documents.num_runs)


def _unplayed(request: ReevaluationRequest, then: Documents) -> Iterator[str]:
    """Yield the cases in which the champion was not asked what the candidate was."""
    known = {case.eval_id: case for case in then.eval_set.eval_cases}
    now = request.config
    for case in request.eval_set.eval_cases:
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
