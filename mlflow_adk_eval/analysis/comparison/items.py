"""What judges held of the single items of a cell, the rubrics or sentences, as far as a run has kept it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlflow_adk_eval.analysis.comparison.side import Side
from mlflow_adk_eval.config.criteria import CriterionSettings, HallucinationsSettings, RubricSettings
from mlflow_adk_eval.criteria.rubrics import RUBRIC_TYPES, rubrics_of_conversation, rubrics_of_turn, turns_of
from mlflow_adk_eval.results.findings import votes_by_turn
from mlflow_adk_eval.results.report import Vote

_GOOD = frozenset({"yes", "valid", "supported", "not_applicable"})
_KNOWN = _GOOD | {"no", "invalid", "unsupported", "contradictory", "disputed"}
_SENTENCE = re.compile(r"^- [✓✗] (?P<id>\S+(?: \d+)? #\d+) \([^()]*\) (?P<text>“.*?”):", re.MULTILINE)
"""A line of the reason that ``hallucinations_v1`` gives, which quotes the sentence that votes know by its number only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What the votes on one item came to."""

    id: str
    """Empty where the cell is about one thing."""
    text: str
    """The rubric or the sentence; empty where it is not known."""
    verdict: str
    """The label that won."""
    good: bool | None
    """Whether that speaks for the agent; ``None`` where labels are grades."""
    tally: str
    """Such as ``yes 3, no 2``."""
    explanation: str
    """What was said first on the side that won."""


def items_of(side: Side, eval_id: str, run_index: int, turn: int, criterion: str, reason: str) -> dict[str, Item]:
    """Return the items of a cell by their ids, in the order of the votes; none where no vote has a verdict.

    Args:
        side: the run.
        eval_id: the case.
        run_index: which of its runs.
        turn: the index of the turn.
        criterion: the criterion.
        reason: what the run says of the cell.
    """
    votes = votes_by_turn(vote for vote in side.votes.get((eval_id, run_index), ()) if vote.criterion == criterion).get(turn, [])
    cast: dict[str, list[Vote]] = {}
    for vote in votes:
        if vote.verdict is not None:
            cast.setdefault(vote.rubric_id or "", []).append(vote)
    texts = _texts(side, eval_id, turn, criterion, reason)
    return {name: _item(name, texts.get(name, ""), found) for name, found in cast.items()}


def _item(name: str, text: str, votes: Sequence[Vote]) -> Item:
    """Return what votes come to, where a tie speaks against the agent, as it does when a ballot is counted."""
    labels = Counter(vote.verdict or "" for vote in votes)
    binary = _KNOWN.issuperset(labels)
    good = sum(count for label, count in labels.items() if label in _GOOD) * 2 > labels.total() if binary else None
    side = [vote for vote in votes if good is None or (vote.verdict in _GOOD) == good]
    verdict = Counter(vote.verdict or "" for vote in side).most_common(1)[0][0]
    tally = ", ".join(f"{label} {count}" for label, count in labels.most_common())
    spokesman = next(vote for vote in side if vote.verdict == verdict)
    return Item(id=name, text=text, verdict=verdict, good=good, tally=tally, explanation=spokesman.explanation)


def _texts(side: Side, eval_id: str, turn: int, criterion: str, reason: str) -> Mapping[str, str]:
    """Return what the items of a cell are about, as far as it is known."""
    settings = side.settings(eval_id, criterion)
    if isinstance(settings, HallucinationsSettings):
        return {found["id"]: found["text"] for found in _SENTENCE.finditer(reason)}
    return dict(_rubrics(side, eval_id, turn, criterion, settings))


def _rubrics(side: Side, eval_id: str, turn: int, criterion: str, settings: CriterionSettings | None) -> Iterator[tuple[str, str]]:
    case = next((case for case in side.eval_set.eval_cases if case.eval_id == eval_id), None)
    if not isinstance(settings, RubricSettings) or case is None or criterion not in RUBRIC_TYPES:
        return
    written = case.conversation or ()
    yield from rubrics_of_conversation(criterion, settings, case, turns_of(written)).texts.items()
    yield from rubrics_of_turn(criterion, settings, case, *written[turn : turn + 1]).texts.items()
