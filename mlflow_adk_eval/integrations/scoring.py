"""Criteria that judge single case runs, from any thread: for callers that bring their rows one by one, as MLflow does.

A `Scoring` holds a config with its judges. A row (what was expected and what the agent did) meets a criterion that was planned once for all
rows that it is the same in, and becomes a `CriterionResult`, by the function that also judges the cases of an evaluation. The work is done in
one background event loop, so that the threads of MLflow share the judges with their limits, budget and ledger.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar, Unpack

import anyio

from mlflow_adk_eval.config.criteria import CriterionSettings, CustomSettings, JudgedSettings, RubricSettings, VertexSettings
from mlflow_adk_eval.config.eval_config import EvalConfig, load_config, parse_config
from mlflow_adk_eval.config.inputs import ConfigSource
from mlflow_adk_eval.config.spec import CRITERIA, Need
from mlflow_adk_eval.criteria.criterion import Planned
from mlflow_adk_eval.criteria.plan import plan
from mlflow_adk_eval.errors import AdkEvalError
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeArgs, JudgeSetup, LedgerSource, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Outcome, Scored, reason_of
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner import apply_criteria
from mlflow_adk_eval.runtime import BACKGROUND, each
from mlflow_adk_eval.tables.rows import CALLS, MADE, RESPONSE, Row

NOT_EVALUATED = "NOT_EVALUATED"
"""How a justification begins where there is no score."""


def explained(result: CriterionResult) -> str:
    """Return why the result is what it is: the reasons of its turns, each with its score where there are several."""
    if not isinstance(result.overall, Scored):
        return f"{NOT_EVALUATED}: {reason_of(result.overall)}"
    if result.overall.rationale:
        return result.overall.rationale
    cells = [(number, cell) for number, cell in enumerate(result.per_invocation, 1) if cell is not None]
    if len(cells) == 1 and isinstance(cells[0][1], Scored):
        return cells[0][1].rationale
    return "\n\n".join(_of_turn(number, cell) for number, cell in cells)


def _of_turn(number: int, cell: Outcome) -> str:
    if not isinstance(cell, Scored):
        return f"**turn {number}**: {NOT_EVALUATED}: {reason_of(cell)}"
    return f"**turn {number}: {cell.score:.4g}** {cell.rationale}".rstrip()


T = TypeVar("T")

PAUSE_S = 10.0
"""Rows of one evaluation follow each other faster than that."""

_CELL_OF: Mapping[Need, str] = {"expected_response": RESPONSE, "expected_calls": CALLS, "calls": MADE}
"""The cell of a row that holds what a criterion needs."""


def needed_cells(criterion: str, config: EvalConfig) -> tuple[str, ...]:
    """Return the cells without which a criterion would judge by what nobody said; none for a metric of the user's own."""
    if criterion in (config.custom_metrics or {}):
        return ()
    return tuple(_CELL_OF[need] for need in CRITERIA[criterion].needs if need in _CELL_OF)


