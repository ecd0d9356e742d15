"""A log as somebody copied or exported it in, the log as it was written out, with the line each line came from.

What tools do to a whole log is undone here: UTF-16, exports as JSON, CSV or `journalctl -o verbose`, HTML, colours without
their escape sign, numbers in front, one indentation for all, lines wrapped at a terminal's width, the newest entry on top.
Only `explain` reads through this: a log that is followed while it grows has none of it (what stands before single lines is
taken off in app.core.carriers). What the first HEAD bytes do not show is not there, so that an ordinary log passes untouched.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, pairwise
from typing import Any

HEAD = 64 * 1024
"""How many bytes decide what was done to a log."""
WHOLE = 8 * 1024 * 1024
"""A log up to this size may be put in another order or have its lines joined; of a larger one only single lines are mended."""
CHUNK = 256 * 1024
LONGEST = 1024 * 1024
"""A line without an end is given out in pieces of this size."""
FEW = 5
"""What fewer lines show proves nothing."""

Row = tuple[int, str]
"""The number of the line in the source, and its text."""
Mend = Callable[[Iterator[Row]], Iterator[Row]]

HEADER = "Traceback (most recent call last)"
FRAME = re.compile(r' *File "[^"\n]+", line \d+')
STAMPS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d+)?)",
        r"(?<!\d)(\d\d/\d\d/\d{4})[ -](\d\d:\d\d:\d\d)",
        r"(?<![\d-])(\d\d-\d\d) (\d\d:\d\d:\d\d(?:[.,]\d+)?)",
        r"\b((?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d) (\d\d:\d\d:\d\d(?:\.\d+)?)",
        r'"(?:timestamp|time|ts|date)": ?"?()(\d{10}(?:\d{3,9}|\.\d+)?)\b',
        r"^\[?()(\d\d:\d\d:\d\d(?:[.,]\d+)?)\b",
    )
)
SENTENCE = re.compile(r"[a-z]{3,},? +[a-z]{3,}")
"""Words in a row: the time behind them is told, not the line's own."""
COUNTDOWN = 5
"""The kind of a bare clock, which may be a time left that falls."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
RECORD = (
    r"\[?\d{4}-\d\d-\d\d[T ]|\[?\d\d[-/]\d\d|\[?\d\d:\d\d:\d\d|\((?:\w+ )?\w+ pid=|[\w.-]+ +\| |[A-Z][a-z]{2} [ \d]\d \d\d:"
    r"| ?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[: ]|\[(?:rank|default)\d+\]:|\[pod/|\{\""
)
BEGINS = re.compile(RECORD)
NEW = re.compile(r'\s{2}|\s*$|\s*File "|Traceback \(|The above exception|During handling of|' + RECORD)
"""How a line begins that does not go on with the one above it."""
DRAWN = re.compile(r"[|+│┃╮╯┐┘║%=─━*#-]\s*$|\d+%\|")
"""Tables, boxes, rulers and bars are of one width by themselves."""


@dataclass
class Restored:
    """The log as it was written. Read `chunks` to its end before asking for lines."""

    chunks: Iterable[bytes]
    notes: tuple[str, ...] = ()
    """What was undone, in words for people; empty for an ordinary log."""
    _numbers: array[int] | None = None
    lines: int = 0
    """How many lines the source has; counted only where lines move."""

    @property
    def moved(self) -> bool:
        """Whether a line may stand elsewhere in the source."""
        return self._numbers is not None

    def number(self, line: int) -> int:
        """The line of the source that became this one (1-based); what is beyond the end stays where it is."""
        numbers = self._numbers
        if numbers is None or not numbers or line < 1:
            return line
        return numbers[min(line, len(numbers)) - 1]


Look = Callable[[Sequence[Row]], tuple[str, Mend, bool] | None]
"""Lines in; what is to be done, how, and whether lines move, out; None where there is nothing to do."""


def restore(chunks: Iterable[bytes]) -> Restored:
    """Look at the beginning of a log and undo what was done to it; holds HEAD bytes, or WHOLE where lines move."""
    stream = iter(chunks)
    head = _take(stream, b"", HEAD)
    notes: list[str] = []
    if (encoding := _encoding(head)) is not None:
        stream = _recoded(chain((head,), stream), encoding)
        head = _take(stream, b"", HEAD)
        notes.append(f"{encoding.removesuffix('-sig')} turned into UTF-8")
    head = head.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in head and b"\n" not in head and head.count(b"\r") > FEW and b"%|" not in head:
        stream = (chunk.replace(b"\r", b"\n") for chunk in chain((head,), stream))
        head = _take(stream, b"", HEAD)
        notes.append("carriage returns taken as line ends")
    sample = list(_rows([head[:HEAD]]))
    if len(head) >= HEAD and len(sample) > 1:
        sample.pop()  # it may be cut
    kept: list[tuple[str, Mend, bool]] = []
    for look in LOOKS:
        if (found := look(sample)) is not None:
            kept.append(found)
            sample = list(found[1](iter(sample)))
    if not kept:
        return Restored(chain((head,), stream), tuple(notes))
    if any(whole for _, _, whole in kept):
        head = _take(stream, head, WHOLE + 1)
        if len(head) > WHOLE:
            left = [said for said, _, whole in kept if whole]
            notes += [f"not done, for the log is larger than {WHOLE >> 20} MiB: {said}" for said in left]
            kept = [item for item in kept if not item[2]]
            if not kept:
                return Restored(chain((head,), stream), tuple(notes))
    rows = _rows(chain((head,), stream))
    for _, mend, _ in kept:
        rows = mend(rows)
    said = (*notes, *(said for said, _, _ in kept))
    if not any(whole for _, _, whole in kept):
        return Restored(_bytes(rows, None), said)
    numbers = array("L")
    return Restored(_bytes(rows, numbers), said, numbers, head.count(b"\n") + (not head.endswith(b"\n")))


def _take(stream: Iterator[bytes], head: bytes, size: int) -> bytes:
    """`head` and more of the stream until it has `size` bytes or the stream ends."""
    if len(head) >= size:
        return head
    parts, length = [head], len(head)
    for chunk in stream:
        parts.append(chunk)
        length += len(chunk)
        if length >= size:
            break
    return b"".join(parts)


def _rows(chunks: Iterable[bytes]) -> Iterator[Row]:
    rest, number = b"", 0
    for chunk in chunks:
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        for part in parts:
            number += 1
            yield number, _text(part)
        while len(rest) > LONGEST:
            yield number + 1, _text(rest[:LONGEST])
            rest = rest[LONGEST:]
    if rest:
        yield number + 1, _text(rest)


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "surrogateescape")


def _bytes(rows: Iterator[Row], numbers: array[int] | None) -> Iterator[bytes]:
    out: list[str] = []
    size = 0
    for number, text in rows:
        if numbers is not None:
            numbers.append(number)
        out.append(text)
        size += len(text) + 1
        if size >= CHUNK:
            yield "\n".join((*out, "")).encode("utf-8", "surrogateescape")
            out, size = [], 0
    if out:
        yield "\n".join((*out, "")).encode("utf-8", "surrogateescape")


# Encoding


def _encoding(head: bytes) -> str | None:
    """The encoding of what is no UTF-8: by its mark, or because every second byte is nought."""
    if head.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        return "UTF-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    start = head[:4096]
    if len(start) >= 16:
        for place, name in ((1, "UTF-16-LE"), (0, "UTF-16-BE")):
            zeros = start[place::2].count(0)
            if zeros > 0.4 * len(start) and start[1 - place :: 2].count(0) < 0.02 * len(start):
                return name
    return None


def _recoded(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    from codecs import getincrementaldecoder

    decoder = getincrementaldecoder(encoding)("replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode()
    yield decoder.decode(b"", True).encode()


# Exports: the log stands inside another document


def _document(sample: Sequence[Row]) -> tuple[str, Mend, bool] | None:
    rows = [text for _, text in sample]
    first = next((text for text in rows if text.strip()), "").lstrip("\ufeff").strip()
    if first[:1] in ("[", "{") and (first[:1] == "[" or len(first) < 3 or first[-1:] != "}") and _is_json(rows):
        return "taken out of a JSON export", _from_json, True
    if sum(1 for text in rows if text.startswith('{"')) > FEW and any(
        '"MESSAGE":[' in text.replace(" ", "")[:4000] for text in rows
    ):
        return "messages of the journal that are lists of bytes read", _from_byte_lists, False
    if VERBOSE.match(first) and any(text.startswith("    MESSAGE=") for text in rows):
        return "taken out of `journalctl -o verbose`", _from_verbose, True
    if (place := _csv_column(rows, first)) is not None:
        return "taken out of a CSV export", lambda rows: _from_csv(rows, *place), True
    return None


VERBOSE = re.compile(r"[A-Z][a-z]{2} (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) .*\[s=[0-9a-f]+;")
MESSAGES = (
    "message",
    "@message",
    "log",
    "content",
    "textpayload",
    "jsonpayload.message",
    "msg",
    "line",
    "body",
    "_raw",
    "text",
)
TIMES = ("timestamp", "@timestamp", "time", "date", "ts", "_time", "timegenerated", "eventtime", "__realtime_timestamp")  # fmt: skip
KEY = re.compile(r'"[^"]*"\s*:\s*(?:"[^"]*")?')
"""What is left of the lines that hold the entries of an export together."""
LISTS = ("events", "entries", "logs", "data", "hits", "results", "rows", "items", "logEvents", "messages")
WRAPPER = re.compile(r'"(?:' + "|".join(LISTS) + r')"\s*:\s*\[')


def _stamp(value: Any) -> str:
    """A time as a carrier writes it, with a blank behind it; "" for what is none."""
    if isinstance(value, str) and (found := STAMPS[0].match(value)):
        return f"{found[1]}T{found[2].replace(',', '.')}Z "
    try:
        figure = float(value)
        while figure > 1e11:
            figure /= 1000
        return f"{datetime.fromtimestamp(figure, UTC):%Y-%m-%dT%H:%M:%S.%f}Z " if figure > 1e8 else ""
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _entry(number: int, stamp: str, message: str) -> Iterator[Row]:
    first, *more = message.rstrip("\n").split("\n")
    yield number, stamp + first
    for text in more:
        yield number, text


def _is_json(rows: Sequence[str]) -> bool:
    """Whether this is the beginning of JSON and hardly anything else."""
    whole = "\n".join(rows)
    if re.match(r'(?:\ufeff|\s|\[)*\{\s*"', whole) is None:
        return False
    inside = end = messages = 0
    for value, start, end in _objects(whole):
        inside += end - start
        messages += sum(1 for item in _items(value) if _message(item)[0] is not None)
    return messages > 0 and inside > 0.8 * end and end > 0.5 * len(whole)


def _objects(whole: str) -> Iterator[tuple[Any, int, int]]:
    """Each JSON object with its place; the list that is not complete, as a big one's beginning, is looked into."""
    import json

    decoder = json.JSONDecoder(strict=False)
    place, failed = 0, 0
    while failed < 50 and (opening := whole.find("{", place)) >= 0:
        try:
            value, end = decoder.raw_decode(whole, opening)
        except (ValueError, RecursionError):
            found = WRAPPER.search(whole, opening, opening + 4000) if not failed else None
            place = found.end() if found else opening + 1
            failed += 1
            continue
        yield value, opening, end
        place = end


