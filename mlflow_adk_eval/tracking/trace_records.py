"""From a report to what its traces will hold, one record per invocation, as plain data.

A record has the turn itself (texts, tool calls, calls of models) and one assessment for each deciding cell, with the reasons of its judges.
`traces` writes records as MLflow's entities. Scorers make their assessments by `assessment_of`, too, so that a reason, an error and the votes
look the same in MLflow wherever a criterion was asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlflow_adk_eval.criteria.efficiency import tokens_of
from mlflow_adk_eval.evalset.conversation import TurnPair, by_call
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Vote
from mlflow_adk_eval.results.table import ItemResult, Table, cell_at, columns_of, item_results, votes_by_turn
from mlflow_adk_eval.text import beginning
from mlflow_adk_eval.tracking.storable import Secrets, assessment_name, fitted, storable, storable_text

PASSED = "adk_passed"
"""The assessment that sums up a row. MLflow shows the first three by the alphabet, so this one comes first."""

_NOT_EVALUATED = "NOT_EVALUATED"
PREVIEW = 1000
"""As many characters as MLflow keeps of a preview."""
_LONGEST_KEY = 200
_LONGEST_SOURCE = 250
"""As long as MLflow keeps the source of an assessment."""
_LONGEST_SAYING, _LONGEST_METADATA = 300, 2000
TOKENS = ("input_tokens", "output_tokens", "total_tokens")

Cast = Mapping[str, Mapping[int, Sequence[Vote]]]
"""The votes of a case by criterion and turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessed:
    """One assessment: a value, or the reason why there is none."""

    name: str
    value: Any = None
    code: str = ""
    """What kind of error stands in place of the value; empty where there is a value."""
    error: str = ""
    rationale: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    judge: str = ""
    """The model that decided; empty where no model was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool with its answer."""

    name: str
    args: Any
    response: Any = None
    injected: str = ""
    """What the tool environment did to it; empty where nothing is known of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of a model, as far as it was recorded."""

    model: str
    after: int
    """How many calls of tools came before it."""
    tokens: Mapping[str, int] | None = None
    """By the names in `TOKENS`, which are MLflow's; ``None`` where nobody counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """All that the trace of one invocation holds."""

    request_id: str
    """Pairs this row with the same row of other runs of the same eval set."""
    eval_id: str
    run_index: int
    invocation_index: int
    request_preview: str
    """What MLflow shows and joins runs by: unique within a run, the same in each."""
    user: str
    response: str
    error: str
    """Why the agent did not get here; empty where it did."""
    duration_ms: int
    calls: tuple[ToolCall, ...]
    feedback: tuple[Assessed, ...]
    expectations: Mapping[str, Any]
    models: tuple[ModelCall, ...] = ()
    ending: str = ""
    """Why the simulated user ended the conversation with this turn; empty in all others."""
    ending_detail: str = ""
    injected: tuple[str, ...] = ()
    """The tool calls that the tool environment answered or delayed, and how."""
    unknown: tuple[Json, ...] = ()
    """What the source of the conversation does not know of the turn, each with why."""


def records_of(
    eval_set_id: str, results: Iterable[CaseResult], table: Table, secrets: Secrets, *, only_unpassed: bool = False
) -> Iterator[TraceRecord]:
    """Yield what each row's trace will hold.

    Args:
        eval_set_id: the eval set.
        results: the case runs that the table is about.
        table: their table, fit to be stored.
        secrets: what must not be written down.
        only_unpassed: whether to leave out the rows that passed.
    """
    for case, row, feedback in assessed_rows(results, table, secrets, only_unpassed=only_unpassed):
        index = row["invocation_index"]
        turn = TurnPair(case, index)
        actual, expected = turn.actual, turn.expected
        expectations: dict[str, Any] = {}
        if expected:
            expectations = {"expected_response": row["expected_response"]} if expected.final_response else {}
            expectations["expected_tool_calls"] = row["expected_tool_calls"]
        # What the eval set says is the same in every run; what a recording says may differ.
        user = storable(expected.user_text, secrets) if expected and expected.user_text else row["user"]
        ending = case.ending if index == max(len(case.actual), 1) - 1 else None
        tools, models, injections = list[ToolCall](), list[ModelCall](), case.injections
        if actual:
            # The calls of tools, with what the tool environment did to them.
            answered = actual.answered_calls()
            done = by_call(injections, index, [call.name or "" for call, _ in answered]) if injections else [None] * len(answered)
            tools = [
                ToolCall(
                    name=storable_text(call.name or "tool", secrets),
                    args=called["args"],
                    response=storable(answer.response, secrets) if answer else None,
                    injected=storable_text(str(injection or ""), secrets),
                )
                for (call, answer), called, injection in zip(answered, row["actual_tool_calls"] or (), done, strict=True)
            ]
            # The calls of models, and how many calls of tools came before each.
            before = 0
            for event in actual.events:
                if event.usage_metadata is not None or event.model_version is not None:
                    counted = tokens_of([event.usage_metadata]) if event.usage_metadata else {}
                    tokens = {name: int(counted.get(name, 0)) for name in TOKENS} if counted else None
                    models.append(ModelCall(model=storable_text(event.model_version or "model", secrets), after=before, tokens=tokens))
                before += sum(part.function_call is not None for part in (event.content.parts if event.content else None) or ())
        # By which MLflow pairs rows of two runs.
        identity = f"{eval_set_id}/{case.eval_id}/{index}/{case.run_index}"
        yield TraceRecord(
            request_id=hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest(),
            eval_id=case.eval_id,
            run_index=case.run_index,
            invocation_index=index,
            request_preview=f"[{fitted(row['key'], _LONGEST_KEY)}] {user}"[:PREVIEW],
            user=row["user"],
            response=row["actual_response"] or "",
            error=row["agent_error"] or "",
            duration_ms=round(1000 * (actual.duration or 0)) if actual else 0,
            calls=tuple(tools),
            feedback=feedback,
            expectations=expectations,
            models=tuple(models),
            ending=ending.reason if ending else "",
            ending_detail=storable_text(ending.detail, secrets) if ending else "",
            injected=tuple(storable_text(f"{one.tool}: {one}", secrets) for one in injections if one.invocation_index == index),
            unknown=tuple(
                {"what": entry.what, "why": storable_text(entry.why, secrets)}
                for entry in case.conversation.unknown
                if entry.turn in (None, index)
            ),
        )


def assessed_rows(
    results: Iterable[CaseResult], table: Table, secrets: Secrets, *, only_unpassed: bool = False
) -> Iterator[tuple[CaseResult, Mapping[str, Any], tuple[Assessed, ...]]]:
    """Yield each row with its case run and its assessments; the arguments are those of `records_of`."""
    cases: dict[tuple[str, int], tuple[CaseResult, Cast]] = {}
    for case in results:
        votes = {result.criterion: votes_by_turn(result.votes) for result in case.results if result.votes}
        cases[case.eval_id, case.run_index] = case, votes
    for row in table.records():
        case, cast = cases[row["eval_id"], row["run_index"]]
        verdict = row["verdict"] or ("undecided" if case.error else None)
        if not only_unpassed or verdict in {"failed", "undecided"}:
            yield case, row, tuple(_feedback(case, cast, row, verdict, secrets))


def _feedback(case: CaseResult, cast: Cast, row: Mapping[str, Any], verdict: str | None, secrets: Secrets) -> Iterator[Assessed]:
    """Yield the verdict and each deciding cell. Mere information would hide them: MLflow shows only three by itself."""
    if verdict == "undecided":
        yield Assessed(name=PASSED, code=_NOT_EVALUATED, error="some criteria were not evaluated")
    elif verdict is not None:
        yield Assessed(name=PASSED, value=verdict == "passed")
    for result in case.results:
        score, status, reason = (row[column] for column in columns_of(result.criterion))
        if status is not None and result.decides:
            votes = cast.get(result.criterion, {}).get(row["invocation_index"], ())
            cell = cell_at(result, row["invocation_index"])
            yield assessment_of(result, (score, status, reason), votes, item_results(cell, votes) if cell else (), secrets)


def assessment_of(
    result: CriterionResult,
    outcome: tuple[float | None, str, str | None],
    votes: Sequence[Vote],
    findings: Sequence[ItemResult],
    secrets: Secrets,
) -> Assessed:
    """Return what a criterion made of a turn or a case, as MLflow is to keep it.

    Args:
        result: the criterion's.
        outcome: the score, the status and the reason.
        votes: those of judges on it.
        findings: what the votes came to.
        secrets: what must not be written down.
    """
    score, status, reason = outcome
    judge, judged = "", dict[str, str]()
    if votes:
        # The models that gave votes or, where none could be had, were asked for them.
        models = {vote.model for vote in votes if vote.verdict is not None} or {vote.model for vote in votes}
        judge = fitted(storable_text(", ".join(sorted(models)), secrets), _LONGEST_SOURCE)
        # How many votes there were, for what, and what the losing side said. Half a secret would not be recognised, so texts are cut last.
        labels = [f"{finding.id}: " if len(findings) > 1 and finding.id else "" for finding in findings]
        dissent = [(label, text) for label, finding in zip(labels, findings, strict=True) for text in finding.dissent]
        errors = dict.fromkeys(error for finding in findings for error in finding.errors)
        voting = {
            "votes": str(sum(sum(finding.tally.values()) for finding in findings)),
            "tally": "; ".join(label + (finding.counts or "none") for label, finding in zip(labels, findings, strict=True)),
            "split": str(any(finding.split for finding in findings)).lower(),
            "dissent": "\n".join(label + beginning(storable_text(text, secrets), _LONGEST_SAYING) for label, text in dissent),
            "vote_errors": "\n".join(beginning(storable_text(error, secrets), _LONGEST_SAYING) for error in errors),
        }
        judged = {name: fitted(storable_text(text, secrets), _LONGEST_METADATA) for name, text in voting.items() if text}
    metadata = {"status": status, "threshold": repr(result.threshold), **judged}
    assessed = Assessed(name=assessment_name(result.criterion), metadata=metadata, judge=judge)
    if status == "scored" and score is not None:
        return replace(assessed, value=float(score), rationale=reason or "")
    return replace(assessed, code="JUDGE_ERROR" if votes else _NOT_EVALUATED if status == "skipped" else "ERROR", error=reason or "")
