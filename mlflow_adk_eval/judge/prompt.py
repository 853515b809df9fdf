"""The prompts: files of our own words, each with a version, and the delimiters that keep others' words apart from them.

What the agent, the user, a tool or the eval set wrote may try to instruct the judge. So it never stands in the instructions: each piece is a
`Block` after a delimiter that carries a code, which nobody who wrote the material can know: it follows from a secret of this process and from
what the requests about one conversation begin with. The votes on a question are therefore the same request, those on the next turn begin as
those before, and the instructions of all questions are the same text, so that a server can keep what it computed for the beginning.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from string import ascii_lowercase
from typing import Any

from mlflow_adk_eval.config.spec import PromptVariant
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.material import Material
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.protocol import Request

_FOLDER = files(__package__ or "mlflow_adk_eval.judge") / "prompts"
_SECRET = secrets.token_bytes(32)
_CODE_LETTERS = 8
"""Letters, since a model reads two or three of them as one token, and digits one by one. Material with the code in it gets another one."""

_APART = "last data blocks, `item_1` and so on"
_LISTED = "lines of the last data block, `items`: each begins with its name, `item_1` and so on"
"""How the instructions say where the items are: in a block each, or all in one."""

_AGAIN = "\n\nAn earlier answer to this could not be read. Answer with one JSON object that follows the given schema, and nothing else."
"""Ours, and at the end, so that the beginning stays what it was."""

Arrange = Callable[[Mapping[str, str]], str]
"""Makes a text of blocks by name, each with its delimiters."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a model is told to do."""

    name: str
    """The file's name, without its suffix."""
    version: str
    text: str
    """The instructions, without the material."""
    closing: str = ""
    """What is said once more after the material."""

    @cached_property
    def sha256(self) -> str:
        """The hash of name, version and text, in hex."""
        return hashlib.sha256(f"{self.name}\n{self.version}\n{self.text}{self.closing}".encode()).hexdigest()

    @property
    def hash_by_version(self) -> tuple[str, str]:
        """What reports list of a prompt that was used: its name and version, and its hash."""
        return f"{self.name}@{self.version}", self.sha256

    def variant(self, name: PromptVariant) -> Prompt:
        """Return the prompt in a variant, which has a version of its own; itself where the variant would change nothing.

        Raises:
            UsageError: if there are no worked examples for it.
        """
        if name == "standard" or (name == "listed" and _APART not in self.text):
            return self
        varied = replace(self, version=f"{self.version}+{name}")
        if name == "listed":
            return replace(varied, text=self.text.replace(_APART, _LISTED))
        if name == "examples":
            return replace(varied, text=f"{self.text}\n\n{_examples(self.name)}")
        task = self.text.partition("# Task\n\n")[2].partition("\n\n")[0]
        return replace(varied, closing=f"\n\n{task}")

    def request(
        self,
        blocks: tuple[Block, ...],
        schema: Json,
        settings: Mapping[str, Any],
        arranged: Arrange | None = None,
        *,
        wording: str = "",
        thread: str | None = None,
        again: bool = False,
        answer_tokens: int | None = None,
    ) -> Request:
        """Return a request, the same in one process for the same arguments. Its text begins with a delimiter, and so with the code.

        Args:
            blocks: the material.
            schema: the JSON schema of the answer.
            settings: how the model generates.
            arranged: makes the text of the request; ``None``: the blocks one after the other.
            wording: further words of the text, in which the code must not occur either.
            thread: what requests that get the same code have in common; ``None``: all of the material.
            answer_tokens: how many tokens are enough for the answer; ``None``: it is not known.
            again: whether an answer to this could not be read. A model that always takes the likeliest word would repeat it.
        """
        texts = [self.sha256, wording, *(part for block in blocks for part in (block.name, block.text))]
        code = code_of(texts, thread=thread if thread is None else f"{self.sha256} {thread}")
        end = _delimiter(code, "end")
        if arranged:
            text = f"{end}\n{arranged({block.name: f'{block.after(code)}{end}' for block in blocks})}"
        else:
            text = "".join(block.after(code) for block in blocks) + end
        text, named = f"{text}{self.closing}{_AGAIN if again else ''}", {block.name: block.text for block in blocks}
        return Request(
            instructions=self.text, text=text, schema=schema, name=self.name, blocks=named, settings=settings, answer_tokens=answer_tokens
        )


@cache
def load_prompt(name: str) -> Prompt:
    """Return the prompt in the file ``<name>.md``, ahead of which go the rules that it shares with others.

    The first line of a file is ``version: <version>``, and where its rules are not those of judges, ``; rules: <name>``.
    """
    head, text = _read(name)
    rules_head, rules = _read(head.get("rules", "shared"))
    return Prompt(name=name, version=f"{head['version']}+{rules_head['version']}", text=f"{rules}\n\n{text}")


def is_varied(prompts: Iterable[str], variant: PromptVariant) -> bool:
    """Whether a variant changes any of these prompts.

    Raises:
        UsageError: if there are no worked examples for one.
    """
    texts = [load_prompt(name) for name in prompts]
    return [text.variant(variant) for text in texts] != texts


@cache
def _examples(name: str) -> str:
    """Return worked examples as part of the instructions: a line of material and a line with the answer to it, in turns."""
    try:
        _, text = _read(f"examples/{name}")
    except FileNotFoundError:
        have = sorted(file.name.removesuffix(".md") for file in (_FOLDER / "examples").iterdir())
        raise UsageError(f"prompt='examples': {name} has no worked examples; use another variant, or one of {', '.join(have)}") from None
    material, answers = text.splitlines()[::2], text.splitlines()[1::2]
    shown = "\n\n".join(f"{given}\n\n  Answer: {answer}" for given, answer in zip(material, answers, strict=True))
    return f"# Examples\n\nThe material is abridged here.\n\n{shown}"


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

    def after(self, code: str) -> str:
        """Return the text after its delimiter, which carries `code`. Another delimiter has to follow it."""
        text = self.text.encode("utf-8", "replace").decode()  # a lone half of a surrogate pair cannot be sent
        return f"{_delimiter(code, self.name)}\n{text}\n"


def blocks_of(materials: Mapping[str, Material]) -> tuple[Block, ...]:
    """Return the texts that are not empty as blocks, by name and in order."""
    return tuple(Block(name, one.text) for name, one in materials.items() if one.text)


def _delimiter(code: str, name: str) -> str:
    return f"[{code} {name}]"


def code_of(texts: Sequence[str], secret: bytes = _SECRET, *, thread: str | None = None) -> str:
    """Return a code that follows from the secret and `thread`, else the texts, and occurs in none of the texts, in whatever case."""
    folded = [text.casefold() for text in texts]
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for text in texts if thread is None else [thread]:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(content), content))
    while True:
        number, letters = int.from_bytes(digest.digest()), ""
        for _ in range(_CODE_LETTERS):
            number, letter = divmod(number, len(ascii_lowercase))
            letters += ascii_lowercase[letter]
        if not any(letters in text for text in folded):
            return letters
        digest.update(b"again")
