"""What Gemini says: from the JSON of a ``generateContent`` response to an answer."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from mlflow_adk_eval.judge.client.errors import one_line
from mlflow_adk_eval.judge.protocol import Answer, Unavailable

_WHOLE = (None, "STOP", "FINISH_REASON_UNSPECIFIED")


class _Said(BaseModel):
    """A part of the response; what is not needed of it is left out."""

    model_config = ConfigDict(alias_generator=to_camel)


class _Part(_Said):
    text: str | None = None
    thought: bool | None = None


class _Content(_Said):
    parts: list[_Part] | None = None


class _Candidate(_Said):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None

    @property
    def text(self) -> str:
        """What the model says; not what it thought on the way, which may name a verdict that it then dropped."""
        parts = (self.content and self.content.parts) or []
        return "".join(part.text or "" for part in parts if not part.thought)

    @property
    def problem(self) -> str:
        """Why the text is not whole; empty where it is."""
        if self.finish_reason not in _WHOLE:
            return ": ".join(filter(None, (self.finish_reason, one_line(self.finish_message or ""))))
        return "" if self.text else "no text"


class _Feedback(_Said):
    block_reason: str | None = None
    block_reason_message: str | None = None

    @property
    def problem(self) -> str:
        """Why the prompt was not taken; empty where it was."""
        return ": ".join(filter(None, (self.block_reason, one_line(self.block_reason_message or ""))))


class _Usage(_Said):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None

    @property
    def output_tokens(self) -> int | None:
        """The tokens of answer and thoughts, as far as the provider counts them."""
        counts = [count for count in (self.candidates_token_count, self.thoughts_token_count) if count is not None]
        return sum(counts) if counts else None


class _Reply(_Said):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Usage | None = None
    model_version: str | None = None

    @property
    def problem(self) -> str:
        """Why there is no whole text; empty where there is one."""
        if self.candidates:
            return self.candidates[0].problem
        return (self.prompt_feedback and self.prompt_feedback.problem) or "no candidates"


def answer_of(body: str | bytes) -> Answer:
    """Return the answer in the body of a response.

    Raises:
        Unavailable: if it is no response of Gemini's, as where something on the way sent a page of its own.
    """
    try:
        reply = _Reply.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise Unavailable(f"the response cannot be read: {': '.join(filter(None, (place, first['msg'])))}") from None
    usage = reply.usage_metadata or _Usage()
    return Answer(
        text=reply.candidates[0].text if reply.candidates else "",
        model=reply.model_version or "",
        input_tokens=usage.prompt_token_count,
        output_tokens=usage.output_tokens,
        problem=reply.problem,
    )
