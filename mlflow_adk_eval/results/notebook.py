"""What a notebook shows of a report or a comparison: a summary, which stays small however large the run was, without style or script.

A notebook is often committed, and whoever opens it did not choose the texts in it. So those are escaped and cut, hide secrets, and are no formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials
from mlflow_adk_eval.text import format_number, plain

MOST = 10
"""As many findings are shown."""


def summary_html(title: str, columns: Sequence[str], items: Iterable[object], lines: Iterable[str], more: int) -> str:
    """Return a title, a table of attributes of items, and a list, at the end of which stands how many `more` lines there are."""
    secrets = secrets_of()

    def html(tag: str, values: Iterable[str | float | None]) -> str:
        texts = (one if isinstance(one, str) else f"{one:,}" if isinstance(one, int) else format_number(one) for one in values)
        return "".join(f"<{tag}>{plain(redacted(without_credentials(text), secrets))}</{tag}>" for text in texts)

    rows = "".join(f"<tr>{html('td', (getattr(one, name) for name in columns))}</tr>" for one in items)
    listed = html("li", [*lines, *([f"and {more:,} more"] if more > 0 else [])])
    body = f"{html('b', [title])}<table><tr>{html('th', columns)}</tr>{rows}</table><ul>{listed}</ul>"
    return f'<div dir="auto" class="tex2jax_ignore mathjax_ignore">{body}</div>'
