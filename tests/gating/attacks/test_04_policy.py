"""Attack 4: a run that meets a policy by its config, its cases or its own reflection instead of by what the agent does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.recordings import Recording, load_recording, save_recording
from mlflow_adk_eval.errors import ConfigError, PolicyError
from mlflow_adk_eval.evalset.files import dump, dumps, load_eval_set
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from mlflow_adk_eval.results.decision import Decision
from tests.gating.gate_kit import Lab, evidence_of, report_of, with_artifact
from tests.tracking.small import CONFIG, answering, many, rooms

pytestmark = pytest.mark.slow

# What compares with itself


def _loaded(folder: Path) -> EvalSet:
    (folder / "again.evalset.json").write_text(dumps(rooms()))
    return load_eval_set(folder / "again.evalset.json")


def _file(folder: Path) -> Path:
    (folder / "itself.evalset.json").write_text(dumps(rooms()))
    return folder / "itself.evalset.json"


def _respelt(_: Path) -> EvalSet:
    """Return the same with other ids and times of the turns, which mean nothing."""
    value = dump(rooms())
    for case in value["eval_cases"]:
        for index, turn in enumerate(case["conversation"]):
            turn |= {"invocation_id": f"e-{index}", "creation_timestamp": 7.0}
    return EvalSet.model_validate(value)


def _saved(folder: Path) -> Path:
    save_recording(load_recording(rooms()), folder / "saved.json")
    return folder / "saved.json"


ITSELF: dict[str, Callable[[Path], Any]] = {
    "object": lambda _: rooms(),
    "dict": lambda _: {case.eval_id: list(case.conversation or ()) for case in rooms().eval_cases},
    "dict of dicts": lambda _: {case.eval_id: [dump(turn) for turn in case.conversation or ()] for case in rooms().eval_cases},
    "file": _file,
    "path as text": lambda folder: str(_file(folder)),
    "loaded eval set": _loaded,
    "other ids and times": _respelt,
    "recording": lambda _: load_recording(rooms()),
    "recording by hand": lambda _: Recording(load_recording(rooms()).runs, name="night run"),
    "saved recording": _saved,
}


def _decided(lab: Lab, report: adk_eval.Report, policy: Any = None) -> Decision:
    return adk_eval.gate(report.run_id, policy, tracking_uri=lab.uri, raise_on_failure=False)


def _refused_as_itself(lab: Lab, run_id: str) -> None:
    decision = adk_eval.gate(run_id, tracking_uri=lab.uri, raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert any("compared with itself" in reason for reason in decision.reasons)
    lab.client.set_tag(run_id, "adk_eval.status", "complete")  # tags can be edited, the parameter cannot
    assert adk_eval.gate(run_id, tracking_uri=lab.uri, raise_on_failure=False).verdict == "undecided"


@pytest.mark.parametrize("path", ITSELF)
def test_an_eval_set_is_no_recording_of_itself(lab: Lab, tmp_path: Path, path: str) -> None:
    report = adk_eval.evaluate(rooms(), ITSELF[path](tmp_path), CONFIG, tracking_uri=lab.uri, experiment="itself", ledger="off")
    assert report.passed
    _refused_as_itself(lab, report.run_id or "")


def test_nor_is_it_as_a_report_that_is_logged_later(lab: Lab) -> None:
    from mlflow_adk_eval.tracking.evaluate import log_report

    report = log_report(adk_eval.score(rooms(), rooms(), CONFIG), agent_name="mirror", tracking_uri=lab.uri, experiment="itself")
    _refused_as_itself(lab, report.run_id or "")


def test_nor_by_way_of_an_earlier_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", lab.uri)
    first = adk_eval.evaluate(rooms(), rooms(), CONFIG, tracking_uri=lab.uri, experiment="itself", ledger="off")
    second = adk_eval.evaluate(rooms(), f"runs:/{first.run_id}", CONFIG, tracking_uri=lab.uri, experiment="itself", ledger="off")
    _refused_as_itself(lab, second.run_id or "")


# What nobody pinned

TRAJECTORY, RESPONSE = CONFIG["criteria"]
TWELVE = many(12)
WRONG = ("case_0001", "case_0004", "case_0005", "case_0007", "case_0010")


def _played(cases: EvalSet, config: dict[str, Any], lab: Lab, wrong: Iterable[str] = WRONG, **options: Any) -> adk_eval.Report:
    """Return the report on an agent that says something else in the cases `wrong`."""
    agent = answering(cases, **dict.fromkeys(wrong, "no idea at all"))
    return adk_eval.evaluate(cases, agent, config, tracking_uri=lab.uri, experiment="attacks", ledger="off", **options)


def length_of(metric: Any, actual: Any, expected: Any = None, scenario: Any = None) -> float:
    """Score 1000 in one case and 0 in all others: a metric of somebody's own, without a range."""
    return 1000.0 if "3" in actual[0].final_text else 0.0


