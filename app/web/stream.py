"""The news of one hub in, Server-Sent Events out: encoded once, joined into frames, and shared by all readers.

A frame is sent at once when it holds something that people wait for, else at most every TICK seconds. Frames stand in
one bounded ring and a reader is only a place in it, so that no reader costs the supervisor anything; one that falls out
of the ring is dropped and told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.hub import Dropped, Hub, News, Subscription

TICK = 0.1
"""Seconds between two frames of what nobody waits for."""
HEARTBEAT = 10.0
"""Seconds after which something is sent in any case."""
STATUS = 1.0
"""Seconds between two events with the status, while it changes."""
KEPT = 600
"""Frames kept: a minute at the fastest."""
PATIENCE = 30.0
"""Seconds that one write may take before its reader is given up."""
CALM = {"progress", "fact", "phase", "symptom", "stop", "health"}
"""News that can wait for the next tick."""
PASSING = {"progress", "fact", "phase", "symptom", "said", "remedies"}
"""News that a snapshot does not list: what they tell is in the target."""
LISTED = 60
"""News that a snapshot lists, for who was not there."""


def event(kind: str, data: Any, id: str = "") -> bytes:
    """One event as bytes; an event without an id does not change where its reader is."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"{f'id: {id}' + chr(10) if id else ''}event: {kind}\ndata: {text}\n\n".encode()


def _brief(news: News) -> dict[str, Any]:
    return {
        "id": news.id, "at": news.at, "kind": news.kind, "text": news.text, "stage": news.data.get("stage"),
    }  # fmt: skip


