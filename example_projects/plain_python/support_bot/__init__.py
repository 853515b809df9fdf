"""A support agent for a shop, without a framework."""

from .bot import support_bot as support_bot
from .bot import support_bot_async as support_bot_async
