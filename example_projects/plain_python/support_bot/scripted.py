"""A model that follows a few rules, so that the example runs without a key, without a network and always the same."""

from __future__ import annotations

import re
from typing import Any

from .chat import Call, Chat

_ORDER = re.compile(r"\bA-\d+\b")
_HELP = "I can look up an order, cancel it or pay it back. Which order is it about?"
_DAYS = 30
"""How long an order can be paid back."""


def scripted(chat: Chat) -> Call | str:
    """Look an order up, then do what the customer asks for, if the rules of the shop allow it."""
    order_id = _order_id(chat)
    match chat.results:
        case []:
            return Call("find_order", {"order_id": order_id}) if order_id else _HELP
        case [(_, {"error": error})]:
            return str(error)
        case [(_, {"error_message": _})]:
            return "I cannot look up orders at the moment; please try again later."
        case [(_, order)]:
            return _decided(chat.text.lower(), order)
        case _:
            return f"Order {order_id} is {chat.results[-1][1]['status']} now."


def _decided(text: str, order: dict[str, Any]) -> Call | str:
    order_id, status, days = order["order_id"], order["status"], order["days_ago"]
    if "cancel" in text:
        too_late = f"Order {order_id} is {status}, so it cannot be cancelled any more."
        return Call("cancel_order", {"order_id": order_id}) if status == "processing" else too_late
    if "back" in text and status != "delivered":
        return f"Order {order_id} is {status}; only what was delivered can be paid back."
    if "back" in text:
        too_late = f"Order {order_id} was delivered {days} days ago; it could be paid back within {_DAYS} days."
        return Call("refund_order", {"order_id": order_id}) if days <= _DAYS else too_late
    return f"Order {order_id}, the {order['item']}, is {status}."


def _order_id(chat: Chat) -> str:
    """Return the order that the customer names, or that was named last, as in "cancel it"; empty if none was."""
    said = [chat.text, *(text for text, _ in reversed(chat.history))]
    return next((found[-1] for text in said if (found := _ORDER.findall(text))), "")
