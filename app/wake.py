"""When to look at a file again: a path goes in, waits that end in time come out. app/tail.py looks.

Events of the file's directory (watchdog) end a wait at once. They are only a hint: none comes from a network file
system or a mapped write, and a busy directory sends more than are worth their price. So there is always a timer as
well.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

FAST = 0.005  # s between looks while bytes flow and no event tells of them; doubles with every look in vain
# Each event costs watchdog three thread switches: 22 % of a core at 1000 a second. A directory with more than BUSY
# events in WINDOW s is not watched, the file is looked at every FAST to SLOW s instead, until it was quiet for CALM
# s.
BUSY, WINDOW, SLOW, CALM = 50, 0.5, 0.01, 0.5
RETRY = 30.0  # s until events are asked for again after they were refused

Place = tuple[str, int, int]  # a directory: real path, device, inode


class Wake:
    """Tells one thread when to look at `path` again, at the latest after `poll` seconds.

    `wait` and `looked` belong to that thread; `set` and `close` may be called from any. `notice` is None, or a
    sentence while events are not to be had.
    """

    def __init__(self, path: str, poll: float) -> None:
        self.path, self.poll = path, poll
        self.notice: str | None = None
        self._lock = threading.Lock()  # around the change of _watch
        self._event = threading.Event()
        self._watch: _Watch | None = None
        self._closed = False
        self._more = True
        self._following = False
        self._check = True  # what is watched may no longer be what should be
        self._delay = poll  # s until the next look when no event can be relied on
        self._looked_at = self._data_at = time.monotonic()
        self._busy_at: float | None = None  # since when events are done without because there were too many
        self._retry_at = 0.0
        self._told = 0  # events at the last look
        self._silent = False  # bytes came and no event told of them

    def looked(self, *, given: bool, more: bool, following: bool, moved: bool) -> None:
        """A look has ended: it found bytes, left `more` of them, has a file open (`following`), a new one (`moved`)."""
        self._more, self._following, self._looked_at = more, following, time.monotonic()
        self._check = self._check or moved or not following
        watch = self._watch
        told = 0 if watch is None else watch.events
        if given:
            self._delay, self._data_at = min(FAST, self.poll), self._looked_at
            self._silent = told == self._told
        else:
            self._delay = min(self._delay * 2, self.poll if self._busy_at is None else min(SLOW, self.poll))
            self._silent = self._silent and told == self._told
        self._told = told

    def wait(self, timeout: float | None) -> bool:
        """Blocks until it is time to look: True; or until `timeout` seconds are over or close(): False."""
        with self._lock:
            if self._closed:
                return False
            if self._more or self._rewatch():
                return True
            blind = self._watch is None or self._silent
        due = max(0.0, self._looked_at + (self._delay if blind else self.poll) - time.monotonic())
        told = self._event.wait(due if timeout is None else min(due, timeout))
        self._event.clear()
        if self._closed:
            return False
        if told:
            return True
        timer = timeout is None or due <= timeout
        self._check = self._check or timer
        return timer

    def set(self) -> None:
        """Ends a wait now, with True."""
        self._event.set()

    def close(self) -> None:
        """Lets go of the directories and ends a wait, with False."""
        self._closed = True
        self._event.set()
        with self._lock:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def _rewatch(self) -> bool:
        """Watches what matters now; True when that changed, as bytes may have come before the watch did."""
        now = time.monotonic()
        if self._watch is not None:
            if self._watch.too_many(now):
                self._unwatch()
                self._busy_at, self._delay = now, min(FAST, self.poll)
                return False
            if not self._check:
                return False
        elif now < self._retry_at or (self._busy_at is not None and now - max(self._busy_at, self._data_at) < CALM):
            return False
        self._check, self._busy_at = False, None
        places, names = _places(self.path), not self._following
        if self._watch is not None and (self._watch.places, self._watch.names) == (places, names):
            return False
        self._unwatch()
        try:
            self._watch = _Watch(places, names, self._event.set)
        except FileNotFoundError:
            self._check = True  # a directory went away just now; the next look finds what is there instead
            return False
        except (OSError, ImportError) as error:
            self._retry_at = now + RETRY
            self.notice = f"{self.path} is looked at every {self.poll:g} s only: {_refusal(error)}"
            return False
        self.notice, self._told = None, 0
        return True


class _Watch:
    """Directories whose events call `wake`. The events are counted and not looked at.

    `names` asks for names that appear as well as for writes. Not while a file is followed: watchdog holds every event
    back for half a second after a rename, to wait for its other half, and a write to the new file tells of the rename
    at once. Raises OSError, ImportError.
    """

    def __init__(self, places: frozenset[Place], names: bool, wake: Callable[[], None]) -> None:
        self.places, self.names = places, names
        self.events = 0
        self._since, self._before = time.monotonic(), 0
        self._wake = wake
        self._observer = self._observe()

    def too_many(self, now: float) -> bool:
        """Whether more than BUSY events came within the WINDOW that contains `now` (monotonic s)."""
        if now - self._since > WINDOW:
            self._since, self._before = now, self.events
        return self.events - self._before > BUSY

    def stop(self) -> None:
        """No event calls `wake` for long after this."""
        # On a thread of its own: it waits for watchdog's threads, and one of those may sit in its half second.
        threading.Thread(target=self._observer.stop, name="unwatch", daemon=True).start()

    def _seen(self) -> None:
        self.events += 1
        self._wake()

    def _observe(self) -> BaseObserver:
        # Imported here and not above: it takes 60 ms, and a file can be read without.
        from watchdog import events
        from watchdog.observers import Observer

        seen = self._seen

        class Handler(events.FileSystemEventHandler):
            def dispatch(self, event: FileSystemEvent) -> None:
                seen()

        kinds: list[type[FileSystemEvent]] = [events.FileModifiedEvent, events.FileDeletedEvent, events.DirDeletedEvent]
        if self.names:
            kinds += [events.FileCreatedEvent, events.FileMovedEvent, events.DirCreatedEvent, events.DirMovedEvent]
        # It logs an error when it is stopped with an event on its way, which is our everyday business.
        logging.getLogger("watchdog.observers").setLevel(logging.CRITICAL)
        observer = Observer()
        try:
            for folder, _, _ in self.places:
                observer.schedule(Handler(), folder, event_filter=kinds)
            observer.start()
        except BaseException:
            observer.stop()
            raise
        return observer


def _places(path: str) -> frozenset[Place]:
    """The directories to watch for `path`: its own and that of the file it links to; what is above a missing one."""
    places = set()
    for file in (path, os.path.realpath(path)):
        folder = os.path.dirname(file)
        while not os.path.isdir(folder) and folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)
        try:
            found = os.stat(folder)
        except OSError:
            continue  # gone between the two calls; the next look finds what is there instead
        places.add((os.path.realpath(folder), found.st_dev, found.st_ino))
    return frozenset(places)


def _refusal(error: OSError | ImportError) -> str:
    if isinstance(error, ImportError):
        return "watchdog is not installed; `pip install 'bringup[service]'`"
    if error.errno == errno.ENOSPC:
        return "no inotify watch is left; raise fs.inotify.max_user_watches"
    if error.errno == errno.EMFILE:
        return "no inotify instance is left; raise fs.inotify.max_user_instances or `ulimit -n`"
    return f"file events are not to be had ({error})"
