"""What a judge is: something that answers one question in JSON, or says why it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlflow_adk_eval.evalset.models import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question, ready to be sent to a model."""

    instructions: str
    """What to do, in nobody's words but ours; a model's system instruction."""
    text: str
    """What is to be judged, each piece between delimiters that its author could not know."""
    schema: Json
    """The JSON schema of the answer."""
    name: str = ""
    """The name of the prompt, which is the criterion's or begins with it."""
    blocks: Mapping[str, str] = field(default_factory=dict[str, str])
    """The pieces of `text` by name, for judges that are programs."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """``judge_model_config``: how the model generates, in the spelling of google-genai's ``GenerateContentConfig``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model answered to one request."""

    text: str
    """The JSON text, without the model's thoughts; empty if there is none."""
    model: str = ""
    """The version that answered, as the provider names it."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    """Those of its thoughts included."""
    latency_s: float = 0.0
    """How long the request took, in seconds."""
    problem: str = ""
    """Why the text is missing or cut off, as the provider says, such as ``SAFETY`` or ``MAX_TOKENS``; empty where it is whole."""


class Judge(Protocol):
    """A model that can be asked. One object serves one evaluation, inside one event loop."""

    @property
    def model(self) -> str:
        """What reports call it."""
        ...

    @property
    def address(self) -> str | None:
        """What tells its answers from those of any other judge, so that they may be used again; ``None``: nothing does."""
        ...

    async def ask(self, request: Request, /) -> Answer:
        """Send one request, once.

        Raises:
            Unavailable: if the same request may succeed later.
            Refused: if it never will.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections."""
        ...


class Answers(Protocol):
    """Answers that were paid for, by the address of what was asked."""

    def get(self, address: str, /) -> Answer | None:
        """Return the answer, if it is known."""
        ...

    def put(self, address: str, answer: Answer, /) -> None:
        """Keep an answer, before anything else is done with it."""
        ...


class NoAnswer(Exception):  # noqa: N818 - what happened, not whose fault it is
    """A request that brought no answer."""


class Unavailable(NoAnswer):
    """The judge does not answer now, but may answer the same request later."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, overloaded: bool = False) -> None:
        """Say what happened.

        Args:
            message: what the provider said.
            retry_after_s: how long it asked to wait, in seconds.
            overloaded: whether it is asked too much (429, 503, no answer in time), so that asking less would help.
        """
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.overloaded = overloaded


class Refused(NoAnswer):
    """The judge will never answer this request."""

    def __init__(self, message: str, *, every_request: bool = False) -> None:
        """Say what happened.

        Args:
            message: what the provider said.
            every_request: whether no other request would fare better, as without permission or without such a model.
        """
        super().__init__(message)
        self.every_request = every_request
