"""Write the tables of criteria in README.md and docs/criteria.md, which derive from the specs; ``--check`` only says whether they are true."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from mlflow_adk_eval.config.criteria import CriterionSettings, JudgedSettings
from mlflow_adk_eval.config.rapid_catalogue import PREFIX
from mlflow_adk_eval.config.spec import CRITERIA, CriterionSpec

ROOT = Path(__file__).parent.parent
_BEGIN, _END = "<!-- criteria: written by docs/criteria_table.py -->\n\n", "\n<!-- end of criteria -->"
_BY = {"computed": "computed", "judge": "a judge", "vertex or judge": "Vertex AI or a judge", "judge or vertex": "a judge or Vertex AI"}
_ORDER = list(_BY)
_OWN = "| your own, by import path | whatever you return; the threshold is enforced here | copies of the data, so that one metric cannot change what another sees |"
_RAPID = (
    "| `rapid_eval_…`: the 21 metrics of the [Rapid Eval API](docs/rapid_eval.md) | the API's scales | explanation, confidence and votes |"
)


def specs() -> list[CriterionSpec]:
    """Return every criterion: ADK's and ours before those of the Rapid Eval API, and what is computed before what is judged."""
    return sorted(CRITERIA.values(), key=lambda spec: (spec.name.startswith(PREFIX), _ORDER.index(spec.decided_by), spec.informative))


def readme() -> Iterable[str]:
    """Yield the lines of README's table."""
    yield from ("| criterion | score | what is kept beside it |", "|---|---|---|")
    yield from (f"| `{spec.name}` | {spec.about} | {spec.kept} |" for spec in specs() if not spec.name.startswith(PREFIX))
    yield from (_OWN, _RAPID)


def reference() -> Iterable[str]:
    """Yield the lines of the full table."""
    yield from ("| criterion | score | range | one score per | decided by | needs | settings of its own |", "|---|---|---|---|---|---|---|")
    for spec in specs():
        common = (JudgedSettings if spec.judged else CriterionSettings).model_fields
        own = ", ".join(f"`{name}`" for name in spec.settings.model_fields if name not in common)
        needs = ", ".join(need.replace("_", " ") for need in spec.needs)
        yield f"| `{spec.name}` | {spec.about} | {_range(spec)} | {spec.scope} | {_BY[spec.decided_by]} | {needs} | {own} |"


def _range(spec: CriterionSpec) -> str:
    low, high = spec.bounds
    return f"{low:g} and more" if math.isinf(high) else f"{low:g} to {high:g}"


TABLES: dict[str, Callable[[], Iterable[str]]] = {"README.md": readme, "docs/criteria.md": reference}


def written(page: str) -> str:
    """Return a page as it should be."""
    text = (ROOT / page).read_text("utf-8")
    head, _, rest = text.partition(_BEGIN)
    table = "\n".join(TABLES[page]())
    return f"{head}{_BEGIN}{table}\n{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    stale = [page for page in TABLES if written(page) != (ROOT / page).read_text("utf-8")]
    if "--check" in sys.argv and stale:
        sys.exit(f"{', '.join(stale)}: the table of criteria is not what the specs say; run python docs/criteria_table.py")
    for changed in stale:
        (ROOT / changed).write_text(written(changed), "utf-8")
