"""What command lines name besides models: objects of modules, as ``module:name``."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from mlflow_adk_eval.errors import AdkEvalError, UsageError

_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def model_or_object(named: str | None, option: str, *, error: type[AdkEvalError] = UsageError) -> Any:
    """Return the object that ``module:name`` names, also of a module in the working directory; any other name as it is.

    Args:
        named: what was given.
        option: what it was given to.
        error: what is raised.

    Raises:
        AdkEvalError: of the given kind, if there is no such object.
    """
    if named is None or not _OBJECT.fullmatch(named):
        return named
    module, _, name = named.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise error(f"{option}={named}: {problem}") from problem
