"""Eval set files as tests, each with the config that decides it; and several of them as one set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource, folder_of, merge_configs, source_of
from mlflow_adk_eval.evalset import EvalSet, load_eval_set, merge, select, split_selection, test_files


@dataclass(frozen=True, slots=True)
class EvalFile:
    """An eval set with its config."""

    path: Path
    eval_set: EvalSet
    config: EvalConfig

    def selected(self, eval_ids: Sequence[str]) -> EvalFile:
        """Return it with only the named cases; of all its cases, itself."""
        if set(eval_ids) == set(self.eval_set.eval_ids):
            return self
        left_out = set(self.eval_set.eval_ids).difference(eval_ids)
        return EvalFile(self.path, select(self.eval_set, eval_ids), self.config.without(left_out))


def read_file(path: str | Path, config: ConfigSource = None, *, initial_session: str | Path | None = None) -> EvalFile:
    """Return the eval set in a file, or the selection ``path:eval_1,eval_2`` of it.

    Args:
        path: the file.
        config: the criteria; ``None``: the ``test_config.json`` beside the file, else ADK's defaults.
        initial_session: the separate session file of a legacy list.

    Raises:
        InputError: with every problem of the file or of the config.
    """
    file, selected = split_selection(path)
    whole = EvalFile(Path(file), load_eval_set(file, initial_session=initial_session), load_config(config, beside=folder_of(file)))
    return whole.selected(selected) if selected else whole


def read_files(source: str | Path, config: ConfigSource = None, *, initial_session: str | Path | None = None) -> list[EvalFile]:
    """Return the eval set in a file, or those of all ``*.test.json`` files of a folder, sorted by path.

    Raises:
        InputError: with every problem of a file or of a config.
        UsageError: if a folder holds no such file.
    """
    paths: Sequence[str | Path] = test_files(Path(source)) if Path(source).is_dir() else [source]
    return [read_file(path, config, initial_session=initial_session) for path in paths]


@dataclass(frozen=True, slots=True)
class Merged:
    """Several files as one set with one config."""

    eval_set: EvalSet
    config: EvalConfig
    eval_ids: dict[tuple[Path, str], str]
    """The id that each case got, by its file and its id there."""


def merged(files: Sequence[EvalFile]) -> Merged:
    """Return several files as one set, in which each case keeps the criteria of its own file.

    Raises:
        UsageError: if their cases cannot be told apart.
        ConfigError: if their configs mean different things by the same name.
    """
    if len(files) == 1:
        (only,) = files
        return Merged(only.eval_set, only.config, {(only.path, eval_id): eval_id for eval_id in only.eval_set.eval_ids})
    namesakes = Counter(file.path.name for file in files)
    names = {file.path: file.path.name if namesakes[file.path.name] == 1 else file.path.as_posix() for file in files}
    set_id = "+".join(file.eval_set.eval_set_id for file in files)
    eval_set, ids = merge(set_id, ((names[file.path], file.eval_set) for file in files))
    sources = [source_of(file.eval_set, file.config, ids[names[file.path]], file.path.parent) for file in files]
    new_ids = {(file.path, old): new for file, source in zip(files, sources, strict=True) for new, old in source.eval_ids.items()}
    return Merged(eval_set, merge_configs(sources), new_ids)
