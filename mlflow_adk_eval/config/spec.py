"""What a criterion declares of itself, and the registry in which every other part of the package looks it up.

Each criterion stands in one file of `mlflow_adk_eval.criteria`: its settings, its code, and at the end ``SPECS = (CriterionSpec(...),)``.
Reading a config, planning, the metric and scorer functions, the gate's checks and the documentation's tables all derive from the spec, so a
new criterion is one new file. The registry finds it: it imports the modules of that folder and takes their ``SPECS``. It does so by name, as
one loads plug-ins, because `config` is the lower layer and must not import `criteria`. Where the folder says in which module a criterion is
(``MODULES``, which is written from the specs), looking one up imports only that; whatever is asked of all of them imports all.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mlflow_adk_eval.config.criteria import CriterionSettings, JudgedSettings, VertexSettings

Need = Literal["reference", "expected_response", "expected_calls", "calls", "scenario", "rubrics", "session_state", "baseline"]
"""What a criterion cannot judge without.

``reference``: a written conversation in the eval case. ``expected_response``, ``expected_calls``: what that conversation says or calls, which a
row of a table may leave out. ``calls``: which tools the agent called. ``scenario``: the plan of a simulated user. ``rubrics``: at least one
rubric of the criterion's type. ``session_state``: the expected final state. ``baseline``: what another agent did in the same case.
"""

_PLUGINS = "mlflow_adk_eval.criteria"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CriterionSpec:
    """All that is known of a criterion outside of its own file.

    >>> spec = CRITERIA["response_match_score"]
    >>> spec.bounds, spec.greater_is_better, spec.scope, spec.needs, spec.decided_by
    ((0.0, 1.0), True, 'turn', ('reference', 'expected_response'), 'computed')
    """

    name: str
    """What configs, MLflow's metrics and the gate's policies call it."""
    about: str
    """What the score is, as a clause: ``1 for each turn whose tool calls match the expected ones, else 0``."""
    kept: str
    """What is kept beside the score, as a clause."""
    make: Callable[..., Any]
    """Makes the criterion of its settings, or, if a judge decides, of its settings and a `VoteCollector`."""
    by_service: Callable[..., Any] | None = None
    """Makes it of its settings and a `VertexService`, where Vertex AI's evaluation service can decide."""
    settings: type[CriterionSettings] = CriterionSettings
    """What a config may say of it."""
    bounds: tuple[float, float] = (0.0, 1.0)
    """The least and the greatest score. A threshold outside is refused, and a logged score outside is no evidence."""
    greater_is_better: bool = True
    scope: Literal["turn", "case"] = "turn"
    """Whether each turn has a score, or only the case as a whole, which is recorded at the last turn."""
    needs: tuple[Need, ...] = ()
    rubric_type: str = ""
    """The ``type`` of the rubrics in eval sets that it judges by."""
    prompts: tuple[str, ...] = ()
    """The prompt files that its judge is given."""
    judged_from_turn: int = 0
    """The first turn, counted from 0, whose score takes a judge."""
    unasked: Mapping[str, float] = field(default_factory=dict[str, float])
    """The reasons with which it gives a score that takes no judge although it is not the worst, each with that score."""
    informative: bool = False
    """Whether it is measured on every run, as information; given a threshold, it decides."""

    def __post_init__(self) -> None:
        """Refuse a spec that contradicts itself."""
        if not self.bounds[0] < self.bounds[1]:
            raise ValueError(f"criterion {self.name!r}: no score can lie in {self.bounds}")
        if self.by_service is not None and not issubclass(self.settings, VertexSettings):
            raise ValueError(f"criterion {self.name!r}: settings without a backend cannot choose the service")
        if ("rubrics" in self.needs) != bool(self.rubric_type):
            raise ValueError(f"criterion {self.name!r}: rubrics and their type go together")

    @property
    def judged(self) -> bool:
        """Whether a model decides."""
        return issubclass(self.settings, JudgedSettings)

    @property
    def decided_by(self) -> str:
        """Who decides: ``computed``, ``judge``, or both backends, the default one first."""
        if self.by_service is None:
            return "judge" if self.judged else "computed"
        backends = ("vertex", "judge")
        return " or ".join(backends if self.settings.model_fields["backend"].default == "vertex" else reversed(backends))

    @property
    def quantity(self) -> bool:
        """Whether the score is a measured quantity, such as seconds, rather than a share or a grade."""
        return math.isinf(self.bounds[1])

    @property
    def worst(self) -> float:
        """The worst score, which an answer that says nothing gets without a judge."""
        return self.bounds[0] if self.greater_is_better else self.bounds[1]


