"""Follows one file: its bytes come out as they are written, and a marker wherever another beginning starts.

`stat` and the bytes themselves decide what happened (rotation, truncation, another file under the name); events only
end a wait early (app/wake.py). Lines are not known here: a piece may end in the middle of one.

    with Tail("/var/log/server.log") as tail:
        while not tail.closed:
            for piece in tail.read():
                ...                     # bytes, or Started: what follows is the beginning of something new
            tail.wait()

The promise: every byte once, in order, the rest of the old file before the first byte of the new one. What no
follower can see: bytes written and then truncated away or deleted between two looks; bytes that a second writer adds
to the old file after the first has begun the new one; a file rewritten with the very same bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

from app.wake import Wake

CHUNK = 64 * 1024  # bytes, the largest piece: what stands behind a failure in one must not delay its verdict
BOUND = 8 * 1024 * 1024  # bytes one read() hands on before it lets its caller look around
MARK = 256  # bytes kept from the start of the file and from before the offset, to know the file again

Reason = Literal["opened", "resumed", "rotated", "truncated", "rewritten", "replaced"]
Identity = tuple[int, int]  # device, inode


class TailError(Exception):
    """The path cannot be followed; the text names the place, the reason and the remedy. `read` may be called again."""


@dataclass(frozen=True, slots=True)
class Started:
    """The bytes that follow are another file, or the same one from another beginning.

    `reason`: "opened" (the first time), "resumed" (goes on at the given position), "rotated" (the name belongs to
    another file now: the old one renamed or deleted, or a link that moved), "truncated" (the same file, shorter than
    what was read), "rewritten" (the same file, other bytes), "replaced" (the file of the given position is gone:
    bytes between it and this file may be missing). `path` is the file's name without links, `offset` is where reading
    begins, in bytes.
    """

    path: str
    device: int
    inode: int
    offset: int
    reason: Reason


Piece = bytes | Started


@dataclass(frozen=True, slots=True)
class Position:
    """How far a file was read. `dataclasses.asdict` gives plain figures and text for JSON, `Position(**that)` takes
    them.

    `path` is the file's name without links when it was opened. `fingerprint` is a hash of the first MARK bytes and of
    the MARK bytes before `offset`: an inode number alone proves nothing, file systems give it out again at once. It
    holds none of the log's text.
    """

    path: str
    device: int
    inode: int
    offset: int
    fingerprint: str


class Tail:
    """One followed file. `read` and `wait` belong to one thread; `wake` and `close` may be called from any.

    `path` need not exist, nor its directory. `position` is where an earlier Tail was; without it reading begins at
    the first byte. `poll` is the longest time between two looks at the file, in seconds, for where no event comes.
    """

    def __init__(self, path: str | os.PathLike[str], *, position: Position | None = None, poll: float = 1.0) -> None:
        self.path = os.path.abspath(path)
        self.closed = False
        self._wake = Wake(self.path, poll)
        self._file: _File | None = None
        self._resume = position
        # The file under our name when its siblings were last looked through in vain: device, inode, time of change.
        self._looked: tuple[int, int, int] | None = None
        self._lock = threading.Lock()  # around each step, so that close() never takes the file from under one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def notice(self) -> str | None:
        """A sentence while events are not to be had and the file is polled, else None."""
        return self._wake.notice

    @property
    def position(self) -> Position | None:
        """Where reading goes on, after the last piece handed out; None before any file was opened."""
        file = self._file
        return self._resume if file is None else Position(file.path, *file.identity, file.offset, file.fingerprint())

    def read(self) -> Iterator[Piece]:
        """What is new, oldest first: bytes (1 to CHUNK) and Started markers; nothing after close().

        It does not block. It ends at the end of the file or after about BOUND bytes (`wait` then returns at once),
        and may be left at any piece: `position` counts what was handed out. Raises TailError.
        """
        given, more, moved = 0, True, False
        try:
            while given < BOUND:
                with self._lock:
                    piece = None if self.closed else self._step()
                if piece is None:
                    more = False
                    break
                moved = moved or isinstance(piece, Started)
                given += len(piece) if isinstance(piece, bytes) else 1
                yield piece
        except TailError:
            more = False
            raise
        finally:
            self._wake.looked(given=given > 0, more=more, following=self._file is not None, moved=moved)

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until read() may have something new: True; or until `timeout` seconds are over or close(): False.

        True means an event, a wake(), or that it is time to look. Call read() after it, to its end.
        """
        return self._wake.wait(timeout)

    def wake(self) -> None:
        """Ends a wait() now, with True."""
        self._wake.set()

    def close(self) -> None:
        """Lets go of the file and its directories and ends a wait(). `position` stays. May be called twice."""
        self.closed = True
        self._wake.close()
        with self._lock:
            if self._file is not None:
                self._resume = self.position
                os.close(self._file.fd)
                self._file = None

    def _step(self) -> Piece | None:
        """The next piece, None when there is none."""
        file = self._file
        try:
            if file is None:
                return self._begin()
            fresh = file.fresh()
            if not fresh:
                later = self._later(file)
                if later is None:
                    return None
                # Its writer has gone on; what it wrote here before that may have come since: once more.
                fresh = file.fresh()
                if not fresh:
                    return self._go(*later)
        except OSError as error:
            raise _explained(self.path, error) from error
        if isinstance(fresh, bytes):
            return fresh
        self._file = _File(file.fd, file.path, file.identity, hole=True)
        return Started(file.path, *file.identity, 0, fresh)

    def _begin(self) -> Started | None:
        """Opens the first file: that of the given position, wherever it is now, or else the one our path names."""
        want = self._resume
        found = None if want is None else _find(self.path, want)
        if want is None or found is None:
            found = _open(self.path)
            return self._start(found, "opened" if want is None else "replaced") if found else None
        found.seek(want.offset)
        if found.fingerprint() == want.fingerprint:
            return self._start(found, "resumed")
        short = os.fstat(found.fd).st_size < want.offset
        return self._start(
            _File(found.fd, found.path, found.identity, hole=True), "truncated" if short else "rewritten"
        )

    def _start(self, file: _File, reason: Reason) -> Started:
        self._file, self._looked, self._resume = file, None, None
        return Started(file.path, *file.identity, file.offset, reason)

    def _later(self, file: _File) -> tuple[str, Identity] | None:
        """The file that comes after `file`; None while its writer has not gone on to another.

        Log rotation makes the new file before the writer lets go of the old one, so an empty new file is not gone
        over to.
        """
        named: os.stat_result | None = None
        with suppress(FileNotFoundError):
            named = os.stat(self.path)
        if named is not None and _identity(named) == file.identity:
            return None
        seen = named and (*_identity(named), named.st_ctime_ns)
        if seen is None or seen != self._looked:
            between = _between(os.path.realpath(self.path), file.identity)
            if between is not None:
                return between
            self._looked = seen
        return (self.path, _identity(named)) if named is not None and named.st_size > 0 else None

    def _go(self, path: str, identity: Identity) -> Piece | None:
        """Goes over to the file `identity` at `path`."""
        file = _open(path)
        if file is None or file.identity != identity:  # renamed since: look again
            if file is not None:
                os.close(file.fd)
            self._looked = None
            return self._step()
        if self._file is not None:
            os.close(self._file.fd)
        return self._start(file, "rotated")


