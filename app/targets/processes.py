"""From a process that we started to every process that belongs to it, dead parents and changed sessions or not.

A process is named by pid *and* start time everywhere, so a pid that the kernel gave to somebody else is never touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

MARKER = "BRINGUP_RUN"
"""Environment variable that every process started for a run carries: what finds those that nothing else leads to."""

LINUX = sys.platform.startswith("linux")


@dataclass(frozen=True, slots=True, order=True)
class Ident:
    """One process for all time (of this boot): its pid and when it started.

    `started` is in clock ticks since boot on Linux (field 22 of /proc/<pid>/stat: no clock change moves it),
    elsewhere in hundredths of a second since the epoch.
    """

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Process:
    """One process as it was when we looked. `state` is the kernel's letter ("R", "S", "D", "Z", …)."""

    ident: Ident
    parent: int
    group: int
    session: int
    state: str
    threads: int
    name: str

    @property
    def pid(self) -> int:
        return self.ident.pid

    @property
    def alive(self) -> bool:
        """Whether it still holds anything. A zombie does not, unless only its main thread has ended and others run
        on."""
        return self.state not in ("Z", "X") or (self.state == "Z" and self.threads > 1)

    def __str__(self) -> str:
        return f"{self.pid} ({self.name})"


def _parse_stat(pid: int, data: bytes) -> Process | None:
    """The content of /proc/<pid>/stat as a Process. The name may hold spaces and parentheses, so the last `)` ends
    it."""
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    parent, group, session = int(fields[1]), int(fields[2]), int(fields[3])
    return Process(Ident(pid, int(fields[19])), parent, group, session, fields[0].decode(), int(fields[17]), name)


