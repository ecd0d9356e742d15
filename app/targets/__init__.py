"""A target is an inference server that we start, or whose log we follow: what one can do with it, and the kinds there
are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Literal, Protocol

from app.targets.child import Child
from app.targets.command import Command
from app.targets.exit import Exit
from app.targets.handle import CannotDo, Handle, NotStarted, TargetError
from app.targets.ladder import Patience, Step
from app.targets.log import Log

Ability = Literal["start", "stop", "restart"]


class Target(Protocol):
    """What every kind offers. All methods may be called from any one thread at a time; `stop` and `restart` block."""

    @property
    def kind(self) -> str:
        """The key in `KINDS`."""

    @property
    def can(self) -> frozenset[str]:
        """What may be asked of it, of `Ability`; the rest raises CannotDo."""

    def describe(self) -> str:
        """One line for people: what this is."""

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None, log_path: Path | None) -> Handle:
        """Starts the server. NotStarted (with a sentence) when that failed, CannotDo when it is not ours to start."""

    def stop(self, patience: Patience | None = None, leave: Event | None = None) -> Iterator[Step]:
        """Stops it and tells every step; the last one's `ok` says whether it is gone."""

    def poll(self) -> Exit | None:
        """How it ended; None while it runs, while that is not known, or when it was never started."""

    def alive(self) -> bool | None:
        """Whether it runs now; None when that cannot be known."""


KINDS: dict[str, type[Target]] = {"child": Child, "log": Log, "command": Command}

__all__ = [
    "KINDS",
    "Ability",
    "CannotDo",
    "Child",
    "Command",
    "Exit",
    "Handle",
    "Log",
    "NotStarted",
    "Patience",
    "Step",
    "Target",
    "TargetError",
]
