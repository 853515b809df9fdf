"""What all pages share: the templates, and a policy that lets a page have nothing but its own style and script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def template(name: str) -> Template:
    """Return a template, in which every text is escaped."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    loader = PackageLoader("mlflow_adk_eval.report.html")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def source(name: str) -> str:
    """Return a style or script of this package."""
    return (files("mlflow_adk_eval.report.html") / "templates" / name).read_text(encoding="utf-8")


def policy(style: str, script: str = "") -> str:
    """Return a page's content security policy: nothing but its own style and script, which it knows by their hashes."""
    scripts = f"script-src {_hash(script)}; " if script else ""
    return f"default-src 'none'; style-src {_hash(style)}; {scripts}base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
