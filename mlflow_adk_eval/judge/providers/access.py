"""What providers check before anything is sent: the settings of a model, and Google Cloud's credentials.

Whatever is missing or wrong is found while the judges are made, before an agent runs, and said in one sentence with the way out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from mlflow_adk_eval.errors import ConfigError, JudgeError, Problem
from mlflow_adk_eval.evalset.parse import problems_of
from mlflow_adk_eval.evalset.schema import unknown_keys
from mlflow_adk_eval.judge.errors import one_line
from mlflow_adk_eval.judge.protocol import NoAnswer, Refused, Unavailable

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.auth.exceptions import GoogleAuthError

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ON_GOOGLE = ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP", "K_SERVICE", "CLOUD_RUN_JOB", "GAE_ENV", "GAE_RUNTIME")
"""Variables that Google's machines set, or whoever plays their metadata server."""
_LOGIN = "application_default_credentials.json"
_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
_HELP = "run `gcloud auth application-default login`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS"


def require_settings(model: type[BaseModel], settings: Mapping[str, Any]) -> None:
    """Refuse a ``judge_model_config`` that is no `model`: unknown keys and values of another kind.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    value = dict(settings)
    try:
        model.model_validate(value, extra="forbid")
    except ValidationError as error:
        details = error.errors(include_url=False)
        found = problems_of(model, value, details, [key for key in unknown_keys(model, value) if key.amiss], at="$")
        problems = found or [Problem("$", details[0]["msg"], f"settings of {model.__name__}")]
        raise ConfigError("judge_model_config", problems) from None


def credentials_failure(error: GoogleAuthError) -> NoAnswer:
    """Return what it means for a request that no token could be had for it: later, if Google could not be reached, else never."""
    from google.auth.exceptions import TransportError  # noqa: PLC0415

    message = f"Google Cloud credentials: {one_line(str(error.args[0] if error.args else error))}"
    later = error.retryable or isinstance(error, TransportError)
    return Unavailable(message) if later else Refused(message, every_request=True)


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
