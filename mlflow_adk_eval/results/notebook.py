"""What a notebook shows of a report or a comparison: a summary, which stays small however large the run was, without style or script.

A notebook is often committed, and whoever opens it did not choose the texts in it. So those are escaped and cut, hide secrets, and are no formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials
from mlflow_adk_eval.text import plain

MOST = 10
"""As many findings are shown."""


def summary_html(title: str, rows: Sequence[Sequence[str]], lines: Iterable[str], more: int) -> str:
    """Return a title, a table whose first row has the headings, and a list, at the end of which stands how many `more` lines there are."""
    secrets = secrets_of()

    def html(tag: str, texts: Iterable[str]) -> str:
        return "".join(f"<{tag}>{plain(redacted(without_credentials(text), secrets))}</{tag}>" for text in texts)

    table = "".join(f"<tr>{html('td' if number else 'th', row)}</tr>" for number, row in enumerate(rows))
    listed = html("li", [*lines, *([f"and {more:,} more"] if more > 0 else [])])
    return f'<div dir="auto" class="tex2jax_ignore mathjax_ignore">{html("b", [title])}<table>{table}</table><ul>{listed}</ul></div>'
