"""Which judge a name, an object or a function stands for.

A name that looks like a model of Google's goes to google-genai, ``provider/model`` to LiteLLM; each of the two is loaded only when a judge
needs it. An object with the members of `Judge` judges itself, and a function is wrapped in a `CallableJudge`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, cast

import anyio
import anyio.to_thread

from mlflow_adk_eval.errors import JudgeError, did_you_mean, shown
from mlflow_adk_eval.foreign import foreign_code
from mlflow_adk_eval.judge.hosts import GOOGLE_MODEL, PROVIDER_MODEL, THIS_PROCESS
from mlflow_adk_eval.judge.protocol import Answer, Judge, NoAnswer, Refused, Request
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.redact import message_of

_FAMILIAR = ("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash-lite", "gemini-2.0-flash", "gemini-flash-latest", "gemini-pro-latest")
_MEMBERS = ("model", "address", "ask", "aclose")
_UNDERSTOOD = "gemini-... (google-genai), provider/model such as openai/gpt-4o (LiteLLM), a judge object or a callable"


@foreign_code("the judge")
def resolve_judge(judge: str | Judge | Callable[..., Any], options: JudgeOptions | None = None) -> Judge:
    """Return the judge to ask. Nothing is sent.

    Args:
        judge: who judges: a model's name, a judge or a callable.
        options: how requests are made.

    Raises:
        JudgeError: if nobody goes by that name, or what it takes to ask is missing.
    """
    if isinstance(judge, str):
        return _named(judge)
    missing = [name for name in _MEMBERS if not hasattr(judge, name)]
    if not missing and not isinstance(judge, type):
        return cast("Judge", judge)
    if callable(judge) and not isinstance(judge, type):
        return CallableJudge(judge, threads=(options or JudgeOptions()).max_concurrency)
    lacks = f", since it has no {', '.join(missing)}" if missing and hasattr(judge, "ask") else ""
    raise JudgeError(f"{shown(judge)} is no judge{lacks}; wanted {_UNDERSTOOD}")


def check_settings(judge: Judge, settings: Mapping[str, Any]) -> None:
    """Refuse a ``judge_model_config`` that `judge` could not follow. Judges that are programs get it as it is.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    check = getattr(judge, "check", None)
    if callable(check):
        check(settings)


def is_own_server(judge: Judge) -> bool:
    """Whether `judge` is reached at a server of the user's own, of which nobody knows how much it takes."""
    return bool(getattr(judge, "own_server", False))


def host_of_judge(judge: Judge, settings: Mapping[str, Any]) -> str:
    """Return the host that `judge` asks with these settings; of what is the caller's own, that it is in this process."""
    host = getattr(judge, "host", None)
    return str(host(settings)) if callable(host) else THIS_PROCESS


def _named(name: str) -> Judge:
    if GOOGLE_MODEL.fullmatch(name):
        from mlflow_adk_eval.judge.providers.gemini import GeminiJudge  # noqa: PLC0415 - loads google-genai

        return GeminiJudge(name)
    if PROVIDER_MODEL.fullmatch(name):
        from mlflow_adk_eval.judge.providers.litellm import LiteLlmJudge  # noqa: PLC0415 - loads LiteLLM, an extra

        return LiteLlmJudge(name)
    raise JudgeError(f"{name!r} is no judge model; wanted {_UNDERSTOOD}. {did_you_mean(name, _FAMILIAR)}".rstrip())


class CallableJudge:
    """A function from a request to an answer.

    It may be async, or sync, which runs in a thread, and returns an `Answer`, the JSON text, or the JSON object itself. It
    says why it has no answer by raising `Unavailable` or `Refused`; any other error counts as refused. Its attribute
    ``model`` is what reports call it, instead of its name; its attribute ``address`` lets a later run use its answers again.
    """

    def __init__(self, fn: Callable[[Request], Any], *, threads: int = 64) -> None:
        """Make a judge of `fn`, which runs in at most so many threads if it is sync."""
        self._fn = fn
        self._threads = threads
        self._thread_limit: anyio.CapacityLimiter | None = None

    @property
    def model(self) -> str:
        """The function's name for reports."""
        inner = self._fn.func if isinstance(self._fn, partial) else self._fn
        return str(getattr(self._fn, "model", "") or getattr(inner, "__name__", "") or type(inner).__name__)

    @property
    def address(self) -> str | None:
        """What the function says of itself."""
        address = getattr(self._fn, "address", None)
        return address if isinstance(address, str) else None

    async def ask(self, request: Request) -> Answer:
        """Call the function, once."""
        started = perf_counter()
        try:
            with foreign_code("it"):
                answer = _answer(await self._called(request))
        except NoAnswer:
            raise
        except Exception as error:  # the user's own code: whatever it raises is no verdict
            raise Refused(f"{type(error).__name__}: {message_of(error)}") from error
        return answer if answer.latency_s else replace(answer, latency_s=perf_counter() - started)

    async def aclose(self) -> None:
        """Do nothing: the function is its owner's."""

    async def _called(self, request: Request) -> Any:
        if _is_async(self._fn):
            return await self._fn(request)
        self._thread_limit = self._thread_limit or anyio.CapacityLimiter(self._threads)
        result = await anyio.to_thread.run_sync(self._fn, request, limiter=self._thread_limit, abandon_on_cancel=True)
        return await result if inspect.isawaitable(result) else result


def _is_async(fn: Callable[..., Any]) -> bool:
    inner = fn.func if isinstance(fn, partial) else fn
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004 - how it is called matters


def _answer(given: Any) -> Answer:
    match given:
        case Answer():
            return given
        case str():
            return Answer(text=given)
        case dict():
            return Answer(text=json.dumps(given, ensure_ascii=False))
        case _:
            raise Refused(f"the judge returned {shown(given)}; wanted an Answer, JSON text or an object", every_request=True)
