"""Records in, raised exceptions out: chains, groups, Dynamo's user code, faulthandler dumps, cut-off heads and tails; and the deaths
of programs that are not Python (app.core.deaths), which are exceptions like any other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import deaths
from .lines import GOES_ON, Line
from .records import HANDLED, HEADER, REQUEST, Record, indent, margin

FRAME = re.compile(r'^[\s|+-]*File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:,? in (?P<function>.+))?')
RAISED = re.compile(
    r"^(?P<type>(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)[A-Za-z_]\w*(?:\.(?:[A-Za-z_]\w*|<locals>))*)(?::\s?(?P<message>.*))?$",
    re.DOTALL,
)
BARE = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Unsupported|Interrupt|Resources|Failure|Exit)|Exception)"
    r"|torch\._dynamo\.exc\.\w+|tvm\.error\.\w+|(?:[a-z_]\w*\.)+(?:errors|exceptions)\.[A-Z]\w+"
    r"|huggingface_hub\.(?:\w+\.)+[A-Z]\w+)(?::\s(?P<message>.*)|:?$)",
    re.DOTALL,
)
FIRST_IN_RECORD = re.compile(
    r"(?:hit an exception|Exception in worker|Error executing method[^:]*|failed[\w ]*): (?P<rest>.+)$"
)
FATAL = re.compile(
    r"^(?P<type>Fatal Python error): (?P<message>.*)$|^(?P<signal>Segmentation fault|Bus error|Aborted)(?:$|:? \(|: \d+$| {2,}|!)"
)
PROCESS = re.compile(r"^Process [\w.-]+(?::\d+)?:$")
"""What multiprocessing prints before a child's traceback."""
NOTES = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)")
PACKAGE = re.compile(r"(?:site-packages|dist-packages)/(?P<package>[\w.-]+)")
CHECKOUT = re.compile(
    r"/(?P<package>sglang|vllm|torch|flashinfer|sgl_kernel|triton|deep_gemm|transformers)/(?:[\w/]+\.py)$"
)
NATIVE = re.compile(
    r"(?:/registry/src/[^/]+|/checkouts/[^/]+/[^/]+)/(?P<crate>[A-Za-z][\w-]*?)(?:-\d+\.\d+[^/]*)?/(?:[\w./-]+/)?[\w-]+\.rs$"
    r"|(?:^|/)(?P<member>[A-Za-z][\w-]*)/src/(?:(?!src/)[\w-]+/)*[\w-]+\.rs$"
    r"|(?:^|[/\\])(?P<ggml>ggml|llama)[\w.+-]*\.(?:c|cc|cpp|cu|cuh|h|hpp|m|mm|hip)$"
)
"""Which library a native source file belongs to."""
STDLIB = re.compile(r"/lib/python3\.\d+/|<frozen ")
SERVING = re.compile(
    r"fastapi/routing\.py in (?:app|run_endpoint_function)$"
    r"|entrypoints/(?:openai|anthropic|pooling|serve|generate)/(?:\w+/){0,3}\w*serving\w*\.py in "
    r"_?(?:create_|handle_|preprocess|render|chat_completion_|completion_|generate|process_|convert_|tokenize)\w*$"
)
"""Frames of what answers one request: the web framework's, and the engines' own handlers."""
ACTOR = re.compile(r"^\[address=[^\]\n]{1,200}, pid=\d+\] ?")
"""What Xinference's actors put before the message of an exception that they hand on."""
MESSAGE_LINES = 400


class Frame(NamedTuple):
    """One frame of a traceback: `number` is the log line it stands on; `user` tells Dynamo's "from user code" frames."""

    path: str
    function: str
    number: int
    user: bool = False

    @property
    def package(self) -> str:
        """Which installed package the file belongs to, "python" for the standard library, "" for code of one's own."""
        found = PACKAGE.search(self.path) or CHECKOUT.search(self.path)
        if found:
            return found["package"].removesuffix(".py")
        if not self.path.endswith(".py") and (native := NATIVE.search(self.path)):
            return native["crate"] or native["member"] or native["ggml"]
        return "python" if STDLIB.search(self.path) else ""

    def __str__(self) -> str:
        return f"{self.path} in {self.function}"


class Raised(NamedTuple):
    """One exception as the log shows it.

    `type` is the full name as printed, "" where the log was cut off before it; `number` the log line of the exception itself
    (or of the last frame); `handled` tells that Python or the engine itself said it goes on ("Exception ignored in …");
    `complete` that header and exception line were both there. `passing`: a server may go on after it; `last_only`: an error that
    ended nothing looks the same, unless it is the last that is said; `request`: it was raised while a request was answered;
    `death`: a program without Python said with it that it ends.
    """

    type: str
    message: str
    frames: tuple[Frame, ...]
    number: int
    handled: bool = False
    complete: bool = True
    passing: bool = False
    last_only: bool = False
    request: bool = False
    death: bool = False

    @property
    def raised_in(self) -> str:
        """The package that raised it: of Dynamo's user code or the last frame the first that is not Python's own."""
        for frame in reversed(self.frames):
            if not frame.user and frame.package not in ("", "python"):
                return frame.package
        root = self.type.partition(".")[0]
        return root if "." in self.type else ""


def exceptions(record: Record) -> list[Raised]:
    """Every exception of a record, in the order printed: of a chain the cause comes first."""
    forms = deaths.said(record.text)
    if not record.traceback and not record.headless and not _looks_raised(record, forms):
        return []
    raised = list(_parse(record.lines, forms))
    answering = any(REQUEST.search(line.text) for line in record.lines[:4])
    if answering or any(SERVING.search(str(frame)) for item in raised for frame in item.frames):
        raised = [item._replace(request=not item.death and item.type != "Fatal Python error") for item in raised]
    if any(item.type == "Fatal Python error" for item in raised):  # the same crash, with Python's frames
        raised = [item for item in raised if not deaths.is_signal(item.type)]
    return raised


