"""Eval sets as MLflow's evaluation datasets, and back without loss."""
