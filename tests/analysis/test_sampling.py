"""Samples of cells for people to label: which they are, what the sheet shows, and what their labels say of all cells."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.calibration.calibration import labelled_of
from mlflow_adk_eval.analysis.calibration.labels import CellSample, JudgeDecision, Label, LabelError, Unit, Units, opinions_of
from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.api import gate
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.calibrate import calibrate, label_sheet
from tests.analysis.calibrated import CASES, CONFIG, EXPERIMENT, MATCH, deserves, evaluated
from tests.cli.test_cli import invoke
from tests.mlflow_kit import opened

SECRET = {"score", "verdict", "passed", "certainty", "stratum", "weight", "rationale"}


@pytest.fixture(scope="module")
def store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return opened(template, tmp_path_factory.mktemp("sampled"), EXPERIMENT)


@pytest.fixture(scope="module")
def run(store: str) -> Report:
    with pytest.MonkeyPatch.context() as within:
        within.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        return evaluated(store, {"criteria": {MATCH: CONFIG["criteria"][MATCH]}})


def filled(sheet: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row | {"label": "pass" if deserves(CASES[row["eval_id"]][int(row["invocation_index"])]) else "fail"} for row in sheet]


def test_a_sheet_shows_what_was_said_and_not_what_the_judge_said(run: Report, store: str) -> None:
    sheet = label_sheet(run, 12, tracking_uri=store)
    assert len(sheet) == 12
    assert not SECRET & set(sheet[0])
    assert not any("it is good" in str(row) for row in sheet)  # the judge's rationale
    row = next(row for row in sheet if row["eval_id"] == "blind" or row["eval_id"].startswith("good"))
    answer = CASES[row["eval_id"]][int(row["invocation_index"])]
    assert (row["response"], row["reference"], row["label"], row["sample"]) == (answer, "good", "", "12:0")
    assert sheet == label_sheet(run.run_id or "", 12, tracking_uri=store)
    assert sheet != label_sheet(run, 12, seed=1, tracking_uri=store)
    assert "down" not in {row["eval_id"] for row in label_sheet(run, 100, tracking_uri=store)}  # without a verdict, nothing to compare


def test_the_labels_of_a_sample_come_back_as_a_calibration_that_the_gate_believes(run: Report, store: str, tmp_path: Path) -> None:
    sheet, labels, output = tmp_path / "sheet.csv", tmp_path / "labels.csv", tmp_path / "calibration.json"
    drawn = invoke("calibrate", run.run_id, "--tracking-uri", store, "--sample", 14, "-o", sheet)
    assert (drawn.exit_code, "14 verdicts to label" in drawn.stdout) == (0, True)
    with sheet.open(newline="") as file:
        rows = filled(list(csv.DictReader(file)))
    with labels.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    assert invoke("calibrate", run.run_id, "--tracking-uri", store, "--labels", labels, "-o", output).exit_code == 0
    found = calibrate(run, labels, tracking_uri=store)
    assert found.sampled == CellSample(size=14)
    assert sum(found.criteria[MATCH].weighted or ()) == pytest.approx(19)  # all cells that were judged
    assert found.criteria[MATCH].rates.labelled == 14
    waived = [{"case": "down", "owner": "a", "reason": "b", "expires": "2999-01-01"}]
    policy: dict[str, Any] = {"rules": {MATCH: {"min": 0.1}}, "judge": {"labels": 14}, "calibration": str(output), "waivers": waived}
    assert gate(run, policy, tracking_uri=store).passed


def test_what_is_no_label_of_the_sample_is_one_error(run: Report, store: str) -> None:
    sheet = filled(label_sheet(run, 8, tracking_uri=store))
    other = next(row for row in filled(label_sheet(run, 21, tracking_uri=store)) if row["eval_id"] not in {one["eval_id"] for one in sheet})
    with pytest.raises(LabelError, match="found a label; wanted a label for one of the 8 scores in the sample 8:0"):
        calibrate(run, [*sheet, other | {"sample": "8:0"}], tracking_uri=store)
    with pytest.raises(LabelError, match=r"sample: found '21:0'; wanted the value from `calibrate --sample`, the same in each row"):
        calibrate(run, [*sheet, other], tracking_uri=store)
    with pytest.raises(LabelError, match="found 'many'"):
        calibrate(run, [row | {"sample": "many"} for row in sheet], tracking_uri=store)
    with pytest.raises(UsageError, match=r"a sample of 1: wanted at least 2: one for each kind of verdict of final_response_match_v2"):
        label_sheet(run, 1, tracking_uri=store)


def test_cells_left_out_are_told_and_a_kind_of_verdict_without_labels_generalizes_to_nothing(run: Report, store: str) -> None:
    sheet = filled(label_sheet(run, 12, tracking_uri=store))
    some = calibrate(run, [*sheet[:10], *({**row, "label": ""} for row in sheet[10:])], tracking_uri=store)
    assert some.notes == ("2 of the 12 verdicts in the sample are not labelled; the labelled ones represent them",)
    passed = {(row["eval_id"], row["invocation_index"]) for row in sheet if row["label"] == "pass" and row["eval_id"] != "strict"}
    chosen = [row for row in sheet if (row["eval_id"], row["invocation_index"]) in passed or row["eval_id"] == "blind"]
    found = calibrate(run, chosen, tracking_uri=store).criteria[MATCH]
    assert found.selection == "no sampled verdict failed is labelled: label the whole sample"


@pytest.mark.parametrize("more", [[], ["-o", "x.csv", "--json"], ["-o", "x.csv", "--log"]])
def test_a_sample_needs_a_file_and_nothing_else(more: list[str]) -> None:
    assert "--sample needs -o FILE" in invoke("calibrate", "r", "--sample", "3", *more).output
    assert "calibrate" in cli.commands


# What labels of a sample say of all cells


def population(seed: int, size: int) -> tuple[Units, dict[Unit, bool]]:
    """Return cells as a judge decided them, whose errors lie mostly where its votes differ, and the truth."""
    drawn = random.Random(seed)
    judged, truth = dict[Unit, JudgeDecision](), dict[Unit, bool]()
    for number in range(size):
        unit = Unit(run_id="r", eval_id=f"case_{number}", run_index=0, invocation_index=0, criterion=MATCH)
        truth[unit], split = drawn.random() < 0.8, drawn.random() < 0.15
        wrong = drawn.random() < (0.4 if split else 0.05)
        judged[unit] = JudgeDecision(passed=truth[unit] != wrong, certainty=0.6 if split else 1.0, judged=True)
    return Units(judged, {}), truth


def said(units: Units, truth: dict[Unit, bool], sample: CellSample) -> Any:
    chosen = sample.drawn(units)
    opinions = opinions_of(Label(unit=unit, passed=truth[unit], labeller="a") for unit in chosen)
    return labelled_of(units.judged, opinions, sample.weights(units, chosen)), labelled_of(units.judged, opinions)


def test_weighted_labels_say_what_all_labels_would_and_unweighted_ones_do_not() -> None:
    names, draws = ("kappa", "sensitivity", "specificity", "agreement"), 80
    errors: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in names}
    for seed in range(draws):
        units, truth = population(seed, 1500)
        everything = labelled_of(units.judged, opinions_of(Label(unit=unit, passed=truth[unit], labeller="a") for unit in truth)).rates
        weighted, plain = said(units, truth, CellSample(size=150, seed=seed))
        for name in names:
            true, (low, high) = getattr(everything, name), weighted.rates.measure(name)[1]
            value, biased = getattr(weighted.rates, name), getattr(plain.rates, name)
            errors[name].append((value - true, biased - true, low <= true <= high))
    for name, found in errors.items():
        assert abs(fmean(error for error, _, _ in found)) < 0.02, name
        assert fmean(covered for _, _, covered in found) >= 0.92, name
    assert fmean(biased for _, biased, _ in errors["agreement"]) < -0.05


@given(st.integers(0, 2**32), st.integers(3, 60), st.integers(0, 99))
def test_a_sample_stands_for_all_cells_and_all_cells_for_themselves(seed: int, size: int, sample_seed: int) -> None:
    units, truth = population(seed, 40)
    weighted, _ = said(units, truth, CellSample(size=size, seed=sample_seed))
    assert sum(weighted.weighted) == pytest.approx(40)
    assert weighted.rates.labelled == min(size, 40)
    complete, plain = said(units, truth, CellSample(size=40, seed=sample_seed))
    assert complete.weighted == (plain.true_passes, plain.false_passes, plain.true_failures, plain.false_failures)
    assert complete.rates.kappa == pytest.approx(plain.rates.kappa)
