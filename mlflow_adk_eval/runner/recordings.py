"""Recording what an agent does, and scoring what was recorded: each without the other, and both without MLflow."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Unpack

from mlflow_adk_eval.agents import Conversation, Limits, Recording, load_recording
from mlflow_adk_eval.agents.conversation import conversation_setups
from mlflow_adk_eval.agents.recordings import Recorded, on, recording_beside, save_recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import judged_criteria
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.criteria.plan import check_ids
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.files import open_inputs
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
    """Have every conversation of an eval set with an agent and return what it did. Nothing is judged, and no MLflow is needed.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files or several paths.
        agent: a module with a ``root_agent``, an ADK agent or a callable.
        config: how users are simulated, and which tools are answered for; ``None``: the ``test_config.json`` beside the eval set. Its
            criteria do not matter here.
        concurrency: how many conversations are had at the same time.
        case_timeout_s: how long one case may take, in seconds; ``None``: as long as it takes.
        turn_timeout_s: how long the agent may take to answer one message, in seconds; ``None``: as long as it takes.
        user_simulator: who plays the user of conversation scenarios: a model's name, a judge object, or a function of the scenario
            and the turns so far that returns the next message, or ``None`` to end the conversation; ``None``: the model that the
            config names.
        agent_name: the sub-agent to evaluate instead of the root agent.
        progress: called with the number of finished case runs and of all.
        num_runs: how often the agent has each conversation.
        agent_version: what the recording is to say of the agent's version.
        judge_hosts: the hosts that the config may name as the endpoint of a simulated user, besides those of
            ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        budget: how much may be spent on a model that plays users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: the file that keeps what such a model said; as of `evaluate`.
        save_to: a file for the recording. If this is interrupted, it gets whatever was recorded by then.

    Raises:
        UsageError: for arguments that make no sense; its kind `InputError` names every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if the model that is to play the user cannot be had.
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
        setups = conversation_setups(chosen, loaded, resolved, session, how.user_simulator)

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
    """Return the report on recorded conversations, without an agent and without MLflow.

    Args:
        eval_set: what is expected: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of tests, or a file, folder or
            URI of JSON Lines or Parquet, which is read as it is needed, so that memory does not grow with the number of cases.
        actual: what the agent did: an eval set whose invocations are that, ADK's result file, a path of either, a dict
            of invocations by eval id, or a list of any of these, one after the other's runs; ``None``: what is recorded beside the cases, in rows of JSON Lines or Parquet.
        config: the criteria; ``None``: the ``test_config.json`` beside the eval set, else ADK's defaults.
        judge: who judges, instead of the models that the config names: a model's name or a callable.
        judge_hosts: the hosts, with or without a port, that the config may name as the endpoint of a judge or a simulated user,
            besides those of ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: how judges are asked: how many requests at a time, how long one may take and how often it is repeated.
        budget: how much may be spent on judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: what keeps judges' answers, a file or a ``postgresql://`` URL; ``None``: as ``MLFLOW_ADK_EVAL_LEDGER`` says, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again where a judge's kept answer cannot be read.
        progress: called with the number of finished case runs and of all.
        workers: how many processes score; several of them only apply computed criteria.
        baseline: what pairwise criteria compare with: a recording, as `actual`.

    Raises:
        InputError: with every problem of a file.
        UsageError: if it is not said what the agent did.
        JudgeError: if a judge cannot be had.
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
