"""What an agent is made of, as one digest: the files of its package, what they import of the same project, and its prompts.

`source_of` starts at the module that the agent was imported from and follows the imports in the text of its files, so that the answer does
not depend on what else a process has imported. An agent behind an address and a recording have no source here, and say so. `git_state` says in
which state of the working tree the agent was evaluated.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from mlflow_adk_eval.agents.adk.agent import AdkAgent
from mlflow_adk_eval.agents.adk.modules import YAML, yaml_of
from mlflow_adk_eval.agents.functions import CallableAgent
from mlflow_adk_eval.agents.http.http_agent import HttpAgent
from mlflow_adk_eval.agents.protocol import Agent
from mlflow_adk_eval.agents.recordings import UNNAMED, Recording
from mlflow_adk_eval.evalset.models import canonical_json
from mlflow_adk_eval.redact import hide_env_file, without_credentials
from mlflow_adk_eval.text import counted

SourceKind = Literal["files", "address", "recording", "unknown"]

MAX_FILES = 2_000
MAX_BYTES = 64 * 1024 * 1024
_MAX_ENTRIES = 20_000
_CODE = frozenset({".py", ".pyc", ".pyx", ".so", ".pyd", ".zip", ".whl", ".egg", ".pth", ".pkl", ".pickle"})
"""What Python runs, or unpacks and runs."""
_MODULES = tuple(importlib.machinery.all_suffixes())
_LOADERS = frozenset({"import_module", "__import__", "run_module"})
_UNCHECKED = b"\x01\x00\x00\x00"
"""The flags of compiled code that Python runs whatever its source says by now (PEP 552)."""
_DATA = frozenset(
    {".html", ".j2", ".jinja", ".jinja2", ".md", ".mustache", ".prompt", ".rst", ".tmpl", ".tpl", ".txt"}
    | {".cfg", ".csv", ".ini", ".json", ".jsonl", ".toml", ".tsv", ".xml", ".yaml", ".yml"}
    | {".js", ".proto", ".sh", ".sql", ".ts"}
)
"""What prompts and other data are kept in. Databases, logs and pictures are not among it."""
_EVALUATION = (".evalset.json", ".evalset_result.json", ".test.json", "test_config.json")
"""What an agent is evaluated with, which is no part of it unless its code names it."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "mlruns", "mlartifacts", "adk_eval_pending"})
_OURS = "mlflow_adk_eval"
_IMPORT = re.compile(rb"(?:^|[;:])[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n;]+)|import[ \t]+([^\n;]+))", re.MULTILINE)
_COMMENT = re.compile(rb"#[^\n]*")
_WORD = re.compile(r"[^\W\d]\w*")
_TEXT = re.compile(rb"[\"']([^\"'\n\\]{1,200})[\"']")
_DOTTED = re.compile(rb"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_VARIABLE = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class AgentSource:
    """What an agent is made of, or why that is not known."""

    kind: SourceKind
    description: str
    """For people: how many files, which address, or why nothing is known."""
    folder: Path | None = None
    """Where its package or module lies; no part of the digest."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """The sha256 of each file, in hex, by its path relative to where Python imports it from."""
    env_keys: tuple[str, ...] = ()
    """The variables of its ``.env`` file, without their values."""
    models: tuple[str, ...] = ()
    """The models that its agents name."""
    said_version: str = ""
    """Which version an agent behind an address says that it is."""
    recorded_version: str = ""
    """Which version a recording says that it is of; empty where it does not say, and for whatever is no recording."""

    @cached_property
    def manifest(self) -> bytes:
        """The list of all that, as canonical JSON; empty where it is not known."""
        if self.kind != "files":
            return b""
        return canonical_json({"schema": 1, "files": self.files, "env_keys": self.env_keys, "models": self.models})

    @cached_property
    def sha256(self) -> str:
        """The hash of the manifest, in hex; empty where the source is not known."""
        return hashlib.sha256(self.manifest).hexdigest() if self.manifest else ""


UNKNOWN = AgentSource(kind="unknown", description="unknown: only a report was logged")


def source_of(agent: Agent, said_version: str = "") -> AgentSource:
    """Return what an agent is made of; of one behind an address, where it is and which version it says it is.

    That are all code and data files of its package, whatever these import of the same project, the names in its ``.env`` file, and the models
    that it names. A module outside of any package counts with what it imports and with the files that it names.
    """
    match agent:
        case Recording():
            origin = agent.origin
            version = origin.agent_version if origin else ""
            name = "" if agent.name == UNNAMED else agent.name
            label = " ".join(filter(None, (name, version)))
            # Without a name, agents are told apart by what they said; one that is read from its rows as they are needed says it too late.
            mark = " that names no agent" + (f", sha256 {agent.sha256[:12]}…" if agent.runs else "")
            described = f"a recording{f' of {label}' if label else mark}, so its source is unknown"
            return AgentSource(kind="recording", description=described, recorded_version=version)
        case HttpAgent():
            version = f", which reports version {said_version}" if said_version else ""
            described = f"behind the address {agent.address}{version}, so its source is unknown"
            return AgentSource(kind="address", description=described, said_version=said_version)
        case AdkAgent():
            modules = agent.modules or _modules_with(agent.root)
            return _source(modules, whole=bool(agent.modules), models=_models(agent.root))
        case CallableAgent():
            return _source(_modules_of_function(agent.function))
        case _:
            return _source(_modules_of(type(agent)))


def _source(modules: Iterable[ModuleType], *, whole: bool = False, models: Iterable[str] = ()) -> AgentSource:
    """Return the source that begins with some modules; `whole`: all that lies in the folder of their package, however that is marked."""
    tree = _Tree()
    try:
        for module in modules:
            tree.begin(module, whole=whole)
        if tree.folder is None:
            return AgentSource(kind="unknown", description="unknown: no imported file defines it")
        hide_env_file(tree.folder)
        # The nearest one of the project is the one that ADK loads.
        places = [each for each in (tree.folder, *tree.folder.parents) if each.is_relative_to(tree.project)]
        env = next((place / ".env" for place in places if (place / ".env").is_file()), None)
        variables = set(_VARIABLE.findall(env.read_text("utf-8", "replace"))) if env else set[str]()
    except _TooMuchError:
        limit = f"more than {MAX_FILES:,} files or {MAX_BYTES >> 20} MiB"
        return AgentSource(kind="unknown", description=f"unknown: {tree.folder} and its surroundings contain {limit}", folder=tree.folder)
    except OSError as error:
        return AgentSource(kind="unknown", description=f"unknown: {error.filename} cannot be read: {error.strerror}", folder=tree.folder)
    files = {os.fsencode(key).decode("utf-8", "replace"): hashlib.sha256(text).hexdigest() for key, text in tree.texts.items()}
    description = f"{counted(len(files), 'file')} in and around {tree.folder.name}"
    files, keys, named = dict(sorted(files.items())), tuple(sorted(variables)), tuple(sorted(set(models)))
    return AgentSource(kind="files", description=description, folder=tree.folder, files=files, env_keys=keys, models=named)


class _TooMuchError(Exception):
    """There are more files than are worth a wait at each start."""


@dataclass(slots=True)
class _Tree:
    """The files of an agent, as they are found from import to import."""

    folder: Path | None = None
    project: Path = Path()
    root: Path = Path()
    """Where Python imports the module from that was taken in last."""
    files: dict[str, Path] = field(default_factory=dict[str, Path])
    """By the path relative to where Python imports it from; absolute."""
    texts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    roots: dict[str, Path | None] = field(default_factory=dict[str, "Path | None"])
    looked_up: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    entries: int = 0
    size: int = 0
    declared: bool = False
    """Whether YAML files name the modules of tools and callbacks."""

    def begin(self, module: ModuleType, *, whole: bool) -> None:
        """Take in a module with the folder of its package, and all that they import."""
        file = getattr(module, "__file__", None)
        if whole or not file:
            yaml = yaml_of(module)
            self.declared |= whole and yaml is not None
            file = file or (yaml and str(yaml))
        if not file or module.__name__.partition(".")[0] == _OURS or not Path(file).is_file():
            return
        path, spec = Path(os.path.abspath(file)), module.__spec__  # noqa: PTH100 - a link is what it is called
        name = tuple((spec.name if spec else module.__name__).split("."))
        inner = path.parent if path.name in {"__init__.py", YAML} else path.with_suffix("")
        if inner.parts[-len(name) :] == name:
            root = inner.parents[len(name) - 1]
        else:
            root = next(folder for folder in path.parents if not (folder / "__init__.py").is_file())
        self.root = self.roots[path.relative_to(root).parts[0].removesuffix(".py")] = root
        if self.folder is None:
            self.folder = path.parent
            marks = (".git", "pyproject.toml", "setup.cfg", "setup.py")
            self.project = next((each for each in (root, *root.parents) if any((each / mark).exists() for mark in marks)), root)
        if path.parent != root and (whole or (path.parent / "__init__.py").is_file()):
            for below in self._below(path.parent):
                self._add(below, root)
        self._add(path, root)
        self._follow()

    def _below(self, folder: Path) -> Iterator[Path]:
        """Yield the files of a package."""
        seen = set[str]()
        for place, folders, names in os.walk(folder, followlinks=True):
            here = Path(place)
            if (real := os.path.realpath(here)) in seen:  # a link to a folder above leads round in circles
                folders.clear()
                continue
            seen.add(real)
            ours = [name for name in folders if not (name.startswith(".") or name in _SKIPPED or name.endswith(".egg-info"))]
            folders[:] = sorted(name for name in ours if not (here / name / "pyvenv.cfg").exists())
            self.entries += len(names) + len(folders)
            if self.entries > _MAX_ENTRIES:
                raise _TooMuchError
            for name in names:
                suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - thousands of them
                if suffix in _CODE or (suffix in _DATA and not name.startswith(".") and not name.endswith(_EVALUATION)):
                    yield here / name

    def _add(self, path: Path, root: Path) -> None:
        key = path.relative_to(root).as_posix()
        if key in self.files:
            return
        if len(self.files) >= MAX_FILES:
            raise _TooMuchError
        self.files[key] = path
        if path.suffix == ".py":
            instead: Path | None = None  # compiled code that Python runs even if the module was edited since
            with suppress(OSError, NotImplementedError):
                compiled = Path(importlib.util.cache_from_source(str(path)))
                with compiled.open("rb") as file:
                    instead = compiled if file.read(8)[4:] == _UNCHECKED and compiled.is_relative_to(root) else None
            if instead:
                self._add(instead, root)
        for parent in path.relative_to(root).parents:  # importing a module runs what its packages say
            if (root / parent / "__init__.py").is_file() and parent != Path():
                self._add(root / parent / "__init__.py", root)

    def _follow(self) -> None:
        """Take in what is imported or named, until there is nothing new."""
        while pending := [key for key in self.files if key not in self.texts]:
            for key in pending:
                self.size += self.files[key].stat().st_size
                if self.size > MAX_BYTES:
                    raise _TooMuchError
                text = self.texts[key] = self.files[key].read_bytes()
                if key.endswith(".py"):
                    for name in filter(None, _imported(key, text)):
                        self._import(name)
                    self._add_named(key, text)
                elif self.declared and key.endswith((".yaml", ".yml")):
                    for dotted in _DOTTED.findall(text):
                        self._import(tuple(dotted.decode().split(".")))

    def _add_named(self, key: str, text: bytes) -> None:
        """Take in the data files that the text of a module names, in its folder or in one that it names as well."""
        path, named = self.files[key], [name.decode("utf-8", "replace") for name in _TEXT.findall(text)]
        root = Path(str(path)[: -len(key)])
        data = [name for name in named if os.path.splitext(name)[1].lower() in _DATA]  # noqa: PTH122 - as above
        # Unlike those of Path, these never raise of texts that are no names of files.
        folders = [path.parent, *(path.parent / name for name in named if name and data and os.path.isdir(path.parent / name))]  # noqa: PTH112
        for name in data:
            for folder in folders:
                file = Path(os.path.normpath(folder / name))
                if os.path.isfile(file) and file.is_relative_to(root):  # noqa: PTH113
                    self._add(file, root)

    def _import(self, name: tuple[str, ...]) -> None:
        """Take in the files of a module, and of the packages that it is in, if it belongs to the project."""
        if name[0] not in self.roots:
            self.roots[name[0]] = self._root_of(name[0])
        root = self.roots[name[0]]
        if root and root.is_file():  # an archive
            self._add(root, root.parent)
            return
        for depth in range(1, len(name) + 1) if root else ():
            if name[:depth] in self.looked_up:
                continue
            self.looked_up.add(name[:depth])
            place = os.path.join(str(root), *name[:depth])  # noqa: PTH118 - there are thousands of them in a large project
            for file in (f"{inner}{suffix}" for inner in (f"{place}{os.sep}__init__", place) for suffix in _MODULES):
                if os.path.isfile(file):  # noqa: PTH113 - as above
                    self._add(Path(file), Path(str(root)))

    def _root_of(self, top: str) -> Path | None:
        """Return where Python imports a name from; ``None`` if that is not of this project."""
        if top in sys.stdlib_module_names or top == _OURS:
            return None
        roots = [self.root]
        if not any(os.path.isfile(self.root / file) for file in (f"{top}.py", f"{top}/__init__.py")):  # noqa: PTH113 - as above
            try:
                spec = importlib.util.find_spec(top)
            except (ImportError, ValueError, AttributeError):
                spec = None
            if spec is None:
                return None
            places = list(spec.submodule_search_locations or ()) or ([spec.origin] if spec.has_location and spec.origin else [])
            roots = [Path(os.path.abspath(place)).parent for place in places]  # noqa: PTH100 - as above
        project = self.project.resolve()
        return next((root for root in roots if root.resolve().is_relative_to(project) and not _is_installed(root)), None)


def _imported(key: str, text: bytes) -> Iterator[tuple[str, ...]]:
    """Yield what the text of a module imports; of one that is no Python, what it seems to."""
    package = key.split("/")[:-1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the text, which is not ours
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from _imported_by_text(package, text)
        return
    loads = not text.isascii() or any(name.encode() in text for name in _LOADERS)
    for node in ast.walk(tree) if loads else _statements(tree):
        match node:
            case ast.Import(names=names):
                yield from (tuple(each.name.split(".")) for each in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = (*_above(package, level), *(module.split(".") if module else ()))
                yield base
                yield from ((*base, each.name) for each in names if each.name != "*")
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]) if (
                called in _LOADERS
            ):
                inner = name.lstrip(".")
                yield (*_above(package, len(name) - len(inner)), *inner.split("."))
            case _:
                pass


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the statements of a module, at any depth: most of what a tree has is in expressions, which import nothing."""
    bodies: list[Any] = [tree]
    while bodies:
        node = bodies.pop()
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                yield from statements
                bodies += statements


def _above(package: list[str], level: int) -> list[str]:
    """Return the package that a relative import of so many dots begins with; nothing for an absolute one."""
    return package[: len(package) - level + 1] if level else []


def _imported_by_text(package: list[str], text: bytes) -> Iterator[tuple[str, ...]]:
    for source, names, modules in _IMPORT.findall(_COMMENT.sub(b"", text)):
        if modules:
            yield from (tuple(_WORD.findall(each.partition(" as ")[0])) for each in modules.decode("utf-8", "replace").split(",") if each)
            continue
        origin = source.decode("utf-8", "replace")
        level = len(origin) - len(origin.lstrip("."))
        base = (*_above(package, level), *_WORD.findall(origin))
        listed = [each.split() for each in names.decode("utf-8", "replace").strip("() \t\r\n").replace("\\", "").split(",")]
        yield base
        yield from ((*base, each[0]) for each in listed if each and _WORD.fullmatch(each[0]))


_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()


def _is_installed(path: Path) -> bool:
    return path.is_relative_to(_STDLIB) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _modules_of_function(function: Any) -> list[ModuleType]:
    """Return the modules that a callable is defined in: that of the innermost function, then those of what was wrapped around it.

    Who wraps one often copies its name and module (`functools.wraps`), so it goes by where its code is.
    """
    chain, seen = [function], {id(function)}
    while (inner := chain[-1].func if isinstance(chain[-1], functools.partial) else getattr(chain[-1], "__wrapped__", None)) is not None:
        if id(inner) in seen:
            break
        seen.add(id(inner))
        chain.append(inner)
    layers = [each for each in reversed(chain) if not isinstance(each, functools.partial)]
    own, *wrappers = [_modules_of(each if hasattr(each, "__code__") or inspect.ismethod(each) else type(each)) for each in layers] or [[]]
    around = (module for modules in wrappers for module in modules)
    return [*own, *(module for module in around if not _is_installed(Path(getattr(module, "__file__", None) or "")))]


def _modules_of(defined: Any) -> list[ModuleType]:
    name = getattr(defined, "__globals__", {}).get("__name__") or getattr(defined, "__module__", None)
    module = sys.modules.get(name or "")
    return [module] if module else []


def _modules_with(root: Any) -> list[ModuleType]:
    """Return the modules of a project that hold an agent, or the app that it is in, under some name.

    Those that only import others of them, such as a script or a test that evaluates an agent, are left out.
    """
    if hasattr(root, "__code__"):  # a function that makes the agent
        return _modules_of(root)
    wanted = {id(root), id(_agent_of(root))}
    modules: list[ModuleType] = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not _is_installed(Path(file)) and any(id(value) in wanted for value in list(vars(module).values())):
            modules.append(module)
    if len(modules) == 1:
        return modules
    files: dict[str, frozenset[Path]] = {}
    for module in modules:
        tree = _Tree()
        tree.begin(module, whole=False)
        files[str(module.__file__)] = frozenset(tree.files.values())
    known = {name: Path(name).resolve() for name in files}
    importers = {one for one in files for other in files if known[other] in files[one] and known[one] not in files[other]}
    return [module for module in modules if str(module.__file__) not in importers]


def _agent_of(root: Any) -> Any:
    """Return the agent of an app; an agent as it is. Agents below others have a `root_agent`, too, which is the one at the top."""
    return root if hasattr(root, "sub_agents") else getattr(root, "root_agent", root)


def _models(root: Any) -> Iterator[str]:
    """Yield the names of the models of an agent and of those below it."""
    agent = _agent_of(root)
    model = getattr(agent, "model", None)
    name = model if isinstance(model, str) else getattr(model, "model", None)
    if isinstance(name, str) and name:
        yield name
    for below in getattr(agent, "sub_agents", None) or ():
        yield from _models(below)


_TIMEOUT_S = 30
_MAX_DIFF = 5_000_000
_SOURCE = ("*.py", "*.yaml", "*.yml")
"""What a new, uncommitted file must be called to make another agent. Logs, stores and results lie around untracked, too."""
_NO_DOTENV = (":(exclude,glob)**/.env*", ":(exclude,glob)**/*.env")


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """A commit and what the working tree differs by from it."""

    commit: str
    branch: str
    """Empty where no branch is checked out."""
    repo_url: str
    """Of the remote ``origin``, without credentials; empty where there is none."""
    diff: str
    """Empty for a clean tree. Files called ``.env`` are left out."""
    diff_sha256: str
    """The hash of the diff; empty for a clean tree."""


def git_state(folder: Path) -> GitState | None:
    """Return the state of the repository that `folder` lies in; ``None`` if there is no git, no repository or no commit."""
    git = shutil.which("git")
    commit = _ask(git, folder, "rev-parse", "--verify", "HEAD").strip() if git else ""
    if not git or not commit:
        return None
    root = Path(_ask(git, folder, "rev-parse", "--show-toplevel").strip() or folder)
    diff = _ask(git, root, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--", ".", *_NO_DOTENV)
    untracked = _ask(git, root, "ls-files", "--others", "--exclude-standard", "-z", "--", *_SOURCE).split("\0")
    diff += "".join(_ask(git, root, "diff", "--no-index", "--no-color", "--", "/dev/null", name) for name in untracked if name)
    if len(diff) > _MAX_DIFF:
        digest = hashlib.sha256(diff.encode("utf-8", "replace")).hexdigest()
        diff = f"{diff[:_MAX_DIFF]}\n… {len(diff) - _MAX_DIFF} more characters; sha256 of everything: {digest}\n"
    branch = _ask(git, folder, "symbolic-ref", "--short", "--quiet", "HEAD").strip()
    url = without_credentials(_ask(git, folder, "config", "--get", "remote.origin.url").strip())
    sha256 = hashlib.sha256(diff.encode("utf-8", "replace")).hexdigest() if diff else ""
    return GitState(commit=commit, branch=branch, repo_url=url, diff=diff, diff_sha256=sha256)


def _ask(git: str, folder: Path, *arguments: str) -> str:
    """Return what git answers; empty where it refuses."""
    try:
        answer = subprocess.run(  # noqa: S603 - the arguments are ours, and file names go behind "--"
            [git, "--no-optional-locks", *arguments], cwd=folder, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode("utf-8", "replace")
