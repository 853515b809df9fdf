"""What a ledger holds, and what may be forgotten of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.ledger.database import RUN_TEXTS, SqliteDatabase

if TYPE_CHECKING:
    from mlflow_adk_eval.ledger.postgres import PostgresDatabase

_BUDGET = "budget: "
_TOKENS = ("input_tokens", "output_tokens")


class Pruned(NamedTuple):
    """How much was forgotten, or would be."""

    answers: int
    conversations: int
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswers:
    """The answers of one model."""

    model: str
    """As the model calls itself; empty where its answers do not say."""
    answers: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBudget:
    """What processes have spent together under one name."""

    name: str
    calls: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerContents:
    """What a ledger holds."""

    name: str
    """The file, or the URL without user and password."""
    bytes: int
    """Of all answers and conversations."""
    answers: int
    conversations: int
    runs: int
    asking: int
    """Questions that some process is asking now."""
    oldest: datetime | None
    """When the oldest answer or conversation was kept; ``None``: there is none."""
    newest: datetime | None
    models: tuple[ModelAnswers, ...]
    """By the tokens they took, the most first."""
    budgets: tuple[SharedBudget, ...]


def contents(database: SqliteDatabase | PostgresDatabase) -> LedgerContents:
    """Return what there is. All answers are read, some at a time."""
    sql = database.sql

    def found(query: str) -> Sequence[Any]:
        return next(iter(database.rows(query, {})), (0, 0, None, None))  # nothing where there is no file

    answers, size, oldest, newest = found(sql.answers_held)
    conversations, more, first, last = found(sql.conversations_held)
    times = [datetime.fromtimestamp(time, UTC) for time in (oldest, first, newest, last) if time is not None]
    counts: dict[str, Counter[str]] = {}
    for _, answer in _answers(database):
        tokens = {name: answer.get(name) or 0 for name in _TOKENS}
        counts.setdefault(str(answer.get("model") or ""), Counter()).update(answers=1, **tokens)
    models = [ModelAnswers(model=model, **{name: count[name] for name in ("answers", *_TOKENS)}) for model, count in counts.items()]
    spent = {name.removeprefix(_BUDGET): json.loads(body) for name, body in database.rows(sql.accounts, {}) if name.startswith(_BUDGET)}
    return LedgerContents(
        name=database.name,
        bytes=int(size or 0) + int(more or 0),
        answers=answers,
        conversations=conversations,
        runs=found(sql.count_runs)[0],
        asking=found(sql.count_claims)[0],
        oldest=min(times, default=None),
        newest=max(times, default=None),
        models=tuple(sorted(models, key=lambda one: (-one.input_tokens - one.output_tokens, one.model))),
        budgets=tuple(SharedBudget(name=name, calls=calls, tokens=tokens) for name, (calls, tokens) in spent.items()),
    )


def _answers(database: SqliteDatabase | PostgresDatabase) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each answer with its address."""
    after = ""
    while rows := database.rows(database.sql.answers_after, {"after": after, "page": 1_000}):
        for address, body in rows:
            try:
                answer = json.loads(bytes(body).decode("utf-8", "replace"))
            except ValueError:
                answer = {}
            yield address, answer if isinstance(answer, dict) else {}
        after = rows[-1][0]


def prune(
    database: SqliteDatabase | PostgresDatabase, *, older_than_days: float | None, model: str | None, run_id: str | None, dry_run: bool
) -> Pruned:
    """Forget answers and conversations; see `CallCache.prune`."""
    if older_than_days is None and model is None and run_id is None:
        raise UsageError("name what to prune: an age, a model or a run")
    if model is not None and run_id is not None:
        raise UsageError("--model and --run cannot be combined: runs share answers, so answers cannot be pruned by run")
    sql = database.sql
    if not database.rows(sql.count_runs, {}):  # there is no file
        return Pruned(0, 0, 0)
    values: dict[str, Any] = {"age_s": (older_than_days or 0) * 86_400.0}
    if model is not None:
        count = 0
        for address in [address for address, answer in _answers(database) if answer.get("model") == model]:
            chosen = {**values, "address": address}
            count += database.rows(sql.count_old_answer, chosen)[0][0] if dry_run else database.change(sql.prune_answer, chosen)
        pruned = Pruned(count, 0, 0)
    else:
        counts: Sequence[str | None] = sql.count_old
        deletions: Sequence[str] = sql.prune
        if run_id is not None:
            run = database.rows(sql.run, {"run_id": run_id})
            if not run:
                raise UsageError(f"{database.name}: the ledger has no run {run_id}")
            values["lineage"] = run[0][RUN_TEXTS.index("lineage")]
            counts, deletions = sql.count_old_of_run, sql.prune_run
        pruned = Pruned(*(0 if count is None else database.rows(count, values)[0][0] for count in counts))
        if not dry_run:
            database.change_all(deletions, values)
    if not dry_run:
        database.shrink()
    return pruned
