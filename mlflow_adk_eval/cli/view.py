"""``mlflow-adk-eval view``: the evaluations of an MLflow store as pages on this machine."""

from __future__ import annotations

import click

from mlflow_adk_eval.cli.options import store_option


@click.command("view")
@store_option
@click.option("--experiment", metavar="NAME", help="Show only the runs of this experiment, by its name or id. Default: all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8086, show_default=True, help="The port; 0 picks a free one.")
@click.option("--mlflow-url", metavar="URL", help="Where MLflow's own pages are, for links. Default: the tracking server, if it is one.")
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page in a browser.")
@click.option("--label", is_flag=True, help="Also take your labels of what judges decided, for `calibrate`.")
def view_command(
    *, tracking_uri: str | None, experiment: str | None, port: int, mlflow_url: str | None, browser: bool, label: bool
) -> None:
    """Browse runs, cases and turns on this machine.

    Serves pages to this machine only, and writes nothing unless you label. Stop it with Ctrl+C.
    """
    from mlflow_adk_eval.viewer.server import serve  # noqa: PLC0415 - `--help` stays fast

    serve(
        tracking_uri,
        experiment,
        port=port,
        mlflow_url=mlflow_url,
        browser=browser,
        label=label,
        ready=lambda url: click.echo(f"viewer: {url}"),
    )
