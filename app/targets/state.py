"""From a start to a small file and back: what a restarted bringup needs to find its server again and to go on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from app.targets.handle import TargetError

SCHEMA = 1

_SECRET_NAME = re.compile(
    r"(?i)(?:^|[_-])(?:token|secret|password|passwd|passphrase|credentials?|auth|(?:api|access|private|secret)?_?key)(?:[_-]|$)"
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
MASK = "***"


@dataclass(frozen=True, slots=True)
class State:
    """One start of our own process.

    `launch` names this start among all, `run` is the marker's value. `pid`/`started` and `keeper`/`keeper_started`
    are process identities (0 until known), `boot` the id of the boot in which they mean something. `env` has its
    secrets masked; `argv` is kept as given, for the next start is made from it, and so the file is readable by its
    owner alone. `log_offset` is the size of the log before the start, `offset` how far it was read. `at` is wall
    time, `since_boot` seconds since boot. `memory` are the control group's counters before the start, `notes`
    whatever the caller wants back (JSON values).
    """

    launch: str
    run: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    log_offset: int
    offset: int
    boot: str
    at: float
    since_boot: float
    pid: int = 0
    started: int = 0
    keeper: int = 0
    keeper_started: int = 0
    memory: dict[str, Any] | None = None
    ports: list[int] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def known(self, names: Mapping[str, Any]) -> State:
        """The same start, now that the keeper told the process identities."""
        return replace(
            self,
            pid=int(names["pid"]),
            started=int(names["started"]),
            keeper=int(names["keeper"]),
            keeper_started=int(names["keeper_started"]),
        )


def mask(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without its secrets: values of names that say so, and user names and passwords inside URLs."""
    return {
        name: MASK if value and _SECRET_NAME.search(name) else _USER_INFO.sub(f"{MASK}@", value)
        for name, value in sorted(env.items())
    }


def boot_id() -> str:
    """A name for this boot of the machine; "" where the system has none (pids then count as of this boot)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def write(path: Path, state: State) -> None:
    """Writes the file in one step, so that a reader never sees half of it, readable by its owner alone. TargetError
    when it cannot be written. Not synced to the disk: it has to outlive this process, not the machine, whose reboot
    ends the run."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            json.dump({"schema": SCHEMA, **asdict(state)}, file)
        os.replace(temporary, path)
    except OSError as error:
        raise TargetError(f"cannot write the state file {path}: {error.strerror}") from error


def read(path: Path) -> State | None:
    """The state in a file, None when there is no file. TargetError when it cannot be read or is none of ours."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TargetError(f"cannot read the state file {path}: {error.strerror}") from error
    except ValueError as error:
        raise TargetError(f"{path} is no state file of bringup: {error}") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise TargetError(f"{path} is no state file of this version of bringup (schema {SCHEMA} expected)")
    names = {each.name for each in fields(State)}
    try:
        return State(**{name: kept for name, kept in value.items() if name in names})
    except TypeError as error:
        raise TargetError(f"{path} is no complete state file of bringup: {error}") from error
