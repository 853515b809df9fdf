"""A model that follows a few rules, so that the example runs without a key, without a network and always the same."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

_ROOM = re.compile(r"living room|bedroom|kitchen", re.IGNORECASE)
_DEVICE = re.compile(r"device_\d+")
_DEGREES = re.compile(r"(\d+) degrees")
_HELP = "I can list devices, turn them on or off, and set the temperature of a room."

Parts = list[types.Part]


@dataclass(frozen=True)
class Turn:
    """What the model knows when it is asked."""

    text: str
    """What the user said last."""
    earlier: str
    """All that was said before."""
    results: Sequence[dict[str, Any]]
    """What the tools answered since."""


class ScriptedModel(BaseLlm):
    """Understands a handful of requests, looks before it acts and answers in full sentences."""

    model: str = "scripted"

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        """Yield the next call or answer."""
        content = types.Content(role="model", parts=self.respond(read_turn(llm_request.contents)))
        yield LlmResponse(content=content, usage_metadata=_usage(llm_request.contents, content), model_version="scripted-1")

    def respond(self, turn: Turn) -> Parts:
        """Return what to do or say next."""
        words = turn.text.lower()
        device, room = _meant(_DEVICE, turn), _meant(_ROOM, turn).title()
        status = "on" if re.search(r"\bon\b", words) else "off"
        degrees = _DEGREES.search(words)
        if degrees and room:
            return self.set_temperature(turn, room, int(degrees[1]))
        if re.search(r"\bturn\b", words) and "everything" in words:
            return self.switch_room(turn, room, status)
        if re.search(r"\bturn\b", words) and device:
            return self.switch(turn, device, status)
        if "which devices" in words and room:
            return self.list_devices(turn, room)
        if "how warm" in words and room:
            return self.tell_temperature(turn, room)
        return self.tell_status(turn, device) if device else say(_HELP)

    def switch(self, turn: Turn, device: str, status: str) -> Parts:
        """Turn one device on or off, if it is not so already."""
        match turn.results:
            case []:
                return [call("get_device_info", device_id=device)]
            case [{"error": reason}]:
                return say(reason)
            case [{"status": found, "room": room}] if found == status:
                return say(f"The {device} in the {room} is already {status}.")
            case [_]:
                return [call("set_device_info", device_id=device, status=status)]
            case _:
                return say(f"I have turned {status} the {device} in the {turn.results[-1]['room']}.")

    def switch_room(self, turn: Turn, room: str, status: str) -> Parts:
        """Turn on or off what is not so already in a room, all at once."""
        if not turn.results:
            return [call("list_devices", room=room)]
        other = [device["device_id"] for device in turn.results[0]["devices"] if device["status"] != status]
        if len(turn.results) == 1 and other:
            return [call("set_device_info", device_id=device, status=status) for device in other]
        return say(
            f"I have turned {status} {' and '.join(other)} in the {room}." if other else f"Everything in the {room} is already {status}."
        )

    def list_devices(self, turn: Turn, room: str) -> Parts:
        """Name the devices of a room."""
        if not turn.results:
            return [call("list_devices", room=room)]
        names = [device["device_id"] for device in turn.results[0]["devices"]]
        return say(f"The devices in the {room} are {' and '.join(names)}.")

    def tell_status(self, turn: Turn, device: str) -> Parts:
        """Tell whether a device is on."""
        match turn.results:
            case []:
                return [call("get_device_info", device_id=device)]
            case [{"error": reason}]:
                return say(reason)
            case _:
                return say(f"The {device} in the {turn.results[0]['room']} is {turn.results[0]['status']}.")

    def tell_temperature(self, turn: Turn, room: str) -> Parts:
        """Tell how warm a room is."""
        if not turn.results:
            return [call("get_temperature", room=room)]
        return say(f"It is {turn.results[0]['temperature']} degrees in the {room}.")

    def set_temperature(self, turn: Turn, room: str, degrees: int) -> Parts:
        """Heat or cool a room."""
        if not turn.results:
            return [call("set_temperature", room=room, temperature=degrees)]
        return say(turn.results[0].get("error") or f"I have set the {room} to {degrees} degrees.")


def say(text: str) -> Parts:
    """Return an answer."""
    return [types.Part(text=text)]


def call(tool: str, /, **args: Any) -> types.Part:
    """Return a call of a tool."""
    return types.Part(function_call=types.FunctionCall(name=tool, args=args))


def read_turn(contents: Sequence[types.Content]) -> Turn:
    """Return the current turn of a conversation."""
    said = [(index, part.text) for index, content in enumerate(contents) for part in content.parts or () if part.text]
    asked = max(index for index, _ in said if contents[index].role == "user")
    answers = [part.function_response for content in contents[asked:] for part in content.parts or () if part.function_response]
    return Turn(
        text=next(text for index, text in said if index == asked),
        earlier=" ".join(text for index, text in said if index < asked),
        results=[answer.response or {} for answer in answers],
    )


def _meant(pattern: re.Pattern[str], turn: Turn) -> str:
    """Return what the user names, or what was named last, as in "turn it off"; empty if nothing was."""
    named = pattern.findall(turn.text) or pattern.findall(turn.earlier)
    return named[-1] if named else ""


def _usage(contents: Sequence[types.Content], answer: types.Content) -> types.GenerateContentResponseUsageMetadata:
    """Return the size of a request and its answer, where a word counts as a token."""
    asked = sum(len((part.text or "").split()) for content in contents for part in content.parts or ())
    answered = sum(len((part.text or "call").split()) for part in answer.parts or ())
    return types.GenerateContentResponseUsageMetadata(
        prompt_token_count=asked, candidates_token_count=answered, total_token_count=asked + answered
    )
