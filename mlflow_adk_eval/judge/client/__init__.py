"""Requests to a judge: limits, retries, errors and usage."""
