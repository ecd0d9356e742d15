"""Attempts in, and what earlier ones teach out: how long each phase took, and which launch became ready last.

One file of JSON lines in the state directory, readable by its owner alone (a command line may hold a secret). It sits
behind the `History` protocol, so that a data base can take its place.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from app.core.launch import find_launch

TOO_LONG = 4 << 20
"""Bytes after which the file is cut to its later half."""
OTHERS = {"--port", "--host", "--nccl-port", "--dist-init-addr", "--log-level", "--api-key", "--served-model-name"}
"""Flags that say nothing about how long a start takes."""
MODELS = ("--model-path", "--model", "-m")


@dataclass(frozen=True, slots=True)
class Entry:
    """One attempt that ended, or became ready. `key` is the same for the same model, flags and machine, `model` for the
    same model and machine. `argv` is as it was started, empty where the start was only watched; `env` the changed
    variables, masked. Times are seconds since the epoch, `phases` seconds by phase, `ready_after` seconds from the
    start to ready."""

    run: str
    attempt: int
    key: str
    model: str
    argv: tuple[str, ...]
    env: Mapping[str, str | None]
    log: str
    began: float
    ended: float
    state: str
    rule: str = ""
    title: str = ""
    via: str = ""
    exit: str = ""
    ready_after: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


class History(Protocol):
    """What the supervisor needs of a store."""

    def add(self, entry: Entry) -> None:
        """Keeps one entry; a store that cannot be written to is no reason to stop a start."""

    def durations(self, key: str, model: str) -> dict[str, list[float]]:
        """Seconds by phase in earlier starts, latest last; "" is the whole start. Those of the same flags where there
        are any, else those of the same model."""

    def last_ready(self, model: str, fits: Callable[[Entry], bool] = lambda entry: True) -> Entry | None:
        """The last launch of that model that became ready, of those that fit. Watched starts are none of ours."""


def keys(argv: Sequence[str], machine: str = "") -> tuple[str, str]:
    """(key, model) of a command line, see `Entry`."""
    machine = machine or socket.gethostname()
    launch = find_launch(argv)
    words = list(launch.words[launch.start :]) if launch else list(argv)
    told: list[str] = []
    model = ""
    skip = False
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        following = words[place + 1] if place + 1 < len(words) else ""
        if skip:
            skip = False
        elif name in OTHERS:
            skip = not value and not following.startswith("-")
        else:
            told.append(word)
            if name in MODELS and not model:
                model = value or following
    if not model and launch is not None and launch.serve and words and not words[0].startswith("-"):
        model = words[0]
    engine = launch.engine if launch else Path(argv[0]).name if argv else ""
    return _digest(machine, engine, *told), _digest(machine, engine, model)


def printed_keys(engine: str, values: Mapping[str, str], machine: str = "") -> tuple[str, str]:
    """(key, model) of a configuration as an engine printed it, where the command line is not known: its `model` is that
    of `keys`, so that starts of our own and watched ones teach each other."""
    machine = machine or socket.gethostname()
    others = {flag.lstrip("-").replace("-", "_") for flag in OTHERS} | {"random_seed", "seed"}
    told = [f"{name}={value}" for name, value in sorted(values.items()) if name not in others]
    model = values.get("model_path") or values.get("model") or ""
    return _digest(machine, engine, "printed", *told), _digest(machine, engine, model)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


class FileHistory:
    """JSON lines in one file; several processes may add to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, entry: Entry) -> None:
        line = json.dumps(asdict(entry)).encode("ascii") + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = os.fstat(fd).st_size
                if size > TOO_LONG:
                    kept = os.pread(fd, size, size // 2).partition(b"\n")[2]
                    os.ftruncate(fd, 0)
                    os.write(fd, kept)
                elif size and os.pread(fd, 1, size - 1) != b"\n":  # a line that a full disk cut off
                    line = b"\n" + line
                os.write(fd, line)
        except OSError:
            return

    def entries(self) -> Iterator[Entry]:
        """All that is kept, oldest first; lines that are none of ours are passed over."""
        names = {each.name for each in fields(Entry)}
        try:
            data = self.path.read_bytes()
        except OSError:
            return
        for line in data.splitlines():
            try:
                value: dict[str, Any] = json.loads(line)
                entry = {name: kept for name, kept in value.items() if name in names}
                yield Entry(**{**entry, "argv": tuple(entry["argv"])})
            except (ValueError, TypeError, KeyError, AttributeError):
                continue

    def durations(self, key: str, model: str) -> dict[str, list[float]]:
        exact: dict[str, list[float]] = {}
        alike: dict[str, list[float]] = {}
        for entry in self.entries():
            if entry.state != "ready":
                continue
            for rows in [exact] * (entry.key == key) + [alike] * (entry.model == model):
                for phase, seconds in entry.phases.items():
                    rows.setdefault(phase, []).append(seconds)
                if entry.ready_after is not None:
                    rows.setdefault("", []).append(entry.ready_after)
        return {phase: rows[-20:] for phase, rows in (exact or alike).items()}

    def last_ready(self, model: str, fits: Callable[[Entry], bool] = lambda entry: True) -> Entry | None:
        found = None
        for entry in self.entries():
            if entry.state == "ready" and entry.argv and entry.model == model and fits(entry):
                found = entry
        return found
