"""docs/how_to/troubleshooting.md has an entry for every error of the package. What its commands print is compared by `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

import mlflow_adk_eval.errors
from mlflow_adk_eval.errors import AdkEvalError
from mlflow_adk_eval.results.decision import GateFailed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how_to" / "troubleshooting.md").read_text("utf-8")
CODE = "\n".join(file.read_text("utf-8") for file in sorted((ROOT / "mlflow_adk_eval").rglob("*.py")))


def all_errors() -> list[str]:
    """Return the names of all errors of the package, by what its code says they derive from."""
    bases = dict(re.findall(r"^class ([A-Za-z]\w*)\((\w+)[,)]", CODE, re.MULTILINE))
    found = [AdkEvalError.__name__]
    for one in found:
        found += [name for name, base in bases.items() if base == one]
    return found[1:]


def test_every_error_has_an_entry() -> None:
    errors = all_errors()
    assert len(errors) > 15
    headings = re.findall(r"^## (.+)", PAGE, re.MULTILINE)
    own = [name for name in errors if name == GateFailed.__name__ or name in vars(mlflow_adk_eval.errors)]
    assert sorted(headings[:-1]) == sorted(own)
    assert [name for name in errors if f"`{name}`" not in PAGE and name not in headings] == []


def test_every_entry_of_an_error_has_a_message_a_cause_and_a_remedy() -> None:
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:-1]:
        assert re.search(r"^```(console|output|text)\n", section, re.MULTILINE), section
        assert "**Fix.**" in section


def test_messages_that_no_command_of_the_page_prints_are_those_of_the_code() -> None:
    texts = "".join(re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)).replace("\n", " ")
    for said in ("is being set: ", " is in progress; if that process died, try again after ", "Sigstore could not sign the evaluation: "):
        assert said in texts
        assert said in CODE
