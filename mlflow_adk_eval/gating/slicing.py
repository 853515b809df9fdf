"""Which cases a slice holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.gating.policy.model import Slice
from mlflow_adk_eval.results.report import Report


@dataclass(frozen=True, slots=True)
class Selection:
    """The cases of a slice."""

    eval_ids: frozenset[str]
    unmatched: tuple[str, ...]
    """The patterns and tags that no case has, as sentences."""

    def of(self, report: Report) -> Report:
        """Return the part of a report that is about these cases."""
        return replace(report, cases=tuple(case for case in report.cases if case.eval_id in self.eval_ids))


def select(eval_set: EvalSet, part: Slice) -> Selection:
    """Return the cases that match one of the patterns of a slice, or have one of its tags."""
    cases = eval_set.eval_cases
    by_id = {pattern: {case.eval_id for case in cases if fnmatchcase(case.eval_id, pattern)} for pattern in part.ids}
    by_tag = {tag: {case.eval_id for case in cases if tag in case.tags} for tag in part.tags}
    unmatched = (
        *(_said(f"no case matches {pattern!r}", pattern, eval_set.eval_ids) for pattern, found in by_id.items() if not found),
        *(_said(f"no case has the tag {tag!r}", tag, _tags(cases)) for tag, found in by_tag.items() if not found),
    )
    return Selection(frozenset().union(*by_id.values(), *by_tag.values()), unmatched)


def _tags(cases: Iterable[EvalCase]) -> list[str]:
    return list(dict.fromkeys(tag for case in cases for tag in case.tags))


def _said(said: str, name: str, known: Iterable[str]) -> str:
    hint = did_you_mean(name, known)
    return f"{said}. {hint}" if hint else said
