"""Agents that plan a trip together: flights, hotels, activities, and the itinerary."""

from . import agent as agent
