"""What the tests of the page share: the browser's arguments, a page that tells its troubles, and a front server that
serves a service below a path and can be cut off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


class Opened:
    """Pages of one profile, and what went wrong in them."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.troubles: list[str] = []

    def page(self, url: str) -> Any:
        """A new page at that address."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", self._heard)
        page.goto(url)
        return page

    def _heard(self, message: Any) -> None:
        # A refused request is told by the browser too; whether the page deals with it is what the tests look at.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.troubles.append(message.text)


def faults(page: Any) -> list[str]:
    """What axe calls serious or critical."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


class Front(ThreadingHTTPServer):
    """A reverse proxy that takes `prefix` off each path. `cut` ends every connection and answers none until `mend`."""

    daemon_threads = True

    def __init__(self, behind: str, prefix: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.prefix = behind, prefix
        self.open = True
        self.connections: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.prefix}/"

    def cut(self) -> None:
        self.open = False
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.open = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A cut connection is what is tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        with suppress(OSError, ValueError):
            super().finish()

    def _pass(self) -> None:
        front = self.server
        self.close_connection = True
        if not front.open or not self.path.startswith(f"{front.prefix}/"):
            return
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.removeprefix(front.prefix)
        with httpx.stream(
            self.command, front.behind + path, headers=dict(self.headers), content=body, timeout=30, trust_env=False
        ) as answer:
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in ("content-length", "transfer-encoding", "connection", "date", "content-encoding"):
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            for piece in answer.iter_raw():
                if not front.open:
                    return
                self.wfile.write(piece)
                self.wfile.flush()

    do_GET = do_POST = do_HEAD = _pass

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


@contextmanager
def fronted(behind: str, prefix: str = "") -> Iterator[Front]:
    """A front server, until the block ends."""
    with Front(behind, prefix) as front:
        thread = threading.Thread(target=front.serve_forever, args=(0.05,), name="front")
        thread.start()
        try:
            yield front
        finally:
            front.cut()
            front.shutdown()
            thread.join(10)
