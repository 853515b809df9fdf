"""Criteria as scorers of ``mlflow.genai``.

MLflow calls a scorer with a row, or with the traces of a session, from threads of its own. `traced_row` and `row_of_session` make a case and
a conversation of that, `RowScoring` judges it, and the result becomes an assessment as in the traces of `evaluate`. The scorers of one config share one `RowScoring`,
also after they were copied; one that comes from another process, or from MLflow's store, makes its own.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from functools import cache, partial
from numbers import Real
from pathlib import Path
from typing import Any, Self, cast

import mlflow
from mlflow.entities import Feedback, Trace
from mlflow.genai.scorers.base import Scorer, ScorerKind, SerializedScorer
from pydantic import Field, PrivateAttr

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.errors import AdkEvalError, InputError, UsageError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.observation import EXPECTATIONS, Unknown
from mlflow_adk_eval.integrations.scoring import RowScoring, explained, scoring
from mlflow_adk_eval.judge.setup import JudgeArgs, JudgeOptions
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.outcomes import Errored, Scored, reaches, reason_of, status_of
from mlflow_adk_eval.results.table import cell_at, item_results, votes_by_turn
from mlflow_adk_eval.shapes.answers import is_infinite, is_missing
from mlflow_adk_eval.shapes.records import CASE, has_answer, has_tools, row_of_record, with_turns
from mlflow_adk_eval.shapes.rows import Row
from mlflow_adk_eval.tracking.storable import assessment_name, storable_text
from mlflow_adk_eval.tracking.trace_records import Assessed, assessment_of
from mlflow_adk_eval.tracking.traces import feedback_of

_WHOLE = {CASE, "expected_conversation"}
"""Expectations about a conversation rather than a turn."""
_TELLING_TYPES = {"AGENT", "TOOL"}
_TELLING_OPERATIONS = {"invoke_agent", "execute_tool"}


def traced_row(
    inputs: Any,
    outputs: Any,
    expectations: Mapping[str, Any] | None,
    trace: Trace | None,
    source: str = "row",
) -> Row:
    """Return a row of ``mlflow.genai.evaluate``. Outputs that say which tools were called are believed; else the trace is.

    Raises:
        EvalSetError: if there is nothing that an agent did.
    """
    done = outputs if trace is None or has_tools(outputs) else _outputs_with_trace(trace, outputs)
    return row_of_record(inputs, done, expectations, source)


def row_of_session(session: Sequence[Trace], expectations: Mapping[str, Any] | None = None) -> Row:
    """Return the conversation that the traces of a session are, each of them a turn, in the order of time.

    What is expected of it is what the first trace says of the whole conversation, or else what each says of its turn.

    Raises:
        EvalSetError: if a trace holds nothing that an agent did.
    """
    traces = sorted(session, key=lambda trace: trace.info.request_time)
    name = traces[0].info.trace_metadata.get("mlflow.trace.session", "session")
    first = dict(expectations or expectations_of(traces[0]))
    is_whole = bool(_WHOLE & set(first))
    rows: list[Row] = []
    for number, trace in enumerate(traces):
        root = next((span for span in trace.data.spans if span.parent_id is None), None)
        expected_here = {} if is_whole else expectations_of(trace) if number else first
        rows.append(traced_row(root.inputs if root else None, root.outputs if root else None, expected_here, trace, name))
    last = rows[-1].conversation
    actual = tuple(turn for row in rows for turn in row.conversation.actual)
    error = next((row.conversation.error for row in rows if row.conversation.error), "")
    unknown = tuple(_unknown_by_turn(rows))
    conversation = Conversation(
        actual=actual,
        session_state=last.session_state,
        error=error,
        unfinished=last.unfinished,
        unknown=unknown,
    )
    if not is_whole:
        expected = tuple(turn for row in rows for turn in row.case.conversation or ())
        return Row(case=rows[0].case.model_copy(update={"conversation": expected}), conversation=conversation)
    row = row_of_record(None, with_turns({}, conversation.actual), first, name)
    of_case = tuple(entry for entry in row.conversation.unknown if entry.what in EXPECTATIONS)
    of_agent = tuple(entry for entry in unknown if entry.what not in EXPECTATIONS)
    return replace(row, conversation=replace(conversation, actual=row.conversation.actual, unknown=of_case + of_agent))


def _unknown_by_turn(rows: Sequence[Row]) -> Iterator[Unknown]:
    """Yield what the rows of a session do not say, with the turns of the session that it is unknown of."""
    first = 0
    for row in rows:
        turns = range(first, first + len(row.conversation.actual))
        for entry in row.conversation.unknown:
            for turn in turns if entry.turn is None else turns[entry.turn : entry.turn + 1]:
                yield entry.model_copy(update={"turn": turn})
        first = turns.stop


def expectations_of(trace: Trace) -> dict[str, Any]:
    """Return what is expected of a trace; if it was said after the trace was read, as MLflow stores it."""
    for stored in (False, True):
        current = mlflow.get_trace(trace.info.trace_id, silent=True) if stored else trace
        assessments = current.info.assessments or () if current else ()
        if expectations := {one.name: one.expectation.value for one in assessments if one.expectation is not None}:
            return expectations
    return {}


def _outputs_with_trace(trace: Trace, outputs: Any) -> Any:
    """Return outputs with what their trace says of how they came about."""
    from mlflow_adk_eval.agents.traces.conversations import conversation_from_traces  # noqa: PLC0415 - only where there are traces

    tells = any(  # what the agent did inside: the trace that MLflow makes of a row of a table does not
        span.span_type in _TELLING_TYPES or span.get_attribute("gen_ai.operation.name") in _TELLING_OPERATIONS for span in trace.data.spans
    )
    if not (tells or str(trace.info.state).endswith("ERROR")):
        return outputs
    try:
        conversation = conversation_from_traces([trace])
    except InputError:
        if has_answer(outputs):
            return outputs
        raise
    failure = {"error": conversation.error, "unfinished": conversation.unfinished} if conversation.error else {}
    state = {"session_state": conversation.session_state} if conversation.session_state is not None else {}
    told = {**state, **failure, **with_turns(outputs, conversation.actual)}
    if conversation.unknown:
        told["unknown"] = [entry.model_dump(exclude_none=True) for entry in conversation.unknown]
    return told


WORKERS = "MLFLOW_GENAI_EVAL_MAX_WORKERS"
_POOL = "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE"
_MOST, _LARGE_POOL = 6, 60
"""As many workers as lose nothing with MLflow's own pool, and as large a pool as its default number of workers needs."""


