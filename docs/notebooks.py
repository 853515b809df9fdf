"""Write each tutorial as a notebook, docs/tutorials/*.ipynb; ``--check`` only says whether the notebooks are those of the pages.

The pages are the source. Prose becomes Markdown, a block that shows a file becomes a cell that writes it, and the commands of a console block
become one cell for bash: it stops where the page's reader would see an unexpected exit code. What the commands print comes when the cells are run, so no
output is kept. Runs have other ids on each machine: commands name the run that was logged last as ``latest``, where a command takes that, and look up
the others.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from docs.examples import Block, Typed, blocks, typed

PAGES = sorted((Path(__file__).parent / "tutorials").glob("*.md"))
_ID = re.compile(r"\b[0-9a-f]{32}\b")
_LOGGED = re.compile(r"^run id: (\w{32})$", re.MULTILINE)
_RUN = "mlflow-adk-eval run "
_SHOWN = {"bash", "json", "mermaid"}
"""Languages of blocks that a reader of the page only looks at."""
_NOTE = """\
This notebook has the commands of [the page]({page}), which shows what each of them prints. Start it in an empty folder.
Instead of ids of runs, you find `latest`, the run that was logged last, or a line that looks the id up.

The next cell makes commands print plain text, without progress bars."""
_MAGIC = {"cd ": "%cd ", "pip ": "%pip ", "python ": "%run "}
"""Commands that act on the notebook itself, where a cell for bash would forget them, and what they are called there."""
_MAGICS = re.compile("|".join(f"^{command}" for command in _MAGIC))
_LINK = "This page is also [a notebook]({page}.ipynb).\n\n"
"""What only the page needs."""
_LISTED = """\
run=$(mlflow-adk-eval runs --json |
  python -c 'import json, sys; print(json.load(sys.stdin)[{place}]["run_id"])')"""


def notebook_of(page: Path) -> str:
    """Return the notebook of a page, as JSON."""
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(_cells(page))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cells(page: Path) -> Iterator[dict[str, object]]:
    text, at = page.read_text("utf-8"), 0
    runs: list[str] = []
    title, _, text = text.replace(_LINK.format(page=page.stem), "").partition("\n\n")
    yield _markdown(f"{title}\n\n{_NOTE.format(page=page.name)}")
    yield _code("%env TTY_COMPATIBLE=0")
    for block in blocks(text):
        if block.language in _SHOWN and not block.file:
            continue  # it stays in the prose around it
        yield from _prose(text[at : text.rindex("```", 0, block.start)])
        at = text.index("\n", block.end) + 1
        yield from _written(block) if block.file else _commands(block, runs)
    yield from _prose(text[at:])


def _prose(text: str) -> Iterator[dict[str, object]]:
    if text.strip():
        yield _markdown(re.sub(r"\]\((\w+)\.md", r"](\1.ipynb", text.strip()))  # the other tutorials are notebooks, too


def _markdown(text: str) -> dict[str, object]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(text: str, *tags: str) -> dict[str, object]:
    metadata = {"tags": [*tags]} if tags else {}
    return {"cell_type": "code", "execution_count": None, "metadata": metadata, "outputs": [], "source": text.splitlines(keepends=True)}


def _written(block: Block) -> Iterator[dict[str, object]]:
    folder = str(Path(str(block.file)).parent)
    yield from [_code(f"%mkdir -p {folder}")] if folder != "." else []
    yield _code(f"%%writefile {block.file}\n" + block.text.partition("\n")[2].rstrip())


def _commands(block: Block, runs: list[str]) -> Iterator[dict[str, object]]:
    """Yield the cells of a console block; `runs`: those logged so far, empty where the page leaves out an id, to which this adds."""
    lines: list[str] = []

    def bash() -> Iterator[dict[str, object]]:
        yield from [_code("\n".join(["%%bash -e", *lines]))] if lines else []
        lines.clear()

    for one, following in pairwise([*typed(block.text), Typed("", "")]):
        if magic := _MAGICS.match(one.command):
            yield from bash()
            yield _code(_MAGICS.sub(lambda found: _MAGIC[found[0]], one.command), *(["skip-execution"] if magic[0] == "pip " else []))
        elif one.command != "echo $?":
            lines.append(_named(one.command, runs) + (" || echo $?" if following.command == "echo $?" else ""))
        if one.command.startswith(_RUN):
            runs.append("".join(_LOGGED.findall(one.shown)))
    yield from bash()


def _named(command: str, runs: list[str]) -> str:
    """Return a command with names in the place of ids.

    Raises:
        ValueError: if it has several ids that need a variable, for which there is only one name.
    """
    last = runs[-1] if runs and not command.startswith(_RUN) else ""  # whose options take ids alone
    others = {run for run in _ID.findall(command) if run != last}
    if len(others) > 1:
        raise ValueError(f"{command}: a notebook has one variable for a run, but here are {len(others)} runs that need one")
    listed = [_LISTED.format(place=len(runs) - 1 - runs.index(run)) for run in others]
    return "\n".join([*listed, _ID.sub(lambda run: "latest" if run[0] == last else "$run", command)])


if __name__ == "__main__":
    for page in PAGES:
        target = page.with_suffix(".ipynb")
        if "--check" in sys.argv and (not target.exists() or notebook_of(page) != target.read_text("utf-8")):
            sys.exit(f"{target}: not what the page says; run python docs/notebooks.py")
        target.write_text(notebook_of(page), "utf-8")
