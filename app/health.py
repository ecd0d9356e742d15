"""A command line in, where its server answers out; a port in, whether what answers there is ours."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
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


@dataclass(frozen=True, slots=True)
class Answer:
    """News of a health endpoint: whether it is well, in words what came, and whether this is the first good answer."""

    good: bool
    words: str
    first: bool = False


def watch(where: Endpoint, pids: Callable[[], Collection[int]] | None, over: Event, look: float) -> Iterator[Answer]:
    """Asks until the server answers on a port of its own, and from then on every `look` seconds whether it still does.

    Yields what changes. `pids` are the server's processes (None where they cannot be known). Ends when `over` is set.
    """
    pause, said, begun = 0.1, "", time.monotonic()
    while not over.is_set():
        good, words = ask(where.url)
        who = stranger(where.port, pids()) if good and where.ours and where.port and pids else None
        if good and who is None:
            yield Answer(True, words, first=True)
            break
        if who is not None:
            words = f"port {where.port} answers, but it belongs to somebody else: {who}"
        if words != said and (who is not None or time.monotonic() - begun > 5):
            said = words
            yield Answer(False, words)
        over.wait(pause)
        pause = min(pause * 1.5, 2.0)
    failures, said = 0, ""
    while not over.wait(look):
        good, words = ask(where.url, min(5.0, max(0.5, look)))
        failures = 0 if good else failures + 1
        if failures == 3 or (good and said):  # one that is busy may miss one
            said = "" if good else words
            yield Answer(good, f"it answers again: {words}" if good else f"it no longer answers: {words}")
