"""Audits of aliases in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mlflow_adk_eval.gating.promotion.audit import AliasAudit
from mlflow_adk_eval.gating.promotion.target import named


def audit_view(found: Sequence[AliasAudit]) -> RenderableType:
    """Return what was found about each alias, and a line that sums it up."""
    if not found:
        return Text("No alias was ever promoted by the gate.", style="yellow")
    bad = sum(not each.valid for each in found)
    sums = f"{len(found)} alias{'es' if len(found) != 1 else ''} audited, " + (f"{bad} not valid" if bad else "all valid")
    return Group(*(line for each in found for line in _lines(each)), Text(sums, style="bold red" if bad else "bold green"))


def _lines(each: AliasAudit) -> Iterator[Text]:
    mark = ("VALID  ", "bold green") if each.valid else ("INVALID", "bold red")
    yield Text.assemble(mark, f"  {each.alias} of {each.model}: {named(each.version)}")
    if each.set_by:
        yield Text(f"  - set by {each.set_by} at {each.set_at} ({each.kind})")
    yield from (Text(f"  - {reason}") for reason in each.reasons)
    yield from (Text(f"  - note: {note}", style="yellow") for note in each.notes)
    if each.restored is not None:
        yield Text(f"  - restored: it is at version {each.restored} now", style="bold")
