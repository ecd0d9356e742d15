"""The news of targets in; signed HTTP requests to whoever wants to know out: a verdict, ready, nothing left to try.

Each address has its own queue and thread, so that one that does not answer keeps nobody waiting. What waits is kept in
the state directory until it was taken: it survives the end of bringup and is sent, first and in order, by the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.core.secrets import mask_json
from app.hub import Dropped

if TYPE_CHECKING:
    from app.hub import Hub, News

PAUSES = (1.0, 5.0, 30.0, 120.0, 300.0)
"""Seconds before each further try. An address that answers with errors has no more tries than these; one that does not
answer at all is asked again every last of these until it does."""
TIMEOUT = 10.0
END = 2.0
"""Seconds that what waits has to go out when bringup ends."""
AGE = 24 * 3600.0
"""Seconds after which an event is no news any more."""
QUEUED = 200
"""Requests that may wait for one address."""
KINDS = {"verdict": "verdict", "end": "end", "state": "ready"}
"""Events by the kind of news that they come from."""


class Watchable(Protocol):
    """A target, as far as its news go."""

    name: str
    hub: Hub


@dataclass(frozen=True, slots=True)
class Hook:
    """One address. `events` are those of verdict, ready, end that it wants; `secret` signs, "" for none."""

    url: str
    events: Sequence[str]
    secret: str = ""


def event_of(target: Watchable, news: News) -> dict[str, Any] | None:
    """The event that a news is, without secrets; None when it is none."""
    kind, data = KINDS.get(news.kind), news.data
    if kind is None or (news.kind == "state" and data.get("state") != "ready"):
        return None
    if news.kind == "verdict" and data.get("stage") == "confirmed":
        return None  # it was told when it was found
    names = ("stage", "reason", "rule", "title", "line", "evidence", "rungs", "tried")
    event = {
        "event": kind, "target": target.name, "run": target.hub.status.get("run"), "attempt": data.get("attempt"),
        "at": news.at, "text": f"{target.name}: {news.text}",
        "data": {name: data[name] for name in names if name in data},
    }  # fmt: skip
    masked: dict[str, Any] = mask_json(event)
    return masked


def signature(secret: str, stamp: str, body: bytes) -> str:
    """What the header X-Bringup-Signature holds: the HMAC-SHA-256 of "stamp.body"."""
    return "sha256=" + hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class _Spool:
    """The events that wait for one address, oldest first: each a file of `folder` (None: in memory alone)."""

    def __init__(self, folder: Path | None, say: Callable[[str], None]) -> None:
        self.folder, self._say = folder, say
        self.ready = threading.Condition()
        self._waiting: deque[tuple[Path | None, dict[str, Any]]] = deque()
        if folder is not None:
            self._read(folder)
        self.before = len(self._waiting)
        """How many an earlier bringup has left."""

    def _read(self, folder: Path) -> None:
        for path in sorted(folder.glob("*.json")):
            try:
                event = json.loads(path.read_bytes())
                if isinstance(event, dict) and {"event", "target", "at", "delivery"} <= event.keys():
                    self._waiting.append((path, event))
                    continue
            except (OSError, ValueError):
                pass
            with contextlib.suppress(OSError):  # cut off by a full disk: nothing can be made of it
                path.unlink()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event: dict[str, Any]) -> bool:
        """Puts an event last; False when too many wait already."""
        if len(self._waiting) >= QUEUED:
            return False
        path = self._write(event) if self.folder is not None else None
        with self.ready:
            self._waiting.append((path, event))
            self.ready.notify_all()
        return True

    def _write(self, event: Mapping[str, Any]) -> Path | None:
        assert self.folder is not None
        path = self.folder / f"{time.time_ns():020d}-{event['delivery']}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="ascii") as file:
                json.dump(event, file)
            os.replace(path.with_suffix(".new"), path)
        except OSError as error:
            self._say(f"webhooks are not kept over the end of bringup: {error.strerror}")
            return None
        return path

    def first(self) -> dict[str, Any] | None:
        """The oldest event that waits; None when none does."""
        return self._waiting[0][1] if self._waiting else None

    def done(self) -> None:
        """The first one needs to wait no more."""
        path, _ = self._waiting.popleft()
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


class Webhooks:
    """Sends the events of some targets. `start` once, `end` and `stop` once."""

    def __init__(
        self, hooks: Sequence[Hook], targets: Sequence[Watchable], pauses: Sequence[float] = PAUSES,
        say: Callable[[str], None] | None = None, folder: Path | None = None,
    ) -> None:  # fmt: skip
        """`folder` is where what waits is kept; without one it is lost with us."""
        self._hooks, self._targets, self._pauses = hooks, targets, pauses
        self._say = say or (lambda text: print(f"bringup: {text}", file=sys.stderr, flush=True))
        self._over = threading.Event()
        self._deadline: float | None = None
        self._spools = [_Spool(folder / _name(hook) if folder is not None else None, self._say) for hook in hooks]
        self._listeners = [
            threading.Thread(target=self._listen, args=(target, target.hub.subscribe()), name="webhooks", daemon=True)
            for target in targets
        ]
        self._senders = [
            threading.Thread(target=self._send_all, args=pair, name="webhook", daemon=True)
            for pair in zip(hooks, self._spools, strict=True)
        ]

    def start(self) -> None:
        """Begins with what an earlier bringup has left, and goes on with the next news."""
        for hook, spool in zip(self._hooks, self._spools, strict=True):
            if spool.before:
                self._say(f"webhook {_shown(hook.url)}: {_events(spool.before)} from before wait and are sent first")
        for thread in (*self._listeners, *self._senders):
            thread.start()

    def end(self, seconds: float = END) -> None:
        """The hubs are closed: what still waits has `seconds` to go out. Returns at once; `stop` waits for it."""
        self._deadline = time.monotonic() + seconds
        self._over.set()
        for spool in self._spools:
            with spool.ready:
                spool.ready.notify_all()

    def stop(self) -> None:
        """Waits for the end, and says what is kept for the next bringup."""
        if self._deadline is None:
            self.end()
        assert self._deadline is not None
        for thread in self._listeners + self._senders:
            if thread.ident is not None:
                thread.join(max(0.0, self._deadline - time.monotonic()) + 0.1)
        for hook, spool in zip(self._hooks, self._spools, strict=True):
            if len(spool):
                what = "kept and sent by the next bringup" if spool.folder is not None else "lost"
                self._say(f"webhook {_shown(hook.url)}: {_events(len(spool))} could not be delivered: {what}")

    def _listen(self, target: Watchable, news: Any) -> None:
        while True:
            try:
                one = news.get(0.0 if self._over.is_set() else 1.0)
            except Dropped as gone:  # thousands of news while this thread had no turn
                news.after = gone.resume
                continue
            if one is None:
                if target.hub.closed or self._over.is_set():
                    return
                continue
            event = event_of(target, one)
            if event is None:
                continue
            for hook, spool in zip(self._hooks, self._spools, strict=True):
                if event["event"] in hook.events and not spool.add({**event, "delivery": uuid.uuid4().hex}):
                    self._say(f"webhook {_shown(hook.url)}: {QUEUED} events wait already; one is dropped")

    def _send_all(self, hook: Hook, spool: _Spool) -> None:
        while True:
            with spool.ready:
                while not len(spool):
                    if self._over.is_set() and not any(thread.is_alive() for thread in self._listeners):
                        return
                    spool.ready.wait(0.05 if self._over.is_set() else None)
            if not self._send(hook, spool):
                return

    def _send(self, hook: Hook, spool: _Spool) -> bool:
        """Sends the first event, as often as it takes; False when the end came before."""
        event = spool.first()
        assert event is not None
        body = json.dumps(event).encode()
        tries = 0
        while True:
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if time.time() - float(event["at"]) > AGE:
                reason, answered, again = f"it is older than {AGE / 3600:g} hours", True, False
            else:
                reason, answered, again = _post(hook, body, event["delivery"], min(TIMEOUT, left or TIMEOUT))
            # One that answers with an error may not like this event; one that does not answer may come back.
            if reason and again and (tries < len(self._pauses) or not answered):
                if self._deadline is not None:  # one try is all that there is time for
                    return False
                self._over.wait(self._pauses[min(tries, len(self._pauses) - 1)] if self._pauses else 1.0)
                if not answered and tries == len(self._pauses):
                    self._say(f"webhook {_shown(hook.url)}: {reason}; {_events(len(spool))} wait until it answers")
                tries += 1
                continue
            if reason:
                what = f"{event['event']} of {event['target']} was not taken"
                self._say(f"webhook {_shown(hook.url)}: {what}: {reason}")
            spool.done()
            return True


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count} events"


def _name(hook: Hook) -> str:
    """The folder of an address and what it wants: it does not tell it, for many have a secret in their path."""
    return hashlib.blake2b(" ".join((hook.url, *sorted(hook.events))).encode(), digest_size=8).hexdigest()


class _Stay(urllib.request.HTTPRedirectHandler):
    """Nothing is followed elsewhere: what is signed is for this address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(hook: Hook, body: bytes, delivery: str, limit: float) -> tuple[str, bool, bool]:
    """("" when it was taken, else why not; whether anybody answered; whether another try makes sense)."""
    stamp = str(int(time.time()))
    headers = {"content-type": "application/json", "x-bringup-timestamp": stamp, "x-bringup-delivery": delivery}
    if hook.secret:
        headers["x-bringup-signature"] = signature(hook.secret, stamp, body)
    request = urllib.request.Request(hook.url, body, headers, method="POST")
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=limit) as answer:
            answer.read(1024)
            return "", True, False
    except urllib.error.HTTPError as error:
        with error:
            return f"it answers {error.code}", True, error.code >= 500 or error.code in (408, 429)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", error)), False, True


def _shown(url: str) -> str:
    """An address without what may be its secret: many have one in their path."""
    return "/".join(url.split("/")[:3]) + "/…"
