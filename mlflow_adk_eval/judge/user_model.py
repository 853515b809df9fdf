"""Asking a model for the next message of a user that it plays, with the same care for what is paid as for judges.

The model answers by a JSON schema, as judges do: a reason, the message, and whether the conversation is over. Its requests go through a
`JudgeClient` of their own, so that its limits are not those of the judges, while the budget is shared.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.errors import shown
from mlflow_adk_eval.evalset.media import Media
from mlflow_adk_eval.evalset.models import json_sha256
from mlflow_adk_eval.judge.client import CallResult
from mlflow_adk_eval.judge.identity import AskedModel
from mlflow_adk_eval.judge.prompt import Arrange, Block, Prompt
from mlflow_adk_eval.judge.protocol import Answer, Request
from mlflow_adk_eval.judge.question import decoded, object_of

STOP_SIGNAL = "</finished>"
"""What a model may write in its message, as in ADK, to end the conversation."""

_NEXT = "what the user says next; empty if the conversation is over and nothing is left to say"
SCHEMA = object_of(
    {
        "reason": {"type": "string", "description": "what the agent's last answer means for the plan, and what the user therefore does"},
        "finished": {"type": "boolean", "description": "whether the conversation is over"},
        "message": {"type": "string", "description": _NEXT},
    }
)
"""The JSON schema of an answer."""

_SIGNAL = re.compile(rf"[`*]*{re.escape(STOP_SIGNAL)}[`*]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """What the user says next."""

    message: str
    """Empty only where the conversation is over."""
    finished: bool = False
    """Whether the conversation is over, once the message is said."""
    reason: str = ""
    """Why, in the model's words."""


@dataclass(frozen=True, kw_only=True)
class UserPrompt:
    """What the model is told before one message."""

    prompt: Prompt
    blocks: tuple[Block, ...]
    unshown: tuple[Media, ...]
    """The media of the conversation that no block shows. With any, the model cannot know what its user would say."""
    wording: str = ""
    """The words in which the blocks stand, where they are the caller's."""
    arranged: Arrange | None = None
    """Makes the text of the request; ``None``: the blocks one after the other."""

    def request(self, settings: Mapping[str, Any], *, again: bool = False) -> Request:
        """Return the request; `again`: after an answer that could not be used.

        Each message has delimiters of its own: the agent reads the answer, in which a small model may repeat what it has read.
        """
        return self.prompt.request(self.blocks, SCHEMA, settings, self.arranged, wording=self.wording, again=again)

    def address(self, model: str, settings: Mapping[str, Any], place: Sequence[str | int]) -> str:
        """Return the hash, in hex, of all that an answer depends on but chance, and of its place."""
        material = [[block.name, block.text] for block in self.blocks]
        depends_on = [model, dict(settings), self.prompt.sha256, self.wording, material, SCHEMA, list(place)]
        return json_sha256(depends_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModel(AskedModel):
    """A model that plays users: whoever answers requests in JSON can do that as well as judge."""

    async def ask(self, prompt: UserPrompt, place: Sequence[str | int], *, again: bool = False) -> CallResult:
        """Return the model's answer, or why there is none.

        Args:
            prompt: what it is told.
            place: what tells this answer from others to the same words: the case, the run, the turn and the attempt.
            again: whether an answer to the same could not be used.
        """
        self.prompts.setdefault(*prompt.prompt.hash_by_version)
        model = await self.identity.address(self.settings)
        address = prompt.address(model, self.settings, place) if model else None
        return await self.client.request(lambda: self.judge.ask(prompt.request(self.settings, again=again)), address)


def user_message_of(answer: Answer) -> UserMessage | str:
    """Return what an answer says, or why it cannot be used. Nothing is guessed."""
    try:
        value = decoded(answer.text)[0]
    except ValueError as error:
        return answer.why(str(error))
    if not isinstance(value, dict):
        return answer.why(f"the answer is {shown(value)}, not an object")
    finished, text, reason = value.get("finished"), value.get("message"), value.get("reason")
    if not isinstance(finished, bool):
        return answer.why(f"finished is {shown(finished)}, not true or false")
    if not isinstance(text, str | None):
        return answer.why(f"the message is {shown(text)}, not a text")
    message, signals = _without_signal(text or "")
    if not message and not (finished or signals):
        return answer.why("the message is empty")
    return UserMessage(message=message, finished=finished or signals, reason=" ".join(reason.split()) if isinstance(reason, str) else "")


def _without_signal(text: str) -> tuple[str, bool]:
    r"""Return a message without the stop signal, and whether it had one.

    >>> _without_signal("Thanks, that is all. `</Finished>`"), _without_signal("\n**</finished>**."), _without_signal(" Hi! ")
    (('Thanks, that is all.', True), ('', True), ('Hi!', False))
    """
    sayable = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be sent
    message, signals = _SIGNAL.subn("", sayable)
    if signals and not message.strip(string.punctuation + string.whitespace):
        return "", True
    return message.strip(), bool(signals)
