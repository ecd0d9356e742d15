"""When a phase made its steps in, and how long earlier starts took; the time left out, with an interval, or None.

Pure: times are given, in seconds on any one clock. An estimate is never a single figure: `low` and `high` are what it
may well be. Where nothing is known, None is said, not a guess.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

STEPS = 48
"""How many recent steps count."""
FEW = 4
"""With fewer steps than this the interval is doubled: they need not be typical."""

Source = Literal["bar", "history", "engine"]


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds left: the likely figure, and an interval around it. `source` says what it rests on: the steps of this
    very phase, earlier starts, or the figure that the engine prints itself."""

    seconds: float
    low: float
    high: float
    source: Source

    def to_json(self) -> dict[str, float | str]:
        """As programs read it, in seconds."""
        return {
            "seconds": round(self.seconds, 1),
            "low": round(self.low, 1),
            "high": round(self.high, 1),
            "source": self.source,
        }

    def words(self) -> str:
        """For people: "about 1:40 (1:10–2:30)"."""
        low, high = clock(self.low), clock(self.high)
        return f"about {clock(self.seconds)}" + (f" ({low}–{high})" if low != high else "")


def clock(seconds: float) -> str:
    """Seconds as "0:07", "1:40" or "2:03:00"."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


@dataclass
class Pace:
    """The steps of one phase. The first is not counted once there are others: it compiles, warms up, fills caches."""

    _units: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    _at: float | None = None
    _done: int = 0
    _outlier: bool = False
    """Whether the only unit known is the first one."""

    def step(self, done: int, now: float) -> None:
        """`done` units are done at the time `now`. A figure that falls begins anew; one that stays says nothing."""
        if self._at is None or done < self._done:
            self._units.clear()
            self._at, self._done, self._outlier = now, done, False
            return
        if done == self._done:
            return
        each = max(0.0, now - self._at) / (done - self._done)
        if self._outlier:
            self._units.clear()
        self._outlier = self._done == 0 and done == 1
        self._units.extend([each] * min(done - self._done, STEPS))
        self._at, self._done = now, done

    @property
    def unit(self) -> float | None:
        """Seconds for one unit, the median of the recent ones; None before the first was done."""
        return median(self._units) if self._units else None

    @property
    def rate(self) -> float | None:
        """Units a second; None where not known or without end."""
        unit = self.unit
        return 1 / unit if unit else None

    def left(self, total: int | None, now: float) -> Left | None:
        """The time until all `total` units are done; None while no step was seen or the total is not known."""
        if total is None or not self._units or self._at is None:
            return None
        rest = total - self._done
        if rest <= 0:
            return Left(0.0, 0.0, 0.0, "bar")
        waited = max(0.0, now - self._at)
        ordered = sorted(self._units)
        low, middle, high = (ordered[round((len(ordered) - 1) * share)] for share in (0.1, 0.5, 0.9))
        seconds = max(0.0, middle * rest - min(waited, middle))
        least = max(0.0, low * rest - min(waited, low))
        most = high * rest + max(0.0, waited - high)  # a step that is overdue may be the new rule
        if waited > high:
            most += (waited - high) * (rest - 1)
        if len(self._units) < FEW:
            least, most = least / 2, most * 2
        return Left(seconds, min(least, seconds), max(most, seconds), "bar")


def from_engine(remaining: float | None) -> Left | None:
    """The engine's own figure, as its bar says it: the mean over all steps, so the first one weighs on it."""
    if remaining is None:
        return None
    return Left(remaining, remaining / 2, remaining * 2, "engine")


def from_history(durations: Sequence[float], elapsed: float = 0.0) -> Left | None:
    """What is left of something that took `durations` in earlier starts and runs for `elapsed` seconds now.

    None without an earlier start, and when it already takes half as long again as ever before.
    """
    if not durations:
        return None
    low, middle, high = min(durations), median(durations), max(durations)
    if len(durations) < 3:
        low, high = low * 0.6, high * 1.6
    if elapsed > max(durations) * 1.5 + 5:
        return None
    return Left(max(0.0, middle - elapsed), max(0.0, low - elapsed), max(0.0, high - elapsed), "history")


def total(parts: Iterable[Left | None]) -> Left | None:
    """One thing after the other: None when one of them is not known."""
    known = list(parts)
    if not known or any(part is None for part in known):
        return None
    rows = [part for part in known if part is not None]
    source: Source = "history" if any(part.source == "history" for part in rows) else rows[0].source
    return Left(
        sum(part.seconds for part in rows), sum(part.low for part in rows), sum(part.high for part in rows), source
    )
