"""Who is measured where an agent speaks. Each module offers `imports`, `load` and `converse`, which returns the scores as `contenders` says."""

from __future__ import annotations

from importlib import import_module

_AT_FIRST_USE = ("anyio._backends._asyncio", "google.auth.aio.credentials", "httpcore")
"""What anyio and google-genai import when they are first used."""


def import_all(*modules: str) -> None:
    """Import modules, with the agent and all that google-adk imports when an agent first speaks: that is nobody's work."""
    for module in (
        "google.adk.flows.llm_flows.auto_flow",
        "google.adk.models.google_llm",
        *_AT_FIRST_USE,
        *modules,
        "contenders.live.agent",
    ):
        import_module(module)
    from google.adk.workflow import Workflow  # noqa: F401 - brings in what runs agents
