"""What a run says of itself, as tags, parameters and a dataset.

Some of it is known before the agent is called (`start_tags`, `start_params`, `dataset_of`), the rest is in the report (`judge_params`,
`outage_tag`). Parameters can be written once, which is why the gate believes them; tags are for people and for MLflow's pages.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow.entities import Dataset

from mlflow_adk_eval.config.criteria import VertexSettings
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.evalset import EvalSet, eval_set_digest
from mlflow_adk_eval.gating.attestation.evaluation import SOURCE_PARAM
from mlflow_adk_eval.gating.evidence.integrity import key_of_criterion
from mlflow_adk_eval.judge.hosts import THIS_PROCESS
from mlflow_adk_eval.results.parts import SCHEMA
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.results.votes import judged_criteria
from mlflow_adk_eval.runtime import user_name
from mlflow_adk_eval.tracking.storable import LONGEST_DIGEST, LONGEST_TAG, Secrets, fitted, storable_text

if TYPE_CHECKING:
    from mlflow_adk_eval.tracking.agent_versions import AgentVersion
    from mlflow_adk_eval.tracking.eval_set_datasets import DatasetOrigin

FOLDER = "adk_eval"
"""Where a run's artifacts lie."""
RUN_TYPE = "genai_evaluate"
LONGEST_NAME = 500
_PACKAGES = ("mlflow-adk-eval", "mlflow", "google-adk")
_JUDGE_PACKAGES = ("google-genai", "google-cloud-aiplatform", "litellm")
"""What judges are reached through."""


def start_tags(eval_set: EvalSet, agent: AgentVersion, parent_run_id: str | None = None) -> dict[str, str]:
    """Return the tags of a run that are known before the agent is called.

    Args:
        eval_set: the cases.
        agent: the version that is evaluated.
        parent_run_id: the user's own run, which is left as it is.
    """
    tags = {
        "mlflow.runType": RUN_TYPE,
        "mlflow.user": user_name(),
        "mlflow.source.name": Path(sys.argv[0]).name or "python",
        "mlflow.source.type": "LOCAL",
        **agent.tags,
        "adk_eval.schema": str(SCHEMA),
        "adk_eval.status": "running",
        "adk_eval.agent_version": agent.label,
        "adk_eval.eval_set_id": eval_set.eval_set_id,
        **({"mlflow.parentRunId": parent_run_id} if parent_run_id else {}),
    }
    return {name: fitted(value, LONGEST_TAG) for name, value in tags.items()}


def start_params(config: EvalConfig, digest: str, model_id: str, source_sha256: str = "") -> dict[str, str]:
    """Return the parameters of a run that are known before the agent is called.

    Args:
        config: the criteria.
        digest: the digest of the eval set.
        model_id: the LoggedModel that is evaluated.
        source_sha256: the hash of the agent's source; empty where that is not known.
    """
    params: dict[str, str] = {f"threshold.{key_of_criterion(name)}": threshold for name, threshold in config.thresholds().items()}
    params |= {
        "adk_eval.eval_set_digest": digest,
        "adk_eval.config_digest": config.digest(),
        "adk_eval.model_id": model_id,
        **({SOURCE_PARAM: source_sha256} if source_sha256 else {}),
        "adk_eval.version.python": platform.python_version(),
    }
    for criteria in (config.criteria, *config.case_criteria.values()):
        for name, settings in criteria.items():
            if match_type := getattr(settings, "match_type", None):
                params.setdefault(f"adk_eval.match_type.{key_of_criterion(name)}", str(match_type))
    params |= settings_params(config)
    for package in (*_PACKAGES, *(_JUDGE_PACKAGES if judged_criteria(config) else ())):
        with suppress(PackageNotFoundError):
            params[f"adk_eval.version.{package.replace('-', '_') if package == 'mlflow-adk-eval' else package}"] = version(package)
    return params


