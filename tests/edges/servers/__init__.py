"""Small real servers that behave badly in one way each, and what the tests need to watch them: no orphan survives a
test."""

from __future__ import annotations

import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from app.targets.processes import Ident, Tree, living, look

T = TypeVar("T")
HERE = Path(__file__).parent


def server(name: str, *words: object) -> list[str]:
    """The command line of one of the servers of this folder."""
    return [sys.executable, "-S", str(HERE / f"{name}.py"), *map(str, words)]


def until(condition: Callable[[], T | None], what: str = "", seconds: float = 20.0) -> T:
    """Waits for a condition to hold and returns its value; fails with `what` when it does not come in time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for: {what or condition}"
        time.sleep(0.005)
    return value


def lines(log: Path) -> list[str]:
    """The finished lines of a log that may not be there yet."""
    try:
        return log.read_text(errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []


def said(log: Path, word: str) -> Callable[[], bool]:
    return lambda: word in lines(log)


def pid_said(log: Path, name: str) -> int:
    """The pid in the line `<name> <pid>` of a log, waited for."""
    found = until(lambda: [line for line in lines(log) if line.startswith(f"{name} ")], f"{name!r} in {log}")
    return int(found[0].split()[1])


def ident(pid: int) -> Ident:
    """The identity of a living process."""
    found = look(pid)
    assert found, f"no process {pid}"
    return found.ident


def gone(*idents: Ident) -> Callable[[], bool]:
    return lambda: not any(map(living, idents))


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def no_orphans() -> Iterator[str]:
    """Yields a run id of its own; afterwards whatever still carries it is killed, and the test fails if there was
    any."""
    run = f"test-{uuid.uuid4().hex}"
    names: list[str] = []
    try:
        yield run
    finally:
        tree = Tree(None, run)
        end = time.monotonic() + 10
        while (left := tree.refresh()) and time.monotonic() < end:
            names += [f"{process} {process.state}" for process in left]
            tree.signal(left, signal.SIGKILL)
    assert not names, f"left by the test: {names}"