class Broadcast:
    """One hub's frames. Everything is called from one event loop; `run` is a task there."""

    def __init__(
        self, hub: Hub, slim: Callable[[], Mapping[str, Any]], listen: Callable[[News], None], kept: int = KEPT,
        tick: float = TICK,
    ) -> None:  # fmt: skip
        """`slim` gives the status as it is sent now and then; `listen` gets every news once."""
        self.hub, self._slim, self._listen, self._tick = hub, slim, listen, tick
        self.name = secrets.token_hex(4)
        """Names this numbering: an id of another one says nothing here."""
        self.sent = hub.last
        """The id of the last news in a frame."""
        self.frames: deque[bytes] = deque(maxlen=kept)
        self.count = 0
        """Frames so far."""
        self.readers = 0
        self.dropped = 0
        self.closed = False
        self.turn = asyncio.Event()
        self.listed: deque[News] = deque(maxlen=LISTED)
        """The last news that are no passing ones, up to what was sent."""

    async def run(self) -> None:
        """Until the hub is closed or `close` is called."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and so is every reader
                loop.call_soon_threadsafe(woken.set)

        before = self.hub.subscribe(0)
        while before.after < self.sent and (one := self._next(before)) is not None and one.id <= self.sent:
            self._list(one)
        before.close()
        news = self.hub.subscribe(self.sent, wake)
        waiting: list[News] = []
        now = time.monotonic()
        framed = beat = told = now
        try:
            while not (self.closed or (self.hub.closed and self.hub.last <= news.after)):
                limit = beat + HEARTBEAT if not waiting else framed + self._tick
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, limit - time.monotonic())):
                        await woken.wait()
                woken.clear()
                while (one := self._next(news)) is not None:
                    waiting.append(one)
                    self._listen(one)
                now = time.monotonic()
                urgent = any(one.kind not in CALM for one in waiting)
                if waiting and (urgent or now - framed >= self._tick):
                    frame = b"".join(event(one.kind, one.to_json(), f"{self.name}-{one.id}") for one in waiting)
                    self.sent = waiting[-1].id
                    for one in waiting:
                        self._list(one)
                    waiting = []
                    if urgent or now - told >= STATUS:
                        frame += event("status", self._slim())
                        told = now
                    self._frame(frame)
                    framed = beat = now
                elif not waiting and now - beat >= HEARTBEAT:
                    self._frame(b": still here\n\n" + event("status", self._slim()))
                    beat = told = now
        finally:
            news.close()
            self.close()

    @staticmethod
    def _next(news: Subscription) -> News | None:
        try:
            return news.get(0)
        except Dropped as gone:  # the loop stood still for thousands of news
            news.after = gone.resume
            return news.get(0)

    def _list(self, news: News) -> None:
        if news.kind not in PASSING:
            self.listed.append(news)

    def _frame(self, data: bytes) -> None:
        self.frames.append(data)
        self.count += 1
        self._next_turn()

    def _next_turn(self) -> None:
        turn, self.turn = self.turn, asyncio.Event()
        turn.set()

    def close(self) -> None:
        """Ends every reader after what it has yet to read."""
        self.closed = True
        self._next_turn()

    def place(self, last: str | None) -> int | None:
        """The number in an id that a reader saw last; None when it is none of this numbering."""
        found = re.fullmatch(r"([0-9a-f]{8})-(\d{1,18})", last or "")
        return int(found[2]) if found and found[1] == self.name and int(found[2]) <= self.hub.last else None


class EventStream(Response):
    """One reader's stream: the snapshot, what it missed, then every frame."""

    media_type = "text/event-stream"

    def __init__(self, broadcast: Broadcast, snapshot: Callable[[], Mapping[str, Any]], last: str | None) -> None:
        super().__init__(None, 200, {"x-accel-buffering": "no"}, self.media_type)
        del self.headers["content-length"]
        self._broadcast, self._snapshot, self._last = broadcast, snapshot, last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._broadcast.readers += 1
        try:
            async with anyio.create_task_group() as group:

                async def gone() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    group.cancel_scope.cancel()

                group.start_soon(gone)
                with contextlib.suppress(TimeoutError):  # it does not read: nothing more can be told to it
                    await self._pump(send)
                group.cancel_scope.cancel()
        finally:
            self._broadcast.readers -= 1

    async def _pump(self, send: Send) -> None:
        broadcast = self._broadcast
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        place, beginning = broadcast.count, self._beginning()  # of one moment: nothing comes twice or never
        await self._write(send, beginning)
        while True:
            behind = broadcast.count - place
            if behind > len(broadcast.frames):
                broadcast.dropped += 1
                reason = f"this reader fell {behind} frames behind, only {len(broadcast.frames)} are kept"
                await self._write(send, event("dropped", {"reason": reason, "hint": "connect again"}))
                break
            if behind:
                data = b"".join(broadcast.frames[each] for each in range(-behind, 0))
                place = broadcast.count
                await self._write(send, data)
            elif broadcast.closed:
                await self._write(send, event("bye", {"reason": "bringup ends"}))
                break
            else:
                await broadcast.turn.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _beginning(self) -> bytes:
        """The snapshot, and after it the news that this reader missed, up to where the frames go on."""
        broadcast = self._broadcast
        upto = broadcast.sent
        place = broadcast.place(self._last)
        data = dict(self._snapshot())
        if place is None or place >= upto:
            data["resumed"] = place is not None
            if place is None:
                data["news"] = [_brief(one) for one in broadcast.listed]
            return b"retry: 1000\n" + event("snapshot", data, f"{broadcast.name}-{upto}")
        reader = broadcast.hub.subscribe(place)
        data |= {"resumed": True, "missed": reader.missed}
        parts = [b"retry: 1000\n", event("snapshot", data)]
        try:
            while reader.after < upto and (news := reader.get(0)) is not None and news.id <= upto:
                parts.append(event(news.kind, news.to_json(), f"{broadcast.name}-{news.id}"))
        except Dropped:
            return self._beginning()
        return b"".join(parts)

    @staticmethod
    async def _write(send: Send, data: bytes) -> None:
        message: Message = {"type": "http.response.body", "body": data, "more_body": True}
        async with asyncio.timeout(PATIENCE):
            await send(message)
