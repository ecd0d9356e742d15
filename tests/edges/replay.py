"""Engines that play recordings, and runs of the supervisor over them, for the tests: real processes, real files."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app import fake_engine
from app.history import FileHistory
from app.hub import Hub, News, Subscription
from app.knowledge import Base, load
from app.outcome import Outcome, Settings
from app.runs import Run
from app.supervisor import Supervisor
from app.targets.processes import Tree

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
STORY = FIXTURES / "founding-story" / "server.log"
HEALTHY = FIXTURES / "real-v059-story-fallback-no-piecewise" / "server.log"
_base: list[Base] = []


def base() -> Base:
    """The rule base, loaded once."""
    if not _base:
        _base.append(load())
    return _base[0]


def scene(log: Path | str, **more: Any) -> dict[str, Any]:
    """One scene of a plan."""
    return {"log": str(log), **more}


def engine(folder: Path, scenes: Sequence[Mapping[str, Any]], *words: str, port: int | None = None) -> list[str]:
    """The command line of a fake SGLang that plays these scenes; `words` are more of its flags."""
    shim = folder / "sglang" / "launch_server.py"
    shim.parent.mkdir(exist_ok=True, parents=True)
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"scenes": list(scenes)}))
    shim.write_text(
        f"import os, runpy\nos.environ[{fake_engine.PLAN!r}] = {str(plan)!r}\n"
        f"runpy.run_path({fake_engine.__file__!r}, run_name='__main__')\n"
    )
    own = ["--port", str(port)] if port else []
    return [sys.executable, "-S", str(shim), "--model-path", "/models/m", *own, *words]


@dataclass
class Live:
    """A run on a thread of its own, and what it told."""

    supervisor: Supervisor
    hub: Hub
    news: Subscription
    seen: list[News] = field(default_factory=list)
    outcome: list[Outcome | BaseException] = field(default_factory=list)

    def run(self) -> None:
        try:
            self.outcome.append(self.supervisor.run())
        except BaseException as error:
            self.outcome.append(error)
        finally:
            self.hub.close()

    def until(self, found: Callable[[News], bool] | str, seconds: float = 30.0) -> News:
        """The next news of that kind (or that fits); fails when it does not come in time."""
        fits = found if callable(found) else lambda news: news.kind == found
        end = time.monotonic() + seconds
        while True:
            news = self.news.get(max(0.0, end - time.monotonic()))
            assert news is not None, f"waited in vain for {found}; told: {self.told()}"
            self.seen.append(news)
            if fits(news):
                return news

    def rest(self, seconds: float = 30.0) -> Outcome:
        """Everything until the run is over, and its outcome."""
        end = time.monotonic() + seconds
        while (news := self.news.get(max(0.0, end - time.monotonic()))) is not None:
            self.seen.append(news)
        assert self.outcome, f"the run did not end; told: {self.told()}"
        if isinstance(self.outcome[0], BaseException):
            raise self.outcome[0]
        return self.outcome[0]

    def told(self) -> list[tuple[str, str]]:
        return [(news.kind, news.text) for news in self.seen if news.kind != "progress"]

    def of(self, kind: str) -> list[News]:
        return [news for news in self.seen if news.kind == kind]


@contextmanager
def live(folder: Path, argv: Sequence[str], settings: Settings | None = None) -> Iterator[Live]:
    """Runs a command line under a supervisor; afterwards nothing of it is left, and the test fails if something was."""
    found = Run.unfinished(folder / "state", argv, ROOT) or Run.new(folder / "state", argv, ROOT)
    hub = Hub()
    supervisor = Supervisor(base(), hub, found, FileHistory(folder / "state" / "history.jsonl"), settings)
    running = Live(supervisor, hub, hub.subscribe(0))
    thread = threading.Thread(target=running.run, name="supervisor")
    thread.start()
    try:
        yield running
    finally:
        supervisor.stop()
        thread.join(30)
        stuck = thread.is_alive()
        supervisor.leave()
        thread.join(10)
        found.close()
        left = sweep(found.name)
        assert not stuck, f"the supervisor did not stop; told: {running.told()}"
        assert not left, f"left by the run: {left}"


def sweep(run: str) -> list[str]:
    """Kills what still carries the marker of a run, and names it."""
    tree = Tree(None, run)
    names = [str(process) for process in tree.refresh()]
    end = time.monotonic() + 10
    while (left := tree.refresh()) and time.monotonic() < end:
        tree.signal([process for process in left if process.pid != os.getpid()], 9)
    return names
