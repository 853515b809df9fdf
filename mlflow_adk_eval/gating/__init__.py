"""The gate: from the evidence of a run to a decision, and from a decision to an alias in the model registry."""
