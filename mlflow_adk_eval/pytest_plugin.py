"""Eval sets as tests of pytest."""
