"""Writes the table of docs/reference/observations.md: ``python docs/observations.py``, or ``--check`` to compare.

Each cell comes from two conversations that the source really has, see `tests/observation_kit.py`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mlflow_adk_eval.evalset.observation import NAMES, OBSERVATIONS  # noqa: E402 - the checkout comes first
from tests.observation_kit import SOURCES, knowledge  # noqa: E402 - as above

PAGE = ROOT / "docs" / "reference" / "observations.md"
BEGIN, END = "<!-- observations: written by docs/observations.py -->\n", "<!-- end of observations -->\n"
MARKS = {"always": "yes", "if it happened": "if any", "never": "–"}


def lines() -> Iterator[str]:
    """Yield the table, a line for each source."""
    yield f"| Source | {' | '.join(f'`{what}`' for what in OBSERVATIONS)} |"
    yield f"|---|{':-:|' * len(OBSERVATIONS)}"
    for name, source in SOURCES.items():
        known = knowledge(source)
        yield f"| {name} | {' | '.join(MARKS[known[what]] for what in OBSERVATIONS)} |"


def written() -> str:
    """Return the page with the table of today."""
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    names = "".join(f"| `{what}` | {NAMES[what]} |\n" for what in OBSERVATIONS)
    table = "".join(f"{line}\n" for line in lines())
    return f"{head}{BEGIN}\n{table}\n| Name | Meaning |\n|---|---|\n{names}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Write the page, or say whether it is up to date."""
    warnings.simplefilter("ignore")
    text = written()
    if "--check" not in sys.argv:
        PAGE.write_text(text, "utf-8")
        return 0
    if text != PAGE.read_text("utf-8"):
        sys.stderr.write("docs/reference/observations.md is not up to date: run `make generated`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
