"""Comparing two runs on the same cases: which cases flipped, why, and how far the means lie apart."""