def _from_json(rows: Iterator[Row]) -> Iterator[Row]:
    """Each entry of one JSON value, or of several behind one another, as its message; what is no JSON stays as it is."""
    import json

    numbers, starts, parts, at = array("L"), array("L"), [], 0
    for number, text in rows:
        numbers.append(number)
        starts.append(at)
        parts.append(text)
        at += len(text) + 1
    whole = "\n".join(parts)
    del parts

    def line(place: int) -> int:
        return numbers[max(bisect_left(starts, place + 1) - 1, 0)]

    def between(start: int, end: int) -> Iterator[Row]:
        for text in whole[start:end].split("\n"):
            if (rest := text.strip(" \t\r\ufeff,[]{}")) and not KEY.fullmatch(rest):
                yield line(start), text
            start += len(text) + 1

    behind = 0
    for value, start, end in _objects(whole):
        yield from between(behind, start)
        behind, place = end, start
        for item in _items(value):
            message, when = _message(item)
            if message is not None:
                found = -1
                for escaped in (False, True):  # either is a way to write it
                    needle = json.dumps(message.partition("\n")[0], ensure_ascii=escaped)[1:-1]
                    if found < 0 and needle:
                        found = whole.find(needle, place, end)
                yield from _entry(line(max(place, found)), _stamp(when), message)
                place = max(place, found + len(needle))
    yield from between(behind, len(whole))


