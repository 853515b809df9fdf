"""Scores as assessments on the traces that were scored, each with its reason.

An assessment's id follows from the trace, the config and the name, so that whoever writes it again writes nothing: neither a call that goes on after an
interruption nor one whose answer was lost leaves anything twice.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Assessment
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.rest_store import RestStore
from mlflow.tracing.client import TracingClient

from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.outcomes import CaseResult, grouped
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import table_of
from mlflow_adk_eval.runs.stored_run import loaded
from mlflow_adk_eval.store.reaching import is_absent
from mlflow_adk_eval.tracking.storable import Secrets, clean_table
from mlflow_adk_eval.tracking.trace_records import PASSED, assessed_rows
from mlflow_adk_eval.tracking.traces import CONFIG_DIGEST, OF_RUN, THROUGH, feedback_of, trace_rows

_CASES_AT_ONCE, _REQUESTS = 200, 10


def write_assessments(client: MlflowClient, experiment_id: str, report: Report, config_digest: str, last: Mapping[str, str]) -> int:
    """Write what traces lack of the scores of a report, and return how many assessments that were.

    A conversation that could not be judged gets none, so that it is scored once that is possible.

    Args:
        client: where the traces are.
        experiment_id: their experiment.
        report: the scores; the invocation ids of its turns are the ids of traces.
        config_digest: of the criteria.
        last: by eval id, the last trace of conversations whose last turn in the report is in another.

    Raises:
        MlflowException: if MLflow does not take one. Others may be written.
    """
    tracing, secrets, written = TracingClient(client.tracking_uri), secrets_of(), 0
    store: Any = tracing.store
    origin = {CONFIG_DIGEST: config_digest, OF_RUN: str(report.run_id)}
    rows = trace_rows(store, experiment_id)
    cases = iter(report.cases)
    while some := [loaded(case) for case in islice(cases, _CASES_AT_ONCE)]:
        assessments = _assessments(some, report, origin, last, secrets)
        if rows:
            written += rows.assess(assessments)
            continue

        def of_trace(entry: tuple[str, Sequence[Assessment]]) -> int:
            trace_id, wanted = entry
            try:
                there = {one.assessment_id for one in tracing.get_trace_info(trace_id).assessments}
            except MlflowException as error:
                if is_absent(error):
                    return 0
                raise
            return sum(_created(store, one) for one in wanted if one.assessment_id not in there)

        parts = grouped((THROUGH in (one.metadata or {}), one) for one in assessments)
        with ThreadPoolExecutor(_REQUESTS if isinstance(store, RestStore) else 1) as pool:
            for part in (parts.get(False, ()), parts.get(True, ())):  # so that whoever is killed leaves no mark on what is incomplete
                written += sum(pool.map(of_trace, grouped((str(one.trace_id), one) for one in part).items()))
    return written


def _assessments(
    cases: Sequence[CaseResult], report: Report, origin: Mapping[str, str], last: Mapping[str, str], secrets: Secrets
) -> list[Assessment]:
    """Return the assessments of some conversations, each on the trace of its turn; the last one of each marks the conversation as scored."""
    cases = [case for case in cases if case.verdict != "undecided" or case.conversation.unfinished]
    through = {case.eval_id: last.get(case.eval_id) or _trace_of(case.expected[-1].invocation_id) for case in cases if case.expected}
    table, _ = clean_table(table_of(cases, report.criteria), secrets)
    turns = {(case.eval_id, index): turn.invocation_id for case in cases for index, turn in enumerate(case.expected or ())}
    now, made, last_of = int(time.time() * 1000), list[Assessment](), dict[str, Assessment]()
    for case, row, several in assessed_rows(cases, table, secrets):
        turn = turns[case.eval_id, row["invocation_index"]]
        for given in several:
            error = row["agent_error"] if given.name == PASSED else ""
            assessed = replace(given, value=False, code="", error="", rationale=error) if error else given
            if isinstance(assessed.value, float) and not assessed.rationale:
                threshold = float(assessed.metadata["threshold"])
                assessed = replace(assessed, rationale=f"The score is {assessed.value:g}; the threshold is {threshold:g}.")
            digest = hashlib.sha256(f"{turn}/{origin[CONFIG_DIGEST]}/{assessed.name}".encode()).hexdigest()
            place = {"trace_id": _trace_of(turn), "create_time_ms": now, "last_update_time_ms": now}
            feedback = feedback_of(assessed, origin, **place)
            feedback.assessment_id = f"a-{digest[:32]}"
            made.append(feedback)
            last_of[case.eval_id] = feedback
    for eval_id, feedback in last_of.items():
        feedback.metadata = {**(feedback.metadata or {}), THROUGH: through[eval_id]}
    return made


def _trace_of(invocation_id: str) -> str:
    """Return the trace of a turn; one that has several turns numbers them."""
    return invocation_id.partition("#")[0]


def _created(store: Any, assessment: Assessment) -> bool:
    """Create an assessment; one whose trace is gone is not."""
    try:
        store.create_assessment(assessment)
    except MlflowException as error:
        if is_absent(error):
            return False
        # It is there if an answer was lost, or another process was faster.
        with suppress(MlflowException):
            store.get_assessment(assessment.trace_id, assessment.assessment_id)
            return True
        raise
    return True
