"""What the agent can do. The house lives in the session's state, so that each conversation has a house of its own."""

# ruff: noqa: D417 - models read these docstrings, and `tool_context` is not for them

from __future__ import annotations

from typing import Any

from google.adk.tools.tool_context import ToolContext

DEVICES = {
    "device_1": {"kind": "light", "room": "Living Room", "status": "on"},
    "device_2": {"kind": "light", "room": "Bedroom", "status": "on"},
    "device_3": {"kind": "fan", "room": "Bedroom", "status": "off"},
    "device_4": {"kind": "oven", "room": "Kitchen", "status": "off"},
    "device_5": {"kind": "light", "room": "Kitchen", "status": "on"},
}
TEMPERATURES = {"Living Room": 22, "Bedroom": 19, "Kitchen": 20}
LOWEST, HIGHEST = 10, 30


def list_devices(room: str, tool_context: ToolContext) -> dict[str, Any]:
    """List the devices in a room.

    Args:
        room: The name of the room, such as "Living Room".
    """
    found = {name: device for name, device in _devices(tool_context).items() if device["room"].casefold() == room.casefold()}
    return {"room": room, "devices": [{"device_id": name, "status": device["status"]} for name, device in found.items()]}


def get_device_info(device_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Tell what kind of device this is, in which room it is, and whether it is on or off.

    Args:
        device_id: The id of the device, such as "device_1".
    """
    device = _devices(tool_context).get(device_id)
    return {"device_id": device_id} | device if device else {"error": f"There is no {device_id}."}


def set_device_info(device_id: str, status: str, tool_context: ToolContext) -> dict[str, Any]:
    """Turn a device on or off.

    Args:
        device_id: The id of the device, such as "device_1".
        status: "on" or "off".
    """
    devices = _devices(tool_context)
    if device_id not in devices:
        return {"error": f"There is no {device_id}."}
    changed = devices[device_id] | {"status": status}
    tool_context.state["devices"] = devices | {device_id: changed}
    return {"device_id": device_id} | changed


def get_temperature(room: str, tool_context: ToolContext) -> dict[str, Any]:
    """Tell the temperature of a room in degrees Celsius.

    Args:
        room: The name of the room, such as "Living Room".
    """
    found = _room(room, tool_context)
    return {"room": found, "temperature": _temperatures(tool_context)[found]} if found else {"error": f"There is no {room}."}


def set_temperature(room: str, temperature: int, tool_context: ToolContext) -> dict[str, Any]:
    """Heat or cool a room.

    Args:
        room: The name of the room, such as "Living Room".
        temperature: In degrees Celsius, from 10 to 30.
    """
    found = _room(room, tool_context)
    if not found:
        return {"error": f"There is no {room}."}
    if not LOWEST <= temperature <= HIGHEST:
        return {"error": f"I cannot set the {found} to {temperature} degrees, only to {LOWEST} to {HIGHEST} degrees."}
    tool_context.state["temperatures"] = _temperatures(tool_context) | {found: temperature}
    return {"room": found, "temperature": temperature}


def _devices(context: ToolContext) -> dict[str, dict[str, str]]:
    return context.state.get("devices", DEVICES)


def _temperatures(context: ToolContext) -> dict[str, int]:
    return context.state.get("temperatures", TEMPERATURES)


def _room(room: str, context: ToolContext) -> str | None:
    return next((name for name in _temperatures(context) if name.casefold() == room.casefold()), None)