@dataclass(slots=True)
class _File:
    """An open file, how far it was read, and the bytes by which it is known again."""

    fd: int
    path: str
    identity: Identity
    offset: int = 0
    head: bytes = b""  # the file's first bytes, at most MARK and none beyond offset
    last: bytes = b""  # the bytes before offset, at most MARK
    hole: bool = False  # skip leading NULs: a writer without O_APPEND leaves a hole where its log was truncated

    def fingerprint(self) -> str:
        return hashlib.blake2b(self.head + b"\n" + self.last, digest_size=16).hexdigest()

    def seek(self, offset: int) -> None:
        """Goes to `offset` without handing on what is before it."""
        self.offset = offset
        self.head = os.pread(self.fd, min(MARK, offset), 0)
        self.last = os.pread(self.fd, min(MARK, offset), max(0, offset - MARK))

    def fresh(self) -> bytes | Reason:
        """The next bytes after offset, none at the end of the file; or why the offset no longer means anything here."""
        while True:
            try:
                head = os.pread(self.fd, len(self.head), 0)
                # One call for the bytes before the offset and those after it, so that nothing comes between.
                data = os.pread(self.fd, len(self.last) + CHUNK, self.offset - len(self.last))
            except OSError as error:
                if error.errno == errno.ESTALE:  # deleted on its NFS server
                    return b""
                raise
            if len(data) < len(self.last):
                return "truncated"
            if head != self.head or not data.startswith(self.last):
                return "rewritten"
            data = data[len(self.last) :]
            kept = data.lstrip(b"\0") if self.hole else data
            if kept or not data:
                self.hole = self.hole and not kept
                self.head += data[: MARK - len(self.head)]
                self.last = (self.last + data[-MARK:])[-MARK:]
                self.offset += len(data)
                return kept
            end = self.offset + len(data)
            with suppress(OSError):  # a file system that knows of holes leads straight over this one
                end = max(end, os.lseek(self.fd, end, os.SEEK_DATA))
            self.seek(end)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _open(path: str) -> _File | None:
    """The file at `path`, None when there is none. Raises TailError for what is not a readable file."""
    try:
        # Not blocking: the opening of a pipe would wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _explained(path, error) from error
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode):
        return _File(fd, os.path.realpath(path), _identity(found))
    os.close(fd)
    if stat.S_ISDIR(found.st_mode):
        raise TailError(f"{path}: is a directory; name the log file in it")
    raise TailError(f"{path}: is a pipe or a device and cannot be read twice; let the server write to a file")


