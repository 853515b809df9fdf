"""Labels that people give in MLflow, on the traces of a real run."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import mlflow
import pytest
from mlflow.entities import AssessmentError, AssessmentSource, Trace

from mlflow_adk_eval.analysis.calibration.calibration import Calibration
from mlflow_adk_eval.analysis.calibration.labels import LabelError
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import Request, answer_for
from mlflow_adk_eval.tracking.calibrate import calibrate
from mlflow_adk_eval.tracking.client import experiment_id
from tests.analysis.calibrated import CASES, EXPERIMENT, MATCH, RUBRICS, TASK, answers, deserves, evaluated

SHORT, POLITE = "short", "polite"
Traces = dict[tuple[str, int], str]


@contextmanager
def current(store: str) -> Generator[None]:
    """Make a store MLflow's own, within."""
    mlflow.set_tracking_uri(store)
    try:
        yield
    finally:
        mlflow.set_tracking_uri("")


@pytest.fixture
def run(store: str) -> Iterator[Report]:
    """A run in a store of its own, which is MLflow's current one."""
    with current(store):
        yield evaluated(store)


def achieved(request: Request) -> Any:
    """Judge that every goal was achieved."""
    return answer_for(request, "yes")


def traces(run: Report) -> Traces:
    """Return the ids of a run's traces by case and turn."""
    store = experiment_id(mlflow.get_tracking_uri(), EXPERIMENT)
    found: list[Trace] = mlflow.search_traces(locations=[store], run_id=run.run_id, return_type="list", include_spans=False)  # type: ignore[assignment]
    return {(one.info.tags["adk.eval_case_id"], int(one.info.tags["adk.invocation_index"])): one.info.trace_id for one in found}


def say(trace_id: str, name: str, value: Any, who: str = "anna", **more: Any) -> Any:
    source = AssessmentSource(source_type=more.pop("source_type", "HUMAN"), source_id=who)
    return mlflow.log_feedback(trace_id=trace_id, name=name, value=value, source=source, **more)


def label_all(run: Report, name: str) -> None:
    at = traces(run)
    for eval_id, index, answer in answers():
        say(at[eval_id, index], name, deserves(answer))


def calibrated(run: Report, **options: Any) -> Calibration:
    assert run.run_id
    return calibrate(run.run_id, **options)


def test_what_people_say_of_each_turn_is_held_against_what_the_judge_said(run: Report) -> None:
    label_all(run, MATCH)
    found = calibrated(run)
    rates = found.rates(MATCH)
    assert rates is not None
    assert (rates.true_passes, rates.false_failures, rates.true_failures, rates.false_passes) == (11, 1, 6, 1)
    assert found.criteria[MATCH].unscored == 1
    assert (found.labels.source, found.labels.count, found.labels.labellers) == ("mlflow", sum(map(len, CASES.values())), 1)
    assert [one.eval_id for one in found.disagreements] == ["strict", "blind"]
    assert found.rates(RUBRICS) is None


def test_a_rubric_is_labelled_by_its_own_name_or_behind_its_criterions(run: Report) -> None:
    at = traces(run)
    say(at["good_0", 0], POLITE, "yes")
    say(at["bad_0", 0], f"{RUBRICS}.{POLITE}", "pass")
    say(at["bad_1", 0], SHORT, 1)
    rubrics = calibrated(run).criteria[RUBRICS].rubrics
    assert list(rubrics) == [SHORT, POLITE]
    assert (rubrics[POLITE].true_passes, rubrics[POLITE].false_failures) == (1, 1)
    assert rubrics[SHORT].true_passes == 1
    assert calibrated(run).rates(RUBRICS) is None


def test_values_are_words_truths_or_scores(run: Report) -> None:
    at = traces(run)
    for number, value in enumerate((True, "true", "Yes", 0.5, 1)):
        say(at[f"good_{number}", 0], MATCH, value)
    for number, value in enumerate((False, "no", "fail", 0.4, 0)):
        say(at[f"bad_{number}", 0], MATCH, value)
    rates = calibrated(run).rates(MATCH)
    assert rates is not None
    assert (rates.true_passes, rates.true_failures, rates.labelled) == (5, 5, 10)


