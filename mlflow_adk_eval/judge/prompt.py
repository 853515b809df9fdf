"""The prompts: files of our own words, each with a version, and the delimiters that keep others' words apart from them.

What the agent, the user, a tool or the eval set wrote may try to instruct the judge. So it never stands in the instructions: each piece is a
`Block` between delimiters that carry a random code, new for every request and known to nobody who wrote the material.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from string import Template
from typing import Any

from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.protocol import Request

_FOLDER = files(__package__ or "mlflow_adk_eval.judge") / "prompts"
_NONCE_BYTES = 12

Arrange = Callable[[Mapping[str, str]], str]
"""Makes a text of blocks by name, each between its delimiters."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a model is told to do."""

    name: str
    """The file's name, without its suffix."""
    version: str
    text: str
    """A `string.Template` with the one field ``$nonce``."""

    @cached_property
    def sha256(self) -> str:
        """The hash of name, version and text, in hex."""
        return hashlib.sha256(f"{self.name}\n{self.version}\n{self.text}".encode()).hexdigest()

    @property
    def hash_by_version(self) -> tuple[str, str]:
        """What reports list of a prompt that was used: its name and version, and its hash."""
        return f"{self.name}@{self.version}", self.sha256

    def request(
        self, blocks: tuple[Block, ...], schema: Json, settings: Mapping[str, Any], arranged: Arrange | None = None, *, wording: str = ""
    ) -> Request:
        """Return a request with delimiters that carry a new random code.

        Args:
            blocks: the material.
            schema: the JSON schema of the answer.
            settings: how the model generates.
            arranged: makes the text of the request; ``None``: the blocks one after the other.
            wording: further words of the text, in which the code must not occur either.
        """
        code = new_nonce([*blocks, Block("wording", wording)])
        delimited = [(block.name, block.between(code)) for block in blocks]
        return Request(
            instructions=self.instructions(code),
            text=arranged(dict(delimited)) if arranged else "\n\n".join(text for _, text in delimited),
            schema=schema,
            name=self.name,
            blocks={block.name: block.text for block in blocks},
            settings=settings,
        )

    def instructions(self, nonce: str) -> str:
        """Return the text for a request whose delimiters carry `nonce`."""
        return Template(self.text).substitute(nonce=nonce)


@cache
def load_prompt(name: str) -> Prompt:
    """Return the prompt in the file ``<name>.md``, ahead of which go the rules that it shares with others.

    The first line of a file is ``version: <version>``, and where its rules are not those of judges, ``; rules: <name>``.
    """
    head, text = _read(name)
    rules_head, rules = _read(head.get("rules", "shared"))
    return Prompt(name=name, version=f"{head['version']}+{rules_head['version']}", text=f"{rules}\n\n{text}")


def _read(name: str) -> tuple[Mapping[str, str], str]:
    """Return what the first line of a file says, and the rest."""
    first, _, text = (_FOLDER / f"{name}.md").read_text("utf-8").partition("\n")
    return dict(item.split(": ", 1) for item in first.strip().split("; ")), text.strip()


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of what is judged. Whoever wrote it is not to be obeyed."""

    name: str
    """What the instructions call it."""
    text: str

    def between(self, nonce: str) -> str:
        """Return the text between delimiters that carry `nonce`."""
        text = self.text.encode("utf-8", "replace").decode()  # a lone half of a surrogate pair cannot be sent
        return f'<data-{nonce} name="{self.name}">\n{text}\n</data-{nonce}>'


def blocks_of(texts: Mapping[str, str]) -> tuple[Block, ...]:
    """Return the texts that are not empty as blocks, by name and in order."""
    return tuple(Block(name, text) for name, text in texts.items() if text)


def new_nonce(blocks: Iterable[Block]) -> str:
    """Return a random code that occurs in none of the blocks."""
    texts = [block.text for block in blocks]
    while True:
        nonce = secrets.token_hex(_NONCE_BYTES)
        if not any(nonce in text for text in texts):
            return nonce
