"""Stopping real process trees that resist, ports and who holds them, stacks of what stands still."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.targets import stacks
from app.targets.child import Child
from app.targets.ladder import Patience, Step, stop
from app.targets.ports import check, listeners
from app.targets.processes import Ident, Tree, living, look, marked, send, snapshot
from tests.edges.servers import free_port, gone, ident, pid_said, said, server, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
SHORT = Patience(ask=0.3, rest=0.2, kill=10, port=3)


def begin(child: Child, log: Path, *argv: object) -> Path:
    child.start(server(*map(str, argv)), None, log)
    until(said(log, "ready"), "the server is ready")
    return log


def names(steps: list[Step]) -> list[str]:
    return [step.name for step in steps]


def test_a_polite_server_is_asked_and_goes(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child.start(server("count", 1, 0), None, log)
    until(said(log, "done"))
    steps = list(child.stop())
    assert names(steps) == ["ask", "wait", "verify"]
    assert all(step.ok for step in steps)
    assert steps[-1].text == "no process is left"
    assert not steps[-1].left
    ended = until(child.poll)
    assert ended.status == 5


def test_steps_tell_when_and_how_long(child: Child, tmp_path: Path) -> None:
    begin(child, tmp_path / "log", "deaf")
    steps = list(child.stop(SHORT))
    assert names(steps) == ["ask", "wait", "kill", "verify"]
    ask, wait, kill, verify = steps
    assert "SIGTERM" in ask.text
    assert wait.took >= SHORT.ask
    assert not wait.ok
    assert wait.text == "the server did not end; 1 process left"
    assert f"killed (SIGKILL) {ask.left[0].pid} (python" in kill.text
    for before, after in itertools.pairwise(steps):
        assert after.at == pytest.approx(before.at + before.took)
    assert verify.ok
    ended = until(child.poll)
    assert ended.status == -signal.SIGKILL


def test_nothing_to_stop_is_no_error(tmp_path: Path) -> None:
    never = Child(tmp_path / "state.json", "never")
    steps = list(never.stop())
    assert names(steps) == ["ask", "verify"]
    assert steps[-1].ok


def test_a_double_forked_grandchild_goes_with_the_server(child: Child, tmp_path: Path) -> None:
    log = begin(child, tmp_path / "log", "leave", "stay", "marked")
    grandchild = ident(pid_said(log, "grandchild"))
    assert grandchild in [p.ident for p in child.processes()]
    assert list(child.stop(SHORT))[-1].ok
    assert gone(grandchild)()


def test_a_grandchild_without_the_marker_is_found_by_its_ancestry(child: Child, tmp_path: Path) -> None:
    log = begin(child, tmp_path / "log", "leave", "stay", "bare")
    grandchild = ident(pid_said(log, "grandchild"))
    assert not marked(grandchild.pid, child.run)
    assert list(child.stop(SHORT))[-1].ok
    assert gone(grandchild)()


@pytest.mark.parametrize("dress", ["marked", "bare"])
def test_orphans_of_a_dead_server_are_stopped(child: Child, tmp_path: Path, dress: str) -> None:
    port = free_port()
    child.ports = (port,)
    log = begin(child, tmp_path / "log", "leave", "die", dress, port)
    ended = until(child.poll)
    assert ended.status == 0
    assert not child.alive()
    grandchild = pid_said(log, "grandchild")
    use = check(port, "127.0.0.1")
    assert not use.free
    assert [holder.pid for holder in use.listeners] == [grandchild]
    assert f"held by {grandchild} (python" in str(use)

    steps = list(child.stop(SHORT))
    assert names(steps) == ["ask", "wait", "kill", "verify", "port"]
    assert steps[0].text.startswith("asked what is left to end (SIGTERM)")
    assert steps[-1].ok
    assert steps[-1].text == f"port {port} is free"


def test_orphans_are_found_by_marker_and_session_when_the_keeper_is_dead_too(child: Child, tmp_path: Path) -> None:
    log = begin(child, tmp_path / "log", "leave", "stay", "marked")
    grandchild = ident(pid_said(log, "grandchild"))
    assert child.state
    os.kill(child.state.keeper, signal.SIGKILL)
    os.kill(child.state.pid, signal.SIGKILL)
    until(gone(ident_of(child)), "the server is dead")
    fresh = Tree(ident_of(child), child.run)  # as a restarted bringup would look: nothing remembered
    assert [p.ident for p in fresh.refresh()] == [grandchild]
    assert list(stop(fresh, patience=SHORT))[-1].ok
    assert gone(grandchild)()


def ident_of(child: Child) -> Ident:
    assert child.state
    return Ident(child.state.pid, child.state.started)


def test_one_that_was_seen_once_is_remembered(tmp_path: Path) -> None:
    """No keeper, no marker, a session of its own, a dead parent: only having looked before finds it."""
    log = tmp_path / "log"
    with log.open("w") as file:
        parent = subprocess.Popen(server("end", "spawn-exit", 0), stdout=file, start_new_session=True, env={})
        tree = Tree(ident(parent.pid))
        stranger = Tree(ident(parent.pid))
        stranger.known.clear()
        until(lambda: len(tree.refresh()) >= 2 or parent.poll() is not None)
        parent.wait()
    left = ident(pid_said(log, "child"))
    found = [p.ident for p in tree.refresh()]
    assert found == [left]  # by its session, at the least
    assert list(stop(tree, patience=SHORT))[-1].ok
    until(gone(left))


@pytest.mark.parametrize("mode", ["chain", "own", "many"])
def test_children_that_fork_during_the_kill_do_not_slip_through(child: Child, tmp_path: Path, mode: str) -> None:
    begin(child, tmp_path / "log", "breed", mode)
    steps = list(child.stop(SHORT))
    assert steps[-1].ok, steps[-1].text
    assert not child.processes()


def test_a_stopped_process_is_continued_to_hear_the_signal(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child.start(server("count", 1, 0), None, log)
    until(said(log, "done"))
    os.kill(ident_of(child).pid, signal.SIGSTOP)
    until(lambda: (p := look(ident_of(child).pid)) is not None and p.state == "T")
    assert names(list(child.stop())) == ["ask", "wait", "verify"]


def test_the_person_may_leave_at_once_and_hears_what_still_runs(child: Child, tmp_path: Path) -> None:
    begin(child, tmp_path / "log", "deaf")
    leave = threading.Event()
    steps = []
    begun = time.monotonic()
    for step in child.stop(Patience(ask=60), leave):
        steps.append(step)
        leave.set()
    assert time.monotonic() - begun < 30
    assert names(steps) == ["ask", "wait", "left"]
    assert not steps[-1].ok
    assert f"left running: {ident_of(child).pid} (python" in steps[-1].text
    assert child.alive()
    assert list(child.stop(SHORT))[-1].ok


def test_a_port_held_by_a_stranger_is_named_and_the_stranger_left_alone(child: Child, tmp_path: Path) -> None:
    begin(child, tmp_path / "log", "deaf")
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        child.ports = (port,)
        steps = list(child.stop(SHORT))
        assert names(steps)[-2:] == ["verify", "port"]
        assert steps[-2].ok
        assert not steps[-1].ok
        assert f"port {port}: in use, held by {os.getpid()} (" in steps[-1].text
        assert [holder.pid for holder in listeners(port)] == [os.getpid()]


def test_ports() -> None:
    port = free_port()
    assert check(port).free
    assert str(check(port)) == f"port {port} is free"
    with socket.create_server(("127.0.0.1", port)):
        assert check(port).reason == "in use"
        assert not check(port, "127.0.0.1").free
    assert check(port, "no-such-host.invalid").reason
    assert check(port, "203.0.113.7").reason == "Cannot assign requested address"
    with pytest.raises(ValueError, match="0 is no port"):
        check(0)


def test_zombies_do_not_count() -> None:
    zombie = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", ""], {})
    try:
        until(lambda: (p := look(zombie)) is not None and p.state == "Z", "a zombie")
        found = look(zombie)
        assert found
        assert not found.alive
        assert living(found.ident) is None
        assert Tree(found.ident).refresh() == []
    finally:
        os.waitpid(zombie, 0)


def test_a_dead_main_thread_with_living_threads_is_no_zombie() -> None:
    code = (
        "import ctypes, threading, time;"
        "threading.Thread(target=time.sleep, args=(600,)).start();"
        "print('up', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.DEVNULL)
    try:
        until(lambda: (p := look(process.pid)) is not None and p.state == "Z" and p.threads > 1)
        assert living(ident(process.pid))
    finally:
        process.kill()
        process.wait()


def test_a_reused_pid_is_never_touched(child: Child, tmp_path: Path) -> None:
    begin(child, tmp_path / "log", "deaf")
    real = ident_of(child)
    other = Ident(real.pid, real.started - 1)
    assert living(other) is None
    assert not send(other, signal.SIGKILL)
    assert Tree(other).refresh() == []
    assert living(real)
    assert send(real, 0)
    list(child.stop(SHORT))
    until(lambda: not send(real, signal.SIGKILL), "gone, not even a zombie")


def test_we_and_those_above_us_never_belong(child: Child, tmp_path: Path) -> None:
    begin(child, tmp_path / "log", "deaf")
    ours = ident(os.getpid())
    parent = ident(os.getppid())
    tree = Tree(parent)
    found = [p.ident for p in tree.refresh()]
    assert ours not in found
    assert parent not in found
    list(child.stop(SHORT))


def test_a_name_with_spaces_and_parentheses_is_read(tmp_path: Path) -> None:
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) S (b 1', 0, 0, 0); print('up'); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-S", "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        found = look(process.pid)
        assert found
        assert found.name == "a) S (b 1"
        assert found.parent == os.getpid()
        assert snapshot()[process.pid].ident == found.ident
    finally:
        process.communicate()


# --- stacks ---------------------------------------------------------------------------------------------------------


def test_stacks_without_pyspy_come_from_proc(child: Child, tmp_path: Path) -> None:
    begin(child, tmp_path / "log", "deaf")
    (process,) = child.processes()
    (stack,) = stacks.collect([process], pyspy="")
    assert stack.source == "proc"
    assert stack.note == "py-spy is not installed"
    assert stack.title.endswith("deaf.py")
    assert stack.waiting[0].id == process.pid
    until(lambda: stacks.read_proc(process.pid)[0].state == "S")
    text = "\n".join(stack.lines())
    assert f"process {process.pid} (python" in text
    list(child.stop(SHORT))


def test_stacks_of_vanished_processes_do_not_raise(child: Child, tmp_path: Path) -> None:
    begin(child, tmp_path / "log", "deaf")
    members = child.processes()
    list(child.stop(SHORT))
    assert [stack.source for stack in stacks.collect(members)] == ["gone"]
    assert stacks.collect([]) == []


def test_pyspy_is_run_and_its_failures_are_told(child: Child, tmp_path: Path) -> None:
    """Stands in for py-spy, whose real output is the text of `test_pyspy_output`."""
    begin(child, tmp_path / "log", "deaf")
    (process,) = child.processes()
    tool = tmp_path / "py-spy"

    def answer(body: str) -> stacks.Stack:
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
        return stacks.collect([process], seconds=2, pyspy=str(tool))[0]

    good = answer(f"echo '{PYSPY}'")
    assert good.source == "py-spy"
    assert good.lines()[2] == "    wait_for_peers (/app/dist.py:42)"
    assert answer("echo Permission denied >&2; exit 1").note == "py-spy: Permission denied"
    assert answer("exit 3").note == "py-spy ended with status 3"
    assert answer("echo nonsense").note.startswith("py-spy: ")
    assert answer("exec sleep 60").note == "py-spy took longer than 2 s"
    missing = stacks.collect([process], pyspy=str(tmp_path / "none"))[0]
    assert "No such file" in missing.note
    assert missing.source == "proc"
    list(child.stop(SHORT))


PYSPY = json.dumps(
    [
        {
            "pid": 17,
            "thread_id": 140001,
            "thread_name": "MainThread",
            "os_thread_id": 17,
            "active": True,
            "owns_gil": False,
            "frames": [
                {
                    "name": "wait_for_peers",
                    "filename": "/app/dist.py",
                    "module": None,
                    "short_filename": "dist.py",
                    "line": 42,
                    "locals": None,
                    "is_entry": False,
                    "is_shim_entry": False,
                }
            ],
            "process_info": None,
        }
    ]
)


def test_pyspy_output() -> None:
    (thread,) = stacks.parse_pyspy(PYSPY)
    assert thread == stacks.Thread(17, "MainThread", True, False, (stacks.Frame("wait_for_peers", "/app/dist.py", 42),))
    for broken in ("", "{}x", "[1]", '{"a": 1}', '[{"frames": [{}]}]', "null"):
        with pytest.raises(ValueError, match=r"."):
            stacks.parse_pyspy(broken)
