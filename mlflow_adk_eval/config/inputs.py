"""From what the user names to one eval set and one config: files, selections, folders, each file with its own config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.spec import CustomMetricConfig
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import files as evalsets
from mlflow_adk_eval.evalset.conformance import tests_in
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.evalset.rows import streamed

ConfigSource = str | Path | Mapping[str, Any] | EvalConfig | None
EvalSetSource = str | Path | EvalSet | Sequence[str | Path]

_OF_USERS = "user_simulator_config"
_ONE_PER_RUN = (_OF_USERS, "live_model_config", "anchors")


def load_inputs(
    eval_set: EvalSetSource | evalsets.Inputs, config: ConfigSource = None, *, as_needed: bool = False
) -> tuple[EvalSet, EvalConfig]:
    """Return the eval set and the config to evaluate it with.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files or of tests of
            ``adk conformance``, or several paths. A path may name JSON, JSON Lines, Parquet, a folder of the latter two, or an fsspec URI of any of these. Or what `open_inputs` made of it.
        config: where the config is; ``None``: the ``test_config.json`` beside each file, else ADK's defaults.
        as_needed: whether rows of which nothing is selected are left where they are, to be read when they are needed.

    Raises:
        InputError: with every problem of a file.
        UsageError: if nothing is named, or if configs beside several files contradict each other.
    """
    inputs = evalsets.open_inputs(eval_set)
    if isinstance(inputs, evalsets.DatasetInput):
        raise UsageError(f"an eval set is a path, a folder, several paths or an EvalSet, not {shown(inputs.dataset)}")
    if isinstance(inputs, EvalSet):
        evalsets.refuse_unread(inputs, f"eval set {inputs.eval_set_id!r}")
        return inputs, load_config(config)
    if as_needed and isinstance(inputs, evalsets.RowFiles) and not inputs.selected:
        return streamed(inputs.cases()), load_config(config, beside=inputs.folder)
    if not isinstance(inputs, evalsets.Several):
        one = read_file(inputs, config)
        return one.eval_set, one.config
    given = None if config is None else load_config(config)
    merged = merge_files([read_file(file, given) for file in inputs.files], inputs.folder)
    return merged.eval_set, given or merged.config


@dataclass(frozen=True, slots=True)
class EvalFile:
    """An eval set with its config."""

    path: Path
    eval_set: EvalSet
    config: EvalConfig
    place: str = ""
    """Where its config is looked for, as messages call it."""

    def selected(self, eval_ids: Sequence[str]) -> EvalFile:
        """Return it with only the named cases; of all its cases, itself.

        Raises:
            UsageError: naming the ids that the set does not hold.
        """
        if set(eval_ids) == set(self.eval_set.eval_ids):
            return self
        left_out = set(self.eval_set.eval_ids).difference(eval_ids)
        return replace(self, eval_set=evalsets.picked(self.eval_set, eval_ids), config=self.config.without(left_out))


def read_file(named: str | Path | evalsets.File, config: ConfigSource = None, *, initial_session: str | Path | None = None) -> EvalFile:
    """Return the eval set in a file, or the selection ``path:eval_1,eval_2`` of it.

    Args:
        named: the file.
        config: the criteria; ``None``: the ``test_config.json`` beside the file, else ADK's defaults.
        initial_session: the separate session file of a legacy list.

    Raises:
        InputError: with every problem of the file or of the config.
    """
    file = evalsets.open_file(named) if isinstance(named, str | Path) else named
    if isinstance(file, evalsets.ConformanceFolder) and file.selected:  # the others may lack a recording, or be of another agent
        path, eval_set = Path(file.path), evalsets.load_eval_set(file)
        chosen = load_config(config, beside=path).without({*tests_in(path)}.difference(eval_set.eval_ids))
        return EvalFile(path, eval_set, chosen, str(path))
    eval_set = evalsets.load_eval_set(replace(file, selected=()), initial_session=initial_session)
    whole = EvalFile(Path(file.path), eval_set, load_config(config, beside=file.folder), str(file.folder or file.path))
    return whole.selected(file.selected) if file.selected else whole


@dataclass(frozen=True, slots=True)
class MergedFiles:
    """Several files as one set with one config."""

    eval_set: EvalSet
    config: EvalConfig
    eval_ids: Mapping[tuple[Path, str], str]
    """The id that each case got, by its file and its id there."""


def merge_files(files: Sequence[EvalFile], folder: Path | None = None) -> MergedFiles:
    """Return several files as one set, in which each case keeps the criteria and the tool environment of its own file.

    Args:
        files: the files.
        folder: the folder whose tests they are, which names the set; the cases are told apart by the file's path within it, else by its
            name or, for namesakes, its path.

    Raises:
        UsageError: if their cases cannot be told apart.
        ConfigError: if their configs mean different things by the same name.
    """
    if len(files) == 1:
        (only,) = files
        return MergedFiles(only.eval_set, only.config, {(only.path, eval_id): eval_id for eval_id in only.eval_set.eval_ids})
    namesakes = Counter(file.path.name for file in files)
    names = [file.path.name if namesakes[file.path.name] == 1 else file.path.as_posix() for file in files]
    names = [file.path.relative_to(folder).as_posix() for file in files] if folder else names
    set_id = folder.resolve().name if folder else "+".join(file.eval_set.eval_set_id for file in files)
    eval_set, ids = evalsets.merge(set_id, zip(names, (file.eval_set for file in files), strict=True))
    new_ids = [dict(zip(file.eval_set.eval_ids, ids[name], strict=True)) for name, file in zip(names, files, strict=True)]
    eval_ids = {(file.path, old): new for file, of_file in zip(files, new_ids, strict=True) for old, new in of_file.items()}
    return MergedFiles(eval_set, _merged_config(files, new_ids), eval_ids)


def _merged_config(files: Sequence[EvalFile], new_ids: Sequence[Mapping[str, str]]) -> EvalConfig:
    """Return one config in which each case keeps what the config of its own file says of it."""
    first = files[0].config
    scenarios = [any(case.conversation is None for case in file.eval_set.eval_cases) for file in files]
    users = next((file.config for file, simulated in zip(files, scenarios, strict=True) if simulated), first)
    customs: dict[str, CustomMetricConfig] = {}
    overrides: dict[str, dict[str, Any]] = {"case_criteria": {}, "case_environments": {}}
    for file, simulated, ids in zip(files, scenarios, new_ids, strict=True):
        for name, metric in (file.config.custom_metrics or {}).items():
            if customs.setdefault(name, metric) != metric:
                found = "a metric that an earlier config defines differently"
                raise _contradiction(file, f"custom_metrics.{name}", found, "one definition for each name")
        for field in _ONE_PER_RUN:
            wanted = users if field == _OF_USERS else first
            if (simulated or field != _OF_USERS) and getattr(file.config, field) != getattr(wanted, field):
                found = "settings that differ from an earlier config"
                raise _contradiction(file, field, found, "the same settings in all configs of a run")
        for old, new in ids.items():
            if (criteria := file.config.criteria_of(old)) != first.criteria:
                overrides["case_criteria"][new] = criteria
            if (environment := file.config.environment_of(old)) != first.environment_simulation_config:
                overrides["case_environments"][new] = environment
    together = first.model_copy(update={**overrides, "custom_metrics": customs or None, _OF_USERS: users.user_simulator_config})
    vars(together)["source"] = ", ".join(dict.fromkeys(file.config.source for file in files))
    return together


def _contradiction(file: EvalFile, field: str, found: str, wanted: str) -> ConfigError:
    return ConfigError(file.place, [Problem(f"$.{field}", found, wanted)])
