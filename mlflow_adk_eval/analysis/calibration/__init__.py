"""Calibrating judges: how often they are wrong, by what people say of the same cells."""
