"""The event stream: the snapshot first, nothing lost on coming back, slow readers dropped, an end that is told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from app.hub import Hub
from app.web.stream import Broadcast, EventStream
from tests.edges.replay import HEALTHY, engine, scene
from tests.web.harness import events, serving


def parsed(data: bytes) -> list[tuple[str, str, Any]]:
    """(id, kind, data) of every event in these bytes."""
    out = []
    for block in data.decode().split("\n\n"):
        rows = dict(row.split(": ", 1) for row in block.split("\n") if ": " in row and not row.startswith(":"))
        if "event" in rows:
            out.append((rows.get("id", ""), rows["event"], json.loads(rows["data"])))
    return out


class Reader:
    """One reader of a broadcast; reads only while `open` is set."""

    def __init__(self, broadcast: Broadcast, last: str | None = None) -> None:
        self.data = b""
        self.open = asyncio.Event()
        self.open.set()
        self.gone = asyncio.Event()
        stream = EventStream(broadcast, lambda: {"state": "x"}, last)
        self.task = asyncio.create_task(stream({"type": "http"}, self._receive, self._send))

    async def _receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.open.wait()
        self.data += message.get("body", b"")

    def news(self) -> list[int]:
        return [
            data["id"] for _, kind, data in parsed(self.data) if kind not in ("snapshot", "status", "dropped", "bye")
        ]

    def kinds(self) -> list[str]:
        return [kind for _, kind, _ in parsed(self.data)]


async def until(found: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not found():
            await asyncio.sleep(0.002)


def played(play: Callable[[Hub, Broadcast], Awaitable[None]], **more: Any) -> None:
    """Runs a broadcast over a hub for one test."""

    async def work() -> None:
        hub = Hub(keep=1000)
        broadcast = Broadcast(hub, lambda: {"slim": True}, lambda news: None, **more)
        task = asyncio.create_task(broadcast.run())
        await asyncio.sleep(0)
        try:
            await play(hub, broadcast)
        finally:
            hub.close()
            await task

    asyncio.run(work())


def test_news_come_once_and_in_order_and_are_joined() -> None:
    async def play(hub: Hub, broadcast: Broadcast) -> None:
        readers = [Reader(broadcast) for _ in range(3)]
        await until(lambda: all(reader.data for reader in readers))
        for number in range(200):
            hub.publish("progress", f"step {number}")
        hub.publish("verdict", "named")
        await until(lambda: all(201 in reader.news() for reader in readers))
        assert [reader.news() for reader in readers] == [list(range(1, 202))] * 3
        assert broadcast.count < 10, "many news, few frames"
        assert readers[0].kinds()[0] == "snapshot"

    played(play)


def test_a_verdict_does_not_wait_for_the_tick() -> None:
    async def play(hub: Hub, broadcast: Broadcast) -> None:
        reader = Reader(broadcast)
        hub.publish("state", "begun")
        await until(lambda: 1 in reader.news())
        hub.publish("progress", "calm: it may wait for 30 s")
        hub.publish("verdict", "named")
        await until(lambda: 3 in reader.news())

    played(play, tick=30.0)


def test_who_comes_back_with_the_last_id_has_missed_nothing() -> None:
    async def play(hub: Hub, broadcast: Broadcast) -> None:
        first = Reader(broadcast)
        await until(lambda: first.data)
        hub.publish("state", "one")
        await until(lambda: 1 in first.news())
        last = [id for id, kind, _ in parsed(first.data) if id][-1]
        first.gone.set()
        await first.task
        for number in range(2, 6):
            hub.publish("state", str(number))
        await until(lambda: broadcast.sent == 5)
        second = Reader(broadcast, last)
        await until(lambda: 5 in second.news())
        hub.publish("state", "6")
        await until(lambda: 6 in second.news())
        assert second.news() == [2, 3, 4, 5, 6]
        snapshot = parsed(second.data)[0]
        assert snapshot[:2] == ("", "snapshot")
        assert snapshot[2] == {"state": "x", "resumed": True, "missed": 0}
        other = Reader(broadcast, "deadbeef-3")
        await until(lambda: other.data)
        assert parsed(other.data)[0][2]["resumed"] is False

    played(play)


def test_a_reader_that_stands_still_is_dropped_and_told_and_nobody_waits_for_it() -> None:
    async def play(hub: Hub, broadcast: Broadcast) -> None:
        slow, quick = Reader(broadcast), Reader(broadcast)
        await until(lambda: slow.data and quick.data)
        slow.open.clear()
        for number in range(1, 12):
            hub.publish("state", str(number))
            await until(lambda number=number: number in quick.news())  # type: ignore[misc]
        slow.open.set()
        async with asyncio.timeout(10):
            await slow.task
        kinds = slow.kinds()
        assert kinds[-1] == "dropped"
        assert "frames behind" in parsed(slow.data)[-1][2]["reason"]
        assert quick.news() == list(range(1, 12))
        assert (broadcast.dropped, broadcast.readers) == (1, 1)

    played(play, kept=4)


def test_silence_is_broken_by_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.stream.HEARTBEAT", 0.02)

    async def play(hub: Hub, broadcast: Broadcast) -> None:
        reader = Reader(broadcast)
        await until(lambda: b": still here" in reader.data)
        assert "status" in reader.kinds()

    played(play)


def test_readers_are_told_when_it_ends() -> None:
    async def play(hub: Hub, broadcast: Broadcast) -> None:
        reader = Reader(broadcast)
        await until(lambda: reader.data)
        hub.publish("over", "done")
        hub.close()
        async with asyncio.timeout(10):
            await reader.task
        assert reader.kinds()[-1] == "bye"
        assert reader.news() == [1]

    played(play)


def test_the_service_ends_quickly_with_readers_connected(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(HEALTHY)])
    with serving(tmp_path, [argv], begin=False) as running, events(running) as stream, events(running) as other:
        assert stream.next()
        assert other.next()
        begun = time.monotonic()
        running.web.stop()
        assert time.monotonic() - begun < 3
        assert [event[0] for event in iter(stream.next, None)] == ["bye"]


def test_an_address_that_is_taken_is_said(tmp_path: Path) -> None:
    from app.web.server import Listen, ListenError, Web

    with serving(tmp_path, [["true"]], begin=False) as running:
        with pytest.raises(ListenError, match=rf"127.0.0.1:{running.web.listen.port} is in use by \d+ \(py"):
            Web(running.web.listen, lambda: None)  # type: ignore[arg-type, return-value]
        assert str(Listen.read("[::1]:8420")) == "[::1]:8420"
        for wrong in ("x", "::1:1:", "1.2.3.4:99999", ":8420"):
            with pytest.raises(ValueError, match="is no address to listen at"):
                Listen.read(wrong)
        with pytest.raises(httpx.HTTPStatusError):
            httpx.get(running.url + "/api/x", trust_env=False).raise_for_status()
