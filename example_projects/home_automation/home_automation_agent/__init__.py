"""An agent that controls the lights, devices and temperatures of a home."""

from . import agent as agent
