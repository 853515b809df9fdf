"""Reports for people and for other tools."""
