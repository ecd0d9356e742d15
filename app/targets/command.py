"""Somebody else's unit (systemd, docker …), driven by command lines that were configured as lists: never by a shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

from app.targets import ports as port_use
from app.targets.exit import Exit
from app.targets.handle import CannotDo, Handle, NotStarted, TargetError
from app.targets.ladder import Patience, Step
from app.targets.processes import Tree, look

KEPT = 32 * 1024
"""Bytes of a command's output that are kept of its beginning, and as many of its end."""
FLOOD = 64 * 1024 * 1024
"""Bytes of output after which a command is ended: it is none that answers a question."""


class CommandFailed(TargetError):
    """A configured command was not found, ended with an error, or took too long. `outcome` is None when it never
    ran."""

    def __init__(self, text: str, outcome: Outcome | None = None) -> None:
        super().__init__(text)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did: its exit status as in subprocess, what it printed (both streams, the middle of a long text
    left out) and the seconds it took."""

    argv: tuple[str, ...]
    status: int
    output: str
    took: float


def _kept(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= 2 * KEPT:
        return file.read().decode("utf-8", "replace")
    first = file.read(KEPT)
    file.seek(size - KEPT)
    gap = f"\n… {size - 2 * KEPT} bytes left out …\n"
    return first.decode("utf-8", "replace") + gap + file.read(KEPT).decode("utf-8", "replace")


def run(argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> Outcome:
    """Runs one command to its end. CommandFailed when it cannot be run, floods, or takes longer than `timeout`
    seconds (it is then killed with all its children); an exit status other than 0 is returned, not raised.

    The output goes through a file without a name, not a pipe: a daemon that the command leaves behind may hold it
    open for ever, and must neither keep us waiting nor die of our closing it.
    """
    shown = " ".join(argv)
    begin = time.monotonic()
    with tempfile.TemporaryFile() as file:
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, start_new_session=True
            )
        except FileNotFoundError as error:
            raise CommandFailed(f"command not found: {argv[0]}") from error
        except (OSError, ValueError) as error:
            raise CommandFailed(f"cannot run {shown}: {getattr(error, 'strerror', None) or error}") from error
        found = look(process.pid)
        status, trouble = _wait(process, file, begin + timeout)
        if trouble:
            tree = Tree(found.ident if found else None)
            tree.signal(tree.refresh(), signal.SIGKILL)
            process.kill()
            status = process.wait()
        outcome = Outcome(tuple(argv), status, _kept(file), time.monotonic() - begin)
    if trouble:
        limit = f"took longer than {timeout:g} s" if trouble == "late" else f"printed more than {FLOOD >> 20} MiB"
        raise CommandFailed(f"{shown} {limit} and was killed{_said(outcome)}", outcome)
    return outcome


def _wait(process: subprocess.Popen[bytes], file: IO[bytes], end: float) -> tuple[int, str]:
    """The exit status and "", or 0 and why the waiting ended before the process did: "late" or "flood"."""
    pause = 0.005
    while True:
        try:
            return process.wait(max(0.0, min(pause, end - time.monotonic()))), ""
        except subprocess.TimeoutExpired:
            pause = min(pause * 2, 0.1)
        if time.monotonic() >= end:
            return 0, "late"
        if os.fstat(file.fileno()).st_size > FLOOD:
            return 0, "flood"


def _said(outcome: Outcome) -> str:
    lines = [line.strip() for line in outcome.output.splitlines() if line.strip()]
    return f": {' / '.join(lines[-3:])}" if lines else ""


# --- what a status command tells ----------------------------------------------------------------------------------

_ALIVE = {
    "active",
    "activating",
    "reloading",
    "refreshing",
    "restarting",
    "running",
    "starting",
    "up",
    "true",
    "healthy",
}
_DEAD = {
    "inactive",
    "failed",
    "dead",
    "exited",
    "stopped",
    "deactivating",
    "false",
    "created",
    "removing",
    "down",
    "paused",
}
_DOCKER = re.compile(r"(?m)^(?:exited|dead)\s+(\d{1,3})(?:\s+(true|false))?\s*$")
_PROPERTY = re.compile(r"(?m)^([A-Za-z]+)=(.*)$")


def parse_status(outcome: Outcome) -> tuple[bool, Exit | None]:
    """From what a status command did to (runs, how it ended).

    Understood are `systemctl show -p ActiveState,Result,ExecMainCode,ExecMainStatus UNIT`, which tells everything;
    `systemctl is-active UNIT`; `docker inspect -f '{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}' NAME`,
    or shorter; one word such as "running" or "exited"; else the exit status counts, 0 for "runs". The Exit is None
    while it runs.
    """
    text = outcome.output.strip()
    properties = dict(_PROPERTY.findall(text))
    if "ActiveState" in properties:
        runs = properties["ActiveState"] in _ALIVE
        return runs, None if runs else _systemd_exit(properties)
    first = text.split(None, 1)[0].lower() if text else ""
    if first in _ALIVE:
        return True, None
    if match := _DOCKER.search(text.lower()):
        # Docker reports 128 + signal; "OOMKilled" true is the kernel's counter, false is not proof.
        return False, Exit(int(match[1]), oom=True if match[2] == "true" else None, evidence=(f"its status: {text}",))
    if first in _DEAD or outcome.status != 0:
        said = f"{' '.join(outcome.argv)} said {text.splitlines()[-1]!r}" if text else ""
        return False, Exit(None, said or f"{' '.join(outcome.argv)} ended with status {outcome.status}")
    return True, None


def _systemd_exit(properties: Mapping[str, str]) -> Exit:
    shown = ", ".join(f"{name}={value}" for name, value in properties.items())
    status, code = properties.get("ExecMainStatus", ""), properties.get("ExecMainCode", "")
    oom = True if properties.get("Result") == "oom-kill" else None
    if not status.isdigit() or code not in ("1", "2", "3"):  # CLD_EXITED, CLD_KILLED, CLD_DUMPED
        return Exit(None, f"systemd says {shown}", oom=oom)
    return Exit(int(status) if code == "1" else -int(status), oom=oom, evidence=(f"systemd says {shown}",))


class Command:
    """A unit with configured command lines; what is not configured cannot be done. `name` is for people, `ports` must
    be free after a stop, `timeout` limits start, stop and restart, `status_timeout` the status command, which is run
    at most every `every` seconds (a later question gets the last answer)."""

    kind = "command"

    def __init__(
        self,
        name: str,
        *,
        start: Sequence[str] | None = None,
        stop: Sequence[str] | None = None,
        restart: Sequence[str] | None = None,
        status: Sequence[str] | None = None,
        ports: Sequence[int] = (),
        timeout: float = 120.0,
        status_timeout: float = 10.0,
        every: float = 5.0,
    ) -> None:
        lists = {"start": start, "stop": stop, "restart": restart, "status": status}
        for what, argv in lists.items():
            if isinstance(argv, str) or (
                argv is not None and not (argv and all(isinstance(word, str) for word in argv))
            ):
                raise ValueError(
                    f"{name}: {what} must be a list of words such as ['systemctl', '{what}', 'sglang']: {argv!r}"
                )
        self.name = name
        self.ports = tuple(ports)
        self.timeout, self.status_timeout, self.every = timeout, status_timeout, every
        self._lists = {what: tuple(argv) for what, argv in lists.items() if argv}
        self._asked: tuple[float, bool | None, Exit | None] | None = None

    @property
    def can(self) -> frozenset[str]:
        found = {what for what in ("start", "stop", "restart") if what in self._lists}
        if {"start", "stop"} <= found:
            found.add("restart")
        return frozenset(found)

    def describe(self) -> str:
        return (
            f"{self.name}, somebody else's unit, driven by {' '.join(next(iter(self._lists.values()), ('nothing',)))}"
        )

    def _do(self, what: str) -> Outcome:
        """Runs a configured command; CannotDo when there is none, CommandFailed when it does not end with status 0."""
        if what not in self._lists:
            raise CannotDo(f"{self.name}: no command to {what} it is configured")
        self._asked = None
        outcome = run(self._lists[what], self.timeout)
        if outcome.status != 0:
            ended = Exit(outcome.status).words()
            raise CommandFailed(f"{' '.join(outcome.argv)}: {ended}{_said(outcome)}", outcome)
        return outcome

    def start(
        self, argv: Sequence[str] = (), env: Mapping[str, str] | None = None, log_path: Path | None = None
    ) -> Handle:
        """Runs the start command (or restart, where only that is configured). The unit's command line is its owner's:
        with an `argv` or `env` CannotDo is raised, for they would be ignored. `log_path` is where the unit is known
        to write."""
        if argv or env:
            raise CannotDo(f"{self.name}: its command line belongs to whoever configured it; change it there")
        what = "restart" if "start" not in self._lists and "restart" in self._lists else "start"
        at, size = time.time(), log_path.stat().st_size if log_path and log_path.exists() else 0
        try:
            self._do(what)
        except CommandFailed as error:
            raise NotStarted(f"{self.name} was not started: {error}") from error
        return Handle(None, log_path, size, at)

    def restart(self, log_path: Path | None = None) -> Handle:
        """Runs the restart command, else stop and start. CannotDo, or NotStarted with the reason."""
        if "restart" not in self._lists and "restart" in self.can:
            try:
                self._do("stop")
            except CommandFailed as error:
                raise NotStarted(f"{self.name} was not restarted: {error}") from error
            return self.start(log_path=log_path)
        at, size = time.time(), log_path.stat().st_size if log_path and log_path.exists() else 0
        try:
            self._do("restart")
        except CommandFailed as error:
            raise NotStarted(f"{self.name} was not restarted: {error}") from error
        return Handle(None, log_path, size, at)

    def stop(self, patience: Patience | None = None, leave: Event | None = None) -> Iterator[Step]:
        """Runs the stop command, then verifies by the status command and the ports, where there are any. CannotDo at
        once when no stop command is configured; a stop command that fails is a step that is not ok."""
        if "stop" not in self._lists:
            raise CannotDo(f"{self.name}: no command to stop it is configured")
        return self._stop((patience or Patience()).port, leave)

    def _stop(self, seconds: float, leave: Event | None) -> Iterator[Step]:
        begin = begun = time.monotonic()
        ok, text = True, ""
        try:
            outcome = self._do("stop")
            text = f"{' '.join(outcome.argv)} ended well"
        except CommandFailed as error:
            ok, text = False, str(error)
        now = time.monotonic()
        yield Step("ask", text, 0.0, now - begin, (), ok)
        begun = now

        def look_again() -> tuple[bool | None, list[port_use.PortUse]]:
            self._asked = None
            taken = [use for use in map(port_use.check, self.ports) if not use.free]
            return (self.alive() if "status" in self._lists else None), taken

        runs, taken = look_again()
        while (runs or taken) and time.monotonic() - begun < seconds and not (leave and leave.is_set()):
            time.sleep(0.1)
            runs, taken = look_again()
        told = {True: "it still runs", False: "it does not run any more", None: "whether it still runs is not known"}[
            runs
        ]
        text = "; ".join([told, *map(str, taken)])
        gone = not runs and not taken and (ok or runs is False)
        yield Step("verify", text, begun - begin, time.monotonic() - begun, (), gone)

    def _ask(self) -> tuple[bool | None, Exit | None]:
        now = time.monotonic()
        if "status" not in self._lists:
            return None, None
        if self._asked is None or now - self._asked[0] >= self.every:
            try:
                runs, ended = parse_status(run(self._lists["status"], self.status_timeout))
            except CommandFailed:
                runs, ended = None, None  # the question failed, not the server
            self._asked = (now, runs, ended)
        return self._asked[1:]

    def poll(self) -> Exit | None:
        """How it ended by its status command; None while it runs, or when there is no such command or it cannot be
        run."""
        return self._ask()[1]

    def alive(self) -> bool | None:
        """What the status command says; None when there is none or it cannot be run."""
        return self._ask()[0]
