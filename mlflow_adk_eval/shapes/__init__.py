"""Tables and records, in whatever shape people bring them, as eval cases with what an agent did on them, and back. Knows nothing of MLflow."""