def test_people_may_change_their_minds_and_override_the_judge(run: Report) -> None:
    at = traces(run)
    say(at["good_0", 0], MATCH, value=False)
    say(at["good_0", 0], MATCH, value=True)
    own = next(one for one in mlflow.get_trace(at["bad_0", 0]).info.assessments if one.name == MATCH)  # type: ignore[union-attr]
    human = AssessmentSource(source_type="HUMAN", source_id="anna")
    mlflow.override_feedback(trace_id=at["bad_0", 0], assessment_id=own.assessment_id or "", value=1.0, source=human)
    first = say(at["bad_1", 0], MATCH, value=True)
    mlflow.override_feedback(trace_id=at["bad_1", 0], assessment_id=first.assessment_id, value=False, source=human)
    rates = calibrated(run).rates(MATCH)
    assert rates is not None
    assert (rates.true_passes, rates.false_failures, rates.true_failures, rates.labelled) == (1, 1, 1, 3)


def test_several_people_are_put_together_and_their_own_agreement_is_told(run: Report) -> None:
    at = traces(run)
    for who, value in (("anna", True), ("ben", True), ("cem", False)):
        say(at["good_0", 0], MATCH, value, who)
    say(at["bad_0", 0], MATCH, value=True, who="anna")
    say(at["bad_0", 0], MATCH, value=False, who="ben")
    found = calibrated(run)
    assert found.labels.labellers == 3
    people, rates = found.criteria[MATCH].people, found.rates(MATCH)
    assert people is not None
    assert rates is not None
    assert (people.cells, people.disputed, people.tied) == (2, 2, 1)
    assert (rates.labelled, rates.true_passes) == (1, 1)


def test_what_is_no_label_of_a_person_does_not_count(run: Report) -> None:
    at = traces(run)
    say(at["good_0", 0], MATCH, value=True)
    say(at["good_1", 0], MATCH, value=True, source_type="LLM_JUDGE")
    say(at["good_2", 0], MATCH, None, error=AssessmentError(error_code="NO_IDEA"))
    mlflow.log_expectation(trace_id=at["good_3", 0], name=MATCH, value=True, source=AssessmentSource(source_type="HUMAN", source_id="anna"))
    rates = calibrated(run).rates(MATCH)
    assert rates is not None
    assert rates.labelled == 1


def test_other_assessments_of_people_are_named_and_left_out(run: Report) -> None:
    at = traces(run)
    say(at["good_0", 0], MATCH, value=True)
    say(at["good_0", 0], "final_response_match_v3", value=True)
    say(at["good_0", 0], "tone", "lovely")
    (note,) = calibrated(run).notes
    assert "ignored people's assessments with other names: 'final_response_match_v3' (1), 'tone' (1)." in note
    assert f"Did you mean '{MATCH}'?" in note


def test_people_may_use_other_names(run: Report) -> None:
    label_all(run, "correct")
    rates = calibrated(run, assessment={MATCH: "correct"}).rates(MATCH)
    assert rates is not None
    assert rates.labelled == 19
    with pytest.raises(UsageError, match=f"assessment 'correct': name its criterion, because several are judged: {MATCH}, {RUBRICS}"):
        calibrated(run, assessment="correct")
    with pytest.raises(UsageError, match=f"no criterion 'final_response'; they have {MATCH}, {RUBRICS}"):
        calibrated(run, assessment={"final_response": "correct"})


def test_without_labels_it_is_said_what_they_would_be_called(run: Report) -> None:
    with pytest.raises(UsageError) as caught:
        calibrated(run)
    wanted = f"{MATCH}, {RUBRICS}, {RUBRICS}.short, {RUBRICS}.polite"
    assert str(caught.value) == f"nothing is labelled: mlflow has no label for {wanted}."


def test_every_label_that_cannot_be_read_is_told_with_its_trace(run: Report) -> None:
    at = traces(run)
    say(at["good_0", 1], MATCH, "maybe")
    say(at["good_1", 0], POLITE, 0.5)
    say(at["good_2", 0], MATCH, value=True)
    with pytest.raises(LabelError) as caught:
        calibrated(run)
    text = str(caught.value)
    assert f"trace {at['good_0', 1]} ('good_0', turn 2), assessment '{MATCH}': found 'maybe'; wanted true or false" in text
    assert f"trace {at['good_1', 0]} ('good_1', turn 1), assessment 'polite': found 0.5; wanted true or false" in text
    assert "2 problems in this set of labels" in text


def test_what_is_judged_once_for_a_case_may_be_labelled_on_any_of_its_turns(store: str) -> None:
    config = {"criteria": {TASK: {"threshold": 1.0, "backend": "judge", "judge_model_options": {"num_samples": 1}}}}
    with current(store):
        run = evaluated(store, config, by=achieved)
        at = traces(run)
        say(at["good_0", 0], "done", value=True)
        say(at["good_1", 1], "done", value=True)
        say(at["bad_0", 0], "done", value=False)
        rates = calibrated(run, assessment="done").rates(TASK)
    assert rates is not None
    assert (rates.true_passes, rates.false_passes) == (2, 1)
