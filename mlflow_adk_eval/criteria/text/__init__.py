"""Pure functions on texts and tool calls, which criteria and metrics are made of."""
