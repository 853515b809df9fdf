"""Comparing runs in MLflow, or reports, and keeping the page that explains what changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mlflow_adk_eval.analysis.comparison.compare import ComparedRun, Comparison, compared, compared_run
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.gating.evidence.examine import ReadableRun, examine
from mlflow_adk_eval.gating.evidence.integrity import Evidence
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.client import page_of

PAGES = "adk_eval_compare"
"""The folder of a run's artifacts that holds its comparisons; not among its evidence, to which nothing may be added."""
_MAX_TOLD = 3


def compare(a: str | Report, b: str | Report, *, confidence: float = 0.95, tracking_uri: str | None = None) -> Comparison:
    """Return what changed from run `a` to run `b`: flipped cases with their causes, and how far the means lie apart.

    Args:
        a: the run before, by its id, or a report, logged or not.
        b: the run after.
        confidence: how often each end of an interval is to hold, and one less the chance that a change that is none is called
            one; between 0.5 and 1.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if there is no such run, it holds no evaluation, or the confidence makes no sense.
        TrackingError: if MLflow cannot be reached, or the evidence of a run cannot be believed.
    """
    if not 0.5 < confidence < 1:  # noqa: PLR2004 - below, an end of an interval would hold less often than not
        raise UsageError(f"confidence is {confidence!r}; wanted a number between 0.5 and 1")
    before, after = (_side(run, name, tracking_uri) for run, name in ((a, "before"), (b, "after")))
    return compared(before, after, confidence=confidence)


def _side(run: str | Report, name: str, tracking_uri: str | None) -> ComparedRun:
    if isinstance(run, Report):
        return compared_run(run, name)
    if not run:
        raise UsageError("the run id is empty")
    with store_at(tracking_uri) as store:
        evidence = store.evidence(run)
    return run_of_evidence(evidence)


def run_of_evidence(evidence: Evidence) -> ComparedRun:
    """Return what a run holds as one side of a comparison.

    Raises:
        UsageError: if it holds no evaluation.
        TrackingError: if its evidence cannot be believed.
    """
    if evidence.manifest is None and "adk_eval.manifest_sha256" not in evidence.params:
        raise UsageError(f"run {evidence.run_id} holds no finished evaluation, so that there is nothing to compare")
    examined = examine(evidence)
    if not isinstance(examined, ReadableRun):
        problems = examined.problems
        more = f"; and {len(problems) - _MAX_TOLD} more" if len(problems) > _MAX_TOLD else ""
        raise TrackingError(f"run {evidence.run_id}: {'; '.join(problems[:_MAX_TOLD])}{more}, so it cannot be compared")
    return run_of_examined(examined)


def run_of_examined(run: ReadableRun) -> ComparedRun:
    """Return a run whose evidence was examined as one side of a comparison; its problems become warnings."""
    evidence, copies = run.evidence, run.documents.copies
    name, digest = evidence.tags.get("mlflow.runName", "") or evidence.run_id, evidence.params.get("adk_eval.eval_set_digest", "")
    found = compared_run(run.report, name, run.rows, digest=digest, copies=copies)
    return replace(found, run_id=evidence.run_id, facts=dict(_facts(evidence)), warnings=run.problems)


_PARAMS: Mapping[str, str] = {
    "adk_eval.model_id": "Agent version",
    "adk_eval.judge_model": "Judges",
    "adk_eval.user_simulator.model": "Simulated users",
    "adk_eval.baseline": "Baseline",
}
_PREFIXES: Mapping[str, str] = {
    "adk_eval.judge.": "Judge of ",
    "adk_eval.prompt.": "Prompt of ",
    "adk_eval.version.": "Version of ",
}


def _facts(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield what a run's parameters say of agent, judges and surroundings. Tags could be rewritten; the agent's name is only shown."""
    yield from ((label, evidence.params[name]) for name, label in _PARAMS.items() if name in evidence.params)
    if "adk_eval.agent_version" in evidence.tags:
        yield "Agent", evidence.tags["adk_eval.agent_version"]
    for prefix, label in _PREFIXES.items():
        for name, value in sorted(evidence.params.items()):
            if name.startswith(prefix):
                yield label + name.removeprefix(prefix), value


def log_comparison(found: Comparison, html: str, *, tracking_uri: str | None = None) -> str:
    """Keep the page of a comparison with the second run; return where a browser shows it.

    Args:
        found: the comparison.
        html: the page.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if one of the sides is no run of MLflow.
        TrackingError: if MLflow cannot be reached.
    """
    before, after = found.before.run_id, found.after.run_id
    if not before or not after:
        raise UsageError("only a comparison of two runs in MLflow can be logged")
    path = f"{PAGES}/{before}.html"
    with store_at(tracking_uri) as store:
        store.client.log_text(after, html, path)
    return page_of(after, f"/artifacts/{path}", tracking_uri)
