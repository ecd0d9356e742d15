"""`bringup run`, `watch` and `demo` as a person starts them: exit statuses, Ctrl-C, bad input, a terminal, and bringup
itself killed at any moment."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.reading import Reading
from app.targets.processes import look
from tests.edges.replay import HEALTHY, ROOT, STORY, base, engine, scene, sweep
from tests.edges.servers import free_port, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PIECEWISE = "--enable-piecewise-cuda-graph"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"


def bringup(*words: object) -> list[str]:
    return [sys.executable, "-m", "app.cli", *map(str, words)]


@contextmanager
def started(folder: Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """`bringup` with these words, its output in out.txt and err.txt; nothing of its runs survives."""
    with open(folder / "out.txt", "a") as out, open(folder / "err.txt", "a") as err:
        process = subprocess.Popen(
            bringup(*words), stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=ROOT, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        left = [name for run in (folder / "state" / "runs").glob("*") for name in sweep(run.name)]
        if process.returncode == -signal.SIGKILL:
            left = []  # killed by the test itself: the server outlives it
        assert not left, f"left: {left}"


def news(folder: Path) -> list[dict[str, Any]]:
    """Every news written down by the runs in a folder, in order."""
    rows = []
    for file in sorted((folder / "state" / "runs").glob("*/news.jsonl")):
        for line in file.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


def told(folder: Path, kind: str, **data: object) -> list[dict[str, Any]]:
    wanted = data.items()
    return [row for row in news(folder) if row["kind"] == kind and all(row["data"].get(k) == v for k, v in wanted)]


def run_words(folder: Path, argv: Sequence[str], *options: object) -> list[object]:
    return ["run", "--state-dir", folder / "state", "--engine-version", "0.5.9", *options, "--", *argv]


# --- exit statuses and Ctrl-C -----------------------------------------------------------------------------------------


def test_ready_then_ctrl_c_stops_the_server_and_ends_with_0(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(HEALTHY, health=True)], port=free_port())
    with started(tmp_path, *run_words(tmp_path, argv)) as process:
        until(lambda: told(tmp_path, "state", state="ready"), "ready")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    said = (tmp_path / "err.txt").read_text()
    assert "bringup: stopping the server; once more leaves at once and lets it run" in said
    assert "bringup: stopped: asked to stop" in said
    assert [row["data"]["ok"] for row in told(tmp_path, "stop")][-1]


def test_ctrl_c_before_ready_is_130(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(STORY, until="Load weight end")])
    with started(tmp_path, *run_words(tmp_path, argv, "--json")) as process:
        until(lambda: told(tmp_path, "phase", phase="weights"), "the weights are loaded")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    rows = [json.loads(line) for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["kind"] == "over"
    assert rows[-1]["data"]["status"] == 130


def test_ctrl_c_twice_leaves_at_once_and_says_what_still_runs(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(HEALTHY, health=True, deaf=True)], port=free_port())
    with started(tmp_path, *run_words(tmp_path, argv)) as process:
        until(lambda: told(tmp_path, "state", state="ready"), "ready")
        pid = told(tmp_path, "attempt")[0]["data"]["pid"]
        process.send_signal(signal.SIGINT)
        until(lambda: told(tmp_path, "stop", step="ask"), "the server was asked to end")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        found = look(pid)
        assert found is not None
        assert found.alive
        said = (tmp_path / "err.txt").read_text()
        assert f"bringup: left running: still running: {pid} (python" in said
        assert "goes on with it" in said
        sweep(told(tmp_path, "attempt")[0]["data"]["log"].split("/")[-2])


def test_failed_is_1_and_says_why(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE)
    with started(tmp_path, *run_words(tmp_path, argv)) as process:
        assert process.wait(30) == 1
    out = (tmp_path / "out.txt").read_text()
    assert "ROOT CAUSE (confirmed): torch.compile traced into FlashInfer's FP4 kernel build" in out
    assert f"- {PIECEWISE}" in out
    assert "nobody is here to choose" in (tmp_path / "err.txt").read_text()


def test_standing_still_is_3(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(STORY, until="(bs=256 ")])
    options = ("--silence", "0.4", "--stall-timeout", "0.2", "--fallback", "off")
    with started(tmp_path, *run_words(tmp_path, argv, *options)) as process:
        assert process.wait(30) == 3


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--", "no-such-command"], "command not found: no-such-command"),
        (["run", "--", "/etc"], "cannot run /etc: it is a directory"),
        (["run", "--", "/etc/passwd"], "cannot run /etc/passwd: it is not executable"),
        (["run", "--state-dir", "/etc/passwd", "--", "true"], "cannot keep the run's state below /etc/passwd"),
        (["run", "--log-dir", "/etc/passwd", "--", "true"], "a part of that path is a file"),
        (["run", "--health-url", "ftp://x", "--", "true"], "'ftp://x' is no http:// or https:// address"),
        (["run"], "Missing argument '-- CMD...'"),
        (["watch", "/etc"], "/etc: is a directory; name the log file in it"),
    ],
)
def test_bad_input_is_told_at_once(words: list[str], message: str, tmp_path: Path) -> None:
    if "--state-dir" not in words and words[0] == "run" and len(words) > 1:
        words = ["run", "--state-dir", str(tmp_path), *words[1:]]
    done = subprocess.run(bringup(*words), capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(("asked", "status", "said"), [("refuse", 2, True), ("warn", 1, True), ("off", 1, False)])
def test_what_will_break_is_told_before_the_start(asked: str, status: int, said: bool, tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=2)], "--no-such-flag")
    words = run_words(tmp_path, argv, "--preflight", asked, "--fallback", "off", "--engine-version", "0.5.9")
    done = subprocess.run(bringup(*words), capture_output=True, text=True, cwd=ROOT, timeout=40)
    assert done.returncode == status
    assert ("will fail: This release does not know an argument" in done.stderr) is said
    assert ("nothing was started" in done.stderr) is (asked == "refuse")
    assert bool(list(tmp_path.rglob("attempt-1.log"))) is (asked != "refuse")


def test_a_port_that_is_taken_is_told_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        argv = engine(tmp_path, [scene(HEALTHY)], port=port)
        done = subprocess.run(bringup(*run_words(tmp_path, argv)), capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.returncode == 2
    assert f"port {port}: in use, held by {os.getpid()} " in done.stderr


def test_the_same_command_twice_at_once_is_refused(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(HEALTHY, health=True)], port=free_port())
    with started(tmp_path, *run_words(tmp_path, argv)) as process:
        until(lambda: told(tmp_path, "state", state="ready"), "ready")
        again = subprocess.run(
            bringup(*run_words(tmp_path, argv)), capture_output=True, text=True, cwd=ROOT, timeout=30
        )
        assert again.returncode == 2
        assert f"this command is being run already, by bringup {process.pid}" in again.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


# --- bringup killed ---------------------------------------------------------------------------------------------------


def phases_of(log: Path) -> list[str]:
    """The phases of a recording, as one undisturbed reading tells them."""
    reading = Reading(base(), argv=["python", "-m", "sglang.launch_server", PIECEWISE])
    told = reading.feed(log.read_bytes(), 0.0) + reading.close(["-9"], 1.0)
    return [item.text for item in told if item.kind == "phase"]


def catches(pid: int, which: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (which - 1) & 1)


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments_it_goes_on_with_the_same_run(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    gates = {
        text: tmp_path / f"gate-{place}" for place, text in enumerate(["Load weight end", "Capture piecewise", "exit"])
    }
    pairs = [[text, str(gate)] for text, gate in gates.items()]
    crash = scene(STORY, needs=[PIECEWISE], exit=-9, speed=400, gap=0.05, gates=pairs)
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=free_port())
    words = run_words(tmp_path, argv, "--fallback", "auto", "--json")
    with started(tmp_path, *words) as last:
        process = last
        for gate in gates.values():  # killed at any moment of each stretch, before or after its gate opens
            if chance.random() < 0.5:
                gate.touch()
            time.sleep(chance.uniform(0.15, 1.0))
            process.kill()
            process.wait()
            gate.touch()
            out = open(tmp_path / "out.txt", "a")  # noqa: SIM115
            process = subprocess.Popen(
                bringup(*words), stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=ROOT, text=True
            )
            out.close()
        try:
            until(lambda: told(tmp_path, "state", state="ready"), "ready", 60)
            # "ready" may have been told by one that was killed: this one must be far enough to hear the signal
            until(lambda: catches(process.pid, signal.SIGTERM), "the last one up", 60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, (tmp_path / "out.txt").read_text()[-2000:]
        finally:
            process.kill()
            process.wait()
    runs = list((tmp_path / "state" / "runs").iterdir())
    assert len(runs) == 1, "the same run"
    logs = {path.name: path.read_bytes() for path in runs[0].glob("attempt-*.log")}
    assert logs.keys() == {"attempt-1.log", "attempt-2.log"}
    assert logs["attempt-1.log"] == STORY.read_bytes(), "the server was never disturbed"
    rows = news(tmp_path)
    told_once = [row["key"] for row in rows if row["key"]]
    assert len(told_once) == len(set(told_once)), "nothing is told twice"
    assert [row["id"] for row in rows] == sorted({row["id"] for row in rows})
    first = [row for row in rows if row["data"].get("attempt") == 1]
    assert [row["text"] for row in first if row["kind"] == "phase"] == phases_of(STORY), "no line lost"
    confirmed = [row for row in first if row["kind"] == "verdict" and row["data"]["stage"] == "confirmed"]
    assert [row["data"]["rule"] for row in confirmed] == [CAUSE]
    assert len({row["data"]["pid"] for row in rows if row["kind"] == "attempt"}) == 2


# --- watch ------------------------------------------------------------------------------------------------------------


def test_watch_follows_a_log_that_comes_later_and_its_next_start(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    process = subprocess.Popen(
        bringup("watch", log, "--state-dir", tmp_path / "state", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert process.stdout is not None
    try:
        seen: list[dict[str, Any]] = []

        def next_of(kind: str, **data: object) -> dict[str, Any]:
            assert process.stdout is not None
            for line in process.stdout:
                seen.append(json.loads(line))
                if seen[-1]["kind"] == kind and all(seen[-1]["data"].get(k) == v for k, v in data.items()):
                    return seen[-1]
            raise AssertionError(f"no {kind} {data} in {[row['kind'] for row in seen]}")

        assert next_of("watching")["text"].endswith("server.log, which is not there yet")
        log.write_bytes(STORY.read_bytes())
        assert next_of("verdict", rule=CAUSE)
        assert next_of("remedies")["data"]["remedies"][0]["title"] == "Run without prefill (piecewise) CUDA graphs"
        with open(log, "ab") as more:
            more.write(HEALTHY.read_bytes().partition(b"[2026-12-01 06:32:05] SIGTERM")[0])
        assert next_of("again")
        assert next_of("state", state="ready")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


# --- demo and the terminal --------------------------------------------------------------------------------------------


def test_the_demo_tells_the_founding_story_to_its_good_end() -> None:
    done = subprocess.run(
        bringup("demo", "--speed", "400", "--no-tui"), capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.index("ROOT CAUSE (early)") < done.stdout.index("exit: SIGKILL")
    assert f"relaunch: Run without prefill (piecewise) CUDA graphs: against {CAUSE}" in done.stdout
    assert "state: ready: http://127.0.0.1:" in done.stdout


def test_on_a_terminal_a_key_chooses_the_remedy() -> None:
    """The picture in a real pseudo-terminal: phases, the card, the diff, a key, and the server that becomes ready."""
    words = bringup("demo", "--speed", "400", "--fallback", "ask")
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.environ.update(TERM="xterm-256color", COLUMNS="120", LINES="50")
        os.execv(words[0], words)
    drawn, pressed, status = b"", False, None
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if select.select([fd], [], [], 0.1)[0]:
                try:
                    drawn += os.read(fd, 65536)
                except OSError:
                    break
            if not pressed and b"press 1" in drawn:
                pressed = True
                os.write(fd, b"1")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(fd)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode("utf-8", "replace"))
    assert status == 0, text[-3000:]
    for part in ("root cause (", "loading the weights", "- --enable-piecewise-cuda-graph", "[1] Run without prefill",
                 " ready "):  # fmt: skip
        assert part in text, f"{part!r} not in {text[-3000:]}"
