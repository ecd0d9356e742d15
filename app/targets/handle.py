"""What a target gives back when it was started, and how it says that it could not be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class TargetError(Exception):
    """A target could not do what was asked; the text is a whole sentence for the person who asked."""


class CannotDo(TargetError):
    """The kind of target, or its configuration, does not offer this at all (see `Target.can`)."""


class NotStarted(TargetError):
    """Nothing was started: command not found, no permission, log path is a directory, already running …"""


@dataclass(frozen=True, slots=True)
class Handle:
    """A start that succeeded.

    `pid` is the server's process, None where somebody else's unit was started and its pid is not ours to know.
    `log_path` is where its output goes (None: not ours to know) and `log_offset` the size of that file in bytes
    before the start: everything from there on belongs to this start. `at` is the wall time of the start in seconds
    since the epoch.
    """

    pid: int | None
    log_path: Path | None
    log_offset: int
    at: float
