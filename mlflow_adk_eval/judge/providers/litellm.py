"""Models of any provider as judges, through LiteLLM, an extra."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from time import perf_counter
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
from pydantic import Field

from mlflow_adk_eval.config.criteria import Settings
from mlflow_adk_eval.errors import JudgeError, did_you_mean
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.errors import failure, one_line, retry_after_s
from mlflow_adk_eval.judge.protocol import Answer, NoAnswer, Request, Unavailable
from mlflow_adk_eval.judge.providers.access import require_settings
from mlflow_adk_eval.runtime import defaults, require_extra

_AT_IMPORT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches a price list
    "LITELLM_MODE": "PRODUCTION",  # else it reads a .env file
}
_ALONE = {"num_retries": 0, "max_retries": 0, "no-log": True}
"""Neither retries of LiteLLM's own, nor loggers that somebody set up for the agent."""
_BOOK_KEEPING_S = 5.0
_NAMES = {"max_output_tokens": "max_tokens", "stop_sequences": "stop"}
"""What LiteLLM calls a setting, where google-genai calls it otherwise."""


class LiteLlmSettings(Settings):
    """The part of ``judge_model_config`` that every provider knows."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop_sequences: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class LiteLlmJudge:
    """A model that LiteLLM reaches, with the keys that it looks for."""

    def __init__(self, model: str) -> None:
        """Load LiteLLM. Nothing is sent.

        Args:
            model: ``provider/model``, as LiteLLM takes it.

        Raises:
            UsageError: if LiteLLM is not installed.
            JudgeError: if it does not know the provider, or misses its key.
        """
        self._litellm: Any = _litellm()
        self._model = model
        self._provider = _provider(self._litellm, model)
        _refuse_without_key(self._litellm, model, self._provider)
        known = self._litellm.get_supported_openai_params(model=model)
        self._takes_schema = known is None or "response_format" in known

    @property
    def model(self) -> str:
        """The name that it was given."""
        return self._model

    @property
    def address(self) -> str:
        """The model and where it is reached."""
        name = self._provider.upper()
        base = os.environ.get(f"{name}_API_BASE") or os.environ.get(f"{name}_BASE_URL")
        return f"{self._model} at {base}" if base else self._model

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse a ``judge_model_config`` that has no equivalent. Nothing is sent.

        Raises:
            ConfigError: with everything that is wrong with it.
        """
        require_settings(LiteLlmSettings, settings)

    async def ask(self, request: Request) -> Answer:
        """Send one request, once."""
        from openai import OpenAIError  # noqa: PLC0415 - what the errors of all providers are turned into

        started = perf_counter()
        try:
            reply = await self._litellm.acompletion(
                model=self._model,
                messages=self._messages(request),
                **_ALONE,
                **self._format(request),
                **_generation(request.settings),
            )
        except (OpenAIError, OSError) as error:
            raise _no_answer(error) from None
        return _answer(reply, perf_counter() - started)

    async def aclose(self) -> None:
        """Let LiteLLM finish its book-keeping. Its connections it shares with whoever else uses it."""
        from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER  # noqa: PLC0415

        await anyio.lowlevel.checkpoint()  # what each call left to be started comes first
        with anyio.move_on_after(_BOOK_KEEPING_S):
            await GLOBAL_LOGGING_WORKER.flush()

    def _messages(self, request: Request) -> list[Json]:
        instructions = request.instructions
        if not self._takes_schema:
            instructions += f"\n\nThe JSON schema of the answer:\n{json.dumps(request.schema)}"
        return [{"role": "system", "content": instructions}, {"role": "user", "content": request.text}]

    def _format(self, request: Request) -> Json:
        schema = {"name": "verdict", "schema": request.schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}} if self._takes_schema else {}


def _litellm() -> ModuleType:
    with defaults(_AT_IMPORT), require_extra("litellm", "a judge named provider/model"):
        import litellm  # noqa: PLC0415 - an extra, and slow to load
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm


def _provider(litellm: Any, model: str) -> str:
    name = model.partition("/")[0]
    known = [str(getattr(provider, "value", provider)) for provider in litellm.provider_list]
    if name in known:
        return name
    hint = did_you_mean(name, known)
    raise JudgeError(f"{model!r}: LiteLLM knows no provider {name!r}; wanted provider/model, such as openai/gpt-4o. {hint}".rstrip())


def _refuse_without_key(litellm: Any, model: str, provider: str) -> None:
    """Refuse a model whose provider can do nothing without a key that is not there. Azure and clouds have other ways in."""
    if provider.startswith("azure"):
        return
    missing = [name for name in litellm.validate_environment(model)["missing_keys"] if name.endswith("_API_KEY")]
    if missing:
        raise JudgeError(f"no API key for {model}: set {' or '.join(missing)}")


def _generation(settings: Mapping[str, Any]) -> Json:
    given = LiteLlmSettings.model_validate(dict(settings)).model_dump(exclude_none=True)
    return {_NAMES.get(name, name): value for name, value in given.items()}


def _answer(reply: Any, latency_s: float) -> Answer:
    choice, usage = reply.choices[0], getattr(reply, "usage", None)
    return Answer(
        text=choice.message.content or "",
        model=reply.model or "",
        input_tokens=getattr(usage, "prompt_tokens", None),
        output_tokens=getattr(usage, "completion_tokens", None),
        latency_s=latency_s,
        problem=_problem(choice),
    )


def _problem(choice: Any) -> str:
    """Return why the text is missing or cut off; empty where it is whole."""
    if choice.finish_reason not in (None, "stop"):
        return str(choice.finish_reason)
    refusal = (getattr(choice.message, "provider_specific_fields", None) or {}).get("refusal")
    if refusal:
        return f"refusal: {one_line(str(refusal))}"
    return "" if choice.message.content else "no text"


def _no_answer(error: Exception) -> NoAnswer:
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return Unavailable(f"{type(error).__name__}: {one_line(str(error))}")
    headers = getattr(error, "litellm_response_headers", None) or getattr(getattr(error, "response", None), "headers", None)
    return failure(status, f"{status}: {error}", retry_after_s=retry_after_s(headers or {}))
