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
    INTERMEDIATE,
    LARGEST_SCORE,
    CriterionSettings,
    CriterionSpec,
    CustomMetricConfig,
    CustomSettings,
    JudgedSettings,
    RubricSettings,
    Settings,
    is_measure,
)
from mlflow_adk_eval.config.surroundings import EnvironmentSimulationConfig, LiveModelConfig, ReplayConfig, UserSimulatorConfig
from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean, json_path, shown
from mlflow_adk_eval.evalset.foreign import refuse_other_file, refuse_yaml_config
from mlflow_adk_eval.evalset.models import EvalCase, Json, canonical, json_sha256
from mlflow_adk_eval.evalset.parse import decode, parse, read_text
from mlflow_adk_eval.text import listed

CONFIG_FILE = "test_config.json"
"""What the config beside an eval set is called."""

ANCHORS = 0.05
"""The share of `EvalConfig.anchors` that a config has which says nothing of it, so that its digest stays as it is."""

_MOST_READERS = 8
_TOLERANCE = 1e-9
"""How far a score may miss a threshold and still reach it, as `results.outcomes` has it, which is a layer above."""

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

    def threshold_of(self, criterion: str, settings: CriterionSettings | None) -> float | None:
        """Return the threshold by which a criterion decides; ``None`` where it is information, since every score reaches its threshold.

        Args:
            criterion: its name.
            settings: its settings; ``None``: the config does not name it.
        """
        if settings is None:
            return None
        low, high = self.bounds(criterion)
        if self.greater_is_better(criterion):
            decides = settings.threshold > max(low, -LARGEST_SCORE) + _TOLERANCE
        else:
            decides = settings.threshold < min(high, LARGEST_SCORE) - _TOLERANCE
        return settings.threshold if decides else None

    def thresholds(self) -> dict[str, str]:
        """Return each criterion's threshold as text; several, smallest first, where cases differ."""
        values = {name: sorted({one.threshold for one in settings}) for name, settings in self.by_criterion.items()}
        return {name: " | ".join(map(repr, thresholds)) for name, thresholds in values.items()}

    def deciding_thresholds(self) -> dict[str, str]:
        """Return what `thresholds` does, without the thresholds that every score reaches and without criteria that have no others."""
        texts: dict[str, str] = {}
        for name, alternatives in self.by_criterion.items():
            thresholds = {self.threshold_of(name, one) for one in alternatives}
            if deciding := sorted(one for one in thresholds if one is not None):
                texts[name] = " | ".join(map(repr, deciding))
        return texts

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
        text = read_text(path, error=ConfigError)
        if path.suffix in (".yaml", ".yml"):
            refuse_yaml_config(text, str(path))
        config = parse_config(decode(text, str(path), error=ConfigError), str(path))
    for alternatives in judged_criteria(config).values():
        for settings in alternatives:
            settings.judge_model_options.approve_function()
    return config


def judged_criteria(config: EvalConfig) -> dict[str, tuple[JudgedSettings, ...]]:
    """Return the criteria that a model decides, each with its settings: one, or several where cases differ."""
    judged: dict[str, tuple[JudgedSettings, ...]] = {}
    for name, alternatives in config.by_criterion.items():
        for settings in alternatives:
            if isinstance(settings, JudgedSettings) and settings not in judged.setdefault(name, ()):
                judged[name] += (settings,)
    return judged


def parse_config(value: Any, source: str, *, stored: bool = False) -> EvalConfig:
    """Return a decoded config.

    Args:
        value: the config.
        source: what messages call it.
        stored: whether a run or a scorer kept it, so that settings without effect are none of the reader's business.

    Raises:
        ConfigError: with every problem of the config.
    """
    if not isinstance(value, dict):
        raise ConfigError(source, [Problem("$", shown(value), "an object with criteria")])
    refuse_other_file(value, source)
    value = _without_comments(value)
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
    criteria = _criteria(value["criteria"], "$.criteria", customs, problems, stored=stored) if "criteria" in value else {}
    grouped = [(key, eval_id, group) for key, groups_by_id in by_case.items() for eval_id, group in groups_by_id.items()]
    cases: dict[str, Criteria] = {}
    for key, eval_id, group in grouped:
        cases[str(eval_id)] = _criteria(group, f"$.{key}[{eval_id!r}]", customs, problems, stored=stored)
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


_COMMENTS = frozenset({"comment", "description"})
"""Names of comments at the top level. Anywhere that ADK ignores unknown keys, one that begins with ``_`` or ``$`` is a comment, too."""
_COMMENTED = ("user_simulator_config", "live_model_config", "environment_simulation_config", "replay")


