"""Policies: what a run must show before its agent version is promoted."""
