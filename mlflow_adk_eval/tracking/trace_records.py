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
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.evalset.conversation import by_call
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Vote
from mlflow_adk_eval.results.table import Table, cell_at, columns_of
from mlflow_adk_eval.results.votes import ItemResult, item_results, votes_by_turn
from mlflow_adk_eval.tracking.storable import Secrets, assessment_name, fitted, storable, storable_text

PASSED = "adk_passed"
"""The assessment that sums up a row. MLflow shows the first three by the alphabet, so this one comes first."""

_NOT_EVALUATED, _ERROR, _JUDGE_ERROR = "NOT_EVALUATED", "ERROR", "JUDGE_ERROR"
_CODES = {"skipped": _NOT_EVALUATED, "errored": _ERROR}
_PREVIEW = 1000
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

    @property
    def response_preview(self) -> str:
        """What MLflow shows of the answer; where there is none, the reason."""
        return (self.response or self.error)[:_PREVIEW]


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
    cases = {(case.eval_id, case.run_index): (case, _cast(case)) for case in results}
    for row in table.records():
        case, cast = cases[row["eval_id"], row["run_index"]]
        verdict = row["verdict"] or ("undecided" if case.error else None)
        if not only_unpassed or verdict in {"failed", "undecided"}:
            feedback = tuple(_feedback(case, cast, row, verdict, secrets))
            yield _record(eval_set_id, case, row, feedback, secrets)


def _cast(case: CaseResult) -> Cast:
    return {result.criterion: votes_by_turn(result.votes) for result in case.results if result.votes}


def request_id(eval_set_id: str, eval_id: str, invocation_index: int, run_index: int) -> str:
    """Return the key by which MLflow pairs rows of two runs."""
    return hashlib.sha256(f"{eval_set_id}/{eval_id}/{invocation_index}/{run_index}".encode("utf-8", "replace")).hexdigest()


def _record(eval_set_id: str, case: CaseResult, row: Mapping[str, Any], feedback: tuple[Assessed, ...], secrets: Secrets) -> TraceRecord:
    index = row["invocation_index"]
    actual = _at(case.actual, index)
    expected = _at(case.expected or (), index)
    # What the eval set says is the same in every run; what a recording says may differ.
    asked = storable(expected.user_text, secrets) if expected and expected.user_text else row["user"]
    ending = case.ending if index == max(len(case.actual), 1) - 1 else None
    return TraceRecord(
        request_id=request_id(eval_set_id, case.eval_id, index, case.run_index),
        eval_id=case.eval_id,
        run_index=case.run_index,
        invocation_index=index,
        request_preview=f"[{_short(row['key'])}] {asked}"[:_PREVIEW],
        user=row["user"],
        response=row["actual_response"] or "",
        error=row["agent_error"] or "",
        duration_ms=round(1000 * (actual.duration or 0)) if actual else 0,
        calls=tuple(_calls(actual, row["actual_tool_calls"] or (), case, index, secrets)),
        feedback=feedback,
        expectations=_expectations(expected, row),
        models=tuple(_models(actual, secrets)) if actual else (),
        ending=ending.reason if ending else "",
        ending_detail=storable_text(ending.detail, secrets) if ending else "",
        injected=tuple(storable_text(f"{one.tool}: {one}", secrets) for one in case.injections if one.invocation_index == index),
    )


def _at(turns: Sequence[Invocation], index: int) -> Invocation | None:
    return turns[index] if index < len(turns) else None


