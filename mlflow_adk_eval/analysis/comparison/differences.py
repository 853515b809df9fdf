"""What the two runs themselves differ in, before any score: agent, eval set, config, judges, surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from mlflow_adk_eval.analysis.comparison.side import Side, eval_set_facts
from mlflow_adk_eval.criteria.text.alignment import differences
from mlflow_adk_eval.evalset.digest import canonical

_MOST_PLACES = 20
_ABSENT_MEANS = frozenset({"Judges", "Simulated users", "Baseline"})
"""Facts that a run without them does not have; any other is not known where it is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not the same in both runs."""

    about: str
    before: str
    """Empty: there is none."""
    after: str
    intended: bool = False
    """Whether comparing such runs is what a comparison is for: another agent."""


def differences_of(sides: tuple[Side, Side]) -> tuple[Difference, ...]:
    """Return what the runs differ in: the agent first, then what makes scores hard to compare."""
    return (*_facts(sides), *_config(sides))


def _facts(sides: tuple[Side, Side]) -> Iterator[Difference]:
    before, after = ({**side.facts, **eval_set_facts(side)} for side in sides)
    for name in dict.fromkeys([*after, *before]):
        known = name in _ABSENT_MEANS or (name in before and name in after)
        if known and before.get(name, "") != after.get(name, ""):
            intended = name in {"Agent version", "Agent"}
            yield Difference(about=name, before=before.get(name, ""), after=after.get(name, ""), intended=intended)


def _config(sides: tuple[Side, Side]) -> Iterator[Difference]:
    before, after = (canonical(side.config.to_json()) for side in sides)
    for found in islice(differences(after, before), _MOST_PLACES):
        yield Difference(about=f"Config {found.path}", before=found.expected, after=found.actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Which cases can be compared."""

    paired: tuple[str, ...]
    """In the order of the second run's eval set."""
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    altered: tuple[str, ...]
    """Cases of both eval sets that are not the same case any more: other user turns or expectations."""


def pairing_of(sides: tuple[Side, Side]) -> Pairing:
    """Return which cases both runs have results of, and are the same case in both."""
    before, after = ({case.eval_id: case for case in side.eval_set.eval_cases if case.eval_id in side.cases} for side in sides)
    both = [name for name in after if name in before]
    same_sets = sides[0].digest == sides[1].digest
    altered = set[str]() if same_sets else {name for name in both if canonical(before[name]) != canonical(after[name])}
    return Pairing(
        paired=tuple(name for name in both if name not in altered),
        only_before=tuple(name for name in before if name not in after),
        only_after=tuple(name for name in after if name not in before),
        altered=tuple(name for name in both if name in altered),
    )
