"""A conversation as chat models take it: a list of messages with a role and a text."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_adk_eval.evalset import Content, Invocation


def chat_messages(history: Sequence[Invocation], said: Content) -> list[dict[str, str]]:
    """Return what user and agent said, and last what the user says now. A turn in which the agent was silent has no answer.

    >>> from mlflow_adk_eval.evalset import Part
    >>> hi = Content(role="user", parts=(Part(text="Hi"),))
    >>> before = Invocation(user_content=hi, final_response=Content(parts=(Part(text="Hello!"),)))
    >>> chat_messages([before], hi)
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello!'}, {'role': 'user', 'content': 'Hi'}]
    """
    messages: list[dict[str, str]] = []
    for turn in history:
        messages.append({"role": "user", "content": turn.user_text})
        if turn.final_text:
            messages.append({"role": "assistant", "content": turn.final_text})
    return [*messages, {"role": "user", "content": said.text}]
