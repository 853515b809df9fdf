"""`benchmarks/decisions.py --quick`: each cell runs, and the decisions that it counts are those of the gate."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_adk_eval.analysis.drift import PLANNED, changes_of
from mlflow_adk_eval.analysis.stats.betting import log_evidence
from mlflow_adk_eval.analysis.stats.power import cases_until_decided
from mlflow_adk_eval.gating.policy.model import Rule
from mlflow_adk_eval.gating.rules.checks import RuleTarget
from mlflow_adk_eval.gating.rules.limits import drop_of
from mlflow_adk_eval.gating.rules.measures import SHARE, Measured
from mlflow_adk_eval.gating.rules.sequential import Progress, look_at_drops
from mlflow_adk_eval.results.sequence import FIRST_ROUND, ROUNDS_GROW

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_each_cell_has_its_tables_and_its_goals() -> None:
    command = [sys.executable, BENCHMARKS / "decisions.py", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    sections = done.stdout.split("### ")[1:]
    assert [section[:3] for section in sections] == ["(a)", "(b)", "(c)", "(d)", "(e)"], done.stderr
    assert all("\n| :-- |" in section and "nan" not in section for section in sections)
    assert all(section.split("\n\n")[1].startswith(("- Met: ", "- **Missed**: ")) for section in sections)
    assert done.returncode == ("**Missed**" in done.stdout)


def test_what_is_excluded_passes_and_the_rule_before_is_the_one_that_the_page_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import deciding

    for worse, better in ((0, 0), (2, 5), (5, 5), (9, 0), (1, 9)):
        assert (deciding.excluded(worse, better, 200) <= 0.05) == (deciding.verdict(worse, better, 200, 0.05, 0.05) == "passed")
    assert (deciding.verdict_before(0, 0, 20), deciding.verdict_before(0, 0, 19)) == ("passed", "undecided")
    assert deciding.verdict(0, 0, 20, 0.05, 0.05) == "undecided"
    assert deciding.looks(100) == [20, 30, 45, 68, 100]
    assert (deciding.ROUND, deciding.GROWTH) == (FIRST_ROUND, ROUNDS_GROW)


def test_a_fixed_number_of_cases_is_decided_as_the_gate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import deciding
    from populations import PASSING

    asked = deciding.Asked(PASSING[3], 0.05, 0.05)
    drawn = deciding.luck_of("fixed", asked.pairs.name, asked.drop, 120).multinomial(120, PASSING[3].changes(0.05), size=200)
    said = [deciding.verdict(int(worse), int(better), 120, 0.05, 0.05) for worse, better, _ in drawn]
    shares = {word: said.count(word) / len(said) for word in ("passed", "failed")}
    assert deciding.fixed(asked, 120, 200) == shares
    assert all(shares.values())


def test_a_run_until_decided_stops_where_the_gate_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import deciding

    chance, seen = random.Random(3), set[str]()
    order = tuple(map(str, range(300)))
    for lost in (0.0, 0.0, 0.05, 0.25, 0.25):
        before = {case: (float(chance.random() < 0.95),) for case in order}
        after = {case: (float(chance.random() < 0.95 - lost),) for case in order}
        target = RuleTarget(measure="score", slice="", rule=Rule(max_drop=0.05), confidence=0.975)
        rate = sum(value for (value,) in before.values()) / len(order)
        word, cases = deciding.betting([after[case][0] - before[case][0] for case in order], 2 * rate * (1 - rate), 0.05)
        for count in deciding.looks(len(order)):
            so_far = {case: after[case] for case in order[:count]}
            then, now = (Measured(values=one, greater_is_better=True, bounds=SHARE) for one in (before, so_far))
            drop = drop_of(target, then, now, "the baseline")
            assert drop
            ((check, _),) = look_at_drops([drop], Progress(order, frozenset(order[count:]), 1), {"": len(order) - count}, power=0.8)
            if check.verdict != "undecided" or count == len(order):
                assert (check.verdict, count) == (word, cases)
                seen.add(word)
                break
    assert seen >= {"passed", "failed"}


def test_a_change_is_found_when_asking_after_each_run_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import deciding

    seen = deciding.histories_of(deciding.Judge(0.05, 25, -0.2), deciding.luck_of("asked"), 12)
    asked = [(run_id, [("", value) for value in values]) for run_id, values in seen]
    crossed = deciding.first_crossing(seen)
    assert crossed == next(place for place in range(12) if changes_of(asked[: place + 1])[0])
    assert crossed >= deciding.STEADY


def test_evidence_of_many_histories_at_once_is_that_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import deciding

    gaps = deciding.luck_of("gaps").choice([-0.2, 0.0, 0.8], (3, 7, 4))
    for one, found in zip(gaps.tolist(), deciding.evidence_of(gaps), strict=True):
        assert found == pytest.approx(log_evidence(one, planned=PLANNED))


def test_the_plan_of_a_run_until_decided_comes_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import deciding

    population, drop = deciding.PASSING[0], 0.1
    changing, rate = 2 * (population.mean - population.square), population.mean
    taken = deciding.until_decided(deciding.Asked(population, 0.0, drop), 5_000, 100)["cases"]
    asked = {"width": 1.0, "passes": True, "expected": 2 * rate * (1 - rate), "confidence": 0.95}
    assert cases_until_decided(drop, changing**0.5, **asked) == pytest.approx(taken, rel=0.15)


def test_random_numbers_are_never_seeded_by_a_place_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import deciding

    asked = deciding.Submitted(deciding.PASSING[0])
    with pytest.raises(ValueError, match="no lasting text"):
        deciding.luck_of("promoted", asked)
    assert deciding.promoted(asked, 20, 10)  # which names the population instead
