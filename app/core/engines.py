"""A parsed engine file in, an `Engine` out: how that server writes its log, and which lines tell how its start-up goes.

The data are `rules/engines/<name>/engine.yaml` (one server each) and `rules/engines/libraries.yaml` (prefixes, versions
and GPUs that libraries print inside any server). Reading files is not done here. Patterns are compiled on first use, by
the `regex` library, and each carries the literals that a line must contain for the pattern to match at all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import regex

from .invalid import Problem
from .literals import required_literals
from .patterns import compiled

KINDS = ("begin", "progress", "end", "info", "skip")
MULTILINE = ("until-prefix", "per-line")
LIBRARIES = "libraries"
"""The name of the file that belongs to no engine."""

_T = TypeVar("_T")

VERSION_GROUPS = ("version", "torch", "flashinfer", "nccl", "transformers", "triton", "sgl_kernel", "cuda", "driver",
                  "python")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression that is searched in a line's text (the engine's prefix is already off)."""

    match: str

    @property
    def literals(self) -> tuple[str, ...]:
        """Of these strings one stands in every line that matches; never empty in a file without problems."""
        return required_literals(self.match)

    def search(self, text: str) -> Any:
        """The first match, or None; lines without any of the literals never reach the regular expression."""
        if not any(literal in text for literal in self.literals):
            return None
        return compiled(self.match).search(text)

    def last(self, text: str) -> Any:
        """The last match: a bar pasted from a terminal holds several redraws on one line."""
        if not any(literal in text for literal in self.literals):
            return None
        return next(reversed(list(compiled(self.match).finditer(text))), None)


@dataclass(frozen=True, slots=True)
class Mark(Pattern):
    """A line that tells that a phase began, went on, ended or was skipped.

    Named groups are figures: `n`/`total` (progress), `items` (a printed list whose length is the total), `elapsed`,
    `remaining`, and measures such as `avail_gb`, `weights_gb`, `kv_gb`, `kv_tokens`, `graph_gb`. `since`/`until` are
    the first and last release that prints the line. `by` tells who prints it: `every` rank or `one`. A `nested` mark
    may come while another phase runs and does not end that phase. With `count` each line is one step.
    """

    kind: str
    since: str | None = None
    until: str | None = None
    by: str = "every"
    nested: bool = False
    count: bool = False


@dataclass(frozen=True, slots=True)
class Gpu(Pattern):
    """A line that tells the GPU: groups `gpu` (name), `sm` ("120") or `capability` ("12.1", "12, 0").

    The key `sm` is for names that have one compute capability only.
    """

    sm: str | None = None


@dataclass(frozen=True, slots=True)
class Era(Pattern):
    """A line that only the `releases` (a PEP 440 specifier set) print."""

    releases: str


@dataclass(frozen=True, slots=True)
class PrintedAdvice(Pattern):
    """A line that tells the reader what to try, whatever the cause is.

    It would set `knob` to a value of it, or make it `lower` or `higher`; or it names an environment variable (`env`).
    `about` are the rules it was written for, as shell patterns on their ids: with another cause it does not help, and
    `why` says so. What only `tells_more` mends nothing. A group `words` of `match` is the advice itself.
    """

    name: str = ""
    says: str = ""
    """The advice in a few words, for a page that quotes it without a log."""
    knob: str | None = None
    to: str = ""
    env: str | None = None
    about: tuple[str, ...] = ()
    tells_more: bool = False
    only_if: str = ""
    """An expression over what `match` captures: where it is false, the advice itself says that it does not apply."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of the start-up. `silence` is how many seconds without a line are still normal in it."""

    id: str
    title: str
    silence: float
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """A real line, prefix and all, and what must come out of it."""

    line: str
    phase: str | None = None
    kind: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    rank: str | None = None
    time: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """One server's log: how lines look, what tells it from others, its phases in order, the line that says ready."""

    name: str
    title: str
    prefixes: tuple[str, ...]
    multiline: str
    glued: str | None
    stamps: tuple[str, ...]
    detect: tuple[Pattern, ...]
    hints: tuple[Pattern, ...]
    version: tuple[Pattern, ...]
    gpu: tuple[Gpu, ...]
    args: tuple[Pattern, ...]
    command: tuple[Pattern, ...]
    start: tuple[Pattern, ...]
    eras: tuple[Era, ...]
    fields: tuple[tuple[str, str], ...]
    """Fields of the printed configuration, each with the first release that has it (and all later ones do)."""
    phases: tuple[Phase, ...]
    ready: tuple[Pattern, ...]
    advice: tuple[PrintedAdvice, ...]
    samples: tuple[Sample, ...]

    def patterns(self) -> Iterator[Pattern]:
        """Every pattern that is searched in line texts (not the prefixes)."""
        for row in (self.detect, self.hints, self.version, self.gpu, self.args, self.command, self.start, self.eras):
            yield from row
        for phase in self.phases:
            yield from phase.marks
        yield from self.ready
        yield from self.advice

    def phase(self, name: str) -> Phase | None:
        return next((phase for phase in self.phases if phase.id == name), None)


