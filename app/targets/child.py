"""Our own server process: started so that nothing that happens to us happens to it, and found again after a restart
of ours.

It runs in a session of its own, reads /dev/null and writes into a log file, never a pipe. A small keeper process is its
parent (see keeper.py), so its exit status is known even when bringup was killed meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import shutil
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import IO, Any

import psutil

from app.targets import control_groups, ladder, state
from app.targets.exit import Exit, examine
from app.targets.handle import Handle, NotStarted, TargetError
from app.targets.ladder import Patience, Step
from app.targets.processes import MARKER, Ident, Process, Tree, living
from app.targets.state import State

KEEPER = Path(__file__).with_name("keeper.py")
KEEPER_ANSWERS = 60.0
"""Seconds that the keeper may take to say that it started the server (it takes some 30 ms)."""
RECORD_COMES = 3.0
"""Seconds that a living keeper may take to write down the end that we saw."""
LAUNCH_SHOWS = 0.5
"""Seconds after which a keeper that was being started shows in the process list, if there is one at all."""

_RUN = re.compile(r"[A-Za-z0-9._-]{1,80}")


def find_command(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> str:
    """The file that `argv` would run, as a path. NotStarted, with the reason, when there is none to run.

    A name without a slash is looked up in the PATH of `env`, a relative path in `cwd`, as a shell would.
    """
    if not argv or not argv[0]:
        raise NotStarted("no command was given")
    if any("\0" in word for word in argv):
        raise NotStarted("a command line cannot hold a zero byte")
    name = argv[0]
    if "/" not in name:
        search = env.get("PATH", os.defpath)
        if found := shutil.which(name, path=search):
            return str(cwd / found)
        raise NotStarted(f"command not found: {name} (looked in PATH: {search})")
    path = cwd / name
    if path.is_dir():
        raise NotStarted(f"cannot run {name}: it is a directory")
    if not path.exists():
        raise NotStarted(f"command not found: {path}")
    if not os.access(path, os.X_OK):
        raise NotStarted(f"cannot run {name}: it is not executable (chmod +x, or start it with its interpreter)")
    return str(path)


def open_log(path: Path) -> tuple[int, int]:
    """Opens the log to append to, making its directory when missing. Returns (file descriptor, size now).

    NotStarted when it is a directory, a pipe or a device (a reader that goes away would block or kill the server), or
    when it cannot be written.
    """
    try:
        kind = path.stat().st_mode
    except OSError:
        kind = stat.S_IFREG
    if stat.S_ISDIR(kind):
        raise NotStarted(f"the log path {path} is a directory")
    if not stat.S_ISREG(kind):
        raise NotStarted(f"the log path {path} is not a regular file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotStarted(f"cannot write the log {path}: a part of that path is a file") from error
    except OSError as error:
        raise NotStarted(f"cannot write the log {path}: {error.strerror}") from error
    return fd, os.fstat(fd).st_size


class Child:
    """One server of ours. `state_path` is where its state is kept between restarts of bringup, `run` names the run
    (letters, digits, `.`, `_`, `-`), `ports` are those that must be free after a stop."""

    kind = "child"
    can: frozenset[str] = frozenset({"start", "stop", "restart"})

    def __init__(self, state_path: Path, run: str, ports: Sequence[int] = ()) -> None:
        if not _RUN.fullmatch(run):
            raise ValueError(f"run id {run!r}: letters, digits, '.', '_' and '-' only")
        self.state_path = state_path.absolute()
        self.run = run
        self.ports = tuple(ports)
        self.state: State | None = None
        self._tree: Tree | None = None
        self._exit: Exit | None = None
        self._gone_at: float | None = None
        self._looked_at = 0.0
        self._fd: int | None = None

    # --- starting and finding again -----------------------------------------------------------------------------------

    @property
    def _record_path(self) -> Path:
        return self.state_path.with_name(f"{self.state_path.name}.exit")

    def describe(self) -> str:
        if not self.state:
            return "our own process, not started yet"
        return f"our own process {self.state.pid}: {Path(self.state.argv[0]).name}"

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        log_path: Path | None,
        cwd: Path | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Handle:
        """Starts `argv`, with `env` as its whole environment (None: ours), appending its output to `log_path`.

        PYTHONUNBUFFERED=1 is added unless `env` has that name, and the run's marker always. The state file is there
        before the server is. NotStarted when the command cannot be run, the log not be written, or the last one still
        runs.
        """
        if log_path is None:
            raise NotStarted("our own process needs a log file to write to")
        if self.alive():
            raise NotStarted(f"{self.describe()} still runs: stop it first")
        self.close()
        log_path = log_path.absolute()
        where = (cwd or Path.cwd()).absolute()
        if not where.is_dir():
            raise NotStarted(f"the working directory {where} does not exist")
        full = {"PYTHONUNBUFFERED": "1", **(os.environ if env is None else env), MARKER: self.run}
        argv = list(argv)
        path = find_command(argv, full, where)
        log, size = open_log(log_path)
        try:
            self.state_path.parent.mkdir(parents=True, exist_ok=True)
            self._record_path.unlink(missing_ok=True)
            begun = State(
                launch=uuid.uuid4().hex,
                run=self.run,
                argv=argv,
                env=state.mask(full),
                cwd=str(where),
                log=str(log_path),
                log_offset=size,
                offset=size,
                boot=state.boot_id(),
                at=time.time(),
                since_boot=time.monotonic(),
                memory=control_groups.as_json(control_groups.read_memory()),
                ports=list(self.ports),
                notes=dict(notes or {}),
            )
            state.write(self.state_path, begun)
            self._exit, self._gone_at, self.state, self._tree = None, None, None, None
            spec = {"launch": begun.launch, "record": str(self._record_path), "path": path, "cwd": str(where)}
            answer = _run_keeper({**spec, "argv": argv, "env": full}, log)
        except OSError as error:
            raise NotStarted(f"cannot start {argv[0]}: {error.strerror or error}") from error
        except NotStarted:
            self.state_path.unlink(missing_ok=True)
            raise
        finally:
            os.close(log)
        self._hold(begun.known(answer))
        with contextlib.suppress(TargetError):  # the server runs, and the keeper's record tells its pid too
            self.save()
        return self.handle

    @property
    def handle(self) -> Handle:
        """The start that this is about. TargetError when nothing was started."""
        if not self.state:
            raise TargetError("nothing was started")
        return Handle(self.state.pid, Path(self.state.log), self.state.log_offset, self.state.at)

    @classmethod
    def adopt(cls, state_path: Path) -> Child | None:
        """The server that an earlier bringup started, from its state file; None when there was none.

        The server may have ended meanwhile: then `poll` says how, as far as anybody knows. A process of the same pid
        that started at another time is not ours and is left alone. Waits up to some seconds for a server that was
        being started in the very moment when bringup was killed. TargetError for a file that cannot be read.
        """
        kept = state.read(state_path)
        if kept is None:
            return None
        child = cls(state_path, kept.run, kept.ports)
        if kept.boot != state.boot_id():
            child.state, child._tree = kept, Tree(None)
            child._exit = Exit(None, "the machine was restarted since")
            return child
        if not kept.pid:
            record = child._launched(kept.launch)
            if not record:
                return None
            kept = kept.known(record)
        child._hold(kept)
        return child

    def _hold(self, kept: State) -> None:
        self.state = kept
        self._tree = Tree(Ident(kept.pid, kept.started), kept.run, Ident(kept.keeper, kept.keeper_started))
        self._tree.refresh()
        if self._main():
            with contextlib.suppress(OSError, AttributeError):  # not on every system; `wait` then looks again and again
                self._fd = os.pidfd_open(kept.pid)
                if not self._main():
                    self.close()

    def save(self, offset: int | None = None, notes: Mapping[str, Any] | None = None) -> None:
        """Writes the state file anew: how far the log was read, and the caller's notes (None: as they were)."""
        if self.state:
            self.state = replace(
                self.state,
                offset=self.state.offset if offset is None else offset,
                notes=self.state.notes if notes is None else dict(notes),
            )
            state.write(self.state_path, self.state)

    # --- looking --------------------------------------------------------------------------------------------------

    def _main(self) -> Process | None:
        return living(Ident(self.state.pid, self.state.started)) if self.state and self.state.pid else None

    def _record(self, launch: str) -> dict[str, Any] | None:
        """What the keeper wrote about this start."""
        try:
            record = json.loads(self._record_path.read_bytes())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and record.get("launch") == launch else None

    def _launched(self, launch: str) -> dict[str, Any] | None:
        """The record of a start during which bringup was killed, waited for; None when that start came to nothing.

        It waits as long as there is a keeper of this start, on a slow machine too: a server that came up after we had
        given it up would be nobody's. TargetError when the keeper writes nothing for a minute.
        """
        begun = time.monotonic()
        end = begun + LAUNCH_SHOWS
        while not (record := self._record(launch)):
            if any(launch in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])):
                end = time.monotonic() + LAUNCH_SHOWS
                if end - begun > KEEPER_ANSWERS:
                    raise TargetError(f"a server was started, but not written down in {self._record_path}")
            elif time.monotonic() > end:
                return self._record(launch)
            time.sleep(0.02)
        return record

    def alive(self) -> bool:
        """Whether the server's main process runs. What it leaves behind is told by `processes`."""
        return self._exit is None and self._main() is not None

    def processes(self) -> list[Process]:
        """Everything that belongs to the server and lives, oldest first; orphans after its end too. Call it now and
        then during a start-up: what was seen once is remembered."""
        return self._tree.refresh() if self._tree else []

    def exit_fd(self) -> int | None:
        """A file descriptor that becomes readable when the server ends (for select or an event loop); ask `poll`
        then. None where the system has no such thing, before a start and after `close`. It stays open until `close`
        or a start."""
        return self._fd

    def poll(self) -> Exit | None:
        """How the server ended, None while it runs. Quick, except that the first call after a violent end may read the
        kernel log (see `exit.examine`)."""
        if self._exit or not self.state or not self._tree:
            return self._exit
        now = time.monotonic()
        if self._main():
            # Ever more rarely: young servers fork, old ones do not.
            if now - self._looked_at > min(60.0, max(1.0, (now - self.state.since_boot) / 20)):
                self._looked_at = now
                self._tree.refresh()
            return None
        self._gone_at = self._gone_at or now
        keeper = living(Ident(self.state.keeper, self.state.keeper_started))
        end = (self._record(self.state.launch) or {}).get("exit")
        if end:
            ended = Exit(int(end["status"]), at=float(end["at"]))
        elif keeper and now - self._gone_at < RECORD_COMES:
            return None
        else:
            ended = Exit(None, f"the keeper process that waits for it {'wrote nothing' if keeper else 'was killed'}")
        memory, since = control_groups.from_json(self.state.memory), self.state.since_boot
        self._exit = examine(ended, memory, self._tree.pids(), since)
        with contextlib.suppress(OSError):  # where we are process 1 the keeper is handed to us
            os.waitpid(self.state.keeper, os.WNOHANG)
        return self._exit

    def wait(self, timeout: float) -> Exit | None:
        """Waits up to `timeout` seconds for the end, woken by the kernel where possible. Returns as `poll`."""
        end = time.monotonic() + timeout
        pause = 0.002
        while not (ended := self.poll()) and (rest := end - time.monotonic()) > 0:
            if self._fd is not None and self._gone_at is None:
                _readable(self._fd, min(rest, 5.0))
            else:
                time.sleep(min(pause, rest))
                pause = min(pause * 2, 0.1)
        return ended

    # --- stopping -------------------------------------------------------------------------------------------------

    def stop(self, patience: Patience | None = None, leave: Event | None = None) -> Iterator[Step]:
        """Stops the server and all that belongs to it (see `ladder.stop`). After the end it stops what was left
        behind."""
        return ladder.stop(self._tree or Tree(None), self.ports, patience, leave)

    def close(self) -> None:
        """Lets go of what we hold; the server runs on."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _run_keeper(spec: Mapping[str, Any], log: int) -> dict[str, Any]:
    """Starts the keeper with `log` as its output; returns its answer. NotStarted, with the reason, when there is no
    server."""
    if not sys.executable:
        raise NotStarted("cannot start a process: this Python does not know its own executable")
    answers, theirs = os.pipe()
    try:
        try:
            first = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(theirs), spec["launch"]],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name != MARKER},
                pass_fds=(theirs,),
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        assert first.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: the answer, none, tells
            _write_all(first.stdin, json.dumps(spec).encode("ascii"))
        first.wait()
        data = _read_all(answers, KEEPER_ANSWERS)
    finally:
        os.close(answers)
    try:
        answer: dict[str, Any] = json.loads(data)
    except ValueError:
        raise NotStarted(f"cannot start {spec['argv'][0]}: the keeper process died or did not answer") from None
    if "pid" in answer:
        return answer
    text = f"cannot start {spec['argv'][0]}: {answer['text']}"
    if answer["errno"] == errno.ENOENT:
        text += " (the file is there, so it is the interpreter named in its first line that is missing)"
    elif answer["errno"] == errno.ENOEXEC:
        text += " (a script needs a first line like #!/bin/sh)"
    raise NotStarted(text)


def _readable(fd: int, seconds: float) -> bool:
    poll = select.poll()  # unlike select it takes file descriptors of any number
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _write_all(pipe: IO[bytes], data: bytes) -> None:
    with pipe:
        pipe.write(data)


def _read_all(fd: int, seconds: float) -> bytes:
    """Everything until the other side closes, or what came within `seconds`."""
    end = time.monotonic() + seconds
    parts = []
    while (rest := end - time.monotonic()) > 0 and _readable(fd, rest):
        part = os.read(fd, 65536)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)
