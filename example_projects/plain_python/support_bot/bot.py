"""The agent: a loop that asks a model for the next step and calls plain functions, until the next step is an answer."""

from __future__ import annotations

import asyncio
import copy
import os
from typing import TYPE_CHECKING

from .chat import Chat, Model
from .gemini import gemini
from .scripted import scripted
from .shop import ORDERS, Shop

if TYPE_CHECKING:
    from mlflow_adk_eval import Session


def support_bot(user_text: str, session: Session, model: Model | None = None) -> str:
    """Answer a customer's message."""
    chat, ask = open_chat(user_text, session), model or default_model()
    while not isinstance(step := ask(chat), str):
        chat.results.append((step, chat.tools[step.tool](**step.args)))
    return step


async def support_bot_async(user_text: str, session: Session, model: Model | None = None) -> str:
    """Do the same in an event loop, which serves other customers while the model thinks."""
    chat, ask = open_chat(user_text, session), model or default_model()
    while not isinstance(step := await asyncio.to_thread(ask, chat), str):
        chat.results.append((step, chat.tools[step.tool](**step.args)))
    return step


def open_chat(user_text: str, session: Session) -> Chat:
    """Return what the model needs: this message, those before it, and the tools, whose calls the session records."""
    shop = Shop(session.state.setdefault("orders", copy.deepcopy(ORDERS)))
    tools = [session.tool(tool) for tool in (shop.find_order, shop.cancel_order, shop.refund_order)]
    history = [(turn.user_text, turn.final_text) for turn in session.history]
    return Chat(user_text, history, {tool.__name__: tool for tool in tools})


def default_model() -> Model:
    """Return Gemini if a key for it is set, else a script."""
    return gemini if has_key() else scripted


def has_key() -> bool:
    """Whether there is a key for Gemini."""
    return bool(os.environ.get("GOOGLE_API_KEY") or os.environ.get("GEMINI_API_KEY"))
