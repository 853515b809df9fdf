"""Conversations of a production run as eval cases: of the failed ones, one for each cause.

A case has what the user said, and the id of each turn's trace as its invocation id. What would have been right, nobody knows but a person: until
somebody says it, the case has the tag ``open``, and criteria that compare with an expectation refuse it. A person may have said it in
MLflow already, as an expectation on the trace; what people said there of a judge's criterion becomes labels, as `calibrate` reads them.

Texts go the same way as in `capture`: without the secrets of the environment, and through the caller's function.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path

from mlflow.entities import Assessment, AssessmentSourceType, Expectation, TraceInfo
from mlflow.tracing.constant import TraceMetadataKey

from mlflow_adk_eval.agents.traces.conversations import Redact, Redactor
from mlflow_adk_eval.analysis.calibration.labels import Label, Unit, opinions_of
from mlflow_adk_eval.errors import UsageError, check_counts
from mlflow_adk_eval.evalset.files import load_eval_set
from mlflow_adk_eval.evalset.models import OPEN, OPEN_CALLS, Content, EvalCase, EvalSet, Invocation, Part
from mlflow_adk_eval.gating.calibration import judged_run
from mlflow_adk_eval.gating.named_runs import run_id_of
from mlflow_adk_eval.gating.registry import MlflowStore, store_at
from mlflow_adk_eval.redact import command
from mlflow_adk_eval.report.findings import findings_of, gathered
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.store.reaching import unless_absent
from mlflow_adk_eval.text import numbered
from mlflow_adk_eval.tracking.calibrate import labels_on, turns_in_mlflow
from mlflow_adk_eval.tracking.traces import PRODUCTION

TAG = "production"
_ANSWER = "expected_response"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionCases:
    """Cases made of a production run, and what people said of its conversations."""

    run_id: str
    eval_set: EvalSet
    """May be without cases."""
    conversations: int
    """The number of failed conversations, or of all if all were wanted."""
    causes: Mapping[str, tuple[str, ...]]
    """Why conversations failed, those with the most conversations first; each with the ids of its cases in `eval_set`."""
    duplicates: Mapping[str, str]
    """Conversations in which the user said the same as in another case, by their ids, with the id of that case."""
    labels: tuple[Mapping[str, str], ...]
    """People's labels on the judged criteria of the run, as rows for `calibrate`."""
    unread: tuple[str, ...]
    """Labels and conversations that cannot be used, one sentence each."""


def cases_from_traces(
    source: str,
    *,
    failed: bool = True,
    per_cause: int = 1,
    beside: EvalSet | str | Path | None = None,
    redact: Redact | None = None,
    eval_set_id: str = "production",
    tracking_uri: str | None = None,
) -> ProductionCases:
    """Return conversations of a production run as eval cases that expect nothing yet.

    An expectation ``expected_response`` that a person wrote on a trace becomes the expected response of its turn.

    Args:
        source: a run of `score_traces`, or an experiment, of which the latest such run counts.
        failed: whether only failed conversations are wanted, a few for each cause; otherwise all become cases.
        per_cause: how many cases represent one cause.
        beside: an eval set whose cases need no duplicates.
        redact: applied to every text, as in `capture`.
        eval_set_id: the name of the eval set.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: for invalid arguments, and if there is no such run.
        TrackingError: if MLflow is unreachable, or the run's evidence cannot be trusted.
    """
    check_counts(per_cause=per_cause)
    others = load_eval_set(beside) if isinstance(beside, str | Path) else beside
    redactor = Redactor(redact)
    with store_at(tracking_uri) as store:
        run = judged_run(store.evidence(_production_run(source, store)))
        if PRODUCTION not in run.evidence.params:
            raise UsageError(f"run {run.evidence.run_id} scored an eval set, not traces, so its conversations are cases already")
        # Most traces say nothing of people, and there may be many.
        on_traces = [(unit, info) for unit, info in turns_in_mlflow(store.client, [run]) if any(map(_by_person, info.assessments))]
    # 1. What people said: labels of what judges decided, and the answers that they expected. The latest of each counts.
    labels, problems, _ = labels_on(on_traces, run.units, {})
    latest = [label for opinion in opinions_of(labels).values() for label in opinion.labels]
    answers = _answers(on_traces)
    # 2. Which conversations failed, and which are new. Those with an answer go first: nobody needs to write it.
    cases = run.report.cases
    places = [place for place, verdict in enumerate(cases.verdicts) if not failed or verdict == "failed" or cases.at(place).error]
    taken = others.eval_ids if others else ()
    made = {place: _case(cases.at(place), answers, redactor, taken=taken) for place in places}
    places.sort(key=lambda place: (not any(turn.final_response for turn in made[place].conversation or ()), made[place].creation_timestamp))
    known = {_said(case.conversation): case.eval_id for case in (others.eval_cases if others else ()) if case.conversation}
    new, duplicates, unread = list[int](), dict[str, str](), list(map(str, problems))
    for place in places:
        eval_id, turns = cases.at(place).eval_id, made[place].conversation or ()
        if not any(turn.user_content.parts for turn in turns):
            unread.append(f"{eval_id}: the traces do not say what the user said")
        elif (same := known.setdefault(_said(turns), made[place].eval_id)) == made[place].eval_id:
            new.append(place)
        else:
            duplicates[eval_id] = same
    # 3. Why they failed, and which represent each cause. Where a judge has no verdict, that is nobody's failure but the judge's.
    played = ((place, cases.at(place)) for place in places)
    found = gathered(
        (place, case.eval_id, (one for one in findings_of(case) if one[1] == "failed" or not one[0])) for place, case in played
    )
    chosen = set[int]() if failed else set(new)
    for cause in found:
        fresh = [place for place in cause.places if place in new]
        lacking = per_cause - sum(place in chosen for place in fresh)
        chosen |= set([place for place in fresh if place not in chosen][: max(lacking, 0)])
    # 4. The cases, with their causes as tags.
    causes, tags = dict[str, tuple[str, ...]](), {place: list(made[place].tags) for place in chosen}
    for cause in found:
        text, of_cause = redactor.text(cause.text), [place for place in cause.places if place in chosen]
        causes[f"{text} · {cause.extent}"] = tuple(made[place].eval_id for place in of_cause)
        for place in of_cause:
            tags[place].append(f"cause: {text}")
    written = [made[place].model_copy(update={"tags": tags[place]}) for place in places if place in chosen]
    return ProductionCases(
        run_id=run.evidence.run_id,
        eval_set=EvalSet(eval_set_id=eval_set_id, name=eval_set_id, eval_cases=tuple(written)),
        conversations=len(places),
        causes=causes,
        duplicates=duplicates,
        labels=tuple(_row(label) for label in latest),
        unread=tuple(unread),
    )


