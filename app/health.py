"""A command line in, where its server answers out; a port in, whether what answers there is ours."""

from __future__ import annotations

import http.client
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.core.launch import find_launch
from app.targets import ports

PORTS = {"sglang": 30000, "vllm": 8000}
"""Where an engine listens that is not told where."""
ANYWHERE = {"0.0.0.0", "::", "[::]", ""}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server should answer. `host` and `port` are what it binds to (0: not known), `url` what is asked,
    `ours` whether the listener must be one of our own processes (not in a container, whose ports others hold)."""

    url: str
    host: str = ""
    port: int = 0
    ours: bool = True


def endpoint(argv: Sequence[str], url: str | None = None) -> Endpoint | None:
    """The health endpoint of a command line; `url` is used instead where given. None when nothing tells a port.

    ValueError for a URL that cannot be asked.
    """
    launch = find_launch(argv)
    words = launch.words[launch.start :] if launch else tuple(argv)
    port = _value(words, "--port") or (PORTS.get(launch.engine) if launch else None)
    host = _value(words, "--host") or ""
    number = int(port) if port and str(port).isdecimal() and 0 < int(port) < 65536 else 0
    ours = launch is None or launch.container is None
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// address")
        return Endpoint(url, host, number or parts.port or 0, ours)
    if not number:
        return None
    shown = "127.0.0.1" if host in ANYWHERE else host
    return Endpoint(f"http://{f'[{shown}]' if ':' in shown else shown}:{number}/health", host, number, ours)


def _value(words: Sequence[str], flag: str) -> str | None:
    found = None
    for place, word in enumerate(words):
        if word.startswith(f"{flag}="):
            found = word.partition("=")[2]
        elif word == flag and place + 1 < len(words):
            found = words[place + 1]
    return found


def ask(url: str, timeout: float = 5.0) -> tuple[bool, str]:
    """Whether a GET answers 200, and in words what came. Never through a proxy: the server is on this machine."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        answer = connection.getresponse()
        answer.read(4096)
        return answer.status == 200, f"{url} answers {answer.status} {answer.reason}".rstrip()
    except (OSError, http.client.HTTPException, ValueError) as error:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return False, f"{url} does not answer: {text}"
    finally:
        connection.close()


def stranger(port: int, pids: Collection[int]) -> str | None:
    """Who listens on a port that is none of `pids`, in words; None when ours do, or when nobody can be seen."""
    holders = ports.listeners(port)
    if any(holder.pid in pids for holder in holders):
        return None
    seen = [str(holder) for holder in holders if holder.pid]
    return ", ".join(seen) if seen else None


def taken(where: Endpoint) -> str | None:
    """Why a server could not listen at `where` now, with who is there; None when it could or nothing is known."""
    if not where.port or not where.ours:
        return None
    host = where.host if re.fullmatch(r"[\d.]+|[0-9a-fA-F:]*:[0-9a-fA-F:]*", where.host) else ""
    use = ports.check(where.port, host)
    return None if use.free else str(use)
