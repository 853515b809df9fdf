"""How many cases a power analysis asks for, and what it reckons with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.analysis.stats.power import (
    Source,
    cases_needed,
    cases_to_exclude,
    cases_until_decided,
    detectable_drop,
    detectable_rate_drop,
    rate_cases_needed,
    spread_of,
)
from mlflow_adk_eval.cli.look import power_command
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import run
from mlflow_adk_eval.tracking.client import experiment_id
from mlflow_adk_eval.tracking.compare import CASE_PASS_RATE, Need, power
from tests.gating.gate_kit import RESPONSE, TRAJECTORY, Lab, changed, eval_set_of, evidence_of, file_of, turn, with_artifact, with_table
from tests.mlflow_kit import opened

TERMS = {"confidence": 0.95, "power": 0.8}
WORDS = ["the", "light", "in", "the", "hall", "is", "on", "now", "and", "the", "door", "is", "shut"]


def played(share: float, *, right: bool) -> Conversation:
    """Return a conversation in which the agent says a share of the expected words, and calls the right tool or another."""
    return Conversation(actual=(turn("?", " ".join(WORDS[: round(share * len(WORDS))]) or "no", "set_light" if right else "other"),))


def report_of(cases: Sequence[Sequence[tuple[float, bool]]], *, runs: int = 1, config: Mapping[str, object] | None = None) -> Report:
    """Return the report on cases, of which each run says how much of the answer was given, and whether the right tool was called."""
    expected = eval_set_of({f"case_{index}": [("?", " ".join(WORDS), "set_light")] for index in range(len(cases))})
    done = {f"case_{index}": tuple(played(share, right=right) for share, right in found) for index, found in enumerate(cases)}
    settings = load_config(config or {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.5}})
    return replace(run(expected, Recording(done), settings), num_runs=runs)


def needs(report: Report, detect: float = 0.05, **options: object) -> dict[str, Need]:
    return {need.measure: need for need in power(report, detect, **options).needs}  # type: ignore[arg-type]


MIXED = report_of([[(0.6 + 0.04 * (index % 11), index % 4 > 0)] for index in range(40)])
REPEATED = report_of([[(0.9 - 0.1 * (number == index % 3), number != index % 3) for number in range(3)] for index in range(30)], runs=3)


def test_of_a_single_run_the_scores_of_versions_are_taken_to_be_unrelated() -> None:
    found = needs(MIXED)
    assert list(found) == [CASE_PASS_RATE, TRAJECTORY, RESPONSE]
    tools, answers = found[TRAJECTORY], found[RESPONSE]
    assert (tools.cases, tools.mean, tools.source, tools.test) == (40, 0.75, "unrelated scores", "mcnemar")
    share = 2 * 0.75 * 0.25 * 40 / 39
    assert tools.spread == pytest.approx(math.sqrt(share))
    assert tools.needed == rate_cases_needed(share, 0.05, **TERMS)
    assert tools.to_pass == cases_to_exclude(0.05, math.sqrt(share), width=1.0, **TERMS)
    shared = needs(MIXED, attempts=20)[TRAJECTORY]
    assert shared.to_pass == cases_to_exclude(0.05, math.sqrt(share), width=1.0, confidence=1 - 0.05 / 20, power=0.8) > tools.to_pass
    asked = {"passes": True, "expected": 2 * 0.75 * 0.25, "confidence": 0.95}
    assert tools.until_decided == cases_until_decided(0.05, math.sqrt(share), width=1.0, **asked)
    assert (tools.until_decided or 0) < (shared.until_decided or 0)
    assert {need.until_decided for need in needs(REPEATED).values()} == {None}, "it begins with one run of each case"
    assert tools.detectable == pytest.approx(detectable_rate_drop(share, 40, **TERMS))
    assert answers.test == "permutation"
    assert answers.spread
    assert answers.needed == cases_needed(answers.spread, 0.05, **TERMS)
    assert answers.detectable == pytest.approx(detectable_drop(answers.spread, 40, **TERMS))
    assert "unrelated" in answers.told
    assert not tools.enough
    assert not power(MIXED, 0.05).enough


def test_repeated_runs_say_how_far_a_case_varies_by_itself() -> None:
    found = needs(REPEATED)[TRAJECTORY]
    # Each case passes two of three runs: a variance of 1/3 within each.
    assert (found.source, found.test, found.spread) == ("repeated runs", "permutation", pytest.approx(math.sqrt(2 / 3 / 3)))
    once, often = needs(REPEATED, num_runs=1)[TRAJECTORY], needs(REPEATED, num_runs=12)[TRAJECTORY]
    assert (once.test, once.spread) == ("mcnemar", pytest.approx(math.sqrt(2 / 3)))
    assert once.needed == rate_cases_needed(2 / 3, 0.05, **TERMS)
    assert often.spread == pytest.approx(math.sqrt(2 / 3 / 12))
    assert (often.needed or 0) < (found.needed or 0) < (once.needed or 0)


def test_a_baseline_says_how_far_versions_differ() -> None:
    before = report_of([[(0.6 + 0.04 * (index % 11), index % 4 > 0 or index == 0)] for index in range(40)])
    found = power(MIXED, 0.05, baseline=before)
    tools = next(need for need in found.needs if need.measure == TRAJECTORY)
    assert (tools.source, tools.told, tools.spread) == (
        "baseline",
        "1 of 40 cases differ from the baseline",
        pytest.approx(math.sqrt(1 / 40)),
    )
    assert tools.needed == rate_cases_needed(1 / 40, 0.05, **TERMS)
    answers = next(need for need in found.needs if need.measure == RESPONSE)
    assert answers.source == "unrelated scores"  # not one answer differs, which says nothing


def test_a_baseline_with_repeated_runs_says_what_more_runs_bring() -> None:
    other = report_of([[(0.8, number == index % 3) for number in range(3)] for index in range(30)], runs=3)
    three, six = needs(REPEATED, baseline=other)[TRAJECTORY], needs(REPEATED, baseline=other, num_runs=6)[TRAJECTORY]
    assert three.source == six.source == "baseline"
    assert three.spread
    assert six.spread
    noise = 2 * (1 / 3) / 3
    assert six.spread**2 == pytest.approx(max(three.spread**2 - noise / 2, noise / 2))


def test_where_every_case_passed_the_end_of_the_interval_is_reckoned_with() -> None:
    found = needs(report_of([[(1.0, True)]] * 20))
    tools = found[TRAJECTORY]
    assert (tools.source, tools.mean) == ("interval", 1)
    assert tools.interval
    low = tools.interval[0]
    assert tools.spread == pytest.approx(math.sqrt(2 * low * (1 - low)))
    assert found[CASE_PASS_RATE].told.startswith("every case passed")
    failed = needs(report_of([[(1.0, False)]] * 20))[TRAJECTORY]
    assert failed.told.startswith("no case passed")
    assert failed.spread == pytest.approx(tools.spread)


def test_scores_that_are_all_alike_say_nothing() -> None:
    found = needs(report_of([[(0.75, True)]] * 20))[RESPONSE]
    assert (found.spread, found.source, found.detectable, found.needed, found.interval) == (None, None, None, None, None)
    assert not found.enough


def test_with_too_few_cases_no_drop_can_be_seen() -> None:
    found = needs(report_of([[(0.6 + 0.1 * index, index > 0)] for index in range(4)]))
    assert [need.detectable for need in found.values()] == [None, None, None]
    assert all((need.needed or 0) >= 5 for need in found.values())


def test_quantities_are_detected_by_their_share() -> None:
    config = {"criteria": {"tool_call_count_v1": 3, RESPONSE: 0.5}}
    report = report_of([[(0.9, True)]] * 10, config=config)
    found = needs(report, 0.1, criteria=["tool_call_count_v1"])["tool_call_count_v1"]
    assert found.drop == pytest.approx(0.1 * found.mean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criteria": ["response_match_scor"]}, "Did you mean"),
        ({"criteria": ["hallucinations_v1"]}, "the run has no scores for it"),
        ({"detect": 0.0}, "wanted a difference above 0"),
        ({"detect": math.nan}, "wanted a difference above 0"),
        ({"confidence": 1.0}, "confidence: 1.0; wanted a number between 0 and 1"),
        ({"power": 0.0}, "power: 0.0; wanted"),
        ({"num_runs": 0}, "num_runs: 0; wanted"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        needs(MIXED, **options)  # type: ignore[arg-type]


def test_a_report_without_cases_is_nothing_to_plan_with() -> None:
    with pytest.raises(UsageError, match="the run has no scores to compute power from"):
        needs(replace(MIXED, cases=()))


VALUES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=1, max_size=3), min_size=1
)
SOURCES: tuple[Source | None, ...] = ("baseline", "repeated runs", "unrelated scores", "interval", None)


@given(VALUES, st.none() | VALUES, st.integers(1, 5))
def test_a_spread_is_a_number_above_0_or_none(values: dict[str, list[float]], before: dict[str, list[float]] | None, runs: int) -> None:
    found = spread_of(values, before, runs, confidence=0.95)
    assert found.source in SOURCES
    assert (found.value is None) == (found.source is None)
    assert found.value is None or 0 < found.value < 2
    if found.passes and found.value is not None:
        assert found.value**2 <= 1.5


@pytest.fixture(scope="module")
def lab(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("plans")
    uri = opened(template, folder, "plans")
    return Lab(MlflowClient(uri, uri), uri, experiment_id(uri, "plans"), folder)


def invoke(lab: Lab, *arguments: str) -> Result:
    return CliRunner().invoke(power_command, [*arguments, "--tracking-uri", lab.uri])


@pytest.fixture(scope="module")
def logged(lab: Lab) -> str:
    return lab.log(evidence_of(MIXED, model_id=lab.agent()))


def test_a_run_in_mlflow_has_the_plan_of_its_report(lab: Lab, logged: str) -> None:
    found = power(logged, 0.05, tracking_uri=lab.uri)
    assert found.run_id == logged
    assert found.needs == power(MIXED, 0.05).needs


def test_the_command_tells_what_is_lacking(lab: Lab, logged: str) -> None:
    shown = invoke(lab, logged, "--detect", "0.05")
    assert shown.exit_code == 0
    needed = power(MIXED, 0.05).needs[1].needed
    assert needed
    assert f"{needed:,}" in shown.stdout
    assert "80 % power" in shown.stdout
    assumed = (
        "Spread of case_pass_rate, tool_trajectory_avg_score, response_match_score: assumes that the scores of two versions are unrelated"
    )
    assert assumed in " ".join(shown.stdout.split())
    assert f"Too few cases: {TRAJECTORY} needs {needed:,}." in shown.stdout or f"Too few cases: {CASE_PASS_RATE} needs" in shown.stdout
    enough = invoke(lab, logged, "--detect", "0.4", "--criterion", RESPONSE)
    assert enough.stdout.endswith("There are enough cases.\n")


def test_the_command_says_what_would_help_where_nothing_is_known(lab: Lab) -> None:
    run_id = lab.log(evidence_of(report_of([[(0.75, True)]] * 8), model_id=lab.agent()))
    shown = invoke(lab, run_id, "--detect", "0.05", "--criterion", RESPONSE)
    assert "all cases have the same score" in shown.stdout
    assert shown.stdout.endswith("run each case several times, or name a baseline.\n")


def test_the_command_prints_json(lab: Lab, logged: str) -> None:
    shown = invoke(lab, logged, "--detect", "0.1", "--power", "0.9", "--confidence", "0.9", "--baseline", logged, "--json")
    found = json.loads(shown.stdout)
    assert (found["run_id"], found["baseline_run_id"], found["power"], found["confidence"], found["num_runs"]) == (
        logged,
        logged,
        0.9,
        0.9,
        1,
    )
    assert [need["measure"] for need in found["needs"]] == [CASE_PASS_RATE, TRAJECTORY, RESPONSE]
    assert found["needs"][1]["needed"] == power(MIXED, 0.1, power=0.9, confidence=0.9).needs[1].needed
    assert found["enough"] is False


def test_evidence_that_cannot_be_believed_is_refused(lab: Lab) -> None:
    evidence = evidence_of(MIXED, model_id=lab.agent())
    cells = file_of("cells", 0)
    spoilt = {
        "contains only part": changed(evidence, "tags", {"adk_eval.status": "partial"}),
        "was changed after the run": replace(evidence, artifacts={**evidence.artifacts, cells: evidence.artifacts[file_of("cells", 1)]}),
        "is not in adk_eval/cells/part-00000.parquet": with_table(evidence, lambda rows: rows[1:]),
        "cannot be read": with_artifact(evidence, cells, b""),
    }
    for message, one in spoilt.items():
        with pytest.raises(TrackingError, match=message):
            power(lab.log(one), 0.05, tracking_uri=lab.uri)


def test_a_run_that_does_not_exist_is_named(lab: Lab) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        power("0" * 32, 0.05, tracking_uri=lab.uri)
