"""The viewer as a server on this machine."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable

from mlflow_adk_eval.runtime import require_extra, user_at_host


def serve(
    tracking_uri: str | None,
    experiment: str | None,
    *,
    port: int,
    mlflow_url: str | None,
    browser: bool,
    label: bool,
    ready: Callable[[str], None],
) -> None:
    """Serve the viewer until a signal says to stop.

    Args:
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        experiment: the name or id of the experiment; ``None``: all.
        port: where on this machine; 0: any that is free.
        mlflow_url: where MLflow's own pages are; ``None``: the tracking server, if the store is one.
        browser: whether to open the page.
        label: whether the person who runs this process may label what judges decided.
        ready: told the address once the server listens.

    Raises:
        UsageError: if it cannot listen there, there is no such experiment, or the extra is not installed.
        TrackingError: if MLflow is unreachable.
    """
    with require_extra("view", "the viewer"):
        import starlette  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport] - an extra
        import uvicorn  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport] - likewise
    from mlflow_adk_eval.integrations.rapid_server import server as local  # noqa: PLC0415 - what comes now loads MLflow
    from mlflow_adk_eval.viewer.app import application  # noqa: PLC0415
    from mlflow_adk_eval.viewer.store import RunStore  # noqa: PLC0415

    store = RunStore(tracking_uri, experiment)
    store.rows()
    app = application(store, mlflow_url=mlflow_url or store.server or None, labeller=user_at_host() if label else "")
    with local.listening(local.Serving(port=port)) as listener:
        server = local.quiet_server(app)
        with local.stopped_by_signals(server):
            ready(local.url_of(listener))
            if browser:
                webbrowser.open(local.url_of(listener))
            server.run(sockets=[listener])
