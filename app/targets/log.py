"""A server that somebody else runs: only its log is ours to read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event

from app.targets.exit import Exit
from app.targets.handle import CannotDo, Handle
from app.targets.ladder import Patience, Step
from app.targets.processes import LINUX, Process, look

_WRITES = os.O_WRONLY | os.O_RDWR


def _writes(pid: int, fd: str) -> bool:
    """Whether a file descriptor of another process is open for writing (the octal `flags:` line of its fdinfo)."""
    try:
        for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines():
            if line.startswith("flags:"):
                return bool(int(line.split()[1], 8) & _WRITES)
    except (OSError, ValueError, IndexError):
        return False
    return False


def writers(path: Path) -> list[Process]:
    """The processes that have a file open for writing, as far as we may see them (our user's, in this container)."""
    try:
        wanted = path.stat()
    except OSError:
        return []
    found = []
    for name in os.listdir("/proc") if LINUX else ():
        if not name.isdigit():
            continue
        try:
            fds = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue
        for fd in fds:
            try:
                opened = os.stat(f"/proc/{name}/fd/{fd}")
            except OSError:
                continue
            if (opened.st_dev, opened.st_ino) == (wanted.st_dev, wanted.st_ino) and _writes(int(name), fd):
                process = look(int(name))
                if process and process.alive:
                    found.append(process)
                break
    return found


class Log:
    """Follow only. `path` is the log; nothing can be started or stopped through it."""

    kind = "log"
    can: frozenset[str] = frozenset()

    def __init__(self, path: Path) -> None:
        self.path = path

    def describe(self) -> str:
        return f"the log {self.path}, written by a server that somebody else runs"

    def start(
        self, argv: Sequence[str] = (), env: Mapping[str, str] | None = None, log_path: Path | None = None
    ) -> Handle:
        raise CannotDo(f"{self.describe()}, cannot be started from here: only its log is followed")

    def stop(self, patience: Patience | None = None, leave: Event | None = None) -> Iterator[Step]:
        raise CannotDo(f"{self.describe()}, cannot be stopped from here: only its log is followed")

    def poll(self) -> Exit | None:
        """Always None: whose process this is, and how it ends, is told by the log alone."""
        return None

    def alive(self) -> bool | None:
        """True while some process is seen to have the log open for writing; None, not False, when none is: the writer
        may be another user's, in a container or on another machine, or open the file only to append a line. Looks at
        every process; not for every second."""
        return True if writers(self.path) else None