def _is_comment(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(("_", "$"))


def _without_comments(value: Json) -> Json:
    """Return a config without comments at its top level and in the objects that it has there, but for criteria and metrics by name."""
    kept = {key: item for key, item in value.items() if not _is_comment(key) and key not in _COMMENTS}
    for key, item in kept.items():
        if isinstance(item, dict) and to_snake(str(key)) in _COMMENTED:
            kept[key] = {name: inner for name, inner in item.items() if not _is_comment(name)}
    return kept


def _criteria(
    value: Any,
    at: str,
    customs: Mapping[str, CustomMetricConfig | None],
    problems: list[Problem],
    *,
    stored: bool,
) -> Criteria:
    """Return a group of criteria, each with its settings, after adding to `problems` what is wrong with any of them."""
    if not value or not isinstance(value, dict):
        found = "no criterion" if value == {} else shown(value)
        problems.append(Problem(at, found, "at least one criterion with a threshold; without one, everything passes"))
    criteria: Criteria = {}
    for name, given in value.items() if isinstance(value, dict) else ():
        here = json_path(at, [name])
        if name not in customs and name not in CRITERIA:
            hint = did_you_mean(str(name), [*CRITERIA, *customs]) or f"Known are {', '.join(CRITERIA)}"
            problems.append(Problem(here, "an unknown criterion", "one of ADK's criteria, or a name in custom_metrics", hint))
            continue
        bare = isinstance(given, bool | int | float | str)
        if not bare and not isinstance(given, dict):
            problems.append(Problem(here, shown(given), "a threshold, or an object with a threshold"))
            continue
        amiss: list[Problem] = []
        if name not in customs and not bare:  # what a custom metric's settings hold is its own affair
            given = {key: item for key, item in given.items() if not _is_comment(key)}  # noqa: PLW2901
        plain = {"threshold": given} if bare else given
        if name in customs:
            settings = _custom_settings(plain, here, customs[name], amiss)
        else:
            settings = _settings_of(CRITERIA[name], plain, here, amiss, stored=stored)
        for problem in amiss:  # of a bare threshold there is no path
            problems.append(replace(problem, path=here) if bare and problem.path == f"{here}.threshold" else problem)
        if settings is not None:
            criteria[name] = settings
    return criteria


def _custom_settings(
    given: Mapping[str, Any], here: str, metric: CustomMetricConfig | None, problems: list[Problem]
) -> CriterionSettings | None:
    """Return the settings of a custom metric; `metric`: what its definition says, ``None`` where that could not be read."""
    settings = _read(CustomSettings, given, here, problems)
    if settings is None or metric is None:
        return settings
    low, high = metric.bounds
    interval = metric.interval
    open_ends = set[float]()
    if interval and interval.open_at_min:
        open_ends.add(low)
    if interval and interval.open_at_max:
        open_ends.add(high)
    if settings.threshold in open_ends:
        wanted = f"a number between {low:g} and {high:g}"
        problems.append(Problem(f"{here}.threshold", f"{settings.threshold:g}", wanted))
    else:
        problems += _range_problems(settings.threshold, (low, high), here)
    return settings


def _settings_of(
    spec: CriterionSpec, given: Mapping[str, Any], here: str, problems: list[Problem], *, stored: bool
) -> CriterionSettings | None:
    """Return the settings of a built-in criterion."""
    unknown: list[Problem] = []
    settings = _read(spec.settings, given, here, unknown, strict=True)
    problems += [_with_readers(problem, spec, here) for problem in unknown]
    if settings is None:
        return None
    problems += _range_problems(settings.threshold, spec.bounds, here)
    if isinstance(settings, RubricSettings):
        problems += _rubric_problems(settings, here)
    if not stored:
        problems += _unread_problems(spec, settings, here)
    return settings


def _range_problems(threshold: float, bounds: tuple[float, float], here: str) -> Iterator[Problem]:
    """Yield that a threshold is no score that there can be."""
    low, high = bounds
    if low <= threshold <= high:
        return
    wanted = f"a number of at least {low:g}" if math.isinf(high) else f"a number from {low:g} to {high:g}"
    yield Problem(f"{here}.threshold", f"{threshold:g}", wanted)


def _rubric_problems(settings: RubricSettings, here: str) -> Iterator[Problem]:
    """Yield the rubrics that have no text, or the id of another."""
    rubric_ids: set[str] = set()
    for index, rubric in enumerate(settings.rubrics):
        place = f"{here}.rubrics[{index}]"
        if rubric.rubric_id in rubric_ids:
            yield Problem(f"{place}.rubric_id", f"{shown(rubric.rubric_id)} a second time", "a unique id")
        if not (rubric.rubric_content.text_property or "").strip():
            yield Problem(f"{place}.rubric_content.text_property", "no text", "a text that says what the judge must look for")
        rubric_ids.add(rubric.rubric_id)


_WITHOUT_EFFECT = "a setting without effect"


def _unread_problems(spec: CriterionSpec, settings: CriterionSettings, here: str) -> Iterator[Problem]:
    """Yield the settings that are accepted everywhere, and that this criterion does not read."""
    if settings.include_intermediate_responses_in_final and not spec.reads_intermediate:
        yield Problem(f"{here}.{INTERMEDIATE}", _WITHOUT_EFFECT, "a criterion that reads it", _readers(INTERMEDIATE))
    for unread in settings.unread():
        yield Problem(f"{here}.{unread.path}", _WITHOUT_EFFECT, unread.wanted)


def _with_readers(problem: Problem, spec: CriterionSpec, here: str) -> Problem:
    """Return a problem; that a key is unknown, with the criteria that read it, if there are any."""
    if problem.found != "an unknown key":
        return problem
    key = to_snake(problem.path.removeprefix(f"{here}."))
    readers = _readers(key)
    wanted = problem.wanted if key.startswith("$") or "." in key or "[" in key else f"one of {', '.join(spec.fields)}"
    return replace(problem, wanted=wanted, hint=problem.hint or readers)


def _readers(key: str) -> str:
    """Return which criteria read a setting, as a sentence; empty where none does."""
    names = [name for name, spec in CRITERIA.items() if key in spec.fields]
    return f"It is read by {listed(names, _MOST_READERS)}" if names else ""


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
