"""Criteria that judge single case runs, from any thread: for callers that bring their rows one by one, as MLflow does.

A `RowScoring` holds a config with its judges. A row (what was expected and what the agent did) meets a criterion that was planned once for all
rows that it is the same in, and becomes a `CriterionResult`, by the function that also judges the cases of an evaluation. The work is done in
one background event loop, so that the threads of MLflow share the judges with their limits, budget and ledger.

`metrics.<criterion>` and `scorers.<criterion>` are functions of `CriterionFunctions`. Nothing about them is written down by hand: the
keywords, their defaults and the documentation come from the criterion's `CriterionSpec` and the fields of its settings, when the function is
first asked for.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from inspect import Parameter, Signature, getdoc, signature
from typing import Any, Generic, Self, TypeVar, Unpack, cast

import anyio

from mlflow_adk_eval.config import spec
from mlflow_adk_eval.config.eval_config import EvalConfig, default_config, load_config, parse_config
from mlflow_adk_eval.config.inputs import ConfigSource
from mlflow_adk_eval.criteria.criterion import Planned
from mlflow_adk_eval.criteria.plan import plan
from mlflow_adk_eval.errors import AdkEvalError, ConfigError, Problem, did_you_mean
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Model
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeArgs, JudgeSetup, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Scored, reason_of
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner.evaluation import apply_criteria
from mlflow_adk_eval.runtime import BACKGROUND, each
from mlflow_adk_eval.shapes.rows import Row

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
    turns = (
        f"**turn {number}: {cell.score:.4g}** {cell.rationale}".rstrip()
        if isinstance(cell, Scored)
        else f"**turn {number}**: {NOT_EVALUATED}: {reason_of(cell)}"
        for number, cell in cells
    )
    return "\n\n".join(turns)


T = TypeVar("T")

PAUSE_S = 10.0
"""Rows of one evaluation follow each other faster than that."""


class RowScoring:
    """A config with its judges, ready to judge case runs. What took a judge is judged once, however often it is asked for."""

    def __init__(self, config: EvalConfig, setup: JudgeSetup | None = None) -> None:
        """Make the judges ready.

        Raises:
            ConfigError: if the config names an endpoint that the caller does not allow.
            JudgeError: if a judge cannot be set up.
            UsageError: if the ledger cannot be used.
        """
        self.config = config
        self._resources = ExitStack()
        chosen = setup or JudgeSetup()
        self.own_judge = chosen.judge is not None
        """Whether the caller named a judge, who then decides in place of the config's models."""
        judged = [(name, one) for name, listed in config.by_criterion.items() for one in listed if isinstance(one, spec.JudgedSettings)]
        answers = self._resources.enter_context(opened(chosen.ledger if judged else False))
        self._judging = JudgeSession(replace(chosen, answers=answers))
        self._limit = chosen.options.max_concurrency
        self._found: dict[str, CriterionResult] = {}
        self._under_way: dict[str, anyio.Event] = {}
        self._plans: dict[tuple[object, ...], Planned | None] = {}
        self._busy = 0
        self._rested_at = -math.inf
        self._judging.check(config)
        for name, settings in judged:
            by_service = isinstance(settings, spec.VertexSettings) and settings.backend == "vertex"
            self._judging.vertex() if by_service else self._judging.vote_collector(settings, spec.CRITERIA[name].prompts)
        BACKGROUND.closes(self, partial(_close, self._judging, self._resources))  # which must not hold this object

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: a copy of a metric asks the same judges within the same limits."""
        return self

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
        if settings is None and criterion not in spec.CRITERIA.informative:
            return self._error(criterion, settings, f"the config has no such criterion for the case {row.case.eval_id!r}")
        if not isinstance(settings, spec.JudgedSettings | spec.CustomSettings):
            return await self._judged(row, criterion, settings)
        played, digest = row.conversation, hashlib.sha256()  # over what a judgement depends on
        for model in (row.case, *played.actual):
            digest.update(model.model_dump_json(exclude_none=True).encode("utf-8", "surrogatepass"))
        digest.update(
            repr((criterion, played.session_state, played.error, played.unfinished, played.unknown)).encode("utf-8", "surrogatepass")
        )
        key = digest.hexdigest()
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

    async def _judged(self, row: Row, criterion: str, settings: spec.CriterionSettings | None) -> CriterionResult:
        try:
            planned = self._plan(row.case, criterion, settings)
        except AdkEvalError as error:
            return self._error(criterion, settings, str(error))
        if planned is None:
            return self._error(criterion, settings, "the criterion's settings exclude this case")
        return (await apply_criteria(row.case, row.run_index, row.conversation, [planned])).results[0]

    def _plan(self, case: EvalCase, criterion: str, settings: spec.CriterionSettings | None) -> Planned | None:
        """Return a criterion as a case has it, planned once for all cases that it is the same in; ``None`` where it is left out.

        Raises:
            AdkEvalError: if the criterion cannot be applied to the case.
        """
        rubrics = (case.rubrics, *(turn.rubrics for turn in case.conversation or ())) if isinstance(settings, spec.RubricSettings) else ()
        is_planned = settings is None or settings.applies_to(case)
        key = (criterion, id(settings), case.conversation is None, is_planned, repr(rubrics) if any(rubrics) else "")
        if key not in self._plans:
            config = self.config.model_copy(update={"criteria": {criterion: settings} if settings else {}, "case_criteria": {}})
            found = plan(config, EvalSet(eval_set_id=case.eval_id, eval_cases=(case,)), self._judging).of(case.eval_id)
            self._plans[key] = next((one for one in found if one.name == criterion), None)
        return self._plans[key]

    def _error(self, criterion: str, settings: spec.CriterionSettings | None, reason: str) -> CriterionResult:
        error, threshold = Errored(reason), self.config.threshold_of(criterion, settings)
        better = self.config.greater_is_better(criterion)
        return CriterionResult(criterion=criterion, threshold=threshold, greater_is_better=better, overall=error, per_invocation=(error,))


def scoring(config: ConfigSource, **judging: Unpack[JudgeArgs]) -> RowScoring:
    """Return the criteria of a config, ready to judge.

    Args:
        config: the path of a config, a dict or an `EvalConfig`; ``None``: ADK's defaults.
        **judging: how to judge.

    Raises:
        InputError: with every problem of the config.
        JudgeError: if a judge cannot be set up.
    """
    return RowScoring(load_config(config), judge_setup(**judging))


async def _close(judging: JudgeSession, resources: ExitStack) -> None:
    await judging.aclose()
    resources.close()


_JUDGE_KEYWORDS = signature(judge_setup).parameters
"""Of every function, after the settings of its criterion."""


class CriterionFunctions(Generic[T]):
    """The functions of a module, one for each criterion that there is when it is asked.

    A module serves them by a ``__getattr__`` that calls `named`, and lists them by `CRITERIA`. A function is made once, so that it can be
    pickled by its name; one whose criterion was registered again is made again.
    """

    def __init__(self, make: Callable[[EvalConfig, str, JudgeArgs], T], module: str) -> None:
        """Say what the functions return.

        Args:
            make: from a config of one criterion, the criterion's name and what is said of judges to what the function returns.
            module: the ``__name__`` of the module that the functions are to be in.
        """
        self._module = module
        self._made = cache(lambda criterion: _function(criterion, make, module))

    def named(self, name: str) -> Callable[..., T]:
        """Return the function of a criterion.

        Raises:
            AttributeError: if there is no such criterion.
        """
        if name.startswith("__") or name not in spec.CRITERIA:
            hint = "" if name.startswith("__") else did_you_mean(name, list(spec.CRITERIA))
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}. {hint}".strip())
        return self._made(spec.CRITERIA[name])


def _function(criterion: spec.CriterionSpec, make: Callable[[EvalConfig, str, JudgeArgs], T], module: str) -> Callable[..., T]:
    name, fields = criterion.name, criterion.fields
    default = default_config().criteria.get(name)
    threshold = {"threshold": default.threshold} if default else {}  # of a criterion that ADK has one for
    parameters: dict[str, Parameter] = {}
    for key, field in fields.items():  # of the criterion itself, then those of its judge
        value = Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
        parameters[key] = Parameter(key, Parameter.KEYWORD_ONLY, default=threshold.get(key, value), annotation=field.annotation)
    parameters |= _JUDGE_KEYWORDS

    def function(**given: Any) -> T:
        wanted = f"one of {', '.join(parameters)}"
        problems = [Problem(key, "an unknown keyword", wanted, did_you_mean(key, parameters)) for key in given if key not in parameters]
        if problems:
            raise ConfigError(f"{name}()", problems)
        settings = {key: _plain(value) for key, value in given.items() if key not in _JUDGE_KEYWORDS}
        config = parse_config({"criteria": {name: threshold | settings}}, name)
        return make(config, name, cast("JudgeArgs", {key: value for key, value in given.items() if key in _JUDGE_KEYWORDS}))

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    listed = "\n".join(f"    {key}: {field.description or 'see the settings of the criterion.'}" for key, field in fields.items())
    judging = (getdoc(judge_setup) or "").partition("Args:\n")[2].partition("\n\n")[0]
    errors = "    ConfigError: names every unknown, missing or wrong keyword.\n    JudgeError: if a judge cannot be set up."
    function.__doc__ = f"Return ``{name}``: {criterion.about}.\n\nArgs:\n{listed}\n{judging}\n\nRaises:\n{errors}\n"
    function.__signature__ = Signature(list(parameters.values()))  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess] - any function may have one
    return function


def _plain(value: Any) -> Any:
    """Return models among the settings as a config would spell them."""
    if isinstance(value, Model | spec.Settings):
        return value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