def _short(key: str) -> str:
    """Return a row's key, short enough to leave room for the user's text and still unique."""
    return key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}… {hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _calls(
    actual: Invocation | None, calls: Sequence[Mapping[str, Any]], case: CaseResult, index: int, secrets: Secrets
) -> Iterator[ToolCall]:
    answered = actual.answered_calls() if actual else []
    done = by_call(case.injections, index, [call.name or "" for call, _ in answered]) if case.injections else [None] * len(answered)
    for (call, answer), row, injection in zip(answered, calls, done, strict=True):
        response = storable(answer.response, secrets) if answer else None
        name, done_to_it = storable_text(call.name or "tool", secrets), storable_text(str(injection or ""), secrets)
        yield ToolCall(name=name, args=row["args"], response=response, injected=done_to_it)


def _models(actual: Invocation, secrets: Secrets) -> Iterator[ModelCall]:
    tool_calls = 0
    for event in actual.events:
        if event.usage_metadata is not None or event.model_version is not None:
            counted = tokens_of([event.usage_metadata]) if event.usage_metadata else {}
            tokens = {name: int(counted.get(name, 0)) for name in TOKENS} if counted else None
            yield ModelCall(model=storable_text(event.model_version or "model", secrets), after=tool_calls, tokens=tokens)
        tool_calls += sum(part.function_call is not None for part in (event.content.parts if event.content else None) or ())


def _feedback(case: CaseResult, cast: Cast, row: Mapping[str, Any], verdict: str | None, secrets: Secrets) -> Iterator[Assessed]:
    """Yield the verdict and each deciding cell. Mere information would hide them: MLflow shows only three by itself."""
    if verdict == "undecided":
        yield Assessed(name=PASSED, code=_NOT_EVALUATED, error="not every criterion was evaluated")
    elif verdict is not None:
        yield Assessed(name=PASSED, value=verdict == "passed")
    for result in case.results:
        if row[columns_of(result.criterion)[1]] is not None and result.decides:
            votes = cast.get(result.criterion, {}).get(row["invocation_index"], ())
            yield _assessed(result, row, votes, secrets)


def _assessed(result: CriterionResult, row: Mapping[str, Any], votes: Sequence[Vote], secrets: Secrets) -> Assessed:
    """Return a cell's score, or why there is none, with what its judges said."""
    cell = cell_at(result, row["invocation_index"])
    score, status, reason = (row[column] for column in columns_of(result.criterion))
    return assessment_of(result, (score, status, reason), votes, item_results(cell, votes) if cell else (), secrets)


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
    judged = voting_metadata(findings, secrets) if votes else {}
    found = Assessed(
        name=assessment_name(result.criterion),
        metadata={"status": status, "threshold": repr(result.threshold), **judged},
        judge=judge_of(votes, secrets),
    )
    if status == "scored" and score is not None:
        return replace(found, value=float(score), rationale=reason or "")
    return replace(found, code=_JUDGE_ERROR if votes else _CODES[status], error=reason or "")


def _expectations(expected: Invocation | None, row: Mapping[str, Any]) -> dict[str, Any]:
    if expected is None:
        return {}
    response = {"expected_response": row["expected_response"]} if expected.final_response else {}
    return response | {"expected_tool_calls": row["expected_tool_calls"]}


def judge_of(votes: Sequence[Vote], secrets: Secrets) -> str:
    """Return the model that gave votes, or, where none could be had, was asked for them; empty without votes."""
    models = {vote.model for vote in votes if vote.verdict is not None} or {vote.model for vote in votes}
    return fitted(storable_text(", ".join(sorted(models)), secrets), _LONGEST_SOURCE)


def voting_metadata(findings: Sequence[ItemResult], secrets: Secrets) -> dict[str, str]:
    """Return what an assessment says of the votes behind it: how many there were, for what, and what the losing side said."""
    several = len(findings) > 1
    dissent = [_labelled(finding, _cut(said, secrets), several=several) for finding in findings for said in finding.dissent]
    errors = dict.fromkeys(error for finding in findings for error in finding.errors)
    found = {
        "votes": str(sum(sum(finding.tally.values()) for finding in findings)),
        "tally": "; ".join(_labelled(finding, finding.counts or "none", several=several) for finding in findings),
        "split": str(any(finding.split for finding in findings)).lower(),
        "dissent": "\n".join(dissent),
        "vote_errors": "\n".join(_cut(error, secrets) for error in errors),
    }
    return {name: fitted(storable_text(text, secrets), _LONGEST_METADATA) for name, text in found.items() if text}


def _labelled(finding: ItemResult, text: str, *, several: bool) -> str:
    return f"{finding.id}: {text}" if several and finding.id else text


def _cut(text: str, secrets: Secrets) -> str:
    """Return the beginning of a text; half a secret would not be recognised, so it is cut last."""
    clean = storable_text(text, secrets)
    return clean if len(clean) <= _LONGEST_SAYING else f"{clean[: _LONGEST_SAYING - 1]}…"
