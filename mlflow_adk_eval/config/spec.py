"""What a criterion declares of itself, and the registry in which every other part of the package looks it up.

First the settings that criteria share, with ADK's names, defaults and spellings. What a single criterion takes besides stands beside its code, in a
subclass of `CriterionSettings`, `JudgedSettings`, `RubricSettings` or `VertexSettings`; the subclass also says who decides. A field's description is
what the criterion's function says of its keyword.

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
from operator import not_
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SerializerFunctionWrapHandler, field_validator, model_serializer
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from mlflow_adk_eval.errors import shown
from mlflow_adk_eval.evalset.models import OPEN, EvalCase, Json, Rubric, unwanted
from mlflow_adk_eval.evalset.observation import Need


class Settings(BaseModel):
    """The base of all settings: immutable, both spellings, nothing unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


LARGEST_SCORE = 1e150
"""Beyond it the sums and squares of scores would be no numbers any more."""
INTERMEDIATE = "include_intermediate_responses_in_final"
"""The setting that every criterion of ADK has, and that few read."""


class Unread(NamedTuple):
    """A setting that has a value and changes nothing."""

    path: str
    """The setting, such as ``judge_model_options.judge_model``."""
    wanted: str
    """What would make a difference."""


class CriterionSettings(Settings):
    """The settings that every criterion has."""

    lacks_by_turn: ClassVar[bool] = False
    """Whether `lack` differs between the turns of a case."""
    threshold: float = Field(allow_inf_nan=False, description="the score that a row needs to pass (a maximum where lower is better).")
    include_intermediate_responses_in_final: bool = Field(
        default=False, description="whether the agent's intermediate responses count as part of its answer."
    )

    def applies_to(self, case: EvalCase) -> bool:  # noqa: ARG002 - for subclasses that leave cases out
        """Whether the criterion is planned for a case; else the case passes or fails without it."""
        return True

    def scores_turn(self, case: EvalCase, index: int) -> bool:  # noqa: ARG002 - for subclasses that leave turns out
        """Whether a turn of a case must have a score; else the case's score is that of its other turns."""
        return True

    @property
    def more_needs(self) -> tuple[Need, ...]:
        """What the criterion cannot judge without by these settings, besides what its spec says."""
        return ()

    def lack(self, case: EvalCase, index: int) -> str:  # noqa: ARG002 - for criteria that need something of a case
        """Return what a turn of a case does not say, without which it has no score; empty where nothing is lacking."""
        return ""

    def unread(self) -> Iterator[Unread]:
        """Yield the settings that the others make meaningless."""
        yield from ()


_ONLY_WHERE_EXPECTED = "whether cases and turns that do not say what the criterion needs are left out on purpose."


class ExpectingSettings(CriterionSettings):
    """A criterion that needs something of a case, and can leave out the cases and turns that do not say it."""

    # Not written where it is off: then the config has the digest that it always had.
    only_where_expected: bool = Field(default=False, exclude_if=not_, description=_ONLY_WHERE_EXPECTED)
    """Our addition; ADK ignores it."""

    def lack(self, case: EvalCase, index: int) -> str:
        """Return what a turn of a case does not say; a whole case is asked about by its first turn."""
        raise NotImplementedError

    def applies_to(self, case: EvalCase) -> bool:
        """Leave out a case in which no turn says what the criterion needs, if the settings say so."""
        if not self.only_where_expected:
            return True
        turns = len(case.conversation or ()) if self.lacks_by_turn else 1
        return any(not self.lack(case, index) for index in range(max(turns, 1)))

    def scores_turn(self, case: EvalCase, index: int) -> bool:
        """Leave out a turn that does not say what the criterion needs, if the settings say so."""
        return not (self.only_where_expected and self.lack(case, index))


class ReferenceSettings(ExpectingSettings):
    """A criterion that compares each turn with a reference."""

    lacks_by_turn = True

    def lack(self, case: EvalCase, index: int) -> str:
        """Return why a turn has no reference; empty where it has one."""
        if case.conversation is None:
            return "a reference conversation (it is a scenario)"
        if OPEN in case.tags:
            return f"what is expected, which nobody has written (remove its tag {OPEN!r} then)"
        if index >= len(case.conversation):
            return "" if index else "a reference conversation (it has no turn)"
        return ""


def read_name(value: Any) -> Any:
    """Read the name of a choice as ADK does: in any case, with dashes or spaces."""
    return value.strip().upper().replace("-", "_").replace(" ", "_") if isinstance(value, str) else value


class JudgeModelOptions(Settings):
    """Which model judges, and how often it is asked."""

    judge_model: str = "gemini-2.5-flash"
    """Or a function, as ``module:name``. Only the caller's own config may name one: see `approve_function`."""
    judge_model_config: Json | None = None
    num_samples: int = Field(default=5, ge=1)
    parallelism_limit: int = Field(default=1, ge=1)
    _approved: bool = PrivateAttr(default=False)

    def approve_function(self) -> None:
        """Let `judge_model` name code: the caller loads this config, as opposed to one that a run in MLflow keeps."""
        if ":" in self.judge_model:  # which is not in the shared default
            from mlflow_adk_eval.runtime import OBJECT  # noqa: PLC0415 - a check of a file needs no event loop

            self._approved = OBJECT.fullmatch(self.judge_model) is not None

    @property
    def is_function(self) -> bool:
        """Whether a function judges that the caller has named."""
        return self._approved


