"""One start followed to its end: a log, and the process that writes it where it is ours, in; news and an end out.

One loop does everything that counts. What would block it (a health request, stacks, the stop ladder) runs on threads
that only hand back their result and wake the loop.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from app import health
from app.core.diagnosis import Status
from app.health import Endpoint
from app.reading import Reading, Told
from app.tail import Started, Tail, TailError
from app.targets import Child, Exit, Patience, TargetError
from app.targets.exit import signal_name
from app.targets.processes import Ident, Process
from app.targets.stacks import collect

Ending = Literal["stopped", "crashed", "stalled", "left"]

SAVED = 1.0
"""Seconds between two notes of how far the log was read."""
SHOWN = 0.1
"""Seconds between two updates of the status."""
FLOOD, FLOWS, SOON = 16 * 1024, 0.05, 0.0005
"""While a look finds FLOOD bytes or more, and for FLOWS seconds after, the next is at most SOON seconds away: the tail
does without events then and looks every 5 ms by itself, which is half of what a verdict may take."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long what may last, in seconds. `silence` replaces the limits of the engine's phases (None: as they are).
    `stalled` is how long a start may stand still beyond its limit before it is ended, `linger` how long a process whose
    log says that it failed may stay silent before it is; None: it is left alone. `look` is the time between two looks
    at a server that is ready: whether it still answers, and whether all of its processes are there."""

    silence: float | None = None
    stalled: float | None = 600.0
    linger: float | None = 60.0
    look: float = 20.0
    patience: Patience = field(default_factory=Patience)


@dataclass
class Asked:
    """What was asked of the loop from outside: flags, and whom to wake when one is set."""

    def __post_init__(self) -> None:
        self.stop = threading.Event()
        self.leave = threading.Event()
        self.choice: str | None = None
        self.event = threading.Event()
        self._tail: Tail | None = None

    def wakes(self, tail: Tail | None) -> None:
        """The tail whose wait is to be ended."""
        self._tail = tail

    def wake(self) -> None:
        """Ends the wait of the loop, wherever it is."""
        self.event.set()
        if self._tail is not None:
            self._tail.wake()


@dataclass(frozen=True, slots=True)
class End:
    """How a start ended: `state`, what the process's end was (None: not known, or it runs on), the last status, whether
    it was ready before, and `reason` in words."""

    state: Ending
    exit: Exit | None
    status: Status
    was_ready: bool
    reason: str


class Attempt:
    """Follows one start. `say` publishes, `show` updates the status; both are called from the loop's thread alone."""

    def __init__(
        self,
        reading: Reading,
        tail: Tail,
        asked: Asked,
        say: Callable[[Told], None],
        show: Callable[[], None],
        *,
        child: Child | None = None,
        where: Endpoint | None = None,
        limits: Limits = Limits(),
        known: int = 0,
    ) -> None:
        """`child` is None where only a log is followed. `known` is how many bytes an earlier bringup has read."""
        self.reading, self.tail, self.asked, self.child = reading, tail, asked, child
        self.where, self.limits = where, limits
        self._say, self._show, self._known = say, show, known
        self.state: Literal["starting", "ready", "stalled"] = "starting"
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._gone = threading.Event()
        self._health = False
        self._stopping = self._stopped = False
        self._end_state: Ending | None = None
        self._reason = ""
        self._exit: Exit | None = None
        self._stalled_at: float | None = None
        self._idle_at = 0.0
        self._saved_at = self._shown_at = time.monotonic()
        self._trouble = ""
        self._flood_at = float("-inf")
        self._members: dict[Ident, Process] = {}
        self._members_at = 0.0
        self.ready_at: float | None = None

    # The loop

    def follow(self) -> End:
        """Until the process has ended and all of its log is read, or the loop is asked to leave."""
        self.asked.wakes(self.tail)
        self._watch_exit()
        try:
            while True:
                self._read()
                while not self._jobs.empty():
                    self._jobs.get()()
                if self.asked.leave.is_set():
                    return self._left()
                if self.asked.stop.is_set():
                    if self.child is None:
                        return self._end("stopped", "the watch was ended")
                    self.stop("stopped", "asked to stop")
                now = time.monotonic()
                if self.child is not None and (end := self._look()):
                    return end
                if not self._stopping and self._exit is None:
                    self._silence(now)
                    self._hanging(now)
                    self._ask_health()
                    self._missing(now)
                self._keep(now)
                self.tail.wait(self._pause(time.monotonic()))
        finally:
            self._over.set()
            self.asked.wakes(None)

    def _read(self) -> None:
        before = self.reading.bytes
        try:
            for piece in self.tail.read():
                now = time.monotonic()
                if isinstance(piece, Started):
                    if piece.reason not in ("opened", "resumed"):
                        self._say(Told("log", f"the log was {piece.reason}", {"path": piece.path}))
                    continue
                for told in self.reading.feed(piece, now, self.reading.bytes + len(piece) <= self._known):
                    self._say(told)
                for told in self.reading.look(time.monotonic()):
                    self._say(told)
                if self._stalled_at is not None:
                    self._stalled_at = None
                    self._enter("starting", "the log goes on")
            self._trouble = ""
        except TailError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._say(Told("trouble", str(error)))
        now = time.monotonic()
        if self.reading.bytes - before >= FLOOD:
            self._flood_at = now
        for told in self.reading.look(now):
            self._say(told)

    def _pause(self, now: float) -> float | None:
        """Seconds until something is to be done even if nothing comes."""
        if self._gone.is_set() and self._exit is None:
            return 0.005
        if now - self._flood_at < FLOWS:
            return SOON
        when = [self.reading.due(now)]
        if self.child is not None:
            when.append(min(5.0, self.limits.look) if self.child.exit_fd() is not None else 0.2)
        if self.reading.last is not None and not self.reading.ready and not self._stopping:
            when.append(max(0.05, self._idle_at - now))
            if self.reading.failing is not None and self.limits.linger is not None:
                when.append(self.limits.linger)
        known = [pause for pause in when if pause is not None]
        return min(known) if known else None

    def _keep(self, now: float) -> None:
        if self.child is not None and now - self._saved_at >= SAVED and self.child.state is not None:
            self._saved_at = now
            if self.child.state.offset != self.child.state.log_offset + self.reading.bytes:
                try:
                    self.child.save(self.child.state.log_offset + self.reading.bytes)
                except TargetError as error:
                    self._say(Told("trouble", str(error)))
        if now - self._shown_at >= SHOWN:
            self._shown_at = now
            self._show()

    def _enter(self, state: Literal["starting", "ready", "stalled"], text: str, **data: Any) -> None:
        self.state = state
        self._say(Told("state", text, {"state": state, **data}))
        self._show()

    # The end

    def _watch_exit(self) -> None:
        """Wakes the loop when the process ends."""
        fd = self.child.exit_fd() if self.child is not None else None
        if fd is None:
            return
        own = os.dup(fd)

        def watch() -> None:
            poll = select.poll()
            poll.register(own, select.POLLIN)
            while not self._over.is_set():
                if poll.poll(1000):
                    self._gone.set()
                    self.tail.wake()
                    break
            os.close(own)

        threading.Thread(target=watch, name="exit", daemon=True).start()

    def _look(self) -> End | None:
        """The end, once the process is gone, nothing of it is left, and its log is read."""
        assert self.child is not None
        if self._exit is None:
            self._exit = self.child.poll()
            if self._exit is None:
                return None
            words = self._exit.words()
            data = {"status": self._exit.status, "oom": self._exit.oom, "evidence": list(self._exit.evidence)}
            self._say(Told("exit", f"the server {words}" if words.startswith("ended") else words, data, "exit"))
            left = self.child.processes()
            if left and not self._stopping:
                names = ", ".join(str(process) for process in left[:8])
                self.stop(None, f"it left processes behind: {names}")
        if self._stopping and not self._stopped:
            return None
        return self._ended()

    def _ended(self) -> End:
        assert self._exit is not None
        self._read()
        for told in self.reading.close(exit_words(self._exit), time.monotonic()):
            self._say(told)
        status = self.reading.status
        if self._end_state is not None:
            return self._end(self._end_state, self._reason)
        if status.state == "stopped" or (self.reading.ready and self._exit.status == 0 and status.cause is None):
            return self._end("stopped", "it was ended from outside")
        return self._end("crashed", self._exit.words())

    def _end(self, state: Ending, reason: str) -> End:
        self._show()
        return End(state, self._exit, self.reading.status, self.ready_at is not None, reason)

    def _left(self) -> End:
        running = self.child.processes() if self.child is not None else []
        names = ", ".join(str(process) for process in running)
        if self.child is not None and self.child.state is not None:
            self.child.save(self.child.state.log_offset + self.reading.bytes)
        return self._end("left", f"still running: {names}" if names else "nothing runs any more")

    def stop(self, state: Ending | None, reason: str) -> None:
        """Begins to stop the server by the ladder; once. `state` is what the end is then called (None: as it was)."""
        if self._stopping or self.child is None:
            return
        self._stopping = True
        self._end_state, self._reason = state, reason
        self._say(Told("stopping", reason, {}))
        child = self.child

        def climb() -> None:
            for step in child.stop(self.limits.patience, self.asked.leave):
                data = {"step": step.name, "ok": step.ok, "at": round(step.at, 3), "took": round(step.took, 3),
                        "left": [process.pid for process in step.left]}  # fmt: skip
                self._hand(partial(self._say, Told("stop", step.text, data)))
            self._hand(self._climbed)

        threading.Thread(target=climb, name="stop", daemon=True).start()

    def _climbed(self) -> None:
        self._stopped = True
        assert self.child is not None
        if self._exit is None and self.child.alive():  # inside the kernel, or not ours to signal
            self._exit = Exit(None, "it could not be ended")

    def _hand(self, job: Callable[[], None]) -> None:
        """From a thread to the loop."""
        self._jobs.put(job)
        self.tail.wake()

    # Silence, failure, health

    def _silence(self, now: float) -> None:
        reading = self.reading
        if reading.last is None or reading.ready or now < self._idle_at:
            return
        idle, limit = reading.idle(now), reading.silence_limit
        # Ever more rarely, and exactly at the limit: rules may ask how long the silence is.
        rest = (limit - idle) / reading.pace if limit is not None and limit > idle else 60.0
        self._idle_at = now + min(rest + 0.01, max(1.0, (now - reading.last) * 0.25))
        if idle >= 5.0 * reading.pace or (limit is not None and idle > limit):
            for told in reading.judge(now):
                self._say(told)
        if limit is not None and idle > limit and self._stalled_at is None and reading.failing is None:
            self._stalled_at = now
            stragglers = {phase: list(ranks) for phase, ranks in reading.facts.stragglers.items()}
            odd = "; ".join(f"{', '.join(ranks)} did not end {phase!r}" for phase, ranks in stragglers.items())
            title = reading.facts.phase.title if reading.facts.phase else "the first line that tells a phase"
            text = f"no line for {idle:.0f} s in {title!r}, where {limit:.0f} s are normal" + (
                f"; {odd}" if odd else ""
            )
            self._enter("stalled", text, idle=round(idle, 1), limit=limit, stragglers=stragglers)
            self._stacks()
        patience = self.limits.stalled
        if self._stalled_at is not None and patience is not None:
            if now - self._stalled_at >= patience:
                self.stop("stalled", f"it stood still for {patience:g} s beyond its limit")
            else:
                self._idle_at = min(self._idle_at, self._stalled_at + patience)

    def _stacks(self) -> None:
        if self.child is None:
            return
        child = self.child

        def look() -> None:
            stacks = collect(child.processes())
            rows = [{"pid": stack.pid, "name": stack.name, "lines": stack.lines()[:200]} for stack in stacks]
            text = f"what {len(rows)} processes are doing"
            self._hand(lambda: self._say(Told("stacks", text, {"processes": rows})))

        threading.Thread(target=look, name="stacks", daemon=True).start()

    def _hanging(self, now: float) -> None:
        """A process that failed and does not end holds the GPU for nothing."""
        reading, linger = self.reading, self.limits.linger
        if self.child is None or linger is None or reading.failing is None or reading.last is None:
            return
        if now - max(reading.failing, reading.last) >= linger:
            self.stop("crashed", f"its log says that it failed, and it has not ended within {linger:g} s of silence")

    def _ask_health(self) -> None:
        if not self.reading.ready or self._health:
            return
        self._health = True
        if self.where is None:
            self._become_ready("the log says so; no health endpoint is known")
            return
        threading.Thread(target=self._healthy, args=(self.where,), name="health", daemon=True).start()

    def _healthy(self, where: Endpoint) -> None:
        child = self.child
        pids = (lambda: {process.pid for process in child.processes()}) if child is not None else None
        for told in health.watch(where, pids, self._over, self.limits.look):
            if told.first:
                self._hand(partial(self._become_ready, told.words))
            else:
                self._hand(partial(self._say, Told("health", told.words, {"ok": told.good})))

    def _missing(self, now: float) -> None:
        """Tells when a process of a ready server ends: a scheduler that is killed leaves no line in some releases."""
        if self.child is None or self.state != "ready" or now < self._members_at:
            return
        self._members_at = now + self.limits.look
        members = {process.ident: process for process in self.child.processes()}
        for ident, process in self._members.items():
            if ident not in members:
                data = {"pid": process.pid, "name": process.name}
                self._say(Told("process", f"process {process} of the server has ended", data))
        self._members = members
        self._show()

    @property
    def processes(self) -> int:
        """How many processes the server had when it was last looked at; 0 before it is ready."""
        return len(self._members)

    def _become_ready(self, words: str) -> None:
        if self._exit is None and not self._stopping:
            self.ready_at = time.time()
            self._enter("ready", f"ready: {words}")


def exit_words(exit: Exit) -> Sequence[str]:
    """How a process ended, in the words that rules may use."""
    if exit.status is None:
        return ()
    words = [str(exit.status)]
    if exit.signal is not None:
        words.append(signal_name(exit.signal))
    if exit.oom:
        words.append("oom")
    return words


def exit_json(exit: Exit | None) -> Mapping[str, Any] | None:
    """An end as programs read it."""
    return None if exit is None else {"status": exit.status, "words": exit.words(), "oom": exit.oom}