def sqlite_warning() -> str:
    """Return what to say before evaluating on the store that MLflow is set to, or ``""`` where nothing will be lost."""
    workers, pool = (int(value) if value.isdigit() else 0 for value in (os.environ.get(name, "") for name in (WORKERS, _POOL)))
    if not mlflow.get_tracking_uri().startswith("sqlite") or 0 < workers <= _MOST or pool >= _LARGE_POOL:
        return ""
    return (
        "mlflow.genai.evaluate loses rows on a SQLite tracking URI with its default number of workers: traces and assessments without "
        f"a free connection are dropped with only a warning. Set {WORKERS}=4 in the environment before evaluating, or use an "
        "MLflow server (`mlflow server`, then its http:// address as the tracking URI)."
    )


class Shared:
    """What the scorers of one config share: its judges with their limits, and what was already judged."""

    def __init__(self, config: EvalConfig, judging: JudgeArgs) -> None:
        """Make the judges ready.

        Raises:
            JudgeError: if a judge cannot be set up.
        """
        self.config = config
        self.judging = judging
        self._lock = threading.Lock()
        self._scoring: RowScoring | None = scoring(config, **judging)
        self._warned = False

    @property
    def scoring(self) -> RowScoring:
        """The criteria, made ready again in a process that got them from another one."""
        with self._lock:
            if self._scoring is None:
                self._scoring = scoring(self.config, **self.judging)
            return self._scoring

    def warn(self, *, stacklevel: int) -> None:
        """Warn once if rows will be lost."""
        message = "" if self._warned else sqlite_warning()
        if message:
            self._warned = True
            warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)

    def to_json(self) -> Json:
        """Return config and judging as JSON values.

        Raises:
            UsageError: if the judge is an object, which no JSON text can hold.
        """
        judge = self.judging.get("judge")
        panel = judge if isinstance(judge, list | tuple) else [judge or ""]
        if not all(isinstance(one, str) for one in panel):
            raise UsageError(f"a scorer whose judge is a {type(judge).__name__} cannot be stored: use a model's name as its judge")
        stored: Json = {"config": self.config.to_json()}
        for name, value in self.judging.items():
            if value is not None and name != "judge_hosts":
                stored[name] = str(value) if isinstance(value, Path) else value
                if is_dataclass(value) and not isinstance(value, type):
                    stored[name] = asdict(value)
        return stored

    def __getstate__(self) -> Json:
        return {"config": self.config, "judging": self.judging}

    def __setstate__(self, state: Json) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _scoring=None, _warned=False)

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: the copy of a scorer asks the same judges within the same limits."""
        return self


class _RowScorer(Scorer):  # type: ignore[misc]  # MLflow is not typed
    """A scorer that keeps expectations which hold nothing out of MLflow.

    `mlflow.genai.evaluate` stores the expectations of a row after its scores. ``None`` is an error there. A number that JSON lacks costs the
    table of results, and `EvaluationResult.passed` of no table is true.
    """

    def run(
        self,
        *,
        inputs: Any = None,
        outputs: Any = None,
        expectations: Any = None,
        trace: Any = None,
        session: Any = None,
    ) -> Any:
        """Score a row for MLflow, and take out of it what holds nothing: this is the only place where MLflow shows it before it stores it."""
        if isinstance(expectations, dict):
            for name, value in list(expectations.items()):
                if is_missing(value) or is_infinite(value):
                    expectations.pop(name, None)
        return super().run(
            inputs=inputs,
            outputs=outputs,
            expectations=expectations,
            trace=trace,
            session=session,
        )


class CriterionScorer(_RowScorer):
    """One criterion as a scorer."""

    criterion: str
    """Its name in the config, which MLflow might not take as that of an assessment."""
    settings: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Its settings, as in a config."""
    timeout: int | float | None = 0
    """No limit: judges have their own per request, per outage and by budget. A scorer that MLflow gives up on would go on
    working, and paying, in the background, and under a provider's rate limit any row may have to wait for its turn."""
    _shared: Shared | None = PrivateAttr(default=None)

    def _feedback(self, read: Callable[[], Row]) -> Feedback | None:
        """Return the score of a row with its reasons, or, where there is none, an error: never a zero in its place."""
        shared, secrets = self.shared, secrets_of()
        shared.warn(stacklevel=3)
        try:
            row = read()
        except AdkEvalError as error:  # the row does not say what the criterion could judge
            message = storable_text(str(error), secrets)
            metadata = {"status": status_of(Errored(message))}
            return feedback_of(Assessed(name=assessment_name(self.criterion), code="ERROR", error=message, metadata=metadata))
        if not shared.scoring.concerns(row.case, self.criterion):
            return None
        result = shared.scoring.result(row, self.criterion)
        overall = result.overall
        reason = explained(result) if isinstance(overall, Scored) else reason_of(overall)
        cells = ((cell_at(result, index), votes) for index, votes in sorted(votes_by_turn(result.votes).items()))
        items = [item for cell, votes in cells if cell is not None for item in item_results(cell, votes)]
        outcome = (result.score, status_of(overall), storable_text(reason, secrets))
        return feedback_of(assessment_of(result, outcome, result.votes, items, secrets))

    def sharing(self, shared: Shared) -> Self:
        """Return itself, with what it shares with the other scorers of its config."""
        self._shared = shared
        return self

    @property
    def shared(self) -> Shared:
        """What it shares with the other scorers of its config."""
        if self._shared is None:
            raise UsageError(f"{type(self).__name__} cannot be created directly: use scorers.from_config or scorers.{self.criterion}")
        return self._shared

    @property
    def pass_if(self) -> Callable[[Any], bool]:
        """Whether a value reaches the threshold; the strictest one, where cases have thresholds of their own."""
        config = self.shared.config
        thresholds = [settings.threshold for settings in config.by_criterion[self.criterion]]
        higher = config.greater_is_better(self.criterion)
        return partial(_reaches, threshold=max(thresholds) if higher else min(thresholds), greater_is_better=higher)

    @property
    def kind(self) -> ScorerKind:
        """What MLflow may do with it: as much as with a decorated function, which is what it is stored as."""
        return ScorerKind.DECORATOR

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return the scorer as MLflow stores it: as the source of a function that makes it again and calls it.

        Raises:
            UsageError: if its judge cannot be named.
        """
        given, of_sessions = json.dumps(self.shared.to_json(), ensure_ascii=False), self.is_session_level_scorer
        names = ("session", "expectations") if of_sessions else ("inputs", "outputs", "expectations", "trace")
        arguments = ", ".join(f"{name}={name}" for name in names)
        call = f"stored({self.criterion!r}, {given!r}, session_level={of_sessions})"
        return asdict(
            SerializedScorer(
                name=self.name,
                description=self.description,
                aggregations=[one for one in self.aggregations or () if isinstance(one, str)] or None,
                is_session_level_scorer=of_sessions,
                timeout=self.timeout,
                call_source=f"from mlflow_adk_eval.scorers import stored\n\nreturn {call}.run({arguments})",
                call_signature="(*, session, expectations=None)"
                if of_sessions
                else "(*, inputs=None, outputs=None, expectations=None, trace=None)",
                original_func_name=self.criterion if self.criterion.isidentifier() else "criterion",
            )
        )

    def _check_has_source_code(self) -> None:
        """Pass the check with which MLflow 3.18 refuses functions whose source cannot be read: `model_dump` writes one."""


class RowScorer(CriterionScorer):
    """One criterion, asked of each row."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - MLflow passes the arguments that are named
        self, *, inputs: Any = None, outputs: Any = None, expectations: dict[str, Any] | None = None, trace: Trace | None = None
    ) -> Feedback | None:
        """Return what the criterion makes of a row; ``None`` where the config does not ask for it in this case."""
        return self._feedback(lambda: traced_row(inputs, outputs, expectations, trace))


