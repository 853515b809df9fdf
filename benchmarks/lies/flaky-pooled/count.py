"""A counter that outlives the process."""

from pathlib import Path

FILE = Path(__file__).with_name("count.txt")


def next_number() -> int:
    """Return 1, then 2, and so on."""
    number = int(FILE.read_text()) + 1 if FILE.exists() else 1
    FILE.write_text(str(number))
    return number
