"""What the command line of the installed google-adk knows and ours does not: its features, and options of newer versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlflow_adk_eval.errors import UsageError, did_you_mean
from mlflow_adk_eval.runtime import require_extra


def set_features(wanted: Mapping[str, bool]) -> None:
    """Switch features of google-adk on or off, by name.

    Raises:
        UsageError: if google-adk is not installed or has no such feature.
    """
    with require_extra("adk", "features of google-adk"):
        from google.adk import features  # noqa: PLC0415 - an extra
    known = {feature.value: feature for feature in features.FeatureName}
    for name, enabled in wanted.items():
        if name not in known:
            raise UsageError(f"google-adk has no feature {name!r}. {did_you_mean(name, known)}".strip())
        features.override_feature_enabled(known[name], enabled)


def option_of_adk_eval(name: str) -> Any | None:
    """Return click's option of ``adk eval`` of the installed google-adk that has this name; ``None`` where there is none."""
    try:
        from google.adk.cli.cli_tools_click import main  # noqa: PLC0415 - an extra, and slow
    except ImportError:
        return None
    options = getattr(main, "commands", {})["eval"].params
    return next((option for option in options if name.replace("-", "_") in [each.replace("-", "_") for each in option.opts]), None)
