"""Tables and records as eval cases with what an agent did on them, and back. Knows nothing of MLflow."""