class SessionScorer(CriterionScorer):
    """One criterion, asked of each session: of the traces that are the turns of one conversation."""

    _settled: bool = PrivateAttr(default=False)
    """Whether it scored a session, or said that it did not."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - MLflow passes the arguments that are named
        self, *, session: list[Trace], expectations: dict[str, Any] | None = None
    ) -> Feedback | None:
        """Return what the criterion makes of a session."""
        self._settled = True
        return self._feedback(lambda: row_of_session(session, expectations))

    @property
    def is_session_level_scorer(self) -> bool:
        """Whether MLflow calls it with sessions."""
        return True

    @property
    def pass_if(self) -> Callable[[Any], bool]:
        """Whether a value reaches the threshold. MLflow asks for it when all is scored, and takes no score at all for a pass.

        Raises:
            UsageError: if no session was scored.
        """
        if not self._settled:
            raise UsageError(
                f"{self.name} has scored no session: no trace had a session id (trace metadata mlflow.trace.session); "
                "leave out session_level=True to score each row by itself"
            )
        return super().pass_if


class ExpectationScorer(_RowScorer):
    """The companion of an expectation: it scores nothing, and accepts whatever is expected.

    MLflow's `EvaluationResult.passed` takes every expectation for a score, and one that is neither true nor "yes" for a failure.
    """

    timeout: int | float | None = 0

    def __call__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - MLflow passes the arguments that are named
        """Score nothing."""

    @property
    def pass_if(self) -> Callable[[Any], bool]:
        """Accept any value."""
        return _anything


def _anything(_: Any) -> bool:
    return True


def _reaches(value: Any, *, threshold: float, greater_is_better: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return reaches(float(value), threshold, greater_is_better=greater_is_better)


def scorers_of(config: EvalConfig, judging: JudgeArgs, *, session_level: bool = False) -> list[Scorer]:
    """Return a scorer for each criterion of a config, in its order.

    Raises:
        JudgeError: if a judge cannot be set up.
    """
    shared = Shared(config, judging)
    shared.warn(stacklevel=4)
    scorers: list[Scorer] = []
    for name, (settings, *_) in config.by_criterion.items():
        kind = SessionScorer if session_level else RowScorer
        scorer = kind(name=assessment_name(name), criterion=name, settings=settings.model_dump(mode="json", exclude_none=True))
        scorers.append(scorer.sharing(shared))
    return scorers


@cache
def stored(criterion: str, given: str, *, session_level: bool = False) -> Scorer:
    """Return the scorer that a stored one stands for: the same one for each row.

    Args:
        criterion: its name in the config.
        given: config and judging, as JSON text.
        session_level: whether it is called with sessions.
    """
    loaded: Json = json.loads(given)
    options = loaded.pop("judge_options", None)
    loaded.pop("judge_hosts", None)  # whoever may write a scorer cannot allow its endpoints
    config = parse_config(loaded.pop("config"), f"the stored scorer {criterion}", stored=True)
    judging = cast("JudgeArgs", loaded | ({"judge_options": JudgeOptions(**options)} if options else {}))
    scorers = scorers_of(config, judging, session_level=session_level)
    return next(one for one in scorers if isinstance(one, CriterionScorer) and one.criterion == criterion)
