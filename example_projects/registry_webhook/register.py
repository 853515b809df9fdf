"""Tell MLflow where the guard listens: python register.py https://guard.example.com/mlflow."""

import os
import sys

from mlflow import MlflowClient
from mlflow.entities.webhook import WebhookAction, WebhookEntity, WebhookEvent

ALIAS = WebhookEntity.MODEL_VERSION_ALIAS
webhook = MlflowClient().create_webhook(
    name="registry-guard",
    url=sys.argv[1],
    events=[WebhookEvent(ALIAS, WebhookAction.CREATED), WebhookEvent(ALIAS, WebhookAction.DELETED)],
    secret=os.environ["REGISTRY_WEBHOOK_SECRET"],
)
print(f"webhook {webhook.webhook_id} tells {webhook.url} of each alias")