class _Reading:
    """Reads one mapping key by key; whatever is wrong becomes a problem with its place, and reading goes on."""

    def __init__(self, data: Mapping[str, Any], path: tuple[str | int, ...], problems: list[Problem]) -> None:
        self.data = data
        self.path = path
        self.problems = problems
        self.known: set[str] = set()

    def say(self, reason: str, remedy: str = "", *at: str | int) -> None:
        self.problems.append(Problem((*self.path, *at), reason, remedy))

    def value(self, key: str, kind: type | tuple[type, ...], default: Any = None, needed: bool = False) -> Any:
        self.known.add(key)
        value = self.data.get(key)
        if value is None:
            if needed:
                self.say(f"`{key}` is missing", f"add `{key}:`")
            return default
        if isinstance(value, bool) and bool not in (kind if isinstance(kind, tuple) else (kind,)):
            self.say(f"must be {_named(kind)}, not {value}", "quote words such as on, off, yes and no", key)
            return default
        if not isinstance(value, kind):
            self.say(f"must be {_named(kind)}, not {type(value).__name__}", "", key)
            return default
        return value

    def text(self, key: str, needed: bool = False) -> str:
        return str(self.value(key, str, "", needed))

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        value = str(self.value(key, str, default))
        if value not in allowed:
            self.say(f"{value!r} is not known", f"one of {', '.join(allowed)}", key)
            return default
        return value

    def release(self, key: str) -> str | None:
        value = self.value(key, str)
        if value is not None:
            from packaging.version import InvalidVersion, Version

            try:
                Version(value)
            except InvalidVersion:
                self.say(f"{value!r} is not a release", "write it as in `0.5.9`", key)
                return None
        return value if value is None else str(value)

    def releases(self, key: str) -> tuple[tuple[str, str], ...]:
        """A mapping from names to releases."""
        inner = _Reading(self.value(key, dict, {}), (*self.path, key), self.problems)
        found = [(str(name), inner.release(str(name))) for name in inner.data]
        return tuple((name, release) for name, release in found if release is not None)

    def pattern(self, key: str, needs_literal: bool = True) -> str | None:
        value = self.value(key, str, needed=True)
        return None if value is None else self.checked(str(value), needs_literal, key)

    def checked(self, pattern: str, needs_literal: bool, *at: str | int) -> str | None:
        try:
            if not required_literals(pattern):  # which reads it, too; compiling all takes a tenth of the first start
                compiled(pattern)
        except regex.error as error:
            self.say(f"is not a regular expression: {error}", "", *at)
            return None
        if needs_literal and not required_literals(pattern):
            self.say(
                "has no literal text of 5 characters or more that every match contains, so no scanner can look for it",
                "write out part of the line; do not ignore case there",
                *at,
            )
            return None
        return pattern

    def rows(self, key: str, read: Callable[[_Reading], _T | None]) -> tuple[_T, ...]:
        """A list of mappings, or of patterns written as plain text."""
        found: list[_T] = []
        for index, item in enumerate(self.value(key, list, ())):
            if isinstance(item, str):
                item = {"match": item}
            if not isinstance(item, Mapping):
                self.say(f"must be text or a mapping, not {type(item).__name__}", "", key, index)
                continue
            inner = _Reading(item, (*self.path, key, index), self.problems)
            one = read(inner)
            inner.no_more()
            if one is not None:
                found.append(one)
        return tuple(found)

    def texts(self, key: str, needs_literal: bool = True) -> tuple[str, ...]:
        """A list of patterns that are only text."""
        listed = self._listed(key)
        return tuple(text for index, text in listed if self.checked(text, needs_literal, key, index) is not None)

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts that are no patterns."""
        return tuple(text for _, text in self._listed(key))

    def _listed(self, key: str) -> Iterator[tuple[int, str]]:
        for index, item in enumerate(self.value(key, list, ())):
            if isinstance(item, str):
                yield index, item
            else:
                self.say(f"must be text, not {type(item).__name__}", "", key, index)

    def no_more(self) -> None:
        for key in self.data:
            if key not in self.known:
                self.say(f"`{key}` is not known here", f"one of {', '.join(sorted(self.known))}", str(key))


def _named(kind: type | tuple[type, ...]) -> str:
    names = {str: "text", int: "a number", float: "a number", bool: "true or false", list: "a list", dict: "a mapping"}
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(dict.fromkeys(names.get(one, one.__name__) for one in kinds))


def engine_from(data: Mapping[str, Any], problems: list[Problem]) -> Engine:
    """The engine that a parsed file describes. Everything wrong is added to `problems`, each with its place; what is
    wrong is left out of the engine, so that the rest can be checked in the same run."""
    reading = _Reading(data, (), problems)
    before = len(problems)
    name = reading.text("name", needed=True)
    own = name != LIBRARIES  # the libraries' file has neither phases nor a ready line
    glued = reading.pattern("glued", needs_literal=False) if "glued" in data else None
    reading.known.add("glued")
    engine = Engine(
        name=name,
        title=reading.text("title", needed=True),
        prefixes=tuple(_with_message(reading)),
        multiline=reading.choice("multiline", MULTILINE, MULTILINE[0]),
        glued=glued,
        stamps=reading.texts("stamps", needs_literal=False),
        detect=reading.rows("detect", _pattern),
        hints=reading.rows("hints", _pattern),
        version=reading.rows("version", _version),
        gpu=reading.rows("gpu", _gpu),
        args=reading.rows("args", _pattern),
        command=reading.rows("command", _pattern),
        start=reading.rows("start", _pattern),
        eras=reading.rows("eras", _era),
        fields=reading.releases("fields"),
        phases=reading.rows("phases", _phase),
        ready=reading.rows("ready", _pattern),
        advice=reading.rows("advice", _printed_advice),
        samples=reading.rows("samples", _sample),
    )
    reading.no_more()
    if own and len(problems) == before:
        for key in ("prefixes", "detect", "phases", "ready", "samples"):
            if not getattr(engine, key):
                reading.say(f"`{key}` is missing or empty", "an engine without it cannot be followed", key)
    ids = [phase.id for phase in engine.phases]
    for index, one in enumerate(ids):
        if one in ids[:index]:
            reading.say(f"phase {one!r} stands twice", "", "phases", index, "id")
    for index, sample in enumerate(engine.samples):
        if sample.phase is not None and sample.phase not in ids:
            reading.say(f"{sample.phase!r} is no phase of this engine", f"one of {', '.join(ids)}", "samples", index)
    return engine


_FIRST_SIGN = re.compile(r"\^(?!\.|\\s|\\W|\\D|\[\^|[ ?*])")


def _with_message(reading: _Reading) -> Iterator[str]:
    for index, pattern in enumerate(reading.texts("prefixes", needs_literal=False)):
        if not _FIRST_SIGN.match(pattern):
            reading.say("may begin with a blank", "begin it with ^ and a sign; blanks begin what belongs to a message",
                        "prefixes", index)  # fmt: skip
        elif "msg" in compiled(pattern).groupindex:
            yield pattern
        else:
            reading.say("has no group `msg`", "end it with (?P<msg>.*)$", "prefixes", index)


def _pattern(reading: _Reading) -> Pattern | None:
    match = reading.pattern("match")
    return None if match is None else Pattern(match)


def _version(reading: _Reading) -> Pattern | None:
    match = reading.pattern("match")
    if match is None:
        return None
    if not set(compiled(match).groupindex) & set(VERSION_GROUPS):
        reading.say("names no version", f"one group of {', '.join(VERSION_GROUPS)}", "match")
    return Pattern(match)


def _gpu(reading: _Reading) -> Gpu | None:
    match, sm = reading.pattern("match"), reading.value("sm", str)
    if match is None:
        return None
    if sm is None and not set(compiled(match).groupindex) & {"gpu", "sm", "capability"}:
        reading.say("tells no GPU", "a group `gpu`, `sm` or `capability`, or the key `sm`", "match")
    return Gpu(match, sm)


def _era(reading: _Reading) -> Era | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    match, releases = reading.pattern("match"), reading.text("releases", needed=True)
    try:
        SpecifierSet(releases)
    except InvalidSpecifier:
        reading.say(f"{releases!r} is not a set of releases", 'write it as in ">=0.5.6,<0.5.14"', "releases")
        return None
    return None if match is None else Era(match, releases)


def _printed_advice(reading: _Reading) -> PrintedAdvice | None:
    match = reading.pattern("match")
    found = PrintedAdvice(
        match=match or "",
        name=reading.text("name", needed=True),
        says=reading.text("says", needed=True),
        knob=reading.value("knob", str),
        to=reading.text("to"),
        env=reading.value("env", str),
        about=reading.words("about"),
        tells_more=reading.value("tells_more", bool, False),
        only_if=reading.text("only_if"),
        why=reading.text("why"),
    )
    if (found.knob is None) != (not found.to):
        reading.say("`knob` and `to` go together", "to: lower, higher or a value of the knob")
    if (found.about or found.tells_more or found.only_if) and not found.why:
        reading.say("`why` is missing", "say what it is for, for the reader whose failure is another", "why")
    return None if match is None else found


def _phase(reading: _Reading) -> Phase | None:
    marks: list[Mark] = []
    for kind in KINDS:
        marks += reading.rows(kind, functools.partial(_mark, kind))
    name = reading.text("id", needed=True)
    title = reading.text("title", needed=True)
    silence = float(reading.value("silence", (int, float), 0.0, needed=True))
    if name and not marks:
        reading.say("no line tells this phase", "add begin, progress or end")
    return Phase(name, title, silence, tuple(marks)) if name else None


def _mark(kind: str, reading: _Reading) -> Mark | None:
    match = reading.pattern("match")
    mark = Mark(
        match=match or "",
        kind=kind,
        since=reading.release("since"),
        until=reading.release("until"),
        by=reading.choice("by", ("every", "one"), "every"),
        nested=reading.value("nested", bool, False),
        count=reading.value("count", bool, False),
    )
    return None if match is None else mark


def _sample(reading: _Reading) -> Sample | None:
    line = reading.text("line", needed=True)
    return Sample(
        line=line,
        phase=reading.value("phase", str),
        kind=reading.choice("kind", (*KINDS, "ready", "args", "version", "gpu", "command", "start", "none"), "none"),
        numbers=dict(reading.value("numbers", dict, {})),
        rank=reading.value("rank", str),
        time=reading.value("time", str),
        source=reading.value("source", str),
    )
