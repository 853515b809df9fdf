"""Which judge a name, an object or a function stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from mlflow_adk_eval.errors import JudgeError, did_you_mean, shown
from mlflow_adk_eval.judge.protocol import Judge
from mlflow_adk_eval.judge.providers.function import CallableJudge
from mlflow_adk_eval.judge.setup import JudgeOptions

_GOOGLE = re.compile(r"(models/)?(gemini|gemma)-\S+|(projects|publishers|tunedModels)/\S+")
_PROVIDER = re.compile(r"[\w.-]+/\S+")
_FAMILIAR = ("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash-lite", "gemini-2.0-flash", "gemini-flash-latest", "gemini-pro-latest")
_MEMBERS = ("model", "address", "ask", "aclose")
_UNDERSTOOD = "gemini-... (google-genai), provider/model such as openai/gpt-4o (LiteLLM), a judge object or a callable"


def resolve_judge(judge: str | Judge | Callable[..., Any] | None, model: str, options: JudgeOptions | None = None) -> Judge:
    """Return the judge to ask. Nothing is sent.

    Args:
        judge: who judges, whatever the config says: a model's name, a judge or a callable; ``None``: the config's model.
        model: the model that the config names.
        options: how requests are made.

    Raises:
        JudgeError: if nobody goes by that name, or what it takes to ask is missing.
    """
    if judge is None or isinstance(judge, str):
        return _named(judge or model)
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


def _named(name: str) -> Judge:
    if _GOOGLE.fullmatch(name):
        from mlflow_adk_eval.judge.providers.gemini import GeminiJudge  # noqa: PLC0415 - loads google-genai

        return GeminiJudge(name)
    if _PROVIDER.fullmatch(name):
        from mlflow_adk_eval.judge.providers.lite import LiteLlmJudge  # noqa: PLC0415 - loads LiteLLM, an extra

        return LiteLlmJudge(name)
    raise JudgeError(f"{name!r} is no judge model; wanted {_UNDERSTOOD}. {did_you_mean(name, _FAMILIAR)}".rstrip())
