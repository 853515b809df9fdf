"""The Rapid Eval API as a local server."""
