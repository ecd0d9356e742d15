"""Lines in, deaths out: what programs that are not Python say when they die.

Rust, C++, Go, Java, .NET and Swift programs, the loader, the C library, signal handlers and shells each have a form of their own. The
type of a death is what stands before the message as printed ("GGML_ASSERT", "Check failed", "java.io.IOException"), or a name
where the program prints none ("Rust panic", "Go panic"). `app.core.tracebacks` puts them among a record's exceptions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from .lines import GOES_ON, Line

MESSAGE_LINES = 40
CONFIRMED_WITHIN = 16
SIGNALS = r"SIG(?:SEGV|ABRT|BUS|ILL|FPE|TRAP|SYS)"
NAMED = r"(?:Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception)"
NATIVE_FILE = r"(?<![\w.+-])[\w.+-]{1,120}\.(?:c|cc|cpp|cxx|cu|cuh|h|hh|hpp|m|mm|hip)"
CHECK = "Check failed"
RUST = "Rust panic"

_pattern = functools.cache(re.compile)  # when it is needed: most logs need none of them


class Form(NamedTuple):
    """How one kind of death begins and goes on.

    One of `marks` stands in every line that begins it. `begin` is matched at the line's start; its groups `type`, `message`, `path`
    and `thread` are used where it has them. `more` tells a line that goes on with the message, `told` the one that brings it;
    `confirmed` is what must follow soon where others begin a line like this, too. `passing`: a program may go on after it.
    """

    type: str
    marks: tuple[str, ...]
    begin: str
    more: str | None = None
    told: str | None = None
    confirmed: str | None = None
    passing: bool = False


STOP = (
    r"(?!$|note: |stack backtrace:|\*\*\* |Aborted|Segmentation fault|\S+: line \d+: |\[New LWP|\[Thread debugging|frame #\d+: "
    r"|Exception raised from|thread '|terminat|panic: |Fatal Python error|Traceback \(|\[[^\]\s]+:\d+\] \*\*\* "
    r"|\[?\d{4}[-/]\d\d[-/]\d\d|\[?\d\d:\d\d:\d\d|time=|\[?(?:INFO|WARN|WARNING|ERROR|DEBUG|TRACE)\b)"
)
"""What does not go on with a message of several lines: the next thing a dying program says, or another's log line."""
ANY_ERROR = r"Error: (?P<message>.+)$"
LAST_ERROR = Form("Error", ("Error: ",), ANY_ERROR, confirmed=r"(?!)")
"""The last words of a command line tool; errors that end nothing look the same, so nothing may follow."""
GLOG = Form("", (), r"(?!)", more=STOP)
GGML_FILES = (
    "ggml.c:", "ggml.cpp:", "ggml-cuda.cu:", "ggml-backend.", "ggml-vulkan.cpp:", "ggml-sycl.cpp:", "ggml-metal", "ggml-cann.cpp:",
    "ggml-rpc.cpp:", "ggml-opencl.cpp:", "ggml-cpu", "ggml-alloc.c:", "llama-context.cpp:", "llama-graph.cpp:", "llama-model.cpp:",
    "llama-sampling.cpp:", "llama.cpp:",
)  # fmt: skip