class CriterionRegistry(Mapping[str, CriterionSpec]):
    """Every criterion by name. A mapping that fills itself as far as it is read."""

    def __init__(self, package: str) -> None:
        """Name the package whose modules may have ``SPECS``."""
        self._package = package
        self._specs: dict[str, CriterionSpec] = {}
        self._complete = False
        self._lock = threading.RLock()

    def register(self, spec: CriterionSpec) -> CriterionSpec:
        """Add a criterion, and return its spec.

        Raises:
            ValueError: if there is one of that name.
        """
        self._load()
        if spec.name in self._specs:
            raise ValueError(f"there is a criterion {spec.name!r} already")
        self._specs[spec.name] = spec
        return spec

    def unregister(self, name: str) -> None:
        """Remove a criterion.

        Raises:
            KeyError: if there is none of that name.
        """
        self._load()
        del self._specs[name]

    @property
    def informative(self) -> tuple[str, ...]:
        """The names of the criteria that are measured on every run."""
        if self._complete:
            return tuple(name for name, spec in self._specs.items() if spec.informative)
        return tuple(spec.name for module in self._listed("INFORMATIVE") for spec in self._taken(module) if spec.informative)

    def is_quantity(self, name: str) -> bool:
        """Whether a criterion's score is a measured quantity; not so where there is no such criterion."""
        return name in self and self[name].quantity

    def __getitem__(self, name: str) -> CriterionSpec:
        # Without the lock, since a criterion is looked up for every case.
        return self._specs[name] if self._complete or name in self._specs else self._found(name)

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(tuple(self._specs))

    def __len__(self) -> int:
        self._load()
        return len(self._specs)

    def _found(self, name: str) -> CriterionSpec:
        """Return the spec of a criterion from its own module where that is listed, else from all of them."""
        module = self._listed("MODULES").get(name)
        if module is not None:
            self._specs.update({spec.name: spec for spec in self._taken(module)})
        if name not in self._specs:
            self._load()
        return self._specs[name]

    def _listed(self, table: str) -> Any:
        return getattr(importlib.import_module(self._package), table, {})

    def _taken(self, module: str) -> tuple[CriterionSpec, ...]:
        return getattr(importlib.import_module(f"{self._package}.{module}"), "SPECS", ())

    def _load(self) -> None:
        if not self._complete:
            self._fill()

    def _fill(self) -> None:
        """Take the specs of every module of the package, by the modules' names, so that lists of criteria never change their order."""
        with self._lock:
            if self._complete:
                return
            package = importlib.import_module(self._package)
            modules = sorted(one.name for one in pkgutil.iter_modules(package.__path__))
            found = {spec.name: spec for module in modules for spec in self._taken(module)}
            self._specs = found | self._specs
            self._complete = True


CRITERIA = CriterionRegistry(_PLUGINS)


MEASURES = ("case_pass_rate", "flaky_rate", "judge_flip_rate", "cost", "judge_tokens", "judge_calls")
"""What policies measure of a run as a whole, `pass^k` apart."""
_QUANTITIES = frozenset({"cost", "judge_tokens", "judge_calls"})
MEASURES_OF_A_CRITERION = ("pass_rate", "flip_rate")
"""What they measure of a criterion besides its score, as ``<criterion>/<name>``."""
PASS_HAT = re.compile(r"pass(?:\^|_hat_)([1-9]\d{0,5})")


def is_measure(name: str) -> bool:
    """Whether a policy's rule on `name` is about something else than a criterion of that name.

    >>> is_measure("pass^3"), is_measure("my_metric/pass_rate"), is_measure("my_metric")
    (True, True, False)
    """
    return name in MEASURES or PASS_HAT.fullmatch(name) is not None or (name.rpartition("/")[2] in MEASURES_OF_A_CRITERION and "/" in name)


def range_of(measure: str) -> tuple[float, float] | None:
    """Return the least and the greatest value of a measure; ``None`` for a custom metric, whose range the config of the run says.

    >>> range_of("case_pass_rate"), range_of("judge_calls"), range_of("my_metric/pass_rate"), range_of("my_metric")
    ((0.0, 1.0), (0.0, inf), (0.0, 1.0), None)
    """
    if is_measure(measure):
        return 0.0, math.inf if measure in _QUANTITIES else 1.0
    return CRITERIA[measure].bounds if measure in CRITERIA else None