def _looks_raised(record: Record, forms: Sequence[deaths.Form]) -> bool:
    return any(
        BARE.match(_plain(line.text)) or FRAME.match(line.text) or FATAL.match(line.text)
        or FIRST_IN_RECORD.search(line.text) or deaths.begins(record.lines, place, forms) is not None
        for place, line in enumerate(record.lines)
    )  # fmt: skip


def _plain(text: str) -> str:
    """Without the bars and signs an exception group is drawn with, and without indentation."""
    return text.lstrip(" \t|+") if text[:1] in " \t|+" else text


class _Open:
    """The exception being read."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.headed = False
        self.handled = False
        self.user = False
        self.native = False
        self.indent = 0
        self.type = ""
        self.message: list[str] = []
        self.number = 0

    def finish(self) -> Raised | None:
        if not self.type and not self.frames:
            return None
        number = self.number or self.frames[-1].number
        message = ACTOR.sub("", "\n".join(self.message).rstrip())
        complete = self.headed and bool(self.type)
        return Raised(self.type, message, tuple(self.frames), number, self.handled, complete)


def _parse(lines: list[Line], forms: Sequence[deaths.Form]) -> Iterator[Raised]:
    now = _Open()
    handled = -1  # the last line that may be handled by what was said before
    chained = False
    dying: deaths.Dying | None = None
    died = False
    lively: int | None = None  # the last line whose writer goes on; looked for where it matters
    for place, line in enumerate(lines):
        text = line.text
        if dying is not None:
            if dying.takes(line):
                continue
            if dying.passing and lively is None:
                lively = _last_lively(lines)
            yield from _dead(dying, lively is not None and lively >= place)
            dying = None
        alone = not (now.headed or now.type or now.frames)
        if (dying := deaths.begins(lines, place, forms, alone)) is not None:
            yield from _done(now)
            now, handled, died = _Open(), -1, True
            continue
        if HEADER in text:
            if (done := now.finish()) is not None:
                yield done
            now = _Open()
            before = text.partition(HEADER)[0]
            # Words before the header on its own line are about this traceback, whatever was said before it.
            said = handled >= place and not before.strip(" \t|+-")
            now.headed, now.handled = True, said or chained or line.level in GOES_ON
            now.indent = margin(text)
            first = FIRST_IN_RECORD.search(before) if before else None
            if first and BARE.match(first["rest"]):
                now.indent = 0
            handled, chained = -1, False
            continue
        if found := HANDLED.search(text):
            handled = place + (3 if found[0] == "WON'T CONVERT" else 1)
        if frame := FRAME.match(text):
            if now.type and not now.user and not now.native:
                if (done := now.finish()) is not None:
                    yield done
                now = _Open()
            if now.headed and not now.frames:  # the header may have lost an indentation that all other lines have
                now.indent = max(now.indent, indent(text) - 2)
            function = (frame["function"] or "").strip()
            now.frames.append(Frame(frame["path"], function, line.number, now.user))
            continue
        plain = _plain(text)
        if now.type:
            if plain.startswith("from user code"):
                now.user = True
            elif NOTES.match(plain) or PROCESS.match(plain):
                yield from _done(now)
                chained = now.handled and not PROCESS.match(plain)
                now = _Open()
            elif not now.user and (found := BARE.match(plain)) and indent(text) <= now.indent:
                yield from _done(now)
                now = _begin(found["type"], found["message"], line)
            elif line.wrapped:
                now.message[-1] += " " + text.strip()
            elif not now.user and len(now.message) < MESSAGE_LINES and (text[:1].isspace() or plain):
                now.message.append(text.strip())
            continue
        if (now.frames or now.headed) and plain and indent(text) <= now.indent and (found := RAISED.match(plain)):
            now.type, now.number = found["type"], line.number
            now.message = [found["message"] or ""]
            continue
        if found := BARE.match(plain):
            if not now.headed and not now.frames:
                now = _begin(found["type"], found["message"], line)
            elif indent(text) <= now.indent:
                now.type, now.number, now.message = found["type"], line.number, [found["message"] or ""]
        elif (found := FIRST_IN_RECORD.search(text)) and (inner := BARE.match(found["rest"])):
            now = _begin(inner["type"], inner["message"], line)
        elif (found := FATAL.match(text)) and not (died and found["signal"]):
            yield from _done(now)
            now = _begin(found["type"] or found["signal"], found["message"] or "", line)
            now.headed = now.native = True
    yield from _done(now)
    if dying is not None:
        yield from _dead(dying, outlived=False)


def _dead(dying: deaths.Dying, outlived: bool) -> Iterator[Raised]:
    """The deaths that were read; `outlived` where somebody goes on after them."""
    handled = dying.warned or (dying.passing and outlived)
    for death in dying.deaths():
        frames = (Frame(death.path, "", death.number),) if death.path else ()
        yield Raised(
            death.type, death.message, frames, death.number, handled, True, dying.passing, dying.last_only, death=True
        )


def _last_lively(lines: list[Line]) -> int:
    """The place of the last line whose writer goes on, -1 for none."""
    return next((place for place in range(len(lines) - 1, -1, -1) if deaths.goes_on(lines[place])), -1)


def _begin(kind: str, message: str | None, line: Line) -> _Open:
    now = _Open()
    now.type, now.number, now.message = kind, line.number, [message or ""]
    now.handled = line.level in GOES_ON
    return now


def _done(now: _Open) -> Iterator[Raised]:
    if (done := now.finish()) is not None:
        yield done
