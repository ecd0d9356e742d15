"""Lines in, records out: one record is one message with everything that belongs to it, traceback and all.

Ranks write into one file, so their lines interleave: every rank the prefix names has its own open record. A line without a
prefix belongs to the record that was written to last. Where the prefix stands before *every* line of a traceback (vLLM,
torchrun), the lines are joined again because they look like a continuation, not because of the prefix.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

from .lines import Line

HEADER = "Traceback (most recent call last)"
FRAME = re.compile(r'[\s|+-]*File "[^"\n]+", line \d+, in ')
HANDLED = re.compile(
    r"Exception ignored in|Exception in thread|WON'T CONVERT|Error in atexit|Error in sys\.excepthook"
    # vLLM, SGLang
    r"|NVLink detection failed\. This is normal|XGMI detection failed|Error when (?:compiling|parsing AST of) Jinja template"
    r"|ST projector loading failed|Failed to collect (?:processor kwargs|TPU information)|Error saving model info cache"
    r"|Will delay [\d.]+s and retry|Continuing without (?:metrics|admin)|sweep failed, continuing startup|using eager fallback"
)
"""What is said before a traceback that Python, torch or the engine goes on after."""
REQUEST = re.compile(r"Exception in ASGI application")
"""What a web server says before the traceback of one request."""
INTRO = re.compile(f"{HANDLED.pattern}|{REQUEST.pattern}")
"""A line that belongs to the traceback behind it."""
EXCEPTION = re.compile(r"[A-Za-z_][\w]*(?:\.[A-Za-z_<][\w>]*)*(?:: ?|$)")
CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
CONTINUES = re.compile(
    r"\s|$|[|+]|File \"|from user code|Set TORCHDYNAMO_VERBOSE|For more details|For even more|Explanation:|Hint:"
    r"|Developer debug context:|Traceback \(most recent call last\)|The above exception|During handling of"
    r"|\[Previous line repeated|Possible solutions|Open an issue on GitHub|CUDA kernel errors might|For debugging consider"
    r"|Compile with|Device-side assert|You can suppress this|import torch\._dynamo|torch\._dynamo\.config"
)
LIMIT_LINES = 3000
LIMIT_CHARACTERS = 192 * 1024
GRACE = 12
"""How many lines that look like nothing in particular are still read after the last telling one."""


def indent(text: str) -> int:
    """How far a line is indented, the bars and signs of an exception group counted in."""
    return len(text) - len(text.lstrip(" \t|+-"))


def margin(header: str) -> int:
    """How far a traceback with this header line is indented; none where something else stands before the header."""
    return indent(header) if header.lstrip(" \t|+-").startswith((HEADER, "Exception Group")) else 0


class Record:
    """One message and its continuation lines, from one rank."""

    def __init__(self, line: Line) -> None:
        self.rank = line.rank
        self.source = line.source
        self.lines: list[Line] = []
        self.traceback = False
        """A traceback was begun in here."""
        self.raised = False
        """… and its exception line was seen after the last header."""
        self.chained = False
        self.headless = False
        """Frames stand here whose header was cut off or never printed."""
        self.margin = 0
        """How far the traceback is indented as a whole; its exception line stands there."""
        self.user = False
        """Dynamo's "from user code:" was seen after the exception: the frames behind it are its own."""
        self.phase: str | None = None
        """The phase the start-up was in when this record began; "" when none was known."""
        self.grace = 0
        self.size = 0
        self.add(line)

    def add(self, line: Line) -> None:
        self.lines.append(line)
        text = line.text
        self.size += len(text) + 1
        if HEADER in text:
            self.traceback, self.raised, self.chained, self.user = True, False, False, False
            self.margin = margin(text)
            self.grace = GRACE
        elif text.startswith(CHAIN) or text.lstrip(" |").startswith(CHAIN):
            self.chained = True
            self.grace = GRACE
        elif (
            (self.traceback or self.headless)
            and not self.raised
            and text
            and (text[0] not in " \t" or indent(text) <= self.margin)
            and EXCEPTION.match(text.lstrip())
        ):
            self.raised = True
            self.grace = GRACE
        elif not self.raised and FRAME.match(text):
            self.headless = self.headless or not self.traceback
            self.margin = max(self.margin, indent(text) - 2)
            self.grace = GRACE
        elif text.startswith("from user code"):
            self.user = True
            self.grace = GRACE
        elif text[:1] in (" ", "\t", "|") or (CONTINUES.match(text) and text):
            self.grace = max(self.grace, GRACE // 2)
        else:
            self.grace -= 1

    @property
    def open(self) -> bool:
        """More lines are wanted: the traceback is not at its end, or something telling was seen a moment ago."""
        return len(self.lines) < LIMIT_LINES and (self.grace > 0 or (self.traceback and not self.raised))

    @property
    def full(self) -> bool:
        return len(self.lines) >= LIMIT_LINES or self.size >= LIMIT_CHARACTERS

    def continued_by(self, line: Line) -> bool:
        """Whether a line *with* a prefix goes on with this record (per-line prefixes)."""
        text = line.text
        same = line.source != "" and line.source == self.source
        if line.source != self.source and self.source and line.source:
            return False
        # A header with words of its own before it ("Scheduler hit an exception: Traceback") is another message.
        another = HEADER in text and not text.lstrip(" \t|+-").startswith(HEADER)
        introduced = INTRO.search(self.lines[-1].text) or (len(self.lines) < 4 and INTRO.search(self.lines[0].text))
        if introduced and not another:
            return True
        if FRAME.match(text) or HEADER in text:
            # The frames behind "EngineCore failed to start." belong to it, a new traceback behind a finished one does not.
            if not self.raised:
                return same or self.traceback or self.headless
            return self.chained or (self.user and HEADER not in text)
        if not self.traceback and not self.headless:
            return same and text[:1].isspace()
        if self.traceback and not self.raised:
            return True
        if self.headless and not self.raised:
            return (
                same
                or bool(EXCEPTION.match(text) and text[:1].isalpha() and ":" in text)
                or bool(CONTINUES.match(text))
            )
        return same or bool(CONTINUES.match(text))

    @cached_property
    def _starts(self) -> list[int]:
        starts, position = [], 0
        for line in self.lines:
            starts.append(position)
            position += len(line.text) + 1
        return starts

    @cached_property
    def text(self) -> str:
        """All lines, joined by newlines (a wrapped one by a blank). Read it once the record is complete."""
        text = "\n".join(line.text for line in self.lines)
        for place, line in enumerate(self.lines):
            if line.wrapped and place:
                start = self._starts[place]
                text = f"{text[: start - 1]} {text[start:]}"
        return text

    def line_at(self, position: int) -> Line:
        """The line that holds the character at `position` of `text`."""
        return self.lines[bisect_right(self._starts, position) - 1]

    def copy(self) -> Record:
        """As it stands now: what is read from it does not change when lines are added later."""
        twin = Record(self.lines[0])
        twin.lines = list(self.lines)
        twin.traceback, twin.raised, twin.chained = self.traceback, self.raised, self.chained
        twin.headless, twin.user, twin.phase, twin.margin = self.headless, self.user, self.phase, self.margin
        return twin


class Records:
    """Groups lines into records; at most one open record a rank, at most `MOST` of them."""

    MOST = 512

    def __init__(self) -> None:
        self._open: dict[str, Record] = {}
        self._last: Record | None = None

    @property
    def wants_more(self) -> bool:
        """Whether the lines that follow are needed even when nothing in them was asked for."""
        last = self._last
        return last is not None and last.open

    def touch(self) -> None:
        """Something that was asked for stands in the record written to last: read on a while."""
        if self._last is not None:
            self._last.grace = GRACE

    def mark(self, phase: str) -> None:
        """Note the phase in the record written to last, unless it has one."""
        if self._last is not None and self._last.phase is None:
            self._last.phase = phase

    def add(self, line: Line) -> Iterator[Record]:
        """Take a line; yields the records that are complete now."""
        rank = line.rank
        record = self._open.get(rank) if rank or line.prefixed else self._last
        if record is not None and not self._belongs(record, line):
            del self._open[record.rank]
            self._last = None
            yield record
            record = None
        if record is None:
            record = self._open[rank] = Record(line)
            if len(self._open) > self.MOST:
                yield from self._drop_oldest()
        else:
            record.add(line)
        self._last = record

    def _belongs(self, record: Record, line: Line) -> bool:
        if record.full:
            return False
        if line.prefixed:
            return record.continued_by(line)
        # A new traceback after a finished one is a record of its own, unless the two are chained.
        return not (record.raised and not record.chained and (HEADER in line.text or INTRO.match(line.text)))

    def _drop_oldest(self) -> Iterator[Record]:
        oldest = next(iter(self._open))
        yield self._open.pop(oldest)

    def flush(self) -> Iterator[Record]:
        """Lines were skipped, or the log has ended: everything open is complete."""
        records = sorted(self._open.values(), key=lambda record: record.lines[0].number)
        self._open.clear()
        self._last = None
        yield from records

    def pending(self) -> list[Record]:
        """Copies of the open records, in order, for an early look."""
        return [record.copy() for record in sorted(self._open.values(), key=lambda record: record.lines[0].number)]