def _items(value: Any) -> list[Any]:
    """The entries inside a value: the lists that exports wrap them in are opened."""
    if isinstance(value, dict):
        for key in LISTS:
            inner = value.get(key)
            if isinstance(inner, dict):
                inner = next((inner[name] for name in LISTS if isinstance(inner.get(name), list)), None)
            if isinstance(inner, list) and any(isinstance(item, dict) for item in inner):
                return inner
    return [value]


def _message(item: Any) -> tuple[str | None, Any]:
    """(what was written, when) of one entry."""
    from .carriers import lines_of

    if not isinstance(item, dict):
        return None, None
    times = {key.lower(): value for key, value in item.items() if isinstance(key, str)}
    for inner in ("content", "_source", "attributes", "result"):
        if isinstance(times.get(inner), dict):
            times = {key.lower(): value for key, value in times[inner].items()} | times
    when = next((times[key] for key in TIMES if times.get(key) not in (None, "")), None)
    lines = lines_of(item)
    return ("\n".join(lines) if lines else None), when


def _from_byte_lists(rows: Iterator[Row]) -> Iterator[Row]:
    import json

    for number, text in rows:
        if text.startswith("{") and '"MESSAGE"' in text:
            try:
                record = json.loads(text)
                listed = record.get("MESSAGE")
                if isinstance(listed, list) and all(isinstance(item, int) for item in listed):
                    record["MESSAGE"] = bytes(listed).decode("utf-8", "replace")
                    text = json.dumps(record, ensure_ascii=False)
            except ValueError:
                pass
        yield number, text