LENGTH = {"code_config": {"name": f"{__name__}.length_of"}}
WIDE = LENGTH | {"metric_info": {"metric_name": "length", "metric_value_info": {"interval": {"min_value": -1, "max_value": 1e6}}}}


@pytest.mark.parametrize("name", [RESPONSE, TRAJECTORY, "token_usage_v1", "safety_v1", "case_pass_rate", "pass^1", "cost"])
def test_a_custom_metric_in_the_place_of_another_is_refused(lab: Lab, name: str) -> None:
    config = {"criteria": {name: 0.9}, "custom_metrics": {name: LENGTH}}
    with pytest.raises(ConfigError, match="a unique name"):
        _played(TWELVE, config, lab)


def test_so_is_one_in_a_run_that_was_made_by_hand(lab: Lab) -> None:
    """Plain client calls can write any config: the gate reads it by the same rules."""
    made = evidence_of(report_of(), model_id=lab.agent())
    config = json.loads(made.artifacts["config.json"]) | {"custom_metrics": {"response_match_score": LENGTH}}
    decision = adk_eval.gate(
        lab.log(with_artifact(made, "config.json", json.dumps(config).encode())), tracking_uri=lab.uri, raise_on_failure=False
    )
    assert decision.verdict == "undecided"
    assert any("the name of a built-in criterion" in reason for reason in decision.reasons)


RULE = {"rules": {RESPONSE: {"min": 0.9}}}
EXEMPT = CONFIG | {"case_criteria": {eval_id: {TRAJECTORY: 0.0} for eval_id in WRONG}}


def test_exempted_cases_do_not_count_for_the_rule(lab: Lab) -> None:
    report = _played(TWELVE, EXEMPT, lab)
    decision = _decided(lab, report, RULE | {"min_cases": 12})
    assert decision.verdict == "undecided"
    assert f"{RESPONSE}: it has 7 cases but needs at least 12" in decision.reasons


def test_a_rule_may_say_of_how_many_cases_it_is_about(lab: Lab) -> None:
    report = _played(TWELVE, EXEMPT, lab)
    for wanted, verdict in ((7, "passed"), (8, "undecided")):
        decision = _decided(lab, report, {"rules": {RESPONSE: {"min": 0.9, "min_cases": wanted}}, "min_cases": 12})
        assert [check.verdict for check in decision.checks if check.measure == RESPONSE] == [verdict]


def test_without_a_number_of_cases_the_exempted_are_told(lab: Lab) -> None:
    decision = _decided(lab, _played(TWELVE, EXEMPT, lab), RULE)
    assert any(note.startswith(f"{RESPONSE}: 5 of 12 cases have no value and do not count: case_0001,") for note in decision.notes)


def test_a_slice_counts_by_rule_too(lab: Lab) -> None:
    part = {"slices": {"all": {"ids": ["*"], "min_cases": 12, "rules": RULE["rules"]}}}
    decision = _decided(lab, _played(TWELVE, EXEMPT, lab), part)
    assert f"{RESPONSE} (slice all): it has 7 cases but needs at least 12" in decision.reasons


@pytest.mark.parametrize(
    ("pin", "found"),
    [
        ({"criteria": CONFIG["criteria"]}, f"without {RESPONSE}, but the policy pins it at the threshold 0.5"),
        ({"criteria": CONFIG["criteria"] | {RESPONSE: 0.6}}, f"by {RESPONSE} at the threshold 0.5, but the policy pins 0.6"),
        ({"criteria": {TRAJECTORY: 1.0}}, f"by {RESPONSE}, but the policy does not pin that criterion"),
        ({"digest": "sha256:" + "0" * 64}, "the config is not the pinned one"),
    ],
)
def test_another_config_than_the_pinned_is_refused_by_name(lab: Lab, pin: dict[str, Any], found: str) -> None:
    decision = _decided(lab, _played(TWELVE, EXEMPT, lab, wrong=()), RULE | {"config": pin})
    assert decision.verdict == "undecided"
    assert any(found in reason for reason in decision.reasons)