FORMS = (
    # Rust: the message stands below the place since 1.73, with the thread's number since 1.91
    Form(RUST, ("panicked at",), r"thread '(?P<thread>[^']*)' (?:\(\d+\) )?panicked at (?P<path>[^\s'][^']*?):\d+:\d+:?$", more=STOP),
    Form(RUST, ("panicked at",), r"thread '(?P<thread>[^']*)' panicked at '(?P<message>.*)', (?P<path>[^\s'][^']*?):\d+:\d+$"),
    Form(RUST, ("panicked at",), r"thread '(?P<thread>[^']*)' panicked at '(?P<message>.*)$", more=STOP),
    Form(RUST, ("application panicked",), r".*?The application panicked \(crashed\)\.$", more=r"(?:Message|Location): |  \S"),
    Form("stack overflow", ("overflowed its stack",), r"thread '[^']*' (?:\(\d+\) )?(?P<message>has overflowed its stack)$",
         more=r"fatal runtime error: "),
    Form("fatal runtime error", ("fatal runtime error",), r"fatal runtime error: (?P<message>.+)$"),
    Form("memory allocation", ("memory allocation of",), r"(?P<message>memory allocation of \d+ bytes failed)$"),
    # C++
    Form("", ("terminate called",), r".*?terminate called after throwing an instance of '(?P<type>[^'].*)'",
         told=r"\s*what\(\): +(?P<message>.*)$", more=STOP),
    Form("terminate called", ("terminate called",), r"terminate called (?P<message>without an active exception|recursively)"),
    Form("uncaught exception", ("c++abi",), r"libc\+\+abi(?:\.dylib)?: terminating(?: (?:with|due to) uncaught (?:foreign )?exception"
         r"(?: of type (?P<type>(?:[^:]|::)+?)(?:: (?P<message>.*))?)?)?$"),
    Form("Assertion failed", (": Assertion ",), r"(?P<message>(?:[^\s:]+: )?(?P<path>[^\s:]+):\d+: .+: Assertion [`'].+' failed\.)$"),
    Form("Assertion failed", ("Assertion failed",),
         r"Assertion failed: (?P<message>.+), (?:function [^,]+, )?file (?P<path>.+), line \d+\.?$"),
    Form("LLVM ERROR", ("LLVM ERROR",), r"LLVM ERROR: (?P<message>.+)$"),
    # the C library
    Form("Aborted", ("double free", "free(): ", "alloc(): ", "munmap_chunk(): ", "malloc_consolidate(): ", "corrupted size",
         "corrupted double", "overflow detected", "smashing detected", "*** Error in"),
         r"(?P<message>double free or corruption \([^)]+\)|(?:free|malloc|realloc|calloc|munmap_chunk|malloc_consolidate|_int_malloc)"
         r"\(\): .+|corrupted (?:size vs\. prev_size|double-linked list).*|\*\*\* (?:stack smashing|buffer overflow) detected \*\*\*: .*"
         r"|\*\*\* Error in `[^']+': .+ \*\*\*)$"),
    # ggml: an assertion, an abort, and the CUDA error that comes before its abort
    Form("GGML_ASSERT", ("GGML_ASSERT",), r"(?:(?P<path>\S.*?\.\w{1,4}):\d+: )?GGML_ASSERT\((?P<message>.*)\) failed(?:$| )"),
    Form("GGML_ASSERT", ("GGML_ASSERT",), r"GGML_ASSERT: (?P<path>\S.*?\.\w{1,4}):\d+: (?P<message>.+)$"),
    Form("", ("CUDA error", "ROCm error", "MUSA error", "CANN error"), r"(?P<type>(?:CUDA|ROCm|MUSA|CANN) error): (?P<message>.+)$",
         confirmed=r"\s+current device: ", more=r"\s+\S|.*?:\d+: (?:CUDA|ROCm|MUSA|CANN) error$"),
    Form("ggml_abort", GGML_FILES, r"(?P<path>(?:\S.*[/\\])?(?:ggml|llama)[\w.+-]*\.(?:c|cc|cpp|cu|cuh|h|hpp|m|mm|hip)):\d+: "
         r"(?!\d+:|warning\b|note\b|(?:fatal )?error: |Assertion |.+: Assertion )(?P<message>.+)$"),
    # glog and absl, where their prefix was not taken off
    Form(CHECK, ("Check failed: ",), r"F\d{4,8} \d\d:\d\d:\d+\.\d+ +\d+ (?P<path>\S+):\d+\] Check failed: (?P<message>.*)$", more=STOP),
    # signal handlers: glog's and absl's, Open MPI's, UCX's, Triton's, llamafile's, Go's
    Form("", ("*** SIG",), r"\*\*\* (?P<type>" + SIGNALS + r") (?P<message>(?:\(@0x|received ).*?)(?:; stack trace: ?)?(?: ?\*\*\*)?$"),
    Form("", ("] Signal: ",), r"\[[^\]\s]+:\d+\] Signal: (?P<type>" + NAMED + r")(?: \(\d+\))?$"),
    Form("", ("Caught signal",), r"\[[^\]\s]+:\d+:\d+:\d+\] Caught signal \d+ \((?P<type>" + NAMED + r")(?:: (?P<message>.*))?\)$"),
    Form("Signal", ("Signal (",), r"Signal (?P<message>\((?:4|6|7|8|11)\) received)\.$"),
    Form("", ("Uncaught SIG",), r"error: Uncaught (?P<type>" + SIGNALS + r")\b(?P<message>.*)$"),
    Form("", ("SIGSEGV: ", "SIGABRT: ", "SIGBUS: ", "SIGILL: ", "SIGFPE: ", "SIGTRAP: ", "SIGSYS: "),
         r"(?P<type>" + SIGNALS + r"): (?P<message>[a-z ]+)$", confirmed=r"PC=0x"),
    # Go, Zig
    Form("Go panic", ("panic: ",), r"panic: (?P<message>.+)$", more=r"\s+panic: |\[signal "),
    Form("Go fatal error", ("fatal error: ",), r"fatal error: (?P<message>.+)$", more=r"\[signal ",
         confirmed=r"\[signal |goroutine \d+ |runtime stack:"),
    Form("Zig panic", (" panic: ",), r"thread \d+ panic: (?P<message>.+)$"),
    # Java, .NET
    Form("", ("Exception in thread",), r'Exception in thread "(?P<thread>[^"]*)" (?P<type>[A-Za-z_$][\w.$]*)(?:: (?P<message>.*))?$'),
    Form("JVM fatal error", ("Java Runtime",), r"# A fatal error has been detected by the Java Runtime Environment:$",
         more=r"#$|#  \S|# (?:JRE version|Java VM|Problematic frame):|# [A-Za-z]  \["),
    Form("JVM out of memory", ("Java Runtime",),
         r"# (?P<message>There is insufficient memory for the Java Runtime Environment to continue\.)$", more=r"# (?!An error report)"),
    Form("JVM not initialized", ("initialization of VM",), r"Error occurred during initialization of VM$", more=STOP),
    Form("Error", ("Error: ",), r"Error: (?P<message>(?:Could not (?:find or load main class|create the Java Virtual Machine)"
         r"|Unable to access jarfile|A (?:JNI error|fatal exception) has occurred|Main method not found).*)$", more=r"Caused by: "),
    Form("", ("Unhandled exception", "Unhandled Exception"),
         r"Unhandled [eE]xception[.:] (?P<type>[A-Z]\w*\.[\w.]*)(?:: (?P<message>.*))?$"),
    # Apple
    Form("", ("Terminating app",), r".*?\*\*\* Terminating app due to uncaught exception '(?P<type>[^']+)', reason: '(?P<message>.*)'$"),
    Form("Fatal error", (": Fatal error: ",), r"(?:\S*/)?(?P<path>[\w+-]+\.swift):\d+: Fatal error: (?P<message>.+)$"),
    # what starts programs: a helper that is missing need not be the end
    Form("error while loading shared libraries", ("error while loading",),
         r"[^\s:]+: error while loading shared libraries: (?P<message>.+)$", passing=True),
    Form("", ("symbol lookup error", "relocation error"), r"[^\s:]+: (?P<type>symbol lookup error|relocation error): (?P<message>.+)$",
         passing=True),
    Form("dyld", ("dyld[", "dyld: "),
         r"dyld(?:\[\d+\])?: (?P<message>(?:Library not loaded|Symbol not found|lazy symbol binding failed|missing symbol).*)$",
         more=r"  (?:Referenced from|Reason|Expected in): ", passing=True),
    Form("exec", (": exec: ",), r"(?:[^\s:]+: )?(?:line )?\d+: exec: (?P<message>.+: (?:not found|cannot execute.*|Permission denied))$"),
    # servers that say so themselves
    Form("error: creating server", ("creating server",), r"error: creating server: (?P<message>.+)$"),
    Form("Assertion failed", ("[TensorRT-LLM][ERROR]",), r"\[TensorRT-LLM\]\[ERROR\] Assertion failed: (?P<message>.+)$", passing=True),
    # Rust: what main() returned, and arguments that clap refuses; what Node.js did not catch
    Form("Error", ("panicked with message",), r"Error: (?P<message>task \d+ panicked with message .*)$"),
    Form("error", ("error: ",), r"error: (?P<message>.+)$", more=r"\s+\S", confirmed=r"For more information,? try '?--help"),
    Form("Error", ("Error: ",), ANY_ERROR, more=r"$|Caused by:|\s+\S", confirmed=r"Caused by:"),
    Form("Error", ("Error: ",), ANY_ERROR, confirmed=r"Node\.js v\d"),
    LAST_ERROR,
)  # fmt: skip
MARKS = tuple(dict.fromkeys(mark for form in FORMS for mark in form.marks))
"""What a scanner looks for, so that no death passes unseen."""
NEUTRAL = r"\s|$|Caused by:|\[signal |goroutine |runtime |Node\.js v|PC=|(?i:usage:)"
"""What may stand between a beginning and what confirms it."""
CAUSED = r"(?:Caused by|Suppressed): (?P<type>[A-Za-z_$][\w.$]*)(?:: (?P<message>.*))?$"
STACK = r"\s+at |\s+\.\.\. \d+ |\s*$"
OLD_PLACE = r"(?P<message>.*)', (?P<path>[^\s'][^']*?):\d+:\d+$"
SOURCE = NATIVE_FILE + r":\d+$"
ALIVE = (
    r"(?:\S{1,60} )?\[?\S{0,60}?\d\d:\d\d:\d\d\S{0,60} {1,9}\[?(?:INFO|DEBUG|TRACE)\b|\s{0,60}\[?(?:INFO|DEBUG)\b"
    r"|.{0,300}\"(?:GET|POST) /\S{0,300} HTTP/\d"
)
"""A line of somebody who goes on: what a thread or a helper died of did not end the server."""


