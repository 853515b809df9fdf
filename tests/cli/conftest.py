"""The commands of the gate are tested on its store."""

from __future__ import annotations

from tests.gating.conftest import lab, model

__all__ = ["lab", "model"]
