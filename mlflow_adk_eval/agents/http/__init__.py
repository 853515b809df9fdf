"""Agents behind HTTP: `A2AAgent` for the A2A protocol, `OpenAIChatAgent` for the API of chat models.

`http_agent` has what both share and sends requests, `a2a_wire` and `chat` translate between the wire and turns.
"""
