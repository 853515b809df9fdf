"""The integrations are tested on the stores and servers of the tracking tests."""

from contextlib import suppress

import mlflow

from tests.tracking.conftest import no_surroundings

__all__ = ["no_surroundings"]

# mlflow.genai.evaluate imports parts of openai under the lock of MLflow's import hooks. A thread that writes a trace meanwhile and imports
# something, holds the lock of an import and waits for that of the hooks: a deadlock. It looks for IPython with each trace.
mlflow.tracing.disable_notebook_display()
with suppress(ImportError):
    import openai.resources  # noqa: F401