def _from_verbose(rows: Iterator[Row]) -> Iterator[Row]:
    stamp, inside = "", False
    for number, text in rows:
        if found := VERBOSE.match(text):
            stamp, inside = _stamp(found["time"]), False
        elif text.startswith("    MESSAGE="):
            inside = True
            yield number, stamp + text[12:]
        elif inside and text.startswith(
            " " * 12
        ):  # the journal indents the lines that follow by the width of the field
            yield number, text[12:]
        else:
            inside = False


def _csv_column(rows: Sequence[str], first: str) -> tuple[int, int, str] | None:
    """(column of the message, of the time, delimiter) of a table with a heading."""
    import csv

    if len(first) > 400 or len(rows) <= FEW:
        return None
    for delimiter in (",", "\t", ";"):
        if delimiter not in first:
            continue
        try:
            names = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter, strict=True))]
        except (csv.Error, StopIteration):
            continue
        place = next((names.index(name) for name in MESSAGES if name in names), None)
        if place is None or len(names) < 2 or not all(re.fullmatch(r"[\w@./ -]{1,40}", name) for name in names):
            continue
        when = next((names.index(name) for name in TIMES if name in names), None)
        if when is None:
            continue
        try:
            table = [
                fields for fields in csv.reader((text + "\n" for text in rows[1:200]), delimiter=delimiter) if fields
            ]
        except csv.Error:
            continue
        whole = sum(1 for fields in table if len(fields) == len(names) and _stamp(fields[when]))
        if whole >= 0.9 * len(table) - 1:  # the last one may be cut off
            return place, when, delimiter
    return None


def _from_csv(rows: Iterator[Row], place: int, when: int, delimiter: str) -> Iterator[Row]:
    import csv

    numbers: list[int] = []

    def lines() -> Iterator[str]:
        for number, text in rows:
            numbers.append(number)
            yield text.lstrip("\ufeff").replace("\0", "").replace("\r", " ") + "\n"

    csv.field_size_limit(WHOLE)
    reader = csv.reader(lines(), delimiter=delimiter)
    next(reader, None)
    before = reader.line_num
    for fields in reader:
        number, before = numbers[before], reader.line_num
        if len(fields) > max(place, when):
            for step, (_, text) in enumerate(_entry(number, _stamp(fields[when]), fields[place])):
                yield number + step, text
        elif fields:
            yield number, delimiter.join(fields)


# What is the same on every line


