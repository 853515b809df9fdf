"""What the numbers were measured on."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
from pathlib import Path

from data import DATA_VARIABLE

_PACKAGES = (
    "mlflow-adk-eval",
    "google-adk",
    "google-genai",
    "mlflow",
    "pydantic",
    "nltk",
    "rouge-score",
    "msgspec",
    "pandas",
    "SQLAlchemy",
    "aiohttp",
)
_NEEDS = {
    "ours": ("mlflow-adk-eval",),
    "integrations": ("mlflow-adk-eval", "rouge-score", "google-adk"),
    "adk": ("google-adk", "rouge-score", "pandas"),
    "mlflow_scorers": ("mlflow", "google-adk", "rouge-score"),
    "floor": ("msgspec", "nltk", "aiohttp"),
    "floor_uncollected": ("msgspec", "nltk"),
}


def absent(side: str) -> str | None:
    """Return a package that a contender needs and that is not installed."""
    return next((package for package in _NEEDS[side] if _version(package) is None), None)


def description() -> str:
    """Return date, hardware, load and versions as one line."""
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    versions = ", ".join(f"{package} {version}" for package in _PACKAGES if (version := _version(package)))
    data = f" Data: ${DATA_VARIABLE}." if os.environ.get(DATA_VARIABLE) else ""
    return (
        f"{dt.datetime.now(dt.UTC).date()}, {os.cpu_count()} cores{_processor()}, {gigabytes:.0f} GiB, {platform.system()}, "
        f"load average {os.getloadavg()[0]:.1f} at the start; Python {platform.python_version()}, {versions}.{data}"
    )


def _processor() -> str:
    """Return the name of the processor, with a comma before it."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return f" ({found[1]})" if found else f" ({platform.machine()})"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
