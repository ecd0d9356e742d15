"""A line as something else delivered it in, what was written out: what carries a log is taken off here and nowhere else.

Carriers: docker's JSON file, docker compose and Docker Desktop, Kubernetes CRI, `kubectl --prefix` and stern, journald, structured JSON
loggers, torchrun, srun, launchers, quoted mail. Those without a known form are learned: what stands before a traceback's frame
and ends in a blank or a sign is taken off the lines that follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

CRI = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) (?P<flag>[FP])(?: |$)")
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)(?: |$)")
JOURNAL = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?:[\w.-]+ (?P<unit>[^\s\[:]+)(?:\[\d+\])?: ?)?")
"""journald's, or the time alone as `ts` writes it."""
LEVEL = re.compile(
    r"(?:ERROR|CRITICAL|WARNING|INFO): +(?=(?:  )?File \"|Traceback \(|(?:\w+\.)*[A-Z]\w+(?:Error|Exception)\b)"
)
LAUNCHER = re.compile(r"\[\d\d:\d\d:\d\d\] (?:stdout|stderr)/[A-Z]+ +")
PIPED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \| +[A-Z]+ +\| +[\w.:-]+ +\| ?")
COMPOSE = re.compile(r"(?P<unit>[A-Za-z0-9][\w.-]{0,80}?) +\| ")
POD = re.compile(r"\[pod/(?P<unit>[^\]]+)\] ?")
RANK = re.compile(r"\[(?P<rank>rank\d{1,5})\]: ?")
DEFAULT_RANK = re.compile(r"\[(?P<rank>[a-z_]+\d{1,5})\]:")

JSON_TEXT = ("log", "message", "msg", "event", "exc", "exc_info", "exception", "error", "stack", "stack_trace", "stacktrace",
             "traceback", "MESSAGE")  # fmt: skip
JSON_ELSE = ("textPayload", "@message", "LogMessage", "log_message", "line", "body", "_raw", "text")
"""Where exports keep it: of use only where none of JSON_TEXT is there."""
JSON_INSIDE = ("jsonPayload", "content", "_source", "fields", "attributes", "result")
ISO_JOURNAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?[+-]\d{4} \S+ [^\s\[:]+(?:\[\d+\])?: ?")
BARE_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? (?=[^-|\s]|  )")
QUOTED = re.compile(r"(?:> ?)+(?=\S|  )")
BEFORE_FRAME = re.compile(r"(?P<carrier>[^\"\n]{1,80}?[\s|>:\]])  File \"[^\"\n]{1,400}\", line \d+, in ")
PADDED = re.compile(r" +\d+(?::|\s?[|│])\s")
"""The number of a task or a line, set flush right: of all that begins with a blank this alone is a carrier."""
DIGITS = re.compile(r"\d+")
SPLIT = 16_000
"""docker cuts longer lines into several JSON objects of which only the last ends in a newline."""
HELD = 256 * 1024
LEARNED = 4
"""How many carriers of unknown form are remembered."""


class Carriers:
    """Takes carriers off, line by line. Remembers a line that comes in pieces, and the forms it has learned."""

    def __init__(self) -> None:
        self._partial = ""
        self._learned: dict[str, re.Pattern[str]] = {}

    def strip(self, text: str) -> Iterator[tuple[str, str]]:
        """(rank that the carrier names or "", what was written) for each line that `text` carries."""
        rank = ""
        for _ in range(5):
            first = text[:1]
            if first == "{":
                found_parts = _from_json(text)
                if found_parts is None:
                    break
                parts, ends = found_parts
                if not ends:
                    self._hold(parts[0])
                    return
                if len(parts) != 1:
                    yield from ((rank, part) for part in parts)
                    return
                text = self._whole(parts[0])
            elif first.isdigit() and (found := CRI.match(text)):
                text = text[found.end() :]
                if found["flag"] == "P":
                    self._hold(text)
                    return
                text = self._whole(text)
            elif first == "[" and ((found := RANK.match(text)) or (found := DEFAULT_RANK.match(text))):
                rank, text = found["rank"], text[found.end() :]
            elif (found := self._carrier(text, first)) is not None and found.end():
                text = text[found.end() :]
            else:
                break
        if "\\n" in text and ("\\n  File" in text or "\\nTraceback" in text or text.count("\\n") > 3):
            for part in (
                text.replace("\\r", "").replace("\\n", "\n").replace('\\"', '"').replace("\\t", "\t").split("\n")
            ):
                yield rank, part
        else:
            yield rank, text

    def _hold(self, text: str) -> None:
        self._partial += text[: HELD - len(self._partial)]

    def _whole(self, text: str) -> str:
        text, self._partial = self._partial + text, ""
        return text

    def _carrier(self, text: str, first: str) -> re.Match[str] | None:
        """What a known or learned carrier wrote before the line."""
        if first.isdigit():
            found = STAMP.match(text) or PIPED.match(text) or ISO_JOURNAL.match(text) or BARE_STAMP.match(text)
        elif first.isupper():
            found = JOURNAL.match(text) or LEVEL.match(text)
        elif first == "[":
            found = POD.match(text) or LAUNCHER.match(text)
        elif first == ">":
            found = QUOTED.match(text)
        else:
            found = None
        if found is None and "| " in text[:90] and "%|" not in text[:90]:
            found = COMPOSE.match(text)
        if found is None:
            found = next((found for shape in self._learned.values() if (found := shape.match(text))), None)
        return found

    def learn(self, text: str) -> None:
        """Remember what stands before a frame, with any number where it has one. `text` has no engine prefix."""
        if '  File "' not in text[:120] or (found := BEFORE_FRAME.match(text)) is None:
            return
        carrier = found["carrier"]
        if carrier[:1].isspace() and PADDED.match(carrier) is None:
            return
        shape = r"\d+".join(map(re.escape, DIGITS.split(carrier.lstrip(" "))))
        if carrier[:1] == " ":
            shape = " *" + shape
        if shape not in self._learned and len(self._learned) < LEARNED:
            self._learned[shape] = re.compile(shape)


def _from_json(text: str) -> tuple[list[str], bool] | None:
    """The human-readable lines inside a JSON log line and whether its line ends there, or None where it is not one."""
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    log = record.get("log")
    if isinstance(log, str) and len(log) >= SPLIT and not log.endswith("\n"):
        return [log], False
    lines = lines_of(record)
    return (lines, True) if lines else None


def lines_of(record: Mapping[str, Any], depth: int = 2) -> list[str]:
    """The human-readable lines of a structured record; [] where it has none."""
    lines = _texts(record, JSON_TEXT) or _texts(record, JSON_ELSE)
    for key in JSON_INSIDE if depth and not lines else ():
        inner = record.get(key)
        if isinstance(inner, dict) and (lines := lines_of(inner, depth - 1)):
            break
    return lines


def _texts(record: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    for key in keys:
        value = record.get(key)
        if isinstance(value, str) and value:
            lines += value.rstrip("\n").split("\n")
        elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            lines += [part for item in value for part in item.rstrip("\n").split("\n")]
    return [line.rstrip() for line in lines]
