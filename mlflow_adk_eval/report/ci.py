"""What machines read of a result: exit codes, JUnit's XML, and what GitHub Actions takes from a step's output.

The command line returns `exit_code` of a report, or `EXIT_CODES` of a decision. `junit_of` and `annotations_of` show a decision of the
gate where CI systems show failed tests and remarks on a commit; `append_step_summary` adds a page of `markdown` to a job's summary.

GitHub takes a line that begins with ``::error::``, and ``##[error]`` anywhere in a line, for a command, whoever wrote it. So whatever quotes
texts of others is printed within `quoted`, as `quoted_json`, or with the escapes of an annotation.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree as ET

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.report.sentences import format_outages
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.outcomes import Verdict
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.text import beginning

EXIT_CODES: dict[Verdict, int] = {"passed": 0, "failed": 1, "undecided": 2}
"""What the command line returns for a verdict."""
_RUN_FAILED = 3

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable that names the file to which GitHub Actions takes additions."""
Level = Literal["error", "warning", "notice"]
_MAX_ANNOTATIONS = 9
"""GitHub shows ten of a kind for each step."""
_MAX_TEXT = 2000
_TITLE = "agent gate"
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def exit_code(report: Report) -> int:
    """Return what the command line returns for a report: by its verdict, or 3 if agent or judge could not be reached."""
    without_agent = bool(report.cases) and all(case.error for case in report.cases)
    without_model = report.verdict == "undecided" and bool(format_outages(report.judging, report.simulating))
    return _RUN_FAILED if without_agent or without_model else EXIT_CODES[report.verdict]


def junit_of(decision: Decision) -> str:
    """Return JUnit's XML with a test case for each check, and one for everything else that a promotion needs.

    A missed demand is a failure; what there is not enough evidence for, an error.
    """
    of_checks = {check.reason for check in decision.checks}
    others = [reason for reason in decision.reasons if reason not in of_checks]  # such as missing evidence
    open_checks = any(check.verdict != "passed" for check in decision.checks)
    explained = decision.passed or (open_checks and not others)
    results = [("evidence" if decision.checks else "thresholds", "passed" if explained else decision.verdict, "\n".join(others))]
    results += [(check.title, check.verdict, check.reason) for check in decision.checks]
    kinds = {"failed": "failure", "undecided": "error"}
    counts = {f"{kind}s": str(sum(found == verdict for _, found, _ in results)) for verdict, kind in kinds.items()}
    suite = ET.Element("testsuite", {"name": _TITLE, "tests": str(len(results)), **counts, "timestamp": decision.decided_at})
    for name, verdict, reason in results:
        case = ET.SubElement(suite, "testcase", classname=_TITLE, name=_xml(name))  # codespell:ignore testcase
        if verdict in kinds:
            ET.SubElement(case, kinds[verdict], message=_xml(reason[:_MAX_TEXT])).text = _xml(reason)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)


def append_step_summary(text: str) -> None:
    """Add `text` to the summary of the job of GitHub Actions that this process is part of; do nothing elsewhere.

    Raises:
        UsageError: if the file cannot be written.
    """
    named = os.environ.get(STEP_SUMMARY)
    if not named:
        return
    try:
        with Path(named).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"\n{text}\n")
    except OSError as error:
        raise UsageError(f"{STEP_SUMMARY}={named}: cannot be written: {error.strerror}") from None


def on_github() -> bool:
    """Whether this process is part of a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotations_of(decision: Decision) -> list[str]:
    """Return what GitHub is to show beside the code: what speaks against a promotion, or that nothing does, and what was waived."""
    waived = [_command("warning", f"{_TITLE}: waived", waiver) for waiver in decision.waived[:_MAX_ANNOTATIONS]]
    if decision.passed:
        return [_command("notice", f"{_TITLE} passed", decision.reasons[0]), *waived]
    open_checks = [check for check in decision.checks if check.verdict != "passed"]
    of_open_checks = {check.reason for check in open_checks}
    others = [reason for reason in decision.reasons if reason not in of_open_checks][:_MAX_ANNOTATIONS]
    levels: dict[Verdict, Level] = {"failed": "error"}
    checks = (
        _command(levels.get(check.verdict, "warning"), f"{_TITLE}: {check.title} {check.verdict}", check.reason)
        for check in open_checks[:_MAX_ANNOTATIONS]
    )
    return [*(_command("error", f"{_TITLE} {decision.verdict}", reason) for reason in others), *checks, *waived]


def _command(level: Level, title: str, text: str) -> str:
    r"""Return one workflow command.

    >>> _command("error", "a: b, c", "100 %\n::set-output::")
    '::error title=a%3A b%2C c::100 %25%0A::set-output::'
    """
    escaped = _data(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={escaped}::{_data(text)}"


def _data(text: str) -> str:
    printable = "".join(char if char.isprintable() or char in "\r\n" else " " for char in beginning(text, _MAX_TEXT))
    return printable.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


@contextmanager
def quoted(echo: Callable[[str], Any]) -> Generator[None, None, None]:
    """Have GitHub take for text whatever is printed within; do nothing elsewhere."""
    if not on_github():
        yield
        return
    token = secrets.token_hex(16)
    echo(f"::stop-commands::{token}")
    try:
        yield
    finally:
        echo(f"::{token}::")


def quoted_json(value: Any) -> str:
    r"""Return JSON in which GitHub finds no command.

    >>> quoted_json(["##[error]"])
    '[\n  "#\\u0023[error]"\n]'
    """
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False).replace("##[", r"#\u0023[")
