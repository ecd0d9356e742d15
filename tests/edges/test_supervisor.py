"""Whole runs: a fake engine plays real recordings, the supervisor starts it, follows it, and starts it again."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import psutil
import pytest

from app.attempt import Limits
from app.history import FileHistory, keys
from app.outcome import TRANSIENT, Settings
from app.targets import NotStarted, Patience
from tests.edges.replay import FIXTURES, HEALTHY, STORY, base, engine, live, scene
from tests.edges.servers import free_port, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PIECEWISE = "--enable-piecewise-cuda-graph"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"
BROKEN = FIXTURES / "sglang-11275-2" / "server.log"
QUICK = Patience(ask=2, rest=0.2, kill=10, port=3)


@contextmanager
def answering(port: int) -> Iterator[None]:
    """Somebody else's server on a port: this process."""
    server = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def test_the_founding_crash_is_named_before_the_exit_and_the_fallback_becomes_ready(tmp_path: Path) -> None:
    gate = tmp_path / "may-exit"
    crash = scene(STORY, needs=[PIECEWISE], exit=-9, gates=[["exit", str(gate)]])
    port = free_port()
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=port)
    with live(tmp_path, argv, Settings(mode="auto", release="0.5.9")) as run:
        verdict = run.until(lambda news: news.kind == "verdict" and news.data["rule"] == CAUSE)
        assert verdict.data["stage"] in ("early", "refined")
        assert verdict.data["reason"]
        remedies = run.until("remedies").data["remedies"]
        assert remedies[0]["change"]["diff"] == [f"-{PIECEWISE}"]
        assert not run.of("exit"), "the process still waits at its gate"
        gate.touch()
        confirmed = run.until(lambda news: news.kind == "verdict" and news.data["stage"] == "confirmed")
        assert confirmed.data["rule"] == CAUSE
        relaunch = run.until("relaunch")
        assert relaunch.data["diff"] == [f"-{PIECEWISE}"]
        second = run.until("attempt")
        assert PIECEWISE not in second.data["argv"]
        ready = run.until("state")
        assert ready.data["state"] == "ready"
        assert run.hub.status["state"] == "ready"
        assert [row["rule"] for row in run.hub.status["attempts"]] == [CAUSE]
        run.supervisor.stop()
        outcome = run.rest()
        assert (outcome.state, outcome.status) == ("stopped", 0)
    logs = sorted(path.name for path in (tmp_path / "state" / "runs").glob("*/attempt-*.log"))
    assert logs == ["attempt-1.log", "attempt-2.log"]


def test_a_person_is_asked_and_chooses(tmp_path: Path) -> None:
    crash = scene(STORY, needs=[PIECEWISE], exit=-9)
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=free_port())
    with live(tmp_path, argv, Settings(mode="ask", attended=True, release="0.5.9")) as run:
        ask = run.until("ask")
        rungs = ask.data["rungs"]
        assert rungs[0]["diff"] == [f"-{PIECEWISE}"]
        assert run.hub.status["offers"] == rungs
        assert run.supervisor.state == "crashed"
        with pytest.raises(ValueError, match="'nothing' is not on offer"):
            run.supervisor.choose("nothing")
        run.supervisor.choose(rungs[0]["name"])
        assert run.until("relaunch").data["reason"] == "chosen"
        assert run.until("state").data["state"] == "ready"


@pytest.mark.parametrize(
    ("mode", "reason"), [("ask", "nobody is here to choose"), ("off", "fallbacks are switched off")]
)
def test_without_a_person_the_offer_is_the_end(mode: str, reason: str, tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE)
    with live(tmp_path, argv, Settings(mode=mode, release="0.5.9")) as run:  # type: ignore[arg-type]
        outcome = run.rest()
    assert outcome.text.startswith(reason)
    assert (outcome.state, outcome.status, outcome.rule) == ("crashed", 1, CAUSE)
    end = run.of("end")[0]
    assert end.data["rungs"][0]["title"] == "Run without prefill (piecewise) CUDA graphs"
    assert len(run.of("attempt")) == 1


