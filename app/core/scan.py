"""Bytes in, the few lines worth reading out: a multi-literal prefilter over blocks, so that a healthy log costs next to nothing.

A log is cut into *segments* at newlines and carriage returns (a redrawn progress bar is many segments of one line). Only
segments that hold a literal somebody asked for are handed on, with a little context before them and whatever follows for as
long as the reader wants more. Any chunking of the same bytes gives the same segments.

Measured: Hyperscan as a literal matcher stays flat from 30 to 10,000 literals where everything else falls (docs/performance.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import hyperscan
import stringzilla

from .literals import stems

WRAP = 64 * 1024
"""A segment longer than this many bytes is cut into pieces of this size, so that no line can grow memory."""
BLOCK = 4 * 1024
"""From this many bytes on it is worth asking for stems first."""
LOOKBACK = 4 * 1024
"""How many bytes of context before a hit are handed on, in whole segments."""
LOOKBACK_SEGMENTS = 24
OFTEN = 400
"""After so many occurrences in one start a literal is handed on only once in APART bytes."""
APART = 256 * 1024
MANY_TRACEBACKS = 100
"""After so many tracebacks in one start, one that ends in an exception line seen ENOUGH times before is passed over."""
ENOUGH = 3
HEADER = b"Traceback (most recent call last):"
REST = re.compile(rb"[^\n]*(?:\n(?:[ \t][^\n]*|\r)?)*\n([A-Za-z_][^\n]*)\n")
DIGITS = b"0123456789"


class Segment(NamedTuple):
    """A piece of the log between two line ends, without them.

    `number` is the physical line (1-based); `hit` tells that a literal is in it that is not a quiet one; `gap` that segments
    before it were skipped.
    """

    raw: bytes
    number: int
    hit: bool
    gap: bool


class _Strings:
    """Strings that are looked for at once, compiled or as `stored` before."""

    def __init__(self, strings: Sequence[bytes], stored: bytes | None) -> None:
        if stored is not None:
            self.database = hyperscan.loadb(stored, hyperscan.HS_MODE_BLOCK)
        else:
            self.database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
            self.database.compile(expressions=list(strings), ids=list(range(len(strings))), flags=0, literal=True)
        self._spare: list[Any] = []  # scratch space: one for each search at a time, and several threads read logs

    def scan(self, data: bytes | memoryview, on_match: Callable[[int, int, int, int, Any], bool | None]) -> None:
        """Calls `on_match` with (index, start, end, …) of every occurrence, until it returns true."""
        try:
            scratch = self._spare.pop()
        except IndexError:
            scratch = hyperscan.Scratch(self.database)
        try:
            self.database.scan(data, match_event_handler=on_match, scratch=scratch)  # type: ignore[type-var]
        except hyperscan.ScanTerminated:
            pass
        finally:
            self._spare.append(scratch)


class Literals:
    """A set of literals to look for at once; built once, may be stored (`dump`) for the same library and CPU.

    Most blocks of a log hold none: that is found out with their stems, which are fewer and therefore faster.
    """

    def __init__(
        self, literals: Sequence[bytes], stored: tuple[bytes, bytes] | None = None, ordinary: str = ""
    ) -> None:
        """`stored` is what `dump` gave for the same literals; `ordinary` are lines that logs are full of."""
        self.literals = tuple(literals)
        self._lengths = [len(literal) for literal in self.literals]
        whole, stem = stored or (None, None)
        self._whole = _Strings(self.literals, whole)
        self._stems = _Strings(stems(self.literals, ordinary) if stem is None else (), stem)

    def dump(self) -> tuple[bytes, bytes]:
        """The compiled matchers; valid for this library version and CPU family only."""
        return bytes(hyperscan.dumpb(self._whole.database)), bytes(hyperscan.dumpb(self._stems.database))

    def find(self, data: bytes | memoryview) -> list[tuple[int, int]]:
        """(end offset, literal index) of every occurrence, by end offset."""
        found: list[tuple[int, int]] = []
        append = found.append

        def on_match(index: int, start: int, end: int, flags: int, context: Any) -> None:
            append((end, index))

        if len(data) < BLOCK or self._may_hold(data):
            self._whole.scan(data, on_match)
        found.sort()
        return found

    def _may_hold(self, data: bytes | memoryview) -> bool:
        """Whether a stem is in there."""
        seen = False

        def on_match(index: int, start: int, end: int, flags: int, context: Any) -> bool:
            nonlocal seen
            seen = True
            return True

        self._stems.scan(data, on_match)
        return seen

    def present(self, data: bytes) -> set[int]:
        """Which literals occur in `data`."""
        return {index for _, index in self.find(data)}

    def length(self, index: int) -> int:
        return self._lengths[index]


class Scan:
    """Feeds on chunks of any size and yields the segments worth reading.

    `wants_more()` is asked after every segment handed on: as long as it says yes, the following segments come too, hit or not.
    Segments with nothing but `quiet` literals (progress bars, phase lines) come without context. Any literal but those of
    `always` is thinned out when there are hundreds of it in one start, and so are tracebacks that repeat.
    """

    def __init__(
        self,
        literals: Literals,
        wants_more: Callable[[], bool] = lambda: False,
        quiet: Collection[int] = (),
        always: Collection[int] = (),
    ) -> None:
        self._literals = literals
        self._wants_more = wants_more
        self._quiet = frozenset(quiet)
        self._always = frozenset(always)
        self._buffer = b""
        self._start = 0  # index in the buffer of the first byte not yet looked at; before it: history for look-back
        self._line = 1  # the physical line number at `_start`
        self._given = 0  # index in the buffer up to which segments were handed on
        self._origin = 0  # offset in the log of the buffer's first byte
        self.offset = 0
        """How many bytes were fed so far."""
        self.last_line = 0
        """How many lines were seen so far (a line still being written counts)."""
        self.forget()

    def forget(self) -> None:
        """A new start begins: nothing has been seen often any more."""
        self._often: dict[int, tuple[int, int]] = {}
        self._tracebacks = 0
        self._endings: dict[bytes, int] = {}

    def feed(self, data: bytes) -> Iterator[Segment]:
        """Take the next bytes; yields what is worth reading among the lines that are now complete."""
        self.offset += len(data)
        buffer = self._buffer + data if self._buffer else data
        start = self._start
        end = len(buffer)
        tail = end - 1 if end > start and buffer[end - 1] == 13 else end  # "\r" may be the first half of "\r\n"
        cut = max(buffer.rfind(b"\n", start, end), buffer.rfind(b"\r", start, tail)) + 1
        cut = max(cut, start)
        cut += (tail - cut) // WRAP * WRAP
        yield from self._look(buffer, start, cut, last=False)

    def close(self) -> Iterator[Segment]:
        """The log ends here: look at the line that was still being written."""
        buffer, start = self._buffer, self._start
        yield from self._look(buffer, start, len(buffer), last=True)
        self.last_line = self._line - (1 if not buffer or buffer.endswith(b"\n") else 0)

    def _keep(self, buffer: bytes, cut: int) -> None:
        floor = max(0, cut - LOOKBACK - 1)
        self._buffer = buffer[floor:]
        self._start = cut - floor
        self._given = max(0, self._given - floor)
        self._origin += floor

    def _look(self, buffer: bytes, start: int, cut: int, last: bool) -> Iterator[Segment]:
        hits: list[tuple[int, int]] = []
        if cut > start:
            hits = [(end + start, index) for end, index in self._literals.find(memoryview(buffer)[start:cut])]
        lengths, quiet = self._literals.length, self._quiet
        position, line, at = start, self._line, 0
        number = len(hits)
        while position < cut:
            while at < number and hits[at][0] <= position:
                at += 1
            if self._wants_more():
                finish, after = _segment_end(buffer, position, cut)
                telling = False
                while at < number and hits[at][0] <= finish:
                    place, index = hits[at]
                    telling = telling or (index not in quiet and place - lengths(index) >= position)
                    at += 1
                yield self._give(buffer, position, finish, after, line, telling)
            elif at < number:
                begin = _segment_start(buffer, position, hits[at][0] - 1)
                finish, after = _segment_end(buffer, begin, cut)
                telling = fresh = False
                while at < number and hits[at][0] <= finish:
                    place, index = hits[at]
                    if place - lengths(index) < begin:
                        pass  # reaches over a cut of an overlong line: nobody sees that
                    elif index not in quiet:
                        telling = telling or index in self._always or self._is_news(index, self._origin + place)
                    elif not telling and self._is_news(index, self._origin + place):
                        fresh = True
                    at += 1
                if not (telling or fresh):
                    continue
                first = begin
                if telling:
                    if self._tracebacks > MANY_TRACEBACKS and HEADER in buffer[begin:finish]:
                        beyond = self._repeated(buffer, begin, cut)
                        if beyond is None and not last and cut - begin < WRAP:
                            cut = begin  # its end is not there yet: look again when more has come
                            break
                        if beyond:
                            line += _newlines(buffer, position, beyond)
                            position = beyond
                            continue
                    elif HEADER in buffer[begin:finish]:
                        self._tracebacks += 1
                        self._repeated(buffer, begin, cut)
                    first = self._lookback(buffer, begin)
                if first < position:
                    line -= _newlines(buffer, first, position)
                else:
                    line += _newlines(buffer, position, first)
                position = first
                while position < begin:
                    stop, following = _segment_end(buffer, position, cut)
                    yield self._give(buffer, position, stop, following, line, False)
                    line += _newlines(buffer, position, following)
                    position = following
                yield self._give(buffer, position, finish, after, line, telling)
            else:
                break
            line += _newlines(buffer, position, after)
            position = after
        self._line = line + _newlines(buffer, position, cut)
        self.last_line = self._line
        self._keep(buffer, cut)

    def _is_news(self, index: int, offset: int) -> bool:
        """Whether this occurrence of a quiet literal is worth handing on: the first ones, then one in a while."""
        count, before = self._often.get(index, (0, 0))
        if count >= OFTEN and offset - before < APART:
            return False
        self._often[index] = (count + 1, offset)
        return True

    def _repeated(self, buffer: bytes, begin: int, cut: int) -> int | None:
        """Where the traceback at `begin` ends if its exception line was seen often before; 0 if not; None if it has no end yet."""
        found = REST.match(buffer, begin, cut)
        if found is None:
            return None
        ending = found[1].translate(None, DIGITS)
        count = self._endings.get(ending, 0)
        if count >= ENOUGH:
            return found.end()
        if len(self._endings) < 10_000:
            self._endings[ending] = count + 1
        return 0

    def _lookback(self, buffer: bytes, begin: int) -> int:
        """Where the context before the segment at `begin` starts: whole segments, not handed on before."""
        floor = max(self._given, begin - LOOKBACK)
        first = begin
        for _ in range(LOOKBACK_SEGMENTS):
            if first <= floor:
                break
            end = first - 1
            if buffer[end] == 10 and end > floor and buffer[end - 1] == 13:
                end -= 1
            lowest = max(floor - 1, 0)
            delimiter = max(buffer.rfind(b"\n", lowest, end), buffer.rfind(b"\r", lowest, end))
            if delimiter < 0 and floor != self._given:
                break
            first = delimiter + 1 if delimiter >= 0 else floor
        return first

    def _give(self, buffer: bytes, begin: int, finish: int, after: int, line: int, hit: bool) -> Segment:
        gap = begin > self._given
        self._given = after
        return Segment(buffer[begin:finish], line, hit, gap)


def _newlines(buffer: bytes, begin: int, end: int) -> int:
    """How many newlines are in `buffer[begin:end]`. Long stretches go to a vectorised count, five times faster than Python's."""
    if end - begin < 4096:
        return buffer.count(b"\n", begin, end)
    return int(stringzilla.count(memoryview(buffer)[begin:end], b"\n"))


def _segment_end(buffer: bytes, position: int, cut: int) -> tuple[int, int]:
    """(end of the text, start of the next segment) of the segment that starts at `position`."""
    limit = min(cut, position + WRAP)
    newline = buffer.find(b"\n", position, limit)
    carriage = buffer.find(b"\r", position, limit if newline < 0 else newline)
    if carriage >= 0:
        after = carriage + 1
        if after < cut and buffer[after] == 10:
            after += 1
        return carriage, after
    if newline >= 0:
        return newline, newline + 1
    return limit, limit


def _segment_start(buffer: bytes, position: int, inside: int) -> int:
    """Where the segment that holds the byte at `inside` starts; never before `position`, which is a segment start."""
    begin = max(buffer.rfind(b"\n", position, inside), buffer.rfind(b"\r", position, inside)) + 1
    begin = max(begin, position)
    return begin + (inside - begin) // WRAP * WRAP


def chunks(data: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    """`data` in pieces of the given sizes, the rest in one: for tests and replays."""
    position = 0
    for size in sizes:
        if position >= len(data):
            return
        yield data[position : position + size]
        position += size
    if position < len(data):
        yield data[position:]