class Death(NamedTuple):
    """One death as the log shows it; `path` is the source file, where it names one."""

    type: str
    message: str
    number: int
    path: str = ""


class Dying:
    """A death being read: `takes` every line that belongs to it, and `deaths` is what it was."""

    def __init__(self, form: Form, line: Line, groups: dict[str, str | None], last_only: bool = False) -> None:
        self._form = form
        self.last_only = last_only
        """Only at the end of a log is it a death: errors that end nothing have the same form."""
        self._types = [groups.get("type") or form.type]
        self._messages = [[groups.get("message") or ""]]
        self._numbers = [line.number]
        self._path = groups.get("path") or ""
        thread = groups.get("thread")
        self.passing = form.passing or (thread is not None and thread != "main")
        """A program may go on after it."""
        self.warned = line.level in GOES_ON
        """It was logged as a warning or less."""
        self._java = thread is not None and not form.type
        self._quoted = form.type == RUST and bool(groups.get("message")) and not self._path
        self._told = form.told is None
        self._lines = 0
        self._done = False

    def takes(self, line: Line) -> bool:
        """Whether a line belongs to this death."""
        self._lines += 1
        if self._done or self._lines > MESSAGE_LINES or line.prefixed:
            return False
        text, message, form = line.text, self._messages[0], self._form
        if self._java:
            return self._caused(line)
        if self._quoted and (found := _pattern(OLD_PLACE).match(text)):
            message.append(found["message"])
            self._path, self._done = found["path"], True
            return True
        if not self._told and form.told is not None:
            if found := _pattern(form.told).match(text):
                message.append(found["message"])
            self._told = True
            return found is not None
        if form.more is None or not _pattern(form.more).match(text):
            return False
        message.append(text.strip("# \t"))
        return True

    def _caused(self, line: Line) -> bool:
        """Java's stack goes on, and what caused an exception stands below it."""
        if found := _pattern(CAUSED).match(line.text):
            self._types.append(found["type"])
            self._messages.append([found["message"] or ""])
            self._numbers.append(line.number)
            return True
        return _pattern(STACK).match(line.text) is not None

    def deaths(self) -> list[Death]:
        """What it was, in the order printed: a Java exception and its causes are several."""
        return [
            Death(kind, "\n".join(filter(None, message)), number, self._path)
            for kind, message, number in zip(self._types, self._messages, self._numbers, strict=True)
        ]


