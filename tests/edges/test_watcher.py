"""What a watched start teaches: how long the next one of the same model takes."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from app.core.launch import find_launch
from app.history import FileHistory, keys, printed_keys
from app.hub import Hub
from app.knowledge import load
from app.watcher import Watcher
from tests.edges.servers import until

HEALTHY = Path(__file__).parents[2] / "fixtures" / "real-slim-healthy-0.5.23" / "server.log"
HOW_MANY = 40
"""Pieces that a start is written in."""


def watch(log: Path, history: FileHistory) -> tuple[Watcher, threading.Thread]:
    watcher = Watcher(load(), Hub(), log, history=history)
    thread = threading.Thread(target=watcher.run, name="watcher")
    thread.start()
    return watcher, thread


def test_a_watched_start_is_remembered_and_the_next_one_knows_what_is_usual(tmp_path: Path) -> None:
    data = HEALTHY.read_bytes()
    data = data[: data.index(b"\n", data.index(b"fired up")) + 1]  # what follows is its end
    history = FileHistory(tmp_path / "history.jsonl")
    log = tmp_path / "server.log"
    watcher, thread = watch(log, history)
    try:
        lines = data.splitlines(keepends=True)
        with open(log, "wb", buffering=0) as file:
            for place in range(0, len(lines), max(1, len(lines) // HOW_MANY)):
                file.write(b"".join(lines[place : place + max(1, len(lines) // HOW_MANY)]))
                written = os.fstat(file.fileno()).st_size
                until(lambda written=written: watcher.hub.status.get("bytes") == written, "the piece is read")
        until(lambda: watcher.hub.status["state"] == "ready", "ready")
        assert watcher.hub.status["usual"] == {}
    finally:
        watcher.stop()
        thread.join(10)
    (entry,) = history.entries()
    assert (entry.state, entry.argv, entry.log) == ("ready", (), str(log))
    assert entry.phases
    assert entry.ready_after is not None
    assert 0 < entry.ready_after < time.monotonic()

    log.write_bytes(data)  # what is there already says nothing of times: nothing is learned twice
    watcher, thread = watch(log, history)
    try:
        until(lambda: watcher.hub.status.get("state") == "ready", "ready")
        usual = watcher.hub.status["usual"]
        assert set(usual) == {*entry.phases, ""}
        assert usual[""] == round(entry.ready_after, 1)
    finally:
        watcher.stop()
        thread.join(10)
    assert all(each.ready_after is None for each in list(history.entries())[1:])
    assert history.last_ready(entry.model) is None


def test_starts_of_our_own_and_watched_ones_are_of_the_same_model() -> None:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "/models/glm", "--tp", "8", "--port", "1"]
    launch = find_launch(argv)
    assert launch is not None
    values = {"model_path": "/models/glm", "tp_size": "8", "port": "30000", "random_seed": "12"}
    assert printed_keys(launch.engine, values)[1] == keys(argv)[1]
    assert printed_keys("sglang", values) == printed_keys("sglang", {**values, "port": "1", "random_seed": "3"})
    assert printed_keys("sglang", values)[0] != printed_keys("sglang", {**values, "tp_size": "4"})[0]
