"""From a wait status, control-group counters and kernel log lines to what is truly known about how a process ended.

Parsing is pure (`parse_*`, `judge`), reading is apart (`read_*`, `examine`). The rule of the house: SIGKILL alone
proves nothing. Engines kill themselves with it at the end of every crash; only a counter or the kernel's own words
make it a kill for lack of memory.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

KERNEL_LOG_SECONDS = 1.0
KERNEL_LOG_RECORDS = 50_000

SIGNALS = {
    signal.SIGHUP: "hung up: its terminal or session went away",
    signal.SIGINT: "interrupted, as by Ctrl-C",
    signal.SIGQUIT: "told to quit; SGLang's processes send it to each other after a crash",
    signal.SIGILL: "an instruction that this CPU does not have",
    signal.SIGTRAP: "a trap in native code",
    signal.SIGABRT: "native code gave up by itself (an assertion, std::terminate, a heap check)",
    signal.SIGBUS: "a memory access that nothing stands behind (a truncated mapped file, a full /dev/shm)",
    signal.SIGFPE: "an arithmetic fault in native code",
    signal.SIGKILL: "killed; that alone does not tell by whom: many engines end themselves so after a crash",
    signal.SIGSEGV: "a memory access fault in native code",
    signal.SIGPIPE: "wrote where nobody reads any more",
    signal.SIGTERM: "asked to end",
    signal.SIGXCPU: "over its limit of CPU time (ulimit -t)",
    signal.SIGXFSZ: "over its limit of file size (ulimit -f)",
    signal.SIGSYS: "a system call that a sandbox forbids",
}

CODES = {
    0: "ended by itself, without an error",
    1: "ended with an error (what Python does after an uncaught exception)",
    2: "refused its command line (argparse), or a shell's misuse",
    3: "ended with status 3 (uvicorn: the application did not start)",
    126: "the command was found but could not be executed",
    127: "the command was not found",
}


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended.

    `status` is as in subprocess: an exit code (≥ 0), a signal (−n), or None where it is not known, and then `why`
    says why. `at` is the wall time of the end in seconds since the epoch, None where not known. `oom` is True when
    the system proves that lack of memory killed something of this run, False when it proves that nothing was, None
    when nothing proves either. `evidence` are sentences about what was read, for people.
    """

    status: int | None
    why: str = ""
    at: float | None = None
    oom: bool | None = None
    evidence: tuple[str, ...] = ()

    @property
    def code(self) -> int | None:
        """The exit code, None after a signal."""
        return self.status if self.status is not None and self.status >= 0 else None

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended it, None when none did."""
        return -self.status if self.status is not None and self.status < 0 else None

    def words(self) -> str:
        """One sentence: what happened, and no more than is known."""
        return describe(self.status, self.why, self.oom)


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9; "signal 77" for a number that has no name here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = getattr(signal, "SIGRTMIN", 0)
        if first and first < number <= signal.SIGRTMAX:
            return f"SIGRTMIN+{number - first}"
        return f"signal {number}"


def describe(status: int | None, why: str = "", oom: bool | None = None) -> str:
    """An exit status in words (see `Exit` for the arguments)."""
    if status is None:
        return "ended, exit status unknown" + (f": {why}" if why else "")
    if status < 0:
        return _signal_words(-status, oom)
    text = CODES.get(status, f"ended with status {status}")
    if 128 < status <= 192:
        text = f"ended with status {status}, a shell's way to say that its command met {signal_name(status - 128)}"
        if status - 128 == signal.SIGKILL:
            text += _memory_words(oom) or " (which alone does not mean lack of memory)"
    elif status in CODES:
        text += f" (status {status})"
    return text


def _signal_words(number: int, oom: bool | None) -> str:
    name = signal_name(number)
    number_words = "" if name.startswith("signal ") else f" (signal {number})"
    if number == signal.SIGKILL and oom is not None:
        return f"{name}{number_words}: killed{_memory_words(oom)}"
    meaning = SIGNALS.get(signal.Signals(number)) if name in signal.Signals.__members__ else None
    return f"{name}{number_words}" + (f": {meaning}" if meaning else "")


def _memory_words(oom: bool | None) -> str:
    if oom is None:
        return ""
    return ", and the kernel says for lack of memory" if oom else ", and not by the kernel for lack of memory"


# --- control groups ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """A control group's memory counters at one moment. `file` is where they were read, `kills` how many processes of
    the group the kernel has killed for lack of memory so far, `limited` how often the group ran into its own limit
    (None: not told)."""

    file: str
    kills: int
    limited: int | None = None


def parse_counters(text: str) -> dict[str, int]:
    """The lines `name number` of memory.events or memory.oom_control; others are passed over."""
    counters = {}
    for line in text.splitlines():
        name, _, number = line.strip().partition(" ")
        if number.strip().isdigit():
            counters[name] = int(number)
    return counters


def parse_groups(text: str) -> tuple[str | None, str | None]:
    """From /proc/<pid>/cgroup to (path in the v2 hierarchy, path in the v1 memory hierarchy), None where there is
    none."""
    v2 = v1 = None
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            v2 = path
        elif "memory" in controllers.split(","):
            v1 = path
    return v2, v1


def parse_mounts(text: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """From /proc/self/mountinfo to the (root, mount point) pairs of the v2 hierarchies and of the v1 memory
    hierarchies."""
    v2, v1 = [], []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        pair = (fields[3].replace("\\040", " "), fields[4].replace("\\040", " "))
        if kind[0] == "cgroup2":
            v2.append(pair)
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            v1.append(pair)
    return v2, v1


def counter_files(groups: str, mounts: str) -> list[str]:
    """Where a process's memory counters may be, most telling first, from its /proc/<pid>/cgroup and
    /proc/self/mountinfo."""
    (v2, v1), (v2_mounts, v1_mounts) = parse_groups(groups), parse_mounts(mounts)
    files = []
    for path, pairs, name in ((v2, v2_mounts, "memory.events"), (v1, v1_mounts, "memory.oom_control")):
        for root, point in pairs if path is not None else ():
            try:
                below = PurePosixPath(path or "/").relative_to(root)
            except ValueError:
                below = PurePosixPath()  # the mount shows only the container's own group, under another name
            files.append(str(PurePosixPath(point) / below / name))
    return files


def read_memory(pid: int | None = None) -> Memory | None:
    """The memory counters of a process's control group (our own when `pid` is None); None where there are none to
    read."""
    try:
        groups = Path(f"/proc/{pid or 'self'}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return None
    for file in counter_files(groups, mounts):
        if found := reread(file):
            return found
    return None


def reread(file: str) -> Memory | None:
    """The counters in one file, None when it cannot be read or does not count kills (kernels before 4.13)."""
    try:
        counters = parse_counters(Path(file).read_text())
    except OSError:
        return None
    if "oom_kill" not in counters:
        return None
    return Memory(file, counters["oom_kill"], counters.get("oom"))


# --- the kernel log -----------------------------------------------------------------------------------------------


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


# --- the judgement ------------------------------------------------------------------------------------------------


def judge(
    ended: Exit,
    before: Memory | None,
    after: Memory | None,
    log: KernelLog | None,
    pids: Iterable[int] = (),
    since: float = 0.0,
) -> Exit:
    """Adds to an exit what the system says about it.

    `before` and `after` are the counters of the same control group, `log` the kernel log (None: not asked), `pids`
    every process of the run that was ever seen and `since` the seconds since boot when it started. Returns a new
    Exit.
    """
    evidence: list[str] = []
    oom: bool | None = None
    if before and after and before.file == after.file and after.kills >= before.kills:
        kills = after.kills - before.kills
        oom = kills > 0
        times = "once" if kills == 1 else f"{kills} times"
        said = (
            f"went from {before.kills} to {after.kills}: killed for lack of memory {times}" if kills else "did not move"
        )
        evidence.append(f"the count of kills for lack of memory in its control group {said} ({after.file})")
    if log is not None and log.lines is None:
        evidence.append(f"the kernel log cannot be read ({log.why})")
    elif log is not None and log.lines is not None:
        oom = _judge_kernel(log, log.lines, set(pids), since, oom, evidence)
    return replace(ended, oom=oom, evidence=(*ended.evidence, *evidence))


def _judge_kernel(
    log: KernelLog, lines: Sequence[KernelLine], pids: set[int], since: float, oom: bool | None, evidence: list[str]
) -> bool | None:
    # The kernel's clock for its log drifts from the one we read: some seconds a day.
    begin = since - 5 - since * 0.0005
    words = [word for word in parse_words(lines) if word.line.seconds >= begin]
    if not log.own_pids:
        for word in words[-3:]:
            evidence.append(f"the host's kernel said, of a process that cannot be matched from here: {word.line.text}")
        return oom
    ours = [word for word in words if word.pid in pids or (word.kind == "gpu" and word.pid is None)]
    evidence.extend(f"the kernel said: {word.line.text}" for word in ours[-5:])
    if any(word.kind == "oom" for word in ours):
        return True
    # Silence proves something only when the log reaches back to the start.
    if oom is None and lines and lines[0].seconds <= begin and not any(word.kind == "oom" for word in words):
        evidence.append("the kernel log holds no kill for lack of memory since the start")
        return False
    return oom


def examine(ended: Exit, before: Memory | None, pids: Iterable[int] = (), since: float = 0.0) -> Exit:
    """Reads the counters again and, after a violent or unknown end, the kernel log; returns the exit with what they
    say.

    A second at most; an end without an error is returned as it is.
    """
    if ended.status == 0:
        return ended
    log = None
    if ended.status is None or ended.status < 0 or ended.status > 128:
        log = read_kernel_log()
    return judge(ended, before, reread(before.file) if before else None, log, pids, since)


def as_json(memory: Memory | None) -> dict[str, Any] | None:
    """Counters as a value for JSON; `from_json` reads it back."""
    return {"file": memory.file, "kills": memory.kills, "limited": memory.limited} if memory else None


def from_json(value: Mapping[str, Any] | None) -> Memory | None:
    return Memory(str(value["file"]), int(value["kills"]), value.get("limited")) if value else None
