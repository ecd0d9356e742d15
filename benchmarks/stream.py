"""What the event stream costs: clients × news a second → latency at the clients, lag of who publishes, CPU, losses.

Run by hand: `python benchmarks/stream.py [clients] [news a second] [seconds]`. The service is a process of its own, as
are its clients (all in this one); one client leaves every half second and comes back with its last id.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

KINDS = ("progress", "progress", "progress", "phase", "verdict")
"""One news in five does not wait for the tick."""


def at(values: list[float], share: float) -> float:
    """A quantile in ms."""
    ordered = sorted(values)
    return round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1) if ordered else 0.0


def serve(rate: float, seconds: float) -> None:
    """A service with one target that is only news. Begins when a line comes in, tells its figures as JSON."""
    from app.hub import Hub
    from app.service import Service
    from app.web.access import Access, Rates
    from app.web.app import create_app
    from app.web.server import Listen, Web

    class Target:
        name, kind, can, tag, hub = "server", "child", (), "x", Hub()
        root = Path(tempfile.gettempdir())

    Target.hub.status = {"schema": 1, "state": "starting", "attempt": 1, "lines": ["x" * 100] * 12}
    free = Rates(read=(1e6, 1_000_000))
    service = Service(None, Target.root, {"server": Target()})  # type: ignore[arg-type, dict-item]
    web = Web(Listen("127.0.0.1", 0), lambda: create_app(service, Access(rates=free, streams=10_000)))
    sys.setswitchinterval(0.001)  # as bringup does
    web.start()
    web.wait()
    print(web.listen.port, flush=True)
    sys.stdin.readline()
    late: list[float] = []
    took: list[float] = []
    cpu, begun = time.process_time(), time.monotonic()
    for number in range(int(rate * seconds)):
        due = begun + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        kind = KINDS[number % len(KINDS)]
        began = time.monotonic()
        Target.hub.publish(kind, f"news {number}", {"attempt": 1, "line": number, "done": number, "total": 52})
        took.append(time.monotonic() - began)
        late.append(time.monotonic() - due)
    used = (time.process_time() - cpu) / (time.monotonic() - begun)
    figures = {
        "cpu %": round(100 * used), "lag p50 ms": at(late, 0.5), "lag p99 ms": at(late, 0.99),
        "publish p99 ms": at(took, 0.99),
        "rss MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip
    print(json.dumps(figures), flush=True)
    sys.stdin.readline()
    web.stop()


class Client:
    """Reads one stream: ids seen, and how late each news came."""

    def __init__(self, port: int, restless: bool = False) -> None:
        self.port, self.restless = port, restless
        self.ids: list[int] = []
        self.late: list[float] = []
        self.last = ""
        self.comings = 0
        self.there = False

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
            again = f"Last-Event-ID: {self.last}\r\n" if self.last else ""
            writer.write(f"GET /api/targets/server/events HTTP/1.1\r\nHost: localhost\r\n{again}\r\n".encode())
            self.comings += 1
            until = time.monotonic() + 0.5 if self.restless else float("inf")
            pending = b""
            while time.monotonic() < until and not over.is_set():
                try:
                    data = await asyncio.wait_for(reader.read(1 << 18), 0.5)
                except TimeoutError:
                    continue
                if not data:
                    break
                self.there = True  # the snapshot: from here on nothing may be missing
                *blocks, pending = (pending + data).split(b"\n\n")
                self.take(blocks)
            writer.close()

    def take(self, blocks: list[bytes]) -> None:
        now = time.time()
        for block in blocks:
            place = block.find(b"id: ")
            if place < 0 or b"event: snapshot" in block:
                continue
            self.last = block[place + 4 : block.index(b"\n", place)].decode()
            self.ids.append(int(self.last.rpartition("-")[2]))
            begin = block.find(b'"at":') + 5
            self.late.append(now - float(block[begin : block.index(b",", begin)]))


async def listen(port: int, count: int, begin: Any, finished: Any, wanted: int) -> tuple[list[Client], str]:
    """All clients, until the service has told its news."""
    over = asyncio.Event()
    clients = [Client(port, restless=place == 0) for place in range(count)]
    tasks = [asyncio.create_task(each.run(over)) for each in clients]
    while not all(each.there for each in clients):
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    begin()
    figures = await asyncio.to_thread(finished)
    end = time.monotonic() + 15
    while time.monotonic() < end and not all(each.ids and each.ids[-1] == wanted for each in clients):
        await asyncio.sleep(0.1)
    over.set()
    await asyncio.gather(*tasks)
    return clients, figures


def main(clients: int, rate: float, seconds: float) -> dict[str, Any]:
    """One measurement as a row."""
    words = [sys.executable, __file__, "--serve", str(rate), str(seconds)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, said = process.stdout, process.stdin
        port = int(told.readline())
        wanted = int(rate * seconds)
        found, line = asyncio.run(listen(port, clients, lambda: said.write("\n"), told.readline, wanted))
        said.write("\n")
        process.wait(20)
    late = [value for each in found[1:] for value in each.late]
    lost = [wanted - len(set(each.ids)) for each in found]
    twice = [len(each.ids) - len(set(each.ids)) for each in found]
    return {
        "clients": clients, "news/s": rate, **json.loads(line), "p50 ms": at(late, 0.5), "p99 ms": at(late, 0.99),
        "lost": sum(lost), "twice": sum(twice), "came back": found[0].comings,
    }  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(float(sys.argv[2]), float(sys.argv[3]))
    else:
        rate, seconds = (*map(float, sys.argv[2:4]), *(100.0, 10.0)[len(sys.argv[2:4]) :])
        for count in [int(sys.argv[1])] if sys.argv[1:] else [1, 100, 500]:
            print(json.dumps(main(count, rate, seconds)), flush=True)
