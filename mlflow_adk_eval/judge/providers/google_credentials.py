"""Google Cloud's application default credentials, or a sentence on how to get some."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.judge.errors import one_line

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ON_GOOGLE = ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP", "K_SERVICE", "CLOUD_RUN_JOB", "GAE_ENV", "GAE_RUNTIME")
"""Variables that Google's machines set, or whoever plays their metadata server."""
_LOGIN = "application_default_credentials.json"
_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
_HELP = "run `gcloud auth application-default login`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS"


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
        credentials, project = google.auth.default(scopes=[_SCOPE])
    except (GoogleAuthError, OSError, ValueError) as error:
        raise JudgeError(f"no Google Cloud credentials ({one_line(str(error))}): {_HELP}") from None
    return credentials, project


def _can_exist() -> bool:
    """Whether there is a place to look in; without one, google-auth would look for a metadata server for seconds."""
    return bool(os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")) or _login_file().exists() or _on_google()


def _login_file() -> Path:
    if folder := os.environ.get("CLOUDSDK_CONFIG"):
        return Path(folder, _LOGIN)
    home = Path(os.environ.get("APPDATA", "")) if os.name == "nt" else Path.home() / ".config"
    return home / "gcloud" / _LOGIN


def _on_google() -> bool:
    if os.environ.get("NO_GCE_CHECK", "").lower() == "true":
        return False
    if any(os.environ.get(name) for name in _ON_GOOGLE):
        return True
    try:
        return _PRODUCT_NAME.read_text("utf-8").startswith("Google")
    except OSError:
        return False
