"""What a run holds, as plain data, and whether it can be believed: its state, and the hashes of its artifacts.

Metrics, tags and artifacts of a run can be rewritten after it has ended; parameters cannot. So a parameter holds the hash
of the manifest and the manifest holds the hash of every artifact. Everything else is checked against those: `state_problems`
reads what the run says of itself, and `integrity_problems` compares the hashes. What the artifacts say is the business of `examined`; the logged metrics
and the logged verdict only have to agree with it (`contradictions`), since whoever may write to the run can change them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.evalset.parse import decode
from mlflow_adk_eval.results.repeats import variance
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.files import StoredFiles
from mlflow_adk_eval.runs.parts import ACTUAL, CASES, CELLS, PART_FOLDERS, SCHEMA, Part
from mlflow_adk_eval.text import few

FAILED_OF = "adk_eval.failed_of"
"""The parameter of a run that has only the cases that did not pass in an earlier one: the id of that one."""
PICKED = "adk_eval.picked"
"""The parameter of a run that has only cases which were picked by name: how many of how many."""
AGENT_MODELS = "adk_eval.agent.models"
"""The parameter that lists the models that the agent names, separated by `` | ``."""
UNTIL_DECIDED = "adk_eval.until_decided"
"""The parameter of a run that evaluated until it was decided: how many of the cases it has."""
_LONGEST = 200
_PRECISION = 1e-9
_DIGITS = 7
"""How many significant digits a logged metric has that is no whole number: as many as a column of MLflow's list of runs shows."""
_FOREIGN = re.compile(r"[^\w.\- :]")