def dataset_of(
    eval_set: EvalSet, run_id: str = "", *, digest: str = "", origin: DatasetOrigin | None = None, dataset_id: str = ""
) -> Dataset:
    """Return what MLflow is to know an eval set as.

    Args:
        eval_set: the cases, which the digest is about.
        run_id: the run among whose artifacts it is.
        digest: its digest, where that is known already.
        origin: where it came from instead.
        dataset_id: the dataset that shows its cases, to which MLflow's pages link then.
    """
    digest = digest or eval_set_digest(eval_set)
    source = {"eval_set_id": eval_set.eval_set_id, "uri": f"runs:/{run_id}/{FOLDER}/eval_set.json"}
    source |= {"dataset_id": dataset_id} if dataset_id else {}
    return Dataset(
        name=fitted(origin.name if origin else eval_set.eval_set_id, LONGEST_NAME),
        digest=digest.removeprefix("sha256:")[:LONGEST_DIGEST],
        source_type=origin.source_type if origin else "adk_evalset",
        source=origin.source if origin else json.dumps(source),
        profile=json.dumps({"num_cases": len(eval_set.eval_cases), "digest": digest}),
    )


def settings_params(config: EvalConfig) -> dict[str, str]:
    """Return how often a config has judges asked; several numbers, smallest first, where cases differ. Vertex is asked once."""
    found: dict[str, set[int]] = {}
    for name, settings in judged_criteria(config).items():
        ours = (one for one in settings if not isinstance(one, VertexSettings) or one.backend == "judge")
        found[name] = {one.judge_model_options.num_samples for one in ours}
    return {f"adk_eval.num_samples.{key_of_criterion(name)}": _joined(sorted(counts)) for name, counts in found.items() if counts}


def judge_params(report: Report, secrets: Secrets) -> dict[str, str]:
    """Return who judged, in all and by criterion, who played users, and the hash of each prompt. The config names only who was to do it."""
    usage, users = report.judging, report.simulating
    params: dict[str, str] = {}
    if usage is not None:
        params["adk_eval.judge_model"] = _joined(usage.models)
        params |= {f"adk_eval.judge.{key_of_criterion(name)}": _joined(sorted(models)) for name, models in _models(report).items()}
        params |= _prompts(usage)
    if users is not None:
        params["adk_eval.user_simulator.model"] = _joined(users.models)
        params |= _prompts(users)
    return {name: storable_text(text, secrets) for name, text in params.items() if text}


def outage_tag(report: Report, secrets: Secrets) -> dict[str, str]:
    """Return a tag with the reason why a judge was given up, and one for a model that played users, where that was so."""
    usages = {"adk_eval.judge_outage": report.judging, "adk_eval.user_simulator_outage": report.simulating}
    return {
        name: fitted(storable_text(usage.outage, secrets), LONGEST_TAG)
        for name, usage in usages.items()
        if usage is not None and usage.outage
    }


def _models(report: Report) -> Mapping[str, set[str]]:
    """Return which versions answered for each criterion, and at which hosts; of what is the caller's own in Python, only what it is called."""
    found: dict[str, set[str]] = {}
    for case in report.cases:
        for result in case.results:
            sources = {(vote.model, vote.host) for vote in result.votes if vote.verdict is not None}
            answered = {model if host == THIS_PROCESS else f"{model} at {host or 'an unknown host'}" for model, host in sources}
            if answered:
                found.setdefault(result.criterion, set()).update(answered)
    return found


def _prompts(usage: JudgeUsage) -> Mapping[str, str]:
    """Return version and hash by a prompt's parameter. A key has no room for the version, whose characters MLflow refuses there."""
    found: dict[str, list[str]] = {}
    for named, sha256 in usage.prompts.items():
        name, _, version = named.partition("@")
        found.setdefault(name, []).append(f"{version} {sha256}".strip())
    return {f"adk_eval.prompt.{key_of_criterion(name)}": _joined(sorted(texts)) for name, texts in found.items()}


def _joined(values: Iterable[object]) -> str:
    return " | ".join(map(str, values))
