"""What following a start costs: decisive byte written → verdict in the hub, exit → relaunch, CPU when idle, memory.

Run by hand: `python benchmarks/live.py [crashes]`. Another process writes; the figures are of this one with all its
threads, on the machine it runs on.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from app import demo
from app.cases import NOTHING, cases, shipped_cases
from app.history import FileHistory
from app.hub import Hub
from app.knowledge import Base, load
from app.outcome import Settings
from app.reading import Reading
from app.runs import Run
from app.service import Watched
from app.supervisor import Supervisor
from app.watcher import Watcher

ROOT = Path(__file__).parent.parent
STORY = ROOT / "fixtures" / "founding-story" / "server.log"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"
LINE = b"[2026-02-26 14:06:10 TP0] Decode batch, #running-req: 8, #token: 4096, gen throughput (token/s): 512.00\n"


def split(base: Base) -> tuple[bytes, list[bytes]]:
    """The story up to its traceback, and the lines from there to the first one that proves the cause, inclusive."""
    data = STORY.read_bytes()
    start = data.index(b"[2026-02-26 14:06:02 TP2] Scheduler hit an exception")
    reading, lines = Reading(base), []
    reading.feed(data[:start], 0.0)
    for line in data[start:].splitlines(keepends=True):
        lines.append(line)
        reading.feed(line, 0.0)
        reading._look_at = 0.0
        if any(told.data.get("rule") == CAUSE for told in reading.look(0.0) if told.kind == "verdict"):
            return data[:start], lines
    raise AssertionError("the story is not recognised")


def write(path: str, noise: str) -> None:
    """The writing process: for each line on standard input one crash, whose decisive moment (ns) it prints."""
    head, lines = split(load())
    for _ in sys.stdin:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.write(fd, head)
        go_on(fd, 0.15, noise)
        for line in lines:
            os.write(fd, line)
        print(time.monotonic_ns(), flush=True)
        go_on(fd, 0.05, noise)
        os.close(fd)


def go_on(fd: int, seconds: float, noise: str) -> None:
    """Ordinary lines at 20 MB/s for a while, or nothing."""
    begun, written = time.monotonic(), 0
    while (now := time.monotonic() - begun) < seconds:
        if noise == "20 MB/s":
            written += os.write(fd, LINE * 400)
        pause = written / 20e6 - now if written else seconds - now
        time.sleep(max(0.0, pause))


@contextlib.contextmanager
def writing(noise: str) -> Iterator[tuple[Path, Callable[[], Callable[[], int]]]]:
    """A log and what has another process write one crash in it; that gives back what waits for the decisive moment."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "server.log")
        writer = subprocess.Popen(
            [sys.executable, __file__, "write", str(log), noise],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert writer.stdin
        assert writer.stdout
        begin, moments = writer.stdin, writer.stdout

        def crash() -> Callable[[], int]:
            begin.write("\n")
            begin.flush()
            return lambda: int(moments.readline())

        yield log, crash
        begin.close()
        writer.wait()


def row(what: str, late: list[float]) -> str:
    """A line of the table: the middle, the 99th percentile and the worst, in ms."""
    late.sort()
    half, most, worst = (late[min(len(late) - 1, int(len(late) * share))] for share in (0.5, 0.99, 0.9999))
    return f"| {what} | {half:.1f} ms | {most:.1f} ms | {worst:.1f} ms |"


def latency(base: Base, crashes: int, noise: str) -> str:
    late = []
    with writing(noise) as (log, crash):
        for _ in range(crashes):
            log.unlink(missing_ok=True)
            log.touch()
            hub = Hub()
            at: list[int] = []
            news = hub.subscribe(0)
            watcher = Watcher(base, hub, log)
            thread = threading.Thread(target=watcher.run)
            thread.start()
            decisive = crash()()
            end = time.monotonic() + 5
            while (item := news.get(max(0.0, end - time.monotonic()))) is not None:
                if item.kind == "verdict" and item.data["rule"] == CAUSE:
                    at.append(int(item.at * 1e9))
                    break
            watcher.stop()
            thread.join()
            # the hub stamps with wall time: both clocks read here tell how they differ
            offset = time.time_ns() - time.monotonic_ns()
            late.append((at[0] - offset - decisive) / 1e6 if at else float("inf"))
    return row(f"decisive byte → verdict, {noise} ({crashes} crashes)", late)


def at_client(base: Base, crashes: int = 100) -> str:
    """As `latency`, to the moment at which a client of the event stream has the verdict: through the web server and a
    socket, with the client on a thread of this process."""
    from app.service import Service
    from app.web.access import Access
    from app.web.app import create_app
    from app.web.server import Listen, Web

    late = []
    with writing("quiet") as (log, crash):
        for _ in range(crashes):
            log.unlink(missing_ok=True)
            log.touch()
            watcher = Watcher(base, Hub(), log)
            target = Watched("server", watcher, log.parent)
            service = Service(None, log.parent, {"server": target})  # type: ignore[arg-type]
            web = Web(Listen("127.0.0.1", 0), lambda service=service: create_app(service, Access()))
            web.start()
            web.wait()
            thread = threading.Thread(target=watcher.run)
            thread.start()
            with socket.create_connection(("127.0.0.1", web.listen.port), 10) as client:
                client.sendall(b"GET /api/targets/server/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                seen = client.recv(1 << 20)
                decisive = crash()
                while f'"{CAUSE}"'.encode() not in seen:
                    seen = seen[-4096:] + client.recv(1 << 20)
                at = time.monotonic_ns()
            late.append((at - decisive()) / 1e6)
            watcher.stop()
            thread.join()
            web.stop()
    return row(f"decisive byte → verdict at a client ({crashes} crashes)", late)


def relaunch(base: Base, runs: int = 30) -> str:
    decided, seen = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            argv = demo.prepare(demo.DEMOS["story"], Path(folder), 0.0)
            run = Run.new(Path(folder, "state"), argv, ROOT)
            hub = Hub()
            supervisor = Supervisor(base, hub, run, FileHistory(Path(folder, "h")), Settings("auto", release="0.5.9"))
            thread = threading.Thread(target=supervisor.run)
            thread.start()
            at: dict[str, float] = {}
            news = hub.subscribe(0)
            while (item := news.get(30)) is not None:
                if item.kind in ("exit", "relaunch") or (item.kind == "attempt" and "exit" in at):
                    at[item.kind] = item.at
                if item.kind == "state" and item.data["state"] == "ready":
                    break
            supervisor.stop()
            thread.join()
            run.close()
            decided.append((at["attempt"] - at["relaunch"]) * 1000)
            seen.append((at["attempt"] - at["exit"]) * 1000)
    rows = []
    for name, took in (("decision → relaunch started", decided), ("exit seen → relaunch started", seen)):
        took.sort()
        rows.append(f"| {name} ({runs} runs) | {took[len(took) // 2]:.0f} ms | {took[-1]:.0f} ms | {took[-1]:.0f} ms |")
    return "\n".join(rows)


def idle(base: Base, seconds: float = 20.0) -> str:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "server.log")
        log.write_bytes(STORY.read_bytes()[:20_000])
        watcher = Watcher(base, Hub(), log)
        thread = threading.Thread(target=watcher.run)
        thread.start()
        time.sleep(3)
        cpu = time.process_time()
        time.sleep(seconds)
        cpu = time.process_time() - cpu
        watcher.stop()
        thread.join()
    return f"| CPU of an idle watch in the middle of a start ({seconds:.0f} s) | {cpu / seconds * 100:.2f} % | | |"


def big(path: str) -> None:
    """Reads a whole log as `bringup watch` does; prints seconds and the largest memory in MB."""
    base, hub = load(), Hub()
    watcher = Watcher(base, hub, Path(path))
    size = os.stat(path).st_size
    thread = threading.Thread(target=watcher.run)
    begun = time.monotonic()
    thread.start()
    while watcher._reading.bytes < size:
        time.sleep(0.05)
    took = time.monotonic() - begun
    watcher.stop()
    thread.join()
    print(json.dumps([took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def memory(size: int = 1_000_000_000) -> str:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "server.log")
        with open(log, "wb") as file:
            file.write(STORY.read_bytes()[:20_000])
            for _ in range(size // (len(LINE) * 5000)):
                file.write(LINE * 5000)
            file.write(STORY.read_bytes())
        done = subprocess.run([sys.executable, __file__, "big", str(log)], capture_output=True, text=True, cwd=ROOT)
        took, most = json.loads(done.stdout)
    return f"| a log of {size / 1e9:.0f} GB | {took:.1f} s ({size / took / 1e6:.0f} MB/s) | memory {most:.0f} MB | |"


def early(base: Base) -> str:
    """How many recorded failures with a cause are named before the log is closed and the exit is known."""
    named = all_of_them = 0
    for case in cases(shipped_cases()):
        if case.cause in NOTHING or case.idle:
            continue
        told = case.status(base)
        if told.cause is None:
            continue
        all_of_them += 1
        reading = Reading(base, argv=told.argv)
        rows = reading.feed(case.log.read_bytes(), 0.0) + reading.look(0.0) + reading.look(1.0)
        named += any(row.kind == "verdict" and row.data["rule"] == told.cause.rule.id for row in rows)
    share = named / all_of_them * 100
    return f"| failures named before the exit is known | {named} of {all_of_them} ({share:.1f} %) | | |"


def main() -> None:
    crashes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    base = load()
    gc.freeze()
    sys.setswitchinterval(0.001)  # as bringup does
    print(f"{socket.gethostname()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| what | p50 | p99 | most |")
    print("|---|---|---|---|")
    print(early(base), flush=True)
    print(relaunch(base), flush=True)
    print(idle(base), flush=True)
    print(memory(), flush=True)
    for noise in ("quiet", "20 MB/s"):
        print(latency(base, crashes, noise), flush=True)
    print(at_client(base), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(*sys.argv[2:4])
    elif sys.argv[1:2] == ["big"]:
        big(sys.argv[2])
    else:
        main()
