"""Attestations: what was evaluated and what was decided, as in-toto statements in signed DSSE envelopes."""
