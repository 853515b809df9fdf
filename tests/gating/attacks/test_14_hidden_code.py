"""Attack 14: change what an agent does, and keep the digest of its source."""

from __future__ import annotations

import importlib
import importlib.util
import py_compile
import sys
import zipfile
import zipimport
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.source import AgentSource, source_of

Write = Callable[[Path, str], object]
"""Writes the module of an agent that answers with a text, given the folder of the project."""
NAMES = ("entry", "hidden", "inner", "verborgén")


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
        del sys.modules[name]
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    vars(zipimport)["_zip_directory_cache"].clear()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "pyproject.toml").write_text("")
    yield tmp_path
    forget()


def answered() -> tuple[str, AgentSource]:
    forget()
    agent = importlib.import_module("entry").agent
    return agent("Hello"), source_of(resolve_agent(agent))


def hidden(imports: str, *, file: str = "hidden.py", encoding: str = "utf-8") -> Write:
    def write(project: Path, text: str) -> None:
        (project / "entry.py").write_bytes(f"{imports}\ndef agent(text): return say()\n".encode(encoding))
        (project / file).write_text(f"def say(): return {text!r}\n")

    return write


def wrapped(project: Path, text: str) -> None:
    (project / "entry.py").write_text("from inner import plain\nfrom hidden import around\nagent = around(plain)\n")
    (project / "inner.py").write_text("def plain(text): return text\n")
    lines = ("import functools", "def around(inner):", " @functools.wraps(inner)", f" def agent(text): return {text!r}", " return agent")
    (project / "hidden.py").write_text("\n".join(lines))


def archived(project: Path, text: str) -> None:
    lines = ("import sys, pathlib", "sys.path.insert(0, str(pathlib.Path(__file__).parent / 'code.zip'))", "import hidden")
    (project / "entry.py").write_text("\n".join((*lines, "def agent(text): return hidden.say()")))
    with zipfile.ZipFile(project / "code.zip", "w") as archive:
        archive.writestr("hidden.py", f"def say(): return {text!r}\n")


def compiled_to(project: Path, text: str, target: str, mode: py_compile.PycInvalidationMode) -> None:
    (project / "entry.py").write_text("from hidden import say\ndef agent(text): return say()\n")
    (project / "draft.py").write_text(f"def say(): return {text!r}\n")
    py_compile.compile(str(project / "draft.py"), target, invalidation_mode=mode)
    (project / "draft.py").unlink()


def without_source(project: Path, text: str) -> None:
    compiled_to(project, text, str(project / "hidden.pyc"), py_compile.PycInvalidationMode.CHECKED_HASH)


def beside_its_source(project: Path, text: str) -> None:
    (project / "hidden.py").write_text("def say(): return 'what people read'\n")
    cached = importlib.util.cache_from_source(str(project / "hidden.py"))
    compiled_to(project, text, cached, py_compile.PycInvalidationMode.UNCHECKED_HASH)


def linked(project: Path, text: str) -> None:
    folder, elsewhere = project / "entry", project / "elsewhere"
    for each in (folder, elsewhere):
        each.mkdir(exist_ok=True)
    (elsewhere / "prompt.md").write_text(text)
    for name, target in (("prompts", elsewhere), ("round", folder)):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    lines = (
        "from pathlib import Path",
        "def agent(text):",
        " (found,) = (Path(__file__).parent / 'prompts').iterdir()",
        " return found.read_text()",
    )
    (folder / "__init__.py").write_text("\n".join(lines))


ATTACKS = {
    "a continued line": hidden("from\\\n hidden import say"),
    "a form feed": hidden("from\x0chidden\x0cimport say"),
    "no space": hidden("from hidden import(say)"),
    "behind a text with a hash": hidden("x = '#'; from hidden import say"),
    "another alphabet": hidden("from verborgén import say", file="verborgén.py"),
    "wide letters": hidden("from \uff48\uff49\uff44\uff44\uff45\uff4e import say"),
    "another encoding": hidden("# -*- coding: utf-7 -*-\nfrom hidden import say", encoding="utf-7"),
    "import_module": hidden("import importlib\nsay = importlib.import_module('hidden').say"),
    "__import__": hidden("say = __import__('hidden').say"),
    "a decorator": wrapped,
    "an archive": archived,
    "code without its source": without_source,
    "code that is not that of its source": beside_its_source,
    "a linked folder": linked,
}


@pytest.mark.parametrize("write", ATTACKS.values(), ids=ATTACKS)
def test_what_answers_otherwise_has_another_source(write: Write, project: Path) -> None:
    write(project, "good")
    answer, source = answered()
    assert (answer, source.kind) == ("good", "files")
    write(project, "evil")
    other, changed = answered()
    assert other == "evil"
    assert changed.sha256 != source.sha256
    write(project, "good")
    assert answered() == ("good", source)


def test_limit_a_name_that_is_computed_is_not_followed(project: Path) -> None:
    write = hidden("import importlib\nsay = importlib.import_module('hid' + 'den').say")
    write(project, "good")
    _, source = answered()
    write(project, "evil")
    assert answered() == ("evil", source)
