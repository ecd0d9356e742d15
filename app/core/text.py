"""Raw segments in, readable lines out: wrappers, colours, prefixes and lost line breaks are dealt with here and nowhere else.

Wrappers are what carries a log and not what wrote it: docker's JSON file, docker compose, Kubernetes CRI and `kubectl --prefix`,
journald, structured JSON loggers, torchrun. Prefixes are the engine's own and come from `rules/engines` (data).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from .lines import Line

ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

CRI = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) (?P<flag>[FP])(?: |$)")
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ")
JOURNAL = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ (?P<unit>[^\s\[:]+)(?:\[\d+\])?: ?")
LEVEL = re.compile(r"(?:ERROR|CRITICAL|WARNING|INFO): +(?=(?:  )?File \"|Traceback \(|(?:\w+\.)*[A-Z]\w+(?:Error|Exception)\b)")
LAUNCHER = re.compile(r"\[\d\d:\d\d:\d\d\] (?:stdout|stderr)/[A-Z]+ +")
PIPED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \| +[A-Z]+ +\| +[\w.:-]+ +\| ?")
COMPOSE = re.compile(r"(?P<unit>[A-Za-z0-9][\w.-]{0,80}?) +\| ")
POD = re.compile(r"\[pod/(?P<unit>[^\]]+)\] ?")
RANK = re.compile(r"\[(?P<rank>rank\d{1,5})\]: ?")
DEFAULT_RANK = re.compile(r"\[(?P<rank>[a-z_]+\d{1,5})\]:")

JSON_TEXT = ("log", "message", "msg", "event", "exc", "exc_info", "exception", "error", "stack", "stack_trace", "stacktrace",
             "traceback", "MESSAGE")  # fmt: skip

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
        if not self.groups & PLACES:  # only a process tag, as Ray and torchrun write: it carries lines and starts no record
            return Line(number, (groups["msg"] or "").rstrip(), _rank(groups))
        rank = _rank(groups)
        return Line(
            number, (groups["msg"] or "").rstrip(), rank, groups.get("time") or "", groups.get("source") or "", True,
            (groups.get("level") or "")[:1],
        )  # fmt: skip


def _rank(groups: dict[str, str | None]) -> str:
    return " ".join((groups.get("ranks") or groups.get("proc") or groups.get("rank") or "").split())


class Reader:
    """Turns segments into lines. Holds no more than one partial CRI line."""

    def __init__(self, prefixes: Sequence[Prefix], glued: Sequence[Any] = ()) -> None:
        self._prefixes = prefixes
        self._glued = glued
        self._partial = ""

    def read(self, raw: bytes, number: int) -> Iterator[Line]:
        """The lines in one segment; `number` is the physical line it stands on."""
        text = raw.decode("utf-8", "replace")
        if "\x1b" in text:
            text = ANSI.sub("", text)
        text = CONTROL.sub("", text)
        for carrier_rank, inner in self._unwrap(text):
            for piece in self._split(inner):
                yield self._line(piece, number, carrier_rank)

    def _line(self, text: str, number: int, carrier_rank: str) -> Line:
        for prefix in self._prefixes:
            line = prefix.read(text, number)
            if line is not None:
                if not line.rank and carrier_rank:
                    return replace(line, rank=carrier_rank)
                return line
        return Line(number, text.rstrip(), carrier_rank)

    def _split(self, text: str) -> Iterator[str]:
        """Records glued to the end of an unfinished bar, and tracebacks whose line breaks were lost, come apart."""
        starts = {0}
        for pattern in self._glued:
            starts.update(found.start() for found in pattern.finditer(text) if found.start())
        places = sorted(starts)
        for begin, end in zip(places, [*places[1:], len(text)], strict=True):
            piece = text[begin:end]
            if len(piece) > 120 and needs_unfolding(piece):
                yield from unfold(piece)
            else:
                yield piece

    def _unwrap(self, text: str) -> Iterator[tuple[str, str]]:
        rank = ""
        for _ in range(4):
            first = text[:1]
            if first == "{":
                parts = _from_json(text)
                if parts is None:
                    break
                if len(parts) != 1:
                    yield from ((rank, part) for part in parts)
                    return
                text = parts[0]
            elif first.isdigit() and (found := CRI.match(text)):
                text = text[found.end() :]
                if found["flag"] == "P":
                    self._partial += text[: 256 * 1024 - len(self._partial)]
                    return
                text, self._partial = self._partial + text, ""
            elif first.isdigit() and ((found := STAMP.match(text)) or (found := PIPED.match(text))):
                text = text[found.end() :]
            elif first.isupper() and ((found := JOURNAL.match(text)) or (found := LEVEL.match(text))):
                text = text[found.end() :]
            elif first == "[" and ((found := POD.match(text)) or (found := LAUNCHER.match(text))):
                text = text[found.end() :]
            elif first == "[" and ((found := RANK.match(text)) or (found := DEFAULT_RANK.match(text))):
                rank, text = found["rank"], text[found.end() :]
            elif "| " in text[:90] and (found := COMPOSE.match(text)) and "%|" not in text[:90]:
                text = text[found.end() :]
            else:
                break
        if "\\n" in text and ("\\n  File" in text or "\\nTraceback" in text or text.count("\\n") > 3):
            for part in text.replace("\\r", "").replace("\\n", "\n").replace('\\"', '"').replace("\\t", "\t").split("\n"):
                yield rank, part
        else:
            yield rank, text


def _from_json(text: str) -> list[str] | None:
    """The human-readable lines inside a JSON log line, or None where it is not one."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    lines: list[str] = []
    for key in JSON_TEXT:
        value = record.get(key)
        if isinstance(value, str) and value:
            lines += value.rstrip("\n").split("\n")
        elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            lines += [part for item in value for part in item.rstrip("\n").split("\n")]
    return [line.rstrip() for line in lines] if lines else None


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