def _quoted(sample: Sequence[Row]) -> tuple[str, Mend, bool] | None:
    """One indentation, mail quotes or signs of a diff before all lines."""
    texts = [text for _, text in sample if text.strip()]
    if len(texts) < FEW:
        return None
    found = re.match(r"[ \t>+|#]+", _common(texts))
    if found is None:
        return None
    prefix = found[0]
    rest = [text[len(prefix) :] for text in texts]
    if any(text.startswith(("+ Exception Group", "| ")) for text in rest):
        return None  # the way Python draws a group
    if not prefix.strip(" ") and any(text.startswith('File "') for text in rest):
        prefix = prefix[:-2]  # a traceback without head or end: its frames stand in by two
    if not prefix.strip() and len(prefix.expandtabs(4)) < 2:
        return None
    short = prefix.rstrip()

    def mend(rows: Iterator[Row]) -> Iterator[Row]:
        for number, text in rows:
            if text.startswith(prefix):
                yield number, text[len(prefix) :]
            else:
                yield number, text.removeprefix(short) if short else text

    return "what stands before every line taken off", mend, False


def _common(texts: Sequence[str]) -> str:
    """What all begin with."""
    low, high = min(texts), max(texts)
    return low[: next((place for place, sign in enumerate(low) if high[place : place + 1] != sign), len(low))]


NUMBERED = re.compile(r"[ \t]*(?P<number>\d{1,7})(?P<sign>[ \t]?[|│┃→:)](?:[ \t]|$)|\t|[.:](?=\[|\s|$)|  ?| ?$|$)")


def _numbered(sample: Sequence[Row]) -> tuple[str, Mend, bool] | None:
    """Lines numbered by an editor, a pager or `cat -n`: the numbers count up by one."""
    rows = [(text, found) for _, text in sample if text.strip() and (found := NUMBERED.match(text))]
    full = sum(1 for _, text in sample if text.strip())
    if len(rows) < FEW or len(rows) < 0.9 * full:
        return None
    steps = [int(after["number"]) - int(before["number"]) for (_, before), (_, after) in pairwise(rows)]
    if sum(1 for step in steps if step == 1) < 0.85 * len(steps) or any(step < 1 for step in steps[:200]):
        return None
    signs = Counter(found["sign"] for text, found in rows if len(text) > found.end())
    if not signs:
        return None
    sign = signs.most_common(1)[0][0]
    if signs[sign] < 0.9 * signs.total():
        return None
    shape = re.compile(r"[ \t]*\d{1,7}(?:" + re.escape(sign) + "|" + re.escape(sign.rstrip()) + r"$)")

    def mend(rows: Iterator[Row]) -> Iterator[Row]:
        for number, text in rows:
            found = shape.match(text)
            yield number, text[found.end() :] if found else text

    return "numbers before the lines taken off", mend, False


def _ticked(sample: Sequence[Row]) -> tuple[str, Mend, bool] | None:
    """Every line of its own in Markdown's code signs."""
    texts = [text.strip() for _, text in sample if text.strip()]
    if len(texts) < FEW or sum(1 for text in texts if len(text) > 1 and text[0] == text[-1] == "`") < 0.9 * len(texts):
        return None

    def mend(rows: Iterator[Row]) -> Iterator[Row]:
        for number, text in rows:
            inner = text.strip()
            yield number, inner[1:-1] if len(inner) > 1 and inner[0] == inner[-1] == "`" else text

    return "code signs around every line taken off", mend, False


# Signs that were spelt in another way

ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#0?39|#x27|#34|#x22|#x3[CcEe]|#6[02]|#160);")
TAG = re.compile(r"</?(?:pre|code|br|span|div|p|b|i|em|strong|a|details|summary|td|tr|table|tbody|body|html)\b[^<>]*>")
SPELT = re.compile(r"(?:\\u001[bB]|\\x1[bB]|\\0?33|\\e|\^\[|#033|\u241b)\[[0-9;?]*[A-Za-z]")
BARE = re.compile(
    r"(?<!\x1b)\[(?:(?:[0-9]|2[1-9]|[349][0-7]|39|49|10[0-7]|[34]8;(?:5;\d{1,3}|2;\d{1,3};\d{1,3};\d{1,3}))(?:;(?=\d)|(?=m)))*m(?![\]\w]{0,1}\])"
)
RESET = re.compile(r"(?<!\x1b)\[(?:0|39|22)?m")
SIGNS = {0xA0: " ", 0x202F: " ", 0x200B: None, 0xFEFF: None}
QUOTES = SIGNS | {0x201C: '"', 0x201D: '"', 0x201E: '"', 0x2018: "'", 0x2019: "'"}