def test_the_pinned_config_passes_and_says_so(lab: Lab) -> None:
    report = _played(TWELVE, CONFIG, lab, wrong=())
    digest = lab.client.get_run(report.run_id).data.params["adk_eval.config_digest"]
    decision = _decided(lab, report, RULE | {"config": {"criteria": CONFIG["criteria"], "digest": digest}})
    assert decision.passed
    assert f"each case is decided by {TRAJECTORY} 1, {RESPONSE} 0.5, as pinned" in decision.reasons
    assert any(reason.startswith(f"the digest of the config is {digest[:19]}") for reason in decision.reasons)


FREE = {"criteria": {TRAJECTORY: 0.0, RESPONSE: 0.0}}


@pytest.mark.parametrize(
    "policy",
    [
        {"must_pass": ["case_0001"]},
        {"rules": {"case_pass_rate": {"min": 1.0}}},
        {"rules": {"pass^1": {"min": 1.0}}},
        {"rules": {f"{RESPONSE}/pass_rate": {"min": 1.0}}},
        {"slices": {"all": {"ids": ["*"], "rules": {"case_pass_rate": {"min": 1.0}}}}},
        {"thresholds": True},
        None,
    ],
    ids=["must_pass", "case_pass_rate", "pass^1", "pass_rate", "slice", "thresholds", "no policy"],
)
@pytest.mark.parametrize("threshold", [0.0, 1e-10])
def test_a_threshold_that_every_score_reaches_shows_nothing(lab: Lab, policy: Any, threshold: float) -> None:
    report = _played(TWELVE, {"criteria": dict.fromkeys(FREE["criteria"], threshold)}, lab)
    assert report.verdict == "undecided"
    decision = _decided(lab, report, policy)
    assert decision.verdict == "undecided"
    assert any("every possible score reaches" in reason for reason in decision.reasons)


def test_a_single_such_threshold_among_others_decides_nothing_and_is_noted(lab: Lab) -> None:
    report = _played(TWELVE, {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.0}}, lab, wrong=())
    decision = _decided(lab, report, {"must_pass": ["case_0001"], "rules": {"case_pass_rate": {"min": 1.0}}})
    assert [check.verdict for check in decision.checks] == ["passed", "passed"]
    note = f"{RESPONSE}: threshold 0: information only, since every possible score reaches it"
    assert note in decision.notes
    assert note in report.notes
    rate = _decided(lab, report, {"rules": {f"{RESPONSE}/pass_rate": {"min": 1.0}}})
    assert rate.verdict == "undecided"
    assert any("information only" in reason for reason in rate.reasons)


def test_nobody_can_pin_it_either(lab: Lab) -> None:
    report = _played(TWELVE, FREE, lab)
    decision = _decided(lab, report, {"must_pass": ["case_0001"], "config": {"criteria": FREE["criteria"]}})
    assert decision.verdict == "undecided"


@pytest.mark.parametrize("metric", [LENGTH, WIDE], ids=["no range", "a wide range of its own"])
@pytest.mark.parametrize("rule", [{"min": 10}, {"min": 10, "use": "ci_low"}], ids=["mean", "ci_low"])
def test_one_case_does_not_carry_the_mean(lab: Lab, metric: dict[str, Any], rule: dict[str, Any]) -> None:
    config = {"criteria": {"length": {"threshold": 0}}, "custom_metrics": {"length": metric}}
    report = _played(TWELVE, config, lab, wrong=())
    assert report.scores["length"] == pytest.approx(1000 / 12)
    decision = _decided(lab, report, {"rules": {"length": rule}})
    assert decision.verdict == "undecided"
    assert any("one case could lift the mean" in reason for reason in decision.reasons)
    ranged = _decided(lab, report, {"rules": {"length": {"min": 10, "range": [0, 100]}}})
    assert (ranged.verdict, ranged.checks[0].value) == ("failed", pytest.approx(100 / 12))


def test_a_metric_that_pins_its_range_with_the_config_is_a_mean(lab: Lab) -> None:
    config = {"criteria": {"length": {"threshold": 0}}, "custom_metrics": {"length": WIDE}}
    report = _played(TWELVE, config, lab, wrong=())
    digest = lab.client.get_run(report.run_id).data.params["adk_eval.config_digest"]
    assert _decided(lab, report, {"rules": {"length": {"min": 10}}, "config": {"digest": digest}}).passed


def test_an_untested_drop_of_such_a_metric_is_none(lab: Lab) -> None:
    config = {"criteria": {"length": {"threshold": 0}}, "custom_metrics": {"length": LENGTH}}
    one, two = (_played(TWELVE, config, lab, wrong=()) for _ in range(2))
    demanded = {"rules": {"length": {"max_drop": 1, "use": "mean"}}, "baseline": {"run": one.run_id}}
    decision = _decided(lab, two, demanded)
    assert decision.verdict == "undecided"
    assert any("one case could outweigh all others" in reason for reason in decision.reasons)


