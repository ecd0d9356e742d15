"""From a port number to whether a server could take it now, and who has it."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that listens on a port. `pid` is None and `name` "" when it is hidden from us (another user, a
    container)."""

    pid: int | None
    name: str
    address: str

    def __str__(self) -> str:
        who = (
            f"{self.pid} ({self.name})" if self.pid else "a process that we may not see (another user's, a container's)"
        )
        return f"{who} on {self.address}"


@dataclass(frozen=True, slots=True)
class PortUse:
    """What is known about one port: `free` says whether a server could listen there now, `reason` why not ("" when
    free)."""

    host: str
    port: int
    free: bool
    reason: str
    listeners: tuple[Listener, ...]

    def __str__(self) -> str:
        if self.free:
            return f"port {self.port} is free"
        holders = ", ".join(str(listener) for listener in self.listeners)
        return f"port {self.port}: {self.reason}" + (f", held by {holders}" if holders else "")


def listeners(port: int) -> list[Listener]:
    """Who listens on a TCP port, any address, in our network namespace. Empty also where the system does not tell."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    found = set()
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or not connection.laddr or connection.laddr.port != port:
            continue
        name = ""
        if connection.pid:
            try:
                name = psutil.Process(connection.pid).name()
            except psutil.Error:
                continue  # ended since
        address = f"[{connection.laddr.ip}]" if ":" in connection.laddr.ip else connection.laddr.ip
        found.add(Listener(connection.pid or None, name, f"{address}:{port}"))
    return sorted(found, key=lambda listener: (listener.pid or 0, listener.address))


def check(port: int, host: str = "") -> PortUse:
    """Tries to take the port as a server would (and lets go at once); `host` "" means every IPv4 address.

    A port whose last connections are still closing counts as free, as it does for servers. ValueError for a port
    outside 1…65535.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"{port} is no port: 1 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "in use" if taken else error.strerror or str(error)
        return PortUse(host, port, False, reason, tuple(listeners(port)) if taken else ())
    return PortUse(host, port, True, "", ())
