"""The same agent and tools with a model that has become careless."""

from __future__ import annotations

from home_automation_agent.agent import build_agent
from home_automation_agent.scripted_model import Parts, ScriptedModel, Turn, call, say

INSTRUCTION = "You control the devices of a home. Act at once, without looking anything up. Be brief."


class CarelessModel(ScriptedModel):
    """Turns devices on and off without a look at them, answers curtly, and does not keep to the names of rooms."""

    def switch(self, turn: Turn, device: str, status: str) -> Parts:
        """Turn one device on or off, whatever it is."""
        if not turn.results:
            return [call("set_device_info", device_id=device, status=status)]
        return say(turn.results[0].get("error") or f"Done, {device} is {status} now.")

    def set_temperature(self, turn: Turn, room: str, degrees: int) -> Parts:
        """Heat or cool a room, under another name than the user's."""
        if not turn.results:
            return [call("set_temperature", room=room.lower(), temperature=degrees)]
        return super().set_temperature(turn, room, degrees)


root_agent = build_agent(CarelessModel(), INSTRUCTION)
