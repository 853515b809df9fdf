"""A decision of the gate as a page in Markdown and as JUnit's XML, for what shows the results of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from mlflow_adk_eval.report.markdown import MARKS, plain, row
from mlflow_adk_eval.results.decision import Check, Decision

_MAX_REASON = 2000
_MAX_LINES = 100
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SUITE = "agent gate"


def decision_summary(decision: Decision, title: str = "") -> str:
    """Return the verdict, the reasons, a table of what was checked, the waivers and the notes.

    Args:
        decision: what was decided.
        title: about what; empty: about the run.
    """
    parts = [
        f"### {MARKS[decision.verdict]} Agent gate {decision.verdict}: {plain(title or f'run {decision.run_id}')}",
        _listed("", decision.reasons),
        _checks(decision.checks),
        _listed("**Waived**", decision.waived),
        _listed("**Notes**", decision.notes),
        _identity(decision),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _listed(head: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    more = [f"- and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
    listed = "\n".join([*(f"- {plain(line, _MAX_REASON)}" for line in lines[:_MAX_LINES]), *more])
    return f"{head}\n\n{listed}" if head else listed


def _checks(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    heads = ("rule", "demand", "value", "baseline", "difference", "p", "cases", "verdict")
    rows = [row(*heads), "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |", *(row(*_cells(check)) for check in checks[:_MAX_LINES])]
    more = f"\n\nand {len(checks) - _MAX_LINES} more checks" if len(checks) > _MAX_LINES else ""
    return "\n".join(rows) + more


def _cells(check: Check) -> tuple[str, ...]:
    interval = "" if check.low is None or check.high is None else " " + plain(f"[{check.low:.4g}, {check.high:.4g}]")
    compared = check.difference is not None
    return (
        plain(f"{check.slice}: {check.measure}" if check.slice else check.measure),
        plain(check.demand),
        _number(check.value) + ("" if compared else interval),
        _number(check.baseline),
        ("" if check.difference is None else f"{check.difference:+.4g}") + (interval if compared else ""),
        "" if check.p_value is None else f"{check.p_value:.3g}",
        str(check.cases),
        f"{MARKS[check.verdict]} {check.verdict}",
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _identity(decision: Decision) -> str:
    told = {
        "run": decision.run_id,
        "compared with run": decision.baseline_run_id,
        "evidence": decision.evidence_sha256[:12],
        "policy": decision.policy_sha256[:12],
        "decided": " by ".join(filter(None, (decision.decided_at, decision.decided_by))),
    }
    return " · ".join(f"{name} {plain(value)}" for name, value in told.items() if value)


def junit_of(decision: Decision) -> str:
    """Return JUnit's XML with a test case for each check, and one for everything else that a promotion needs.

    A missed demand is a failure; what there is not enough evidence for, an error.
    """
    told = {check.reason for check in decision.checks}
    others = [reason for reason in decision.reasons if reason not in told]
    open_checks = any(check.verdict != "passed" for check in decision.checks)
    explained = decision.passed or (open_checks and not others)
    results = [("evidence" if decision.checks else "thresholds", "passed" if explained else decision.verdict, "\n".join(others))]
    results += [(_name(check), check.verdict, check.reason) for check in decision.checks]
    kinds = {"failed": "failure", "undecided": "error"}
    counts = {f"{kind}s": str(sum(found == verdict for _, found, _ in results)) for verdict, kind in kinds.items()}
    suite = ET.Element("testsuite", {"name": _SUITE, "tests": str(len(results)), **counts, "timestamp": decision.decided_at})
    for name, verdict, reason in results:
        case = ET.SubElement(suite, "testcase", classname=_SUITE, name=_xml(name))
        if verdict in kinds:
            ET.SubElement(case, kinds[verdict], message=_xml(reason[:_MAX_REASON])).text = _xml(reason)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _name(check: Check) -> str:
    return " ".join(filter(None, (check.slice, check.measure, check.demand)))


def _xml(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