def _production_run(source: str, store: MlflowStore) -> str:
    """Return the id of the run that is named, or of the latest production run of the experiment that is named."""
    known = store.client.get_experiment_by_name(source)
    if known is None and source.isdecimal():
        with unless_absent():
            known = store.client.get_experiment(source)
    if known is None:
        return run_id_of(source, store)
    wanted = f"params.`adk_eval.manifest_sha256` LIKE '%' AND params.`{PRODUCTION}` LIKE '%'"
    found = store.client.search_runs([known.experiment_id], wanted, order_by=["attributes.start_time DESC"], max_results=1)
    if not found:
        raise UsageError(f"experiment {source!r} has no run that scored its traces; first run {command('traces', 'score', source)}")
    return str(found[0].info.run_id)


def _by_person(assessment: Assessment) -> bool:
    return bool(assessment.source.source_type == AssessmentSourceType.HUMAN)


def _answers(turns: Sequence[tuple[Unit, TraceInfo]]) -> dict[tuple[str, int | None], str]:
    """Return what people expected as the answer of each turn, by case and turn; ``None``: the last turn of the session."""
    found: list[tuple[int, tuple[str, int | None], str]] = []
    for unit, info in turns:
        for one in info.assessments:
            if not isinstance(one, Expectation) or one.name != _ANSWER or not _by_person(one) or one.valid is False:
                continue
            if isinstance(one.value, str) and one.value.strip():
                index = None if TraceMetadataKey.TRACE_SESSION in (one.metadata or {}) else unit.invocation_index
                found.append((one.last_update_time_ms or 0, (unit.eval_id, index), one.value))
    return {place: answer for _, place, answer in sorted(found, key=itemgetter(0))}


def _case(case: CaseResult, answers: Mapping[tuple[str, int | None], str], redactor: Redactor, *, taken: Collection[str]) -> EvalCase:
    """Return what the user said in a conversation as a case, which is open unless people said what the answers should have been."""
    turns = list[Invocation]()
    said = case.expected or case.actual
    for index, turn in enumerate(said):
        whole = answers.get((case.eval_id, None), "") if index == len(said) - 1 else ""
        answer = redactor.text(answers.get((case.eval_id, index), whole))
        turns.append(
            Invocation(
                invocation_id=turn.invocation_id,
                user_content=redactor.content(turn.user_content),
                final_response=Content(role="model", parts=(Part(text=answer),)) if answer else None,
                creation_timestamp=turn.creation_timestamp,
            )
        )
    # A person who wrote an answer has not said which calls lead to it.
    tags = [TAG, OPEN_CALLS] if all(turn.final_response for turn in turns) else [TAG, OPEN]
    named = {"eval_id": numbered(case.eval_id, taken), "creation_timestamp": turns[0].creation_timestamp if turns else 0.0}
    return EvalCase.model_validate({**named, "conversation": turns, "tags": tags})


def _said(turns: Sequence[Invocation]) -> tuple[str, ...]:
    """Return what the user said, so that spaces and capital letters make no difference; a picture is like no other."""
    return tuple(" ".join(turn.user_text.split()).casefold() or turn.invocation_id for turn in turns)


def _row(label: Label) -> dict[str, str]:
    """Return a label as a row of a table."""
    where = {name: "" if value is None else str(value) for name, value in asdict(label.unit).items()}
    return where | {"label": "pass" if label.passed else "fail", "labeller": label.labeller}
