"""From processes to what each of them is doing right now: the stacks of a start-up that stands still."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from app.targets.processes import Process, living, send

EACH = 10.0
"""Seconds that py-spy may take for one process."""
TEXT = 200_000
"""Bytes read of one file under /proc at most."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python call: the function, its file and the line it is at (0 when not known)."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Thread:
    """One Python thread. `frames` are innermost first; `active` says that it is running code rather than waiting."""

    id: int
    name: str
    active: bool
    gil: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One thread as the kernel sees it: its state letter, the kernel function it waits in and the kernel's own stack
    ("" and empty where the system does not tell; the stack is for root alone)."""

    id: int
    name: str
    state: str
    wchan: str
    kernel: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """What one process is doing. `title` is its command line (engines write their rank there), `source` says where
    the rest comes from: "py-spy" (then `threads`), "proc" (then `waiting`) or "gone" (it ended while we looked).
    `note` says why py-spy gave nothing, "" when it did."""

    pid: int
    name: str
    title: str
    source: str
    threads: tuple[Thread, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    note: str = ""

    def lines(self) -> list[str]:
        """For people: one heading, then each thread with its innermost calls."""
        shown = [f"process {self.pid} ({self.name}) {self.title}".rstrip()]
        if self.source == "gone":
            return [*shown, "  ended while we looked"]
        if self.note:
            shown.append(f"  no Python stacks: {self.note}")
        for thread in self.threads:
            doing = "active" if thread.active else "idle"
            shown.append(f'  thread {thread.id} "{thread.name}" ({doing}{", holds the GIL" if thread.gil else ""})')
            shown += [f"    {frame}" for frame in thread.frames]
        for task in self.waiting:
            shown.append(f'  thread {task.id} "{task.name}" state {task.state} in {task.wchan or "?"}')
            shown += [f"    {call}" for call in task.kernel]
        return shown


def parse_pyspy(text: str) -> tuple[Thread, ...]:
    """What `py-spy dump --json` prints. ValueError when it is something else."""
    threads = []
    try:
        for each in json.loads(text):
            frames = tuple(
                Frame(str(frame["name"]), str(frame.get("filename") or ""), int(frame.get("line") or 0))
                for frame in each.get("frames") or ()
            )
            number = int(each.get("os_thread_id") or each.get("thread_id") or 0)
            name = str(each.get("thread_name") or "")
            threads.append(Thread(number, name, bool(each.get("active")), bool(each.get("owns_gil")), frames))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not the form that py-spy prints: {error!r}") from error
    return tuple(threads)


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(TEXT).decode("utf-8", "replace")
    except OSError:
        return ""


def _title(pid: int) -> str:
    return _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()[:500]


def read_proc(pid: int) -> tuple[Waiting, ...]:
    """Every thread of a process as the kernel tells it, empty when it is gone or there is no /proc."""
    found = []
    try:
        tasks = sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    except (OSError, ValueError):
        return ()
    for task in tasks:
        base = f"/proc/{pid}/task/{task}"
        state = next(
            (line.split()[1] for line in _text(f"{base}/status").splitlines() if line.startswith("State:")), "?"
        )
        wchan = _text(f"{base}/wchan").strip()
        kernel = tuple(line.partition("] ")[2] for line in _text(f"{base}/stack").splitlines() if "] " in line)
        name = _text(f"{base}/comm").strip()
        found.append(Waiting(task, name, state, "" if wchan == "0" else wchan, kernel))
    return tuple(found)


def find_pyspy(pid: int) -> str | None:
    """The py-spy in PATH, or beside our own Python, or beside that of the process; None when there is none."""
    python = _text(f"/proc/{pid}/cmdline").partition("\0")[0]
    places = [None, os.path.dirname(sys.executable), *([os.path.dirname(python)] if os.path.isabs(python) else [])]
    return next((found for place in places if (found := shutil.which("py-spy", path=place))), None)


def _run_pyspy(pyspy: str, pid: int, seconds: float) -> tuple[tuple[Thread, ...], str]:
    """The Python threads of a process and "", or none and the reason."""
    try:
        done = subprocess.run(
            [pyspy, "dump", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            errors="replace",
        )
        if done.returncode == 0:
            return parse_pyspy(done.stdout), ""
        said = done.stderr.strip().splitlines()
        return (), f"py-spy: {said[0][:300]}" if said else f"py-spy ended with status {done.returncode}"
    except subprocess.TimeoutExpired:
        return (), f"py-spy took longer than {seconds:.0f} s"
    except (OSError, ValueError) as error:
        return (), f"py-spy: {error}"


def _stack(process: Process, pyspy: str | None, seconds: Callable[[], float]) -> Stack:
    title = _title(process.pid)
    threads: tuple[Thread, ...] = ()
    note = "py-spy is not installed"
    if pyspy:
        rest = seconds()
        threads, note = _run_pyspy(pyspy, process.pid, rest) if rest > 0.1 else ((), "no time was left for py-spy")
    waiting = () if threads else read_proc(process.pid)
    found = living(process.ident)
    if found and found.state == "T" and process.state != "T":
        # py-spy halts a process while it looks; one that was ended in the middle may leave it halted.
        with contextlib.suppress(PermissionError):
            send(process.ident, signal.SIGCONT)
    if not found:
        return Stack(process.pid, process.name, title, "gone")
    return Stack(process.pid, process.name, title, "py-spy" if threads else "proc", threads, waiting, note)


def collect(processes: Iterable[Process], seconds: float = 30.0, pyspy: str | None = None) -> list[Stack]:
    """The stacks of all these processes, in their order, a few at a time and within about `seconds`.

    `pyspy` is the py-spy to run (None: the one in PATH, or beside our own Python or that of the process, for SGLang
    brings one along; "": none). Where it gives nothing, because it is not there,
    may not look into the process (it needs ptrace: the same user and `kernel.yama.ptrace_scope` 0, or root) or takes
    too long, /proc tells less. py-spy halts a process for the moment of its look. Never raises for a process that
    ends meanwhile.
    """
    end = time.monotonic() + seconds

    def one(process: Process) -> Stack:
        tool = find_pyspy(process.pid) if pyspy is None else pyspy
        return _stack(process, tool or None, lambda: min(EACH, end - time.monotonic()))

    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(one, processes))
