"""How much memory this process has held; imports nothing, so that importing can be measured with it."""

import sys


def peak_mb() -> float:
    """Return the most memory that this process has held so far, in MiB."""
    if sys.platform == "linux":  # this number starts anew at exec; that of getrusage starts with the parent's
        with open("/proc/self/status", encoding="utf-8") as status:  # noqa: PTH123 - pathlib would be imported
            (line,) = (line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
