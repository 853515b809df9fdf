"""What lies between a client and a server: counts the requests and adds latency."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress

_REQUEST = re.compile(rb"^(GET|POST|PUT|PATCH|DELETE) (\S+) HTTP/1\.1\r$", re.MULTILINE)


class Wire:
    """Carries connections to a port of this machine. A request and its answer each take half of the latency."""

    def __init__(self, port: int, latency_s: float) -> None:
        """Listen on a port of its own."""
        self.requests: Counter[str] = Counter()
        """How many requests there were, by method and path."""
        self.port = 0
        self._to, self._half_s = port, latency_s / 2
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._listening.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._to)
        with suppress(asyncio.CancelledError):  # the wire is closed
            await asyncio.gather(self._pump(reader, forth, count=True), self._pump(back, writer, count=False))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool) -> None:
        sent: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await sent.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        delivering = asyncio.ensure_future(deliver())
        with suppress(OSError):
            while data := await reader.read(1 << 18):
                if count:
                    self.requests.update(f"{method.decode()} {path.decode()}" for method, path in _REQUEST.findall(data))
                sent.put_nowait((self._loop.time() + self._half_s, data))
        sent.put_nowait((self._loop.time() + self._half_s, b""))
        with closing(writer), suppress(OSError):
            await delivering

    def close(self) -> None:
        """Stop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@contextmanager
def wire(port: int, latency_s: float) -> Generator[Wire]:
    """Provide a wire to a port of this machine."""
    made = Wire(port, latency_s)
    try:
        yield made
    finally:
        made.close()
