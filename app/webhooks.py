"""The news of targets in; signed HTTP requests to whoever wants to know out: a verdict, ready, nothing left to try.

Each address has its own queue and thread, so that one that does not answer keeps nobody waiting. A request is tried
again with growing pauses; what is then still not taken is said and dropped, as is what is still queued at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import queue
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from app.core.secrets import mask_json

if TYPE_CHECKING:
    from app.hub import Hub, News

PAUSES = (1.0, 5.0, 30.0, 120.0, 300.0)
"""Seconds before each further try."""
TIMEOUT = 10.0
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


class Webhooks:
    """Sends the events of some targets. `start` once, `stop` once."""

    def __init__(
        self, hooks: Sequence[Hook], targets: Sequence[Watchable], pauses: Sequence[float] = PAUSES,
        say: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self._hooks, self._targets, self._pauses = hooks, targets, pauses
        self._say = say or (lambda text: print(f"bringup: {text}", file=sys.stderr, flush=True))
        self._over = threading.Event()
        self._queues: list[queue.Queue[Mapping[str, Any] | None]] = [queue.Queue(QUEUED) for _ in hooks]
        self._threads = [
            threading.Thread(target=self._listen, args=(target, target.hub.subscribe()), name="webhooks", daemon=True)
            for target in targets
        ] + [
            threading.Thread(target=self._send_all, args=pair, name="webhook", daemon=True)
            for pair in zip(hooks, self._queues, strict=True)
        ]

    def start(self) -> None:
        """Begins with the next news."""
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Gives what is queued `seconds` to go out, and ends."""
        for waiting in self._queues:
            with contextlib.suppress(queue.Full):
                waiting.put_nowait(None)
        end = time.monotonic() + seconds
        for thread in self._threads[len(self._targets) :]:
            thread.join(max(0.0, end - time.monotonic()))
        self._over.set()

    def _listen(self, target: Watchable, news: Any) -> None:
        while not self._over.is_set():
            one = news.get(1.0)
            if one is None:
                if target.hub.closed:
                    return
                continue
            event = event_of(target, one)
            if event is None:
                continue
            for hook, waiting in zip(self._hooks, self._queues, strict=True):
                if event["event"] in hook.events:
                    try:
                        waiting.put_nowait(event)
                    except queue.Full:
                        self._say(f"webhook {_shown(hook.url)}: {QUEUED} events wait already; one is dropped")

    def _send_all(self, hook: Hook, waiting: queue.Queue[Mapping[str, Any] | None]) -> None:
        while (event := waiting.get()) is not None:
            self._send(hook, event)

    def _send(self, hook: Hook, event: Mapping[str, Any]) -> None:
        delivery = uuid.uuid4().hex
        body = json.dumps({**event, "delivery": delivery}).encode()
        reason = ""
        for pause in (0.0, *self._pauses):
            if self._over.wait(pause):
                return
            reason, again = _post(hook, body, delivery)
            if not reason:
                return
            if not again:
                break
        self._say(f"webhook {_shown(hook.url)}: {event['event']} of {event['target']} was not taken: {reason}")


class _Stay(urllib.request.HTTPRedirectHandler):
    """Nothing is followed elsewhere: what is signed is for this address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(hook: Hook, body: bytes, delivery: str) -> tuple[str, bool]:
    """("" when it was taken, else why not; whether another try makes sense)."""
    stamp = str(int(time.time()))
    headers = {"content-type": "application/json", "x-bringup-timestamp": stamp, "x-bringup-delivery": delivery}
    if hook.secret:
        headers["x-bringup-signature"] = signature(hook.secret, stamp, body)
    request = urllib.request.Request(hook.url, body, headers, method="POST")
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=TIMEOUT) as answer:
            answer.read(1024)
            return "", False
    except urllib.error.HTTPError as error:
        with error:
            return f"it answers {error.code}", error.code >= 500 or error.code in (408, 429)
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error)), True


def _shown(url: str) -> str:
    """An address without what may be its secret: many have one in their path."""
    return "/".join(url.split("/")[:3]) + "/…"
