"""Calibrations: from a run and a table to a file, from a file to the gate's question, and through the command line."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mlflow_adk_eval.analysis.calibration.calibration import (
    Calibration,
    CalibrationError,
    Labelled,
    Sample,
    calibration_problems,
    judged_sample,
    load_calibration,
    settings_sha256,
)
from mlflow_adk_eval.analysis.calibration.judge_error import Corrected, JudgeRates, corrected_rate
from mlflow_adk_eval.analysis.calibration.labels import LabelError
from mlflow_adk_eval.cli.judges import calibrate as command
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.gating.drift import CALIBRATION
from mlflow_adk_eval.report.calibration import calibration_json, remarks
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.calibrate import calibrate
from tests.analysis.calibrated import CONFIG, EXPERIMENT, MATCH, RUBRICS, answers, deserves, evaluated
from tests.mlflow_kit import opened

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return opened(template, tmp_path_factory.mktemp("calibrated"), EXPERIMENT)


@pytest.fixture(scope="module")
def run(store: str) -> Report:
    patch = pytest.MonkeyPatch()
    with patch.context() as within:
        within.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        return evaluated(store)


def labels(only: Callable[[str, int], bool] = lambda _eval_id, _index: True, **more: Any) -> Rows:
    return [
        {"eval_id": eval_id, "invocation_index": index, "criterion": MATCH, "label": deserves(answer), **more}
        for eval_id, index, answer in answers()
        if only(eval_id, index)
    ]


def calibrated(run: Report, store: str, rows: Iterable[Any] | None = None, **options: Any) -> Calibration:
    return calibrate(run, labels() if rows is None else rows, tracking_uri=store, **options)


def params_of(run: Report, store: str) -> dict[str, str]:
    from mlflow import MlflowClient

    return dict(MlflowClient(store).get_run(run.run_id or "").data.params)


# From a run to a calibration


def test_a_table_gives_what_assessments_would(run: Report, store: str) -> None:
    found = calibrated(run, store)
    rates = found.rates(MATCH)
    assert rates is not None
    assert (rates.true_passes, rates.false_failures, rates.true_failures, rates.false_passes) == (11, 1, 6, 1)
    assert found.criteria[MATCH].unscored == 1
    assert found.criteria[MATCH].level == "turn"
    assert found.criteria[MATCH].sample == judged_sample(run.cases, MATCH)
    assert [one.run_id for one in found.runs] == [run.run_id]
    assert (found.labels.source, found.labels.count) == ("labels", 20)


def test_turns_of_a_case_count_as_a_cluster(run: Report, store: str) -> None:
    found = calibrated(run, store).criteria[MATCH]
    # five cases with two good turns, both judged rightly, one strict turn judged wrongly, one good turn in "blind":
    # cases of 2, 2, 2, 2, 2, 1 and 1 turns, of which 2, 2, 2, 2, 2, 0 and 1 are right, 11 of 12
    share = 11 / 12
    between = sum((right - share * size) ** 2 for right, size in [(2, 2)] * 5 + [(0, 1), (1, 1)]) * 7 / 6
    assert found.pass_effect == pytest.approx(between / (12 * share * (1 - share)))
    assert found.sample.design_effect > 1


def test_whole_cases_may_be_labelled_instead_of_turns(run: Report, store: str) -> None:
    rows = [
        {"eval_id": eval_id, "criterion": MATCH, "label": "no" if "bad" in eval_id else "yes"} for eval_id in ("good_0", "bad_0", "blind")
    ]
    found = calibrated(run, store, rows)
    assert found.criteria[MATCH].level == "case"
    assert found.criteria[MATCH].sample == judged_sample(run.cases, MATCH, "case")
    assert (found.criteria[MATCH].true_passes, found.criteria[MATCH].true_failures) == (2, 1)
    with pytest.raises(LabelError, match=f"{MATCH}: found labels for whole cases and for single turns; wanted one kind of label"):
        calibrated(run, store, [*rows, {"eval_id": "good_1", "invocation_index": 1, "criterion": MATCH, "label": "yes"}])
    mixed = calibrated(run, store, [*rows, {"eval_id": "bad_1", "invocation_index": 0, "criterion": MATCH, "label": "no"}])
    assert mixed.criteria[MATCH].true_failures == 2  # that case has one turn, so that both is the same


def test_several_runs_by_the_same_judge_are_taken_together(run: Report, store: str) -> None:
    second = evaluated(store)
    rows = labels(run_id=run.run_id) + labels(run_id=second.run_id)
    found = calibrate([run, second, run], rows, tracking_uri=store)
    rates = found.rates(MATCH)
    assert rates is not None
    assert rates.labelled == 38
    assert [one.run_id for one in found.runs] == [run.run_id, second.run_id]
    # what was said twice of the same case is one thing said
    assert rates.pass_effect > 1.9


def test_runs_by_different_judges_are_not(run: Report, store: str) -> None:
    other = {"criteria": {**CONFIG["criteria"], MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 3}}}}
    second = evaluated(store, other)
    with pytest.raises(UsageError, match=rf"together: {MATCH} had 2 judges: adk_eval.num_samples.{MATCH} is '1' in one and '3' in another"):
        calibrate([run, second], labels(run_id=run.run_id), tracking_uri=store)


def test_a_run_that_cannot_be_believed_is_refused(store: str) -> None:
    from mlflow import MlflowClient

    spoilt, forged = evaluated(store), evaluated(store)
    client = MlflowClient(store)
    client.log_text(spoilt.run_id or "", "{}", "adk_eval/config.json")
    with pytest.raises(TrackingError, match=r"cannot be trusted: the artifact adk_eval/config.json was changed after the run"):
        calibrated(spoilt, store)
    client.set_tag(forged.run_id or "", "adk_eval.status", "partial")
    with pytest.raises(UsageError, match="cannot be calibrated: the run contains only part of the evaluation"):
        calibrated(forged, store)
    with pytest.raises(UsageError, match="does not exist"):
        calibrate("0" * 32, labels(), tracking_uri=store)
    with pytest.raises(UsageError, match="name at least one run"):
        calibrate([], labels(), tracking_uri=store)


def test_nothing_labelled_is_an_error(run: Report, store: str) -> None:
    with pytest.raises(UsageError, match=f"nothing is labelled: labels has no label for {MATCH}, {RUBRICS}, "):
        calibrated(run, store, [])


def test_labels_chosen_by_verdict_give_no_corrected_rate(store: str) -> None:
    run = evaluated(store, num_runs=6)
    rows = [
        row | {"run_index": index}
        for index in range(6)
        for row in labels(only=lambda eval_id, _: eval_id.startswith("bad") or eval_id == "strict")
    ]
    rows += [row | {"run_index": 0} for row in labels(only=lambda eval_id, index: eval_id == "good_0")]
    found = calibrated(run, store, rows)
    assert found.criteria[MATCH].selection.startswith("people labelled 2 of 72 passes but 42 of 42 failures")
    assert any("label a random sample" in remark for remark in remarks(found))
    assert "cannot be used: people labelled" in calibration_problems(found, params_of(run, store), MATCH)[0]


# The file


def test_a_file_gives_back_the_same_calibration(run: Report, store: str, tmp_path: Path) -> None:
    found = calibrated(run, store, [*labels(), {"eval_id": "bad_0", "criterion": RUBRICS, "rubric_id": "polite", "label": 0}])
    file = tmp_path / "calibration.json"
    file.write_text(found.dumps(), encoding="utf-8")
    again = load_calibration(file)
    assert again.dumps() == load_calibration(json.loads(found.dumps())).dumps() == found.dumps()
    assert load_calibration(again) is again
    assert again.rates(MATCH) == found.rates(MATCH)
    assert "it is good strict" not in file.read_text(encoding="utf-8")


def test_everything_wrong_with_a_file_is_told_at_once(run: Report, store: str) -> None:
    value = json.loads(calibrated(run, store).dumps())
    value["schema_version"] = 2
    value["criteria"][MATCH]["true_passes"] = -1
    value["criteria"][MATCH]["pass_efect"] = 2.0
    del value["criteria"][MATCH]["pass_effect"]
    value["made_by"] = None
    with pytest.raises(CalibrationError) as caught:
        load_calibration(value)
    found = {problem.path: str(problem) for problem in caught.value.problems}
    assert set(found) == {"$.schema_version", f"$.criteria.{MATCH}.true_passes", f"$.criteria.{MATCH}.pass_efect", "$.made_by"}
    assert "found -1; wanted a number of at least 0" in found[f"$.criteria.{MATCH}.true_passes"]
    assert "Did you mean 'pass_effect'?" in found[f"$.criteria.{MATCH}.pass_efect"]
    assert "in this calibration" in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CalibrationError, match="wanted an object"):
        load_calibration(tmp_path / "c.json")
    with pytest.raises(
        CalibrationError, match=r"no such file; wanted a file that exists\. `mlflow-adk-eval calibrate RUN_ID -o .*none\.json` writes it"
    ):
        load_calibration(tmp_path / "none.json")


# Whether it is about the judge of a run


def test_a_calibration_is_of_the_judge_of_its_own_run(run: Report, store: str) -> None:
    found, params = calibrated(run, store), params_of(run, store)
    assert set(found.criteria[MATCH].params) == {
        f"threshold.{MATCH}",
        f"adk_eval.judge.{MATCH}",
        f"adk_eval.num_samples.{MATCH}",
        f"adk_eval.prompt.{MATCH}",
    }
    assert calibration_problems(found, params, MATCH) == []
    assert calibration_problems(found, params, MATCH, run.config) == []


@pytest.mark.parametrize("key", ["threshold", "adk_eval.judge", "adk_eval.num_samples", "adk_eval.prompt"])
def test_another_judge_threshold_or_prompt_is_noticed(run: Report, store: str, key: str) -> None:
    found, params = calibrated(run, store), params_of(run, store)
    (changed,) = calibration_problems(found, {**params, f"{key}.{MATCH}": "other"}, MATCH)
    assert changed.startswith(f"the calibration is of a different judge for {MATCH}: {key}.{MATCH} was ")
    assert changed.endswith("but is 'other' in this run")
    del params[f"{key}.{MATCH}"]
    (missing,) = calibration_problems(found, params, MATCH)
    assert missing.endswith("but is absent in this run")


def test_a_criterion_without_labels_is_noticed(run: Report, store: str) -> None:
    found = calibrated(run, store)
    assert calibration_problems(found, {}, RUBRICS) == [f"the calibration has no labels for {RUBRICS}; it has labels for {MATCH}"]


def test_other_rubrics_or_settings_make_another_judge(run: Report, store: str) -> None:
    rows = [row | {"criterion": RUBRICS} for row in labels()]
    found, params = calibrated(run, store, rows), params_of(run, store)
    value = json.loads(json.dumps(CONFIG))
    value["criteria"][RUBRICS]["rubrics"][0]["rubric_content"]["text_property"] = "The answer is long."
    problem = f"the calibration is of a different judge for {RUBRICS}: its settings differ, such as rubrics or model options"
    assert calibration_problems(found, params, RUBRICS, load_config(value)) == [problem]
    assert calibration_problems(found, params, RUBRICS, load_config(CONFIG)) == []


def test_what_changes_no_score_does_not_matter() -> None:
    def digest(**options: Any) -> str:
        settings = {
            "threshold": options.pop("threshold", 0.5),
            "early_stop": options.pop("early_stop", True),
            "judge_model_options": options,
        }
        return settings_sha256(load_config({"criteria": {MATCH: settings}}), MATCH)

    assert digest() == digest(threshold=0.9, early_stop=False, judge_model="other", parallelism_limit=7)
    assert digest() != digest(judge_model_config={"temperature": 1})
    assert digest() != digest(num_samples=3)


def test_the_gate_gets_the_rate_of_any_run_by_the_same_judge(run: Report, store: str) -> None:
    found = calibrated(run, store)
    sample = judged_sample(run.cases, MATCH)
    rates = found.rates(MATCH)
    assert rates is not None
    corrected = found.criteria[MATCH].corrected(sample, 0.9)
    assert corrected == corrected_rate(12, 19, rates, 0.9, design_effect=sample.design_effect)
    assert isinstance(corrected, Corrected)
    assert corrected.value == pytest.approx(12 / 19)


def test_cells_without_a_score_are_counted_apart(run: Report) -> None:
    assert judged_sample(run.cases, MATCH).model_dump(exclude={"design_effect"}) == {"passed": 12, "judged": 19, "unscored": 1}
    by_case = judged_sample(run.cases, MATCH, "case")
    assert (by_case.passed, by_case.judged, by_case.unscored, by_case.design_effect) == (6, 13, 1, 1.0)
    assert judged_sample(run.cases, "nothing") == Sample(passed=0, judged=0)
    assert judged_sample(run.cases, "nothing").rate is None


def test_a_sample_may_be_another_runs() -> None:
    found = Labelled(true_passes=50, false_passes=5, true_failures=45, false_failures=0, sample=Sample(passed=55, judged=100))
    assert found.corrected() == corrected_rate(55, 100, found.rates)
    assert found.corrected(Sample(passed=20, judged=40)) == corrected_rate(20, 40, found.rates)
    assert found.rates == JudgeRates(true_passes=50, false_passes=5, true_failures=45, false_failures=0)


# The command line


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "labels.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ["eval_id", "invocation_index", "criterion", "rubric_id", "label"])
        writer.writeheader()
        writer.writerows(labels())
        writer.writerows(row | {"criterion": RUBRICS, "rubric_id": "polite"} for row in labels())
    return file


def test_the_command_shows_a_table_and_writes_the_file(run: Report, store: str, table: Path, tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    result = invoke(run.run_id, "--labels", table, "-o", file, "--tracking-uri", store)
    assert result.exit_code == 0, result.output
    shown = re.sub(r"\s+", " ", result.stdout)
    assert "Judges compared with people: 40 labels in 1 run, 95% intervals" in shown
    assert f"│ {MATCH} │ labelled │ 19 │ │ │ │ │ agreement │ 89% │ 68% to 97% │ │" in shown
    assert "│ sensitivity │ 92% │ 61% to 99% │ 11 of 12 │" in shown
    assert f"{MATCH}: 1 labelled turn without a verdict from the judge, left out" in shown
    assert "for intervals of ±0.1, label about" in shown
    assert f", {MATCH}: fail by people, pass by the judge: score 1; valid 1:0: it is bad blind" in shown
    assert "pass by people, fail by the judge: it is good strict" in shown
    assert load_calibration(file).rates(MATCH) == calibrated(run, store).rates(MATCH)
    again = invoke(run.run_id, "--labels", table, "-o", file, "--tracking-uri", store)
    assert isinstance(again.exception, UsageError)
    assert "already exists; --force overwrites it" in str(again.exception)
    assert invoke(run.run_id, "--labels", table, "-o", file, "--force", "--tracking-uri", store).exit_code == 0


def test_json_has_what_follows_from_the_counts(run: Report, store: str, table: Path) -> None:
    result = invoke(run.run_id, "--labels", table, "--tracking-uri", store, "--json", "--confidence", "0.9")
    found = json.loads(result.stdout)
    calibration = calibrate(run, table, tracking_uri=store)
    assert found["confidence"] == 0.9
    criterion = found["criteria"][MATCH]
    assert criterion["sensitivity"]["value"] == 11 / 12
    assert criterion["corrected"]["value"] == pytest.approx(12 / 19)
    assert (criterion["not_corrected"], criterion["labelled"]) == (None, 19)
    assert criterion["labels_wanted"]["fail"] > 0
    assert found["criteria"][RUBRICS]["rubrics"]["polite"]["kappa"]["value"] == pytest.approx(criterion["kappa"]["value"])
    assert found["criteria"][RUBRICS]["corrected"] is None
    assert [one["eval_id"] for one in found["disagreements"]] == ["strict", "blind", "strict", "blind"]
    assert found["criteria"] == calibration_json(calibration, 0.9)["criteria"]


def test_it_is_kept_with_the_run_on_demand_and_the_evidence_still_holds(run: Report, store: str, table: Path) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval.gating.registry import MlflowStore

    before = params_of(run, store), MlflowClient(store).get_run(run.run_id or "").data.metrics
    assert invoke(run.run_id, "--labels", table, "--tracking-uri", store, "--log").exit_code == 0
    kept = MlflowStore(store).artifact(run.run_id or "", CALIBRATION)
    assert kept is not None
    assert load_calibration(json.loads(kept)).rates(MATCH) == calibrated(run, store).rates(MATCH)
    assert (params_of(run, store), MlflowClient(store).get_run(run.run_id or "").data.metrics) == before
    assert calibrated(run, store).runs == load_calibration(json.loads(kept)).runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--assessment", "a", "--assessment", "b"], "--assessment a: to give several, write each as CRITERION=NAME"),
        (["--assessment", "=b"], "--assessment: wanted NAME or CRITERION=NAME"),
        (["--assessment", "correct"], "name its criterion"),
        (["--assessment", f"{MATCH}=correct"], "nothing is labelled: mlflow has no label for"),
        (["-o", "/nowhere/c.json"], "there is no folder /nowhere"),
        (["--labels", "none.csv"], "no such file"),
    ],
)
def test_a_wrong_call_is_one_error(run: Report, store: str, arguments: list[str], message: str) -> None:
    result = invoke(run.run_id, "--tracking-uri", store, *arguments)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
