"""From the kernel's log to what it said about processes: killed for lack of memory, crashed in native code, lost a GPU.

Parsing is pure (`parse_*`), reading is apart (`read_kernel_log`).
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

KERNEL_LOG_SECONDS = 1.0
KERNEL_LOG_RECORDS = 50_000


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One message of the kernel: seconds since boot, and the text."""

    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class KernelWord:
    """What the kernel said about a process: `kind` is "oom", "fault" (a crash in native code) or "gpu" (an NVIDIA
    Xid)."""

    kind: str
    pid: int | None
    line: KernelLine


@dataclass(frozen=True, slots=True)
class KernelLog:
    """The kernel log as far as it could be read. `lines` is None when not at all, and `why` says why. `own_pids` tells
    whether the pids in it are ours to compare: inside a container they are the host's."""

    lines: tuple[KernelLine, ...] | None
    why: str = ""
    own_pids: bool = True


_OOM = re.compile(r"(?i)out of memory.*?\bkill(?:ed)? process (\d+)|^oom-kill:.*\bpid=(\d+)")
_FAULT = re.compile(
    r"(?:^|traps: )[^\[\]]{1,32}\[(\d+)\]:? "
    r"(?:segfault at|general protection fault|trap (?:invalid opcode|divide error))"
)
_XID = re.compile(r"^NVRM: Xid \([^)]*\): \d+(?:, pid='?(\d+))?")


def parse_kmsg(record: str) -> KernelLine | None:
    """One record of /dev/kmsg (`6,339,5140900,-;text` and continuation lines), None when it is not well formed."""
    head, semicolon, text = record.partition(";")
    fields = head.split(",")
    if not semicolon or len(fields) < 3 or not fields[2].isdigit():
        return None
    return KernelLine(int(fields[2]) / 1e6, text.split("\n", 1)[0])


def parse_dmesg(text: str) -> list[KernelLine]:
    """What `dmesg` prints (`[   12.345678] text`)."""
    found = re.findall(r"(?m)^(?:<\d+>)?\[\s*(\d+\.\d+)\](?:\[[^\]]*\])? ?(.*)$", text)
    return [KernelLine(float(seconds), words) for seconds, words in found]


def parse_words(lines: Iterable[KernelLine]) -> list[KernelWord]:
    """The kernel's messages about processes that it ended, and about GPUs."""
    words = []
    for line in lines:
        for kind, pattern in (("oom", _OOM), ("fault", _FAULT), ("gpu", _XID)):
            if match := pattern.search(line.text):
                pid = next((group for group in match.groups() if group), None)
                words.append(KernelWord(kind, int(pid) if pid else None, line))
                break
    return words


def own_pid_namespace() -> bool:
    """Whether our pids are the kernel's own (the first pid namespace has a fixed number)."""
    try:
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return False


def read_kernel_log() -> KernelLog:
    """Reads the kernel log without waiting: /dev/kmsg, else `dmesg`. A second at most."""
    own = own_pid_namespace()
    end = time.monotonic() + KERNEL_LOG_SECONDS
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = f"/dev/kmsg: {error.strerror}"
    else:
        try:
            return KernelLog(tuple(_drain_kmsg(fd, end)), own_pids=own)
        except OSError as error:
            why = f"/dev/kmsg: {error.strerror}"
        finally:
            os.close(fd)
    try:
        done = subprocess.run(
            ["dmesg"], stdin=subprocess.DEVNULL, capture_output=True, timeout=KERNEL_LOG_SECONDS, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return KernelLog(None, f"{why}; dmesg: {getattr(error, 'strerror', None) or type(error).__name__}", own)
    lines = parse_dmesg(done.stdout)
    if done.returncode != 0 or not lines:
        said = done.stderr.strip().splitlines()
        return KernelLog(None, f"{why}; {said[0] if said else 'dmesg printed nothing'}", own)
    return KernelLog(tuple(lines), own_pids=own)


def _drain_kmsg(fd: int, end: float) -> Iterable[KernelLine]:
    for _ in range(KERNEL_LOG_RECORDS):
        try:
            record = os.read(fd, 8192)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.EPIPE:  # overwritten while we read: the next read goes on after the gap
                continue
            raise
        if line := parse_kmsg(record.decode("utf-8", "replace")):
            yield line
        if time.monotonic() > end:
            return