def _html(sample: Sequence[Row]) -> tuple[str, Mend, bool] | None:
    """Text that was copied from the source of a page: no sign of it is left that HTML would have to escape."""
    count = sum(len(ENTITY.findall(text)) for _, text in sample if "&" in text)
    if count < 3 or any("<" in TAG.sub("", text) for _, text in sample if "<" in text):
        return None
    if sum(1 for _, text in sample if text.startswith("{")) > len(sample) // 2:
        return None  # a quote that comes back would end the text of a JSON object
    from html import unescape

    def mend(rows: Iterator[Row]) -> Iterator[Row]:
        for number, text in rows:
            if "<" in text:
                text = TAG.sub("", text)
            yield number, unescape(text).replace("\xa0", " ") if "&" in text else text

    return "HTML turned into text", mend, False


def _spelt_colours(sample: Sequence[Row]) -> tuple[str, Mend, bool] | None:
    """Colours whose escape sign was spelt out, or lost."""
    if sum(1 for _, text in sample if "[" in text and SPELT.search(text)) >= 3:
        return (
            "colours that were spelt out taken off",
            lambda rows: ((n, SPELT.sub("", text)) for n, text in rows),
            False,
        )
    resets = sum(len(RESET.findall(text)) for _, text in sample if "m" in text)
    if resets < 3:
        return None
    colours = sum(len(BARE.findall(text)) for _, text in sample if "m" in text) - resets
    if not resets / 4 <= colours <= resets * 4:
        return None
    return (
        "colours without their escape sign taken off",
        lambda rows: ((n, BARE.sub("", text)) for n, text in rows),
        False,
    )


def _typeset(sample: Sequence[Row]) -> tuple[str, Mend, bool] | None:
    """Blanks that do not break, and the quotes of a word processor."""
    signs = sum(1 for _, text in sample if not text.isascii() and ("\xa0" in text or "\u202f" in text))
    quotes = any("File \u201c" in text or "File \u201e" in text for _, text in sample if not text.isascii())
    if not quotes and signs < 3:
        return None
    table = QUOTES if quotes else SIGNS
    return "typeset blanks and quotes made plain", lambda rows: ((n, text.translate(table)) for n, text in rows), False


# Lines wrapped at a width


def _wrapped(sample: Sequence[Row]) -> tuple[str, Mend, bool] | None:
    """Lines cut at one width: many are exactly that long, none is longer, and what follows them goes on in the middle."""
    raw = [text for _, text in sample]
    width = max(map(len, raw), default=0)
    if not 60 <= width <= 500 or any("\r" in text for text in raw[:50]):
        return None
    if padded := sum(1 for text in raw if len(text) == width) > 0.9 * len(raw):  # as a terminal's screen is saved
        raw = [text.rstrip() for text in raw]
    lengths = Counter(map(len, raw))
    chance = sum(lengths[width - step] for step in (2, 3, 4)) / 3  # how often a length comes about by itself
    begun = [text for before, text in pairwise(["", *raw]) if len(before) < width - 1]
    strict = len(begun) >= FEW and sum(1 for text in begun if BEGINS.match(text)) >= 0.9 * len(begun)
    new = BEGINS if strict else NEW
    """Where every line has a prefix, all others go on with the one above them."""
    starts = set(map(_shape, begun))
    full = on = 0
    ends, goings = set(), set()
    for text, after in pairwise(raw):
        if len(text) == width and not DRAWN.search(text):
            full += 1
            ends.add(re.sub(r"\d", "9", text[-16:]))
            goings.add(re.sub(r"\d", "9", after[:16]))
            on += bool(after) and not new.match(after) and _shape(after) not in starts
    if min(len(ends), len(goings)) < 3 or full < 3 * chance or on < 0.7 * full or on < 3:
        return None  # one line that is written again and again is as long each time
    lacking = 4 if strict else 1
    """How many blanks at the end of a full line may have been lost."""

    def goes_on(length: int, text: str) -> bool:
        if length < width - lacking or not text or new.match(text):
            return False
        return length == width or strict or not (text[0].isspace() or UNLIKELY.match(text))

    def mend(rows: Iterator[Row]) -> Iterator[Row]:
        now: list[str] = []
        first, length = 0, 0
        for number, text in rows:
            if padded:
                text = text.rstrip()
            if now and goes_on(length, text):
                now[-1] = now[-1].ljust(width)
                now.append(text)
            else:
                if now:
                    yield first, "".join(now)
                now, first = [text], number
            length = len(text)
        if now:
            yield first, "".join(now)

    return f"lines wrapped at {width} signs joined", mend, True


