"""A service that MLflow tells of each alias that is set or deleted, and that moves back what has no record.

MLflow tells it afterwards, so for some seconds an alias may be where it should not be; what reads the alias rarely, or
verifies what it reads (`adk_eval.verify`), never notices.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import mlflow_adk_eval as adk_eval

SECRET = os.environ["REGISTRY_WEBHOOK_SECRET"]
MAX_AGE_S = 300
MAX_BODY = 100_000
WAITS_S = (0, 2, 10, 60, 300)
REMEMBERED = 10_000
MOST_WAITING = 10_000
AT_ONCE = 4
Alias = tuple[str, str]
EVERYTHING: Alias = ("", "")
Outcome = Literal["settled", "invalid", "unknown"]
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


class Rounds:
    """Which alias is audited next. There is one entry for each alias, however often it is moved, and models take turns.

    So whoever moves forty aliases of one model, or one alias again and again, delays an alias of another model by one audit.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Alias, tuple[float, int]] = {}
        self._running: dict[Alias, int] = {}
        self._turns: OrderedDict[str, int] = OrderedDict()
        self._turn = 0

    def __len__(self) -> int:
        return len(self._due)

    def hear(self, model: str, alias: str) -> None:
        """Have an alias audited now. Where too many wait, all aliases of all models are audited instead: none is forgotten."""
        key = (model, alias) if (model, alias) in self._due or len(self._due) < MOST_WAITING else EVERYTHING
        self._due[key] = (self._clock(), 0)

    def take(self) -> Alias | None:
        """Return the alias to audit now; `None`: none is due, or its model is being audited."""
        now, busy = self._clock(), {model for model, _ in self._running}
        ready = [key for key, (due, _) in self._due.items() if due <= now and key[0] not in busy]
        if not ready:
            return None
        key = min(ready, key=lambda key: (self._turns.get(key[0], 0), self._due[key]))
        _, self._running[key] = self._due.pop(key)
        self._turn += 1
        self._turns[key[0]] = self._turn
        self._turns.move_to_end(key[0])
        if len(self._turns) > REMEMBERED:
            self._turns.popitem(last=False)
        return key

    def done(self, key: Alias, outcome: Outcome) -> None:
        """Have an alias audited again later, unless it is settled or has been moved meanwhile, which is due already."""
        tries = self._running.pop(key) + 1
        if outcome == "unknown" or (outcome == "invalid" and tries < len(WAITS_S)):
            self._due.setdefault(key, (self._clock() + WAITS_S[min(tries, len(WAITS_S) - 1)], tries))


def look_after(key: Alias) -> Outcome:
    """Audit an alias, and move it back if no claim set it where it is."""
    model, alias = (name or None for name in key)
    try:
        entries = adk_eval.audit(model, alias, restore=True)
    except adk_eval.UsageError:  # the model is gone, or a key is none
        log.exception("alias %s of %s could not be audited", alias or "(all)", model or "all models")
        return "invalid"
    except Exception:  # whatever it is, the alias must be audited
        log.exception("alias %s of %s could not be audited, and will be tried again", alias or "(all)", model or "all models")
        return "unknown"
    for entry in entries:
        what = f"{entry.alias} of {entry.model}: version {entry.version}"
        if entry.valid:
            log.info("%s is fine", what)
        elif entry.restored:
            log.warning("%s, restored to version %s: %s", what, entry.restored, entry.reasons[0])
        else:
            log.error("%s is not valid, and nothing could be restored: %s; %s", what, entry.reasons[0], entry.notes)
    return "settled" if all(entry.valid or entry.restored for entry in entries) else "invalid"


async def audit_in_turns() -> None:
    """Audit what is due, `AT_ONCE` models at a time. Nothing waits in a thread."""
    running: set[asyncio.Task[None]] = set()

    async def audit(key: Alias) -> None:
        rounds.done(key, await asyncio.to_thread(look_after, key))

    while True:
        while len(running) < AT_ONCE and (key := rounds.take()) is not None:
            running.add(task := asyncio.create_task(audit(key)))
            task.add_done_callback(running.discard)
        await asyncio.sleep(0.1)


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    """Audit while the service runs, first of all whatever was moved while it was down."""
    rounds.hear(*EVERYTHING)
    task = asyncio.create_task(audit_in_turns())
    yield
    task.cancel()


async def hear(request: Request) -> Response:
    """Take a message of MLflow, and answer before the audit, as MLflow does not wait long."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            break
    if len(body) > MAX_BODY or not is_from_mlflow(request.headers, body, time.time()):
        return JSONResponse({"error": "not signed with the secret of the webhook"}, status_code=401)
    message = json.loads(body)
    if message.get("entity") != "model_version_alias" or not is_new(request.headers["x-mlflow-delivery-id"]):
        return JSONResponse({"audited": False})
    rounds.hear(message["data"]["name"], message["data"]["alias"])
    return JSONResponse({"audited": True}, status_code=202)


rounds = Rounds()
app = Starlette(routes=[Route("/mlflow", hear, methods=["POST"])], lifespan=lifespan)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    uvicorn.run(app, host=os.environ.get("HOST", "127.0.0.1"), port=int(os.environ.get("PORT", "8765")))
