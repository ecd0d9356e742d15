"""A service and where to listen in; the web API on a thread beside whatever else is done, out.

The web's libraries are imported on that thread: nothing waits for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.history import FileHistory
from app.hub import Hub
from app.outcome import Settings
from app.runs import Busy, Run, state_directory
from app.service import Served, Service, Watched
from app.starts import Starts
from app.targets import NotStarted
from app.targets.child import find_command
from app.watcher import Watcher, check
from app.webhooks import Hook, Webhooks

if TYPE_CHECKING:
    from fastapi import FastAPI

    from app.config import Config, TargetTable
    from app.hub import News
    from app.knowledge import Base
    from app.scribe import Scribe
    from app.service import Target
    from app.store import Store
    from app.web.access import Access, Token
    from app.web.server import Web


@dataclass(frozen=True, slots=True)
class Api:
    """Where the API is. `listen` is None for the default address, which may also be taken; `hosts` are further names
    that it answers under."""

    listen: str | None = None
    hosts: tuple[str, ...] = ()
    off: bool = False


DEFAULT = "127.0.0.1:8420"
DATABASE = "BRINGUP_DATABASE_URL"
"""The variable with the URL of a data base: unlike an option, no other user of the machine sees it."""
OPENING = 0.5
"""Seconds that the end waits for a data base that is still being opened; the next bringup writes what is missing."""
AGAIN = 2.0
"""Seconds until a data base that is away is asked again."""
Installed = Callable[[Sequence[str], Settings], Settings]


@contextlib.contextmanager
def holding(root: Path, alone: bool) -> Iterator[None]:
    """Holds a state directory: a service `alone`, runs beside each other. ValueError when another holds it so that we
    cannot, OSError when it cannot be written to."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(root / "service.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 64, 0).decode("ascii", "replace").strip()
            who = f"bringup {holder}" if holder else "another bringup"
            raise ValueError(f"{root} is held by {who}; ask that one, or name another --state-dir") from None
        if alone:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}".encode(), 0)
        yield
        if alone:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def access_from(api: Api, host: str, environ: MutableMapping[str, str], known: Sequence[Token] = ()) -> Access:
    """Who may use an API that listens at `host`: `known` tokens and those of `environ`, which are taken out of it (the
    engine needs none).

    ValueError for tokens that are too short, and when others can reach the address and there is none.
    """
    from app.web.access import Access, from_environment, is_loopback

    given = from_environment(environ)
    for token in given:
        environ.pop(f"BRINGUP_{token.role.upper()}_TOKEN")
    tokens = (*known, *given)
    local = is_loopback(host)
    if not local and not tokens:
        raise ValueError(
            f"others can reach {host}: put a token into BRINGUP_CONTROL_TOKEN (and one that only reads into "
            "BRINGUP_READ_TOKEN); `bringup token` makes them"
        )
    return Access(tokens=tokens, hosts=api.hosts, loopback=local)


