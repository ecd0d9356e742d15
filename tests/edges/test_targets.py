"""Starting real servers, losing bringup by SIGKILL, finding them again; units of others; logs of others."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.targets import KINDS, CannotDo, Command, Log, NotStarted, Patience, Target, TargetError, state
from app.targets.child import Child
from app.targets.command import CommandFailed, Outcome, parse_status, run
from app.targets.log import writers
from app.targets.processes import Ident, Tree, living
from tests.edges.servers import free_port, gone, ident, lines, pid_said, said, server, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
SHORT = Patience(ask=5, rest=0.2, kill=10, port=3)


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


# --- starting ---------------------------------------------------------------------------------------------------------


def test_output_is_appended_to_the_log_and_the_offset_says_where_it_begins(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "deep" / "server.log"
    log.parent.mkdir()
    log.write_text("an earlier attempt\n")
    handle = child.start(python("import sys; print('out'); print('err', file=sys.stderr)"), None, log)
    ended = child.wait(20)
    assert ended
    assert ended.status == 0
    assert ended.words() == "ended by itself, without an error (status 0)"
    assert handle.log_offset == len("an earlier attempt\n")
    assert sorted(lines(log)) == ["an earlier attempt", "err", "out"]


def test_what_the_server_finds_around_it(child: Child, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys;"
        "print('session', os.getsid(0) == os.getpid());"
        "print('stdin', repr(sys.stdin.read()));"
        "print('files', sorted(os.listdir('/proc/self/fd'))[:-1]);"
        "print('cwd', os.getcwd());"
        "print('unbuffered', os.environ['PYTHONUNBUFFERED'], os.environ['BRINGUP_RUN'], os.environ['MINE']);"
        "print('ignored', [n for n in (1, 2, 3, 10, 12, 13, 15, 25) if signal.getsignal(n) == signal.SIG_IGN]);"
    )
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    env = {"MINE": "caf\udce9 ☕", "PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8:surrogateescape"}
    child.start(python(code), env, tmp_path / "log", cwd=tmp_path)
    os.close(inherited)
    assert child.wait(20)
    said = dict(line.split(" ", 1) for line in (tmp_path / "log").read_text(errors="surrogateescape").splitlines())
    assert said == {
        "session": "True",
        "stdin": "''",
        "files": "['0', '1', '2']",
        "cwd": str(tmp_path),
        "unbuffered": f"1 {child.run} caf\udce9 ☕",
        "ignored": "[13, 25]",  # Python's own habit, SIGPIPE and SIGXFSZ
    }


def test_unbuffered_output_is_the_users_to_switch_off(child: Child, tmp_path: Path) -> None:
    env: Mapping[str, str] = {"PYTHONUNBUFFERED": ""}
    child.start(python("import os; print(repr(os.environ['PYTHONUNBUFFERED']))"), env, tmp_path / "log")
    child.wait(20)
    assert lines(tmp_path / "log") == ["''"]


def test_what_cannot_be_started_is_told_at_once(child: Child, tmp_path: Path) -> None:
    def refusal(argv: list[str], log: Path | None = None, **more: Path) -> str:
        with pytest.raises(NotStarted) as caught:
            child.start(argv, {"PATH": "/nowhere"}, log or tmp_path / "log", **more)  # type: ignore[arg-type]
        assert child.poll() is None
        assert not child.alive()
        return str(caught.value).replace(str(tmp_path), "TMP")

    script = tmp_path / "script"
    script.write_text("echo hello\n")
    assert refusal(["sglangx", "--tp", "8"]) == "command not found: sglangx (looked in PATH: /nowhere)"
    assert refusal(["./none"], cwd=tmp_path) == "command not found: TMP/none"
    assert refusal([str(script)]).startswith("cannot run TMP/script: it is not executable (chmod +x")
    assert refusal([str(tmp_path)]) == "cannot run TMP: it is a directory"
    script.chmod(0o755)
    assert refusal([str(script)]) == (
        "cannot start TMP/script: Exec format error (a script needs a first line like #!/bin/sh)"
    )
    script.write_text("#!/no/such/python\n")
    assert refusal([str(script)]) == (
        "cannot start TMP/script: No such file or directory "
        "(the file is there, so it is the interpreter named in its first line that is missing)"
    )
    assert refusal([]) == "no command was given"
    assert refusal(["a\0b"]) == "a command line cannot hold a zero byte"
    assert refusal(["/bin/true"], tmp_path) == "the log path TMP is a directory"
    assert refusal(["/bin/true"], Path("/dev/null")) == "the log path /dev/null is not a regular file"
    assert (
        refusal(["/bin/true"], script / "log") == "cannot write the log TMP/script/log: a part of that path is a file"
    )
    assert refusal(["/bin/true"], cwd=tmp_path / "none") == "the working directory TMP/none does not exist"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(["/bin/true"], tmp_path / "pipe") == "the log path TMP/pipe is not a regular file"
    with pytest.raises(ValueError, match="run id 'a/b'"):
        Child(tmp_path / "state.json", "a/b")


def test_the_state_file_is_private_and_masked(child: Child, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "HF_TOKEN": "hf_secret",
        "HTTPS_PROXY": "http://me:pw@proxy:3128",
        "TOKENIZERS_PARALLELISM": "0",
    }
    child.start(server("count", 1, 0), env, tmp_path / "log", notes={"attempt": 2})
    child.save(offset=17)
    path = child.state_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "hf_secret" not in path.read_text()
    kept = state.read(path)
    assert kept
    assert kept.env["HF_TOKEN"] == "***"
    assert kept.env["HTTPS_PROXY"] == "http://***@proxy:3128"
    assert kept.env["TOKENIZERS_PARALLELISM"] == "0"
    assert kept.notes == {"attempt": 2}
    assert kept.offset == 17
    assert kept.argv == server("count", 1, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "state.json", "state.json.exit"]


def test_secret_names() -> None:
    hidden = [
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD_FILE",
        "WANDB_API_KEY",
        "GITHUB_TOKEN",
        "DB_PASSWORD",
    ]
    shown = ["KEYBOARD", "AUTHOR", "TOKENIZER", "MONKEY", "PATH", "CUDA_VISIBLE_DEVICES", "MAX_TOKENS"]
    masked = state.mask(dict.fromkeys(hidden + shown, "v"))
    assert [name for name in hidden if masked[name] == "v"] == ["PGPASSWORD_FILE"]
    assert [name for name in shown if masked[name] != "v"] == []


def test_a_running_server_is_not_started_twice_and_a_stopped_one_can_be(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = child.start(server("count", 1, 0), None, log)
    until(said(log, "done"))
    with pytest.raises(NotStarted, match="still runs: stop it first"):
        child.start(server("count", 1, 0), None, log)
    assert list(child.stop(SHORT))[-1].ok
    assert until(child.poll).status == 5
    second = child.start(python("raise SystemExit(3)"), None, log)
    assert second.pid != first.pid
    assert second.log_offset == len("line 0\ndone\n")
    ended = child.wait(20)
    assert ended
    assert ended.status == 3


def test_the_end_wakes_whoever_waits(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child.start(server("count", 1, 0), None, log)
    until(said(log, "done"))
    fd = child.exit_fd()
    assert fd is not None
    assert child.wait(0.05) is None
    before = time.time()
    os.kill(ident_of(child).pid, signal.SIGKILL)
    begun = time.monotonic()
    ended = child.wait(20)
    assert time.monotonic() - begun < 5
    assert ended
    assert ended.status == -9
    assert ended.at is not None
    assert before - 1 <= ended.at <= time.time() + 1
    assert child.poll() is ended


def ident_of(child: Child) -> Ident:
    assert child.state
    return Ident(child.state.pid, child.state.started)


# --- losing bringup and finding the server again ----------------------------------------------------------------------


def bringup(child: Child, log: Path, *argv: str) -> subprocess.Popen[bytes]:
    """Another process that starts the server as bringup does; `child` only lends its names."""
    here = Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, "-m", "tests.edges.servers.starter", str(child.state_path), child.run, str(log), *argv],
        cwd=here.parent.parent,
        stdout=subprocess.PIPE,
    )


def take(child: Child, other: Child) -> None:
    """Hands an adopted server to the fixture, which stops it."""
    child.state, child._tree = other.state, other._tree
    other.close()


def test_the_server_outlives_bringup_and_is_found_again(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = bringup(child, log, *server("count", 200, 0.005))
    assert first.stdout
    assert first.stdout.readline() == b"started\n"
    until(lambda: (kept := state.read(child.state_path)) and kept.offset > 0, "it saved how far it read")
    first.kill()
    first.communicate()
    seen = len(lines(log))
    found = Child.adopt(child.state_path)
    assert found
    take(child, found)
    assert found.alive()
    assert found.run == child.run
    assert found.state
    assert found.state.notes == {"attempt": 1}
    assert 0 < found.state.offset <= log.stat().st_size
    until(said(log, "done"), "the server went on")
    assert seen < 200
    assert lines(log) == [*(f"line {number}" for number in range(200)), "done"]
    os.kill(ident_of(found).pid, signal.SIGTERM)
    ended = until(found.poll)
    assert ended.status == 5, "known although bringup was not its parent any more"


def test_the_end_is_known_even_when_nobody_watched(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = bringup(child, log, *server("count", 1, 0))
    until(said(log, "done"))
    until(lambda: has_pid(child.state_path))
    first.kill()
    first.communicate()
    kept = state.read(child.state_path)
    assert kept
    os.kill(kept.pid, signal.SIGSEGV)
    until(gone(Ident(kept.pid, kept.started), Ident(kept.keeper, kept.keeper_started)))
    found = Child.adopt(child.state_path)
    assert found
    take(child, found)
    ended = found.poll()
    assert ended
    assert ended.status == -signal.SIGSEGV
    assert ended.words() == "SIGSEGV (signal 11): a memory access fault in native code"


def has_pid(path: Path) -> bool:
    kept = state.read(path)
    return kept is not None and kept.pid != 0


def test_bringup_killed_at_any_moment_of_a_start(child: Child, tmp_path: Path) -> None:
    """Either there is a server, and it is found, or there is none; never one that nobody finds."""
    source = random.Random(7)
    outcomes = set()
    for number in range(12):
        path, log = tmp_path / f"state-{number}.json", tmp_path / f"log-{number}"
        one = Child(path, child.run)
        first = bringup(one, log, *server("count", 1, 0))
        if number % 4:
            until(lambda path=path, first=first: path.exists() or first.poll() is not None)  # type: ignore[misc]
            end = time.monotonic() + source.uniform(0, 0.06)
            while time.monotonic() < end:
                pass
        else:
            time.sleep(source.uniform(0, 0.2))
        first.kill()
        first.communicate()
        found = Child.adopt(path)
        outcomes.add(found is not None)
        if found:
            assert found.alive()
            until(said(log, "done"))
            assert list(found.stop(SHORT))[-1].ok
            assert until(found.poll).status == 5
            found.close()
        assert Tree(None, child.run).refresh() == []
    assert True in outcomes


def test_a_dead_keeper_costs_the_exit_status_and_nothing_else(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child.start(server("count", 1, 0), None, log)
    until(said(log, "done"))
    assert child.state
    keeper = Ident(child.state.keeper, child.state.keeper_started)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(keeper.pid, number)
    assert living(keeper), "it ignores what is polite"
    os.kill(keeper.pid, signal.SIGKILL)
    until(gone(keeper))
    assert child.alive()
    assert child.poll() is None
    assert list(child.stop(SHORT))[-1].ok
    ended = until(child.poll)
    assert ended.status is None
    assert ended.words() == "ended, exit status unknown: the keeper process that waits for it was killed"


def test_another_process_of_the_same_pid_is_not_ours(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child.start(server("count", 1, 0), None, log)
    until(said(log, "done"))
    assert child.state
    strange = tmp_path / "strange.json"
    state.write(strange, replace(child.state, started=child.state.started - 7, keeper=0, run="somebody-else"))
    found = Child.adopt(strange)
    assert found
    assert not found.alive()
    ended = found.poll()
    assert ended
    assert ended.status is None
    assert [step.ok for step in found.stop(SHORT)][-1]
    assert child.alive(), "it was not touched"


def test_after_a_reboot_no_pid_means_anything(child: Child, tmp_path: Path) -> None:
    child.start(server("count", 1, 0), None, tmp_path / "log")
    assert child.state
    old = tmp_path / "old.json"
    state.write(old, replace(child.state, boot="another"))
    found = Child.adopt(old)
    assert found
    assert not found.alive()
    assert found.processes() == []
    ended = found.poll()
    assert ended
    assert ended.words() == "ended, exit status unknown: the machine was restarted since"
    list(found.stop(SHORT))
    assert child.alive()


def test_state_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert Child.adopt(path) is None
    for text, reason in (
        ("", "no state file"),
        ("[]", "schema 1 expected"),
        ('{"schema": 1}', "no complete state file"),
    ):
        path.write_text(text)
        with pytest.raises(TargetError, match=reason):
            Child.adopt(path)
    with pytest.raises(TargetError, match="cannot read the state file"):
        Child.adopt(tmp_path)


def test_what_is_left_after_the_end_is_told(child: Child, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child.start(server("end", "spawn-exit", 1), None, log)
    ended = child.wait(20)
    assert ended
    assert ended.words().startswith("ended with an error")
    assert [p.pid for p in child.processes()] == [pid_said(log, "child")]


# --- somebody else's unit -----------------------------------------------------------------------------------------


def test_command_runs_what_was_configured_and_nothing_else(tmp_path: Path) -> None:
    flag, log = tmp_path / "flag", tmp_path / "log"
    log.write_text("before\n")
    unit = Command(
        "sglang.service",
        start=["touch", str(flag)],
        stop=["rm", str(flag)],
        status=["test", "-e", str(flag)],
        every=0,
    )
    assert unit.can == {"start", "stop", "restart"}
    assert unit.alive() is False
    handle = unit.start(log_path=log)
    assert (handle.pid, handle.log_path, handle.log_offset) == (None, log, 7)
    assert unit.alive() is True
    assert unit.poll() is None
    unit.restart()
    assert unit.alive() is True
    steps = list(unit.stop())
    assert [(step.name, step.ok) for step in steps] == [("ask", True), ("verify", True)]
    assert steps[0].text == f"rm {flag} ended well"
    ended = unit.poll()
    assert ended
    assert ended.status is None
    assert not next(unit.stop()).ok, "rm of a file that is gone fails"


def test_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    unit = Command("vllm", restart=["true"])
    assert unit.can == {"restart"}
    assert (unit.alive(), unit.poll()) == (None, None)
    unit.start()
    with pytest.raises(CannotDo, match="no command to stop it"):
        unit.stop()
    with pytest.raises(CannotDo, match="its command line belongs to whoever configured it"):
        unit.start(["python", "-m", "sglang.launch_server"])
    with pytest.raises(ValueError, match="must be a list of words"):
        Command("x", start="systemctl start x")  # a shell string
    with pytest.raises(ValueError, match="must be a list of words"):
        Command("x", stop=[])
    assert Command("x").can == frozenset()


def test_command_failures_are_told_with_what_was_printed(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match=r"x was not started: command not found: sytemctl"):
        Command("x", start=["sytemctl", "start", "x"]).start()
    failing = ["sh", "-c", "echo starting; echo 'Unit x not found.' >&2; exit 5"]
    with pytest.raises(NotStarted, match=r"ended with status 5: starting / Unit x not found\."):
        Command("x", start=failing).start()
    with pytest.raises(NotStarted, match=r"cannot run .*: Permission denied"):
        Command("x", start=[str(tmp_path)]).start()
    still = Command("x", stop=["true"], status=["true"], every=0)
    last = list(still.stop(Patience(port=0.2)))[-1]
    assert (last.ok, last.text) == (False, "it still runs")
    broken = Command("x", status=["no-such-command"])
    assert (broken.alive(), broken.poll()) == (None, None)


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "pids"
    script = f"sleep 600 & echo child $! > {log}; echo working; wait"
    with pytest.raises(CommandFailed, match=r"took longer than 0\.5 s and was killed: working") as caught:
        run(["sh", "-c", script], 0.5)
    assert caught.value.outcome
    assert caught.value.outcome.status == -9
    until(lambda: living(ident_or_none(pid_said(log, "child"))) is None)


def ident_or_none(pid: int) -> Ident | None:
    try:
        return ident(pid)
    except AssertionError:
        return None


def test_a_daemon_that_a_command_leaves_behind_is_neither_waited_for_nor_killed(tmp_path: Path) -> None:
    log = tmp_path / "pid"
    script = f"(while :; do echo alive; sleep 0.02; done) & echo child $! > {log}"
    outcome = run(["sh", "-c", script], 20)
    assert outcome.status == 0
    daemon = ident(pid_said(log, "child"))
    wrote = psutil.Process(daemon.pid).io_counters().write_count
    until(lambda: psutil.Process(daemon.pid).io_counters().write_count > wrote + 3, "it writes on")
    assert living(daemon)
    os.kill(daemon.pid, signal.SIGKILL)


def test_long_output_is_bounded() -> None:
    outcome = run(python("print('first'); print('x' * 1_000_000); print('last')"), 20)
    assert len(outcome.output) < 70_000
    assert outcome.output.startswith("first\n")
    assert outcome.output.endswith("last\n")
    assert "bytes left out" in outcome.output
    with pytest.raises(CommandFailed, match="printed more than 64 MiB"):
        run(["yes"], 60)


@pytest.mark.parametrize(
    ("status", "output", "runs", "ended"),
    [
        (0, "active\n", True, None),
        (3, "activating\n", True, None),
        (3, "inactive\n", False, "ended, exit status unknown: ask said 'inactive'"),
        (0, "", True, None),
        (1, "", False, "ended, exit status unknown: ask ended with status 1"),
        (0, "true\n", True, None),
        (0, "false\n", False, "ended, exit status unknown: ask said 'false'"),
        (0, "running 0 false\n", True, None),
        (0, "exited 3 false\n", False, "ended with status 3 (uvicorn: the application did not start) (status 3)"),
        (
            0,
            "exited 137 true\n",
            False,
            "ended with status 137, a shell's way to say that its command met SIGKILL, "
            "and the kernel says for lack of memory",
        ),
        (
            0,
            "ActiveState=failed\nResult=signal\nExecMainCode=2\nExecMainStatus=11\n",
            False,
            "SIGSEGV (signal 11): a memory access fault in native code",
        ),
        (
            0,
            "ActiveState=failed\nResult=oom-kill\nExecMainCode=2\nExecMainStatus=9\n",
            False,
            "SIGKILL (signal 9): killed, and the kernel says for lack of memory",
        ),
        (
            0,
            "ActiveState=failed\nResult=exit-code\nExecMainCode=1\nExecMainStatus=1\n",
            False,
            "ended with an error (what Python does after an uncaught exception) (status 1)",
        ),
        (0, "ActiveState=activating\nResult=success\n", True, None),
        (
            0,
            "ActiveState=inactive\n",
            False,
            "ended, exit status unknown: systemd says ActiveState=inactive",
        ),
    ],
)
def test_status_words(status: int, output: str, runs: bool, ended: str | None) -> None:
    told = parse_status(Outcome(("ask",), status, output, 0.1))
    assert told[0] is runs
    assert (told[1].words() if told[1] else None) == ended


# --- somebody else's log ------------------------------------------------------------------------------------------


def test_log_is_followed_only(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    target = Log(path)
    assert target.can == frozenset()
    assert (target.alive(), target.poll()) == (None, None)
    with pytest.raises(CannotDo, match="only its log is followed"):
        target.start()
    with pytest.raises(CannotDo, match="only its log is followed"):
        target.stop()
    with path.open("w"):
        assert target.alive() is True
        assert [process.pid for process in writers(path)] == [os.getpid()]
    with path.open():
        assert target.alive() is None, "a reader is no writer"


def test_every_kind_is_listed(tmp_path: Path) -> None:
    assert sorted(KINDS) == ["child", "command", "log"]
    for name, kind in KINDS.items():
        assert kind.kind == name  # type: ignore[comparison-overlap]
    made: list[Target] = [Child(tmp_path / "s", "r"), Log(tmp_path / "l"), Command("unit", status=["true"])]
    assert all(target.describe() for target in made)
    assert free_port() > 0
