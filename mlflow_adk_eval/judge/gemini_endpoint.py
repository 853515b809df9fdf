"""Where Gemini is reached: what the environment says of it, read as google-genai reads it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from mlflow_adk_eval.errors import JudgeError, shown
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.providers.google_credentials import application_default
from mlflow_adk_eval.redact import without_credentials

_NO_KEY = (
    "no API key for Gemini: set GOOGLE_API_KEY or GEMINI_API_KEY, or for Vertex AI "
    "GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The Gemini API, or a project on Vertex AI."""

    vertex: bool
    base_url: str
    """Instead of Google's own; empty where it is that."""
    project: str
    location: str
    has_key: bool

    def __str__(self) -> str:
        """Name the place, without secrets."""
        place = without_credentials(self.base_url) or "Google"
        return f"{place}, project {self.project or '-'}, location {self.location or '-'}" if self.vertex else place

    def access(self, base_url: str | None) -> Json:
        """Return the arguments of a google-genai client that reaches it.

        Args:
            base_url: one that takes the place of the environment's.

        Raises:
            JudgeError: naming what is missing.
        """
        url = base_url or self.base_url
        if url and not _is_web(url):
            raise JudgeError(f"{shown(without_credentials(url))} is no base URL for Gemini: wanted http://... or https://...")
        if not self.vertex and not self.has_key:
            raise JudgeError(_NO_KEY)
        on_vertex = self.vertex and (self.project or self.location or not (self.has_key or url))
        return {"vertexai": self.vertex} | (self._vertex() if on_vertex else {})

    def _vertex(self) -> Json:
        credentials, own_project = application_default()
        if not (project := self.project or own_project):
            raise JudgeError("no project for Gemini on Vertex AI: set GOOGLE_CLOUD_PROJECT")
        return {"credentials": credentials, "project": project, "location": self.location or "global"}


def endpoint_of_environment() -> Endpoint:
    """Return what the environment says."""
    env = os.environ
    switch = env.get("GOOGLE_GENAI_USE_ENTERPRISE", env.get("GOOGLE_GENAI_USE_VERTEXAI", ""))
    vertex = switch.lower() in {"true", "1"}
    return Endpoint(
        vertex=vertex,
        base_url=env.get("GOOGLE_VERTEX_BASE_URL" if vertex else "GOOGLE_GEMINI_BASE_URL", ""),
        project=env.get("GOOGLE_CLOUD_PROJECT", ""),
        location=env.get("GOOGLE_CLOUD_LOCATION", ""),
        has_key=bool(env.get("GOOGLE_API_KEY") or env.get("GEMINI_API_KEY")),
    )


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)
