"""Command lines and logs in; targets that can be asked, started, stopped and restarted while they run, out.

It knows nothing of HTTP. What may be asked of a target is checked here: a restart names a remedy that its verdict
offers, or knobs whose values are of a closed kind; nothing else becomes a word of a command line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.core.secrets import mask_argv
from app.history import History
from app.hub import Hub
from app.ladder import Launch, Rung
from app.runs import Run
from app.supervisor import TRANSIENT, Outcome, Settings, Supervisor
from app.targets import TargetError
from app.turning import Refusal, last_good, turned

if TYPE_CHECKING:
    from app.knowledge import Base
    from app.store import Store
    from app.watcher import Watcher


@dataclass(frozen=True, slots=True)
class Wish:
    """What a restart is to change: one remedy by its name, knobs, or all of it for the last good launch. None of them:
    nothing, which `again` has to confirm after a failure that does not pass by itself. `only_say`: nothing is done.
    `tag`: only if the target still has it."""

    remedy: str | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False
    only_say: bool = False
    tag: str | None = None
    last_good: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """What a wish comes to. `run` is the run that it leads to, None when nothing was done; `attempt` the attempt that
    it will be in there."""

    title: str
    launch: Launch
    diff: tuple[str, ...]
    run: str | None = None
    attempt: int = 1

    def to_json(self) -> dict[str, Any]:
        """As programs read it, secrets masked."""
        return {
            "title": self.title, "argv": mask_argv(self.launch.argv), "diff": list(self.diff),
            "run": self.run, "attempt": self.attempt, "done": self.run is not None,
        }  # fmt: skip


class Target(Protocol):
    """What the web asks of a target. All of it may be called from any thread and returns at once."""

    name: str
    kind: str
    hub: Hub
    root: Path

    @property
    def can(self) -> Sequence[str]:
        """What may be asked of it now, of start, stop, restart."""

    @property
    def tag(self) -> str:
        """Names the run and attempt that are current; changes with each."""

    def start(self, wish: Wish) -> Planned: ...

    def halt(self, wish: Wish) -> None: ...

    def restart(self, wish: Wish) -> Planned: ...

    def last_good(self) -> Planned:
        """What a restart with the last good launch would come to."""


class Served:
    """One server of ours over any number of runs: each restart from outside is a run of its own, with its own logs.

    It is a runner (app/live.py): `run` blocks on the thread of the caller, `stop` and `leave` end it for good.
    """

    kind = "child"

    def __init__(
        self, name: str, base: Base, hub: Hub, root: Path, origin: Launch, cwd: Path, settings: Settings,
        history: History, stay: bool = False,
    ) -> None:  # fmt: skip
        """`root` is where its runs are kept. `stay`: the end of a run is not the end, it can be started again."""
        self.name, self.hub, self.root, self.settings, self.stay = name, hub, root, settings, stay
        self._base, self._origin, self._cwd, self._history = base, origin, cwd, history
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = self._leaving = False
        self._next: Run | None = None
        self.folder: Run | None = None
        """Of the run that is, or was last."""
        self._supervisor: Supervisor | None = None
        self._running = False
        self._outcome: Outcome | None = None
        if not hub.status:
            hub.status = {"schema": 1, "run": None, "state": "idle", "attempt": 0, "argv": mask_argv(origin.argv),
                          "mode": settings.mode}  # fmt: skip

    def begin(self, folder: Run | None = None) -> None:
        """Has `run` start with this run (its lock held), or with a new one. OSError when its folder cannot be made."""
        with self._lock:
            self._next = folder or self._new(self._origin, None)
        self._wake.set()

    # As a runner

    def run(self) -> Outcome:
        """All runs, one after the other. Without `stay` until the last has ended (TargetError when it was not even
        started), with it until `stop`."""
        while True:
            with self._lock:
                folder, self._next = self._next, None
            if folder is None:
                if self._closing or not self.stay:
                    return self._outcome or Outcome("stopped", "nothing was started", was_ready=True)
                self._wake.wait()
                self._wake.clear()
            else:
                self._outcome = self._once(folder)

    def _once(self, folder: Run) -> Outcome:
        supervisor = Supervisor(self._base, self.hub, folder, self._history, self.settings)
        with self._lock:
            self._supervisor, self._running, self.folder = supervisor, True, folder
        if self._closing:  # asked before there was anybody to ask
            supervisor.leave() if self._leaving else supervisor.stop()
        try:
            return supervisor.run()
        except TargetError as error:
            if not self.stay:
                raise
            self.hub.status = {**self.hub.status, "run": folder.name, "state": "crashed", "trouble": str(error)}
            return Outcome("refused", str(error))
        finally:
            with self._lock:
                self._running = False
            folder.close()

    def stop(self) -> None:
        """Ends the server by the ladder, and this with it. Safe in a signal handler: takes no lock."""
        self._closing = True
        self._end()

    def leave(self) -> None:
        """Ends this at once; the server runs on. Safe in a signal handler."""
        self._closing = self._leaving = True
        self._end()

    def _end(self) -> None:
        self._wake.set()
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.leave() if self._leaving else supervisor.stop()

    def choose(self, name: str) -> None:
        """Takes a remedy on offer (from the terminal). ValueError when it is not on offer."""
        supervisor = self._supervisor
        if supervisor is None:
            raise ValueError(f"{name!r} is not on offer")
        supervisor.choose(name)

    # Asked from outside

    @property
    def can(self) -> Sequence[str]:
        if self._closing or self._next is not None:
            return ()
        return ("stop", "restart") if self._running else ("start", "restart")

    @property
    def tag(self) -> str:
        status = self.hub.status
        return f"{status.get('run') or 'none'}.{status.get('attempt') or 0}"

    def start(self, wish: Wish) -> Planned:
        """Starts it as it was configured. Refusal when it runs, or after a failure that would only come again."""
        with self._lock:
            self._steady(wish)
            if self._running:
                raise Refusal(f"{self.name} runs already; ask for a restart", "conflict")
            self._pointless(self._origin, wish)
            planned = Planned("as configured", self._origin, ())
            return planned if wish.only_say else self._follow(planned, None)

    def halt(self, wish: Wish) -> None:
        """Stops the server by the ladder. Refusal when it does not run."""
        with self._lock:
            self._steady(wish)
            if not self._running or self._supervisor is None:
                raise Refusal(f"{self.name} does not run", "conflict")
            self._supervisor.stop()

    def restart(self, wish: Wish) -> Planned:
        """Stops what runs and starts it changed; the answer says what changes. Refusal when that cannot be done."""
        with self._lock:
            self._steady(wish)
            supervisor = self._supervisor
            launch = supervisor.launch if supervisor is not None else self._origin
            rung = self._rung(wish, launch, supervisor)
            if rung is None:
                self._pointless(launch, wish)
            planned = Planned(rung.title, rung.launch, rung.diff) if rung else Planned("unchanged", launch, ())
            if wish.only_say:
                return planned
            if supervisor is not None and self._running and rung is not None and supervisor.asking:
                try:
                    supervisor.choose(rung.name)
                except ValueError:
                    pass  # knobs, or an older remedy: by a run of its own
                else:
                    attempt = int(self.hub.status.get("attempt") or 0) + 1
                    return Planned(rung.title, rung.launch, rung.diff, supervisor.folder.name, attempt)
            return self._follow(planned, rung)

    def last_good(self) -> Planned:
        """The last launch that became ready and is not the current one. Refusal when there is none."""
        supervisor = self._supervisor
        rung = last_good(self._history, self._origin, supervisor.launch if supervisor is not None else self._origin)
        return Planned(rung.title, rung.launch, rung.diff)

    def _steady(self, wish: Wish) -> None:
        if wish.tag is not None and wish.tag != self.tag:
            text = f"this was meant for {wish.tag[:80]!r}, but {self.name} is at {self.tag!r} by now"
            raise Refusal(text, "stale", tag=self.tag)
        if self._closing:
            raise Refusal("bringup is ending", "conflict")
        if self._next is not None:
            raise Refusal(f"a restart of {self.name} is under way", "conflict", run=self._next.name)
        if self._running and self._supervisor is not None and self._supervisor.asked.stop.is_set():
            raise Refusal(f"{self.name} is being stopped", "conflict")

    def _pointless(self, launch: Launch, wish: Wish) -> None:
        """Refuses the launch that has just failed and would fail again."""
        supervisor, outcome = self._supervisor, self._outcome
        if wish.again or supervisor is None or supervisor.launch != launch:
            return
        rule = (self.hub.status.get("verdict") or {}).get("rule")
        failed = supervisor.state in ("crashed", "stalled") or (rule and not (outcome and outcome.was_ready))
        if failed and rule and rule not in TRANSIENT and rule.rpartition("/")[2] not in TRANSIENT:
            names = [rung.name for rung in supervisor.remedies]
            raise Refusal(
                f"the same launch failed because of {rule} and would again: name a remedy, or confirm with `again`",
                "conflict", rule=rule, remedies=names,
            )  # fmt: skip

    def _rung(self, wish: Wish, launch: Launch, supervisor: Supervisor | None) -> Rung | None:
        if (wish.remedy is not None) + bool(wish.knobs) + wish.last_good > 1:
            raise Refusal("name a remedy, knobs or the last good launch, only one of them")
        if wish.last_good:
            return last_good(self._history, self._origin, launch)
        if wish.remedy is not None:
            rungs = supervisor.choices() if supervisor is not None else ()
            found = next((rung for rung in rungs if rung.name == wish.remedy), None)
            if found is None:
                names = [rung.name for rung in rungs]
                raise Refusal(f"{wish.remedy[:200]!r} is not on offer", remedies=names)
            return found
        return turned(wish.knobs, launch, self.hub.status, self._base) if wish.knobs else None

    def _follow(self, planned: Planned, rung: Rung | None) -> Planned:
        """Has the planned launch follow what runs now. The lock is held."""
        try:
            self._next = self._new(planned.launch, rung)
        except OSError as error:
            raise Refusal(f"the run's folder cannot be made: {error.strerror}", "conflict") from error
        self._wake.set()
        if self._running and self._supervisor is not None:
            self._supervisor.stop()
        return Planned(planned.title, planned.launch, planned.diff, self._next.name)

    def _new(self, launch: Launch, rung: Rung | None) -> Run:
        more = {"target": self.name, "env": [list(pair) for pair in launch.env],
                "via": asdict(rung) if rung else None, "after": self.hub.status.get("run")}  # fmt: skip
        return Run.new(self.root, launch.argv, self._cwd, more)


class Watched:
    """A log that somebody else's server writes: it can be asked, nothing else."""

    kind = "log"
    can: Sequence[str] = ()

    def __init__(self, name: str, watcher: Watcher, root: Path) -> None:
        self.name, self.hub, self.root = name, watcher.hub, root
        self.run, self.stop, self.leave, self.choose = watcher.run, watcher.stop, watcher.leave, watcher.choose

    @property
    def tag(self) -> str:
        return f"log.{self.hub.status.get('began') or 0}"

    def start(self, wish: Wish) -> Planned:
        """Refusal, always."""
        raise self._not_ours()

    restart = start

    def halt(self, wish: Wish) -> None:
        """Refusal, always."""
        raise self._not_ours()

    def last_good(self) -> Planned:
        """Refusal, always."""
        raise self._not_ours()

    def _not_ours(self) -> Refusal:
        return Refusal(f"{self.name} is a log that is only followed: its server is not ours to start or stop", "cannot")


@dataclass
class Service:
    """Everything that the web shows: the targets by name, the rules, and where things are kept. Without a `store` there
    is no history."""

    base: Base
    root: Path
    targets: dict[str, Target]
    store: Store | None = None
    began: float = field(default_factory=time.time)
    opening: threading.Event = field(default_factory=threading.Event)
    """Set once it is known whether there is a store."""

    def opened_store(self, seconds: float = 10.0) -> Store | None:
        """The store, waited for while it is being opened; None without."""
        if self.store is None:
            self.opening.wait(seconds)
        return self.store