class Stored:
    """The store of some targets, and the scribe that keeps it up to date. `open` once, `close` once.

    A data base that is away is asked again until it is there: the journals hold everything until then.
    """

    def __init__(
        self, root: Path, targets: Sequence[Target], url: str | None = None, keep: tuple[float, float] | None = None
    ) -> None:
        """`url` is that of a data base instead of the file below `root`, `keep` (days, bytes) of what is kept."""
        self._root, self._targets, self._url, self._keep = root, targets, url, keep
        self.store: Store | None = None
        self.refused: str | None = None
        """Why it can never be opened."""
        self.tried = threading.Event()
        """Set after the first try."""
        self._scribe: Scribe | None = None
        self._over = threading.Event()
        self._opened: list[Callable[[Store], None]] = []
        self._again: threading.Thread | None = None

    def then(self, do: Callable[[Store], None]) -> None:
        """Calls `do` with the store once it is open. Before `open` only."""
        self._opened.append(do)

    def open(self) -> Stored:
        """Opens it, or says why not and tries again on a thread. ValueError when it can never be opened."""
        try:
            if not self._try(first=True):
                self._again = threading.Thread(target=self._wait, name="store", daemon=True)
                self._again.start()
        finally:
            self.tried.set()
        return self

    def _try(self, first: bool = False) -> bool:
        from app.scribe import Scribe
        from app.store import Store, StoreAway, StoreError

        try:
            store = Store(self._root, self._url)
        except StoreAway as error:
            if first:
                self._say(
                    f"no history yet: {error}; it is tried again, and the runs are kept in their folders until then"
                )
            return False
        except (StoreError, OSError) as error:
            self.refused = str(error)
            self._say(f"no history: {error}")
            raise ValueError(self.refused) from error
        if self._over.is_set():  # the end came first
            store.close()
            return True
        if store.set_aside is not None:
            self._say(f"the data base was broken; it is now {store.set_aside}, a new one is made")
        if not first:
            self._say("the data base answers now; nothing was lost")
        self._scribe = Scribe(store, self._targets, self._keep)
        self._scribe.start()
        self.store = store
        for do in self._opened:
            do(store)
        return True

    def _wait(self) -> None:
        with contextlib.suppress(ValueError):  # said already
            while not self._over.wait(AGAIN):
                if self._try():
                    return

    def close(self) -> None:
        """Writes what is still to be written, if that can be done in a moment. What is missing is written by the next
        bringup."""
        self._over.set()
        if self._again is not None:
            self._again.join(0.5)
        if self._scribe is not None:
            self._scribe.stop()
        if self.store is not None:
            self.store.close()

    @staticmethod
    def _say(text: str) -> None:
        print(f"bringup: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def beside(
    api: Api,
    base: Base,
    root: Path,
    targets: Sequence[Target],
    known: Sequence[Token] = (),
    stored: Stored | None = None,
) -> Iterator[Web | None]:
    """The API while the block runs; None when it is off or its default address is taken, which is said. `stored` keeps
    the history; without it there is one in the state directory, opened beside everything else.

    ValueError for an address that cannot be listened at.
    """
    os.environ.pop(DATABASE, None)  # it may hold a password, and the engine needs none
    if api.off:
        with _kept(stored):
            yield None
        return
    from app.web.server import Listen, ListenError, Web

    listen = Listen.read(api.listen or DEFAULT)
    access = access_from(api, listen.host, os.environ, known)
    service = Service(base, root, {target.name: target for target in targets})
    kept = stored or Stored(root, targets)
    kept.then(partial(setattr, service, "store"))

    def make() -> FastAPI:
        from app.web.app import create_app

        return create_app(service, access)

    def open_store() -> None:
        web.wait()  # the first answers come before it
        with contextlib.suppress(ValueError):  # said already: it goes on without a history
            kept.open()
        service.opening.set()

    try:
        web = Web(listen, make)
    except ListenError as error:
        if api.listen is not None:
            raise ValueError(str(error)) from error
        print(f"bringup: no web API: {error}; `--listen` names another address", file=sys.stderr)
        with _kept(stored):
            yield None
        return
    print(f"bringup: web API at {web.url}/docs", file=sys.stderr, flush=True)
    sys.setswitchinterval(0.001)  # writing to hundreds of readers must not keep the reading of a log waiting
    web.start()
    opener = threading.Thread(target=open_store, name="store", daemon=True)
    opener.start()
    try:
        yield web
    finally:
        web.stop()
        opener.join(OPENING)
        kept.close()
        if web.failure is not None:
            print(f"bringup: the web API has failed: {web.failure}", file=sys.stderr)


@contextlib.contextmanager
def _kept(stored: Stored | None) -> Iterator[None]:
    """The history while the block runs, where there is no web API."""
    if stored is None:
        yield
        return

    def open_store() -> None:
        with contextlib.suppress(ValueError):  # said already
            stored.open()

    opener = threading.Thread(target=open_store, name="store", daemon=True)
    opener.start()
    try:
        yield
    finally:
        opener.join(OPENING)
        stored.close()


SAID = {"attempt", "adopted", "phase", "state", "verdict", "remedies", "relaunch", "ended", "exit", "end", "over",
        "trouble", "failure", "watching", "waiting", "ask"}  # fmt: skip
"""News that `bringup serve` writes to its own output."""


