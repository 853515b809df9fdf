"""What a lie plants in the plain bank: nothing here; a folder that plants something has a file of this name."""

from plain import CASES, answer

__all__ = ["CASES", "answer"]
