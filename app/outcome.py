"""What a run is to be like, and how it ended: the nouns that the supervisor, the watcher and the command line share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from app.attempt import Limits
from app.ladder import Mode

State = Literal["idle", "starting", "ready", "crashed", "stalled", "stopped"]

TRANSIENT = {
    "host/port-in-use": "the port may be free in a moment",
    "hub/hf-hub-unreachable-no-network": "the model hub may answer in a moment",
    "hub/hf-rate-limited": "the model hub takes more requests later",
}
"""Causes that pass by themselves, by rule or by its key, and why the same launch may work later."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the person wants. `attended`: somebody is there to choose a remedy; without, `ask` ends with the offer.
    `pace`: log seconds in one (replays). `versions` are those that the engine's own interpreter has."""

    mode: Mode = "ask"
    max_attempts: int = 6
    attended: bool = False
    log_directory: Path | None = None
    health_url: str | None = None
    limits: Limits = field(default_factory=Limits)
    pace: float = 1.0
    versions: Mapping[str, str] = field(default_factory=dict)
    release: str | None = None
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `state` is the last state, "left" when the server was left running; `rule` the last cause;
    `interrupted` that a person ended it before it was ready."""

    state: Literal["stopped", "crashed", "stalled", "left", "refused"]
    text: str
    rule: str | None = None
    interrupted: bool = False
    was_ready: bool = False

    @property
    def status(self) -> int:
        """The exit status of `bringup run`."""
        if self.state == "left" or self.interrupted:
            return 130
        return {"stopped": 0 if self.was_ready else 1, "crashed": 1, "stalled": 3, "refused": 2}[self.state]
