"""Any function as an agent, and its tools."""
