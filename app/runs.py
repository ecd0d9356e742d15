"""One folder for each run: its lock, what was started, every news, the server's state and each attempt's own log.

    <state directory>/runs/<run>/   run.json, news.jsonl, state.json (app/targets/state.py), attempt-1.log, …

All of it is readable by its owner alone: a command line may hold a secret.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.hub import News

SCHEMA = 1


def state_directory() -> Path:
    """Where bringup keeps its state unless told: $XDG_STATE_HOME/bringup, or ~/.local/state/bringup."""
    home = os.environ.get("XDG_STATE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state") / "bringup"


class Busy(Exception):
    """Another bringup holds this run; the text says which."""


class Run:
    """The folder of one run. Hold its lock (`take`) before writing to it."""

    def __init__(self, folder: Path, data: dict[str, Any]) -> None:
        self.folder = folder
        self.data = data
        self._lock: int | None = None
        self._news: int | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def state_path(self) -> Path:
        return self.folder / "state.json"

    def log_path(self, attempt: int, directory: Path | None = None) -> Path:
        """Where one attempt's output goes; in `directory` the run's name keeps it apart from others."""
        name = f"attempt-{attempt}.log"
        return directory / f"{self.name}-{name}" if directory else self.folder / name

    @classmethod
    def new(cls, root: Path, argv: Sequence[str], cwd: Path, more: Mapping[str, Any] | None = None) -> Run:
        """Makes the folder of a new run. `more` is kept with it: `env` (changed variables as pairs), `via` (the remedy
        that led to this launch), `after` (the run it replaces). OSError when that is not possible."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = root / "runs" / f"{stamp}-{secrets.token_hex(3)}"
        folder.mkdir(parents=True, mode=0o700)
        data = {"schema": SCHEMA, "argv": list(argv), "cwd": str(cwd), "began": time.time(), "outcome": None}
        run = cls(folder, {**(more or {}), **data})
        run.take()
        run._write()
        return run

    @classmethod
    def unfinished(cls, root: Path, argv: Sequence[str] | None, cwd: Path) -> Run | None:
        """The latest run of this command line (None: of any, anywhere), started here, that was not brought to its end,
        with its lock taken; None when there is none. Busy when a living bringup has it."""
        for path in sorted((root / "runs").glob("*/run.json"), reverse=True):
            try:
                data = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue
            if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("outcome") is not None:
                continue
            if data.get("watch") is not None:  # a start in somebody else's log (app/starts.py)
                continue
            if argv is None or (data.get("argv") == list(argv) and data.get("cwd") == str(cwd)):
                run = cls(path.parent, data)
                run.take()
                return run
        return None

    def take(self) -> None:
        """Takes the lock, held until `close` or the end of this process. Busy when another has it."""
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 64, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise Busy(f"this command is being run already, by bringup {holder or '(pid not known)'}") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._lock = fd

    def keep(self, **more: Any) -> None:
        """Keeps these values with the run. OSError when that is not possible."""
        self.data.update(more)
        self._write()

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Notes that the run is over: nobody goes on with it."""
        self.data["outcome"] = dict(outcome)
        self._write()

    def _write(self) -> None:
        fresh = self.folder / "run.json.tmp"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            json.dump(self.data, file)
        os.replace(fresh, self.folder / "run.json")

    def close(self) -> None:
        """Lets go of the lock and the files."""
        for fd in (self._news, self._lock):
            if fd is not None:
                os.close(fd)
        self._news = self._lock = None

    # News, written down before they are told

    def note(self, news: News, key: str) -> None:
        """Appends one news. A full disk costs the note, not the run."""
        line = json.dumps({**news.to_json(), "key": key}).encode("ascii") + b"\n"
        try:
            if self._news is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._news = os.open(self.folder / "news.jsonl", flags, 0o600)
                size = os.fstat(self._news).st_size
                if size and os.pread(self._news, 1, size - 1) != b"\n":  # cut off when bringup was killed
                    line = b"\n" + line
            os.write(self._news, line)
        except OSError:
            return

    def news(self) -> Iterator[dict[str, Any]]:
        """Every news that was written down, oldest first; a line cut off by a kill is passed over."""
        try:
            data = (self.folder / "news.jsonl").read_bytes()
        except OSError:
            return
        for line in data.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and {"id", "at", "kind", "text", "data", "key"} <= row.keys():
                yield row
