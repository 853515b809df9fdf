"""A process that asks a judge with a ledger: `python sharing_worker.py LEDGER URL COUNT OPTIONS`. It prints what it was told."""

from __future__ import annotations

import json
import sys
import urllib.request
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from mlflow_adk_eval.judge.client import JudgeClient
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.setup import Budget, JudgeOptions
from mlflow_adk_eval.judge.usage import BudgetLease, UsageTracker
from mlflow_adk_eval.ledger import CallCache


def asked(url: str, asker: str, number: int) -> Answer:
    request = urllib.request.Request(f"{url}/{number}", headers={"User-Agent": asker})  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
        return Answer(text=reply.read().decode(), input_tokens=9, output_tokens=1)


async def work(source: str, url: str, count: int, told: dict[str, Any]) -> None:
    with CallCache(source) as ledger:
        ledger.check()
        budget = Budget(max_calls=told.get("max_calls"))
        lease = BudgetLease(budget, ledger, "run") if told.get("max_calls") else None
        usage = UsageTracker(budget, lease)
        options = JudgeOptions(max_concurrency=16, quota=told.get("quota"), quota_s=told.get("quota_s", 60.0))
        client = JudgeClient(options, usage, ledger, name="judge")
        said: dict[int, str] = {}
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()

        async def one(number: int) -> None:
            address = f"{told.get('name', '')}{number}"
            result = await client.request(partial(anyio.to_thread.run_sync, asked, url, told.get("asker", "somebody"), number), address)
            said[number] = result.answer.text if result.answer else result.error

        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, number)
        await usage.aclose()
        sys.stdout.write(json.dumps({"said": said, "calls": usage.calls, "trouble": ledger.trouble}) + "\n")


if __name__ == "__main__":
    _, ledger_, url_, count_, told_ = sys.argv
    anyio.run(work, ledger_, url_, int(count_), json.loads(told_))
