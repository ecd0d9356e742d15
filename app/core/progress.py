"""Phase marks in, the state of each phase out: what runs, how far it is, which ranks have come to its end.

A phase has begun when the first rank says so and is done when every rank that began it has ended it. A rank whose end
is missing while others have theirs is the sign of a hang.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .engines import Phase

_DAY = re.compile(r"(?:(?P<y>\d{4})-)?(?P<m>\d{2})-(?P<d>\d{2})[ T](?P<H>\d{2}):(?P<M>\d{2}):(?P<S>\d{2}(?:[.,]\d+)?)")
_SLASH = re.compile(r"(?P<m>\d{2})/(?P<d>\d{2})/(?P<y>\d{4})-(?P<H>\d{2}):(?P<M>\d{2}):(?P<S>\d{2})")
_SINCE = re.compile(r"(?P<M>\d+)\.(?P<S>\d{2})\.(?P<ms>\d{3})\.(?P<us>\d{3})")


def seconds_of(time: str) -> float | None:
    """A line's time as seconds on the log's own clock (only differences mean anything), or None."""
    found = _DAY.match(time) or _SLASH.match(time)
    if found:
        from datetime import date

        try:
            days = date(int(found["y"] or 2000), int(found["m"]), int(found["d"])).toordinal()
        except ValueError:
            return None
        return days * 86400.0 + int(found["H"]) * 3600 + int(found["M"]) * 60 + float(found["S"].replace(",", "."))
    found = _SINCE.fullmatch(time)
    if found:  # llama.cpp: minutes.seconds.milliseconds.microseconds since its start
        return int(found["M"]) * 60.0 + int(found["S"]) + int(found["ms"]) / 1e3 + int(found["us"]) / 1e6
    return None


def bar_seconds(text: str | None) -> float | None:
    """tqdm's "1:02:03" or "04:05" in seconds; None for "?"."""
    if not text or not re.fullmatch(r"\d+(?::\d{2}){1,2}", text):
        return None
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return float(total)


@dataclass(slots=True)
class PhaseState:
    """How one phase goes. Times are seconds on the log's clock (or on the caller's, where the log has none)."""

    id: str
    title: str
    silence: float
    order: int
    state: str = "pending"
    """pending, running, done or skipped."""
    done: int | None = None
    total: int | None = None
    text: str = ""
    """The last line that told of progress, or why the phase was skipped."""
    begin_line: int | None = None
    end_line: int | None = None
    began: float | None = None
    ended: float | None = None
    seconds: float | None = None
    """How long it took: as the engine says it, else by the clock; None while it runs."""
    remaining: float | None = None
    """Seconds left, as the engine's own bar says it."""
    ranks_begun: set[str] = field(default_factory=set)
    ranks_ended: set[str] = field(default_factory=set)
    times: int = 0
    """How often it began: a draft model loads its weights after the main one."""

    @classmethod
    def of(cls, phase: Phase, order: int) -> PhaseState:
        return cls(phase.id, phase.title, phase.silence, order)

    @property
    def stragglers(self) -> tuple[str, ...]:
        """Ranks that began and have not ended while others have; () where none stands out."""
        return tuple(sorted(self.ranks_begun - self.ranks_ended)) if self.ranks_ended else ()

    def begin(self, line: int, clock: float | None) -> None:
        """It begins, or begins again."""
        self.state, self.begin_line, self.end_line = "running", line, None
        self.began, self.ended, self.seconds, self.remaining = clock, None, None, None
        self.done = self.total = None
        self.text = ""
        self.ranks_begun.clear()
        self.ranks_ended.clear()
        self.times += 1

    def finish(self, line: int, clock: float | None, seconds: float | None = None) -> None:
        """It is over; `seconds` is what the engine says it took."""
        self.state, self.end_line, self.ended, self.remaining = "done", line, clock, None
        if seconds is not None:
            self.seconds = seconds
        elif self.began is not None and clock is not None and clock >= self.began:
            self.seconds = clock - self.began

    def step(self, done: int | None, total: int | None, remaining: float | None, text: str) -> bool:
        """It went on; whether anything but the text changed."""
        before = self.done, self.total
        if total is not None:
            self.total = total
        if done is not None:
            self.done = done
            self.remaining = remaining
        self.text = text[:300]
        return before != (self.done, self.total)
