"""A service that MLflow tells of each alias that is set or deleted, and that moves back what has no record.

MLflow tells it afterwards, so for some seconds an alias may be where it should not be; what reads the alias rarely, or
verifies what it reads (`adk_eval.verify`), never notices.
"""

import base64
import hashlib
import hmac
import json
import logging
import os
import time
from collections import OrderedDict
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import mlflow_adk_eval as adk_eval

SECRET = os.environ["REGISTRY_WEBHOOK_SECRET"]
MAX_AGE_S = 300
MAX_BODY = 100_000
WAITS_S = (0, 2, 10, 60, 300)
REMEMBERED = 10_000
log = logging.getLogger("registry_guard")
seen: OrderedDict[str, None] = OrderedDict()


def is_from_mlflow(headers: Any, body: bytes, now: float) -> bool:
    """Whether a message is signed with the webhook's secret, and not an old one that somebody sends again."""
    delivery, sent = headers.get("x-mlflow-delivery-id", ""), headers.get("x-mlflow-timestamp", "")
    if not sent.isdigit() or abs(now - int(sent)) > MAX_AGE_S:
        return False
    content = f"{delivery}.{sent}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.new(SECRET.encode(), content, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(expected.encode(), headers.get("x-mlflow-signature", "").encode())


def is_new(delivery: str) -> bool:
    """Whether a message has not been heard before; MLflow repeats what it believes to be lost."""
    if delivery in seen:
        return False
    seen[delivery] = None
    if len(seen) > REMEMBERED:
        seen.popitem(last=False)
    return True


def look_after(model: str, alias: str) -> None:
    """Audit an alias, and move it back if no claim set it where it is."""
    try:
        for wait_s in WAITS_S:  # somebody else may just be setting it
            time.sleep(wait_s)
            (found,) = adk_eval.audit(model, alias, restore=True, dry_run=False)
            if found.valid or found.restored:
                break
    except adk_eval.AdkEvalError:
        log.exception("%s of %s could not be audited", alias, model)
        return
    what = f"{alias} of {model}: version {found.version}"
    if found.valid:
        log.info("%s is fine", what)
    elif found.restored:
        log.warning("%s, restored to version %s: %s", what, found.restored, found.reasons[0])
    else:
        log.error("%s is not valid, and nothing could be restored: %s; %s", what, found.reasons[0], found.notes)


async def hear(request: Request) -> Response:
    """Take a message of MLflow, and answer before the audit, as MLflow does not wait long."""
    body = await request.body()
    if len(body) > MAX_BODY or not is_from_mlflow(request.headers, body, time.time()):
        return JSONResponse({"error": "not signed with the secret of the webhook"}, status_code=401)
    message = json.loads(body)
    if message.get("entity") != "model_version_alias" or not is_new(request.headers["x-mlflow-delivery-id"]):
        return JSONResponse({"audited": False})
    data = message["data"]
    return JSONResponse({"audited": True}, status_code=202, background=BackgroundTask(look_after, data["name"], data["alias"]))


app = Starlette(routes=[Route("/mlflow", hear, methods=["POST"])])

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    uvicorn.run(app, host=os.environ.get("HOST", "127.0.0.1"), port=int(os.environ.get("PORT", "8765")))
