"""The agent: real, but for its model, which is a script unless there is a key for Gemini."""

from __future__ import annotations

import os

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm

from .scripted_model import ScriptedModel
from .tools import get_device_info, get_temperature, list_devices, set_device_info, set_temperature

INSTRUCTION = """You control the devices of a home.
Look a device up with get_device_info before you change it, and leave it alone if it is already as the user wants it.
To turn on or off everything in a room, list its devices and change those that are not so already, all at once.
Write ids and names of rooms exactly as the user does. Answer in one sentence that names the device and its room."""


def build_agent(script: BaseLlm, instruction: str = INSTRUCTION) -> LlmAgent:
    """Return the agent with `script` as its model, or with Gemini if a key for it is set."""
    has_key = os.environ.get("GOOGLE_API_KEY") or os.environ.get("GEMINI_API_KEY")
    return LlmAgent(
        name="home_automation_agent",
        description="Controls lights, devices and temperatures.",
        model="gemini-2.5-flash" if has_key else script,
        instruction=instruction,
        tools=[list_devices, get_device_info, set_device_info, get_temperature, set_temperature],
    )


root_agent = build_agent(ScriptedModel())
