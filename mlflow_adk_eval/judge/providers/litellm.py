"""Models of any provider as judges, through LiteLLM, an extra."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
from pydantic import Field

from mlflow_adk_eval.config.spec import Settings
from mlflow_adk_eval.errors import JudgeError, UsageError, did_you_mean
from mlflow_adk_eval.evalset.models import Json, json_sha256
from mlflow_adk_eval.judge import protocol
from mlflow_adk_eval.judge.hosts import LOCAL, endpoint_named_by, host_of
from mlflow_adk_eval.judge.providers.access import require_settings
from mlflow_adk_eval.runtime import environment, require_extra

_AT_IMPORT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches a price list
    "LITELLM_MODE": "PRODUCTION",  # else it reads a .env file
}
_ALONE = {"num_retries": 0, "max_retries": 0, "no-log": True, "cache": {"no-cache": True, "no-store": True}}
"""Neither retries of LiteLLM's own, nor loggers that somebody set up for the agent, nor its cache: the votes on a question are the same request,
and one answer for all of them would be one vote."""
_THOUGHTS, _OWN_THOUGHTS = 16_384, 2_048
"""How many tokens of thoughts an answer may have besides, on hosted models and on servers of one's own."""
_OPEN = ("openai", "custom_openai", "text-completion-openai")
_HOSTED = (".openai.com", ".azure.com", ".googleapis.com", ".amazonaws.com")
"""Hosts behind OpenAI's language that take as much as any provider."""
_TELLING = ("id", "owned_by", "meta", "root", "parent", "max_model_len", "digest")
"""What servers say of a model that depends on the model alone: digests, sizes, paths. ``created`` does not: llama-server and vLLM put the time
of the request there.
"""
_FORMS = ("bounded", "json_schema", "json_object", "words")
"""How an answer in JSON is asked for; a server that refuses one is asked in the next, which all servers take in the end. With the first, whose
schema says how long texts may be, a server of one's own ends the text of a small model that never would; hosted models begin with the second."""
_LONGEST_TEXT = 800
"""Characters: a few sentences, or a quotation."""
_ASKED = ("", "", "json_object and the schema in words", "the schema in words")
_REFUSES_FORM = re.compile(r"response_?format|json_schema|json_object|structured|grammar|guided|maxLength", re.IGNORECASE)
_form_of: dict[str, int] = {}
"""The form that each server takes for each model, by address, for as long as the process lives."""
_KINDS_OF_TOKENS = {"input": "prompt", "output": "completion"}
_NAMES = {"max_output_tokens": "max_tokens", "stop_sequences": "stop"}
"""What LiteLLM calls a setting, where google-genai calls it otherwise."""