class Scoring:
    """A config with its judges, ready to judge case runs. What took a judge is judged once, however often it is asked for."""

    def __init__(self, config: EvalConfig, setup: JudgeSetup | None = None) -> None:
        """Make the judges ready.

        Raises:
            ConfigError: if the config names an endpoint that the caller does not allow.
            JudgeError: if a judge cannot be had.
            UsageError: if the ledger cannot be used.
        """
        self.config = config
        self._resources = ExitStack()
        chosen = setup or JudgeSetup()
        answers = self._resources.enter_context(_ledger(chosen.ledger, config))
        self._judging = JudgeSession(replace(chosen, answers=answers))
        self._limit = chosen.options.max_concurrency
        self._found: dict[str, CriterionResult] = {}
        self._under_way: dict[str, anyio.Event] = {}
        self._plans: dict[tuple[object, ...], Planned | None] = {}
        self._busy = 0
        self._rested_at = -math.inf
        self._judging.check(config)
        for name, settings in _judged(config):
            by_service = isinstance(settings, VertexSettings) and settings.backend == "vertex"
            self._judging.vertex() if by_service else self._judging.vote_collector(settings, CRITERIA[name].prompts)
        BACKGROUND.closes(self, partial(_close, self._judging, self._resources))

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: a copy of a metric asks the same judges within the same limits."""
        return self

    @property
    def criteria(self) -> tuple[str, ...]:
        """The names of the criteria, in the order of the config."""
        return tuple(dict.fromkeys(name for criteria in (self.config.criteria, *self.config.case_criteria.values()) for name in criteria))

    def concerns(self, case: EvalCase, criterion: str) -> bool:
        """Whether the config asks for a criterion in a case; else `evaluate` has no result of it either."""
        return criterion in self.config.planned(case)

    @property
    def usage(self) -> JudgeUsage | None:
        """What the judges took so far; ``None`` where no criterion asks one."""
        return self._judging.usage()

    def results(self, rows: Sequence[Row], criterion: str) -> list[CriterionResult]:
        """Return what one criterion makes of each row. Whatever goes wrong with a row is its error."""
        found: dict[int, CriterionResult] = {}

        async def work(index: int) -> None:
            found[index] = await self._result(rows[index], criterion)

        BACKGROUND.call(lambda: self._working(lambda: each(work, range(len(rows)), limit=self._limit)))
        return [found[index] for index in range(len(rows))]

    def result(self, row: Row, criterion: str) -> CriterionResult:
        """Return what one criterion makes of a row."""
        return BACKGROUND.call(lambda: self._working(lambda: self._result(row, criterion)))

    async def _working(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work`. The first after a pause is a new evaluation, in which a judge that was given up has another chance."""
        if not self._busy and anyio.current_time() - self._rested_at > PAUSE_S:
            self._judging.recover()
        self._busy += 1
        try:
            return await work()
        finally:
            self._busy -= 1
            self._rested_at = anyio.current_time()

    async def _result(self, row: Row, criterion: str) -> CriterionResult:
        settings = self.config.criteria_of(row.case.eval_id).get(criterion)
        if settings is None and criterion not in CRITERIA.informative:
            return self._error(criterion, settings, f"the config has no such criterion for the case {row.case.eval_id!r}")
        lacking = [name for name in needed_cells(criterion, self.config) if name in row.lacks]
        if lacking:
            return self._error(criterion, settings, f"the row has no {' and no '.join(lacking)}")
        if not isinstance(settings, JudgedSettings | CustomSettings):
            return await self._judged(row, criterion, settings)
        return await self._once(row, criterion, settings)

    async def _once(self, row: Row, criterion: str, settings: CriterionSettings) -> CriterionResult:
        key = _key(row, criterion)
        while key in self._under_way:
            await self._under_way[key].wait()
        if key not in self._found:
            done = self._under_way[key] = anyio.Event()
            try:
                result = await self._judged(row, criterion, settings)
            finally:
                del self._under_way[key]
                done.set()
            if isinstance(result.overall, Errored):
                return result  # asking again may help, and what was answered is in the ledger
            self._found[key] = result
        return self._found[key]

    async def _judged(self, row: Row, criterion: str, settings: CriterionSettings | None) -> CriterionResult:
        try:
            planned = self._plan(row.case, criterion, settings)
        except AdkEvalError as error:
            return self._error(criterion, settings, str(error))
        if planned is None:
            return self._error(criterion, settings, "the criterion is left out for this case, as its settings say")
        return (await apply_criteria(row.case, row.run_index, row.conversation, [planned])).results[0]

    def _plan(self, case: EvalCase, criterion: str, settings: CriterionSettings | None) -> Planned | None:
        """Return a criterion as a case has it, planned once for all cases that it is the same in; ``None`` where it is left out.

        Raises:
            AdkEvalError: if the criterion cannot be applied to the case.
        """
        rubrics = (case.rubrics, *(turn.rubrics for turn in case.conversation or ())) if isinstance(settings, RubricSettings) else ()
        key = (criterion, id(settings), case.conversation is None, bool(case.final_session_state), repr(rubrics) if any(rubrics) else "")
        if key not in self._plans:
            config = self.config.model_copy(update={"criteria": {criterion: settings} if settings else {}, "case_criteria": {}})
            found = plan(config, EvalSet(eval_set_id=case.eval_id, eval_cases=(case,)), self._judging).of(case.eval_id)
            self._plans[key] = next((one for one in found if one.name == criterion), None)
        return self._plans[key]

    def _error(self, criterion: str, settings: CriterionSettings | None, reason: str) -> CriterionResult:
        error = Errored(reason)
        return CriterionResult(
            criterion=criterion,
            threshold=settings.threshold if settings else None,
            greater_is_better=self.config.greater_is_better(criterion),
            overall=error,
            per_invocation=(error,),
        )


def scoring(config: ConfigSource, **judging: Unpack[JudgeArgs]) -> Scoring:
    """Return the criteria of a config, ready to judge.

    Args:
        config: the path of a config, a dict or an `EvalConfig`; ``None``: ADK's defaults.
        **judging: how to judge.

    Raises:
        InputError: with every problem of the config.
        JudgeError: if a judge cannot be had.
    """
    return Scoring(load_config(config), judge_setup(**judging))


def criterion_config(name: str, settings: Mapping[str, Any]) -> EvalConfig:
    """Return the config of one criterion.

    Raises:
        ConfigError: naming each setting that there is not, or that is wrong.
    """
    return parse_config({"criteria": {name: dict(settings)}}, name)


def _judged(config: EvalConfig) -> list[tuple[str, JudgedSettings]]:
    groups = (config.criteria, *config.case_criteria.values())
    return [(name, settings) for criteria in groups for name, settings in criteria.items() if isinstance(settings, JudgedSettings)]


def _ledger(ledger: LedgerSource, config: EvalConfig) -> AbstractContextManager[Any]:
    return opened(ledger if _judged(config) else False)


def _key(row: Row, criterion: str) -> str:
    """Return what a judgement depends on, as a hash."""
    played = row.conversation
    digest = hashlib.sha256()
    for model in (row.case, *played.actual):
        digest.update(model.model_dump_json(exclude_none=True).encode("utf-8", "surrogatepass"))
    digest.update(repr((criterion, played.session_state, played.error, played.unfinished)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


async def _close(judging: JudgeSession, resources: ExitStack) -> None:
    await judging.aclose()
    resources.close()
