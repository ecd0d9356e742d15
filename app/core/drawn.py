"""A traceback as rich, IPython, a notebook or pytest draws it in, the same traceback as Python prints it out.

    ╭──── Traceback (most recent call last) ────╮      RuntimeError         Traceback (most recent call last)
    │ /opt/app/serve.py:12 in main              │      File /opt/app/serve.py:12, in main(args)
    │ ❱ 12 │   start()                          │      ---> 12     start()
    ╰───────────────────────────────────────────╯      E   RuntimeError: no GPU

Everything behind this reads one form only. Lines of code that Python would not show are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from .lines import Line

HEADER = "Traceback (most recent call last)"
MOST = 3000
"""After so many lines a traceback that has no end is given up."""
MESSAGE = 100
PIECES = 12
RANKS = 64

BOX = re.compile(r"╭─+ .*" + re.escape(HEADER) + r".* ─+╮")
CODE = re.compile(r"(?P<here>❱ *)?\d+(?: [ │]*(?P<code>.*))?$")
BOX_FRAME = re.compile(r"(?P<path>.+?):(?P<line>\d+) in (?P<function>[\w<>. ]+)$")

NOTEBOOK = re.compile(r"(?P<type>[A-Za-z_][\w.]*) {2,}" + re.escape(HEADER) + "$")
CELL = re.compile(r"(?:Cell|Input) In ?\[(?P<cell>\d+)\](?:, line (?P<line>\d+))?(?:,? in (?P<function>.+))?$")
PLACE = re.compile(
    r"(?:File )?(?P<path><[^>\n]+>|(?:~|\.{0,2}/|[A-Za-z]:\\)?[^\s:\"]+)(?::(?P<line>\d+))?,? in (?P<function>.+)$"
)
ARROW = re.compile(r"-+> ?(?P<line>\d+)(?P<code> .*)?$")
SOURCE = re.compile(r"\s*\d+(?:\s|$)|\s*\(\.\.\.\)|\s*\[\.\.\. skipping|\s")
RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: |:?$)")

FILE = re.compile(
    r"(?P<space>\s*)File (?P<path>[^\s\"',:]+\.pyx?|<[^>\n]+>)(?:, line |:)(?P<line>\d+)(?:,? in (?P<function>.+))?$"
)
SHORT = re.compile(r"(?P<path>[^\s:\"'(]+\.pyx?):(?P<line>\d+):? in (?P<function>[A-Za-z_<][\w.<>]*)(?:\(.*\))?$")
E_TYPE = re.compile(
    r"E   +(?P<raised>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Unsupported|Interrupt|Failure|Exit)(?:: .*|:?$))"
)
DYNAMO = frozenset(
    (
        "Unsupported",
        "InternalTorchDynamoError",
        "BackendCompilerFailed",
        "TorchRuntimeError",
        "InvalidBackend",
        "UserError",
    )
)
"""rich and IPython print a type without its module; these are known by the frame that raised them."""


@dataclass
class _Traceback:
    """One being drawn: in a box, in a notebook, by pytest, or the message behind a box."""

    kind: str
    type: str = ""
    width: int = 0
    count: int = 0
    path: list[str] = field(default_factory=list)
    """Pieces of a place that the box was too narrow for, or one whose line number is still to come."""
    function: str = ""
    at: int = 0
    last: str = ""
    """The path of the last frame."""
    before: int = 0
    """How long the last line of the message was."""


def may_concern(text: str) -> bool:
    """Whether a line may begin something drawn, or be a short form of a frame; cheap, for it is asked of every line."""
    if not text.isascii():
        return True
    start = text[:4]
    if start == "    ":
        return False
    return start == "E   " or text[-5:] == "last)" or (".py" in text and '.py"' not in text)


class Drawn:
    """Reads lines (carrier and prefix off) and gives those that are drawn in Python's form; one traceback a rank at a time."""

    def __init__(self) -> None:
        self.open: dict[str, _Traceback] = {}

    def read(self, line: Line) -> Iterator[Line]:
        now = self.open.get(line.rank)
        if now is not None:
            now.count += 1
            if now.count <= MOST:
                read = {"box": self._box, "notebook": self._notebook, "message": self._message, "pytest": self._pytest}
                yield from read[now.kind](now, line)
                return
            del self.open[line.rank]
        yield from self._plain(line)

    def _begin(self, line: Line, now: _Traceback) -> None:
        if len(self.open) < RANKS:
            self.open[line.rank] = now

    def _plain(self, line: Line) -> Iterator[Line]:
        text = line.text
        if HEADER in text:
            if (start := text.find("╭")) >= 0 and BOX.match(text, start):
                self._begin(line, _Traceback("box", width=len(text) - start))
                yield line._replace(text=text[:start] + HEADER + ":")
                return
            if found := NOTEBOOK.match(text):
                self._begin(line, _Traceback("notebook", found["type"]))
                yield line._replace(text=HEADER + ":")
                return
        elif found := E_TYPE.match(text):
            self._begin(line, _Traceback("pytest"))
            text = found["raised"]
        elif (found := FILE.match(text)) or ((found := SHORT.match(text)) and "/" in found["path"]):
            text = _frame(found["path"], found["line"], found["function"])
        yield line if text is line.text else line._replace(text=text)

    def _pytest(self, now: _Traceback, line: Line) -> Iterator[Line]:
        if line.text[:2] == "E " or line.text == "E":
            yield line._replace(text=line.text[1:].strip())
        else:
            del self.open[line.rank]
            yield from self._plain(line)

    # rich

    def _box(self, now: _Traceback, line: Line) -> Iterator[Line]:
        text = line.text
        if "╰" in text and "│" not in text:
            yield from self._place_in_box(now, line)
            now.kind, now.count = "message", 0
            return
        side = text.find("│", 0, 5)
        if side < 0:
            if line.prefixed or HEADER in text:
                del self.open[line.rank]
                yield from self._plain(line)
            else:
                yield line
            return
        inner = text[side + 1 :].rstrip().removesuffix("│").removeprefix(" ")
        if not inner.strip():
            yield from self._place_in_box(now, line)
        elif inner[0] in "╭│╰":
            pass  # the table of locals
        elif not now.path and (code := CODE.match(inner.lstrip(" "))) is not None:
            if code["here"] and code["code"]:
                yield line._replace(text="    " + code["code"].rstrip(" │"))
        elif inner[0] != " " and len(now.path) < PIECES:
            if not now.path:
                now.at = line.number
            now.path.append(inner.rstrip())

    def _place_in_box(self, now: _Traceback, line: Line) -> Iterator[Line]:
        pieces, now.path = now.path, []
        if not pieces:
            return
        room = now.width - 4
        place = pieces[0]
        for before, piece in pairwise(pieces):
            place += piece if len(before) >= room else " " + piece
        if found := BOX_FRAME.match(place):
            now.last = found["path"]
            yield line._replace(
                number=now.at, text=_frame(found["path"], found["line"], found["function"]), prefixed=False
            )

    def _message(self, now: _Traceback, line: Line) -> Iterator[Line]:
        """Behind the box stand the exception and its message, wrapped at the box's width between words."""
        text = line.text
        if not text or line.prefixed or now.count > MESSAGE or HEADER in text:
            del self.open[line.rank]
            yield from self._plain(line) if HEADER in text else (line,)
            return
        word = text.partition(" ")[0]
        joins = now.count > 1 and not text[0].isspace() and now.before <= now.width < now.before + 1 + len(word)
        now.before = len(text)
        if now.count == 1:
            text = _qualified(text, now.last)
        yield line._replace(text=text, wrapped=joins) if joins or text is not line.text else line

    # IPython

    def _notebook(self, now: _Traceback, line: Line) -> Iterator[Line]:
        text = line.text
        if found := ARROW.match(text):
            yield from self._place_in_notebook(now, line, found["line"])
            if found["code"]:
                yield line._replace(text="    " + found["code"].strip())
        elif not text or SOURCE.match(text):
            pass
        elif found := CELL.match(text):
            yield from self._place_in_notebook(now, line, None)
            now.path, now.function, now.at = [f"<cell {found['cell']}>"], found["function"] or "<module>", line.number
            if found["line"]:
                yield from self._place_in_notebook(now, line, found["line"])
        elif (raised := RAISED.match(text)) and raised["type"].rpartition(".")[2] == now.type.rpartition(".")[2]:
            yield from self._place_in_notebook(now, line, None)
            del self.open[line.rank]
            yield line._replace(text=_qualified(text, now.last))
        elif found := PLACE.match(text):
            yield from self._place_in_notebook(now, line, None)
            now.path, now.function, now.at = [found["path"]], found["function"], line.number
            if found["line"]:
                yield from self._place_in_notebook(now, line, found["line"])
        else:
            if line.prefixed or HEADER in text:
                del self.open[line.rank]
                yield from self._plain(line)
                return
            yield line

    def _place_in_notebook(self, now: _Traceback, line: Line, number: str | None) -> Iterator[Line]:
        """The frame whose place was told, once its line number is known."""
        if now.path:
            (now.last,) = now.path
            now.path = []
            yield line._replace(number=now.at, text=_frame(now.last, number or "0", now.function), prefixed=False)


def _frame(path: str, number: str, function: str | None) -> str:
    """As Python prints it: the function by its own name, without its class and arguments."""
    name = (function or "").strip()
    if name.startswith("<cell line"):
        name = "<module>"
    name = name.partition("(")[0].rpartition(".")[2] if name[:1] != "<" else name.partition("(")[0]
    return f'  File "{path}", line {number}' + (f", in {name}" if name else "")


def _qualified(text: str, path: str) -> str:
    """The exception with the module of its type, where the frame that raised it tells."""
    name = text.partition(":")[0]
    return "torch._dynamo.exc." + text if name in DYNAMO and "torch/_dynamo/" in path else text
