"""From a process tree to news of its end, step by step: ask, wait, kill, wait, verify that none is left and the port
is free."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Literal

from app.targets import ports as port_use
from app.targets.processes import Process, Tree, living

StepName = Literal["ask", "wait", "kill", "verify", "port", "left"]

KEEPER_ENDS = 2.0
"""Seconds after which a keeper that still lives has something to wait for, though no look found it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rung of a stop, told when it is over.

    `at` is when the rung began and `took` how long it lasted, in seconds; `at` counts from the beginning of the stop.
    `left` are the processes that still live. `ok` says whether the rung reached what it was for; the last step's `ok`
    says whether everything is gone and the ports are free.
    """

    name: StepName
    text: str
    at: float
    took: float
    left: tuple[Process, ...]
    ok: bool


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each rung may last, in seconds; a stop never takes longer than their sum and a moment.

    `ask` is for the server's own way down, `rest` for what is left once the server itself is gone, `kill` for the
    kernel (a process inside a driver call dies late), `port` for the port.
    """

    ask: float = 20.0
    rest: float = 5.0
    kill: float = 10.0
    port: float = 5.0


def _names(processes: Sequence[Process]) -> str:
    shown = ", ".join(str(p) for p in processes[:8])
    return shown + (f" and {len(processes) - 8} more" if len(processes) > 8 else "")


def _count(processes: Sequence[Process]) -> str:
    return "1 process" if len(processes) == 1 else f"{len(processes)} processes"


class _Climb:
    """The state of one stop: its clock, its tree, and whether the person wants out."""

    def __init__(self, tree: Tree, leave: Event | None) -> None:
        self.tree = tree
        self.leave = leave
        self.start = time.monotonic()
        self.begun = self.start
        self.left: list[Process] = []
        self.hidden = False
        self.empty()

    def step(self, name: StepName, text: str, ok: bool) -> Step:
        now = time.monotonic()
        step = Step(name, text, self.begun - self.start, now - self.begun, tuple(self.left), ok)
        self.begun = now
        return step

    @property
    def hurried(self) -> bool:
        return self.leave is not None and self.leave.is_set()

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Waits until `done`, looking often at first and at most ten times a second later; True when it came."""
        end = time.monotonic() + seconds
        pause = 0.01
        while not done():
            rest = end - time.monotonic()
            if rest <= 0 or self.hurried:
                return False
            time.sleep(min(pause, rest))
            pause = min(pause * 1.5, 0.1)
        return True

    def empty(self, grace: float = KEEPER_ENDS) -> bool:
        """Looks anew; True when nothing lives. The keeper, which ends a moment after the last process, is waited
        for."""
        end = time.monotonic() + grace
        while True:
            self.left = self.tree.refresh()
            self.hidden = not self.left and self.tree.hiding()
            if not self.hidden or time.monotonic() >= end or self.hurried:
                return not self.busy
            time.sleep(0.002)

    @property
    def busy(self) -> bool:
        return bool(self.left) or self.hidden

    def remains(self) -> str:
        if self.left:
            return _names(self.left)
        return "what forks and ends faster than it can be listed" if self.hidden else "nothing"

    def kill(self, seconds: float) -> list[Process]:
        """SIGKILL to everybody until two looks in a row find nobody. Returns those that we may not signal."""
        end = time.monotonic() + seconds
        refused: dict[int, Process] = {}
        looks = quiet = 0
        while quiet < 2:
            # A child forked between the look and the signal is found by the next look.
            if self.empty(grace=0):
                quiet += 1
                continue
            quiet = 0
            refused.update((p.pid, p) for p in self.tree.signal(self.left, signal.SIGKILL))
            stuck = bool(self.left) and all(p.pid in refused for p in self.left)
            if time.monotonic() > end or self.hurried or stuck:
                break
            looks += 1
            if self.hidden:
                soon = time.monotonic() + 0.05
                while time.monotonic() < soon and self.tree.hiding():
                    self.tree.signal_orphans(signal.SIGKILL)
            elif looks > 20:
                time.sleep(0.01)
        return [p for p in self.left if p.pid in refused]


def _why_alive(left: Sequence[Process], refused: Sequence[Process]) -> str:
    reasons = []
    if refused:
        reasons.append(f"no permission to signal {_names(refused)}")
    stuck = [p for p in left if p.state == "D"]
    if stuck:
        reasons.append(f"inside the kernel, where no signal reaches (a driver or a file system): {_names(stuck)}")
    return "; ".join(reasons)


def stop(
    tree: Tree, ports: Sequence[int] = (), patience: Patience | None = None, leave: Event | None = None
) -> Iterator[Step]:
    """Stops a tree and tells each step when it is over; the work goes on while the caller asks for the next one.

    It blocks (a thread is the place for it), never raises for a process, and ends: with everything gone at best, with
    a last step whose `ok` is False and whose text names what is left otherwise. `leave`, once set, ends the waiting
    at once; what still runs is named and left alone from then on. Strangers that hold a port are named and never
    touched.
    """
    patience = patience or Patience()
    climb = _Climb(tree, leave)

    if not climb.busy:
        yield climb.step("ask", "nothing is running", True)
    else:
        main = living(tree.root)
        if main:
            # The server first and alone: asked all together, its children go before it and it reports a crash.
            tree.signal_one(main, signal.SIGTERM)
            if main.state == "T":
                tree.signal_one(main, signal.SIGCONT)  # a stopped process would take the signal only when continued
            yield climb.step("ask", f"asked {main} to end (SIGTERM), {_count(climb.left)} in all", True)
            climb.wait(lambda: climb.empty() or living(tree.root) is None, patience.ask)
            main = living(tree.root)
            said = "the server did not end" if main else "the server ended"
            yield climb.step("wait", f"{said}; {_count(climb.left)} left", main is None)
        if climb.busy and main is None and not climb.hurried:
            # Orphans: SGLang's children outlive a parent that is ended while it imports.
            tree.signal(climb.left, signal.SIGTERM)
            yield climb.step("ask", f"asked what is left to end (SIGTERM): {climb.remains()}", True)
            gone = climb.wait(climb.empty, patience.rest)
            yield climb.step("wait", "all ended" if gone else f"still there: {climb.remains()}", gone)

    if climb.busy and not climb.hurried:
        text = f"killed (SIGKILL) {climb.remains()}"
        refused = climb.kill(patience.kill)
        if climb.busy:
            text += f"; still there: {climb.remains()}"
            why = _why_alive(climb.left, refused)
            text += f" ({why})" if why else ""
        yield climb.step("kill", text, not climb.busy)

    if climb.hurried and not climb.empty():
        yield climb.step("left", f"left running: {climb.remains()}", False)
        return

    gone = climb.empty()
    yield climb.step("verify", "no process is left" if gone else f"still running: {climb.remains()}", gone)

    uses = {port: port_use.check(port) for port in ports}
    if uses:

        def free() -> bool:
            uses.update((port, port_use.check(port)) for port, use in uses.items() if not use.free)
            # Whoever is seen to hold a port now is a stranger: no use waiting for that one.
            return all(use.free or any(holder.pid for holder in use.listeners) for use in uses.values())

        climb.wait(free, 0 if not gone else patience.port)
        is_free = all(use.free for use in uses.values())
        yield climb.step("port", "; ".join(str(use) for use in uses.values()), is_free and gone)
