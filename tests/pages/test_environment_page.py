"""docs/reference/environment.md has a row for every environment variable that the package reads, and for no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mlflow_adk_eval.redact import SHORTEST, secret_values

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "environment.md").read_text("utf-8")
SOURCES = [file.read_text("utf-8") for file in sorted((ROOT / "mlflow_adk_eval").rglob("*.py"))]
_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|CI|NETRC|WORKSPACE|APPDATA")
NO_VARIABLES = {
    *("CUSTOMER_UNAUTHORIZED", "ENDPOINT_NOT_FOUND", "FEATURE_DISABLED", "INVALID_PARAMETER_VALUE", "NOT_FOUND", "NOT_IMPLEMENTED"),
    *("PERMISSION_DENIED", "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"),  # MLflow's error codes
    *("API_KEY", "FAILED_PRECONDITION", "FINISH_REASON_UNSPECIFIED"),  # Gemini's
    "RUN_ID",  # a placeholder in help texts
}
"""What looks like one in modules that read variables. Whoever adds a name there puts it here or on the page."""


def read_by_the_code() -> set[str]:
    """Return the names in all modules that have to do with the environment."""
    named: set[str] = set()
    for source in SOURCES:
        if not re.search(r"\b(environ|envvar|environment_variables)\b", source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
                named.add(node.value)
            elif isinstance(node, ast.ImportFrom) and node.module == "mlflow.environment_variables":
                named |= {alias.name for alias in node.names}
    return named


def rows() -> dict[str, list[str]]:
    """Return the cells of each row by each variable that its first cell names."""
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", PAGE, re.MULTILINE)]
    return {name: row for row in cells for name in re.findall(r"`([A-Z_]+)`", row[0])}


def test_the_page_names_every_variable_that_is_read() -> None:
    read = read_by_the_code()
    assert read >= NO_VARIABLES
    assert sorted(read - NO_VARIABLES - rows().keys()) == []


def test_every_variable_on_the_page_is_in_the_code() -> None:
    code = "\n".join(SOURCES)
    assert [name for name in rows() if not re.search(rf"\b{name}\b", code)] == []
    assert sorted(name for name in rows() if name.startswith("MLFLOW_ADK_EVAL_")) == sorted(
        set(re.findall(r"\bMLFLOW_ADK_EVAL_[A-Z_]*[A-Z]\b", code))
    )


def test_what_is_said_to_be_secret_is_hidden() -> None:
    value = "0" * SHORTEST
    said = {name for name, row in rows().items() if row[-1] == "yes"}
    hidden = {name for name, row in rows().items() if len(row) > 2 and secret_values({name: value})}
    assert said - hidden <= {"MLFLOW_ADK_EVAL_AGENT_HEADERS"}  # which the agent's own errors hide
    assert {"MLFLOW_ADK_EVAL_LEDGER_KEY", "GOOGLE_API_KEY", "MLFLOW_TRACKING_PASSWORD"} <= said
