"""A criterion's result as one text, for places that have a single cell for it."""

from __future__ import annotations

from mlflow_adk_eval.results.report import CriterionResult, Outcome, Scored, reason_of

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
    return "\n\n".join(_of_turn(number, cell) for number, cell in cells)


def _of_turn(number: int, cell: Outcome) -> str:
    if not isinstance(cell, Scored):
        return f"**turn {number}**: {NOT_EVALUATED}: {reason_of(cell)}"
    return f"**turn {number}: {cell.score:.4g}** {cell.rationale}".rstrip()
