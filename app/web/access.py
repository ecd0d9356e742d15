"""Tokens and limits in; who a request is from, and whether it may go on, out.

Tokens are random and long, so their SHA-256 is enough at rest; they are compared in constant time. On loopback no token
is needed unless there are some.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["read", "control"]
SHORTEST = 20
"""Characters that a token must have."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token: `name` says in the audit trail whose it is, `digest` is what `hashed` makes of it."""

    name: str
    role: Role
    digest: str


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests a second for one address, and how many at once. `denied` are those with a wrong token."""

    read: tuple[float, int] = (50.0, 500)
    write: tuple[float, int] = (1.0, 20)
    explain: tuple[float, int] = (1.0, 10)
    denied: tuple[float, int] = (0.2, 10)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what. `hosts` are names that a request may be for, besides addresses and this machine's name.
    `body` and `explain` are bytes, `streams` how many may be open, `explaining` how many logs are read at once."""

    tokens: tuple[Token, ...] = ()
    hosts: tuple[str, ...] = ()
    loopback: bool = True
    rates: Rates = field(default_factory=Rates)
    body: int = 64 * 1024
    explain: int = 256 * 1024 * 1024
    explaining: int = 2
    explain_seconds: float = 300.0
    streams: int = 2000

    def who(self, authorization: str | None) -> tuple[str, Role] | None:
        """(name, role) of a request by its Authorization header; None when a token is needed and this is none."""
        if not self.tokens:
            return ("loopback", "control") if self.loopback else None
        kind, _, given = (authorization or "").partition(" ")
        digest = hashed(given.strip()) if kind.lower() == "bearer" else ""
        found: tuple[str, Role] | None = None
        for token in self.tokens:  # all of them, whatever is found: the time tells nothing
            if hmac.compare_digest(token.digest.encode(), digest.encode()):
                found = (token.name, token.role)
        return found

    def knows_host(self, header: str | None) -> bool:
        """Whether a Host header names this service. A page whose name was rebound to our address names itself."""
        name = host_of(header or "")
        if name in ("localhost", *(host.lower() for host in self.hosts)):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return not self.loopback and name == socket.gethostname().lower()
        return address.is_loopback or not self.loopback


def hashed(token: str) -> str:
    """What is kept of a token."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def new_token() -> str:
    """A token nobody can guess."""
    return secrets.token_urlsafe(32)


def host_of(header: str) -> str:
    """The name in a Host header, without its port, in lower case; "" for what is none."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, colon, port = text.rpartition(":")
    return (name if colon and port.isdecimal() else text).rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def from_environment(environ: Mapping[str, str]) -> tuple[Token, ...]:
    """BRINGUP_READ_TOKEN and BRINGUP_CONTROL_TOKEN as tokens. ValueError for one that is too short."""
    found: list[Token] = []
    roles: Sequence[Role] = ("read", "control")
    for role in roles:
        name = f"BRINGUP_{role.upper()}_TOKEN"
        text = environ.get(name, "")
        if text and len(text) < SHORTEST:
            raise ValueError(
                f"{name} has {len(text)} characters, at least {SHORTEST} are needed: `bringup token` makes one"
            )
        if text:
            found.append(Token(role, role, hashed(text)))
    return tuple(found)


class Buckets:
    """Who asked how often, in bounded memory."""

    def __init__(self, most: int = 10_000) -> None:
        self._level: dict[tuple[str, str], tuple[float, float]] = {}
        self._most = most

    def wait(self, kind: str, address: str, rate: tuple[float, int], take: bool = True) -> float:
        """Seconds to wait before one more; 0.0 when it may go on, which is then counted (unless `take` is False)."""
        each, burst = rate
        now = time.monotonic()
        level, at = self._level.get((kind, address), (float(burst), now))
        level = min(float(burst), level + (now - at) * each)
        if level < 1:
            return (1 - level) / each if each else 60.0
        if take:
            if len(self._level) >= self._most:
                del self._level[next(iter(self._level))]
            self._level[kind, address] = (level - 1, now)
        return 0.0
