"""A run as it is stored: written part by part, read back and checked."""
