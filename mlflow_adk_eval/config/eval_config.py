"""How an eval set is evaluated: the criteria with their thresholds and settings, strictly checked.

The JSON is ADK's ``test_config.json``. Where ADK ignores a slip of the pen, this module names it.

A config is data, and whoever writes it need not be whoever holds the API keys: a judge's ``http_options.base_url`` would have them sent anywhere.
`endpoints_in` says which settings decide where requests go, or what is sent besides a question.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import Field, SerializeAsAny
from pydantic.alias_generators import to_snake

from mlflow_adk_eval.config.spec import (
    CRITERIA,
    CriterionSettings,
    CustomMetricConfig,
    CustomSettings,
    JudgedSettings,
    RubricSettings,
    Settings,
    is_measure,
)
from mlflow_adk_eval.config.surroundings import EnvironmentSimulationConfig, LiveModelConfig, ReplayConfig, UserSimulatorConfig
from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean, json_path, shown
from mlflow_adk_eval.evalset.models import EvalCase, Json, canonical, json_sha256
from mlflow_adk_eval.evalset.parse import decode, parse, read_text

CONFIG_FILE = "test_config.json"
"""What the config beside an eval set is called."""

ANCHORS = 0.05
"""The share of `EvalConfig.anchors` that a config has which says nothing of it, so that its digest stays as it is."""

S = TypeVar("S", bound=Settings)

Criteria = dict[str, SerializeAsAny[CriterionSettings]]

_BY_CASE = ("case_criteria", "case_environments")


class EvalConfig(Settings):
    """The criteria that decide, in order, and how the agent is run."""

    criteria: Criteria
    custom_metrics: dict[str, CustomMetricConfig] | None = None
    user_simulator_config: UserSimulatorConfig | None = None
    live_model_config: LiveModelConfig | None = None
    environment_simulation_config: EnvironmentSimulationConfig | None = None
    """The tool environment: what answers tool calls instead of the tools. ADK has the class but ignores it here."""
    case_environments: dict[str, EnvironmentSimulationConfig | None] = Field(default_factory=dict)
    """Tool environments for single cases, by eval id; ``None``: none. Our addition; ADK ignores it."""
    replay: ReplayConfig | None = None
    """How tool calls are compared with recorded ones, where tools are replayed. Our addition; ADK ignores it."""
    case_criteria: dict[str, Criteria] = Field(default_factory=dict)
    """Criteria for single cases, by eval id, instead of `criteria`. Our addition; ADK ignores it."""
    anchors: float | None = Field(default=None, ge=0, le=1)
    """How many answers of earlier runs judges judge again, as a share of their calls; 0: none, ``None``: `ANCHORS`. Our addition; ADK ignores it."""

    @cached_property
    def source(self) -> str:
        """What messages call it: the path of its file, where it has one. It is no part of what configs are compared by."""
        return "config"

    def criteria_of(self, eval_id: str) -> Criteria:
        """Return the criteria that decide one case."""
        return self.case_criteria.get(eval_id, self.criteria)

    @property
    def anchor_share(self) -> float:
        """How many answers of earlier runs judges judge again, as a share of their calls."""
        return ANCHORS if self.anchors is None else self.anchors

    @property
    def by_criterion(self) -> dict[str, list[CriterionSettings]]:
        """Each criterion's settings, in the order of the config: one, or several where cases have their own."""
        listed: dict[str, list[CriterionSettings]] = {}
        for criteria in (self.criteria, *self.case_criteria.values()):
            for name, settings in criteria.items():
                listed.setdefault(name, []).append(settings)
        return listed

    def planned(self, case: EvalCase) -> Criteria:
        """Return the criteria that decide one case, without those whose settings leave it out."""
        return {name: settings for name, settings in self.criteria_of(case.eval_id).items() if settings.applies_to(case)}

    def without(self, eval_ids: Iterable[str]) -> EvalConfig:
        """Return the config without what it says of single cases, such as those that were left out of a selection."""
        left_out = set(eval_ids)
        remaining = {name: {key: value for key, value in getattr(self, name).items() if key not in left_out} for name in _BY_CASE}
        return self.model_copy(update=remaining)

    def environment_of(self, eval_id: str) -> EnvironmentSimulationConfig | None:
        """Return the tool environment of one case; ``None``: the real tools."""
        return self.case_environments.get(eval_id, self.environment_simulation_config)

    def surroundings_of(self, eval_id: str) -> str:
        """Return the tool environment that only some cases have, as text: in another one the same words are another case."""
        environment = self.environment_of(eval_id) if self.case_environments else None
        return environment.model_dump_json() if environment else ""

    def greater_is_better(self, criterion: str) -> bool:
        """Whether a higher score of `criterion` is better."""
        return ((self.custom_metrics or {}).get(criterion) or CRITERIA[criterion]).greater_is_better

    def bounds(self, criterion: str) -> tuple[float, float]:
        """Return the lowest and highest possible score of `criterion`; infinite if unlimited. A name in `custom_metrics` means that metric."""
        return ((self.custom_metrics or {}).get(criterion) or CRITERIA[criterion]).bounds

    def thresholds(self) -> dict[str, str]:
        """Return each deciding criterion's threshold as text; several, smallest first, where cases differ."""
        values = {name: sorted({one.threshold for one in settings}) for name, settings in self.by_criterion.items()}
        return {name: " | ".join(map(repr, thresholds)) for name, thresholds in values.items()}

    def to_json(self) -> Json:
        """Return the config with all defaults filled in, in ADK's format."""
        dumped: Json = self.model_dump(mode="json", exclude_none=True)
        return {name: value for name, value in dumped.items() if value or name not in _BY_CASE}

    def digest(self) -> str:
        """Return ``sha256:<hex>`` of the config with all defaults filled in."""
        return "sha256:" + json_sha256(canonical(self.to_json()))


