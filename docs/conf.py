"""The documentation site: ``make site`` has Sphinx build these pages, and fails on any link or anchor that leads nowhere."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import Any

project = "mlflow_adk_eval"
author = "The mlflow-adk-eval developers"
version = release = version_of("mlflow-adk-eval")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["__pycache__"]

myst_heading_anchors = 3

autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"
napoleon_google_docstring = True
default_role = "code"

_OUTSIDE = re.compile(r"\[`?([^\]`]+)`?\]\((\.\./[^)#]+\.md)\)")


def _offer(_app: Any, _page: str, source: list[str]) -> None:
    """Turn links to pages of the repository that are not of the site into files to download, which must exist."""
    source[0] = _OUTSIDE.sub(r"{download}`\1 <\2>`", source[0])


def setup(app: Any) -> None:
    """Let Sphinx call what is above."""
    app.connect("source-read", _offer)


html_theme = "furo"
html_title = f"{project} {release}"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
