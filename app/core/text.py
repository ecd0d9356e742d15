"""Raw segments in, readable lines out: colours, carriers (app.core.carriers), engine prefixes and lost line breaks are taken off.

Prefixes are the engine's own and come from `rules/engines` (data).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .carriers import Carriers
from .drawn import Drawn, may_concern
from .lines import Line

if TYPE_CHECKING:
    from .engines import Engine

ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

WINDOW = 64 * 1024
"""How much of one line is looked at for lost line breaks."""
FRAME = re.compile(r'File "[^"\n]{1,400}", line \d+')
BREAKS = re.compile(
    r"(?<!\A)[ \t]*(?="
    r'File "[^"\n]{1,400}", line \d+'
    r"|Traceback \(most recent call last\):"
    r"|(?:Explanation|Hint|Developer debug context): "
    r"|from user code:"
    r"|(?:The above exception was the direct cause|During handling of the above exception)"
    r"|Set TORCHDYNAMO_VERBOSE=1"
    r"|For more details about this graph break"
    r"|(?<![\w.'\"(])(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Unsupported|Interrupt|Failure)(?:: |\s*$)"
    r"|(?<![\w.'\"(])torch\._dynamo\.exc\.\w+(?:: |\s*$)"
    r")"
)


TIME = re.compile(r"\d\d[:.]\d\d")
OWN_TIME = re.compile(r"\[?(?:\d[\d /.-]{0,23})?\d\d[:.]\d\d(?::\d\d)?[.,\d]*")
"""A record that is glued to another brings a time of its own: most lines have none but that at their beginning."""
PLACES = frozenset(("time", "source", "level"))


class Prefix:
    """An engine's line prefix: a regex with group `msg` and, as they exist, `time`, `ranks`, `proc`, `source`, `level`."""

    def __init__(self, pattern: re.Pattern[str] | Any) -> None:
        self.match = pattern.match
        self.groups = frozenset(pattern.groupindex)

    def read(self, text: str, number: int) -> Line | None:
        found = self.match(text)
        if found is None:
            return None
        groups = found.groupdict()
        if (
            not self.groups & PLACES
        ):  # only a process tag, as Ray and torchrun write: it carries lines and starts no record
            return Line(number, (groups["msg"] or "").rstrip(), _rank(groups))
        rank = _rank(groups)
        return Line(
            number, (groups["msg"] or "").rstrip(), rank, groups.get("time") or "", groups.get("source") or "", True,
            (groups.get("level") or "")[:1].upper(),
        )  # fmt: skip


def _rank(groups: dict[str, str | None]) -> str:
    return " ".join((groups.get("ranks") or groups.get("proc") or groups.get("rank") or "").split())


class Reader:
    """Turns segments into lines. Holds no more than one partial line of a carrier that splits them."""

    def __init__(self, prefixes: Sequence[Prefix], glued: Any = None) -> None:
        """`glued` is a regex that matches, with no width, where a record begins that is glued to what stands before it."""
        self._prefixes = prefixes
        self._glued = glued
        self._carriers = Carriers()
        self._drawn = Drawn()

    def read(self, raw: bytes, number: int) -> Iterator[Line]:
        """The lines in one segment; `number` is the physical line it stands on."""
        text = raw.decode("utf-8", "replace")
        if "\x1b" in text:
            text = ANSI.sub("", text)
        text = CONTROL.sub("", text)
        drawn = self._drawn
        for carrier_rank, inner in self._carriers.strip(text):
            if inner is not text and text[:1] == "{":  # JSON spells them out
                inner = CONTROL.sub("", ANSI.sub("", inner))
            for piece in self._split(inner):
                line = self._line(piece, number, carrier_rank)
                if not line.prefixed and line.rank == carrier_rank:
                    self._carriers.learn(line.text)
                if drawn.open or may_concern(line.text):
                    yield from drawn.read(line)
                else:
                    yield line

    def _line(self, text: str, number: int, carrier_rank: str) -> Line:
        # no prefix begins with a blank (app.core.engines sees to it), and most lines of a traceback do
        for prefix in () if text[:1] == " " else self._prefixes:
            line = prefix.read(text, number)
            if line is not None:
                if not line.rank and carrier_rank:
                    return line._replace(rank=carrier_rank)
                return line
        return Line(number, text.rstrip(), carrier_rank)

    def _split(self, text: str) -> Iterator[str]:
        """Records glued to the end of an unfinished bar, and tracebacks whose line breaks were lost, come apart."""
        own = OWN_TIME.match(text)
        timed = self._glued is not None and TIME.search(text, own.end() if own else 1)
        places = [0, *(found.start() for found in self._glued.finditer(text, 1))] if timed else [0]
        for begin, end in zip(places, [*places[1:], len(text)], strict=True):
            piece = text[begin:end]
            if len(piece) > 120 and needs_unfolding(piece):
                yield from unfold(piece)
            else:
                yield piece


def reader_of(engines: Iterable[Engine]) -> Reader:
    """A reader that knows the prefixes of these engines."""
    from .engines import LIBRARIES
    from .patterns import compiled

    known = sorted(engines, key=lambda engine: engine.name != LIBRARIES)  # theirs are the narrower ones
    glued = "|".join(engine.glued for engine in known if engine.glued)
    prefixes = [Prefix(compiled(text)) for engine in known for text in engine.prefixes]
    return Reader(prefixes, compiled(glued) if glued else None)


def needs_unfolding(text: str) -> bool:
    """A traceback on one line: its frames stand behind one another."""
    if 'File "' not in text:
        return False
    frames = len(FRAME.findall(text[:WINDOW]))
    return frames >= 2 or (frames == 1 and "Traceback (most recent call last):" in text[:WINDOW])


def unfold(text: str) -> Iterator[str]:
    """Give a traceback on one line its line breaks back, as far as they can be told."""
    for piece in BREAKS.sub("\n", text[:WINDOW]).split("\n"):
        piece = piece.strip()
        if piece:
            yield "  " + piece if piece.startswith("File ") else piece