def load_config(source: str | Path | Mapping[str, Any] | EvalConfig | None, *, beside: Path | None = None) -> EvalConfig:
    """Return the config from a file, a dict or an object.

    Args:
        source: the file, dict or object; ``None``: ``test_config.json`` in the eval set's folder, else ADK's defaults.
        beside: the folder of the eval set, if it has one.

    Raises:
        ConfigError: with every problem of the config, or if a named file does not exist.
    """
    if source is None:
        file = beside / CONFIG_FILE if beside else None
        return load_config(file) if file and file.is_file() else default_config()
    if isinstance(source, EvalConfig):
        parse_config(source.to_json(), "config")  # one made by hand is held to the same rules
        return source
    if isinstance(source, Mapping):
        config = parse_config(dict(source), "config")
    else:
        path = Path(source)
        config = parse_config(decode(read_text(path, error=ConfigError), str(path), error=ConfigError), str(path))
    for listed in judged_criteria(config).values():
        for settings in listed:
            settings.judge_model_options.approve_function()
    return config


def judged_criteria(config: EvalConfig) -> dict[str, tuple[JudgedSettings, ...]]:
    """Return the criteria that a model decides, each with its settings: one, or several where cases differ."""
    judged: dict[str, tuple[JudgedSettings, ...]] = {}
    for name, listed in config.by_criterion.items():
        for settings in listed:
            if isinstance(settings, JudgedSettings) and settings not in judged.setdefault(name, ()):
                judged[name] += (settings,)
    return judged


