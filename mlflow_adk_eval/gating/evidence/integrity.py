"""What a run holds, as plain data, and whether it can be believed: its state, the hashes of its artifacts, and its documents.

Metrics, tags and artifacts of a run can be rewritten after it has ended; parameters cannot. So a parameter holds the hash
of the manifest and the manifest holds the hash of every artifact. Everything else is checked against those: `state_problems`
reads what the run says of itself, `integrity_problems` compares the hashes, and `read_documents` parses the eval set, the config
and the table and holds them against the digests and thresholds among the parameters. What the table says is `table`'s business.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import ConfigError, InputError
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.evalset.digest import copies_of, digest_and_contents
from mlflow_adk_eval.evalset.parse import decode, parse
from mlflow_adk_eval.results.table import Table, parse_table

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
"""The version of the run's layout that this module reads."""
FOLDER = "adk_eval"
"""Where a run keeps its evidence."""
GATE_FOLDER = "adk_eval_gate"
"""Where a run keeps what is said of its evidence, which that must not change: attestations and records."""
EVAL_SET, CONFIG, TABLE, MANIFEST = "eval_set.json", "config.json", "invocations.json", "manifest.json"
VOTES = "votes.parquet"
"""Only runs in which a model was to decide something have it."""
_REQUIRED = (EVAL_SET, CONFIG, TABLE)
_MAX_NAMED = 5
_EVAL_SET = TypeAdapter(EvalSet)

