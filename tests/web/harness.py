"""A service on loopback with an engine that plays recordings, and clients for it. Whatever was started ends with the
test, which fails if something is left."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from app.history import FileHistory
from app.hub import Hub
from app.ladder import Launch
from app.service import Served, Service
from app.serving import Stored, watched
from app.supervisor import Settings
from app.targets import Patience
from app.web.access import Access, Rates
from app.web.app import create_app
from app.web.server import Listen, Web
from tests.edges.replay import ROOT, base, sweep

FAST = Rates(read=(1e6, 1_000_000), write=(1e6, 1_000_000), explain=(1e6, 1_000_000), denied=(1e6, 1_000_000))
OPEN = Access(rates=FAST)


@dataclass
class Running:
    """A service that runs: `client` asks it, `served` are its targets."""

    url: str
    client: httpx.Client
    served: list[Served]
    service: Service
    web: Web

    @property
    def hub(self) -> Hub:
        return self.served[0].hub

    def get(self, path: str, status: int = 200, **more: Any) -> Any:
        """The JSON of a GET that answers with `status`."""
        answer = self.client.get(path, **more)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def post(self, path: str, body: Any = None, status: int = 202, **more: Any) -> Any:
        """The JSON of a POST that answers with `status`."""
        answer = self.client.post(path, **({"json": body} if body is not None else {}), **more)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def until(self, found: Callable[[dict[str, Any]], Any], what: str = "", seconds: float = 30.0) -> dict[str, Any]:
        """The target, once it is so."""
        end = time.monotonic() + seconds
        while True:
            target: dict[str, Any] = self.get("/api/targets/server")
            if found(target):
                return target
            assert time.monotonic() < end, f"waited in vain for {what or found}: {json.dumps(target)[:2000]}"
            time.sleep(0.02)


@dataclass
class Events:
    """An event stream being read. `last` is the id of the last event that had one."""

    lines: Iterator[str]
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    last: str = ""

    def next(self) -> tuple[str, dict[str, Any]] | None:
        """(kind, data) of the next event; None at the end of the stream."""
        kind, data = "", ""
        for line in self.lines:
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                data += line[6:]
            elif line.startswith("id: "):
                self.last = line[4:]
            elif not line and kind:
                event = (kind, json.loads(data))
                self.seen.append(event)
                return event
        return None

    def until(self, kind: str, fits: Callable[[dict[str, Any]], Any] = lambda data: True) -> dict[str, Any]:
        """The data of the next event of that kind (that fits)."""
        while (event := self.next()) is not None:
            if event[0] == kind and fits(event[1]):
                return event[1]
        raise AssertionError(f"the stream ended before {kind}: {[kind for kind, _ in self.seen]}")


@contextmanager
def events(running: Running, last: str = "", path: str = "/api/targets/server/events") -> Iterator[Events]:
    """Reads a target's events; gives up after 30 s without any."""
    headers = {"last-event-id": last} if last else {}
    with running.client.stream("GET", path, headers=headers, timeout=30) as answer:
        assert answer.status_code == 200, answer.read()
        yield Events(answer.iter_lines())


@contextmanager
def watching(folder: Path, log: Path) -> Iterator[Running]:
    """Watches a log as the target `server`, with its history below `folder`."""
    root = folder / "state"
    target = watched("server", log, Settings(), root / "targets" / "server", base())
    stored = Stored(root, [target]).open()
    service = Service(base(), root, {"server": target}, stored.store)
    service.opening.set()
    web = Web(Listen("127.0.0.1", 0), lambda: create_app(service, OPEN))
    thread = threading.Thread(target=target.run, name="watch")
    web.start()
    thread.start()
    try:
        assert web.wait(), web.failure
        with httpx.Client(base_url=web.url, timeout=20, trust_env=False) as client:
            yield Running(web.url, client, [], service, web)
    finally:
        target.stop()
        thread.join(20)
        stuck = thread.is_alive()
        web.stop()
        stored.close()
        assert not stuck, "the watch did not stop"


@contextmanager
def serving(
    folder: Path,
    engines: Sequence[Sequence[str]],
    settings: Settings | None = None,
    access: Access = OPEN,
    begin: bool = True,
    token: str | None = None,
    database: str | None = None,
) -> Iterator[Running]:
    """Serves these command lines as targets (`server` where there is one)."""
    settings = settings or Settings(mode="ask", release="0.5.9")
    settings = replace(settings, limits=replace(settings.limits, patience=Patience(2, 2)))
    root = folder / "state"
    names = ["server"] if len(engines) == 1 else [f"t{place}" for place in range(len(engines))]
    served = [
        Served(name, base(), Hub(), root / "targets" / name, Launch(tuple(argv)), ROOT, settings,
               FileHistory(root / "history.jsonl"), stay=True)
        for name, argv in zip(names, engines, strict=True)
    ]  # fmt: skip
    stored = Stored(root, served, database).open()
    service = Service(base(), root, {each.name: each for each in served}, stored.store)
    service.opening.set()
    web = Web(Listen("127.0.0.1", 0), lambda: create_app(service, access))
    threads = [threading.Thread(target=each.run, name=each.name) for each in served]
    web.start()
    try:
        for each, thread in zip(served, threads, strict=True):
            if begin:
                each.begin()
            thread.start()
        assert web.wait(), web.failure
        headers = {"authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=web.url, headers=headers, timeout=20, trust_env=False) as client:
            yield Running(web.url, client, served, service, web)
    finally:
        for each in served:
            each.stop()
        stuck = []
        for thread in threads:
            if thread.ident is not None:
                thread.join(20)
                stuck += [thread.name] if thread.is_alive() else []
        web.stop()
        stored.close()
        left = [name for run in root.glob("targets/*/runs/*") for name in sweep(run.name)]
        assert not stuck, f"did not stop: {stuck}"
        assert not left, f"left by the test: {left}"