def _explained(path: str, error: OSError) -> TailError:
    if isinstance(error, PermissionError):
        who = f"no permission to read it as user {os.geteuid()}"
        return TailError(f"{path}: {who}; `chmod o+r` it and `o+x` its directories, or run bringup as its owner")
    if error.errno == errno.ENOTDIR:
        return TailError(f"{path}: a part of this path is a file, not a directory; correct the path")
    if error.errno == errno.ELOOP:
        return TailError(f"{path}: its links go round in a circle; point the link to a file")
    return TailError(f"{path}: cannot be read: {error.strerror or error}; see to it and start again")


def _find(path: str, want: Position) -> _File | None:
    """The file of an earlier position: at `path`, under its own name, or renamed within its directory; None if gone.

    Under these names and those of rotated files a file with its inode counts, whatever is in it: either it was
    rewritten, or the number was given to a later file of the log. Under another name it must be known by its bytes.
    Device numbers may change with a reboot.
    """
    logs = os.path.realpath(path), want.path
    names = dict.fromkeys((path, want.path), True)
    for name, status in _files(os.path.dirname(want.path)):
        if status.st_ino == want.inode:
            ours = any(name.startswith(log) and _generation(name[len(log) :]) for log in logs)
            names.setdefault(name, ours)
    for name, ours in names.items():
        file = _open(name)
        if file is None:
            continue
        file.seek(want.offset)
        if file.identity[1] == want.inode and (ours or (want.offset and file.fingerprint() == want.fingerprint)):
            return file
        os.close(file.fd)
    return None


def _files(folder: str) -> list[tuple[str, os.stat_result]]:
    """The regular files in `folder`, path and status; none when it cannot be read."""
    found: list[tuple[str, os.stat_result]] = []
    with suppress(OSError):
        for _ in range(100):  # a rotation renames one file after the other: not in the middle of that
            before = os.stat(folder).st_mtime_ns
            found = []
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        if entry.is_file(follow_symlinks=False):
                            found.append((entry.path, entry.stat(follow_symlinks=False)))
            if os.stat(folder).st_mtime_ns == before:
                break
    return found


def _generation(suffix: str) -> tuple[str, int] | None:
    """What rotation appended to a name: its kind, and its place in time, higher is later; None for anything else.

    ".1" is later than ".2"; "-20261106" is later than "-20261105".
    """
    if not re.fullmatch(r"[.\-_]\d[\d.\-_T:]*", suffix):
        return None
    digits = re.sub(r"\D", "", suffix)
    if len(digits) < 5:
        return suffix[0], -int(digits)
    return re.sub(r"\d", "0", suffix), int(digits)


def _between(path: str, identity: Identity) -> tuple[str, Identity] | None:
    """The rotated file that comes next after the file `identity`, when the name was passed on more than once since.

    `path` is the log's own name, without links. A sibling counts when its name is of the kind that the file has now,
    later by that name, and when it was not last written before the file (where higher numbers are later, that one was
    read long ago).
    """
    found = []
    for name, status in _files(os.path.dirname(path)):
        age = _generation(name[len(path) :]) if name.startswith(path) else None
        if age is not None:
            found.append((*age, status, name))
    mine = next(((kind, order, status) for kind, order, status, _ in found if _identity(status) == identity), None)
    if mine is None:
        return None
    later = [
        (order, sibling, _identity(status))
        for kind, order, status, sibling in found
        if kind == mine[0] and order > mine[1] and status.st_mtime_ns >= mine[2].st_mtime_ns
    ]
    return min(later)[1:] if later else None