PromptVariant = Literal["standard", "repeated", "examples", "listed"]


class JudgedSettings(CriterionSettings):
    """A criterion that a model decides."""

    judge_model_options: JudgeModelOptions = Field(
        default=JudgeModelOptions(), description="the judge's model and its number of votes: a dict, as in a config."
    )
    early_stop: bool = Field(default=True, description="whether voting stops once the remaining votes cannot change the verdict.")
    """Our addition; ADK ignores it."""
    judge_panel: tuple[str, ...] | None = Field(
        default=None,
        min_length=2,
        description="several models that vote together, instead of `judge_model`; each casts `num_samples` votes.",
    )
    """Our addition; ADK ignores it."""

    prompt: PromptVariant | None = Field(
        default=None,
        description="the prompt variant: `standard`; `repeated`, with the task repeated after the material; `examples`, with two worked examples; "
        "`listed`, with all rubrics or sentences in one block.",
    )
    """Our addition; ADK ignores it."""

    def unread(self) -> Iterator[Unread]:
        """Yield the model of a judge that votes only if there is no panel."""
        yield from super().unread()
        named = self.judge_model_options.judge_model
        if self.judge_panel and named != JudgeModelOptions().judge_model:
            yield Unread("judge_model_options.judge_model", "only one of it and judge_panel, whose models vote instead")


class RubricSettings(JudgedSettings, ExpectingSettings):
    """A criterion that a model decides by rubrics."""

    rubric_type: ClassVar[str] = ""
    """The ``type`` of the rubrics in eval sets that it judges by."""
    rubrics: tuple[Rubric, ...] = Field(default=(), description="the rubrics for every row: a list, as in a config.")

    def lack(self, case: EvalCase, index: int) -> str:  # noqa: ARG002 - a turn without a rubric has no cell anyway
        """Return that neither the settings nor a case have a rubric."""
        rubrics = list(case.rubrics or ())
        for turn in case.conversation or ():
            rubrics += turn.rubrics or ()
        own = any(rubric.type == self.rubric_type for rubric in rubrics)
        return "" if self.rubrics or own else f"a rubric of the type {self.rubric_type}"

    def scores_turn(self, case: EvalCase, index: int) -> bool:  # noqa: ARG002 - as above
        """Leave no turn out: which have no cell follows from the rubrics."""
        return True


BACKEND = "the backend: Vertex AI's evaluation service, or the judge of `judge_model_options` with our prompts."


class VertexSettings(JudgedSettings):
    """A criterion of Vertex's evaluation service, which our own judge can decide instead."""

    backend: Literal["vertex", "judge"] = Field(default="vertex", description=BACKEND)
    """Our addition; ADK ignores it."""

    @property
    def judge_decides(self) -> str:
        """What makes a judge decide, so that its settings are read."""
        return "backend: judge; Vertex AI's evaluation service does not read it"

    def unread(self) -> Iterator[Unread]:
        """Yield the settings of a judge that nobody asks."""
        yield from super().unread()
        if self.backend == "judge":
            return
        for name, default in JudgedSettings.model_fields.items():
            if name in CriterionSettings.model_fields:
                continue
            if getattr(self, name) != default.get_default(call_default_factory=True):
                yield Unread(name, self.judge_decides)


class ServiceSettings(VertexSettings):
    """A criterion that Vertex's evaluation service alone can decide."""

    @field_validator("backend")
    @classmethod
    def _service_alone(cls, backend: Literal["vertex", "judge"]) -> Literal["vertex", "judge"]:
        if backend != "vertex":
            raise unwanted(shown(backend), "'vertex', since only Vertex AI's evaluation service has this metric")
        return backend

    @property
    def judge_decides(self) -> str:
        """What makes a judge decide: nothing does."""
        return "a criterion that a judge decides; Vertex AI's evaluation service alone decides this one, and does not read it"


