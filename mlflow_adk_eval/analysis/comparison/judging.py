"""What the judges of a run took, as far as its votes tell."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_adk_eval.analysis.comparison.side import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCost:
    """The accounts of a run's judges. Requests that failed leave no vote, so they are not among these."""

    answers: int
    """Those that were paid for in this run."""
    reused: int
    """Votes that were paid for earlier."""
    tokens: int
    """Input and output together, as far as the judges said."""
    votes: int
    """On every rubric and sentence, the reused ones included."""
    models: tuple[str, ...]


def judge_cost(side: Side) -> JudgeCost:
    """Return what the judges of a run took. An answer on several items is one, and its tokens stand with the first."""
    votes = [vote for found in side.votes.values() for vote in found]
    paid = [vote for vote in votes if not vote.reused]
    answers = {(vote.eval_id, vote.run_index, vote.invocation_index, vote.criterion, vote.vote_index) for vote in paid}
    counted = sum(vote.input_tokens is not None for vote in paid)
    return JudgeCost(
        answers=max(len(answers), counted),
        reused=len(votes) - len(paid),
        tokens=sum((vote.input_tokens or 0) + (vote.output_tokens or 0) for vote in paid),
        votes=len(votes),
        models=tuple(sorted({vote.model for vote in votes})),
    )
