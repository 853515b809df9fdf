"""The home automation agent after a change that went wrong."""

from . import agent as agent