def parse_config(value: Any, source: str) -> EvalConfig:
    """Return a decoded config.

    Raises:
        ConfigError: with every problem of the config.
    """
    if not isinstance(value, dict):
        raise ConfigError(source, [Problem("$", shown(value), "an object with criteria")])
    problems: list[Problem] = []
    # Groups of criteria are read apart, since each name has settings of its own.
    by_case = {key: value[key] for key in ("case_criteria", "caseCriteria") if isinstance(value.get(key), dict)}
    frame = _read(EvalConfig, value | {key: {} for key in by_case} | ({"criteria": {}} if "criteria" in value else {}), "$", problems)
    groups = [value.get(key) for key in ("custom_metrics", "customMetrics")]
    names = dict.fromkeys(name for group in groups if isinstance(group, dict) for name in group)
    # Where it is wrong elsewhere, only their names are known.
    customs: Mapping[str, CustomMetricConfig | None] = names if frame is None else frame.custom_metrics or {}
    for name in customs:  # a rule on one in the place of something else would be about that, unseen
        taken = "the name of a built-in criterion" if name in CRITERIA else "the name of a gate measure" if is_measure(str(name)) else ""
        if taken:
            problems.append(Problem(json_path("$.custom_metrics", [name]), taken, "a unique name"))
    criteria = _criteria(value["criteria"], "$.criteria", customs, problems) if "criteria" in value else {}
    grouped = [(key, eval_id, group) for key, groups_by_id in by_case.items() for eval_id, group in groups_by_id.items()]
    cases = {str(eval_id): _criteria(group, f"$.{key}[{eval_id!r}]", customs, problems) for key, eval_id, group in grouped}
    if not problems:
        used = {name for group in (criteria, *cases.values()) for name in group}
        for name in [name for name in customs if name not in used]:
            wanted = f"a threshold for it at {json_path('$.criteria', [name])}"
            problems.append(Problem(json_path("$.custom_metrics", [name]), "a metric that no criterion uses", wanted))
    if problems or frame is None:
        raise ConfigError(source, problems)
    config = frame.model_copy(update={"criteria": criteria, "case_criteria": cases})
    vars(config)["source"] = source
    return config


def _criteria(value: Any, at: str, customs: Mapping[str, CustomMetricConfig | None], problems: list[Problem]) -> Criteria:
    """Return a group of criteria, each with its settings, after adding to `problems` what is wrong with any of them."""
    if not value or not isinstance(value, dict):
        found = "no criterion" if value == {} else shown(value)
        problems.append(Problem(at, found, "at least one criterion with a threshold; without one, everything passes"))
    criteria: Criteria = {}
    for name, given in value.items() if isinstance(value, dict) else ():
        here, custom, bare = json_path(at, [name]), name in customs, isinstance(given, bool | int | float | str)
        if not custom and name not in CRITERIA:
            hint = did_you_mean(str(name), [*CRITERIA, *customs]) or f"Known are {', '.join(CRITERIA)}"
            problems.append(Problem(here, "an unknown criterion", "one of ADK's criteria, or a name in custom_metrics", hint))
            continue
        if not bare and not isinstance(given, dict):
            problems.append(Problem(here, shown(given), "a threshold, or an object with a threshold"))
            continue
        amiss: list[Problem] = []
        described = customs[name] if custom else CRITERIA[name]
        kind = CustomSettings if custom else CRITERIA[name].settings
        settings = _read(kind, {"threshold": given} if bare else given, here, amiss, strict=not custom)
        if settings is not None and described is not None:  # else it could not be read, so nothing is known of its range
            threshold, (low, high) = settings.threshold, described.bounds
            interval = described.interval if isinstance(described, CustomMetricConfig) else None
            ends = ((interval.open_at_min, low), (interval.open_at_max, high)) if interval else ()
            open_end = any(is_open and threshold == end for is_open, end in ends)
            if open_end or not low <= threshold <= high:
                wanted = f"a number of at least {low:g}" if math.isinf(high) else f"a number from {low:g} to {high:g}"
                wanted = f"a number between {low:g} and {high:g}" if open_end else wanted
                amiss.append(Problem(f"{here}.threshold", f"{threshold:g}", wanted))
        rubric_ids: set[str] = set()
        for index, rubric in enumerate(settings.rubrics if isinstance(settings, RubricSettings) else ()):
            place = f"{here}.rubrics[{index}]"
            if rubric.rubric_id in rubric_ids:
                amiss.append(Problem(f"{place}.rubric_id", f"{shown(rubric.rubric_id)} a second time", "a unique id"))
            if not (rubric.rubric_content.text_property or "").strip():
                amiss.append(Problem(f"{place}.rubric_content.text_property", "no text", "a text that says what the judge must look for"))
            rubric_ids.add(rubric.rubric_id)
        for problem in amiss:  # of a bare threshold there is no path
            problems.append(replace(problem, path=here) if bare and problem.path == f"{here}.threshold" else problem)
        if settings is not None:
            criteria[name] = settings
    return criteria