class LiteLlmSettings(Settings):
    """The part of ``judge_model_config`` that every provider knows."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop_sequences: list[str] | None = None
    revision: str | None = None
    """What tells the weights from others of that name, where the server cannot; it is not sent."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class LiteLlmJudge(protocol.ResolvedJudge):
    """A model that LiteLLM reaches, with the keys that it looks for."""

    def __init__(self, model: str) -> None:
        """Load LiteLLM. Nothing is sent.

        Args:
            model: ``provider/model``, as LiteLLM takes it.

        Raises:
            UsageError: if LiteLLM is not installed.
            UsageError: if it does not know the provider.
            JudgeError: if its key is missing.
        """
        with environment(_AT_IMPORT, unless_set=True), require_extra("litellm", "a judge named provider/model"):
            import litellm  # noqa: PLC0415 - an extra, and slow to load
        litellm.telemetry = False
        litellm.suppress_debug_info = True
        self._litellm: Any = litellm
        self._model = model
        self._provider = provider = model.partition("/")[0]
        known = [str(getattr(one, "value", one)) for one in self._litellm.provider_list]
        if provider not in known:
            hint = did_you_mean(provider, known)
            msg = f"{model!r}: LiteLLM has no provider {provider!r}; wanted provider/model, such as openai/gpt-4o. {hint}".rstrip()
            raise UsageError(msg)
        name = provider.upper().removesuffix("_CHAT")
        self._base = endpoint_named_by(f"{name}_API_BASE", f"{name}_BASE_URL") or LOCAL.get(provider, "")
        self._own = self._base if _is_own(provider, self._base) else ""
        self._place: Json = {"api_base": self._base} if self._base else {}
        if self._own and provider == "openai" and not os.environ.get("OPENAI_API_KEY"):
            self._place["api_key"] = "none"  # OpenAI's client sends one to a server that asks for none
        elif not provider.startswith("azure"):  # it and clouds have other ways in
            missing = [name for name in self._litellm.validate_environment(model)["missing_keys"] if name.endswith("_API_KEY")]
            if missing:
                own = ". Your own server needs none: set OPENAI_API_BASE" if provider == "openai" else ""
                raise JudgeError(f"no API key for {model}: set {' or '.join(missing)}{own}")
        parameters = self._litellm.get_supported_openai_params(model=model)
        self._may_take_schema = parameters is None or "response_format" in parameters
        if not self._may_take_schema:
            _form_of[self.address] = len(_FORMS) - 1
        try:
            longest = self._litellm.get_model_info(model).get("max_output_tokens")
        except Exception:  # noqa: BLE001 - LiteLLM raises its own for a model that it does not know
            longest = None
        # A hosted model refuses a limit above what it can answer.
        self._longest: int | None = longest or (sys.maxsize if self._own else None)

    @property
    def address(self) -> str:
        """The model and where it is reached."""
        return f"{self._model} at {self._base}" if self._base else self._model

    def host(self, settings: Mapping[str, Any]) -> str:  # noqa: ARG002 - no setting moves it
        """Return the host that is asked; where only LiteLLM knows it, the name of the provider."""
        return host_of(self._base) if self._base else self._provider

    @property
    def own_server(self) -> bool:
        """Whether it is reached at a server of the user's own, of which nobody knows how much it takes."""
        return bool(self._own)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse a ``judge_model_config`` that has no equivalent. Nothing is sent.

        Raises:
            ConfigError: with everything that is wrong with it.
        """
        require_settings(LiteLlmSettings, settings)

    async def ask(self, request: protocol.Request) -> protocol.Answer:
        """Send one request, once; in a simpler form, if the server refuses the one in which it was sent."""
        while True:
            form = self._form
            try:
                return await self._sent(request, _FORMS[form])
            except _FormRefused as refused:
                if form == len(_FORMS) - 1:
                    raise protocol.Refused(str(refused)) from None
                _form_of[self.address] = max(self._form, form + 1)

    @property
    def _form(self) -> int:
        return _form_of.get(self.address, 0 if self._own else 1)

    async def _sent(self, request: protocol.Request, form: str) -> protocol.Answer:
        from openai import OpenAIError  # noqa: PLC0415 - what the errors of all providers are turned into

        instructions = request.instructions
        arguments: Json = dict(_ALONE)
        if form in ("bounded", "json_schema"):
            schema = _bounded(request.schema) if form == "bounded" else request.schema
            named = {"name": "verdict", "schema": schema, "strict": True}
            arguments["response_format"] = {"type": "json_schema", "json_schema": named}
        else:
            instructions += f"\n\nThe JSON schema of the answer:\n{json.dumps(request.schema)}"
            if form == "json_object":
                arguments["response_format"] = {"type": form}
        settings = LiteLlmSettings.model_validate(dict(request.settings)).model_dump(exclude_none=True, exclude={"revision"})
        arguments |= self._limit(request) | {_NAMES.get(name, name): value for name, value in settings.items()}
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": request.text}]
        started = perf_counter()
        try:
            reply = await self._litellm.acompletion(model=self._model, messages=messages, **self._place, **arguments)
        except (OpenAIError, OSError) as error:
            raise _no_answer(error) from None
        choice, usage = reply.choices[0], getattr(reply, "usage", None)
        problem = "" if choice.message.content else protocol.NO_TEXT
        fields = getattr(choice.message, "provider_specific_fields", None) or {}
        if choice.finish_reason not in (None, "stop"):
            problem = str(choice.finish_reason)
        elif refusal := getattr(choice.message, "refusal", None) or fields.get("refusal"):  # the former since LiteLLM 1.110
            problem = f"refusal: {protocol.one_line(str(refusal))}"
        tokens: Json = {f"{kind}_tokens": getattr(usage, f"{name}_tokens", None) for kind, name in _KINDS_OF_TOKENS.items()}
        text, taken_s = choice.message.content or "", perf_counter() - started
        return protocol.Answer(text=text, model=reply.model or "", latency_s=taken_s, problem=problem, host=self.host({}), **tokens)

    def _limit(self, request: protocol.Request) -> Json:
        """Return the limit of the answer, so that a model which never ends costs no more than an answer with long thoughts."""
        if self._longest is None or request.answer_tokens is None:
            return {}
        room = _OWN_THOUGHTS if self._own else _THOUGHTS
        return {"max_tokens": min(request.answer_tokens + room, self._longest)}

    @property
    def notes(self) -> Iterator[str]:
        """What whoever reads the results should know of how it was asked."""
        if self._may_take_schema and (_ASKED[form := self._form]):
            yield f"{self.address} rejects response_format {' and '.join(_FORMS[1:form])}: asked with {_ASKED[form]} instead"

    async def fingerprint(self) -> str:
        """Return what tells the model that answers from others of its name: what the user's own server says of it; else empty.

        Raises:
            Unavailable: if the server cannot be reached.
        """
        if not self._own:
            return ""
        ollama = self._provider.startswith("ollama")
        base = self._own.rstrip("/")
        listed = await _listed(f"{base.removesuffix('/v1')}/api/tags" if ollama else f"{base}/models", self._provider)
        name = self._model.partition("/")[2]
        names = [{str(one[key]) for key in ("id", "name", "model") if one.get(key)} for one in listed]
        # Ollama's names have a tag, ``latest`` where none is given.
        named = (one for one, own in zip(listed, names, strict=True) if {name, f"{name}:latest"} & own)
        entry = next(named, listed[0] if len(listed) == 1 else {})
        known = {key: entry[key] for key in _TELLING if entry.get(key)}
        return json_sha256(known)[:16] if known else ""

    async def aclose(self) -> None:
        """Let LiteLLM finish its book-keeping. Its connections it shares with whoever else uses it."""
        from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER  # noqa: PLC0415

        await anyio.lowlevel.checkpoint()  # what each call left to be started comes first
        with anyio.move_on_after(5.0):
            await GLOBAL_LOGGING_WORKER.flush()


class _FormRefused(protocol.Refused):
    """The server does not take the response format."""


def _bounded(schema: Json) -> Json:
    """Return a schema of objects and texts that says how long each text may be."""
    if schema["type"] == "object":
        return {**schema, "properties": {name: _bounded(each) for name, each in schema.get("properties", {}).items()}}
    return {**schema, "maxLength": _LONGEST_TEXT} if schema["type"] == "string" and "enum" not in schema else schema


async def _listed(url: str, provider: str) -> list[Json]:
    """Return the models that a server lists; none, if it has no such list."""
    import httpx  # noqa: PLC0415 - slow to import, and LiteLLM's anyway

    key = os.environ.get(f"{provider.upper()}_API_KEY")
    try:
        async with httpx.AsyncClient(timeout=10.0) as client:
            reply = await client.get(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    except httpx.HTTPError as error:
        raise protocol.Unavailable(f"{type(error).__name__}: {protocol.one_line(str(error))}") from None
    try:
        body = reply.json() if reply.is_success else {}
    except ValueError:
        body = {}
    listed = (body.get("data") or body.get("models")) if isinstance(body, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _is_own(provider: str, base: str) -> bool:
    """Whether `base` is a server of the user's own: that of a program made for it, or one that speaks OpenAI's language elsewhere.

    >>> _is_own("ollama", "http://localhost:11434"), _is_own("openai", "https://eu.api.openai.com/v1"), _is_own("openai", "")
    (True, False, False)
    """
    host = urlsplit(base).hostname or ""
    return provider in LOCAL or (provider in _OPEN and bool(host) and not f".{host}".endswith(_HOSTED))


def _no_answer(error: Exception) -> protocol.NoAnswer:
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return protocol.Unavailable(f"{type(error).__name__}: {protocol.one_line(str(error))}")
    if status in (400, 422) and _REFUSES_FORM.search(str(error)):
        return _FormRefused(protocol.one_line(f"{status}: {error}"))
    headers = getattr(error, "litellm_response_headers", None) or getattr(getattr(error, "response", None), "headers", None)
    return protocol.failure(status, f"{status}: {error}", retry_after_s=protocol.retry_after_s(headers or {}))