def said(text: str) -> list[Form]:
    """The forms of which something stands in a text: in most texts none."""
    return [form for form in FORMS if any(mark in text for mark in form.marks)]


def begins(lines: Sequence[Line], place: int, forms: Sequence[Form], alone: bool = True) -> Dying | None:
    """The death that begins with the line at `place`, if one does; `forms` are those that were `said` in the lines.

    `alone` tells that no exception is being read there, whose message the line could belong to.
    """
    line = lines[place]
    text = line.text
    if line.level == "F" and line.prefixed and _pattern(SOURCE).search(line.source):
        kind = CHECK if text.startswith(CHECK) else "FATAL"
        message = text.removeprefix(CHECK).removeprefix(": ")
        return Dying(GLOG, line, {"type": kind, "message": message, "path": line.source.rpartition(":")[0]})
    for form in forms:
        found = _pattern(form.begin).match(text)
        if found is None:
            continue
        if form.confirmed is None or _confirmed(form.confirmed, lines, place):
            return Dying(form, line, found.groupdict())
        if form is LAST_ERROR and (alone or not any(after.text for after in lines[place + 1 :])):
            return Dying(form, line, found.groupdict(), last_only=True)
    return None


def _confirmed(pattern: str, lines: Sequence[Line], place: int) -> bool:
    for line in lines[place + 1 : place + 1 + CONFIRMED_WITHIN]:
        if _pattern(pattern).match(line.text):
            return True
        if line.prefixed or not _pattern(NEUTRAL).match(line.text):
            return False
    return False


def is_signal(kind: str) -> bool:
    """Whether a death of this type is only a signal: what else is said of the same crash says more."""
    return _pattern(f"{SIGNALS}$|{NAMED}$|Signal$").match(kind) is not None


def goes_on(line: Line) -> bool:
    """Whether whoever wrote this line is alive and well."""
    return line.level in ("I", "D") or _pattern(ALIVE).match(line.text) is not None
