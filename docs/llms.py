"""Writes llms.txt: every page and skill on a line, with its first sentences, for agents that read a checkout. ``make site`` publishes the same lines.

``--check`` fails where the file is not what the pages say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "llms.txt"
_MOST = 200
"""As many characters a page has for its sentences; at least one is whole."""
_HEAD = """\
# mlflow_adk_eval

> Evaluate agents built with Google's Agent Development Kit (ADK) in MLflow, and gate their promotion on the evidence.

Install with `pip install 'mlflow-adk-eval[adk]'`. The skills say how to do a job, step by step, with real output. The
pages below are for people and agents alike. `mlflow-adk-eval COMMAND --help` describes each option, and
`mlflow-adk-eval mcp` serves MCP clients.
"""
_CODE = re.compile(r"^(```+).*?^\1\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])")


def written() -> str:
    """Return the file as it should be."""
    lines = [_HEAD, "## Skills\n"]
    for skill in sorted(ROOT.glob("skills/*/SKILL.md")):
        _, name, description, *_ = skill.read_text("utf-8").splitlines()
        lines.append(f"- [{name.removeprefix('name: ')}](skills/{skill.parent.name}/SKILL.md): {description.removeprefix('description: ')}")
    lines.append("")
    for caption, pages in _sections():
        lines.append(f"## {caption}\n")
        lines += [f"- [{title}]({page.relative_to(ROOT)}): {about}" for page in pages for title, about in [_described(page)]]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _sections() -> Iterator[tuple[str, list[Path]]]:
    """Yield the parts of the navigation, each with its pages and the pages below these, and last what is for developers."""
    for tree in _trees(ROOT / "docs" / "index.md"):
        caption = next(line.partition(" ")[2].strip("'") for line in tree.split("\n") if line.startswith(":caption:"))
        yield (
            caption,
            [each for page in _entries(tree) for each in (page, *(one for below in _trees(page) for one in _entries(below, page.parent)))],
        )
    yield "Optional", sorted((ROOT / "docs" / "development").glob("*.md"))


def _trees(page: Path) -> list[str]:
    return re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def _entries(tree: str, folder: Path = ROOT / "docs") -> list[Path]:
    return [folder / f"{line}.md" for line in tree.split("\n") if line and not line.startswith(":")]


def _described(page: Path) -> tuple[str, str]:
    """Return the title of a page, and its first sentences."""
    title, _, text = (
        _CODE.sub("", page.read_text("utf-8").removeprefix("---\norphan: true\n---\n")).lstrip().removeprefix("# ").partition("\n")
    )
    paragraphs = (" ".join(one.split()) for one in re.split(r"\n\s*\n", text))
    first = next(one for one in paragraphs if one and not one.startswith(("#", "|", "-", "<", "!", ">", "(", "1.", ":::")))
    about = ""
    for sentence in re.findall(r".+?(?:[.:?!](?= |$)|$)", _LINK.sub(r"\1", first)):
        if about and len(about) + len(sentence) > _MOST:
            break
        about += sentence
    return title.replace("`", ""), re.sub(r":$", ".", about.strip())


if __name__ == "__main__":
    if "--check" in sys.argv and (not FILE.exists() or written() != FILE.read_text("utf-8")):
        sys.exit(f"{FILE}: not what the pages say; run python docs/llms.py")
    FILE.write_text(written(), "utf-8")