def test_a_subset_under_the_same_id_is_told_and_a_digest_refuses_it(lab: Lab) -> None:
    subset = EvalSet(eval_set_id=TWELVE.eval_set_id, eval_cases=tuple(case for case in TWELVE.eval_cases if case.eval_id not in WRONG))
    report = _played(subset, CONFIG, lab, wrong=())
    decision = _decided(lab, report, RULE | {"eval_set": {"id": TWELVE.eval_set_id}})
    assert not any("as pinned" in reason for reason in decision.reasons)
    assert any(
        note.startswith("the eval set is not pinned: without a digest, any cases with the id 'many' would do") for note in decision.notes
    )
    pinned = RULE | {"eval_set": {"id": TWELVE.eval_set_id, "digest": eval_set_digest(TWELVE)}}
    refused = _decided(lab, report, pinned)
    assert refused.verdict == "undecided"
    assert any("is not the pinned one" in reason for reason in refused.reasons)


def _copied(count: int, **fields: Any) -> EvalSet:
    """Return an eval set with one case many times, under other ids."""
    (easy,) = many(1).eval_cases
    copies = [easy.model_copy(update={"eval_id": f"copy_{index:02}", **fields}) for index in range(count)]
    return EvalSet(eval_set_id="copies", eval_cases=(*copies, *many(4).eval_cases[1:]))


def test_copies_of_a_case_are_one_case(lab: Lab) -> None:
    cases = _copied(40)
    report = _played(cases, CONFIG, lab, wrong=("case_0001", "case_0002"))
    policy = {"rules": {RESPONSE: {"min": 0.8}, "case_pass_rate": {"min": 0.5, "use": "ci_low"}}}
    decision = _decided(lab, report, policy)
    assert [(check.cases, check.verdict) for check in decision.checks] == [(4, "failed"), (4, "undecided")]
    assert any(
        note.startswith("39 cases repeat the content of another case and count only once: copy_01 = copy_00") for note in decision.notes
    )


def test_copies_do_not_make_enough_cases(lab: Lab) -> None:
    decision = _decided(lab, _played(_copied(40), CONFIG, lab, wrong=()), RULE | {"min_cases": 30})
    assert decision.verdict == "undecided"
    assert "only 4 cases with different contents not waived; the policy requires at least 30" in decision.reasons


def test_a_case_in_another_tool_environment_is_another_case(lab: Lab) -> None:
    (easy,) = many(1).eval_cases
    cases = EvalSet(eval_set_id="two", eval_cases=(easy, easy.model_copy(update={"eval_id": "with_failures"})))
    failing = {
        "tool_simulation_configs": [
            {"tool_name": "look", "injection_configs": [{"injected_error": {"injected_http_error_code": 500, "error_message": "no"}}]}
        ]
    }
    config = CONFIG | {"case_environments": {"with_failures": failing}}
    decision = _decided(lab, _played(cases, config, lab, wrong=()), RULE | {"min_cases": 2})
    assert not any("content of another case" in note for note in decision.notes)
    assert decision.passed


def test_criteria_of_single_cases_are_told_where_a_case_must_pass(lab: Lab) -> None:
    exempt = CONFIG | {"case_criteria": {WRONG[0]: {"tool_call_count_v1": 5}}}
    report = _played(TWELVE, exempt, lab, wrong=WRONG[:1])
    decision = _decided(lab, report, {"must_pass": [WRONG[0]]})
    assert f"the run's config has separate criteria for 1 case: {WRONG[0]}" in decision.notes
    pinned = _decided(lab, report, {"must_pass": [WRONG[0]], "config": {"criteria": CONFIG["criteria"]}})
    assert pinned.verdict == "undecided"


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ({"min": 10, "range": [0, 5]}, "found 10; wanted a number above 0, up to 5"),
        ({"min": 5, "range": [5, 10]}, "found 5; wanted a number above 5, up to 10"),
        ({"max": 5, "range": [0, 5]}, "found 5; wanted a number from 0, below 5"),
        ({"min": 1, "range": [5, 0]}, "the range 5 to 0"),
        ({"min": 0.5, "use": "corrected_ci_low", "range": [0, 1]}, "use corrected_ci_low with a range"),
    ],
)
def test_a_range_that_decides_by_itself_is_refused(lab: Lab, rule: dict[str, Any], found: str) -> None:
    with pytest.raises(PolicyError, match=found):
        adk_eval.gate("r", {"rules": {"length": rule}}, tracking_uri=lab.uri)
