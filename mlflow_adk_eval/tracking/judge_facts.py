"""What a run says of its judges: in metrics what they took, in parameters who they were and what they were told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mlflow_adk_eval.config.criteria import VertexSettings
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.gating.evidence.integrity import VOTES, key_of_criterion
from mlflow_adk_eval.results.outcomes import Vote
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.results.votes import ItemResult, dump_votes, judged_criteria
from mlflow_adk_eval.tracking.storable import LONGEST_TAG, Secrets, fitted, storable_text

JUDGE_PACKAGES = ("google-genai", "google-cloud-aiplatform", "litellm")
"""What judges are reached through."""
_LONGEST_SOURCE = 250
"""As long as MLflow keeps the source of an assessment."""
_LONGEST_SAYING, _LONGEST_METADATA = 300, 2000


def votes_artifact(report: Report, secrets: Secrets) -> dict[str, bytes]:
    """Return the artifact with every vote, where a model was to decide something: without votes it is empty, not absent."""
    votes = [vote for case in report.cases for result in case.results for vote in result.votes]
    if not votes and not judged_criteria(report.config):
        return {}
    return {VOTES: dump_votes(votes, lambda text: storable_text(text, secrets))}


def metrics_of_judging(usage: JudgeUsage | None) -> Iterator[tuple[str, float]]:
    """Yield what judging took, where judges were asked."""
    if usage is None:
        return
    yield "judge/calls", float(usage.calls)
    yield "judge/tokens", float(usage.tokens)
    yield "judge/calls_saved", float(usage.calls_saved)
    yield "judge/reused", float(usage.reused)
    if usage.flip_rate is not None:
        yield "judge/flip_rate", usage.flip_rate


def metrics_of_simulating(usage: JudgeUsage | None) -> Iterator[tuple[str, float]]:
    """Yield what the models took that played users, where there were any."""
    if usage is None:
        return
    yield "user_simulator/calls", float(usage.calls)
    yield "user_simulator/tokens", float(usage.tokens)
    yield "user_simulator/reused", float(usage.reused)


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


def judge_of(votes: Sequence[Vote], secrets: Secrets) -> str:
    """Return the model that gave votes, or, where none could be had, was asked for them; empty without votes."""
    models = {vote.model for vote in votes if vote.verdict is not None} or {vote.model for vote in votes}
    return fitted(storable_text(", ".join(sorted(models)), secrets), _LONGEST_SOURCE)


def voting_metadata(findings: Sequence[ItemResult], secrets: Secrets) -> dict[str, str]:
    """Return what an assessment says of the votes behind it: how many there were, for what, and what the losing side said."""
    several = len(findings) > 1
    dissent = [_labelled(finding, _short(said, secrets), several=several) for finding in findings for said in finding.dissent]
    errors = dict.fromkeys(error for finding in findings for error in finding.errors)
    found = {
        "votes": str(sum(sum(finding.tally.values()) for finding in findings)),
        "tally": "; ".join(_labelled(finding, finding.counts or "none", several=several) for finding in findings),
        "split": str(any(finding.split for finding in findings)).lower(),
        "dissent": "\n".join(dissent),
        "vote_errors": "\n".join(_short(error, secrets) for error in errors),
    }
    return {name: fitted(storable_text(text, secrets), _LONGEST_METADATA) for name, text in found.items() if text}


def _labelled(finding: ItemResult, text: str, *, several: bool) -> str:
    return f"{finding.id}: {text}" if several and finding.id else text


def _short(text: str, secrets: Secrets) -> str:
    """Return the beginning of a text; half a secret would not be recognised, so it is cut last."""
    clean = storable_text(text, secrets)
    return clean if len(clean) <= _LONGEST_SAYING else f"{clean[: _LONGEST_SAYING - 1]}…"


def _models(report: Report) -> Mapping[str, set[str]]:
    """Return which versions answered for each criterion."""
    found: dict[str, set[str]] = {}
    for case in report.cases:
        for result in case.results:
            answered = {vote.model for vote in result.votes if vote.verdict is not None}
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
