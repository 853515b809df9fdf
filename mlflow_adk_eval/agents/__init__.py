"""Where actual invocations come from: ADK agents, functions, agents behind HTTP, recordings and traces.

    source ── resolve ──> Agent ── open ──> AgentSession ── turn, turn, … ──> Conversation

`protocol` says what an agent is, `resolve` finds it, `conversation` decides who talks to it and has the conversation. The kinds of agents
are in `adk`, `functions`, `http`, `recordings` and `traces`; `users` writes the messages of simulated users, `tool_environment` answers tool
calls in place of tools, and `turns` makes an `Invocation` of whatever an agent gives for a turn.
"""
