"""A log file that grows in, its lines by number out: those of a range, and those that hold a text or are of a rank.

Only where blocks begin is kept, 16 bytes for each 256 KiB, so a log of any size has any line at once. What is given out
is fit to be shown: no colours, a redrawn bar as it looked last, secrets masked, long lines cut.
"""

from __future__ import annotations

import os
import re
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.core.secrets import mask
from app.core.text import ANSI

if TYPE_CHECKING:
    from app.ranks import Ranks

BLOCK = 256 * 1024
WIDTH = 2000
"""Characters given of one line; bytes of it looked at are eight times as many."""
SEEN = 8 * WIDTH
MARGIN = 400
"""Characters left out before a cut in the bytes, where a secret may have lost the part that shows that it is one."""
SCANNED = 64 * 1024 * 1024
"""Bytes that one search looks at."""
LONG = 0.3
"""Seconds that one search by rank may take: each line has to be read for it."""
BACK = 2000
"""Lines before the first one of a search by rank that may tell whose that is."""
NAMES = 1000
"""Ranks that are told apart."""
UNSEEN = re.compile(rb"(?:\r|\x1b(?:\[[0-9;?]*[ -/]*[@-~]?)?)+\Z")
"""What shows nothing at the end of a line, or of as much of it as was read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `number` counts from 1, `size` is its length in bytes where it was cut, else 0."""

    number: int
    text: str
    size: int = 0


class LogFile:
    """One path. It may be called from any thread; OSError when the file cannot be read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._forget((0, 0))

    def _forget(self, identity: tuple[int, int]) -> None:
        self._identity = identity
        self._before = array("Q", [0])  # line ends before each block
        self._size = 0  # bytes counted
        self._ends = 0  # line ends counted

    def look(self) -> tuple[str, int]:
        """(which file it is, how many lines it has by now). Another file under the name, or one that was cut short, is
        another log and begins anew."""
        with self._lock, open(self.path, "rb", buffering=0) as file:
            return self._look(file.fileno())

    def _look(self, fd: int) -> tuple[str, int]:
        stat = os.fstat(fd)
        identity = (stat.st_dev, stat.st_ino)
        if identity != self._identity or stat.st_size < self._size:
            self._forget(identity)
        while self._size < stat.st_size:
            data = os.pread(fd, BLOCK - self._size % BLOCK, self._size)
            if not data:
                break
            self._size += len(data)
            self._ends += data.count(b"\n")
            if self._size % BLOCK == 0:
                self._before.append(self._ends)
        rest = bool(self._size) and os.pread(fd, 1, self._size - 1) != b"\n"
        return f"{identity[0]:x}-{identity[1]:x}", self._ends + rest

    def rows(self, first: int, count: int) -> tuple[str, int, list[Row]]:
        """(which file, how many lines, at most `count` of them from number `first` on)."""
        with self._lock, open(self.path, "rb", buffering=0) as file:
            which, lines = self._look(file.fileno())
            found: list[Row] = []
            for number, head, size in self._raw(file.fileno(), first, self._size):
                if len(found) >= count:
                    break
                found.append(row(number, head, size))
            return which, lines, found

    def find(
        self, text: str, first: int, count: int, ranks: Collection[str] = (), reader: Ranks | None = None
    ) -> tuple[list[int], int | None, int]:
        """(numbers of the lines from `first` on that show `text` in any case and are of one of `ranks`, where to go on:
        None at the end, how many lines there are). Without `ranks`, which need a `reader`, all are looked at; "" is no
        rank."""
        wanted = text.casefold()
        found: list[int] = []
        with self._lock, open(self.path, "rb", buffering=0) as file:
            _, lines = self._look(file.fileno())
            for number, head, size, rank in self._looked(file.fileno(), first, reader if ranks else None):
                if len(found) >= count or rank is None:
                    return found, number, lines
                # The line as it is shown decides: a search must not tell a secret letter by letter.
                if (not ranks or rank in ranks) and (
                    not wanted or (_maybe(wanted, head) and wanted in row(number, head, size).text.casefold())
                ):
                    found.append(number)
            return found, None, lines

    def ranks(self, first: int, reader: Ranks) -> tuple[dict[str, int], int | None]:
        """(how many lines from `first` on are of each rank, where to go on: None at the end)."""
        counts: dict[str, int] = {}
        with self._lock, open(self.path, "rb", buffering=0) as file:
            self._look(file.fileno())
            for number, _, _, rank in self._looked(file.fileno(), first, reader):
                if rank is None:
                    return counts, number
                if rank in counts or len(counts) < NAMES:
                    counts[rank] = counts.get(rank, 0) + 1
            return counts, None

    def _looked(self, fd: int, first: int, reader: Ranks | None) -> Iterator[tuple[int, bytes, int, str | None]]:
        """Every line from `first` on, as `_raw` gives it, with its rank ("" without a reader); the last with None when
        enough was looked at for one answer."""
        end, looked = time.monotonic() + LONG, 0
        for number, head, size in self._raw(fd, max(1, first - BACK) if reader else first, self._size):
            rank = reader.of(head) if reader is not None else ""
            if number < first:
                end = time.monotonic() + LONG  # an answer that told nothing would be asked for again, for ever
                continue
            if looked >= SCANNED or (reader is not None and looked and time.monotonic() >= end):
                yield number, head, size, None
                return
            looked += size + 1
            yield number, head, size, rank

    def _raw(self, fd: int, first: int, end: int) -> Iterator[tuple[int, bytes, int]]:
        """(number, its first SEEN bytes or a little more, its length in bytes) of every line from `first` on."""
        block = max(0, bisect_left(self._before, first - 1) - 1)  # the end of the line before `first` is in it or later
        number, at = self._before[block] + 1, block * BLOCK
        head, size = b"", 0
        while at < end:
            data = os.pread(fd, min(BLOCK, end - at), at)
            if not data:
                break
            at += len(data)
            *whole, rest = data.split(b"\n")
            for part in whole:
                if b"\r" in part:
                    head, size, part = _drawn(head, size, part)
                if number >= first:
                    yield number, (head + part)[: SEEN + 1] if len(head) < SEEN else head, size + len(part)
                number, head, size = number + 1, b"", 0
            if b"\r" in rest:
                head, size, rest = _drawn(head, size, rest)
            if len(head) < SEEN:
                head = (head + rest)[: SEEN + 1]
            size += len(rest)
        if size and number >= first:
            yield number, head, size


def _drawn(head: bytes, size: int, part: bytes) -> tuple[bytes, int, bytes]:
    """(head, size, part) of a line without what a redrawn bar has painted over. A "\\r" at the end paints over nothing yet,
    nor does a colour behind it."""
    rest = part.rstrip(b"\r")
    bare = UNSEEN.search(rest, max(0, len(rest) - 200))
    at = part.rfind(b"\r", 0, bare.start() if bare else len(rest))
    return (head, size, part) if at < 0 else (b"", 0, part[at + 1 :])


def _maybe(wanted: str, head: bytes) -> bool:
    """Whether a line may hold a text: the dear look is only for those."""
    return not wanted.isascii() or b"\x1b" in head or wanted.encode() in head.lower()


def row(number: int, raw: bytes, size: int) -> Row:
    """A line as it is shown. `raw` are its first bytes, `size` is how long it is."""
    text = ANSI.sub("", raw[:SEEN].decode("utf-8", "replace")).rstrip("\r").rpartition("\r")[2]
    if size > SEEN:
        text = text[:-MARGIN]
    text = mask(text)
    cut = size > SEEN or len(text) > WIDTH
    return Row(number, text[:WIDTH].replace("\t", "    "), size if cut else 0)
