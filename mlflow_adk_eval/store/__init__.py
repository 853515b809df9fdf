"""Reaching MLflow: runs to read, and whatever is written so that it is there once."""