def test_an_exhausted_ladder_says_what_was_tried_and_never_starts_the_same_twice(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE)  # whatever the flags, it crashes
    with live(tmp_path, argv, Settings(mode="auto", release="0.5.9")) as run:
        outcome = run.rest()
    launches = [tuple(news.data["argv"]) for news in run.of("attempt")]
    assert len(launches) == len(set(launches)) == 2
    assert f"; tried: 1. as given → {CAUSE}; 2. Run without prefill" in outcome.text
    assert (outcome.state, outcome.status) == ("crashed", 1)


def test_the_next_wall_gets_its_own_verdict_and_remedy(tmp_path: Path) -> None:
    small = "--mem-fraction-static"
    scenes = [
        scene(STORY, needs=[PIECEWISE], exit=-9),
        scene(FIXTURES / "real-slim-mem-fraction-tiny" / "server.log", needs=["0.001"], exit=-9),
        scene(HEALTHY, health=True),
    ]
    argv = engine(tmp_path, scenes, PIECEWISE, small, "0.001", port=free_port())
    with live(tmp_path, argv, Settings(mode="auto", release="0.5.9")) as run:
        ready = run.until(lambda news: news.kind == "state" and news.data["state"] == "ready")
        assert ready.data["attempt"] == 3
        rules = [row["rule"] for row in run.hub.status["attempts"]]
        assert rules == [CAUSE, "memory/kv-pool-no-room-raise-mem-fraction"]
        diffs = [row["diff"] for row in run.hub.status["attempts"]]
        assert diffs == [[], [f"-{PIECEWISE}"]]
        last = run.of("attempt")[-1].data
        assert PIECEWISE not in last["argv"], "what helped is kept"
        assert last["diff"] == [f"-{small} 0.001", f"+{small} 0.082"]


def test_a_start_that_stands_still_is_named_with_stacks_and_ended(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(STORY, until="(bs=256 ", children=2)])
    limits = Limits(silence=0.4, stalled=0.3, patience=QUICK)
    with live(tmp_path, argv, Settings(mode="auto", limits=limits)) as run:
        stalled = run.until("state")
        assert stalled.data["state"] == "stalled"
        assert "capturing the decode CUDA graphs" in stalled.text
        assert run.hub.status["state"] == "stalled"
        assert len(run.until("stacks").data["processes"]) == 3
        outcome = run.rest()
        assert (outcome.state, outcome.status) == ("stalled", 3)
        assert run.of("stop")[-1].data["ok"]


def test_a_start_that_goes_on_is_no_longer_stalled(tmp_path: Path) -> None:
    gate = tmp_path / "go-on"
    log = scene(HEALTHY, health=True, gates=[["Load weight end", str(gate)]])
    argv = engine(tmp_path, [log], port=free_port())
    with live(tmp_path, argv, Settings(limits=Limits(silence=0.4))) as run:
        assert run.until("state").data["state"] == "stalled"
        gate.touch()
        assert run.until("state").text == "the log goes on"
        assert run.until("state").data["state"] == "ready"


def test_a_port_that_is_taken_is_said_at_once_and_by_whom(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        argv = engine(tmp_path, [scene(HEALTHY)], port=port)
        with (
            live(tmp_path, argv) as run,
            pytest.raises(NotStarted, match=rf"port {port}: in use, held by {os.getpid()} "),
        ):
            run.rest()
    assert not run.of("attempt")


def test_a_stranger_that_answers_on_the_port_is_not_our_server(tmp_path: Path) -> None:
    gate = tmp_path / "say-ready"
    port = free_port()
    argv = engine(tmp_path, [scene(HEALTHY, gates=[["fired up", str(gate)]])], port=port)
    with live(tmp_path, argv) as run:
        run.until(lambda news: news.kind == "phase" and "warm-up" in news.text)
        with answering(port):
            gate.touch()
            run.until("said")
            health = run.until("health")
            assert health.text.startswith(f"port {port} answers, but it belongs to somebody else: {os.getpid()} ")
            assert run.supervisor.state == "starting"


def test_a_server_that_found_its_port_taken_is_ended_and_started_again_unchanged(tmp_path: Path) -> None:
    log = FIXTURES / "real-port-in-use" / "server.log"
    argv = engine(tmp_path, [scene(log, deaf=True, children=1)], port=free_port())
    with live(tmp_path, argv, Settings(mode="auto", limits=Limits(linger=0.5, patience=QUICK))) as run:
        verdict = run.until("verdict")
        assert verdict.data["rule"] == "host/port-in-use"
        assert "has not ended within 0.5 s" in run.until("stopping").text
        again = run.until("relaunch")
        assert again.data["reason"] == "the port may be free in a moment"
        assert again.text == "the same launch again in 2 s: the port may be free in a moment"


def test_processes_that_the_server_leaves_behind_are_ended(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9, children=3)], PIECEWISE)
    with live(tmp_path, argv, Settings(mode="off", limits=Limits(patience=QUICK))) as run:
        run.until("exit")
        assert run.until("stopping").text.startswith("it left processes behind: ")
        assert run.rest().state == "crashed"
        assert run.of("stop")[-1].data["ok"]


