"""Judging answers of earlier runs again, at the end of a run, so that later it can be told whether the judge changed.

The cells are chosen by `gating.drift`. They are judged by the criteria of the run as it judges its own: by the same judges, within their limits and
their budget. Nothing of that is part of the run's results. What goes wrong is noted as missing, and costs the run nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice

import anyio.to_thread

from mlflow_adk_eval.config.eval_config import judged_criteria
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import Planned
from mlflow_adk_eval.errors import AdkEvalError, InputError
from mlflow_adk_eval.gating.drift import JudgedRun, listed_runs, planned
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.judge.voting import CellKey
from mlflow_adk_eval.redact import message_of, secrets_of
from mlflow_adk_eval.results.outcomes import grouped, reason_of
from mlflow_adk_eval.results.report import Cases
from mlflow_adk_eval.runner.evaluation import Evaluation, apply_criteria
from mlflow_adk_eval.runs.anchors import Anchor, Anchors, CellId, EarlierCell, JudgeAnchors, anchor_of, judges_of
from mlflow_adk_eval.runtime import gathered
from mlflow_adk_eval.tracking.bundle import judge_params
from mlflow_adk_eval.tracking.logged_run import LoggedRun
from mlflow_adk_eval.tracking.storable import StoreCleaner


async def judge_again(evaluation: Evaluation, logged: LoggedRun, cases: Cases, started: float) -> Anchors:
    """Return the anchors of a run, once its own results are there and before its judges are closed.

    Args:
        evaluation: what the run does.
        logged: the run.
        cases: its results.
        started: when its judges were first asked, as `time.monotonic` has it.
    """
    config, session, run_id = evaluation.config, evaluation.executor.judges, logged.run.run_id
    judges = judges_of(config, judge_params(cases, session.usage(), None, secrets_of()))
    criteria = {known.judge: tuple(name for name in judges if judges[name].judge == known.judge) for known in judges.values()}
    found: dict[CellId, Anchor | str] = {}

    def look_up() -> tuple[list[tuple[JudgeAnchors, list[EarlierCell]]], dict[str, JudgedRun]]:
        with store_at(logged.target.tracking_uri) as store:
            began = datetime.fromtimestamp(logged.run.started_ms / 1000, UTC)
            runs = listed_runs(store, logged.experiment_id, began, latest=True)
            return [planned(runs, config, judges, judge, run_id, cases) for judge in criteria], {run.run_id: run for run in runs}

    try:
        chosen, runs = await anyio.to_thread.run_sync(look_up)
    except AdkEvalError as error:
        why = (message_of(error),)
        chosen, runs = [(JudgeAnchors(judge=one, criteria=names, planned=0, missing=why), []) for one, names in criteria.items()], {}

    async def judge_case(run: JudgedRun, eval_id: str, run_index: int, wanted: Sequence[EarlierCell]) -> None:
        part = run.part(run_id)
        try:
            case, conversation = part.case(part.case_ids.index(eval_id)), part.conversation(part.run_ids.index((eval_id, run_index)))
        except (InputError, ValueError) as error:  # whoever may write to MLflow can make up a run
            found.update(dict.fromkeys((cell.id for cell in wanted), f"run {run.run_id} cannot be read: {message_of(error)}"))
            return
        key_of = partial(CellKey, eval_id=eval_id, run_index=run_index)
        again = frozenset(key_of(invocation_index=cell.id[3], criterion=cell.id[4]) for cell in wanted)
        plans: list[Planned] = []
        for name in dict.fromkeys(cell.id[4] for cell in wanted):
            (settings,), spec = judged_criteria(config)[name], CRITERIA[name]
            criterion = spec.make(settings, session.vote_collector(settings, spec.prompts, again=again, of=run.run_id))
            plans.append(Planned(name=name, criterion=criterion, threshold=settings.threshold, judged=True))
        results = {one.criterion: one for one in (await apply_criteria(case, run_index, conversation, plans)).results}
        for cell in wanted:
            result, turn = results[cell.id[4]], cell.id[3]
            votes = [vote for vote in result.votes if vote.invocation_index == turn]
            outcome = next(islice(result.per_invocation, turn, None), None)
            reason = reason_of(outcome) if outcome else f"run {run.run_id} has no such turn"
            if any(vote.asked_in for vote in votes):
                found[cell.id] = "the ledger had an answer of another evaluation"
            else:
                found[cell.id] = anchor_of(cell, votes, config, session.evaluation) or reason

    by_case = grouped((cell.id[:3], cell) for _, some in chosen for cell in some)
    limit_s = evaluation.executor.options.judges.options.timeout_s + 2 * config.anchor_share * (time.monotonic() - started)
    with anyio.move_on_after(limit_s):  # a judge that is down now must not keep results that are there
        await gathered(
            partial(judge_case, runs[earlier], eval_id, run_index, wanted) for (earlier, eval_id, run_index), wanted in by_case.items()
        )
    clean, late = StoreCleaner(secrets_of()), f"no answer within {limit_s:.3g} s"
    judged: list[JudgeAnchors] = []
    for about, some in chosen:
        outcomes = [found.get(cell.id, late) for cell in some]
        anchors = tuple(one for one in outcomes if isinstance(one, Anchor))
        missing = (*about.missing, *(one for one in outcomes if isinstance(one, str)))
        judged.append(about.model_copy(update={"anchors": anchors, "missing": tuple(map(clean.text, missing))}))
    return Anchors(judges=tuple(judged))
