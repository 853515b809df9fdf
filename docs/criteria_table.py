"""Write what derives from the specs of criteria; ``--check`` only says whether it is true.

That is the tables in docs/reference/criteria.md, and in ``criteria/__init__.py`` the module of each criterion, so that one can be had without
importing all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from mlflow_adk_eval import criteria
from mlflow_adk_eval.config.rapid_catalogue import PREFIX
from mlflow_adk_eval.config.spec import CRITERIA, CriterionSettings, CriterionSpec, JudgedSettings

ROOT = Path(__file__).parent.parent
_BEGIN, _END = "<!-- criteria: written by docs/criteria_table.py -->\n\n", "\n<!-- end of criteria -->"
_BEGIN_CODE, _END_CODE = "# criteria: written by docs/criteria_table.py\n", "# end of criteria\n"
_BY = {"computed": "computed", "judge": "a judge", "vertex or judge": "Vertex AI or a judge", "judge or vertex": "a judge or Vertex AI"}
_ORDER = list(_BY)
_OWN = "| your own, by import path | whatever you return; the threshold is enforced here | copies of the data, so that one metric cannot change what another sees |"


def specs() -> list[CriterionSpec]:
    """Return every criterion: ADK's and ours before those of the Rapid Eval API, and what is computed before what is judged."""
    return sorted(CRITERIA.values(), key=lambda spec: (spec.origin == "rapid_eval", _ORDER.index(spec.decided_by), spec.informative))


def reference() -> Iterable[str]:
    """Yield the lines of both tables: what is scored and kept, and what that takes."""
    yield from ("| criterion | score | what is kept beside it |", "|---|---|---|")
    yield from (f"| `{spec.name}` | {spec.about} | {spec.kept} |" for spec in specs())
    yield from (_OWN, "")
    yield from ("| criterion | range | one score per | decided by | needs | settings of its own |", "|---|---|---|---|---|---|")
    for spec in specs():
        common = (JudgedSettings if spec.judged else CriterionSettings).model_fields
        own = ", ".join(f"`{name}`" for name in spec.settings.model_fields if name not in common)
        needs = ", ".join(need.replace("_", " ") for need in spec.needs)
        yield f"| `{spec.name}` | {_range(spec)} | {spec.scope} | {_BY[spec.decided_by]} | {needs} | {own} |"


def _range(spec: CriterionSpec) -> str:
    low, high = spec.bounds
    return f"{low:g} and more" if math.isinf(high) else f"{low:g} to {high:g}"


def modules() -> Iterable[str]:
    """Yield the code that says in which module each criterion is, and which modules have those that are measured on every run."""
    of = {spec.name: name for name in sorted(one.name for one in iter_modules(criteria.__path__)) for spec in _specs_of(name)}
    yield "MODULES = {"
    # The criteria of the Rapid Eval API are those of its catalogue, which has their names.
    yield from (f'    "{name}": "{module}",' for name, module in of.items() if not name.startswith(PREFIX))
    yield '    **{metric.criterion: "rapid_criteria" for metric in RAPID_METRICS.values()},'
    yield "}"
    informative = "".join(f'"{module}", ' for module in dict.fromkeys(of[name] for name, spec in CRITERIA.items() if spec.informative))
    yield f"INFORMATIVE = ({informative.rstrip(' ')})"


def _specs_of(module: str) -> tuple[CriterionSpec, ...]:
    return getattr(import_module(f"{criteria.__name__}.{module}"), "SPECS", ())


WRITTEN: dict[str, tuple[Callable[[], Iterable[str]], str, str]] = {
    "docs/reference/criteria.md": (reference, _BEGIN, _END),
    "mlflow_adk_eval/criteria/__init__.py": (modules, _BEGIN_CODE, _END_CODE),
}
"""By file: its lines, and what stands before and after them."""


def written(page: str) -> str:
    """Return a file as it should be."""
    lines, begin, end = WRITTEN[page]
    text = (ROOT / page).read_text("utf-8")
    head, _, rest = text.partition(begin)
    return "".join((head, begin, *(f"{line}\n" for line in lines()), end, rest.partition(end)[2]))


if __name__ == "__main__":
    stale = [page for page in WRITTEN if written(page) != (ROOT / page).read_text("utf-8")]
    if "--check" in sys.argv and stale:
        sys.exit(f"{', '.join(stale)}: not what the specs of criteria say; run python docs/criteria_table.py")
    for changed in stale:
        (ROOT / changed).write_text(written(changed), "utf-8")
