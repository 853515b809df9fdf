"""What providers check before anything is sent: the settings of a model, and Google Cloud's credentials.

Whatever is missing or wrong is found while the judges are made, before an agent runs, and said in one sentence with the way out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from mlflow_adk_eval.errors import ConfigError, JudgeError
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.judge.protocol import NoAnswer, Refused, Unavailable, one_line

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.auth.exceptions import GoogleAuthError

_ON_GOOGLE = ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP", "K_SERVICE", "CLOUD_RUN_JOB", "GAE_ENV", "GAE_RUNTIME")
"""Variables that Google's machines set, or whoever plays their metadata server."""
_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
_REFRESHING = threading.Lock()
_HELP = "run `gcloud auth application-default login`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS"


def require_settings(model: type[BaseModel], settings: Mapping[str, Any]) -> None:
    """Refuse a ``judge_model_config`` that is no `model`: unknown keys and values of another kind.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    parse(model, dict(settings), "judge_model_config", error=ConfigError, strict=True)


def credentials_failure(error: GoogleAuthError) -> NoAnswer:
    """Return what it means for a request that no token could be had for it: later, if Google could not be reached, else never."""
    from google.auth.exceptions import TransportError  # noqa: PLC0415

    message = f"Google Cloud credentials: {one_line(str(error.args[0] if error.args else error))}"
    later = error.retryable or isinstance(error, TransportError)
    return Unavailable(message) if later else Refused(message, every_request=True)


def refresh(credentials: Credentials) -> None:
    """Get a token, if there is none that is good for a while, once for all threads that want one."""
    from google.auth.transport.requests import Request  # noqa: PLC0415

    with _REFRESHING:
        if not credentials.valid:
            credentials.refresh(Request())


def application_default() -> tuple[Credentials, str | None]:
    """Return the credentials, not yet exchanged for a token, and the project that they name.

    Only on a machine of Google's its metadata server is asked for them; elsewhere they are files.

    Raises:
        JudgeError: if there are none.
    """
    import google.auth  # noqa: PLC0415 - only where a judge needs it
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

    if not _can_exist():
        raise JudgeError(f"no Google Cloud credentials: {_HELP}")
    try:
        credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except (GoogleAuthError, OSError, ValueError) as error:
        raise JudgeError(f"no Google Cloud credentials ({one_line(str(error))}): {_HELP}") from None
    return credentials, project


def _can_exist() -> bool:
    """Whether there is a place to look in: a file, or Google's machine. Without one, google-auth would look for a metadata server for seconds."""
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return True
    if given := os.environ.get("CLOUDSDK_CONFIG"):
        folder = Path(given)
    else:
        folder = Path(os.environ.get("APPDATA", "") if os.name == "nt" else Path.home() / ".config", "gcloud")
    if (folder / "application_default_credentials.json").exists():
        return True
    if os.environ.get("NO_GCE_CHECK", "").lower() == "true":
        return False
    if any(os.environ.get(name) for name in _ON_GOOGLE):
        return True
    try:
        return _PRODUCT_NAME.read_text("utf-8").startswith("Google")
    except OSError:
        return False
