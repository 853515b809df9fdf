"""What each agent does while there is no model: a few rules, which understand a handful of requests."""

from __future__ import annotations

import re

from .scripted_model import Parts, Turn, call, say, transfer

_HELP = "I can book a flight, a hotel and something to do, and then write the itinerary of your trip."
_ASKS_FOR = {
    "flights": r"\bfl(?:y|ight)",
    "hotels": r"\bhotel|\bstay\b",
    "activities": r"\bactivit|\bsomething to do\b",
    "itinerary": r"\bitinerary\b",
}
"""The agents, and which words are a request for each."""
_AGREEMENT = re.compile(r"(?:yes|sure|okay)\b", re.IGNORECASE)
_FROM = r"\b[Ff]rom ([A-Z]\w+)"
_TO = r"\b[Tt]o ([A-Z]\w+)"
_CITY = r"\b(?:[Ii]n|[Tt]o) ([A-Z]\w+)"
_DATE = r"\b(\d+ [A-Z][a-z]+)"
_NIGHTS = r"\b(\d+) nights?\b"
_OFFERED = r"cheapest is (?:flight )?([^,]+), for"


def planner(turn: Turn) -> Parts:
    """Hand the user over to the agent that is asked for."""
    return _elsewhere(turn, "travel_planner") or say(_HELP)


def flights(turn: Turn) -> Parts:
    """Find the cheapest flight, and book it if the user agrees."""
    match turn.results:
        case [("book_flight", booked)]:
            return say(f"I have booked flight {booked['flight_id']} for {booked['price']} euros.")
        case [("search_flights", {"flights": [cheapest, *_]})]:
            return say(f"The cheapest is flight {cheapest['flight_id']}, for {cheapest['price']} euros. Shall I book it?")
        case [("search_flights", _)]:
            return say("There is no such flight.")
    offered = agreed(turn)
    return call("book_flight", flight_id=offered) if offered else _elsewhere(turn, "flights") or _hesitant(turn) or _search_flights(turn)


def _search_flights(turn: Turn) -> Parts:
    origin, destination, date = (_named(pattern, turn) for pattern in (_FROM, _TO, _DATE))
    if not origin:
        return say("Where do you want to fly from?")
    if not destination:
        return say("Where do you want to fly to?")
    return call("search_flights", origin=origin, destination=destination, date=date) if date else say("On which day?")


def hotels(turn: Turn) -> Parts:
    """Find the cheapest hotel, with a second try if the search fails, and book it if the user agrees."""
    match turn.results:
        case [*_, ("book_hotel", booked)]:
            return say(f"I have booked {booked['name']} for {booked['nights']} nights, {booked['price']} euros in all.")
        case [("search_hotels", {"error_message": _})]:
            return _search_hotels(turn)
        case [*_, ("search_hotels", {"error_message": _})]:
            return search_is_down()
        case [*_, ("search_hotels", {"hotels": [cheapest, *_]})]:
            price = f"{cheapest['price']} euros a night, {cheapest['price'] * nights(turn)} euros in all"
            return say(f"The cheapest is {cheapest['name']}, for {price}. Shall I book it?")
        case [*_, ("search_hotels", _)]:
            return say("There is no hotel in that city.")
    offered = agreed(turn)
    booking = call("book_hotel", name=offered, nights=nights(turn)) if offered else None
    return booking or _elsewhere(turn, "hotels") or _hesitant(turn) or _search_hotels(turn)


def _search_hotels(turn: Turn) -> Parts:
    city = _named(_CITY, turn)
    if not city:
        return say("In which city?")
    return call("search_hotels", city=city) if nights(turn) else say("For how many nights?")


def search_is_down() -> Parts:
    """Say that no hotel can be had."""
    return say("The hotel search does not answer, so I have not booked a hotel.")


def nights(turn: Turn) -> int:
    """Return how long the user wants to stay; 0 if that is not known yet."""
    return int(_named(_NIGHTS, turn) or 0)


def activities(turn: Turn) -> Parts:
    """Ask what the weather will be, find something to do in it, and book it if the user agrees."""
    city = _named(_CITY, turn)
    match turn.results:
        case [("book_activity", booked)]:
            return say(f"I have booked {booked['name']} for {booked['price']} euros.")
        case [("forecaster", {"result": forecast})]:
            return call("search_activities", city=city, place="indoors" if "rain" in forecast else "outdoors")
        case [("forecaster", {"result": forecast}), ("search_activities", {"activities": [cheapest, *_]})]:
            return say(f"{forecast} The cheapest is {cheapest['name']}, for {cheapest['price']} euros. Shall I book it?")
        case [_, _]:
            return say("There is nothing to do in that city.")
    offered = agreed(turn)
    if offered:
        return call("book_activity", name=offered)
    there = call("forecaster", request=f"What will the weather be in {city}?") if city else say("In which city?")
    return _elsewhere(turn, "activities") or _hesitant(turn) or there


def forecaster(turn: Turn) -> Parts:
    """Tell the weather of a city."""
    match turn.results:
        case [(_, {"city": city, "weather": weather})]:
            return say(f"It will be {weather} in {city}.")
        case _:
            return call("get_weather", city=_last(_CITY, turn.text))


def itinerary(turn: Turn) -> Parts:
    """List what is booked, and what it costs together."""
    match turn.results:
        case [(_, {"total": 0})]:
            return say("Nothing is booked yet.")
        case [(_, {"bookings": bookings, "total": total})]:
            listed = [f"{kind} {booked.get('flight_id') or booked['name']}" for kind, booked in bookings.items()]
            return say(f"Your itinerary: {', '.join(listed)}. In all that is {total} euros.")
    return _elsewhere(turn, "itinerary") or call("read_bookings")


def agreed(turn: Turn) -> str:
    """Return what was offered, if the user agrees to it; empty if not."""
    return _last(_OFFERED, turn.said) if _AGREEMENT.match(turn.text) else ""


def _elsewhere(turn: Turn, here: str) -> Parts | None:
    """Hand over what is another agent's job."""
    wanted = next((agent for agent, words in _ASKS_FOR.items() if re.search(words, turn.text)), here)
    return None if wanted == here else transfer(wanted)


def _hesitant(turn: Turn) -> Parts | None:
    """React to a user who does not simply agree to an offer."""
    offered = _last(_OFFERED, turn.said)
    if not offered:
        return None
    cheaper = f"No, the cheapest is {offered}, for the price that I named. Shall I book it?"
    return say(cheaper if "cheaper" in turn.text else "Then I book nothing.")


def _named(pattern: str, turn: Turn) -> str:
    """Return what the user named last; empty if nothing."""
    return next(filter(None, (_last(pattern, text) for text in (turn.text, *turn.earlier))), "")


def _last(pattern: str, text: str) -> str:
    return next(reversed(re.findall(pattern, text)), "")
