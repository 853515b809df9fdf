"""A PostgreSQL server of the tests' own, on a port of the loopback interface, as Debian's package `postgresql` brings it."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

_SETTINGS = {"fsync": "off", "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "100"}


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


class Postgres:
    """A server in a folder. It refuses to run as root, and is then somebody else's."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.data = programs, folder / "data"
        self.password = secrets.token_hex(12)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._as:
            folder.chmod(0o755)
            folder = folder / "of_postgres"
            folder.mkdir()
            shutil.chown(folder, "postgres")
            self.data = folder / "data"
        word = folder / "password"
        word.write_text(self.password)
        if self._as:
            shutil.chown(word, "postgres")
        self._do("initdb", "-D", str(self.data), "-U", "tester", f"--pwfile={word}", "-A", "scram-sha-256", "-E", "UTF8", "--no-sync")
        self.start()

    def _do(self, program: str, *args: str) -> None:
        done = subprocess.run(
            [*self._as, str(self.programs / program), *args], check=False, capture_output=True, text=True, cwd="/", stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        options = " ".join(f"-c {name}='{value}'" for name, value in {**_SETTINGS, "port": str(self.port)}.items())
        # With pipes of its own: those of this process would stay open as long as the server lives.
        self._do("pg_ctl", "-D", str(self.data), "-w", "-l", str(self.data.parent / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._do("pg_ctl", "-D", str(self.data), "-w", "-m", "immediate", "stop")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://tester:{self.password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Return the URL of an empty database."""
        import psycopg
        from psycopg.sql import SQL, Identifier

        name = f"db_{uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        return self.url(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Provide a running server."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    if os.geteuid() == 0 and not shutil.which("runuser"):
        pytest.skip("PostgreSQL does not run as root, and there is no runuser to run it as somebody else")
    folder = Path(tempfile.mkdtemp(prefix="postgres"))
    server = Postgres(programs, folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