UNLIKELY = re.compile(r"[\w.]+(?:Error|Exception|Warning|Exit)\b|\^|~|\.\.\.")
"""What may well begin a line: no proof that the one above, short by a blank, was cut."""


def _shape(text: str) -> str:
    return re.sub(r"\d", "9", text[:5])


# The newest entry on top


def time_of(text: str) -> tuple[int, tuple[str, str]] | None:
    """(kind, value) of the time a line begins with; values of one kind compare as the times do."""
    start = text[:160]
    for kind, pattern in enumerate(STAMPS):
        found = pattern.search(start, 0, 160 if kind == 4 else 80)
        if found and not SENTENCE.search(start, 0, found.start()):
            day = found[1]
            if kind == 3:
                day = f"{MONTHS.index(day[:3]):02d}{day[3:]}"
            elif kind == 1:
                day = day[6:] + day[:5]
            return kind, (day, found[2].replace(",", "."))
    return None


def _newest_first(sample: Sequence[Row]) -> tuple[str, Mend, bool] | None:
    """Most times run backwards, or tracebacks stand on their heads."""
    times = [time_of(text) for _, text in sample]
    last: dict[int, tuple[str, str]] = {}
    ups = downs = 0
    for found in times:
        if found is not None:
            before = last.get(found[0], found[1])
            if found[0] == COUNTDOWN and before > found[1]:
                continue
            ups, downs = ups + (before < found[1]), downs + (before > found[1])
            last[found[0]] = found[1]
    upright, upturned, single = _tracebacks([text for _, text in sample])
    turned = upturned > 3 * upright  # ranks that write at once put a head under another's frame now and then
    if not (downs >= 3 and downs >= 9 * ups) and not (turned and downs >= ups):
        return None
    said = "newest first: read from the bottom up"
    if turned:
        return said, _upside_down, True
    return said, lambda rows: _entries_upside_down(rows, single > 0), True


def _tracebacks(texts: Sequence[str]) -> tuple[int, int, int]:
    """How many tracebacks stand upright, how many have their frames above their head, and of how many upright ones every line
    is an entry with a time of its own."""
    upright = upturned = single = 0
    plain = [text.replace('\\"', '"') if text.startswith("{") else text for text in texts if text.strip()]
    for place, text in enumerate(plain):
        if HEADER not in text:
            continue
        below = plain[place + 1] if place + 1 < len(plain) else ""
        if FRAME.search(below) or FRAME.search(text):
            upright += 1
            single += not FRAME.search(text) and time_of(below) is not None
        elif place and FRAME.search(plain[place - 1]):  # between a head and the frames of another stands an exception
            upturned += 1
    return upright, upturned, single


def _upside_down(rows: Iterator[Row]) -> Iterator[Row]:
    numbers, texts = array("L"), []
    for number, text in rows:
        numbers.append(number)
        texts.append(text)
    while texts:
        yield numbers.pop(), texts.pop()


def _entries_upside_down(rows: Iterator[Row], one_time: bool) -> Iterator[Row]:
    """Entries of several lines keep their own order; so do, with `one_time`, entries that share a time."""
    numbers, texts, starts = array("L"), list[str](), array("L", [0])
    kind = value = None
    for number, text in rows:
        found = time_of(text) if not text[:1].isspace() else None
        if found is not None and kind in (None, found[0]):
            if not (one_time and found[1] == value):
                starts.append(len(texts))
            kind, value = found
        numbers.append(number)
        texts.append(text)
    for place in range(starts[1] if len(starts) > 1 else len(texts)):
        yield numbers[place], texts[place]
    end = len(texts)
    for start in reversed(starts[1:]):
        for place in range(start, end):
            yield numbers[place], texts[place]
        end = start
        del texts[end:]


LOOKS: tuple[Look, ...] = (
    _document, _html, _typeset, _spelt_colours, _quoted, _numbered, _ticked, _quoted, _wrapped, _newest_first,
)  # fmt: skip
"""In this order, each on what the ones before it left."""
