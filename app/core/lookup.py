"""A line's text in, the patterns of the engine files that match it out, without trying each of them on each line.

A pattern that begins with plain text at the start of the line is found by its first letters; any other is tried only
where one of its literals stands in the line, and most literals are found by a whole word in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from .engines import LIBRARIES, Engine, Mark, Pattern
from .lines import Line
from .patterns import compiled

_HEAD = 6
_LOOKED_AT = 800
"""Literals are looked for in this much of a line: what engines say of themselves stands at its beginning."""
_WORD = re.compile(r"\w+")
_LETTERS = re.compile(r"[A-Za-z]{3,5}")
_WHOLE_WORD = re.compile(r"(?<=[^\w])\w+(?=[^\w])")
# `^` and plain text whose last character is not made optional by a sign behind it.
_ANCHORED = re.compile(r"\^((?:[A-Za-z0-9_ ](?![*?{])){" + str(_HEAD) + r"})")
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_ROLES = ("version", "gpu", "args", "command", "start", "eras", "ready", "advice")


class Found(NamedTuple):
    """A pattern that matches the line: whose it is, what it tells (`role`), and the match."""

    engine: str
    role: str
    pattern: Pattern
    match: Any
    phase: str = ""

    @property
    def mark(self) -> Mark:
        """The pattern of a phase's line."""
        assert isinstance(self.pattern, Mark)
        return self.pattern

    def groups(self) -> Iterator[tuple[str, str]]:
        """The named groups that took part."""
        return ((name, value) for name, value in self.match.groupdict().items() if value is not None)


class _Entry(NamedTuple):
    engine: str
    role: str
    pattern: Pattern
    phase: str = ""

    def find(self, text: str) -> Found | None:
        # a bar pasted from a terminal holds several redraws in one line: the last one counts
        last = self.role == "phase" and "%" in text
        match = self.pattern.last(text) if last else compiled(self.pattern.match).search(text)
        return None if match is None else Found(self.engine, self.role, self.pattern, match, self.phase)


@cache
def _head(pattern: str) -> str:
    """The plain text that every match begins with at the start of the line; "" where there is none."""
    anchored = _ANCHORED.match(pattern)
    return anchored[1] if anchored and not _has_ways(pattern) else ""


@cache
def _word(literal: str) -> str:
    """The longest whole word inside a literal, "" for none."""
    return max(_WHOLE_WORD.findall(literal), key=len, default="")


def _has_ways(pattern: str) -> bool:
    """Whether the pattern has alternatives at its top, so that its first letters do not bind the whole."""
    depth = 0
    for sign in _ATOM.findall(pattern):
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            return True
    return False


def _shared_part(literal: str) -> str:
    """The first few letters in a row of a literal: many literals share theirs ("NVIDIA H100", "NVIDIA B200")."""
    found = _LETTERS.search(literal)
    return found[0] if found else literal


class _Table:
    """Entries by the first letters of the line, by a whole word in one of their literals, by a part of one without."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.heads: dict[str, list[int]] = {}
        self.words: dict[str, list[tuple[str, int]]] = {}
        self.loose: dict[str, list[tuple[str, int]]] = {}

    def add(self, entry: _Entry) -> None:
        place = len(self.entries)
        self.entries.append(entry)
        head = _head(entry.pattern.match)
        if head:
            self.heads.setdefault(head, []).append(place)
            return
        for literal in entry.pattern.literals:
            word = _word(literal)
            if word:
                self.words.setdefault(word, []).append((literal, place))
            else:
                self.loose.setdefault(_shared_part(literal), []).append((literal, place))

    def find(self, text: str, words: frozenset[str]) -> list[Found]:
        """What matches in `text`, in the order of the files; `words` are those at its beginning."""
        places = set(self.heads.get(text[:_HEAD], ()))
        start = text[:_LOOKED_AT]
        for word in words & self.words.keys():
            places.update(place for literal, place in self.words[word] if literal in start)
        for part, row in self.loose.items():
            if part in start:
                places.update(place for literal, place in row if literal in start)
        found = (self.entries[place].find(text) for place in sorted(places))
        return [one for one in found if one is not None]


class Lookup:
    """The patterns of some engines, ready to be searched."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._everything = _Table()
        self._by_engine: dict[str, _Table] = {}
        self._starts = _Table()
        self._strong = _Table()
        self._weak = _Table()
        self._stamps = [(engine.name, stamp) for engine in engines for stamp in engine.stamps]
        for engine in engines:
            for entry in _entries(engine):
                self._everything.add(entry)
                if entry.role in ("start", "command"):
                    self._starts.add(entry)
                names = [one.name for one in engines] if engine.name == LIBRARIES else [engine.name]
                for name in names:
                    self._by_engine.setdefault(name, _Table()).add(entry)
            for table, patterns in ((self._strong, engine.detect), (self._weak, engine.hints)):
                for pattern in patterns:
                    table.add(_Entry(engine.name, "detect", pattern))
        every = {literal for engine in engines for pattern in engine.patterns() for literal in pattern.literals}
        self.literals = tuple(sorted(every))
        self._text = ""
        self._words: frozenset[str] = frozenset()

    def find(self, text: str, engine: str | None) -> list[Found]:
        """What matches, of that engine and the libraries, or of all where the engine is None."""
        table = self._everything if engine is None else self._by_engine[engine]
        return table.find(text, self._split(text))

    def _split(self, text: str) -> frozenset[str]:
        if text is not self._text:
            self._text, self._words = text, frozenset(_WORD.findall(text[:_LOOKED_AT]))
        return self._words

    def starts(self, text: str) -> list[Found]:
        """What matches of the patterns that tell a new start."""
        return self._starts.find(text, self._split(text))

    def recognise(self, text: str, line: Line | None) -> tuple[str | None, bool]:
        """The engine that writes such a line, and whether that settles it; (None, False) where nothing tells."""
        strong = self._strong.find(text, self._split(text))
        if strong:
            return strong[0].engine, True
        if line is not None and (line.prefixed or line.rank):
            stamp = f"{line.time}|{line.rank}|{line.source}"
            for name, pattern in self._stamps:
                if compiled(pattern).search(stamp):
                    return name, False
        weak = self._weak.find(text, self._split(text))
        return (weak[0].engine, False) if weak else (None, False)


def _entries(engine: Engine) -> Iterator[_Entry]:
    for role in _ROLES:
        for pattern in getattr(engine, role):
            yield _Entry(engine.name, "era" if role == "eras" else role, pattern)
    for phase in engine.phases:
        for mark in phase.marks:
            yield _Entry(engine.name, "phase", mark, phase.id)


_last: tuple[tuple[int, ...], Sequence[Engine], Lookup] | None = None


def remember(engines: Sequence[Engine], built: Lookup) -> None:
    """Takes a lookup that was built of these engines before."""
    global _last
    _last = tuple(map(id, engines)), tuple(engines), built


def lookup(engines: Sequence[Engine]) -> Lookup:
    """The lookup of these engines; built once for as long as the same ones are asked for."""
    if _last is None or _last[0] != tuple(map(id, engines)):
        remember(engines, Lookup(engines))
    assert _last is not None
    return _last[2]
