"""Who is measured where a model judges. Each module offers `imports`, `load` and `judge`, which returns the scores as `contenders` says."""

from __future__ import annotations

from importlib import import_module

_AT_FIRST_USE = ("anyio._backends._asyncio", "google.auth.aio.credentials", "httpcore")
"""What anyio and google-genai import when they are first used."""


def import_all(*modules: str) -> None:
    """Import modules, with what the clients of all contenders need."""
    for module in ("google.genai", *_AT_FIRST_USE, *modules):
        import_module(module)
