"""Agents built with Google's Agent Development Kit. Only this package imports google-adk."""
