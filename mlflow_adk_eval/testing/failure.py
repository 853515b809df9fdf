"""Why a case did not pass, to be read like a diff: what was expected and what the agent did, turn by turn."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.criteria.alignment import align, call_differences
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings, ignored_by, made_calls
from mlflow_adk_eval.evalset.conversation import TurnPair
from mlflow_adk_eval.evalset.models import FunctionCall
from mlflow_adk_eval.report.findings import why_of
from mlflow_adk_eval.report.sentences import format_threshold
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, reason_of
from mlflow_adk_eval.results.table import cell_at
from mlflow_adk_eval.text import format_number, unlike

Tone = Literal["", "head", "expected", "actual", "missed", "unknown", "dim"]
"""What a piece of text is, for whoever gives it a colour."""
Span = tuple[str, Tone]
Line = tuple[Span, ...]

_MAX_TEXT = 4000
_LARGEST_TABLE = 1_000_000
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What would move the cursor, change colours or the direction of writing, or cannot be written at all."""


def line(text: str, tone: Tone = "") -> Line:
    """Return a line of one tone."""
    return ((text, tone),)


def text_of(lines: Iterable[Line]) -> str:
    """Return lines as plain text."""
    return "\n".join("".join(text for text, _ in spans) for spans in lines)


def seen(text: str) -> str:
    r"""Return `text` as a terminal may print it: without control characters, and cut where it is very long.

    >>> seen("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), shown.replace("\r\n", "\n"))


def indented(spans: Sequence[Span], indent: int, prefix: str = "") -> list[Line]:
    """Return spans that may hold several lines as lines, each `indent` deep; `prefix` begins the first of them."""
    lines: list[list[Span]] = [[(" " * indent + prefix, "")]]
    for text, tone in spans:
        for number, piece in enumerate(text.split("\n")):
            if number:
                lines.append([(" " * (indent + len(prefix)), "")])
            lines[-1].append((piece, tone))
    return [tuple(spans) for spans in lines]


def word_diff(expected: str, actual: str) -> list[Span]:
    """Return two texts as one, what only one of them has in brackets, as ``git diff --word-diff`` does.

    >>> "".join(text for text, _ in word_diff("The lamp is off.", "The lamp is now on."))
    'The lamp is [-off-]{+now on+}.'
    """
    want, got = _WORDS.findall(expected), _WORDS.findall(actual)
    if len(want) * len(got) > _LARGEST_TABLE:
        return [(f"[-{expected}-]", "expected"), ("\n", ""), (f"{{+{actual}+}}", "actual")]
    blocks: list[tuple[str, str]] = []  # pieces that are the same or differ; two that differ are one if only a space is between them
    for _, i, j, k, m in difflib.SequenceMatcher(None, want, got, autojunk=False).get_opcodes():
        block = "".join(want[i:j]), "".join(got[k:m])
        if len(blocks) > 1 and block[0] != block[1] and blocks[-1][0] == blocks[-1][1] and blocks[-1][0].isspace():
            space, before = blocks.pop(), blocks.pop()
            block = before[0] + space[0] + block[0], before[1] + space[1] + block[1]
        blocks.append(block)
    spans: list[Span] = []
    for old, new in blocks:
        if old == new:
            spans.append((old, ""))
            continue
        if old:
            spans.append((f"[-{old}-]", "expected"))
        if new:
            spans.append((f"{{+{new}+}}", "actual"))
        expected_characters, actual_characters = unlike(old, new)
        if expected_characters and not (old + new).isascii():
            spans.append((f"[expected{expected_characters}, got{actual_characters}]", "dim"))
    return spans


_MAX_TURNS = 10
_MAX_CALLS = 50
_MAX_DIFFERENCES = 10
_MAX_VOTES = 40
_TRAJECTORY = "tool_trajectory_avg_score"
_TONES: Mapping[bool | None, Tone] = {True: "dim", False: "missed", None: ""}


def kind_of(case: CaseResult) -> str:
    """Return in a word or two what became of a case: a missed threshold is one thing, missing evidence another.

    >>> from mlflow_adk_eval.evalset.conversation import Conversation
    >>> conversation = Conversation(actual=(), error="no such model")
    >>> kind_of(CaseResult(eval_id="a", run_index=0, conversation=conversation, expected=None, results=()))
    'agent failed'
    """
    return "agent failed" if case.verdict == "undecided" and case.error else case.verdict


def summary_of(case: CaseResult) -> str:
    """Return why a case did not pass, on one line."""
    kind = kind_of(case)
    said = " ".join(seen(why_of(case)).split())
    return said if kind == "failed" else f"{kind}: {said}"


def failure_of(case: CaseResult, config: EvalConfig) -> list[Line]:
    """Return why a case did not pass, and each turn in which something was missed, with both sides."""
    open_results = [result for result in case.results if result.decides and not result.passed]
    lines = list(_heads(case, open_results))
    for result in case.results:
        if result.passed and result.threshold is not None:
            threshold = format_threshold(result.threshold, greater_is_better=result.greater_is_better)
            lines.append(line(f"{result.criterion} is {format_number(result.score)} ({threshold})", "dim"))
    turns = [
        index
        for index in range(_turns(case))
        if any((cell := cell_at(result, index)) is not None and result.reached(cell) is not True for result in open_results)
    ]
    for index in turns[:_MAX_TURNS]:
        lines += [line(""), *_turn(case, index, config), *_findings(open_results, index, case.error)]
    if len(turns) > _MAX_TURNS:
        lines += [line(""), line(f"and {len(turns) - _MAX_TURNS} more turns", "dim")]
    return lines


def conversation_lines(case: CaseResult, config: EvalConfig) -> list[Line]:
    """Return every turn of a case with every score, whether or not it passed."""
    run = f" (run {case.run_index + 1})" if case.run_index else ""
    lines = [line(f"{kind_of(case)}: {seen(case.eval_id)}{run}", "head")]
    for index in range(_turns(case)):
        lines += [*_turn(case, index, config), *_findings(case.results, index, case.error)]
    return lines


def votes_of(case: CaseResult) -> list[Line]:
    """Return what judges said about the criteria that a case missed, vote by vote."""
    votes = [vote for result in case.results if result.decides and not result.passed for vote in result.votes]
    lines: list[Line] = []
    for vote in votes[:_MAX_VOTES]:
        item = f" on {vote.rubric_id}" if vote.rubric_id else ""
        said = vote.explanation if vote.verdict is not None else f"no verdict: {vote.error}"
        head = f"{vote.criterion}, turn {vote.invocation_index + 1}{item}, vote {vote.vote_index + 1} by {vote.model}: "
        lines += indented([(seen(f"{head}{f'{vote.verdict}. ' if vote.verdict else ''}{said}"), "")], 0)
    return [*lines, line(f"and {len(votes) - _MAX_VOTES} more votes")] if len(votes) > _MAX_VOTES else lines


def _turns(case: CaseResult) -> int:
    return max(case.turns, *(len(result.per_invocation) for result in case.results), 0) if case.results else case.turns


def _heads(case: CaseResult, open_results: Sequence[CriterionResult]) -> Iterator[Line]:
    if case.error:
        yield from indented([(seen(case.error), "unknown")], 0, "the agent did not finish: ")
    elif case.ending and case.ending.reason != "goal":
        yield from indented([(seen(str(case.ending)), "unknown")], 0, "the simulated conversation ended: ")
    if not case.error and kind_of(case) == "undecided":
        yield line("undecided: no threshold was missed, but something was not evaluated", "unknown")
    if not any(result.decides for result in case.results):
        yield line("no criterion decides this case", "unknown")
    for result in open_results:
        if isinstance(result.overall, Scored):
            yield line(result.missed, "missed")
        else:
            yield from indented([(seen(_short(result.overall, case.error)), "unknown")], 0, f"{result.criterion} was NOT EVALUATED: ")


def _short(outcome: Outcome, agent_error: str) -> str:
    """Return why there is no score, without an error of the agent that has been told before."""
    reason = reason_of(outcome)
    return "the agent did not finish" if agent_error and agent_error in reason else reason


def _turn(case: CaseResult, index: int, config: EvalConfig) -> Iterator[Line]:
    turn = TurnPair(case, index)
    yield from indented([(f"turn {index + 1}", "head"), ("  user: ", "dim"), (seen(turn.user_text), "")], 0)
    for injection in case.injections:
        if injection.invocation_index == index:
            yield line(f"  tool environment: {seen(injection.tool)}: {injection}", "unknown")
    if turn.actual is None:
        yield line("  the agent did not reach this turn", "missed")
        return
    if turn.expected is not None:
        settings = config.criteria_of(case.eval_id).get(_TRAJECTORY)
        if not isinstance(settings, ToolTrajectorySettings):
            settings = ToolTrajectorySettings(threshold=1.0)
        yield from _calls(made_calls(turn.actual, case.conversation.inner_calls, index, settings), turn.expected_calls, settings)
    elif turn.calls:
        yield line("  tool calls", "dim")
        yield from (line(f"      {_call(call)}") for call in turn.calls[:_MAX_CALLS])
    for error in turn.errors:
        yield from indented([(seen(error), "unknown")], 2, "model: ")
    want, got = seen(turn.expected_answer), seen(turn.answer)
    if not got:
        yield line("  the agent did not answer", "missed")
    if not want and got:
        yield from indented([("answered: ", "dim"), (got, "")], 2)
    elif not want:
        return
    elif want == got:
        yield from indented([("answered as expected: ", "dim"), (got, "")], 2)
    else:
        yield line("  answer ([-expected-], {+the agent's+})", "dim")
        yield from indented(word_diff(want, got), 6)


def _calls(actual: Sequence[FunctionCall], expected: Sequence[FunctionCall], settings: ToolTrajectorySettings) -> Iterator[Line]:
    if not actual and not expected:
        return
    steps = align(actual, expected, ordered=settings.match_type != "ANY_ORDER", ignore_args=settings.ignore_args)
    if all(step.kind == "same" for step in steps):
        yield line(f"  tool calls: as expected ({len(steps)})", "dim")
        return
    yield line("  tool calls (- expected, + the agent's)", "dim")
    for step in steps[:_MAX_CALLS]:
        if step.kind == "same" and step.actual:
            yield line(f"      {_call(step.actual)}")
            continue
        if step.expected:
            yield line(f"    - {_call(step.expected)}", "expected")
        if step.actual and step.kind == "unexpected" and settings.match_type != "EXACT":
            yield line(f"    ~ {_call(step.actual)}  ({ignored_by(settings)})", "unknown")
        elif step.actual:
            yield line(f"    + {_call(step.actual)}", "actual")
        if step.expected and step.actual:
            for found in islice(call_differences(step.actual, step.expected), _MAX_DIFFERENCES):
                yield line(seen(f"    ?   {found.path}: expected {found.expected}, got {found.actual}"), "dim")
    if len(steps) > _MAX_CALLS:
        yield line(f"      and {len(steps) - _MAX_CALLS} more", "dim")


def _call(call: FunctionCall) -> str:
    return seen(f"{call.name}({json.dumps(call.args or {}, ensure_ascii=False, default=str)})").replace("\n", " ")


def _findings(results: Sequence[CriterionResult], index: int, agent_error: str) -> Iterator[Line]:
    """Yield what each criterion says about a turn."""
    for result in results:
        cell = cell_at(result, index)
        if cell is None or not result.decides:
            continue
        if isinstance(cell, Scored):
            # Of tool calls the first sentence, since the calls themselves are shown.
            rationale = cell.rationale.partition("\n\n")[0] if result.criterion == _TRAJECTORY else cell.rationale
            why = f": {seen(rationale)}".replace("\n\n", "\n") if rationale else ""
            yield from indented([(f"{result.criterion} {cell.score:.4g}", _TONES[result.reached(cell)]), (why, "")], 2)
        else:
            yield from indented([(f"{result.criterion} NOT EVALUATED: {seen(_short(cell, agent_error))}", "unknown")], 2)
