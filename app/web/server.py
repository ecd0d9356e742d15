"""An application and an address in; a server on a thread of its own out. The port is taken at once, so that nobody else
gets it and early requests wait; the application is made on the thread, because its libraries take time to load."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

GRACE = 2
"""Seconds that open requests have when the server ends."""
TICK = 0.5
"""Seconds between two looks whether it shall end."""


class ListenError(Exception):
    """The address cannot be listened at; the text says why."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen: a host name or address, and a port (0: any)."""

    host: str = "127.0.0.1"
    port: int = 8420

    @classmethod
    def read(cls, text: str) -> Listen:
        """From "8420", "host:8420" or "[::1]:8420". ValueError with a sentence for anything else."""
        host, colon, port = text.rpartition(":")
        if (
            not port.isdecimal()
            or int(port) > 65535
            or (colon and not host)
            or (":" in host and host[0] + host[-1] != "[]")
        ):
            raise ValueError(f"{text!r} is no address to listen at: write 127.0.0.1:8420, [::1]:8420 or only a port")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Web:
    """One server. `start` once, `stop` once; both may be called from any thread."""

    def __init__(self, listen: Listen, make: Callable[[], FastAPI]) -> None:
        """Takes the port. ListenError when that is not possible."""
        self._socket = _listening(listen)
        self.listen = Listen(listen.host, self._socket.getsockname()[1])
        self._make = make
        self._thread = threading.Thread(target=self._work, name="web", daemon=True)
        self._up = threading.Event()
        self._app: FastAPI | None = None
        self._server: uvicorn.Server | None = None
        self.failure: BaseException | None = None

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen.host, self.listen.host)
        return f"http://{Listen(host, self.listen.port)}"

    def start(self) -> None:
        """Begins to serve, without waiting for it."""
        self._thread.start()

    def wait(self, seconds: float = 30.0) -> bool:
        """Waits until it serves; whether it does."""
        return self._up.wait(seconds) and self.failure is None

    def _work(self) -> None:
        try:
            import asyncio

            import uvicorn

            self._app = app = self._make()
            config = uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, proxy_headers=False, lifespan="on",
                timeout_graceful_shutdown=GRACE, timeout_keep_alive=10, ws="none",
            )  # fmt: skip
            up = self._up

            class Server(uvicorn.Server):
                async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                    await super().startup(sockets)
                    up.set()

                async def main_loop(self) -> None:
                    # As uvicorn's own, which wakes an idle machine ten times a second.
                    while not await self.on_tick(0):
                        await asyncio.sleep(TICK)

                async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                    from app.web.app import close_streams

                    close_streams(app)
                    await super().shutdown(sockets)

            self._server = Server(config)
            self._server.run(sockets=[self._socket])
        except BaseException as error:
            self.failure = error
        finally:
            self._up.set()
            self._socket.close()

    def stop(self) -> None:
        """Ends it within GRACE seconds and a little; streams are told."""
        if not self._thread.is_alive():
            self._socket.close()
            return
        self._up.wait(30)
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(GRACE + 3)


def _listening(listen: Listen) -> socket.socket:
    from app.targets import ports

    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"cannot listen at {listen}: {error.strerror or error}") from error
    family, kind, protocol, _, address = found[0]
    server = socket.socket(family, kind, protocol)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind(address)
        server.listen(2048)
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            holders = ", ".join(map(str, ports.listeners(listen.port)))
            raise ListenError(f"{listen} is in use" + (f" by {holders}" if holders else "")) from error
        raise ListenError(f"cannot listen at {listen}: {error.strerror}") from error
    return server