class CustomSettings(CriterionSettings):
    """A function of the user's own; whatever else is given is passed to it."""

    model_config = ConfigDict(extra="allow")

    @model_serializer(mode="wrap")
    def _with_nulls(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Keep null as a value of the function's own settings, whatever is left out elsewhere."""
        return {**handler(self), **(self.model_extra or {})}


class CodeConfig(Settings):
    """A function, by its import path."""

    name: str


class Interval(Settings):
    """A range of values."""

    min_value: float
    open_at_min: bool = False
    max_value: float
    open_at_max: bool = False


class MetricValueInfo(Settings):
    """What values a metric takes."""

    interval: Interval | None = None


class MetricInfo(Settings):
    """What a custom metric says of itself."""

    metric_name: str
    description: str | None = None
    metric_value_info: MetricValueInfo = MetricValueInfo()
    requires_threshold: bool = True


class CustomMetricConfig(Settings):
    """A metric of the user's own."""

    code_config: CodeConfig
    metric_info: MetricInfo | None = None
    description: str = ""
    greater_is_better: bool = True
    """Our addition; ADK ignores it."""

    @property
    def interval(self) -> Interval | None:
        """The values that the metric can take, where it says so."""
        return self.metric_info.metric_value_info.interval if self.metric_info else None

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest score; infinite where the metric does not say."""
        return (self.interval.min_value, self.interval.max_value) if self.interval else (-math.inf, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CriterionSpec:
    """All that is known of a criterion outside of its own file.

    >>> spec = CRITERIA["response_match_score"]
    >>> spec.bounds, spec.greater_is_better, spec.scope, spec.needs, spec.judged
    ((0.0, 1.0), True, 'turn', ('reference', 'expected_response'), False)
    """

    name: str
    """What configs, MLflow's metrics and the gate's policies call it."""
    origin: Literal["adk", "rapid_eval", "vertex", "ours"]
    """Who defined it: google-adk or Vertex AI's evaluation service, which have a metric of that name; the Rapid Eval API, whose metric's name follows
    ``rapid_eval_``; or this package."""
    about: str
    """What the score is, as a clause: ``1 for each turn whose tool calls match the expected ones, else 0``."""
    kept: str
    """What is kept beside the score, as a clause."""
    reads_intermediate: bool = False
    """Whether it reads the setting `INTERMEDIATE`."""
    make: Callable[..., Any]
    """Makes the criterion of its settings, or, if a judge decides, of its settings and a `VoteCollector`. Without a prompt there is only `by_service`."""
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
    """What it cannot judge without, of the case and of the conversation; its settings may add to it (`CriterionSettings.more_needs`)."""
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
            raise ValueError(f"criterion {self.name!r}: no score can be within {self.bounds}")
        if self.by_service is not None and not issubclass(self.settings, VertexSettings):
            raise ValueError(f"criterion {self.name!r}: settings without a backend cannot choose the service")
        if ("rubrics" in self.needs) != bool(self.rubric_type):
            raise ValueError(f"criterion {self.name!r}: rubrics need a rubric type, and the other way round")
        if self.rubric_type and self.rubric_type != getattr(self.settings, "rubric_type", ""):
            raise ValueError(f"criterion {self.name!r}: its settings are for rubrics of another type")

    @property
    def judged(self) -> bool:
        """Whether a model decides."""
        return issubclass(self.settings, JudgedSettings)

    def needs_by(self, settings: CriterionSettings | None) -> tuple[Need, ...]:
        """Return what the criterion cannot judge without.

        Args:
            settings: by which it judges; ``None`` where it is measured as information.
        """
        return self.needs + settings.more_needs if settings else self.needs

    @property
    def fields(self) -> dict[str, FieldInfo]:
        """The settings that it reads, by name."""
        unread = set[str]()
        if not self.reads_intermediate:
            unread.add(INTERMEDIATE)
        if issubclass(self.settings, ServiceSettings):  # of which only the judge's are for a judge
            unread |= JudgedSettings.model_fields.keys() - CriterionSettings.model_fields.keys()
        return {name: field for name, field in self.settings.model_fields.items() if name not in unread}

    @property
    def worst(self) -> float:
        """The worst score, which an answer that says nothing gets without a judge."""
        return self.bounds[0] if self.greater_is_better else self.bounds[1]

    @property
    def worst_of_nothing(self) -> float | None:
        """The only score that a turn may have in which the agent did nothing; ``None``: any, since it is not the answer that counts."""
        return None if {"state", "scenario", "baseline"}.intersection(self.needs) else self.worst


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
            raise ValueError(f"there is already a criterion {spec.name!r}")
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
        self._load(*importlib.import_module(self._package).INFORMATIVE)
        return tuple(spec.name for spec in self._specs.values() if spec.informative)

    def is_quantity(self, name: str) -> bool:
        """Whether a criterion's score is a measured quantity, such as seconds, rather than a share or a grade; not so where there is no such criterion."""
        return name in self and math.isinf(self[name].bounds[1])

    def __getitem__(self, name: str) -> CriterionSpec:
        if name not in self._specs and not self._complete:  # without the lock, since a criterion is looked up for every case
            if module := importlib.import_module(self._package).MODULES.get(name):
                self._load(module)
            if name not in self._specs:
                self._load()
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(tuple(self._specs))

    def __len__(self) -> int:
        self._load()
        return len(self._specs)

    def _load(self, *modules: str) -> None:
        """Take the specs of some modules, or else of every module of the package, by their names, so that lists of criteria never change their order."""
        with self._lock:
            if not self._complete:
                every = () if modules else sorted(one.name for one in pkgutil.iter_modules(importlib.import_module(self._package).__path__))
                loaded = [importlib.import_module(f"{self._package}.{name}") for name in modules or every]
                specs = {spec.name: spec for module in loaded for spec in getattr(module, "SPECS", ())}
                self._specs = self._specs | specs if modules else specs | self._specs
                self._complete = not modules


CRITERIA = CriterionRegistry("mlflow_adk_eval.criteria")


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
