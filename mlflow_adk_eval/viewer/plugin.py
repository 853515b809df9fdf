"""The viewer inside MLflow's own server: ``mlflow server --app-name adk-eval`` is MLflow's application with the viewer below ``/adk-eval``.

MLflow imports this module before it starts its workers, and each worker calls `app`. So what must not be is refused here, once, and nothing heavy is
imported until a worker needs it.
"""

from __future__ import annotations

import os
from typing import Any

import click

PATH = "/adk-eval"
_REFUSED = {
    "MLFLOW_AUTH_CONFIG_PATH": "the viewer would bypass its users' permissions",
    "MLFLOW_ENABLE_WORKSPACES": "the viewer does not separate its workspaces",
}

for _name, _why in _REFUSED.items():
    if os.environ.get(_name, "").lower() not in ("", "false", "0"):
        raise click.ClickException(f"--app-name adk-eval does not work with {_name}: {_why}. Use `mlflow-adk-eval view`.")


def app() -> Any:
    """Return MLflow's application with the viewer, which shows the server's own store and writes nothing.

    Raises:
        RuntimeError: if the server does not serve ASGI applications.
    """
    if os.environ.get("_MLFLOW_SGI_NAME") != "uvicorn":
        raise RuntimeError("--app-name adk-eval needs uvicorn, MLflow's default: remove --gunicorn-opts and --waitress-opts")
    from starlette.responses import RedirectResponse  # noqa: PLC0415 - see above
    from starlette.routing import Mount, Route  # noqa: PLC0415

    from mlflow_adk_eval.integrations.server_worker import server_worker  # noqa: PLC0415
    from mlflow_adk_eval.viewer.app import application  # noqa: PLC0415
    from mlflow_adk_eval.viewer.store import RunStore  # noqa: PLC0415

    mlflow_app, store_uri, prefix = server_worker()
    viewer = application(RunStore(store_uri), mlflow_url=f"{prefix}/", hosts=["*"])  # MLflow's own middleware checks the host
    path = f"{prefix}{PATH}"
    mlflow_app.router.routes[:0] = [Route(path, lambda _: RedirectResponse(f"{path}/")), Mount(path, viewer)]
    return mlflow_app
