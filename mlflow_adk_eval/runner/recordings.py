"""Recording what an agent does, and scoring what was recorded: each without the other, and both without MLflow."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Unpack

from mlflow_adk_eval.agents.conversation import conversation_setups
from mlflow_adk_eval.agents.http.http_agent import HttpAgent
from mlflow_adk_eval.agents.protocol import Limits, LiveAgent
from mlflow_adk_eval.agents.recordings import Recorded, Recording, load_recording, on, recording_beside, save_recording
from mlflow_adk_eval.agents.replay import Replay
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import judged_criteria
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.criteria.plan import check_ids
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.conversation import Conversation, Origin
from mlflow_adk_eval.evalset.files import open_inputs
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.evalset.parse import no_rescanning
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeArgs, JudgeSource, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.report import COMPARED_WITH_ITSELF, Report, compares_itself
from mlflow_adk_eval.runner.batches import engine_of
from mlflow_adk_eval.runner.evaluation import CaseExecutor, Evaluation, Options, conversation_with, wait
from mlflow_adk_eval.runner.keywords import RecordArgs, ScoreArgs, keywords, selected
from mlflow_adk_eval.runtime import each


@keywords(RecordArgs, Origin, Options)
def record(eval_set: EvalSetSource, agent: Any, config: ConfigSource = None, **options: Unpack[RecordArgs]) -> Recording:
    """Run an agent on every conversation of an eval set and return the recording. It judges nothing and does not need MLflow.

    The recording also holds what tools and models answered, so `evaluate` can replay it.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files or several paths.
        agent: a module with a ``root_agent``, an ADK agent or a callable.
        config: the user simulator and tool environment; ``None``: ``test_config.json`` in the eval set's folder. Its criteria
            are ignored.
        concurrency: the number of conversations to run in parallel.
        case_timeout_s: the time limit for one case, in seconds; ``None``: no limit.
        turn_timeout_s: the time limit for one answer of the agent, in seconds; ``None``: no limit.
        user_simulator: plays the user in conversation scenarios: a model's name, a judge object, or a function of the scenario
            and the turns so far that returns the next message, or ``None`` to end the conversation; ``None``: the model that the
            config names.
        agent_name: the sub-agent to evaluate instead of the root agent.
        progress: called with the numbers of finished and of all case runs.
        num_runs: the number of times to run each conversation.
        agent_version: the agent version to store in the recording.
        judge_hosts: hosts that the config may use as the endpoint of a simulated user, in addition to
            ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        budget: the limit for the user simulator: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: stores the user simulator's messages, as for `evaluate`.
        save_to: a file for the recording. If you interrupt the run, it gets the conversations so far.

    Raises:
        UsageError: for invalid arguments; its subclass `InputError` lists every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if the user simulator's model cannot be set up.
    """
    loaded, chosen = load_inputs(eval_set, config)
    limits = Limits(case_s=options.get("case_timeout_s"), turn_s=options.get("turn_timeout_s"))
    resolved = resolve_agent(agent, agent_name=options.get("agent_name"), limits=limits, eval_set=loaded)
    check_ids(loaded)
    how, conversations = Options(**selected(options, Options)), dict[tuple[str, int], Conversation]()
    runs = [(case, run_index) for case in loaded.eval_cases for run_index in range(how.num_runs)]
    agent_version, started = options.get("agent_version", ""), datetime.now(UTC).isoformat(timespec="seconds")
    origin = on(loaded, Origin(agent=resolved.name, agent_version=agent_version, recorded_at=started, num_runs=how.num_runs))
    judges = judge_setup(**selected(options, JudgeArgs))
    with opened(judges.ledger) as ledger:
        session = JudgeSession(replace(judges, answers=ledger))
        session.check(chosen.model_copy(update={"criteria": {}, "case_criteria": {}}))
        replay = Replay(None, record=True) if isinstance(resolved, LiveAgent) and not isinstance(resolved, HttpAgent) else None
        setups = conversation_setups(chosen, loaded, resolved, session, how.user_simulator, replay)

        async def work(run: tuple[EvalCase, int]) -> None:
            case, run_index = run
            conversations[case.eval_id, run_index] = await conversation_with(resolved, case, run_index, setups)
            if how.progress:
                how.progress(len(conversations), len(runs))

        async def have_conversations() -> None:
            try:
                with no_rescanning():
                    await each(work, runs, limit=min(how.concurrency, len(runs)))
            finally:
                await session.aclose()

        try:
            wait(have_conversations)
        finally:
            # A conversation that was not had to its end is one that failed.
            not_had = Conversation(actual=(), error="the recording was interrupted before this conversation ended")
            had = {
                eval_id: tuple(conversations.get((eval_id, run_index), not_had) for run_index in range(how.num_runs))
                for eval_id in loaded.eval_ids
            }
            recording = Recording(had, origin=origin, simulating=session.simulating())
            if conversations and (save_to := options.get("save_to")):
                save_recording(recording, save_to)
    return recording


@keywords(ScoreArgs, Options, judge_setup)
def score(
    eval_set: EvalSetSource,
    actual: Recorded | None = None,
    config: ConfigSource = None,
    judge: JudgeSource = None,
    **options: Unpack[ScoreArgs],
) -> Report:
    """Score recorded conversations, without running an agent and without MLflow.

    Args:
        eval_set: the expected turns: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of tests, or a file, folder or
            URI of JSON Lines or Parquet, which is read as a stream, so memory does not grow with the number of cases.
        actual: the agent's conversations: an eval set that records them, ADK's result file, a path of either, a dict of invocations by eval id, or a
            list of these, one per run; ``None``: the conversations in the rows of JSON Lines or Parquet.
        config: the criteria; ``None``: ``test_config.json`` in the eval set's folder, else ADK's defaults.
        judge: the judge, instead of the config's models: a model's name, a judge object or a callable.
        judge_hosts: hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user,
            in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: parallelism, time limits and retries of requests to judges.
        budget: the limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again if a stored answer of a judge cannot be parsed.
        progress: called with the numbers of finished and of all case runs.
        workers: the number of scoring processes; more than one can only apply computed criteria.
        baseline: the baseline of pairwise criteria: a recording, as for `actual`.

    Raises:
        InputError: with every problem of a file.
        UsageError: if there are no conversations to score.
        JudgeError: if a judge cannot be set up.
    """
    inputs = open_inputs(eval_set)
    loaded, chosen = load_inputs(inputs, config, as_needed=True)
    recording, baseline = recording_beside(loaded, inputs) if actual is None else load_recording(actual), options.get("baseline")
    if recording is None:
        raise UsageError("actual: the rows contain no conversations; wanted a recording, an eval set or an ADK result file")
    judges = judge_setup(judge=judge, **selected(options, JudgeArgs))
    beside = None if baseline is None else load_recording(baseline)
    with opened(judges.ledger, needed=bool(judged_criteria(chosen))) as ledger:
        how = replace(Options(**selected(options, Options)), judges=replace(judges, answers=ledger), baseline=beside)
        evaluation = Evaluation(loaded, chosen, CaseExecutor(recording, how))
        parts = evaluation.collector(keep_in=ledger.parts if ledger else None)
        engine = engine_of(evaluation, parts) if parts and how.workers > 1 else None
        report = wait(lambda: evaluation.execute(collector=parts, engine=engine))
        if parts and parts.kept:
            parts.kept.forget()
        trouble = [ledger.settle()] if ledger else []
        itself = [COMPARED_WITH_ITSELF] if compares_itself(report) else []
        return replace(report, notes=(*report.notes, *filter(None, trouble), *itself))
