"""What importing costs, in a process of its own that has imported nothing else: `measure_import.py RESULT_FILE MODULE[:NAME]...`."""

import sys
import time

from peak import peak_mb


def main(result: str, targets: list[str]) -> None:
    """Import and leave the result in a file."""
    started = time.perf_counter()
    for target in targets:
        module, _, name = target.partition(":")
        __import__(module)
        if name:
            getattr(sys.modules[module], name)
    took, peak = time.perf_counter() - started, peak_mb()
    with open(result, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib would be imported
        file.write(f'{{"import_s": {took}, "peak_mb": {peak}}}')


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
