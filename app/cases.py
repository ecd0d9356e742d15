"""fixtures/ on disk in, cases out: logs labelled by hand, which prove the rules; and what bringup says of each."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .explain import Told, explain_bytes
from .report import to_text

if TYPE_CHECKING:
    from .core.diagnosis import Status
    from .knowledge import Base

NOTHING = ("none", "consequence-only")
"""Labels of logs in which no cause may be named: a healthy one, and one that shows only consequences."""

SAME = ({"nccl-init-hang", "nccl-p2p-hang-iommu-acs"},)
"""Causes that one log cannot tell apart; either answer is right."""


@dataclass(frozen=True, slots=True)
class Case:
    """A log and its label. `cause` is a rule's key, "none" or "consequence-only"; `origin` is verbatim (byte-exact), rebuilt (from a
    public report) or inferred (the decisive line was never seen verbatim: it may prove nothing)."""

    name: str
    folder: Path
    cause: str
    origin: str
    source: str
    engine: str
    idle: float
    complete: bool
    argv: str
    unexplained: str
    """Why no rule can name this cause from this log, where that is so; "" otherwise."""

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def expected(self) -> Path:
        return self.folder / "expect.txt"

    def status(self, base: Base) -> Status:
        """What bringup makes of the log."""
        told = Told(shlex.split(self.argv)) if self.argv else Told()
        return explain_bytes([self.log.read_bytes()], base, told, self.idle)

    def explanation(self, status: Status, base: Base) -> str:
        """The text that expect.txt holds."""
        return to_text(status, f"{self.name}/server.log", base)

    def judge(self, status: Status) -> str:
        """ "right", "wrong" (another cause), "silent" (no cause named) or "alarm" (a healthy or undecidable log blamed)."""
        cause = status.cause
        key = cause.rule.key if cause else None
        if self.cause in NOTHING:
            blamed = key is not None or (self.cause == "none" and status.state in ("crashed", "stalled"))
            return "alarm" if blamed else "right"
        if key is None:
            return "silent"
        return "right" if key == self.cause or any({key, self.cause} <= same for same in SAME) else "wrong"


def shipped_cases() -> Path:
    """fixtures/ of the checkout; not there in an installed package."""
    return Path(__file__).parent.parent / "fixtures"


def cases(folder: Path) -> Iterator[Case]:
    """Every case below a directory, by name. Raises ValueError for a label that cannot be read, or has no log."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for place in sorted(folder.glob("*/case.yaml")):
        if not place.with_name("server.log").is_file():
            raise ValueError(f"{place}: there is no server.log beside it; `bringup case add` writes both")
        try:
            data = yaml.load(place.read_bytes(), Loader=loader)
            yield Case(
                place.parent.name, place.parent, str(data["cause"]), str(data.get("origin", "rebuilt")),
                str(data.get("source", "")), str(data.get("engine", "")), float(data.get("idle", 0)),
                bool(data.get("complete", True)), str(data.get("argv", "")),
                str(data.get("unexplained", "")),
            )  # fmt: skip
        except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{place}: not a case: {error}") from None
