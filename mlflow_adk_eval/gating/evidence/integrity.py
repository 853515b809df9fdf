"""What a run holds, as plain data, and whether it can be believed: its state, and the hashes of its artifacts.

Metrics, tags and artifacts of a run can be rewritten after it has ended; parameters cannot. So a parameter holds the hash
of the manifest and the manifest holds the hash of every artifact. Everything else is checked against those: `state_problems`
reads what the run says of itself, and `integrity_problems` compares the hashes. What the artifacts say is the business of `documents`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.evalset.parse import decode
from mlflow_adk_eval.results.parts import ACTUAL, CASES, CELLS, Part
from mlflow_adk_eval.results.parts import VOTES as VOTES_FOLDER
from mlflow_adk_eval.results.stored import parts_from

FAILED_OF = "adk_eval.failed_of"
"""The parameter of a run that has only the cases that did not pass in an earlier one: the id of that one."""
_LONGEST = 200
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


def prompt_keys(criterion: str) -> list[str]:
    """Return the parameters that hold the hashes of a criterion's prompts.

    >>> prompt_keys("per_turn_user_simulator_quality_v1")
    ['adk_eval.prompt.per_turn_user_simulator_quality_v1', 'adk_eval.prompt.per_turn_user_simulator_stop']
    """
    prompts = CRITERIA[criterion].prompts if criterion in CRITERIA else ()
    return [f"adk_eval.prompt.{key_of_criterion(name)}" for name in prompts or (criterion,)]


SCHEMA = "1"
"""The version of the layout of the runs that are written now."""
ONE_FILE, IN_PARTS = "1", "2"
"""The versions of a run's layout: cases, table and votes in one file each, or in parts."""
_SCHEMAS = (ONE_FILE, IN_PARTS)
FOLDER = "adk_eval"
"""Where a run keeps its evidence."""
GATE_FOLDER = "adk_eval_gate"
"""Where a run keeps what is said of its evidence, which that must not change: attestations and records."""
EVAL_SET, CONFIG, TABLE, MANIFEST = "eval_set.json", "config.json", "invocations.json", "manifest.json"
VOTES = "votes.parquet"
"""Only runs in which a model was to decide something have it."""
_REQUIRED = {ONE_FILE: (EVAL_SET, CONFIG, TABLE), IN_PARTS: (CONFIG,)}
_PART_FOLDERS = (CASES, ACTUAL, CELLS, VOTES_FOLDER)
_MAX_NAMED = 5
_HEAD = ("eval_set_id", "name", "description", "creation_timestamp")

_NOT_FINISHED = {
    "RUNNING": "the run is still running",
    "SCHEDULED": "the run has not started",
    "KILLED": "the run was killed",
    "FAILED": "the run failed",
}
_NOT_COMPLETE = {
    "running": "the evaluation had not finished when it last wrote to the run (adk_eval.status is running)",
    "pending": "MLflow could not take all of the evaluation (adk_eval.status is pending); `mlflow-adk-eval upload` finishes it where it was run",
    "partial": "the run holds only part of the evaluation (adk_eval.status is partial)",
    "failed": "the evaluation failed (adk_eval.status is failed)",
    "self_comparison": "the recording was compared with itself, which proves nothing (adk_eval.status is self_comparison)",
    "agent_changed": "another version of the agent was put behind its address during the evaluation (adk_eval.status is agent_changed)",
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


class Few:
    """The first findings of a kind, and how many there are: of a large run, there may be a million."""

    def __init__(self, limit: int = _MAX_NAMED) -> None:
        """Take how many are named at most."""
        self._limit, self._first, self.count = limit, list[str](), 0

    def add(self, findings: Iterable[str]) -> None:
        """Add findings."""
        for finding in findings:
            self.count += 1
            if self.count <= self._limit:
                self._first.append(finding)

    @property
    def named(self) -> list[str]:
        """The first, and how many there are besides."""
        if self.count <= self._limit:
            return list(self._first)
        return [*self._first[: self._limit - 1], f"and {self.count - self._limit + 1} more of this kind"]


def few(found: Iterable[str], *, limit: int = _MAX_NAMED) -> list[str]:
    """Return the first findings, and how many there are besides.

    >>> few(["a", "b", "c"], limit=2)
    ['a', 'and 2 more of this kind']
    """
    kept = Few(limit)
    kept.add(found)
    return kept.named


def state_problems(evidence: Evidence) -> list[str]:
    """Return why the run is not one whose evaluation has ended well, going by what it says of itself."""
    if (
        not evidence.artifacts
        and evidence.manifest is None
        and not any(key.startswith("adk_eval.") for key in (*evidence.tags, *evidence.params))
    ):
        return ["the run holds no evaluation: it has neither adk_eval tags nor artifacts", *_run_problems(evidence)]
    return [*_run_problems(evidence), *_tag_problems(evidence.tags), *_kind_problems(evidence), *_input_problems(evidence)]


def _run_problems(evidence: Evidence) -> Iterator[str]:
    if evidence.lifecycle_stage != "active":
        yield f"the run is {evidence.lifecycle_stage}"
    if evidence.status != "FINISHED":
        yield _NOT_FINISHED.get(evidence.status, f"the run has the unknown status {evidence.status!r}")
    elif evidence.end_time is None:
        yield "the run has the status FINISHED but no end time"


def _tag_problems(tags: Mapping[str, str]) -> Iterator[str]:
    schema, status = tags.get("adk_eval.schema"), tags.get("adk_eval.status")
    if schema is None:
        yield "the run has no tag adk_eval.schema, so its layout is unknown"
    elif schema not in _SCHEMAS:
        yield f"the run's tag adk_eval.schema is {schema!r}; this version reads {' and '.join(map(repr, _SCHEMAS))}"
    if status is None:
        yield "the run has no tag adk_eval.status, so it may be incomplete"
    elif status != "complete":
        yield _NOT_COMPLETE.get(status, f"the run's tag adk_eval.status is {status!r}; wanted 'complete'")


def _kind_problems(evidence: Evidence) -> Iterator[str]:
    kind = evidence.params.get("adk_eval.evidence")
    if kind is not None and evidence.tags.get("adk_eval.status") != kind:
        yield f"the run's parameter adk_eval.evidence is {kind!r}, so it is not evidence, whatever its tags say"


def _input_problems(evidence: Evidence) -> Iterator[str]:
    model_id = evidence.params.get("adk_eval.model_id")
    if model_id is not None and model_id not in evidence.model_ids:
        found = ", ".join(evidence.model_ids) or "none"
        yield f"the run's parameter adk_eval.model_id names the agent version {model_id}, but its model inputs are {found}"


def agent_problems(evidence: Evidence, model_id: str) -> list[str]:
    """Return why the run is no evidence about the agent version `model_id`, a LoggedModel."""
    evaluated = evidence.params.get("adk_eval.model_id")
    if evaluated is None:
        return ["the run has no parameter adk_eval.model_id, so it is unknown which agent version it evaluated"]
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
            f"{FOLDER}/{MANIFEST} was changed after the run: its sha256 is {evidence.sha256[:12]}…, the parameter says {expected[:12]}…"
        ]
    manifest = read_manifest(evidence.manifest)
    if isinstance(manifest, str):
        return [manifest]
    tag = evidence.tags.get("adk_eval.schema", manifest.schema)
    return [
        *([] if tag == manifest.schema or tag not in _SCHEMAS else [_other_schema(tag, manifest)]),
        *_artifact_problems(evidence.artifacts, manifest.artifacts),
        *few(f"the manifest does not name {FOLDER}/{name}" for name in manifest.required if name not in manifest.artifacts),
        *few(f"{FOLDER}/{name} belongs to no part that the manifest lists" for name in manifest.stray),
    ]


