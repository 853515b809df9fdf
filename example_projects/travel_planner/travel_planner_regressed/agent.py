"""The same agents, but the one for hotels has been told to be quick."""

from __future__ import annotations

from travel_planner.agent import build_agent
from travel_planner.scripted_model import Parts, Turn, call
from travel_planner.scripts import hotels, nights, search_is_down

INSTRUCTION = "You book hotels. Book the cheapest one at once. If the search fails, say so."


def eager_hotels(turn: Turn) -> Parts:
    """Book without asking, and give up as soon as the search fails."""
    match turn.results:
        case [("search_hotels", {"error_message": _})]:
            return search_is_down()
        case [("search_hotels", {"hotels": [cheapest, *_]})]:
            return call("book_hotel", name=cheapest["name"], nights=nights(turn))
    return hotels(turn)


root_agent = build_agent(eager_hotels, INSTRUCTION)
