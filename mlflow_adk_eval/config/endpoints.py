"""Which settings of a config decide where requests go, or what is sent besides a question.

A config is data, and whoever writes it need not be whoever holds the API keys: a judge's ``http_options.base_url`` would have them sent anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pydantic.alias_generators import to_snake

from mlflow_adk_eval.config.criteria import JudgedSettings
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import json_path

GENERATION = frozenset(
    {"temperature", "top_p", "top_k", "candidate_count", "max_output_tokens", "stop_sequences", "response_logprobs", "logprobs"}
    | {"presence_penalty", "frequency_penalty", "seed", "revision", "safety_settings", "thinking_config", "response_modalities"}
    | {"media_resolution", "labels"}
)
"""What a model generates, and under which label it is billed. A list of what is harmless, since the next google-genai has a name that no list of what is not would have."""
_SENDING = frozenset({"timeout", "retry_options"})
"""What ``http_options`` say of how long a request may take and how often it is sent."""
_NAME = re.compile(r"[\w.@-]+(/[\w.@:-]+)*")
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
    found: list[Endpoint] = []
    groups = [(["criteria"], config.criteria), *((["case_criteria", case], group) for case, group in config.case_criteria.items())]
    for steps, criteria in groups:
        for name, settings in criteria.items():
            if isinstance(settings, JudgedSettings):
                options, at = settings.judge_model_options, [*steps, name]
                found += _model([*at, "judge_model_options", "judge_model"], options.judge_model)
                found += _settings([*at, "judge_model_options", "judge_model_config"], options.judge_model_config, GENERATION)
                for index, model in enumerate(settings.judge_panel or ()):
                    found += _model([*at, "judge_panel", index], model)
    if (user := config.user_simulator_config) is not None:
        found += _model(["user_simulator_config", "model"], user.model)
        found += _settings(["user_simulator_config", "model_configuration"], user.model_configuration, GENERATION)
    return found


def _model(steps: Iterable[str | int], name: str) -> Iterator[Endpoint]:
    if set("/:").intersection(name) and not _NAME.fullmatch(name):  # anything else is no address, but may be no model
        yield Endpoint(json_path("$", steps), _host(name[max(name.find("http"), 0) :]))


def _settings(steps: list[str | int], settings: Any, harmless: frozenset[str]) -> Iterator[Endpoint]:
    """Yield what is not harmless, each value by itself, however deep."""
    if isinstance(settings, dict | list) and settings:
        for key, value in settings.items() if isinstance(settings, dict) else enumerate(settings):
            name = to_snake(key) if isinstance(key, str) else ""
            if value is not None and name not in harmless:
                yield from _settings([*steps, key], value, _SENDING if harmless is GENERATION and name == "http_options" else frozenset())
    elif settings is not None and (settings or not harmless):
        yield Endpoint(json_path("$", steps), _host(settings))


def _host(value: Any) -> str | None:
    url = _URL.fullmatch(value) if isinstance(value, str) else None
    return url[1].lower() if url else None
