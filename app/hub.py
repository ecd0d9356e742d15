"""News in, numbered; any number of readers out, each at its own pace. The current status is kept beside them.

Publishing never waits for a reader: news stand in one bounded ring, a reader is only a place in it. One that falls so
far behind that its next news is gone is dropped and told why; it asks for the status and subscribes again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

KEEP = 10_000
"""News kept for readers that come back."""


@dataclass(frozen=True, slots=True)
class News:
    """One thing that happened. `id` counts from 1 without gaps, `at` is wall time (s since epoch), `data` is JSON."""

    id: int
    at: float
    kind: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As programs read it."""
        return {"id": self.id, "at": self.at, "kind": self.kind, "text": self.text, "data": dict(self.data)}


class Dropped(Exception):
    """This reader is out; the text says why. `resume` is the id after which it can still subscribe."""

    def __init__(self, reason: str, resume: int) -> None:
        super().__init__(reason)
        self.resume = resume


class Subscription:
    """One reader. `missed` is how many of the news it asked for were gone already when it subscribed."""

    def __init__(self, hub: Hub, after: int, missed: int, wake: Callable[[], None] | None) -> None:
        self._hub = hub
        self.after = after
        """The id of the last news handed out."""
        self.missed = missed
        self._wake = wake

    def get(self, timeout: float | None = None) -> News | None:
        """The next news; None after `timeout` seconds (0: at once) and when the hub is closed and all is read.

        Raises Dropped.
        """
        news = self._hub._next(self.after, timeout)
        if news is not None:
            self.after = news.id
        return news

    def __iter__(self) -> Iterator[News]:
        """Everything until the hub is closed. Raises Dropped."""
        while (news := self.get()) is not None:
            yield news

    def close(self) -> None:
        """No wake comes any more."""
        self._hub._leave(self)


class Hub:
    """The news of one run or watch, and its status. All of it may be called from any thread."""

    def __init__(self, keep: int = KEEP, first: int = 1, clock: Callable[[], float] = time.time) -> None:
        """`first` is the id of the first news: a restarted bringup goes on counting."""
        self._ring: deque[News] = deque(maxlen=keep)
        self._next_id = first
        self._before = first - 1
        self._clock = clock
        self._changed = threading.Condition()
        self._readers: set[Subscription] = set()
        self._status: Mapping[str, Any] = {}
        self.closed = False

    @property
    def status(self) -> Mapping[str, Any]:
        """The whole current status; replaced as one, never changed in place."""
        return self._status

    @status.setter
    def status(self, value: Mapping[str, Any]) -> None:
        self._status = value

    @property
    def last(self) -> int:
        """The id of the latest news; `first - 1` before any."""
        return self._next_id - 1

    def resume(self, last: int) -> None:
        """Goes on counting after `last`, the id of the latest news of an earlier bringup. Before any news only; who
        subscribed before is not thought to have missed those."""
        with self._changed:
            self._next_id, self._before = last + 1, last

    def stamp(self, kind: str, text: str, data: Mapping[str, Any] | None = None) -> News:
        """The news that `publish` would publish now, not told yet: for a publisher that writes it down before."""
        return News(self._next_id, self._clock(), kind, text, data or {})

    def publish(self, kind: str, text: str, data: Mapping[str, Any] | None = None) -> News:
        """Tells everybody. `data` must not be changed afterwards."""
        with self._changed:
            news = self.stamp(kind, text, data)
            self._tell(news)
        return news

    def tell(self, news: News) -> None:
        """Tells everybody a news from `stamp`. ValueError when another came in between."""
        with self._changed:
            if news.id != self._next_id:
                raise ValueError(f"news {news.id} is told after {self.last}")
            self._tell(news)

    def _tell(self, news: News) -> None:
        self._ring.append(news)
        self._next_id = news.id + 1
        self._changed.notify_all()
        for reader in self._readers:
            assert reader._wake is not None
            reader._wake()

    def subscribe(self, after: int | None = None, wake: Callable[[], None] | None = None) -> Subscription:
        """A reader of what comes after the news `after` (0: of all that is kept; None: only of what comes from now on).

        `wake`, if given, is called at each news from the publisher's thread; it must return at once and not raise
        (`loop.call_soon_threadsafe` for an event loop, which then calls `get(0)`).
        """
        with self._changed:
            start = self.last if after is None else min(after, self.last)
            oldest = self._ring[0].id if self._ring else self._next_id
            missed = max(0, oldest - 1 - start) if after else 0
            reader = Subscription(self, max(start, oldest - 1), missed, wake)
            if wake is not None:
                self._readers.add(reader)
        return reader

    def close(self) -> None:
        """No more news come; readers end when they have read what there is."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
            for reader in self._readers:
                assert reader._wake is not None
                reader._wake()

    def _leave(self, reader: Subscription) -> None:
        with self._changed:
            self._readers.discard(reader)

    def _next(self, after: int, timeout: float | None) -> News | None:
        with self._changed:
            self._changed.wait_for(lambda: self.closed or (self._ring and self._ring[-1].id > after), timeout)
            if not self._ring or self._ring[-1].id <= after:
                return None
            oldest = self._ring[0].id
            if after < self._before:
                after = max(after, min(self._before, oldest - 1))
            if after + 1 < oldest:
                gone = f"news {after + 1} to {oldest - 1} are no longer kept (only the last {self._ring.maxlen} are)"
                raise Dropped(f"this reader fell behind: {gone}", oldest - 1)
            return self._ring[after + 1 - oldest]
