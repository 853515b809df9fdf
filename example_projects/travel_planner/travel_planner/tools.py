"""What the agents can do. What is booked lives in the session's state, so that each conversation has a trip of its own."""

# ruff: noqa: D417 - models read these docstrings, and `tool_context` is not for them

from __future__ import annotations

from typing import Any

from google.adk.tools.tool_context import ToolContext

Offers = dict[str, dict[str, Any]]

FLIGHTS: Offers = {
    "TP531": {"origin": "Berlin", "destination": "Lisbon", "date": "3 May", "price": 140},
    "LH1166": {"origin": "Berlin", "destination": "Lisbon", "date": "3 May", "price": 210},
    "OS230": {"origin": "Hamburg", "destination": "Vienna", "date": "7 June", "price": 95},
}
HOTELS: Offers = {
    "Casa Alfama": {"city": "Lisbon", "price": 90},
    "Hotel Baixa": {"city": "Lisbon", "price": 130},
    "Pension Prater": {"city": "Vienna", "price": 80},
    "Hotel Ring": {"city": "Vienna", "price": 160},
}
ACTIVITIES: Offers = {
    "Tram Tour": {"city": "Lisbon", "place": "outdoors", "price": 15},
    "Tile Museum": {"city": "Lisbon", "place": "indoors", "price": 8},
    "Giant Wheel": {"city": "Vienna", "place": "outdoors", "price": 14},
    "Albertina": {"city": "Vienna", "place": "indoors", "price": 19},
}
WEATHER = {"Lisbon": "sunny", "Vienna": "rainy"}


def search_flights(origin: str, destination: str, date: str) -> dict[str, Any]:
    """Find flights, the cheapest first.

    Args:
        origin: The city to fly from.
        destination: The city to fly to.
        date: The day, such as "3 May".
    """
    wanted = {"origin": origin, "destination": destination, "date": date}
    return {"flights": _cheapest_first("flight_id", FLIGHTS, wanted)}


def book_flight(flight_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Book a flight.

    Args:
        flight_id: The id of a flight that was found, such as "TP531".
    """
    if flight_id not in FLIGHTS:
        return {"error": f"There is no flight {flight_id}."}
    return _book("flight", {"flight_id": flight_id, "price": FLIGHTS[flight_id]["price"]}, tool_context)


def search_hotels(city: str) -> dict[str, Any]:
    """Find hotels with their price for a night, the cheapest first.

    Args:
        city: The city to stay in.
    """
    return {"hotels": _cheapest_first("name", HOTELS, {"city": city})}


def book_hotel(name: str, nights: int, tool_context: ToolContext) -> dict[str, Any]:
    """Book a hotel.

    Args:
        name: The name of a hotel that was found, such as "Casa Alfama".
        nights: How many nights to stay.
    """
    if name not in HOTELS:
        return {"error": f"There is no hotel {name}."}
    return _book("hotel", {"name": name, "nights": nights, "price": HOTELS[name]["price"] * nights}, tool_context)


def search_activities(city: str, place: str) -> dict[str, Any]:
    """Find things to do, the cheapest first.

    Args:
        city: The city to look in.
        place: "indoors" or "outdoors".
    """
    return {"activities": _cheapest_first("name", ACTIVITIES, {"city": city, "place": place})}


def book_activity(name: str, tool_context: ToolContext) -> dict[str, Any]:
    """Book something to do.

    Args:
        name: The name of an activity that was found, such as "Tram Tour".
    """
    if name not in ACTIVITIES:
        return {"error": f"There is no activity {name}."}
    return _book("activity", {"name": name, "price": ACTIVITIES[name]["price"]}, tool_context)


def get_weather(city: str) -> dict[str, str]:
    """Tell what the weather will be.

    Args:
        city: The name of the city.
    """
    return {"city": city, "weather": WEATHER.get(city, "unknown")}


def read_bookings(tool_context: ToolContext) -> dict[str, Any]:
    """Return all that is booked, and what it costs together."""
    bookings = _bookings(tool_context)
    return {"bookings": bookings, "total": sum(booking["price"] for booking in bookings.values())}


def _cheapest_first(key: str, offers: Offers, wanted: dict[str, str]) -> list[dict[str, Any]]:
    found = [{key: name} | offer for name, offer in offers.items() if wanted.items() <= offer.items()]
    return sorted(found, key=lambda offer: offer["price"])


def _book(kind: str, booking: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    context.state["bookings"] = _bookings(context) | {kind: booking}
    return booking


def _bookings(context: ToolContext) -> dict[str, dict[str, Any]]:
    booked: dict[str, dict[str, Any]] = context.state.get("bookings", {})
    return booked
