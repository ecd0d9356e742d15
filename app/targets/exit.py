"""From a wait status, control-group counters and kernel log lines to what is truly known about how a process ended.

`judge` is pure, `examine` reads. The rule of the house: SIGKILL alone proves nothing. Engines kill themselves with it
at the end of every crash; only a counter or the kernel's own words make it a kill for lack of memory.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.targets.control_groups import Memory, reread
from app.targets.kernel_log import KernelLine, KernelLog, parse_words, read_kernel_log

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
