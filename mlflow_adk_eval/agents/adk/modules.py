"""Finding and importing the module of an agent, by name or by folder, with its ``.env`` file and its ``root_agent.yaml``."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import pkgutil
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from mlflow_adk_eval.agents.conversation import described
from mlflow_adk_eval.errors import AgentError, did_you_mean
from mlflow_adk_eval.foreign import foreign_code
from mlflow_adk_eval.judge.hosts import set_by_agent
from mlflow_adk_eval.redact import hide_env_file

YAML = "root_agent.yaml"
"""The file of an agent that is written without code, in its folder."""

_LOG = logging.getLogger(__name__)
_NOT_ITS = re.compile(
    r"(MLFLOW_)?ADK_EVAL_.*|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|NETRC|SSLKEYLOGFILE", re.IGNORECASE
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
        AgentError: if it does not exist or cannot be imported.
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
        _refuse_namesake(module, folder)
    return AgentModule(name=name.removesuffix(".agent"), holders=_holders(module, env_names), env_names=env_names, yaml=yaml_of(module))


def yaml_of(module: ModuleType) -> Path | None:
    """Return the file ``root_agent.yaml`` beside the files of a package."""
    return next((file for place in getattr(module, "__path__", ()) if (file := Path(place, YAML)).is_file()), None)


def _folder(source: str | Path) -> Path | None:
    """Return the folder that `source` is the path of; ``None`` if it can only be a module's name."""
    path = Path(source)
    is_agent = any((path / file).is_file() for file in _FILES)
    if is_agent:
        return path.resolve()
    if path.is_dir() and _is_path(source):
        hint = did_you_mean(YAML, [file.name for file in path.glob("*.y*ml")])
        msg = f"{path}: no agent in this folder; looked for {', '.join(_FILES)}. {hint}"
        raise AgentError(msg.strip())
    if _is_path(source):
        near = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
        found = "is a file; name the folder it is in" if path.is_file() else "does not exist"
        msg = f"{path}: looked for the folder of an agent, but this {found}. {did_you_mean(path.name, near)}"
        raise AgentError(msg.strip())
    return None


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
        _LOG.warning("%s: %s has no effect here, since an agent has no say in how it is evaluated; set it in the environment", file, name)
    return frozenset(dotenv_values(file))


def _import(name: str, private: frozenset[str]) -> ModuleType:
    try:
        with foreign_code("it"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            parent, _, last = error.name.rpartition(".")
            near = did_you_mean(last, _modules_in(parent))
            msg = f"there is no module {error.name!r}; looked in {Path.cwd()} and on Python's path. {near}"
            raise AgentError(msg.strip()) from None
        raise _broken(name, error, private) from error
    except Exception as error:
        raise _broken(name, error, private) from error


def _broken(name: str, error: Exception, private: frozenset[str]) -> AgentError:
    return AgentError(f"module {name!r} could not be imported: {described(error, private)}")


def _modules_in(package: str) -> Iterable[str]:
    paths = getattr(sys.modules.get(package), "__path__", []) if package else None
    return (module.name for module in pkgutil.iter_modules(paths))


def _refuse_namesake(module: ModuleType, folder: Path) -> None:
    """Refuse a module of the folder's name from elsewhere, which would be evaluated in its place."""
    found = Path(module.__file__).parent if module.__file__ else Path(next(iter(module.__path__)))
    if found.resolve() != folder:
        msg = f"{folder}: Python already knows another module {module.__name__!r}, at {found}; rename the folder, or use a process for each of them"
        raise AgentError(msg)


def _holders(module: ModuleType, private: frozenset[str]) -> tuple[ModuleType, ...]:
    inner = getattr(module, "agent", None)
    if isinstance(inner, ModuleType):
        return inner, module
    name = f"{module.__name__}.agent"
    if hasattr(module, "__path__") and importlib.util.find_spec(name):
        return _import(name, private), module
    return (module,)
