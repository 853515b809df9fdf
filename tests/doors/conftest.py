"""The doors are tested on the stores and servers of the tracking tests."""

from contextlib import suppress

from tests.tracking.conftest import _no_surroundings, new_server, server, store, template

__all__ = ["_no_surroundings", "new_server", "server", "store", "template"]

# mlflow.genai.evaluate imports it under a lock that a thread of MLflow's may be waiting for while it holds that of an import: a deadlock.
with suppress(ImportError):
    import openai  # noqa: F401
