"""Which cases a rule is about: those of a slice, and those that no waiver leaves out.

A slice selects cases by patterns of their ids and by their tags; what selects nothing is named. A waiver leaves out a case, or one
criterion of it, until it expires: on both sides of a comparison, so that it counts in no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import chain

from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.gating.policy.model import Holdout, Policy, Slice, Waiver
from mlflow_adk_eval.results.outcomes import CaseResult, grouped
from mlflow_adk_eval.results.report import Report


@dataclass(frozen=True, slots=True)
class Selection:
    """The cases of a slice."""

    eval_ids: frozenset[str]
    unmatched: tuple[str, ...]
    """The patterns and tags that no case has, as sentences."""

    def of(self, report: Report) -> Report:
        """Return the part of a report that is about these cases."""
        return replace(report, cases=report.cases.changed(lambda case: case if case.eval_id in self.eval_ids else None))


def select(eval_ids: Sequence[str], tags: Sequence[Sequence[str]], part: Slice | Holdout) -> Selection:
    """Return the cases that match one of the patterns of a slice or a holdout, or have one of its tags.

    Args:
        eval_ids: the ids of all cases.
        tags: the tags of each of them.
        part: the slice, or what is held out.
    """
    by_id = {pattern: {eval_id for eval_id in eval_ids if fnmatchcase(eval_id, pattern)} for pattern in part.ids}
    by_tag = {tag: {eval_id for eval_id, own in zip(eval_ids, tags, strict=True) if tag in own} for tag in part.tags}
    unmatched = (
        *(_with_hint(f"no case matches {pattern!r}", pattern, eval_ids) for pattern, found in by_id.items() if not found),
        *(_with_hint(f"no case has the tag {tag!r}", tag, set(chain.from_iterable(tags))) for tag, found in by_tag.items() if not found),
    )
    return Selection(frozenset().union(*by_id.values(), *by_tag.values()), unmatched)


def held_out(eval_set: EvalSet, holdout: Holdout | None) -> frozenset[str]:
    """Return the cases that a policy holds out."""
    if holdout is None:
        return frozenset()
    return select(eval_set.eval_ids, [case.tags for case in eval_set.eval_cases], holdout).eval_ids


def _with_hint(reason: str, name: str, known: Iterable[str]) -> str:
    hint = did_you_mean(name, known)
    return f"{reason}. {hint}" if hint else reason


@dataclass(frozen=True, slots=True, kw_only=True)
class WaivedSubset:
    """What waivers leave out at a moment."""

    by_case: Mapping[str, frozenset[str | None]]
    """The criteria that do not count, by case; ``None`` among them: the whole case."""
    waived: tuple[str, ...]
    """The waivers that cover something, as sentences."""
    notes: tuple[str, ...]
    """Those that cover nothing, and why."""

    def rest_of(self, report: Report) -> Report:
        """Return a report without what is waived: neither a case nor a result of it is left, so it counts in no number."""

        def rest(case: CaseResult) -> CaseResult | None:
            """Return what is left of a case; ``None`` where nothing decides it any more."""
            waived = self.by_case.get(case.eval_id)
            if waived and None in waived:
                return None
            if not waived or waived.isdisjoint(result.criterion for result in case.results):
                return case
            results = tuple(result for result in case.results if result.criterion not in waived)
            return replace(case, results=results) if any(result.decides for result in results) else None

        return replace(report, cases=report.cases.changed(rest)) if self.by_case else report


def waived_subset(policy: Policy, report: Report, now: datetime) -> WaivedSubset:
    """Return what the waivers of a policy that hold at a moment leave out of a report."""
    holding, expired = policy.waivers_on(now)
    named = {waiver.case for waiver in holding}
    criteria: dict[str, set[str]] = {}
    for case in report.cases if named else ():
        if case.eval_id in named:
            criteria.setdefault(case.eval_id, set()).update(planned.criterion for planned in case.planned)
    idle = {waiver: why for waiver in holding if (why := _covers_nothing(waiver, criteria, report.eval_set.eval_ids))}
    used = [waiver for waiver in holding if waiver not in idle]
    by_case = grouped((waiver.case, waiver.criterion) for waiver in used)
    past = (f"an expired waiver is ignored: {waiver}" for waiver in expired)
    cases = {case: frozenset(found) for case, found in by_case.items()}
    return WaivedSubset(by_case=cases, waived=tuple(map(str, used)), notes=(*past, *idle.values()))


def _covers_nothing(waiver: Waiver, criteria: Mapping[str, set[str]], eval_ids: Sequence[str]) -> str:
    """Return why a waiver has no effect; empty where it has one."""
    if waiver.case not in criteria:
        return _with_hint(f"a waiver covers nothing: there is no case {waiver.case!r} in the eval set", waiver.case, eval_ids)
    known = criteria[waiver.case]
    if waiver.criterion is None or waiver.criterion in known:
        return ""
    reason = f"a waiver covers nothing: case {waiver.case!r} has no criterion {waiver.criterion!r}"
    return _with_hint(reason, waiver.criterion, sorted(known))
