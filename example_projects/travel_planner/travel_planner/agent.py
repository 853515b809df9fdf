"""The agents: real, but for their models, which follow scripts unless there is a key for Gemini."""

from __future__ import annotations

import os
from collections.abc import Callable

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.tools.agent_tool import AgentTool

from . import scripts
from .scripted_model import Parts, ScriptedModel, Turn
from .tools import (
    book_activity,
    book_flight,
    book_hotel,
    get_weather,
    read_bookings,
    search_activities,
    search_flights,
    search_hotels,
)

Script = Callable[[Turn], Parts]

_OFFER = "Offer the cheapest with its price, and book it only if the user agrees. Ask for what you need to know, one thing at a time."
HOTELS = f"You book hotels. {_OFFER} If the search fails, try it a second time; if it fails again, say so and book nothing."


def model(script: Script) -> BaseLlm | str:
    """Return a model that follows `script`, or Gemini if a key for it is set."""
    has_key = os.environ.get("GOOGLE_API_KEY") or os.environ.get("GEMINI_API_KEY")
    return "gemini-2.5-flash" if has_key else ScriptedModel(script=script)


def build_agent(hotels: Script = scripts.hotels, hotels_instruction: str = HOTELS) -> LlmAgent:
    """Return the root agent, with the others below it."""
    return LlmAgent(
        name="travel_planner",
        description="Plans trips.",
        model=model(scripts.planner),
        instruction="You plan trips. Hand each request over to the agent that can do it.",
        sub_agents=[flights(), hotels_agent(hotels, hotels_instruction), activities(), itinerary()],
    )


def flights() -> LlmAgent:
    """Return the agent for flights."""
    return LlmAgent(
        name="flights",
        description="Finds and books flights.",
        model=model(scripts.flights),
        instruction=f"You book flights. {_OFFER}",
        tools=[search_flights, book_flight],
    )


def hotels_agent(script: Script, instruction: str) -> LlmAgent:
    """Return the agent for hotels."""
    return LlmAgent(
        name="hotels",
        description="Finds and books hotels.",
        model=model(script),
        instruction=instruction,
        tools=[search_hotels, book_hotel],
    )


def activities() -> LlmAgent:
    """Return the agent for things to do, which asks another one about the weather."""
    forecaster = LlmAgent(
        name="forecaster",
        description="Tells the weather.",
        model=model(scripts.forecaster),
        instruction="Tell the weather in one sentence.",
        tools=[get_weather],
    )
    return LlmAgent(
        name="activities",
        description="Finds and books things to do.",
        model=model(scripts.activities),
        instruction=f"You book things to do that suit the weather: ask the forecaster. {_OFFER}",
        tools=[AgentTool(forecaster), search_activities, book_activity],
    )


def itinerary() -> LlmAgent:
    """Return the agent for the itinerary."""
    return LlmAgent(
        name="itinerary",
        description="Writes the itinerary of what is booked.",
        model=model(scripts.itinerary),
        instruction="Read the bookings, list them in one sentence, and say in another what they cost together.",
        tools=[read_bookings],
    )


root_agent = build_agent()
