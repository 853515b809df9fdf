"""What the criteria of a config read of the cases: what cases lack, what is left out on purpose, and what no criterion reads.

Planning looks at every case once, before the agent is paid; reading a run's evidence does it again, so that the gate says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mlflow_adk_eval.config.eval_config import Criteria, EvalConfig
from mlflow_adk_eval.config.spec import CRITERIA, INTERMEDIATE, CriterionSettings, ExpectingSettings
from mlflow_adk_eval.errors import ConfigError, Problem
from mlflow_adk_eval.evalset.models import OPEN, EvalCase, IntermediateData
from mlflow_adk_eval.text import Few, counted

_MOST_NAMED = 3
_MOST_REASONS = 20
"""So many reasons why rubrics are not used are told apart: their types may be anything."""
_STATE, _CALLS, _RESPONSE, _ON_THE_WAY = "expected_state", "expected_calls", "expected_response", INTERMEDIATE
_UNREAD: Mapping[str, tuple[str, str]] = {
    _STATE: ("a final_session_state", "add final_session_state: 1.0 to the criteria"),
    _CALLS: ("tool calls", "add tool_trajectory_avg_score: 1.0 to the criteria"),
    _RESPONSE: ("a response", "add response_match_score or final_response_match_v2 to the criteria"),
    _ON_THE_WAY: ("intermediate responses", f"set {INTERMEDIATE}: true where responses are compared"),
}
"""What a case may expect, and how it is read."""


def _few() -> Few:
    return Few(_MOST_NAMED)


@dataclass(slots=True)
class _Reach:
    """How far a criterion reaches: the cases that it decides, and those that it cannot."""

    cases: int = 0
    """The cases whose config names it."""
    decided: int = 0
    """The cases in which it has a threshold that a score can miss."""
    undecidable: int = 0
    """Those of them that lack what it needs."""
    lacking: dict[str, Few] = field(default_factory=dict[str, Few])
    """The same cases by what they lack."""
    can_leave_out: bool = False
    """Whether its settings could leave those out."""
    left_out: Few = field(default_factory=_few)
    """The cases that its settings leave out."""
    turns_left_out: int = 0
    """The turns that its settings leave out of other cases."""
    information: dict[float, Few] = field(default_factory=dict[float, Few])
    """The cases in which every score reaches its threshold, by that threshold."""


class Coverage:
    """What the criteria of a config read of the cases that were seen."""

    def __init__(self, config: EvalConfig) -> None:
        """Take the criteria; no case is seen yet."""
        self._config = config
        self._reach: dict[str, _Reach] = {}
        self._unread: dict[str, Few] = {}
        self._rubrics: dict[str, Few] = {}
        self._undecided = _few()
        self._reads: dict[tuple[int, tuple[str, ...]], frozenset[str]] = {}

    def see(self, case: EvalCase, planned: Criteria | None = None) -> None:
        """Take note of a case.

        Args:
            case: the case.
            planned: the criteria that decide it; ``None``: to be looked up.
        """
        criteria = self._config.criteria_of(case.eval_id)
        planned = self._config.planned(case) if planned is None else planned
        decided = False
        for name, settings in criteria.items():
            reach = self._reach.setdefault(name, _Reach())
            reach.cases += 1
            if name in planned:
                decided |= self._see_planned(reach, name, settings, case)
            else:
                reach.left_out.add([case.eval_id])
        if not decided:
            self._undecided.add([case.eval_id])
        self._see_expectations(case, id(criteria), planned)

    def _see_planned(self, reach: _Reach, name: str, settings: CriterionSettings, case: EvalCase) -> bool:
        """Take note of a criterion that is planned for a case; return whether it decides the case."""
        decides = self._config.threshold_of(name, settings) is not None
        reach.decided += decides
        if not decides:
            reach.information.setdefault(settings.threshold, _few()).add([case.eval_id])
        turns = len(case.conversation or ()) if settings.lacks_by_turn else 1
        lacking: dict[str, list[int]] = {}
        for index in range(max(turns, 1)):
            if found := settings.lack(case, index):
                lacking.setdefault(found, []).append(index + 1)
        if not lacking:
            return decides
        if isinstance(settings, ExpectingSettings):
            reach.can_leave_out = True
            if settings.only_where_expected:
                reach.turns_left_out += sum(map(len, lacking.values()))
                return decides
        if not decides:
            return False
        reach.undecidable += 1
        for found, numbers in lacking.items():
            few = reach.lacking.setdefault(found, _few())
            few.add([case.eval_id if len(numbers) >= turns else f"{case.eval_id} turn {', '.join(map(str, numbers))}"])
        return decides

    def _see_expectations(self, case: EvalCase, place: int, planned: Criteria) -> None:
        key = place, tuple(planned)
        if key not in self._reads:
            self._reads[key] = frozenset(self._read_by(planned))
        read = self._reads[key]
        for kind in expectations(case):
            if kind not in read:
                self._unread.setdefault(kind, _few()).add([case.eval_id])
        if case.rubrics or any(turn.rubrics for turn in case.conversation or ()):
            from mlflow_adk_eval.criteria.rubrics import unused_rubrics  # noqa: PLC0415 - a check of files needs no judge

            for unused in unused_rubrics(planned, case):
                known = unused.reason in self._rubrics or len(self._rubrics) < _MOST_REASONS
                reason = unused.reason if known else "no criterion uses rubrics of their types"
                self._rubrics.setdefault(reason, _few()).add([unused.place])

    def _read_by(self, planned: Criteria) -> Iterator[str]:
        """Yield what criteria read of what cases expect."""
        for name, settings in planned.items():
            if name in (self._config.custom_metrics or {}):  # its function is given the expected conversation
                yield from (_CALLS, _RESPONSE, _ON_THE_WAY)
                continue
            needs = CRITERIA[name].needs
            yield from needs
            if getattr(settings, "use_reference", False):
                yield _RESPONSE
            if settings.include_intermediate_responses_in_final and _RESPONSE in needs:
                yield _ON_THE_WAY

    @property
    def gap(self) -> str:
        """How a sentence about what was evaluated ends, where something was not; empty where everything was."""
        if self._unread or self._rubrics:
            return "but not on all that the cases expect (see the notes)"
        if any(reach.left_out.count or reach.turns_left_out for reach in self._reach.values()):
            return "but not each criterion on each case (see the notes)"
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know: what is information only, what is left out, and what no criterion reads."""
        return (*self._information(), *self._left_out(), *self._unread_expectations())

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Why cases cannot be decided, whatever the agent does."""
        return (*self._lacking(), *self._without_decision())

    def _information(self) -> Iterator[str]:
        for name, reach in self._reach.items():
            for threshold, cases in reach.information.items():
                where = "" if cases.count == reach.cases else f" in {counted(cases.count, 'case')} ({cases})"
                yield f"{name}: threshold {threshold:g}: information only{where}, since every possible score reaches it"

    def _left_out(self) -> Iterator[str]:
        for name, reach in self._reach.items():
            parts: list[str] = []
            if reach.left_out.count:
                parts.append(f"{reach.left_out.count:,} of {counted(reach.cases, 'case')} ({reach.left_out})")
            if reach.turns_left_out:
                parts.append(counted(reach.turns_left_out, "turn") + " of other cases" * bool(parts))
            if parts:
                yield f"{name} leaves out {' and '.join(parts)}, which do not say what it needs"

    def _unread_expectations(self) -> Iterator[str]:
        for kind, (what, remedy) in _UNREAD.items():
            if cases := self._unread.get(kind):
                verb = "expects" if cases.count == 1 else "expect"
                yield f"{counted(cases.count, 'case')} {verb} {what} that no criterion reads ({cases}); {remedy}"
        for reason, rubrics in self._rubrics.items():
            verb = "is" if rubrics.count == 1 else "are"
            yield f"{counted(rubrics.count, 'rubric')} {verb} not used ({rubrics}): {reason}"

    def _lacking(self) -> Iterator[str]:
        for name, reach in self._reach.items():
            for what, cases in reach.lacking.items():
                yield self._lack(name, reach, what, cases)

    def _lack(self, name: str, reach: _Reach, what: str, cases: Few) -> str:
        verb = "lacks" if cases.count == 1 else "lack"
        remedy = "write it"
        if reach.can_leave_out:
            remedy += ", or set only_where_expected: true, which leaves out what lacks it"
        lead = f"{name} cannot decide {cases.count:,} of {counted(reach.decided, 'case')}"
        if reach.undecidable == reach.decided and len(reach.lacking) == 1:
            lead = f"{name} can never be evaluated on this eval set: {cases.count:,} of {counted(reach.decided, 'case')}"
            return f"{lead} {verb} {what} ({cases}); {remedy}, or remove the criterion"
        return f"{lead}, which {verb} {what} ({cases}); {remedy}"

    def _without_decision(self) -> Iterator[str]:
        if self._undecided.count:
            cases = self._undecided
            yield f"no criterion decides {counted(cases.count, 'case')} ({cases}); add one whose threshold a score can miss"

    def check(self, source: str) -> None:
        """Refuse a criterion that decides and can be evaluated on no case, before the agent is paid.

        Args:
            source: what messages call the config.

        Raises:
            ConfigError: with each such criterion.
        """
        problems: list[Problem] = []
        for name, reach in self._reach.items():
            if reach.decided and reach.undecidable == reach.decided:
                found = "; ".join(self._lack(name, reach, what, cases) for what, cases in reach.lacking.items())
                problems.append(Problem(f"$.criteria.{name}", found, "a criterion that can decide a case"))
        if problems:
            raise ConfigError(source, problems)


def expectations(case: EvalCase) -> Iterator[str]:
    """Yield what a case expects, each kind once."""
    if case.final_session_state:
        yield _STATE
    if OPEN in case.tags:  # what is there was recorded, and nobody has said that it is expected
        return
    turns = case.conversation or ()
    if any(turn.tool_calls for turn in turns):
        yield _CALLS
    if any(turn.final_text.strip() for turn in turns):
        yield _RESPONSE
    for turn in turns:
        written = turn.intermediate_data
        if isinstance(written, IntermediateData) and written.intermediate_responses:
            yield _ON_THE_WAY
            return


def coverage_of(config: EvalConfig, cases: Iterable[EvalCase]) -> Coverage:
    """Return what the criteria of a config read of cases."""
    coverage = Coverage(config)
    for case in cases:
        coverage.see(case)
    return coverage
