"""Recordings: what an agent did, read from files and reports, and written to them."""
