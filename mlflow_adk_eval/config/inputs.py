"""From what the user names to one eval set and one config: files, selections, folders, each file with its own config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from mlflow_adk_eval.config.criteria import CustomMetricConfig
from mlflow_adk_eval.config.environment import EnvironmentSimulationConfig
from mlflow_adk_eval.config.eval_config import Criteria, EvalConfig, load_config
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import EvalSet, load_eval_set, merge, select, split_selection, test_files
from mlflow_adk_eval.evalset.rows import is_rows, is_uri

ConfigSource = str | Path | Mapping[str, Any] | EvalConfig | None
EvalSetSource = str | Path | EvalSet | Sequence[str | Path]

_OF_USERS = "user_simulator_config"
_ONE_PER_RUN = (_OF_USERS, "live_model_config")


def load_inputs(eval_set: EvalSetSource, config: ConfigSource = None) -> tuple[EvalSet, EvalConfig]:
    """Return the eval set and the config to evaluate it with.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, or several paths. A path may
            name JSON, JSON Lines, Parquet, a folder of the latter two, or an fsspec URI of any of these.
        config: where the config is; ``None``: the ``test_config.json`` beside each file, else ADK's defaults.

    Raises:
        InputError: with every problem of a file.
        UsageError: if nothing is named, or if configs beside several files contradict each other.
    """
    if isinstance(eval_set, EvalSet):
        return eval_set, load_config(config)
    if isinstance(eval_set, str | Path):
        return _load_files([eval_set], config)
    if isinstance(eval_set, Sequence) and eval_set and all(isinstance(path, str | Path) for path in eval_set):
        return _load_files(eval_set, config)
    raise UsageError(f"an eval set is a path, a folder, several paths or an EvalSet, not {shown(eval_set)}")


def _load_files(paths: Sequence[str | Path], config: ConfigSource) -> tuple[EvalSet, EvalConfig]:
    selections = _selections(paths)
    loaded = {file: _load(file, selected) for file, selected in selections.items()}
    if len(loaded) == 1:
        ((file, (eval_set, left_out)),) = loaded.items()
        return eval_set, load_config(config, beside=folder_of(file)).without(left_out)
    root = Path(paths[0]) if len(paths) == 1 else None
    names = _names(loaded, root)
    name = root.resolve().name if root else "+".join(part.eval_set_id for part, _ in loaded.values())
    merged, ids = merge(name, ((names[file], part) for file, (part, _) in loaded.items()))
    if config is not None:
        return merged, load_config(config)
    sources = [
        source_of(part, load_config(None, beside=folder_of(file)), ids[names[file]], folder_of(file) or file)
        for file, (part, _) in loaded.items()
    ]
    return merged, merge_configs(sources)


def folder_of(file: str | Path) -> Path | None:
    """Return the folder in which the config of an eval set is looked for; none of a URI."""
    if is_uri(file):
        return None
    path = Path(file)
    return path if path.is_dir() else path.parent


def _load(file: str | Path, selected: Sequence[str]) -> tuple[EvalSet, frozenset[str]]:
    """Return what is selected of a file, and the ids of the rest."""
    eval_set = load_eval_set(file)
    chosen = select(eval_set, selected) if selected else eval_set
    return chosen, frozenset(eval_set.eval_ids).difference(chosen.eval_ids)


def _selections(paths: Iterable[str | Path]) -> dict[str | Path, tuple[str, ...]]:
    """Return the selected ids by file; none means all, and all plus some is all."""
    files: dict[str | Path, str | Path] = {}
    selections: dict[str | Path, tuple[str, ...]] = {}
    for path in paths:
        file, selected = split_selection(path)
        for found in _files(file):
            known = files.setdefault(found.resolve() if isinstance(found, Path) else found, found)  # one file may be named in two ways
            earlier = selections.get(known)
            everything = not selected or earlier == ()
            selections[known] = () if everything else tuple(dict.fromkeys((*(earlier or ()), *selected)))
    return selections


def _files(named: str | Path) -> Sequence[str | Path]:
    """Return the file that is named, or the tests of a folder. A folder of rows is one set, unless there are tests in it."""
    if isinstance(named, str) or not named.is_dir():
        return [named]
    return [named] if is_rows(named) and not any(named.glob("*.test.json")) else test_files(named)


def _names(files: Iterable[str | Path], root: Path | None) -> dict[str | Path, str]:
    """Return what tells each file's cases apart: its path within the folder, else its name, else, for namesakes, its path."""
    paths = {file: PurePath(file) for file in files}
    if root:
        return {file: path.relative_to(root).as_posix() for file, path in paths.items()}
    namesakes = Counter(path.name for path in paths.values())
    return {file: path.name if namesakes[path.name] == 1 else str(file) for file, path in paths.items()}


@dataclass(frozen=True, slots=True)
class Source:
    """One of the configs that together decide an eval set of several files, and for which cases."""

    config: EvalConfig
    eval_ids: Mapping[str, str]
    """The ids of its cases in the set, each with the id in its own file."""
    place: str
    """Where the config was found."""
    has_scenarios: bool
    """Whether any of its cases needs a simulated user."""


def source_of(eval_set: EvalSet, config: EvalConfig, new_ids: Sequence[str], folder: str | Path) -> Source:
    """Return the config of one file, whose cases have `new_ids` in the set of all files."""
    scenarios = any(case.conversation is None for case in eval_set.eval_cases)
    return Source(config, dict(zip(new_ids, eval_set.eval_ids, strict=True)), str(folder), scenarios)


def merge_configs(sources: Sequence[Source]) -> EvalConfig:
    """Return one config in which each case keeps the criteria and the tool environment of its own file.

    Raises:
        ConfigError: if two configs mean different things by the same name.
    """
    first = sources[0].config
    users = next((source.config for source in sources if source.has_scenarios), first)
    customs: dict[str, CustomMetricConfig] = {}
    for source in sources:
        for name, metric in (source.config.custom_metrics or {}).items():
            if customs.setdefault(name, metric) != metric:
                raise _contradiction(
                    source.place, f"custom_metrics.{name}", "another metric than in a config before", "one meaning for each name"
                )
        for field in _ONE_PER_RUN:
            if field == _OF_USERS and not source.has_scenarios:
                continue
            if getattr(source.config, field) != getattr(users if field == _OF_USERS else first, field):
                raise _contradiction(source.place, field, "other settings than in a config before", "the same settings for one run")
    overrides = {new: found for source in sources for new, found in _criteria(source) if found != first.criteria}
    environments = {
        new: found for source in sources for new, found in _environments(source) if found != first.environment_simulation_config
    }
    merged = {"custom_metrics": customs or None, "case_criteria": overrides, "case_environments": environments}
    together = first.model_copy(update={**merged, _OF_USERS: users.user_simulator_config})
    vars(together)["source"] = ", ".join(dict.fromkeys(source.config.source for source in sources))
    return together


def _criteria(source: Source) -> Iterable[tuple[str, Criteria]]:
    return ((new, source.config.criteria_of(old)) for new, old in source.eval_ids.items())


def _environments(source: Source) -> Iterable[tuple[str, EnvironmentSimulationConfig | None]]:
    return ((new, source.config.environment_of(old)) for new, old in source.eval_ids.items())


def _contradiction(place: str, field: str, found: str, wanted: str) -> ConfigError:
    return ConfigError(place, [Problem(f"$.{field}", found, wanted)])
