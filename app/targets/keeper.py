"""A small process between bringup and the server: starts it, waits for it, writes how it ended into a file.

Input: one JSON object on standard input (see `main`), the log as standard output. Output: a record file, and one JSON
answer on the file descriptor named by the first argument. The second argument, the id of the start, is there to be
seen in the process list.

Only a parent learns an exit status, and bringup may be killed at any moment, so this process is the parent. It is run
as `python -I -S keeper.py`, imports the standard library alone, holds neither the log nor a terminal open, ignores
every polite signal, and asks the kernel to hand it the orphans of the server's tree: they stay below it, and are not
left as zombies. It ends when its last descendant has ended. If it is killed itself, the server lives on and only the
exit status is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

IGNORED = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE]
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, <linux/prctl.h>


def started(pid: int) -> int:
    """When a process started, as in app.targets.processes.Ident; 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def adopt_orphans() -> None:
    """Becomes the process to which the kernel hands the orphans among its descendants, where the system can do that."""
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def write(path: str, record: dict[str, object], tries: int = 1) -> None:
    """Writes the record in one step; OSError when the last try failed. A full disk may have room again in a second."""
    for left in range(tries - 1, -1, -1):
        try:
            temporary = f"{path}.tmp"
            with open(temporary, "w", encoding="ascii") as file:
                json.dump(record, file)
            os.replace(temporary, path)
            return
        except OSError:
            if not left:
                raise
            time.sleep(1)


def answer(fd: int, value: dict[str, object]) -> None:
    """Tells bringup; it may be gone by now, and then nobody needs the answer."""
    with contextlib.suppress(OSError):
        os.write(fd, json.dumps(value).encode("ascii"))
    with contextlib.suppress(OSError):
        os.close(fd)


def main() -> None:
    """The object read has `launch` (an id that goes into the record), `record` (its path), `path` (the executable),
    `argv`, `env` and `cwd`. The answer is `{"pid", "started", "keeper", "keeper_started"}` or `{"errno", "text"}`."""
    fd = int(sys.argv[1])
    if os.fork():  # bringup waits for this first process only; the second belongs to nobody
        os._exit(0)
    with contextlib.suppress(OSError):
        os.setsid()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(fd, False)
    try:
        spec = json.loads(sys.stdin.buffer.read())
    except ValueError:
        return  # bringup was killed while it wrote: nothing was started
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    adopt_orphans()
    try:
        os.chdir(spec["cwd"])
        pid = os.posix_spawn(
            spec["path"],
            spec["argv"],
            {os.fsencode(name): os.fsencode(value) for name, value in spec["env"].items()},
            file_actions=[(os.POSIX_SPAWN_DUP2, 1, 2)],
            setsid=True,
            setsigmask=[],
            setsigdef=[*IGNORED, signal.SIGXFSZ],
        )
    except (OSError, ValueError) as error:
        answer(
            fd, {"errno": getattr(error, "errno", None) or 0, "text": getattr(error, "strerror", None) or str(error)}
        )
        return
    os.dup2(null, 1)  # the log is the server's alone
    os.dup2(null, 2)
    os.chdir("/")
    me = os.getpid()
    record: dict[str, object] = {"launch": spec["launch"], "pid": pid, "started": started(pid)}
    record.update({"keeper": me, "keeper_started": started(me), "exit": None})
    with contextlib.suppress(OSError):
        write(spec["record"], record)
    answer(fd, {name: record[name] for name in ("pid", "started", "keeper", "keeper_started")})
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if ended == pid:
            record["exit"] = {"status": os.waitstatus_to_exitcode(status), "at": time.time()}
            with contextlib.suppress(OSError):
                write(spec["record"], record, tries=3)


if __name__ == "__main__":
    main()
