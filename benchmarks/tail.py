"""What following a file costs: latency from write to read, CPU, and throughput; prints a small markdown table.

Run by hand: `python benchmarks/tail.py`. Another process writes; CPU is that of this one with all its threads.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from app.tail import Tail

SECONDS = 6.0


def write(path: str, kind: str) -> None:
    """The writing process. Each line begins with the time it was written, in ns of the monotonic clock."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    start = time.monotonic()
    number = 0
    while (now := time.monotonic() - start) < SECONDS:
        number += 1
        if kind == "50 MB/s":
            os.write(fd, b"x" * (512 * 1024))
            pause = number * 512 * 1024 / 50e6 - now
        elif kind == "1000 lines/s":
            os.write(fd, b"%d %s\n" % (time.monotonic_ns(), b"x" * 120))
            pause = number / 1000 - now
        else:  # now and then
            os.write(fd, b"%d %s\n" % (time.monotonic_ns(), b"x" * 120))
            pause = random.uniform(0.02, 0.04)
        if pause > 0:
            time.sleep(pause)


def pieces(tail: Tail, seconds: float) -> Iterator[bytes]:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for piece in tail.read():
            if isinstance(piece, bytes):
                yield piece
        tail.wait(left)


def measure(name: str, kind: str | None, *, beside: str | None = None, poll: float = 1.0) -> str:
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "server.log")
        Path(log).touch()
        with Tail(log, poll=poll) as tail:
            list(pieces(tail, 1.0))  # imports, watches
            writers = [
                subprocess.Popen([sys.executable, __file__, os.path.join(folder, file), what])
                for file, what in (("server.log", kind), ("other.log", beside))
                if what
            ]
            cpu, got = time.process_time(), []
            for piece in pieces(tail, SECONDS):
                got.append((time.monotonic_ns(), len(piece), piece if kind != "50 MB/s" else b""))
            cpu = time.process_time() - cpu
            for writer in writers:
                writer.wait()
    size, rest, late = sum(length for _, length, _ in got), b"", []
    for now, _, piece in got:
        *lines, rest = (rest + piece).split(b"\n")
        late += [(now - int(line.split(b" ", 1)[0])) / 1e6 for line in lines]
    late.sort()
    half, most, all_ = (f"{late[int(len(late) * at)]:.2f}" if late else "–" for at in (0.5, 0.99, 0.9999))
    rate = f"{size / SECONDS / 1e6:.1f}" if size else "–"
    return f"| {name} | {half} | {most} | {all_} | {cpu / SECONDS * 100:.2f} | {len(got) / SECONDS:.0f} | {rate} |"


def backlog(size: int = 500_000_000) -> str:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "server.log")
        log.write_bytes(b"x" * size)
        with Tail(log) as tail:
            start, cpu, seen = time.monotonic(), time.process_time(), 0
            while seen < size:
                seen += sum(len(piece) for piece in tail.read() if isinstance(piece, bytes))
            took, cpu = time.monotonic() - start, time.process_time() - cpu
    return f"| {size // 10**6} MB already there | – | – | – | {cpu / took * 100:.0f} | – | {size / took / 1e6:.0f} |"


def main() -> None:
    print("| what | p50 ms | p99 ms | max ms | CPU % of a core | pieces/s | MB/s |")
    print("|---|---|---|---|---|---|---|")
    print(measure("idle", None), flush=True)
    print(measure("a line every 20-40 ms", "now and then"), flush=True)
    print(measure("1000 lines/s", "1000 lines/s"), flush=True)
    print(measure("a line every 20-40 ms, 1000/s beside", "now and then", beside="1000 lines/s"), flush=True)
    print(measure("50 MB/s", "50 MB/s"), flush=True)
    print(backlog())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(*sys.argv[1:3])
    else:
        main()
