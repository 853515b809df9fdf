"""Evidence: what a run holds, checked before anything is decided from it."""