def test_history_gives_the_time_left_and_the_launch_that_was_ready_last(tmp_path: Path) -> None:
    crash = scene(STORY, needs=[PIECEWISE], exit=-9)
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=free_port())
    with live(tmp_path, argv, Settings(mode="auto", release="0.5.9")) as run:
        run.until(lambda news: news.kind == "state" and news.data["state"] == "ready")
    history = FileHistory(tmp_path / "state" / "history.jsonl")
    key, model = keys(run.of("attempt")[-1].data["argv"])
    durations = history.durations(key, model)
    assert durations["weights"] == [pytest.approx(0.05)]
    assert len(durations[""]) == 1
    last = history.last_ready(model)
    assert last is not None
    assert PIECEWISE not in last.argv
    assert (tmp_path / "state" / "history.jsonl").stat().st_mode & 0o077 == 0
    # With no remedy of its own, the next failure falls back on it.
    argv = engine(tmp_path, [scene(BROKEN, needs=["--unknown"], exit=1), scene(HEALTHY, health=True)], "--unknown",
                  port=free_port())  # fmt: skip
    with live(tmp_path, argv, Settings(mode="auto")) as run:
        relaunch = run.until("relaunch")
        assert relaunch.data["rung"] == "before"
        assert "---unknown" in relaunch.data["diff"]
        assert run.until("state").data["state"] == "ready"


def test_secrets_are_masked_in_everything_that_is_told(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, "--api-key", "veryhidden")
    with live(tmp_path, argv, Settings(mode="auto", release="0.5.9")) as run:
        run.rest()
    told = json.dumps([news.to_json() for news in run.seen]) + json.dumps(dict(run.hub.status))
    assert "veryhidden" not in told
    second = run.of("attempt")[1].data["argv"]
    assert second[second.index("--api-key") + 1] == "***"
    run_file = next((tmp_path / "state" / "runs").glob("*/run.json"))
    assert run_file.stat().st_mode & 0o077 == 0


def test_a_ready_server_that_no_longer_answers_or_loses_a_process_is_told(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(HEALTHY, health=True, children=1)], port=free_port())
    with live(tmp_path, argv, Settings(limits=Limits(look=0.2, patience=QUICK))) as run:
        pid = run.until("attempt").data["pid"]
        run.until(lambda news: news.kind == "state" and news.data["state"] == "ready")
        (child,) = psutil.Process(pid).children()
        until(lambda: run.hub.status["processes"] == 2, "both processes are known")
        child.kill()
        assert run.until("process").data["pid"] == child.pid
        os.kill(pid, signal.SIGSTOP)
        assert "it no longer answers" in run.until("health").text
        os.kill(pid, signal.SIGCONT)
        assert "it answers again" in run.until("health").text
        assert run.supervisor.state == "ready"


def test_a_crash_after_ready_is_a_crash(tmp_path: Path) -> None:
    gate = tmp_path / "may-die"
    log = FIXTURES / "real-organic-oom-kill-after-ready" / "server.log"
    argv = engine(tmp_path, [scene(log, health=True, exit=-9, gates=[["exit", str(gate)]])], port=free_port())
    with live(tmp_path, argv, Settings(mode="off")) as run:
        run.until(lambda news: news.kind == "state" and news.data["state"] == "ready")
        gate.touch()
        outcome = run.rest()
    assert (outcome.state, outcome.status, outcome.was_ready) == ("crashed", 1, True)
    assert run.of("exit")[0].data == {"status": -9, "oom": False, "evidence": ANY, "attempt": 1}


def test_every_passing_cause_is_a_rule() -> None:
    assert [name for name in TRANSIENT if base().find(name) is None] == []
