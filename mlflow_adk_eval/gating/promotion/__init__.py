"""Promotion: setting an alias under a claim, its record, and checking both later."""
