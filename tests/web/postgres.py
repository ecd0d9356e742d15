"""A PostgreSQL server of our own on loopback, which can be stopped and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.edges.servers import free_port, until


@dataclass
class Postgres:
    """`binaries` and `folder` are where its programs and its data are."""

    binaries: Path
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"postgresql://bringup@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Makes its data."""
        if os.geteuid() == 0:  # it does not run as root
            self.own = {"user": "nobody", "group": "nogroup"}
            for place in (self.folder, *self.folder.parents):
                if str(place).startswith("/tmp/"):
                    place.chmod(0o755)
            shutil.chown(self.folder, "nobody", "nogroup")
        words = [str(self.binaries / "initdb"), "-D", str(self.folder / "data"), "-U", "bringup", "-A", "trust", "-N"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, **self.own)
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Starts it and waits until it takes connections."""
        words = [str(self.binaries / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port),
                 "-h", "127.0.0.1", "-k", str(self.folder), "-F"]  # fmt: skip
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, **self.own)
        ready = [str(self.binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "bringup", "-q"]
        until(lambda: subprocess.run(ready, timeout=10).returncode == 0, (self.folder / "log").read_text(), 30)

    def stop(self) -> None:
        """Ends it at once, whoever is connected."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(20)
            self.process = None


@contextmanager
def postgresql(folder: Path) -> Iterator[Postgres]:
    """A server that ends with the block; the test is skipped where none is installed."""
    places = [
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
        Path(shutil.which("initdb") or "/").parent,
    ]
    binaries = next((each for each in places if (each / "initdb").exists() and (each / "pg_isready").exists()), None)
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed here (Debian: apt-get install postgresql)")
    server = Postgres(binaries, folder)
    server.make()
    try:
        server.start()
        yield server
    finally:
        server.stop()
