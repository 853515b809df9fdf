"""The documentation site: ``make site`` has Sphinx build these pages, and fails on any link or anchor that leads nowhere."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils.nodes import abbreviation

project = "mlflow_adk_eval"
author = "The mlflow-adk-eval developers"
version = release = version_of("mlflow-adk-eval")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_llm.txt"]
exclude_patterns = ["__pycache__"]

myst_heading_anchors = 4

autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"
napoleon_google_docstring = True
default_role = "code"
suppress_warnings = ["misc.highlighting_failure"]  # output in a console block is any text
maximum_signature_line_length = 88

copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_here_doc_delimiter = "EOF"
copybutton_exclude = ".linenos, .go"

llms_txt_exclude = ["_downloads/**", "_downloads/*/*"]  # files of the repository, which are no pages
llms_txt_suffix_mode = "replace"  # page.md beside page.html
llms_txt_nested_enabled = False
llms_txt_description = (
    "Evaluate agents built with Google's Agent Development Kit (ADK) in MLflow, and gate their promotion on the evidence."
)

_OUTSIDE = re.compile(r"\[`?([^\]`]+)`?\]\(((?:\.\./)+[^)#]+\.md)\)")


def _offer(app: Any, page: str, source: list[str]) -> None:
    """Turn links to pages of the repository that are not of the site into files to download, which must exist."""
    folder = (app.srcdir / page).parent

    def link(found: re.Match[str]) -> str:
        inside = (folder / found[2]).resolve().is_relative_to(app.srcdir.resolve())
        return found[0] if inside else f"{{download}}`{found[1]} <{found[2]}>`"

    source[0] = _OUTSIDE.sub(link, source[0])


def _lead_agents(app: Any, error: Exception | None) -> None:
    """Publish the repository's llms.txt with links into the site, in place of the one that sphinx-llm writes, and the skills that it names."""
    root, site = Path(__file__).parents[1], Path(app.outdir)
    if error is None and app.builder.format == "html":
        site.joinpath("llms.txt").write_text((root / "llms.txt").read_text("utf-8").replace("](docs/", "]("), "utf-8")
        for skill in root.glob("skills/*/SKILL.md"):
            target = site / skill.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(skill.read_text("utf-8").replace("](../../docs/", "](../../"), "utf-8")


def setup(app: Any) -> None:
    """Let Sphinx call what is above, and write `*` and `/` of signatures into Markdown, which its builder does not know."""
    app.connect("source-read", _offer)
    app.connect("build-finished", _lead_agents, priority=200)  # after sphinx-llm
    app.add_node(abbreviation, override=True, markdown=(lambda *_: None, lambda *_: None))


html_theme = "furo"
html_title = f"{project} {release}"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
