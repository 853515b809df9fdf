"""What a report tells of its agent as a recording, and recordings as files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from mlflow_adk_eval.agents.protocol import Conversation
from mlflow_adk_eval.agents.recordings.recording import Recording
from mlflow_adk_eval.agents.recordings.serialize import recorded_run
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet, eval_set_digest
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.evalset.recording import SCHEMA, RecordedCase, RecordedSet, dumps_recorded
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Report

NOT_HAD = "the recording was broken off before this conversation ended"


def recording_of_report(report: Report) -> Recording:
    """Return what the agent did in an evaluation."""
    runs: dict[str, tuple[Conversation, ...]] = {}
    for case in report.cases:
        runs[case.eval_id] = (*runs.get(case.eval_id, ()), _played(case))
    origin = report.origin or Origin()
    return Recording(runs, origin=replace(origin if origin.eval_set_digest else on(report.eval_set, origin), num_runs=report.num_runs))


def _played(case: CaseResult) -> Conversation:
    return Conversation(
        actual=case.actual,
        session_state=case.session_state,
        error=case.error,
        unfinished=case.unfinished,
        ending=case.ending,
        injections=case.injections,
    )


def on(eval_set: EvalSet, origin: Origin) -> Origin:
    """Return `origin` with what there is to know of the eval set."""
    return replace(
        origin,
        eval_set_id=eval_set.eval_set_id,
        eval_set_digest=eval_set_digest(eval_set),
        case_digests={case.eval_id: case_digest(case) for case in eval_set.eval_cases},
    )


def case_digest(case: EvalCase) -> str:
    """Return ``sha256:<hex>`` of what a case demands, however it is spelt."""
    return f"sha256:{hashlib.sha256(canonical_json(canonical(case))).hexdigest()}"


def changed_cases(origin: Origin, cases: Iterable[EvalCase]) -> list[str]:
    """Return the ids of the cases that are not as they were when they were recorded."""
    digests = origin.case_digests
    return [case.eval_id for case in cases if case.eval_id in digests and digests[case.eval_id] != case_digest(case)]


def save_recording(source: Report | Recording, path: str | Path) -> None:
    """Write what an agent did into a file that `score`, `evaluate` and the command line read as a recording.

    Values of environment variables that look like keys are struck from it, as from everything that this package writes.

    Args:
        source: the report of an evaluation, or a recording.
        path: the file, which is overwritten if it exists.

    Raises:
        UsageError: if it cannot be written.
    """
    text = dumps_recording(recording_of_report(source) if isinstance(source, Report) else source)
    target = Path(path)
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def dumps_recording(recording: Recording) -> str:
    """Return a recording as the text of a file."""
    origin = recording.origin or Origin()
    cases = [
        RecordedCase(eval_id=eval_id, **_given(digest=origin.case_digests.get(eval_id, "")), runs=tuple(map(recorded_run, runs)))
        for eval_id, runs in recording.runs.items()
    ]
    head = _given(
        eval_set_id=origin.eval_set_id,
        eval_set_digest=origin.eval_set_digest,
        agent=origin.agent,
        agent_version=origin.agent_version,
        recorded_at=origin.recorded_at,
    )
    num_runs = max([origin.num_runs, *map(len, recording.runs.values())])
    text = dumps_recorded(RecordedSet(adk_eval_recording=SCHEMA, **head, num_runs=num_runs, cases=tuple(cases)))
    return f"{_without_secrets(text, secrets_of())}\n"


def _given(**texts: str) -> dict[str, Any]:
    return {name: text for name, text in texts.items() if text}


def _without_secrets(text: str, secrets: Mapping[str, str]) -> str:
    """Return a JSON text whose strings hold no secret; one that is all digits may also be found in a number, which stays."""
    if not any(secret in text for secret in secrets):
        return text
    return to_json(_clean(from_json(text), secrets), indent=2, inf_nan_mode="constants").decode()


def _clean(value: Any, secrets: Mapping[str, str]) -> Any:
    match value:
        case str():
            return redacted(value, secrets)
        case dict():
            return {redacted(key, secrets): _clean(item, secrets) for key, item in value.items()}
        case list():
            return [_clean(item, secrets) for item in value]
        case _:
            return value
