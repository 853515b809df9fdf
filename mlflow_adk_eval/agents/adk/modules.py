"""Finding and importing the module of an agent, by name or by folder, with its ``.env`` file and its ``root_agent.yaml``."""

from __future__ import annotations

import importlib.util
import logging
import os
import pkgutil
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from mlflow_adk_eval.agents.conversation import described
from mlflow_adk_eval.errors import AgentError, UsageError, did_you_mean, foreign_code
from mlflow_adk_eval.evalset.storage import agent_folder
from mlflow_adk_eval.judge.hosts import set_by_agent
from mlflow_adk_eval.redact import hide_env_file

YAML = "root_agent.yaml"
"""The file of an agent that is written without code, in its folder."""

_LOG = logging.getLogger(__name__)
_NOT_ITS = re.compile(
    r"MLFLOW_ADK_EVAL_.*|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|NETRC|SSLKEYLOGFILE", re.IGNORECASE
)
"""Variables that say how an evaluation is done, and through whom the requests of its judges go."""
_FILES = ("__init__.py", "agent.py", YAML)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModule:
    """An imported agent module."""

    name: str
    """What reports call it: its import name without a trailing ``.agent``."""
    holders: tuple[ModuleType, ...]
    """Where the agent may be: the submodule ``agent``, if there is one, then the module itself."""
    env_names: frozenset[str]
    """The variables in its ``.env`` file."""
    yaml: Path | None
    """The agent as YAML, which counts if there is none in the modules."""


def import_agent(source: str | Path) -> AgentModule:
    """Return the module that `source` names: a folder as ``adk eval`` takes it, or an importable name.

    Raises:
        UsageError: if it does not exist.
        AgentError: if it cannot be imported.
    """
    folder = _folder(source)
    name = folder.name if folder else str(source)
    root = str(folder.parent if folder else Path.cwd())
    if root not in sys.path:  # for good, as `python -m` does: an agent may import its neighbours while it runs
        sys.path.insert(0, root)
    importlib.invalidate_caches()
    env_names = _load_env(folder or _folder_of(name))
    module = _import(name, env_names)
    if folder and _is_path(source):
        place = Path(module.__file__).parent if module.__file__ else Path(next(iter(module.__path__)))
        if place.resolve() != folder:  # another one would be evaluated in its place
            msg = f"{folder}: Python has already imported another module {module.__name__!r} from {place}; rename the folder, or use separate processes"
            raise AgentError(msg)
    inner = getattr(module, "agent", None)
    if not isinstance(inner, ModuleType):
        path = f"{module.__name__}.agent"
        inner = _import(path, env_names) if hasattr(module, "__path__") and importlib.util.find_spec(path) else None
    holders = (inner, module) if inner else (module,)
    return AgentModule(name=name.removesuffix(".agent"), holders=holders, env_names=env_names, yaml=yaml_of(module))


def yaml_of(module: ModuleType) -> Path | None:
    """Return the file ``root_agent.yaml`` beside the files of a package."""
    return next((file for place in getattr(module, "__path__", ()) if (file := Path(place, YAML)).is_file()), None)


def _folder(source: str | Path) -> Path | None:
    """Return the folder that `source` is the path of; ``None`` if it can only be a module's name."""
    path = agent_folder(source)
    if any((path / file).is_file() for file in _FILES):
        return path.resolve()
    if not _is_path(source):
        return None
    if path.is_dir():
        hint = did_you_mean(YAML, [file.name for file in path.glob("*.y*ml")])
        msg = f"{path}: no agent in this folder; looked for {', '.join(_FILES)}. {hint}"
    else:
        near = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
        state = "is a file; name its folder" if path.is_file() else "does not exist"
        msg = f"{path}: wanted an agent's folder, but this {state}. {did_you_mean(path.name, near)}"
    raise UsageError(msg.strip())


def _is_path(source: str | Path) -> bool:
    return isinstance(source, Path) or os.sep in source or source.endswith(".py")


def _folder_of(name: str) -> Path | None:
    """Return the folder of a module without importing it or its parents, so that its ``.env`` can be read before."""
    top, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(top) if top else None
    except ValueError:  # of a module that was made at run time, or is the program itself
        spec = None
    if spec is None or (not spec.submodule_search_locations and not spec.has_location):
        return None
    path = Path(next(iter(spec.submodule_search_locations or [os.path.dirname(spec.origin or "")]))).joinpath(*inner)  # noqa: PTH120
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _load_env(folder: Path | None) -> frozenset[str]:
    """Set the variables of the nearest ``.env`` file, as ADK does, unless they are set; return their names."""
    if folder is None or os.environ.get("ADK_DISABLE_LOAD_DOTENV", "").lower() in {"1", "true"}:
        return frozenset()
    file = hide_env_file(folder)
    if file is None:
        return frozenset()
    from dotenv import dotenv_values, load_dotenv  # noqa: PLC0415 - comes with google-adk

    before = set(os.environ)
    load_dotenv(file, override=False)
    new = sorted(os.environ.keys() - before)
    set_by_agent(new, file)
    for name in filter(_NOT_ITS.fullmatch, new):
        del os.environ[name]
        _LOG.warning(
            "%s: %s has no effect here, because an agent must not influence its own evaluation; set it in the environment", file, name
        )
    return frozenset(dotenv_values(file))


def _import(name: str, private: frozenset[str]) -> ModuleType:
    try:
        with foreign_code("it"):
            return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if not missing or not f"{name}.".startswith(f"{missing}."):
            raise AgentError(f"module {name!r} could not be imported: {described(error, private)}") from error
        parent, _, last = missing.rpartition(".")
        places = getattr(sys.modules.get(parent), "__path__", []) if parent else None
        near = did_you_mean(last, [module.name for module in pkgutil.iter_modules(places)])
        msg = f"there is no module {missing!r}; looked in {Path.cwd()} and on Python's path. {near}"
        raise UsageError(msg.strip()) from None
