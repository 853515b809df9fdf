"""Stop the deployment job unless somebody approved the version: Databricks writes that into a tag with the name of this task.

Usage: approval.py MODEL VERSION TASK
"""

from __future__ import annotations

import sys

from mlflow import MlflowClient


def main(model: str, version: str, task: str) -> None:
    """Return if the version is approved.

    Raises:
        PermissionError: if it is not.
    """
    answer = MlflowClient().get_model_version(model, version).tags.get(task, "")
    if answer.lower() != "approved":
        message = f"version {version} of {model} is not approved: its tag {task!r} is {answer!r}, wanted 'approved'"
        raise PermissionError(message)
    print(f"version {version} of {model} is approved")


if __name__ == "__main__":
    main(*sys.argv[1:])