def _read(cls: type[S], value: Any, at: str, problems: list[Problem], *, strict: bool = False) -> S | None:
    """Return `value` as settings, or ``None`` after adding to `problems`; `strict`: whether models that keep unknown keys refuse them here."""
    try:
        return parse(cls, value, "config", error=ConfigError, at=at, strict=strict)
    except ConfigError as error:
        problems += error.problems
        return None


@cache
def default_config() -> EvalConfig:
    """Return what ADK uses where no config is given."""
    return parse_config({"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.8}}, "ADK's defaults")


def dumps_config(config: EvalConfig) -> str:
    """Return the config as indented JSON text."""
    return json.dumps(config.to_json(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


GENERATION = frozenset(
    {"temperature", "top_p", "top_k", "candidate_count", "max_output_tokens", "stop_sequences", "response_logprobs", "logprobs"}
    | {"presence_penalty", "frequency_penalty", "seed", "revision", "safety_settings", "thinking_config", "response_modalities"}
    | {"media_resolution", "labels"}
)
"""What a model generates, and under which label it is billed. A list of what is harmless, since the next google-genai has a name that no list of what is not would have."""
_SENDING = frozenset({"timeout", "retry_options"})
"""What ``http_options`` say of how long a request may take and how often it is sent."""
_MODEL_NAME = re.compile(r"[\w.@-]+(/[\w.@:-]+)*")
"""A model by name. LiteLLM takes ``huggingface/https://...`` for the address of a server."""
_URL = re.compile(r"https?://([a-z0-9.-]+(?::\d+)?|\[[0-9a-f:.]+\](?::\d+)?)(?:[/?#][!-\[\]-~]*)?", re.IGNORECASE)
"""Nothing that one library may read otherwise than another: no user, no backslash, no space."""


class Endpoint(NamedTuple):
    """A setting that decides where requests go, or may."""

    path: str
    """Where it is in the config, such as ``$.criteria.safety_v1.judge_model_options.judge_model_config.http_options.base_url``."""
    host: str | None
    """The host, with the port if there is one, in lower case; ``None`` where the setting does not say, or not plainly."""


def endpoints_in(config: EvalConfig) -> list[Endpoint]:
    """Return the settings of judges and simulated users that do more than name a model and shape what it generates.

    The settings of a custom metric are not looked at: they are for its code.
    """
    endpoints: list[Endpoint] = []
    groups = [(["criteria"], config.criteria), *((["case_criteria", case], group) for case, group in config.case_criteria.items())]
    for steps, criteria in groups:
        for name, settings in criteria.items():
            if isinstance(settings, JudgedSettings):
                options, at = settings.judge_model_options, [*steps, name]
                endpoints += [] if options.is_function else _address([*at, "judge_model_options", "judge_model"], options.judge_model)
                endpoints += _addresses([*at, "judge_model_options", "judge_model_config"], options.judge_model_config, GENERATION)
                for index, model in enumerate(settings.judge_panel or ()):
                    endpoints += _address([*at, "judge_panel", index], model)
    if (user := config.user_simulator_config) is not None:
        endpoints += _address(["user_simulator_config", "model"], user.model)
        endpoints += _addresses(["user_simulator_config", "model_configuration"], user.model_configuration, GENERATION)
    return endpoints


def _address(steps: Iterable[str | int], name: str) -> Iterator[Endpoint]:
    if set("/:").intersection(name) and not _MODEL_NAME.fullmatch(name):  # anything else is no address, but may be no model
        yield Endpoint(json_path("$", steps), _host(name[max(name.find("http"), 0) :]))


def _addresses(steps: list[str | int], settings: Any, harmless: frozenset[str]) -> Iterator[Endpoint]:
    """Yield what is not harmless, each value by itself, however deep."""
    if isinstance(settings, dict | list) and settings:
        for key, value in settings.items() if isinstance(settings, dict) else enumerate(settings):
            name = to_snake(key) if isinstance(key, str) else ""
            if value is not None and name not in harmless:
                yield from _addresses([*steps, key], value, _SENDING if harmless is GENERATION and name == "http_options" else frozenset())
    elif settings is not None and (settings or not harmless):
        yield Endpoint(json_path("$", steps), _host(settings))


def _host(value: Any) -> str | None:
    url = _URL.fullmatch(value) if isinstance(value, str) else None
    return url[1].lower() if url else None
