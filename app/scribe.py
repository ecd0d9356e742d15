"""Targets and their runs in, a store that is up to date out: a thread that follows the journals, for as long as the
data base lets it, and removes what is too old or too much."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.store import Store, StoreError

if TYPE_CHECKING:
    from app.hub import Hub

AGAIN = 2.0
"""Seconds until a data base that is away is asked again."""
OFTEN = 0.2
"""Seconds between two looks at the journals while news come."""
PRUNED = 6 * 3600.0
"""Seconds between two looks for what is to be removed."""


class Journalled(Protocol):
    """A target, as far as its history goes: its runs are below `root`, the current one is in the hub's status."""

    name: str
    root: Path
    hub: Hub


class Scribe:
    """Follows the runs of some targets. `start` once, `stop` once."""

    def __init__(
        self, store: Store, targets: Sequence[Journalled], keep: tuple[float, float] | None = None
    ) -> None:  # fmt: skip
        """`keep` is (days, bytes) of what is kept; None: everything is."""
        self.store, self._targets, self._keep = store, targets, keep
        self._sizes: dict[Path, int] = {}
        self._changed: dict[Path, int] = {}
        self._seen: set[Path] = set()
        self._woken = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scribe", daemon=True)
        self._news = [target.hub.subscribe(None, self._woken.set) for target in targets]
        self.trouble = ""

    def start(self) -> None:
        """Begins; what earlier runs left is taken first."""
        self._woken.set()
        self._thread.start()

    def stop(self) -> None:
        """Takes what there still is, if the data base lets it within a moment, and ends."""
        self._over.set()
        self._woken.set()
        self._thread.join(0.5 if self.trouble else 1.5)
        if self._thread.is_alive() or self.trouble:
            self._say("not all runs are in the data base yet; the next bringup goes on with them")
        for news in self._news:
            news.close()

    def _work(self) -> None:
        everything, pruned = True, 0.0
        while True:
            over = self._over.is_set()
            try:
                for target in self._targets:
                    self._follow(target, everything)
                everything = False
                if self.trouble:
                    self._say("the data base answers again; nothing was lost")
                    self.trouble = ""
                if self._keep is not None and not over and time.monotonic() - pruned > PRUNED:
                    pruned = time.monotonic() or 1.0
                    for target in self._targets:
                        prune(self.store, target.root, self._keep)
            except (StoreError, OSError) as error:
                if str(error) != self.trouble:
                    self.trouble = str(error)
                    self._say(f"{error}; the runs are kept in their folders until it does")
            if over:
                return
            self._woken.wait(AGAIN if self.trouble else None)
            self._over.wait(OFTEN)
            self._woken.clear()

    def _follow(self, target: Journalled, everything: bool) -> None:
        """Takes what is new in the runs of a target: in all of them, or in those that can have news."""
        folders = self._new(target, everything)
        name = target.hub.status.get("run")
        if name:
            folders.append(target.root / "runs" / str(name))
        folders += [folder for folder in self._sizes if folder not in folders]
        for folder in folders:
            size = _size(folder)
            if self._sizes.get(folder) != size:
                self.store.follow(folder, target.name)
                if folder.name == name or size != _size(folder):
                    self._sizes[folder] = size
                else:
                    self._sizes.pop(folder, None)

    def _new(self, target: Journalled, everything: bool) -> list[Path]:
        """The runs that came since the last look; at first, all that no bringup that lives has."""
        place = target.root / "runs"
        try:
            changed = place.stat().st_mtime_ns
        except OSError:
            return []
        if not everything and self._changed.get(place) == changed:
            return []
        self._changed[place] = changed
        found = [folder for folder in sorted(place.iterdir()) if folder not in self._seen]
        self._seen.update(found)
        return [folder for folder in found if not (everything and _held(folder))]

    @staticmethod
    def _say(text: str) -> None:
        print(f"bringup: {text}", file=sys.stderr, flush=True)


def _size(folder: Path) -> int:
    try:
        return (folder / "news.jsonl").stat().st_size
    except OSError:
        return -1


def _held(folder: Path) -> bool:
    """Whether a bringup that lives has this run: it takes care of it itself."""
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def prune(store: Store, root: Path, keep: tuple[float, float], now: float | None = None) -> list[str]:
    """Removes the finished runs below `root` that are older than `keep[0]` days, and the oldest beyond `keep[1]` bytes;
    their names. The latest run always stays. StoreError when the data base is away: then nothing is removed.

    A run is as old as what was last written of it: the start in a log that is watched may be long ago when it is read.
    """
    days, most = keep
    now = time.time() if now is None else now
    gone: list[str] = []
    total = 0
    folders = sorted(root.glob("runs/*"), reverse=True)
    for place, folder in enumerate(folders):
        total += sum(file.stat().st_size for file in folder.glob("*") if file.is_file())
        try:
            data = json.loads((folder / "run.json").read_bytes())
            written = (folder / "run.json").stat().st_mtime
        except (OSError, ValueError):
            continue
        old = now - max(float(data.get("began") or now), written) > days * 86400
        if place and (old or total > most) and data.get("outcome") is not None and not _held(folder):
            store.forget(folder.name)
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(folder.name)
    return gone
