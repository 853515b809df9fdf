"""MLflow stores in a folder, for those who have no server."""

from __future__ import annotations

from pathlib import Path

from mlflow_adk_eval.tracking.client import connect, experiment_of, reaching_mlflow


def open_store(folder: str | Path, *, experiment: str) -> str:
    """Return the tracking URI of a SQLite store in `folder`, with an experiment whose artifacts lie there, too.

    Raises:
        TrackingError: if the store cannot be made.
    """
    root = Path(folder).resolve()
    uri = f"sqlite:///{(root / 'mlflow.db').as_posix()}"
    client = connect(uri)
    with reaching_mlflow(f"experiment {experiment!r} could not be created"):
        if client.get_experiment_by_name(experiment) is None:
            tags = {"mlflow.experimentKind": "genai_development"}
            client.create_experiment(experiment, artifact_location=(root / "artifacts").as_uri(), tags=tags)
    return uri


def experiment_id(tracking_uri: str, experiment: str) -> str:
    """Return the id of an experiment, creating it if there is none.

    Raises:
        TrackingError: if the store does not answer.
    """
    client = connect(tracking_uri)
    with reaching_mlflow(f"experiment {experiment!r} could not be found"):
        return experiment_of(client, experiment)
