"""The travel planner after a change that went wrong."""

from . import agent as agent
