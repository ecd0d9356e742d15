"""Lines of a log, one after the other, in; whose each one is, out: the rank or process that its prefix names.

A line without a prefix belongs to whoever wrote the one before it, as everywhere in bringup (app/core/records.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from app.core.text import reader_of

if TYPE_CHECKING:
    from app.core.engines import Engine

HEAD = 400
"""Bytes of a line that its prefix stands in; of JSON all that is given is read."""


class Ranks:
    """Reads one log, in order, from any line on."""

    def __init__(self, engines: Iterable[Engine]) -> None:
        self._reader = reader_of(engines)
        self._now = ""

    def of(self, raw: bytes) -> str:
        """The rank of the next line; "" when it has none, and before any line tells."""
        if raw[:1] not in (b" ", b"\t", b""):  # what is indented goes on with the line before
            for line in self._reader.read(raw if raw[:1] == b"{" else raw[:HEAD], 0):
                if line.prefixed or line.rank:
                    self._now = line.rank
        return self._now
