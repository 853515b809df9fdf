"""Which judge a name, an object or a function stands for.

A name that looks like a model of Google's goes to google-genai, ``provider/model`` to LiteLLM; each of the two is loaded only when a judge
needs it. An object with the members of `Judge` judges itself, and a function is wrapped in a `CallableJudge`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, cast

import anyio

from mlflow_adk_eval.errors import UsageError, did_you_mean, foreign_code, shown
from mlflow_adk_eval.judge.hosts import GOOGLE_MODEL, PROVIDER_MODEL
from mlflow_adk_eval.judge.protocol import Answer, Judge, NoAnswer, Refused, Request, ResolvedJudge, called
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.redact import message_of

_FAMILIAR = ("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash-lite", "gemini-2.0-flash", "gemini-flash-latest", "gemini-pro-latest")
_UNDERSTOOD = "gemini-... (google-genai), provider/model such as openai/gpt-4o (LiteLLM), a judge object or a callable"


@foreign_code("the judge")
def resolve_judge(judge: str | Judge | Callable[..., Any], options: JudgeOptions | None = None) -> ResolvedJudge:
    """Return the judge to ask. Nothing is sent.

    Args:
        judge: who judges: a model's name, a judge or a callable.
        options: how requests are made.

    Raises:
        UsageError: if nobody goes by that name.
        JudgeError: if what it takes to ask is missing.
    """
    if isinstance(judge, str):
        if GOOGLE_MODEL.fullmatch(judge):
            from mlflow_adk_eval.judge.providers.gemini import GeminiJudge  # noqa: PLC0415 - loads google-genai

            return GeminiJudge(judge)
        if PROVIDER_MODEL.fullmatch(judge):
            from mlflow_adk_eval.judge.providers.litellm import LiteLlmJudge  # noqa: PLC0415 - loads LiteLLM, an extra

            return LiteLlmJudge(judge)
        raise UsageError(f"{judge!r} is not a judge model; wanted {_UNDERSTOOD}. {did_you_mean(judge, _FAMILIAR)}".rstrip())
    if isinstance(judge, ResolvedJudge):
        return judge
    missing = [name for name in ("model", "address", "ask", "aclose") if not hasattr(judge, name)]
    if not missing and not isinstance(judge, type):
        return GivenJudge(cast("Judge", judge))
    if callable(judge) and not isinstance(judge, type):
        return CallableJudge(judge, threads=(options or JudgeOptions()).max_concurrency)
    lacks = f": it has no {', '.join(missing)}" if missing and hasattr(judge, "ask") else ""
    raise UsageError(f"{shown(judge)} is not a judge{lacks}; wanted {_UNDERSTOOD}")


class GivenJudge(ResolvedJudge):
    """An object of the caller's that has the members of `Judge`, and need have no others."""

    def __init__(self, judge: Judge) -> None:
        """Judge as `judge` does."""
        self._judge = judge

    @property
    def model(self) -> str:
        """What it says."""
        return self._judge.model

    @property
    def address(self) -> str | None:
        """What it says."""
        return self._judge.address

    async def ask(self, request: Request) -> Answer:
        """Ask it, once."""
        return await self._judge.ask(request)


class CallableJudge(ResolvedJudge):
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
                answer = await self._called(request)
        except NoAnswer:
            raise
        except Exception as error:  # the user's own code: whatever it raises is no verdict
            raise Refused(f"{type(error).__name__}: {message_of(error)}") from error
        return answer if answer.latency_s else replace(answer, latency_s=perf_counter() - started)

    async def _called(self, request: Request) -> Answer:
        self._thread_limit = self._thread_limit or anyio.CapacityLimiter(self._threads)
        match result := await called(self._fn, request, limiter=self._thread_limit):
            case Answer():
                return result
            case str():
                return Answer(text=result)
            case dict():
                return Answer(text=json.dumps(result, ensure_ascii=False))
            case _:
                raise Refused(f"the judge returned {shown(result)}; wanted an Answer, JSON text or an object", every_request=True)
