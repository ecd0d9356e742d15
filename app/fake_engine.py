"""A recorded start-up in, the same bytes again out, at a chosen pace, with a health port and the recorded end.

It stands where the engine would: a plan (a JSON file named by FAKE_ENGINE in the environment) lists scenes, and the
first one that fits the command line is played. So a relaunch with other flags takes another course, as in life.

    {"scenes": [{"needs": ["--enable-piecewise-cuda-graph"], "log": "crash.log", "exit": -9},
                {"log": "healthy.log", "speed": 20, "health": true}]}

Only the standard library, and nothing of bringup: it starts as fast as Python does.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PLAN = "FAKE_ENGINE"

_TIME = re.compile(
    rb"^(?:\x1b\[[\d;]*m)*\[?\D{0,8}(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?"
)
_BAR = re.compile(rb"\[(?:(\d+):)?(\d\d):(\d\d)<")
_READY = (b"fired up and ready to roll", b"Application startup complete")
_OPEN = (b"Uvicorn running on", b"fired up and ready to roll", b"Application startup complete")
_ENDING = re.compile(rb"SIGTERM received|Received SIGTERM|Shutting down|Gracefully exiting|^KeyboardInterrupt")


@dataclass(frozen=True, slots=True)
class Scene:
    """One course that a start may take.

    `needs` and `lacks` are words of the command line that choose it. `log` is the recording; `until` cuts it before
    the first piece that holds that text. `speed` is how many recorded seconds pass in one (0: no pauses), `gap` the
    longest pause in seconds. `exit` is the status at the recording's end (−n: dies by signal n); None: it stays, as a
    server that is ready or hangs does, until SIGTERM, on which it writes what the recording has after it and ends with
    `stopped`. `health` opens the port of the command line (`--port`) when the recording says so, `port` another.
    `deaf` ignores SIGTERM; `children` start that many processes beside it. `gates` are [text, file] pairs: before the
    piece that holds the text, and for the text "exit" before the end, it waits until the file is there.
    """

    log: str
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    until: str = ""
    speed: float = 0.0
    gap: float = 2.0
    exit: int | None = None
    stopped: int = 0
    health: bool = False
    port: int | None = None
    deaf: bool = False
    children: int = 0
    gates: tuple[tuple[str, str], ...] = field(default=())

    def fits(self, argv: Sequence[str]) -> bool:
        """Whether this course is for that command line."""
        return all(word in argv for word in self.needs) and not any(word in argv for word in self.lacks)


def read_plan(path: Path) -> list[Scene]:
    """The scenes of a plan file; logs are relative to it. ValueError for what is no plan."""
    try:
        rows = json.loads(path.read_bytes())["scenes"]
        scenes = [Scene(**{**row, "log": str(path.parent / row["log"])}) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        known = ", ".join(each.name for each in fields(Scene))
        raise ValueError(f"{path}: is no plan of a fake engine: {error!r} (a scene has {known})") from error
    return scenes


def pieces(data: bytes) -> list[tuple[float | None, bytes]]:
    """A recording as what was written at once: (seconds since its first time, None before any; bytes).

    Times are those of the log lines and, within a bar, those that the bar shows; what carries none is spread between
    its neighbours.
    """
    parts = [part for line in data.splitlines(keepends=True) for part in re.findall(rb"[^\r]*\r\n?|[^\r]+", line)]
    parts = [part for part in parts if part]
    times: list[float | None] = []
    first: float | None = None
    last = bar = 0.0
    for part in parts:
        found, drawn = _TIME.match(part), _BAR.search(part)
        if found:
            year, month, day, hour, minute, second = (int(group or 0) for group in found.groups()[:6])
            now = ((year * 372 + month * 31 + day) * 24 + hour) * 3600.0 + minute * 60 + second
            now += float(b"0." + (found[7] or b"0"))
            first = now if first is None else first
            last = bar = max(last, now - first)
            times.append(last)
        elif drawn and first is not None:
            shown = int(drawn[1] or 0) * 3600 + int(drawn[2]) * 60 + int(drawn[3])
            last = max(last, bar + shown)
            times.append(last)
        else:
            times.append(None)
    return list(zip(_spread(times), parts, strict=True))


def _spread(times: list[float | None]) -> list[float | None]:
    """Times for what has none, evenly between the neighbours that have one."""
    known = [place for place, value in enumerate(times) if value is not None]
    for before, after in itertools.pairwise(known):
        low, high = times[before], times[after]
        assert low is not None
        assert high is not None
        for place in range(before + 1, after):
            times[place] = low + (high - low) * (place - before) / (after - before)
    return times


class FakeEngine:
    """Plays one scene. `play` returns the exit status, negative for a signal to die by."""

    def __init__(self, scene: Scene, argv: Sequence[str], out: int = 1) -> None:
        self.scene = scene
        self.argv = list(argv)
        self.out = out
        self._asked = threading.Event()
        self._ready = threading.Event()

    def play(self) -> int:
        """Writes the recording and ends as it did."""
        scene = self.scene
        signal.signal(signal.SIGTERM, signal.SIG_IGN if scene.deaf else lambda *_: self._asked.set())
        for _ in range(scene.children):
            _child()
        ending = False
        for data in self._paced():
            if scene.exit is None and not ending and self._ready.is_set() and _ENDING.search(data):
                self._wait()  # the recorded stop happens when somebody asks for it
                ending = True
            self._gate(data)
            _write(self.out, data)
            if any(text in data for text in _OPEN):
                self._open()
            if any(text in data for text in _READY):
                self._ready.set()
            if self._asked.is_set() and not ending:
                break
        self._gate(b"exit")
        if scene.exit is not None and not self._asked.is_set():
            return scene.exit
        self._wait()
        return scene.stopped

    def _wait(self) -> None:
        while not self._asked.wait(3600):
            pass

    def _paced(self) -> Iterator[bytes]:
        scene = self.scene
        before: float | None = None
        for at, data in pieces(Path(scene.log).read_bytes()):
            if scene.until and scene.until.encode() in data:
                return
            if scene.speed and at is not None:
                if before is not None and at > before:
                    self._asked.wait(min((at - before) / scene.speed, scene.gap))
                before = at
            yield data

    def _gate(self, data: bytes) -> None:
        for text, file in self.scene.gates:
            if text.encode() in data:
                while not os.path.exists(file) and not self._asked.is_set():
                    time.sleep(0.005)

    def _open(self) -> None:
        port = self.scene.port or (port_of(self.argv) if self.scene.health else None)
        if port is None or any(thread.name == "health" for thread in threading.enumerate()):
            return
        server = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._serve, args=(server,), name="health", daemon=True).start()

    def _serve(self, server: socket.socket) -> None:
        """Answers every request: 200 once ready, 503 before."""
        while True:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(2)
                try:
                    connection.recv(65536)
                    status = b"200 OK" if self._ready.is_set() else b"503 Service Unavailable"
                    connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                except OSError:
                    continue


def _child() -> None:
    """A process beside the engine that works on until it is ended, as a scheduler does; deaf to SIGTERM as a hung one
    is, and not waited for."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            time.sleep(1)
        os._exit(0)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def port_of(argv: Sequence[str]) -> int | None:
    """The value of `--port` in a command line."""
    for place, word in enumerate(argv):
        value = word.removeprefix("--port=") if word.startswith("--port=") else ""
        if word == "--port" and place + 1 < len(argv):
            value = argv[place + 1]
        if value.isdecimal():
            return int(value)
    return None


def main(argv: Sequence[str] | None = None, environ: Any = os.environ) -> None:
    """Plays the first scene of the plan that fits the command line; status 64 where none does."""
    words = list(sys.argv[1:] if argv is None else argv)
    scene = next((scene for scene in read_plan(Path(environ[PLAN])) if scene.fits(words)), None)
    if scene is None:
        sys.stderr.write("fake engine: no scene of the plan fits this command line\n")
        sys.exit(64)
    status = FakeEngine(scene, words).play()
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        signal.pause()
    os._exit(status)


if __name__ == "__main__":
    main()