def key_of_criterion(criterion: str) -> str:
    """Return `criterion` as it may stand in a key, unchanged where MLflow takes it as it is.

    >>> key_of_criterion("response_match_score")
    'response_match_score'
    >>> key_of_criterion("polite?")
    'polite__48cc92e7'
    """
    plain = _FOREIGN.sub("_", criterion)
    if plain == criterion and len(criterion) <= _LONGEST and criterion.strip(". ") == criterion:
        return criterion
    mark = hashlib.sha256(criterion.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{plain.strip('. ')[:_LONGEST]}_{mark}"


def part_of(params: Mapping[str, str]) -> str:
    """Return which part of its eval set a run covers; empty where it covers all of it.

    >>> part_of({PICKED: "1 of 4"}), part_of({})
    ('1 of 4 cases of the eval set, picked by name', '')
    """
    if whole := params.get(FAILED_OF):
        return f"the cases that did not pass in run {whole}"
    share = params.get(PICKED)
    return f"{share} cases of the eval set, picked by name" if share else ""


def prompt_keys(criterion: str) -> list[str]:
    """Return the parameters that hold the hashes of a criterion's prompts.

    >>> prompt_keys("per_turn_user_simulator_quality_v1")
    ['adk_eval.prompt.per_turn_user_simulator_quality_v1', 'adk_eval.prompt.per_turn_user_simulator_stop']
    """
    prompts = CRITERIA[criterion].prompts if criterion in CRITERIA else ()
    return [f"adk_eval.prompt.{key_of_criterion(name)}" for name in prompts or (criterion,)]


FOLDER = "adk_eval"
"""Where a run keeps its evidence."""
GATE_FOLDER = "adk_eval_gate"
"""Where a run keeps what is said of its evidence, which that must not change: attestations and records."""
CONFIG, MANIFEST = "config.json", "manifest.json"
_OTHER_SCHEMA = "read the run with the version that wrote it, or evaluate again"
_HEAD = ("eval_set_id", "name", "description", "creation_timestamp")

_NOT_FINISHED = {
    "RUNNING": "the run is still running",
    "SCHEDULED": "the run has not started",
    "KILLED": "the run was killed",
    "FAILED": "the run failed",
}
NOT_COMPLETE = {
    "running": "the evaluation did not finish (adk_eval.status is running)",
    "pending": "MLflow could not store all of the evaluation (adk_eval.status is pending); run `mlflow-adk-eval upload` on the machine that evaluated",
    "partial": "the run contains only part of the evaluation (adk_eval.status is partial)",
    "failed": "the evaluation failed (adk_eval.status is failed)",
    "self_comparison": "the recording was compared with itself (adk_eval.status is self_comparison)",
    "agent_changed": "the agent's version changed during the evaluation (adk_eval.status is agent_changed)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that was read from a run."""

    run_id: str
    status: str
    """MLflow's word, such as ``FINISHED``."""
    lifecycle_stage: str = "active"
    start_time: int | None = None
    """Milliseconds since 1970."""
    end_time: int | None = None
    """Likewise."""
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    model_ids: tuple[str, ...] = ()
    """The LoggedModels among the run's inputs."""
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    """What lies in `FOLDER`, by its path in there, without the manifest."""
    manifest: bytes | None = None
    attestation: bytes | None = None
    """What was signed when the evaluation ended; ``None``: nothing."""
    model_params: Mapping[str, str] = field(default_factory=dict)
    """The parameters of the LoggedModel that an attested run is about."""

    @property
    def sha256(self) -> str:
        """The hash of the manifest, in hex, and so of every artifact it names; empty where there is none."""
        return "" if self.manifest is None else sha256(self.manifest)


def sha256(content: bytes) -> str:
    """Return the hash of `content`, in hex."""
    return hashlib.sha256(content).hexdigest()


def state_problems(evidence: Evidence) -> list[str]:
    """Return why the run is not one whose evaluation has ended well, going by what it says of itself."""
    tags, params, problems = evidence.tags, evidence.params, list[str]()
    ours = bool(evidence.artifacts) or evidence.manifest is not None or any(key.startswith("adk_eval.") for key in (*tags, *params))
    if not ours:
        problems.append(_no_evaluation(tags))
    if evidence.lifecycle_stage != "active":
        problems.append(f"the run is {evidence.lifecycle_stage}")
    if evidence.status != "FINISHED":
        problems.append(_NOT_FINISHED.get(evidence.status, f"the run has the unknown status {evidence.status!r}"))
    elif evidence.end_time is None:
        problems.append("the run has the status FINISHED but no end time")
    if not ours:
        return problems
    schema, status = params.get("adk_eval.schema"), tags.get("adk_eval.status")
    kind, model_id = params.get("adk_eval.evidence"), params.get("adk_eval.model_id")
    if schema is None:
        problems.append("the run has no parameter adk_eval.schema, so its layout is unknown")
    elif schema != str(SCHEMA):
        problems.append(
            f"the run's parameter adk_eval.schema is {schema!r}; this version of mlflow-adk-eval reads and writes {SCHEMA}: {_OTHER_SCHEMA}"
        )
    if status is None:
        problems.append("the run has no tag adk_eval.status, so it may be incomplete")
    elif status != "complete":
        problems.append(NOT_COMPLETE.get(status, f"the run's tag adk_eval.status is {status!r}; wanted 'complete'"))
    if kind not in (None, status):
        problems.append(f"the run's parameter adk_eval.evidence is {kind!r}, so the run is not evidence, whatever its tags say")
    if model_id is not None and model_id not in evidence.model_ids:
        inputs = ", ".join(evidence.model_ids) or "none"
        problems.append(f"the run's parameter adk_eval.model_id names the agent version {model_id}, but its model inputs are {inputs}")
    return problems


def _no_evaluation(tags: Mapping[str, str]) -> str:
    """Return that a run contains no evaluation, and which functions log one."""
    instead = "evaluate with `mlflow-adk-eval run` or mlflow_adk_eval.evaluate, which log evidence, and use that run"
    if tags.get("mlflow.runType") == "genai_evaluate":
        return f"the run contains no evaluation: mlflow.genai.evaluate logs scores but no evidence; {instead}"
    return f"the run contains no evaluation: it has neither adk_eval tags nor artifacts; {instead}"


def agent_problems(evidence: Evidence, model_id: str) -> list[str]:
    """Return why the run is no evidence about the agent version `model_id`, a LoggedModel."""
    evaluated = evidence.params.get("adk_eval.model_id")
    if evaluated is None:
        return ["the run has no parameter adk_eval.model_id, so the evaluated agent version is unknown"]
    return [] if evaluated == model_id else [f"the run evaluated another agent version: {evaluated}, not {model_id}"]


def integrity_problems(evidence: Evidence) -> list[str]:
    """Return where the artifacts are not those that the run's parameter vouches for."""
    expected = evidence.params.get("adk_eval.manifest_sha256")
    if evidence.manifest is None:
        return [f"the run has no {FOLDER}/{MANIFEST}, so its artifacts cannot be checked"]
    if expected is None:
        return ["the run has no parameter adk_eval.manifest_sha256, so its manifest cannot be checked"]
    if evidence.sha256 != expected:
        return [
            f"{FOLDER}/{MANIFEST} was changed after the run: its sha256 is {evidence.sha256[:12]}…, but the parameter is {expected[:12]}…"
        ]
    manifest = read_manifest(evidence.manifest)
    if isinstance(manifest, str):
        return [manifest]
    artifacts, named = evidence.artifacts, manifest.artifacts
    changed = (name for name, digest in named.items() if name in artifacts and sha256_of(artifacts, name) != digest)
    # Those with votes are needed only where judges decide.
    required = (CONFIG, *(part.name(folder) for part in manifest.parts for folder in (CASES, ACTUAL, CELLS)))
    of_parts = {part.name(folder) for part in manifest.parts for folder in PART_FOLDERS}
    stray = (name for name in named if name.partition("/")[0] in PART_FOLDERS and name not in of_parts)
    return [
        *few(f"the artifact {FOLDER}/{name} is missing" for name in named if name not in artifacts),
        *few(f"the artifact {FOLDER}/{name} was changed after the run" for name in changed),
        *few(f"the artifact {FOLDER}/{name} is not in the manifest" for name in artifacts if name not in named),
        *few(f"the manifest does not list {FOLDER}/{name}" for name in required if name not in named),
        *few(f"{FOLDER}/{name} belongs to no part in the manifest" for name in stray),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a run says that it holds."""

    artifacts: Mapping[str, Any]
    """The hash of each artifact, by its path."""
    parts: tuple[Part, ...]
    eval_set: Mapping[str, Any]
    """The fields of the eval set besides its cases."""


def read_manifest(content: bytes) -> Manifest | str:
    """Return what a manifest says, or why it cannot be read."""
    place = f"{FOLDER}/{MANIFEST}"
    try:
        value = decode(content, place)
    except InputError as error:
        return f"{place} cannot be read: {error.problems[0]}"
    artifacts, schema = (value.get("artifacts"), value.get("schema")) if isinstance(value, dict) else (None, None)
    if not isinstance(artifacts, dict) or type(schema) is not int:
        return f"{place} is not a run's manifest"
    if schema != SCHEMA:
        return f"{place} is of schema {schema}; this version of mlflow-adk-eval reads and writes {SCHEMA}: {_OTHER_SCHEMA}"
    listed, head = value.get("parts"), value.get("eval_set")
    if not isinstance(listed, list) or not isinstance(head, dict) or not set(head) <= set(_HEAD):
        return f"{place} lists no parts, or names no eval set"
    try:
        return Manifest(artifacts=artifacts, parts=_parts_from(listed), eval_set=head)
    except ValueError as error:
        return f"{place} cannot be read: {error}"


def sha256_of(artifacts: Mapping[str, bytes], name: str) -> str:
    """Return the hash of an artifact, in hex."""
    return artifacts.sha256(name) if isinstance(artifacts, StoredFiles) else sha256(artifacts[name])


def _parts_from(listed: Sequence[Any]) -> tuple[Part, ...]:
    """Return the parts that a manifest lists.

    Raises:
        ValueError: if a number is none, or cases are missing or come twice between parts.
    """
    parts: list[Part] = []
    for number, item in enumerate(listed):
        if not isinstance(item, Mapping):
            raise ValueError(f"part {number} is {item!r}; wanted an object")  # noqa: TRY004 - of the manifest, not of this call
        counts: dict[str, Any] = {name: item.get(name) for name in ("first_case_no", "cases", "case_runs", "turns", "votes")}
        for name, value in counts.items():
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {value!r}; wanted a whole number")
        part = Part(number=number, **counts)
        wanted = parts[-1].last_case_no + 1 if parts else 0
        if part.first_case_no != wanted:
            raise ValueError(f"part {number} begins with case {part.first_case_no}; wanted {wanted}")
        if item.get("last_case_no") != part.last_case_no:
            raise ValueError(f"part {number} ends with case {item.get('last_case_no')!r}; wanted {part.last_case_no}")
        parts.append(part)
    return tuple(parts)


def rounded_metric(value: float) -> float:
    """Return a metric as it is logged.

    >>> rounded_metric(3 / 11), rounded_metric(123456789)
    (0.2727273, 123456789)
    """
    return value if float(value).is_integer() else float(f"{value:.{_DIGITS}g}")


def recomputed_metrics(report: Report) -> dict[str, float | None]:
    """Return the metrics of a run that follow from its table, by name; ``None``: the table has nothing to compute it from.

    They are logged when a run ends, rounded, and computed again by the gate. Confidence intervals are not among them: no decision rests on
    those. MLflow's pages show metrics in this order: what answers whether the run is good comes first.
    """
    cases, passed = report.case_counts
    summaries = {key_of_criterion(name): summary for name, summary in report.summaries().items()}
    metrics: dict[str, float | None] = {"case_pass_rate": passed / cases if cases else None}
    for key, summary in summaries.items():  # next to each mean, how many case runs it leaves out
        metrics |= {f"{key}/mean": summary.mean, f"{key}/missing": summary.missing if summary.planned else None}
    metrics |= {f"{key}/threshold": summary.threshold for key, summary in summaries.items() if cases}
    metrics["cases"] = cases
    for key, summary in summaries.items():
        measured = summary.threshold is not None or bool(summary.evaluated or summary.errored)
        metrics |= {
            f"{key}/{metric}": value
            for metric, value in (
                ("pass_rate", summary.pass_rate),
                ("evaluated", summary.evaluated if measured else None),
                ("errored", summary.errored if measured else None),
                ("planned", summary.planned if summary.missing else None),  # of how many, where some are missing
            )
        }
    return metrics | (dict(_repeat_metrics(report)) if report.num_runs > 1 else {})


def _repeat_metrics(report: Report) -> Iterator[tuple[str, float | None]]:
    repeats = report.repeats
    yield from ((f"pass_hat_{k}", repeats.pass_hat(k)) for k in repeats.ks)
    yield "flaky_cases", len(repeats.flaky) if repeats.cases else None
    yield "case_pass_rate_run_std", math.sqrt(variance(repeats.run_pass_rates)) if repeats.cases else None
    for name, spread in repeats.criteria.items():
        key = key_of_criterion(name)
        yield f"{key}/run_std", spread.run_std
        yield f"{key}/within_case_variance", spread.within_variance
        yield f"{key}/between_case_variance", spread.between_variance


def contradictions(evidence: Evidence, report: Report) -> Iterator[str]:
    """Yield where the run's metrics and its verdict are not those of the report in its table."""
    differing: list[str] = []
    for name, wanted in recomputed_metrics(report).items():
        logged_value = evidence.metrics.get(name)
        if logged_value is None:
            continue
        if wanted is None:
            differing.append(f"the logged metric {name} is {logged_value:g}, but nothing in the table supports it")
        elif not any(
            math.isclose(logged_value, value, rel_tol=_PRECISION, abs_tol=_PRECISION) for value in (rounded_metric(wanted), wanted)
        ):
            differing.append(f"the logged metric {name} is {logged_value:g}, but the table gives {wanted:g}")
    yield from few(differing)
    logged = evidence.tags.get("adk_eval.verdict")
    if logged is None:
        yield "the run has no tag adk_eval.verdict"
    elif logged != report.verdict:
        yield f"the run's tag adk_eval.verdict is {logged!r}, but its table gives {report.verdict!r}"
