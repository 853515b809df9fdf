"""From what the user names to one eval set and one config: files, selections, folders, each file with its own config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow_adk_eval.config import EvalConfig, load_config
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import EvalSet, load_eval_set, merge, select, split_selection, test_files

ConfigSource = str | Path | Mapping[str, Any] | EvalConfig | None
EvalSetSource = str | Path | EvalSet | Sequence[str | Path]


def load_inputs(eval_set: EvalSetSource, config: ConfigSource = None) -> tuple[EvalSet, EvalConfig]:
    """Return the eval set and the config to evaluate it with.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, or several paths.
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
    msg = f"an eval set is a path, a folder, several paths or an EvalSet, not {shown(eval_set)}"
    raise UsageError(msg)


def _load_files(paths: Sequence[str | Path], config: ConfigSource) -> tuple[EvalSet, EvalConfig]:
    selections = _selections(paths)
    if len(selections) == 1:
        (file, selected), = selections.items()
        eval_set = load_eval_set(file)
        return select(eval_set, selected) if selected else eval_set, load_config(config, beside=file.parent)
    root = Path(paths[0]) if len(paths) == 1 else None
    named = {_name(file, root): (file, selected) for file, selected in selections.items()}
    parts = [(name, select(found, selected) if selected else found) for name, (file, selected) in named.items() for found in [load_eval_set(file)]]
    eval_set, ids = merge(root.resolve().name if root else "+".join(part.eval_set_id for _, part in parts), parts)
    if config is not None:
        return eval_set, load_config(config)
    return eval_set, merge_configs((ids[name], load_config(None, beside=file.parent), str(file.parent)) for name, (file, _) in named.items())


def _selections(paths: Iterable[str | Path]) -> dict[Path, tuple[str, ...]]:
    """Return the selected ids by file; none means all, and all plus some is all."""
    selections: dict[Path, tuple[str, ...]] = {}
    for path in paths:
        file, selected = split_selection(path)
        for found in test_files(file) if file.is_dir() else [file]:
            earlier = selections.get(found)
            everything = not selected or earlier == ()
            selections[found] = () if everything else tuple(dict.fromkeys((*(earlier or ()), *selected)))
    if not selections:
        raise UsageError("no eval set is named")
    return selections


def _name(file: Path, root: Path | None) -> str:
    return str(file.relative_to(root).as_posix()) if root else file.name


def merge_configs(parts: Iterable[tuple[Sequence[str], EvalConfig, str]]) -> EvalConfig:
    """Return one config in which each case keeps the criteria of its own file.

    Args:
        parts: for each file, the ids of its cases, its config and where that was found.

    Raises:
        ConfigError: if two configs mean different things by the same name.
    """
    listed = list(parts)
    first = listed[0][1]
    customs: dict[str, Any] = {}
    for _, config, place in listed:
        for name, metric in (config.custom_metrics or {}).items():
            if customs.setdefault(name, metric) != metric:
                raise ConfigError(place, [Problem(f"$.custom_metrics.{name}", "another metric than in a config before", "one meaning for each name")])
        for field in ("user_simulator_config", "live_model_config"):
            if getattr(config, field) != getattr(first, field):
                raise ConfigError(place, [Problem(f"$.{field}", "other settings than in a config before", "the same settings for one run")])
    overrides = {eval_id: config.criteria for ids, config, _ in listed if config.criteria != first.criteria for eval_id in ids}
    return first.model_copy(update={"custom_metrics": customs or None, "case_criteria": overrides})
