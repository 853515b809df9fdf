"""Hosts: where answers come from, and whether that is the model's own provider."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.judge.protocol import THIS_PROCESS

GOOGLE_MODEL = re.compile(r"(models/)?(gemini|gemma)-\S+|(projects|publishers|tunedModels)/\S+")
PROVIDER_MODEL = re.compile(r"[\w.-]+/\S+")
VERTEX = "vertex"
"""What reports call Vertex AI's evaluation service."""
LOCAL = {
    "hosted_vllm": "http://localhost:8000/v1",
    "lm_studio": "http://localhost:1234/v1",
    "llamafile": "http://127.0.0.1:8080/v1",
    "ollama": "http://localhost:11434",
    "ollama_chat": "http://localhost:11434",
}
"""Programs that serve models on one's own machine, and where each listens unless told otherwise, as its documentation says."""
_GOOGLE = re.compile(r"(generativelanguage|([a-z0-9-]+-)?aiplatform)(\.mtls|\.[a-z]+\.rep)?\.googleapis\.com")
_SET_BY_AGENTS: dict[str, tuple[str, Path]] = {}
"""The variables that ``.env`` files of agents have set, each with its value and the file."""


def set_by_agent(names: Iterable[str], file: Path) -> None:
    """Remember that the ``.env`` file of an agent has set these variables: judges are not asked where an agent says."""
    _SET_BY_AGENTS.update({name: (os.environ[name], file) for name in names})


def endpoint_named_by(*names: str) -> str:
    """Return where the environment says that judges are asked, by the first of these variables that is set; empty if none is.

    Raises:
        JudgeError: if the ``.env`` file of an agent has set it.
    """
    name = next((name for name in names if os.environ.get(name)), "")
    url = os.environ.get(name, "")
    value, file = _SET_BY_AGENTS.get(name, ("", None))
    if file and url == value:
        msg = f"{file} sets {name}, but an agent must not choose the judges' server. If you want this, set {name} in the environment"
        raise JudgeError(msg)
    return url


def host_of(url: str) -> str:
    """Return the host of a URL in lower case, with its port unless that follows from the scheme.

    >>> host_of("https://user:secret@Example.org:443/v1"), host_of("http://127.0.0.1:8080"), host_of("localhost:11434/v1")
    ('example.org', '127.0.0.1:8080', 'localhost:11434')
    """
    parts = urlsplit(url if "://" in url else f"//{url}")
    return parts.netloc.rpartition("@")[2].lower().removesuffix({"http": ":80", "https": ":443"}.get(parts.scheme, ":"))


def is_among(host: str, allowed: Iterable[str]) -> bool:
    """Whether `host` is one of these; one without a port stands for any port.

    >>> is_among("gpu:8080", ["GPU"]), is_among("gpu:8080", ["gpu:81"]), is_among("gpu.evil.org", ["gpu"])
    (True, False, False)
    """
    without_port = re.sub(r":\d+$", "", host)
    return any(one.lower() in (host, without_port) for one in allowed)


def is_own_host(model: str, host: str) -> bool:
    """Whether a model is usually reached there: at its provider's host, at the usual address of a local program, or in this process.

    Args:
        model: the judge, as the config names it.
        host: as `host_of` has it; where only LiteLLM knows the host, the name of the provider.

    >>> is_own_host("gemini-2.5-flash", "us-central1-aiplatform.googleapis.com"), is_own_host("gemini-2.5-flash", "127.0.0.1:80")
    (True, False)
    >>> is_own_host("openai/gpt-5", "openai"), is_own_host("ollama/qwen3", "localhost:11434"), is_own_host("my_judge", THIS_PROCESS)
    (True, True, True)
    """
    if model == VERTEX or GOOGLE_MODEL.fullmatch(model):
        return _GOOGLE.fullmatch(host) is not None
    if not PROVIDER_MODEL.fullmatch(model):
        return host == THIS_PROCESS
    provider = model.partition("/")[0]
    return host == (host_of(LOCAL[provider]) if provider in LOCAL else provider) or (provider == "openai" and host.endswith(".openai.com"))


def named_at(model: str, host: str) -> str:
    """Return how reports and parameters name a judge: with its host, if that is not the model's own.

    >>> named_at("gemini-2.5-flash", "generativelanguage.googleapis.com"), named_at("gemini-2.5-flash", "gpu:8080")
    ('gemini-2.5-flash', 'gemini-2.5-flash at gpu:8080')
    """
    return model if is_own_host(model, host) else f"{model} at {host or 'an unknown host'}"