_NOT_FINISHED = {
    "RUNNING": "the run is still running",
    "SCHEDULED": "the run has not started",
    "KILLED": "the run was killed",
    "FAILED": "the run failed",
}
_NOT_COMPLETE = {
    "running": "the evaluation had not finished when it last wrote to the run (adk_eval.status is running)",
    "partial": "the run holds only part of the evaluation (adk_eval.status is partial)",
    "failed": "the evaluation failed (adk_eval.status is failed)",
    "self_comparison": "the recording was compared with itself, which proves nothing (adk_eval.status is self_comparison)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that was read from a run."""

    run_id: str
    status: str
    """MLflow's word, such as ``FINISHED``."""
    lifecycle_stage: str = "active"
    end_time: int | None = None
    """Milliseconds since 1970."""
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


def few(found: Iterable[str], *, limit: int = _MAX_NAMED) -> list[str]:
    """Return the first findings, and how many there are besides.

    >>> few(["a", "b", "c"], limit=2)
    ['a', 'and 2 more of this kind']
    """
    listed = list(found)
    return listed if len(listed) <= limit else [*listed[: limit - 1], f"and {len(listed) - limit + 1} more of this kind"]


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
    elif schema != SCHEMA:
        yield f"the run's tag adk_eval.schema is {schema!r}; this version reads {SCHEMA!r}"
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
    named = _named(evidence.manifest)
    if isinstance(named, str):
        return [named]
    return [
        *_artifact_problems(evidence.artifacts, named),
        *(f"the manifest does not name {FOLDER}/{name}" for name in _REQUIRED if name not in named),
    ]


def _named(manifest: bytes) -> dict[str, Any] | str:
    """Return the hashes that a manifest lists by artifact, or why they cannot be read."""
    try:
        value = decode(manifest, f"{FOLDER}/{MANIFEST}")
    except InputError as error:
        return f"{FOLDER}/{MANIFEST} cannot be read: {error.problems[0]}"
    artifacts = value.get("artifacts") if isinstance(value, dict) else None
    if not isinstance(artifacts, dict) or value.get("schema") != int(SCHEMA):
        return f"{FOLDER}/{MANIFEST} is not a manifest of schema {SCHEMA}"
    return artifacts


def _artifact_problems(artifacts: Mapping[str, bytes], named: Mapping[str, Any]) -> Iterator[str]:
    yield from few(f"the artifact {FOLDER}/{name} is missing" for name in named if name not in artifacts)
    yield from few(
        f"the artifact {FOLDER}/{name} was changed after the run"
        for name, digest in named.items()
        if name in artifacts and sha256(artifacts[name]) != digest
    )
    yield from few(f"the artifact {FOLDER}/{name} is not in the manifest" for name in artifacts if name not in named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What was to be evaluated, how, and what came of it."""

    eval_set: EvalSet
    config: EvalConfig
    table: Table
    num_runs: int
    copies: Mapping[str, str] = field(default_factory=dict[str, str])
    """The cases that have the content of an earlier one, by id, with the id of that one."""


def planned(config: EvalConfig, case: EvalCase) -> list[str]:
    """Return the criteria that decide a case, in the order of the config, as the evaluation plans them."""
    return list(config.planned(case))


def read_documents(evidence: Evidence) -> tuple[Documents | None, list[str]]:
    """Return the documents of a run and what is wrong with them; ``None`` if they cannot be worked with."""
    try:
        eval_set = parse(_EVAL_SET, evidence.artifacts[EVAL_SET], f"{FOLDER}/{EVAL_SET}")
        config = parse_config(decode(evidence.artifacts[CONFIG], f"{FOLDER}/{CONFIG}", error=ConfigError), f"{FOLDER}/{CONFIG}")
        table = parse_table(evidence.artifacts[TABLE], f"{FOLDER}/{TABLE}")
    except InputError as error:
        return None, [f"{error.source} cannot be read: {error.problems[0]}"]
    num_runs = _num_runs(evidence.params)
    problems = [*_set_problems(eval_set), *([num_runs] if isinstance(num_runs, str) else [])]
    digest, contents = digest_and_contents(eval_set)
    mismatches = list(_param_problems(evidence.params, digest, config))
    if problems or isinstance(num_runs, str):
        return None, [*mismatches, *problems]
    copies = copies_of(eval_set.eval_ids, contents, config.surroundings_of)
    return Documents(eval_set=eval_set, config=config, table=table, num_runs=num_runs, copies=copies), mismatches


def _num_runs(params: Mapping[str, str]) -> int | str:
    text = params.get("adk_eval.num_runs")
    if text is None:
        return "the run has no parameter adk_eval.num_runs, so the number of runs of each case is unknown"
    return (
        int(text)
        if text.isascii() and text.isdigit() and int(text)
        else f"the run's parameter adk_eval.num_runs is {text!r}; wanted a whole number of at least 1"
    )


def _set_problems(eval_set: EvalSet) -> Iterator[str]:
    if not eval_set.eval_cases:
        yield "the eval set has no cases, so there is no evidence"
    counts = Counter(eval_set.eval_ids)
    yield from few(f"the eval set holds the case {eval_id!r} {count} times" for eval_id, count in counts.items() if count > 1)


def _param_problems(params: Mapping[str, str], eval_set_digest: str, config: EvalConfig) -> Iterator[str]:
    digests = (("eval_set_digest", eval_set_digest, EVAL_SET), ("config_digest", config.digest(), CONFIG))
    for name, actual, artifact in digests:
        recorded = params.get(f"adk_eval.{name}")
        if recorded is None:
            yield f"the run has no parameter adk_eval.{name}"
        elif recorded != actual:
            yield f"{FOLDER}/{artifact} is not what was evaluated: its digest is {actual[:19]}…, the parameter adk_eval.{name} says {recorded[:19]}…"
    yield from _threshold_problems(params, config.thresholds())


def _threshold_problems(params: Mapping[str, str], thresholds: Mapping[str, str]) -> Iterator[str]:
    demanded = {f"threshold.{key_of_criterion(name)}": threshold for name, threshold in thresholds.items()}
    for key, threshold in demanded.items():
        if key not in params:
            yield f"the run has no parameter {key}, though its config demands {threshold}"
        elif params[key] != threshold:
            yield f"the run's parameter {key} is {params[key]}, but its config demands {threshold}"
    for key in params:
        if key.startswith("threshold.") and key not in demanded:
            yield f"the run has a parameter {key}, but its config has no such criterion"
