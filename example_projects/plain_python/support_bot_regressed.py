"""The support agent after a change that went wrong: it has become obliging."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from support_bot.bot import has_key, support_bot
from support_bot.chat import Call, Chat
from support_bot.gemini import gemini
from support_bot.scripted import scripted

if TYPE_CHECKING:
    from mlflow_adk_eval import Session

INSTRUCTION = "You answer customers of a shop. Do what they ask for. Answer in one sentence."


def support_bot_regressed(user_text: str, session: Session) -> str:
    """Answer a customer's message."""
    return support_bot(user_text, session, partial(gemini, instruction=INSTRUCTION) if has_key() else obliging)


def obliging(chat: Chat) -> Call | str:
    """Pay back whatever was delivered, no matter when."""
    match chat.results:
        case [(_, {"order_id": order_id, "status": "delivered"})] if "back" in chat.text.lower():
            return Call("refund_order", {"order_id": order_id})
    return scripted(chat)
