"""Baselines: the run that a candidate is compared with."""
