"""What judged criteria share: turns judged at the same time, answers that need no judge, and outcomes from findings."""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from mlflow_adk_eval.config.spec import CriterionSettings, JudgedSettings
from mlflow_adk_eval.criteria.criterion import CaseRun, judge_pairs, missing_turns
from mlflow_adk_eval.criteria.transcript import final_material
from mlflow_adk_eval.evalset.material import NOTHING, Material
from mlflow_adk_eval.evalset.models import OPEN, Invocation
from mlflow_adk_eval.judge.question import Question
from mlflow_adk_eval.judge.voting import CellKey, VoteCollector, VotedItem
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored, Vote, mean
from mlflow_adk_eval.runtime import gathered
from mlflow_adk_eval.text import Translation

TRIVIAL = "The final response is empty, so no judge was asked."
"""Why an answer was decided without a call."""

_NO_TURN = Errored("there is no turn to judge")


@dataclass(frozen=True, slots=True)
class Cell:
    """What a judge found in one cell."""

    outcome: Outcome
    votes: tuple[Vote, ...] = ()


def place(run: CaseRun, index: int, criterion: str) -> CellKey:
    """Return where the votes on the turn `index` of a case belong."""
    return CellKey(eval_id=run.eval_id, run_index=run.run_index, invocation_index=index, criterion=criterion)


def unfinished(run: CaseRun, index: int) -> Errored | None:
    """Return the error of a turn in which the agent failed, about which no judge needs to be asked; ``None`` for any other."""
    failed = run.unfinished and index == len(run.actual) - 1
    return Errored(f"the agent did not finish: {run.error}") if failed else None


async def judged_turns(
    run: CaseRun,
    judge: Callable[[int], Awaitable[Cell | None]],
    settings: CriterionSettings | None = None,
    *,
    in_pairs: bool = False,
) -> Judged:
    """Judge each turn of the agent by its index, all at the same time; ``None`` is a turn to which nothing applies.

    Args:
        run: the case.
        judge: judges a turn.
        settings: of the criterion, which may leave out turns of the case; ``None``: it leaves none out.
        in_pairs: whether only turns are judged that the reference has as well.
    """

    async def cell(index: int) -> Cell | None:
        if settings and not settings.scores_turn(run.case, index):
            return None
        error = unfinished(run, index)
        return Cell(error) if error else await judge(index)

    compared = 0 if OPEN in run.case.tags else min(len(run.actual), len(run.expected or ()))
    turns = compared if in_pairs else len(run.actual)
    cells = await gathered(partial(cell, index) for index in range(turns))
    found = (one.outcome if one else None for one in cells)
    outcomes = judge_pairs(run, lambda _actual, _expected: next(found)).per_invocation if in_pairs else (*found, *missing_turns(run))
    return Judged(outcomes or (_NO_TURN,), votes=tuple(vote for one in cells if one for vote in one.votes))


S_co = TypeVar("S_co", bound=JudgedSettings, covariant=True)


