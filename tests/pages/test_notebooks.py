"""The tutorials as notebooks: they are those of the pages, and each runs from top to bottom in an empty folder and comes to the same verdicts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.examples import Session, blocks
from docs.notebooks import PAGES, notebook_of

nbformat = pytest.importorskip("nbformat", reason="the matrix has no Jupyter")
UV = Path(sys.executable).with_name("uv")
VERDICT = re.compile(r"verdict: (?:passed|failed|undecided)|^\d+ of \d+ case(?:s| runs) passed", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebook_is_that_of_the_page(page: Path) -> None:
    text = page.with_suffix(".ipynb").read_text("utf-8")
    assert text == notebook_of(page), "run python docs/notebooks.py"
    nbformat.validate(nbformat.reads(text, as_version=4))
    assert not re.search(
        r"\b[0-9a-f]{32}\b", "".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_leads_to_its_notebook(page: Path) -> None:
    assert f"]({page.stem}.ipynb)" in page.read_text("utf-8")


def test_a_command_that_needs_two_variables_has_no_notebook(tmp_path: Path) -> None:
    ids = [str(number) * 32 for number in range(1, 4)]
    logged = "".join(f"$ mlflow-adk-eval run a b\nrun id: {one}\n" for one in ids)
    (tmp_path / "page.md").write_text(f"# Page\n\n```console\n{logged}$ mlflow-adk-eval compare {ids[0]} {ids[1]}\n```\n")
    with pytest.raises(ValueError, match="2 runs that need one"):
        notebook_of(tmp_path / "page.md")


def printed(notebook: Any) -> str:
    """Return what the cells of a notebook printed."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_runs_in_an_empty_folder_and_comes_to_the_verdicts_of_its_page(page: Path, tmp_path: Path, scripts: Path) -> None:
    environment = Session.of(tmp_path, scripts).environment
    environment.pop("PYTHONPATH", None)  # the checkout's package is not what a reader has
    notebook = nbformat.reads(page.with_suffix(".ipynb").read_text("utf-8"), as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell("report", id="shows")] if page.stem == "first_evaluation" else []
    nbformat.write(notebook, tmp_path / "page.ipynb")
    # These are not among the development packages: where IPython is installed, MLflow imports it with every run, and tenacity imports tornado.
    ran_by = [UV, "run", "--quiet", "--no-project", "--with", "ipykernel>=7,<8", "--with", "nbclient>=0.11,<1", "python"]
    command = [*ran_by, "-c", "from nbclient.cli import main; main()", "page.ipynb", "--inplace", "--timeout=300"]
    environment |= {"UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never", "VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ran = nbformat.read(tmp_path / "page.ipynb", as_version=4)
    shown = "".join(block.text for block in blocks(page.read_text("utf-8")) if block.language == "console")
    came = iter(VERDICT.findall(printed(ran)))
    assert [verdict for verdict in VERDICT.findall(shown) if verdict not in came] == [], "in this order; the page leaves some out"
    if ran.cells[-1].id == "shows":
        assert "11 of 11 cases passed in" in ran.cells[-1].outputs[0].data["text/html"]