def _other_schema(tag: str, manifest: Manifest) -> str:
    return f"the run's tag adk_eval.schema is {tag!r}, but {FOLDER}/{MANIFEST} is of schema {manifest.schema}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a run says that it holds."""

    schema: str
    artifacts: Mapping[str, Any]
    """The hash of each artifact, by its path."""
    parts: tuple[Part, ...] = ()
    eval_set: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What a run in parts says of its eval set besides the cases."""

    @property
    def required(self) -> Iterator[str]:
        """The artifacts without which nothing can be decided; those with votes are needed only where judges decide."""
        yield from _REQUIRED[self.schema]
        yield from (part.name(folder) for part in self.parts for folder in (CASES, ACTUAL, CELLS))

    @property
    def stray(self) -> list[str]:
        """What it names among the files of the parts that belongs to none of them."""
        known = {part.name(folder) for part in self.parts for folder in _PART_FOLDERS}
        beside = [name for name in self.artifacts if name.partition("/")[0] in _PART_FOLDERS and name not in known]
        return beside if self.schema == IN_PARTS else []


def read_manifest(content: bytes) -> Manifest | str:
    """Return what a manifest says, or why it cannot be read."""
    place = f"{FOLDER}/{MANIFEST}"
    try:
        value = decode(content, place)
    except InputError as error:
        return f"{place} cannot be read: {error.problems[0]}"
    artifacts = value.get("artifacts") if isinstance(value, dict) else None
    schema = str(value.get("schema")) if isinstance(value, dict) and type(value.get("schema")) is int else ""
    if not isinstance(artifacts, dict) or schema not in _SCHEMAS:
        return f"{place} is not a manifest of schema {' or '.join(_SCHEMAS)}"
    if schema == ONE_FILE:
        return Manifest(schema=schema, artifacts=artifacts)
    listed, head = value.get("parts"), value.get("eval_set")
    if not isinstance(listed, list) or not isinstance(head, dict) or not set(head) <= set(_HEAD):
        return f"{place} lists no parts, or does not say which eval set they are of"
    try:
        return Manifest(schema=schema, artifacts=artifacts, parts=parts_from(listed), eval_set=head)
    except ValueError as error:
        return f"{place} cannot be read: {error}"


def sha256_of(artifacts: Mapping[str, bytes], name: str) -> str:
    """Return the hash of an artifact, in hex."""
    known = getattr(artifacts, "sha256", None)  # of artifacts that are files, which need not be read for it
    return known(name) if known else sha256(artifacts[name])


def _artifact_problems(artifacts: Mapping[str, bytes], named: Mapping[str, Any]) -> Iterator[str]:
    yield from few(f"the artifact {FOLDER}/{name} is missing" for name in named if name not in artifacts)
    yield from few(
        f"the artifact {FOLDER}/{name} was changed after the run"
        for name, digest in named.items()
        if name in artifacts and sha256_of(artifacts, name) != digest
    )
    yield from few(f"the artifact {FOLDER}/{name} is not in the manifest" for name in artifacts if name not in named)
