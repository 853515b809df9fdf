"""The simulation of `benchmarks/run.py statistics` on few samples: what it finds, and that it would find what is wrong."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Bench(NamedTuple):
    populations: ModuleType
    simulation: ModuleType
    simulated: ModuleType


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Return modules of the benchmarks, which are forgotten after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield Bench(*map(importlib.import_module, Bench._fields))
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


def test_populations_have_the_mean_that_they_claim(bench: Bench) -> None:
    for population in (*bench.populations.POPULATIONS, *bench.populations.HARD):
        drawn = population.draw(bench.simulation.luck_of("test"), 40_000)
        assert drawn.mean() == pytest.approx(population.mean, abs=0.012 if population.proportion else 0.05)
        assert drawn.shape[0] == 40_000
        assert not population.proportion or (0 <= drawn.min() <= drawn.max() <= 1)


def test_versions_differ_by_what_they_claim(bench: Bench) -> None:
    known = bench.populations
    for pairs in (*known.ALIKE, *known.CHANGED, *known.SPARSE, *known.GATED):
        before, after = pairs.draw(bench.simulation.luck_of("test"), 40_000)
        assert after.mean() - before.mean() == pytest.approx(pairs.difference, abs=0.01)


def test_intervals_cover_what_is_true_and_not_what_is_false(bench: Bench) -> None:
    scores, (pairs, *_) = bench.populations.POPULATIONS[0], bench.populations.CHANGED
    assert 0.9 < bench.simulation.covered(scores, 10, 300) < 0.99
    assert bench.simulation.covered(scores._replace(mean=0.7), 30, 100) < 0.5
    assert 0.9 < bench.simulation.covered_difference(pairs, 50, 300) <= 1
    assert bench.simulation.covered_difference(pairs._replace(difference=0.2), 50, 100) < 0.5
    assert 0.85 < bench.simulation.covered_by_student(scores, 10, 300) < 0.99
    assert 0.7 < bench.simulation.covered_by_bootstrap(scores, 10, 40) <= 1


def test_alarms_are_rare_where_nothing_has_changed_and_not_where_something_has(bench: Bench) -> None:
    alike, changed = bench.populations.ALIKE, bench.populations.CHANGED
    assert all(bench.simulation.alarms(pairs, 30, 100) <= 0.12 for pairs in alike)
    assert bench.simulation.alarms_of_several(alike[:3], 30, 100) <= 0.12
    assert bench.simulation.alarms(changed[0], 300, 60) > 0.6


def test_the_gate_tells_versions_apart(bench: Bench) -> None:
    rule = bench.simulation.Rule
    alike, worse = bench.populations.ALIKE[2], bench.populations.GATED[-1]
    passed, undecided, failed = bench.simulation.verdicts(rule(alike, 0.05), 200, 40)
    assert passed + undecided + failed == pytest.approx(1)
    assert passed > 0.8
    assert bench.simulation.verdicts(rule(worse, 0.05), 50, 40)[2] > 0.9


def test_the_coverage_of_proportions_is_computed(bench: Bench) -> None:
    from scipy.stats import binom

    exact, wilson = (bench.simulation.covered_rates(method, 10) for method in ("exact", "wilson"))
    assert min(exact) >= 0.95
    assert 0.94 < sum(wilson) / len(wilson) < 0.97
    # At a rate of 98 %, Wilson's interval holds it where nine or ten of ten pass.
    assert wilson[-1] == pytest.approx(binom.sf(8, 10, 0.98))


def test_plans_come_true(bench: Bench) -> None:
    plan = bench.simulation.Planned(bench.populations.CHANGED[1], 0.8, discordant=False)
    assert 60 < plan.cases < 90
    assert 0.65 < bench.simulation.alarms(plan.pairs, plan.cases, 150) < 0.95


def test_tables_are_pasted_into_the_page(bench: Bench) -> None:
    page = f"a\n{bench.simulated._BEGIN}\nold\n{bench.simulated._END}\nb"
    once = bench.simulated.pasted(page, "## Title\n\nnew\n\n| table |")
    assert once == f"a\n{bench.simulated._BEGIN}\n\nnew\n\n| table |\n\n{bench.simulated._END}\nb"
    assert bench.simulated.pasted(once, "## Title\n\nnew\n\n| table |") == once


def test_the_page_holds_what_the_results_hold(bench: Bench) -> None:
    results = (BENCHMARKS / "results.md").read_text("utf-8")
    page = bench.simulated.PAGE.read_text("utf-8")
    section = results.partition("<!-- statistics -->")[2].partition("\n<!-- ")[0]
    assert section
    assert bench.simulated.pasted(page, section.strip()) == page


@pytest.mark.slow
def test_the_command_makes_a_section_of_the_results(tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    command = [sys.executable, BENCHMARKS / "run.py", "statistics", "--repetitions", "16", "--out", out]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    text = out.read_text("utf-8")
    assert text.count("\n| :-- |") == 7
    assert "repetitions: 16" in text
    assert "nan" not in text
