"""What having and scoring live conversations costs a contender, in a process of its own: `measure_live.py RESULT_FILE WORK_AS_JSON`."""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from measure_work import by_criterion, timed
from peak import peak_mb
from speaking import LATENCY_MS


def measure(work: dict[str, Any]) -> dict[str, Any]:
    """Let a contender import, load and converse; keep its scores."""
    os.environ |= {"GOOGLE_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": work["url"], LATENCY_MS: str(work["latency_ms"])}
    contender = import_module(f"contenders.live.{work['contender']}")
    _, imported = timed(contender.imports)
    inputs, loaded = timed(lambda: contender.load(Path(work["data"])))
    cells, worked = timed(lambda: contender.converse(inputs, work["at_once"]))
    return {
        "import_s": imported.wall,
        "load_s": loaded.wall,
        "work_s": worked.wall,
        "work_cpu_s": worked.cpu,
        "peak_mb": peak_mb(),
        "scores": by_criterion(cells),
    }


def main(result: Path, work: dict[str, Any]) -> None:
    """Measure and leave the result in a file."""
    logging.disable(logging.CRITICAL)  # who logs most should not be slowed by our capturing it
    result.write_text(json.dumps(measure(work)))
    os._exit(0)  # the exit handlers of MLflow and gRPC take seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