def _read(path: str, limit: int = 4096) -> bytes | None:
    """The first `limit` bytes of a file under /proc, None when it vanished or may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while limit > 0 and (part := os.read(fd, limit)):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def _look_psutil(pid: int) -> Process | None:
    """A Process where there is no /proc (macOS)."""
    states = {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_DEAD: "X", psutil.STATUS_DISK_SLEEP: "D"}
    try:
        found = psutil.Process(pid)
        with found.oneshot():
            ident = Ident(pid, round(found.create_time() * 100))
            state = states.get(found.status(), "S")
            name, parent = found.name(), found.ppid()
        return Process(ident, parent, os.getpgid(pid), os.getsid(pid), state, 1, name)
    except (psutil.Error, OSError):
        return None


def look(pid: int) -> Process | None:
    """The process that has this pid now (zombies too), None when there is none or it is hidden from us."""
    if not LINUX:
        return _look_psutil(pid)
    data = _read(f"/proc/{pid}/stat")
    return _parse_stat(pid, data) if data else None


def living(ident: Ident | None) -> Process | None:
    """The same process, if it is still there, was not replaced by another of that pid and is no zombie."""
    found = look(ident.pid) if ident else None
    return found if found and found.ident == ident and found.alive else None


def snapshot() -> dict[int, Process]:
    """Every process that we can see, by pid. Not atomic: what starts or ends meanwhile may be missing or gone."""
    if LINUX:
        pids: Iterable[int] = (int(name) for name in os.listdir("/proc") if name.isdigit())
    else:
        pids = psutil.pids()
    return {pid: found for pid in pids if (found := look(pid))}


def marked(pid: int, run: str) -> bool:
    """Whether the environment that process `pid` was given names this run.

    False also where the environment may not be read, and where the process wrote its title over it: setproctitle does
    that, and SGLang's schedulers use it. So the marker is one way among others, never the only one.
    """
    if LINUX:
        data = _read(f"/proc/{pid}/environ", 4 << 20)
        return data is not None and f"\0{MARKER}={run}\0".encode() in b"\0" + data + b"\0"
    try:
        return psutil.Process(pid).environ().get(MARKER) == run
    except (psutil.Error, OSError):
        return False


def send(ident: Ident, number: int) -> bool:
    """Sends a signal to exactly this process; False when it is gone or another has its pid.

    The pid file descriptor closes the gap between looking and sending. PermissionError is passed on.
    """
    try:
        fd = os.pidfd_open(ident.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # an old kernel, a sandbox, macOS: look, then send, as near together as can be
        found = look(ident.pid)
        if not found or found.ident != ident:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(ident.pid, number)
            return True
        return False
    try:
        found = look(ident.pid)
        if not found or found.ident != ident:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


class Tree:
    """Everything that belongs to one started process.

    `root` is the process itself (it may be dead by now), `keeper` the small process that started it for us and to
    which the kernel hands its orphans, `run` the marker's value. A process belongs when it descends from the root,
    from the keeper or from another that belongs; when it shares a session with one that does; or when its environment
    carries the marker. What was once seen to belong is remembered, so losing the parent later does not hide it. The
    keeper, this process and its ancestors never belong.
    """

    def __init__(self, root: Ident | None, run: str = "", keeper: Ident | None = None) -> None:
        self.root = root
        self.run = run
        self.keeper = keeper
        self.known: set[Ident] = {root} if root else set()
        first = root or keeper
        self._since = first.started if first else 0
        found = look(root.pid) if root else None
        # A root that leads no session of its own shares its session with strangers.
        self._foreign = {found.session} if found and found.session != found.pid else set()
        self._barred_sessions = {0, os.getsid(0), *self._foreign}

    def _belonging(self, everyone: Mapping[int, Process]) -> dict[int, Process]:
        barred = {os.getpid()}
        above = everyone.get(os.getpid())
        while above and (above := everyone.get(above.parent)) and above.pid not in barred:
            barred.add(above.pid)
        keeper = everyone.get(self.keeper.pid) if self.keeper else None
        if keeper and keeper.ident != self.keeper:
            keeper = None
        if keeper:
            barred.add(keeper.pid)
        foreign = {0, *self._foreign, *(everyone[pid].session for pid in barred if pid in everyone)}
        self._barred_sessions = foreign

        # A child, a session mate or a marked process is younger than the root; older ones need no second look.
        others = [p for p in everyone.values() if p.pid not in barred and p.ident.started >= self._since]
        children: dict[int, list[Process]] = {}
        mates: dict[int, list[Process]] = {}
        for process in others:
            children.setdefault(process.parent, []).append(process)
            mates.setdefault(process.session, []).append(process)

        belonging: dict[int, Process] = {}
        sessions: set[int] = set()
        todo = [p for p in others if p.ident in self.known]
        if keeper:
            todo += children.get(keeper.pid, [])

        def spread() -> None:
            while todo:
                process = todo.pop()
                if process.pid in belonging:
                    continue
                belonging[process.pid] = process
                todo.extend(children.get(process.pid, []))
                if process.session not in foreign and process.session not in sessions:
                    sessions.add(process.session)
                    todo.extend(mates.get(process.session, []))

        # The root's own session outlives the root; its number stays taken while anybody is in it, and a new leader of
        # that pid would be another process.
        if self.root and self.root.pid not in foreign:
            leader = everyone.get(self.root.pid)
            if leader is None or leader.ident == self.root:
                todo += mates.get(self.root.pid, [])
        spread()
        if self.run:
            todo += [p for p in others if p.pid not in belonging and p.alive and marked(p.pid, self.run)]
            spread()
        return belonging

    def refresh(self) -> list[Process]:
        """Looks anew. Returns the living members, oldest first (zombies do not count), and remembers them."""
        belonging = self._belonging(snapshot())
        self.known.update(p.ident for p in belonging.values())
        return sorted((p for p in belonging.values() if p.alive), key=lambda p: (p.ident.started, p.pid))

    def hiding(self) -> bool:
        """Whether something lives that no look may have found: a chain of processes that fork and end faster than
        they can be listed. The keeper is the proof, for it ends with its last descendant; without a keeper there is
        none."""
        return living(self.keeper) is not None

    def pids(self) -> set[int]:
        """Every pid that was ever seen to belong."""
        return {ident.pid for ident in tuple(self.known)}

    def signal(self, members: Iterable[Process], number: int) -> list[Process]:
        """Sends a signal to each of `members`; returns those that we were not allowed to signal.

        Their process groups are signalled first: that is one atomic step for the kernel, and what forks faster than
        we can list does not slip through. A group lies within one session, so in a session of ours it holds nobody
        else.
        """
        members = list(members)
        for group in {p.group for p in members if p.group > 1 and p.session not in self._barred_sessions}:
            with contextlib.suppress(OSError):
                os.killpg(group, number)
        return [process for process in members if not self.signal_one(process, number)]

    def signal_orphans(self, number: int) -> None:
        """Sends a signal to the keeper's own children: the server, and every orphan at once after its parent ended. One
        short read instead of a look at everybody, so this catches what a look comes too late for. Needs Linux."""
        if not self.keeper or not living(self.keeper):
            return
        children = _read(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children", 1 << 20) or b""
        for pid in map(int, children.split()):
            process = look(pid)
            if process and process.parent == self.keeper.pid:
                self.signal_one(process, number)

    def signal_one(self, process: Process, number: int) -> bool:
        """Sends a signal to one member alone; False when we are not allowed to (a process that is gone is no
        problem)."""
        try:
            send(process.ident, number)
        except PermissionError:
            return False
        return True