@dataclass(frozen=True, slots=True)
class JudgedTurns(Generic[S_co]):
    """A criterion whose judge decides each turn on its own, all at the same time; the case score is the mean of the turns."""

    settings: S_co
    collector: VoteCollector

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn that the agent had."""
        return await judged_turns(run, partial(self.turn, run), self.settings)

    @abstractmethod
    async def turn(self, run: CaseRun, index: int) -> Cell | None:
        """Judge one turn; ``None`` where nothing applies to it."""

    def answer(self, turn: Invocation) -> Material:
        """Return what the agent answered; with what it said on the way, if the settings say so."""
        return final_material(turn, include_intermediate=self.settings.include_intermediate_responses_in_final)


_BLANK_LETTERS = {"\u115f", "\u1160", "\u3164", "\uffa0", "\u2800"}
"""Characters that Unicode calls letters or symbols and that nobody sees."""
_OPENERS = (
    "thought process", "mental process", "reasoning( process)?", "chain of thought", "analysis",
    r"(let us|lets|let me|i will|ill) ([^\W\d_]+ ){1,5}?step by step", "step by step( solution)?",
    "solution", "(the )?((final|correct) )?answer( is)?",
    "解", "解答", "解析", "解説", "答案", "答え", "回答", "思考过程", "思考過程", "かいせつ", "かいとう",
    "풀이", "해설", "정답", "respuesta", "solución", "réponse", "lösung", "antwort", "resposta", "решение", "ответ",
)  # fmt: skip
_MASTER_KEYS = re.compile(rf"(?:(?:{'|'.join(_OPENERS)})(?: |\Z))+")
"""Words that open an answer and are none, yet that judges take for one; see "One Token to Fool LLM-as-a-Judge"."""
_LONGEST_KEYS = 200


def says_nothing(answer: Material, reference: Material = NOTHING) -> bool:
    """Whether an answer says nothing, as `trivial` has it. One with media that nobody was shown may say anything."""
    return not answer.unshown and trivial(answer.text, reference.text)


def trivial(text: str, reference: str = "") -> bool:
    r"""Whether an answer says nothing: empty, punctuation only, or just the opening words of an answer; never what the reference says.

    >>> trivial(" \n"), trivial(":"), trivial("**Thought process:**"), trivial("Solution"), trivial("解")
    (True, True, True, True, True)
    >>> trivial("42"), trivial("👍"), trivial("Solution: 42"), trivial("Solution", reference="solution.")
    (False, False, False, False)
    """
    given = _folded(text)
    # A letter, a digit, or a picture such as an emoji can say something.
    if not any(char not in _BLANK_LETTERS and (char.isalnum() or unicodedata.category(char) == "So") for char in given):
        return not (given and given == _folded(reference))
    words = _words(given)
    return len(words) <= _LONGEST_KEYS and bool(_MASTER_KEYS.fullmatch(words)) and words != _words(_folded(reference))


_UNFORMATTED = Translation(lambda char: "" if unicodedata.category(char) == "Cf" else char)
_UNPUNCTUATED = Translation(lambda char: char if char.isalnum() or char.isspace() else "" if char in "'’`" else " ")


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().translate(_UNFORMATTED).strip()


def _words(folded: str) -> str:
    """Return a text without punctuation, apostrophes within words included."""
    return " ".join(folded.translate(_UNPUNCTUATED).split())


def predetermined(run: CaseRun) -> Outcome | None:
    """Return what decides a case as a whole without a judge; ``None`` where nothing does."""
    if run.error:
        return Errored(f"the agent did not finish: {run.error}")
    if missing := missing_turns(run):
        return missing[-1]
    if not run.actual:
        return _NO_TURN
    return Scored(0.0, TRIVIAL) if all(says_nothing(final_material(turn)) for turn in run.actual) else None


def combined(findings: Sequence[VotedItem], noun: str) -> Outcome:
    """Return the mean of what was voted on several items; an error that names each item without a verdict.

    Args:
        findings: at least one.
        noun: what an item is, such as a rubric.
    """
    missing = [f"{noun} {finding.item.id!r}: {finding.outcome.error}" for finding in findings if isinstance(finding.outcome, Errored)]
    if missing:
        return Errored("; ".join(missing))
    lines: list[str] = []
    items: list[dict[str, Any]] = []
    for finding, outcome in ((finding, finding.outcome) for finding in findings if isinstance(finding.outcome, Scored)):
        item, verdict = finding.item, {"verdict": finding.label, "score": outcome.score, "rationale": outcome.rationale}
        head = f"- {'✓' if outcome.score >= 1 else '✗'} {' '.join((item.text or '').split())}"
        lines.append(f"{head} ({tally(finding)}): {outcome.rationale}")
        items.append({"id": item.id, "text": item.text, **verdict, **outcome.details})
    return Scored(mean(item["score"] for item in items), "\n".join(lines), {"items": items})


def single(finding: VotedItem) -> Outcome:
    """Return what the votes on the only item come to."""
    outcome = finding.outcome
    if isinstance(outcome, Errored):
        return outcome
    return Scored(outcome.score, f"{tally(finding)}: {outcome.rationale}", {"verdict": finding.label, **outcome.details})


async def ask_judge(collector: VoteCollector, question: Question, where: CellKey) -> Cell:
    """Return what the votes on the only item of a question come to."""
    voting = await collector.decide(question, where)
    return Cell(single(voting.results[0]), voting.votes)


def tally(finding: VotedItem) -> str:
    """Return a verdict with the votes for its side and against it, such as ``yes 3:2``; without a verdict, nothing."""
    if not isinstance(finding.outcome, Scored):
        return ""
    details = finding.outcome.details
    votes, against = sum(details.get("votes", {}).values()), len(details.get("dissent", ()))
    return f"{finding.label} {votes - against}:{against}"
