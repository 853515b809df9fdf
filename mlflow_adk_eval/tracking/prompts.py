"""The prompts of the judges in MLflow's prompt registry: each text once, linked to the runs that used it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import get_args

from mlflow import MlflowClient
from mlflow.entities.model_registry import PromptVersion
from mlflow.tracing.constant import TraceTagKey
from mlflow.tracing.utils.prompt import update_linked_prompts_tag

from mlflow_adk_eval.config.spec import PromptVariant
from mlflow_adk_eval.errors import TrackingError
from mlflow_adk_eval.judge.prompt import Prompt, load_prompt
from mlflow_adk_eval.store.reaching import every_page, reaching_mlflow

PREFIX = "adk_eval."
"""How the prompts' names begin in the registry."""
HASH = "adk_eval.sha256"
"""The tag of a prompt version with the hash that a run's ``adk_eval.prompt.<criterion>`` names."""
_EXPERIMENTS = "_mlflow_experiment_ids"
"""MLflow's tag with the experiments whose page lists a prompt."""
_VERSIONS_PER_PAGE = 100


def register_used_prompts(client: MlflowClient, run_id: str, used: Mapping[str, str]) -> dict[str, str]:
    """See to it that MLflow's prompt registry has each prompt that a run used, and link them to the run.

    A text that is there already is not registered again.

    Args:
        client: where the run and the registry are.
        run_id: the run.
        used: the hash of each prompt by ``name@version``, as in `JudgeUsage.prompts`.

    Returns:
        By name, the address of the version with exactly the text that was used: ``prompts:/adk_eval.<name>/<version>``.

    Raises:
        TrackingError: if the registry does not take them, or a prompt is neither there nor in this package.
    """
    if not used:
        return {}
    with reaching_mlflow("the judges' prompts could not be registered"):
        experiment_id = client.get_run(run_id).info.experiment_id
        prompts = {named.partition("@")[0]: _registered(client, named, sha256, experiment_id) for named, sha256 in used.items()}
        # MLflow's own function writes the tag that its page reads to the store that the process is configured for, whichever the client's is.
        before = client.get_run(run_id).data.tags.get(TraceTagKey.LINKED_PROMPTS)
        after = update_linked_prompts_tag(before, list(prompts.values()))
        if after != before:
            client.set_tag(run_id, TraceTagKey.LINKED_PROMPTS, after)
    return {name: prompt.uri for name, prompt in prompts.items()}


def _registered(client: MlflowClient, named: str, sha256: str, experiment_id: str) -> PromptVersion:
    """Return the version with the text that was used, a new one if there is none, and have the experiment's page list the prompt."""
    ours = _ours(named.partition("@")[0], sha256)
    name = PREFIX + named.partition("@")[0]
    known = client.get_prompt(name)
    versions = every_page(lambda token: client.search_prompt_versions(name, _VERSIONS_PER_PAGE, token)) if known else ()
    same = (prompt for prompt in versions if prompt.tags.get(HASH) == sha256)
    prompt = next((prompt for prompt in same if ours is None or prompt.template == ours.text), None)
    if prompt is None and ours is None:
        raise TrackingError(f"prompt {named} ({sha256}) is neither in MLflow's registry nor in this version of the package")
    listed = [entry for entry in (known.tags if known else {}).get(_EXPERIMENTS, "").split(",") if entry]
    experiments = f",{','.join((*listed, experiment_id))},"
    if known is None:
        client.create_prompt(name, description="Prompt of an mlflow-adk-eval judge", tags={_EXPERIMENTS: experiments})
    elif experiment_id not in listed:
        client.set_prompt_tag(name, _EXPERIMENTS, experiments)
    if prompt or ours is None:
        return prompt  # pyright: ignore[reportReturnType] - one of the two is there
    tags = {HASH: sha256, "adk_eval.version": ours.version, "adk_eval.package_version": version("mlflow-adk-eval")}
    created = client.create_prompt_version(name, ours.text, description=f"{ours.name}, version {ours.version}", tags=tags)
    if created.template != ours.text:
        raise TrackingError(f"MLflow has stored prompt {name!r}, version {created.version}, with a different text")
    return created


def _ours(name: str, sha256: str) -> Prompt | None:
    """Return this package's prompt, if it is the one that was used."""
    try:
        prompt = load_prompt(name)
    except FileNotFoundError:
        return None
    used = next((one for name in get_args(PromptVariant) if (one := prompt.variant(name)).sha256 == sha256), None)
    return replace(used, text=used.text + used.closing) if used else None
