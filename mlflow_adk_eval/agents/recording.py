"""What an agent did, as somebody recorded it: an eval set, ADK's result file or a dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.agents.base import Played
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import Content, EvalCase, EvalSet, EvalSetResult, Invocation, Part, parse_eval_set, stem_of
from mlflow_adk_eval.evalset.models import Json, Model
from mlflow_adk_eval.evalset.parse import parse, read_text
from mlflow_adk_eval.evalset.result import parse_result

_INVOCATIONS = TypeAdapter(tuple[Invocation, ...])


class _RecordedCase(Model):
    """One case of a plain list of recordings."""

    eval_id: str
    invocations: tuple[Invocation, ...]


_RECORDED_CASES = TypeAdapter(tuple[_RecordedCase, ...])

_EVAL_SET_KEYS = (b'"eval_cases"', b'"evalCases"')
_RESULT_KEYS = (b'"eval_case_results"', b'"evalCaseResults"')

Recorded = str | Path | EvalSet | EvalSetResult | Mapping[str, Sequence[Invocation | Json]]


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded conversations, by eval id and run."""

    runs: Mapping[str, tuple[Played, ...]]
    name: str = "recording"

    @property
    def num_runs(self) -> int:
        """How often each case was recorded, at the most."""
        return max((len(played) for played in self.runs.values()), default=1)

    async def play(self, case: EvalCase, run_index: int) -> Played:
        """Return the recorded conversation."""
        return self.recall(case, run_index)

    def recall(self, case: EvalCase, run_index: int) -> Played:
        """Return the recorded conversation, or the error that there is none."""
        runs = self.runs.get(case.eval_id, ())
        if run_index < len(runs):
            return runs[run_index]
        wanted = f"run {run_index + 1} of case" if runs else "case"
        return Played(actual=(), error=f"the recording does not hold {wanted} {case.eval_id!r}")


def load_recording(recorded: Recorded) -> Recording:
    """Return what was recorded in an eval set, a result file of ADK, or a dict of invocations by eval id.

    Raises:
        EvalSetError: with every problem of the recording.
        UsageError: if it is nothing of the kind.
    """
    match recorded:
        case str() | Path():
            return _from_text(read_text(Path(recorded)), str(recorded), stem_of(Path(recorded)))
        case EvalSet():
            return _from_eval_set(recorded)
        case EvalSetResult():
            return _from_result(recorded)
        case Mapping():
            return Recording({eval_id: (Played(actual=_invocations(eval_id, turns)),) for eval_id, turns in recorded.items()})
        case _:
            msg = f"a recording is an eval set, a result of ADK, a path of either or a dict of invocations by eval id, not {shown(recorded)}"
            raise UsageError(msg)


def _from_text(text: bytes, source: str, stem: str) -> Recording:
    start = text.lstrip()[:1]
    if start == b'"' or (start == b"{" and any(key in text for key in _RESULT_KEYS) and not any(key in text for key in _EVAL_SET_KEYS)):
        return _from_result(parse_result(text, source))
    if start == b"[" and b'"invocations"' in text[:10_000]:
        cases = parse(_RECORDED_CASES, text, source)
        return _by_id((case.eval_id, Played(actual=case.invocations)) for case in cases)
    return _from_eval_set(parse_eval_set(text, source, stem=stem))


def _from_eval_set(eval_set: EvalSet) -> Recording:
    return _by_id(
        (case.eval_id, Played(actual=case.conversation or (), session_state=case.final_session_state or None)) for case in eval_set.eval_cases
    )


def _from_result(result: EvalSetResult) -> Recording:
    return _by_id(
        (case.eval_id, Played(actual=case.actual, session_state=(case.session_details or {}).get("state")))
        for case in result.eval_case_results
    )


def _by_id(recorded: Iterator[tuple[str, Played]]) -> Recording:
    runs: dict[str, list[Played]] = {}
    for eval_id, played in recorded:
        runs.setdefault(eval_id, []).append(played)
    return Recording({eval_id: tuple(played) for eval_id, played in runs.items()})


def _invocations(eval_id: str, turns: Any) -> tuple[Invocation, ...]:
    source = f"recording of case {eval_id!r}"
    if isinstance(turns, str | Mapping) or not isinstance(turns, Sequence):
        raise EvalSetError(source, [Problem("$", shown(turns), "a list of invocations")])
    return tuple(turn if isinstance(turn, Invocation) else invocation_of(turn, f"{source}, turn {index + 1}") for index, turn in enumerate(turns))


def invocation_of(answer: Any, source: str, *, user: Content | None = None) -> Invocation:
    """Return what an agent answered to a turn as an invocation: a text, an invocation, or one as a dict.

    Args:
        answer: the answer; in a dict the user's message may be left out, and the final response may be a text.
        source: what errors call it.
        user: the user's message.

    Raises:
        EvalSetError: with every problem of the answer.
    """
    content = user or Content(role="user", parts=())
    match answer:
        case Invocation():
            return answer
        case str():
            return Invocation(user_content=content, final_response=Content(role="model", parts=(Part(text=answer),)))
        case None:
            return Invocation(user_content=content)
        case Mapping():
            given = dict(answer)
            if not {"user_content", "userContent"} & set(given):
                given["user_content"] = content
            for key in ("final_response", "finalResponse"):
                if isinstance(given.get(key), str):
                    given[key] = Content(role="model", parts=(Part(text=given[key]),))
            return parse(TypeAdapter(Invocation), given, source)
        case _:
            raise EvalSetError(source, [Problem("$", shown(answer), "a text, an Invocation or a dict of one")])