def serve(
    config: Config, root: Path | None, base: Base, as_json: bool, installed: Installed, database: str | None = None
) -> int:
    """`bringup serve`: serves all targets until SIGTERM or Ctrl-C; the exit status. ValueError when that cannot begin.

    `installed` adds to the settings what an engine's own interpreter says.
    """
    from app.web.access import Token

    table = config.service
    root = (root or (Path(table.state_dir) if table.state_dir else state_directory())).absolute()
    tokens = [Token(name, "read", digest) for name, digest in config.auth.read.items()]
    tokens += [Token(name, "control", digest) for name, digest in config.auth.control.items()]
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(holding(root, alone=True))
        except OSError as error:
            raise ValueError(f"cannot keep state below {root}: {error.strerror}") from error
        targets = [_target(name, each, root, base, installed) for name, each in config.targets.items()]
        webhooks = Webhooks(_hooks(config), targets, folder=root / "webhooks")
        keep = (table.keep_days, table.keep_gb * 1e9)
        stored = Stored(root, targets, database or table.database, keep)
        asked = threading.Event()  # from the first answer on, it ends in an orderly way
        stack.enter_context(_signals(targets, table.on_stop == "leave", asked))
        stack.enter_context(beside(Api(table.listen, tuple(table.hosts)), base, root, targets, tokens, stored))
        while not (stored.tried.wait(0.2) or asked.is_set()):
            pass
        if stored.refused is not None:
            raise ValueError(stored.refused)
        webhooks.start()
        stack.callback(webhooks.stop)
        threads = [threading.Thread(target=each.run, name=each.name) for each in targets]
        threads += [threading.Thread(target=_say, args=(each, as_json), daemon=True) for each in targets]
        for thread in threads:
            thread.start()
        asked.wait()
        for thread in threads[: len(targets)]:
            thread.join()
        for each in targets:
            each.hub.close()
    return 0


def watched(name: str, path: Path, settings: Settings, root: Path, base: Base) -> Watched:
    """A log that somebody else's server writes, as a target: with a run for each start in it below `root`, where that
    can be kept (it is said where not). TailError when it can never be read."""
    check(path)
    starts: Starts | None = None
    try:
        starts = Starts(root, name, path, base)
    except (OSError, Busy) as error:
        print(
            f"bringup: no history of {path}: {getattr(error, 'strerror', None) or error}", file=sys.stderr, flush=True
        )
    history = FileHistory(root / "history.jsonl")
    return Watched(name, Watcher(base, Hub(), path, settings, starts, history), root)


def _hooks(config: Config) -> list[Hook]:
    """The webhooks of the file. ValueError when a secret is not in the environment."""
    found = []
    for table in config.webhooks:
        secret = os.environ.get(table.secret_env or "", "")
        if table.secret_env and not secret:
            raise ValueError(f"the secret of the webhook is to be in {table.secret_env}, which is not set")
        found.append(Hook(table.url, table.events, secret))
    return found


def _target(name: str, table: TargetTable, root: Path, base: Base, installed: Installed) -> Served | Watched:
    """A target of the file. ValueError when it can never run."""
    place = root / "targets" / name
    settings = table.settings()
    if table.log is not None:
        return watched(name, Path(table.log), settings, place, base)
    launch = table.launch()
    cwd = Path(table.cwd or Path.cwd())
    try:
        find_command(launch.argv, {**os.environ, **table.env}, cwd)
        kept = Run.unfinished(place, None, cwd)
    except (NotStarted, Busy) as error:
        raise ValueError(f"target {name}: {error}") from error
    settings = installed(launch.argv, settings)
    history = FileHistory(root / "history.jsonl")
    served = Served(name, base, Hub(), place, launch, cwd, settings, history, stay=True)
    if kept is not None or table.start:
        served.begin(kept)
    return served


def _say(target: Target, as_json: bool) -> None:
    """Writes a target's news to standard output, a line each."""

    def line(news: News) -> str:
        if as_json:
            return json.dumps({"target": target.name, **news.to_json()})
        return f"{time.strftime('%H:%M:%S', time.localtime(news.at))} {target.name}: {news.kind}: {news.text}"

    for news in target.hub.subscribe(0):
        if as_json or news.kind in SAID:
            print(line(news), flush=True)


@contextlib.contextmanager
def _signals(targets: Sequence[Served | Watched], leave: bool, asked: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C end every target as the file says; the second one leaves the servers running."""

    def handle(number: int, _frame: Any) -> None:
        again = asked.is_set()
        asked.set()
        for target in targets:
            if leave or again:
                target.leave()
            else:
                target.stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
