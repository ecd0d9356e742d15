"""A followed file on a real file system: whatever is done to it, every byte comes once and in order."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import logging.handlers
import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import tail as tail_module
from app import wake as wake_module
from app.tail import Piece, Position, Started, Tail, TailError

DEADLINE = 20.0  # s; only a broken follower ever waits that long


def content(pieces: list[Piece]) -> bytes:
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))


def reasons(pieces: list[Piece]) -> list[str]:
    return [piece.reason for piece in pieces if isinstance(piece, Started)]


def saved(tail: Tail) -> Position:
    """The position as it comes back from a file of JSON."""
    assert tail.position is not None
    return Position(**json.loads(json.dumps(dataclasses.asdict(tail.position))))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


# --- the property: any schedule of writers, rotations and restarts ---------------------------------------------------


class World:
    """A log, its writer, a tail on it, and the bytes that must still come, file by file in order.

    Each write has bytes of its own, so that a lost, doubled or misplaced byte shows. What may go missing is exactly
    this: bytes truncated away before a read; bytes of a deleted file that the tail had not opened, or that it had
    open when it was restarted; and nothing else.
    """

    def __init__(self, folder: Path, linked: bool) -> None:
        self.folder, self.linked = folder, linked
        self.path = folder / "server.log"
        self.writes = self.targets = 0
        self.due: list[tuple[int, bytearray]] = []  # (inode, bytes) in the order of the writer
        self.on: int | None = None  # inode of the file the tail is in
        self.held = False  # the tail has it open; not after a restart, until it reads
        self.copies: set[int] = set()  # files whose bytes may come, as they are copies of what was truncated away
        if linked:
            self.path.symlink_to(self.target())
        self.writer = self.open()
        self.tail = Tail(self.path)

    def close(self) -> None:
        os.close(self.writer)
        self.tail.close()

    def target(self) -> Path:
        self.targets += 1
        return self.folder / f"run-{self.targets}.out"

    def open(self) -> int:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if not self.due or self.due[-1][0] != os.fstat(fd).st_ino:
            self.due.append((os.fstat(fd).st_ino, bytearray()))
        return fd

    # what the tail hands out

    def take(self, pieces: Iterator[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Started):
                self.on, self.held = piece.inode, True
                while self.due[0][0] != piece.inode:  # it goes to a later file only when nothing is left of this one
                    inode, rest = self.due.pop(0)
                    assert not rest or inode in self.copies
                continue
            assert self.due[0][0] == self.on
            assert self.due[0][1].startswith(piece)
            del self.due[0][1][: len(piece)]

    def read(self) -> None:
        self.take(self.tail.read())
        assert not any(rest for inode, rest in self.due if inode not in self.copies)

    def read_some(self, pieces: int) -> None:
        reading = self.tail.read()
        self.take(islice(reading, pieces))
        reading.close()  # type: ignore[attr-defined]

    def restart(self) -> None:
        position = saved(self.tail) if self.tail.position else None
        self.tail.close()
        self.tail, self.held = Tail(self.path, position=position), False
        if self.on is not None and not self.is_named(self.on):
            self.due = [(-1, bytearray()) if inode == self.on else (inode, rest) for inode, rest in self.due]
            self.on = None

    # what happens to the log

    def is_named(self, inode: int) -> bool:
        with os.scandir(self.folder) as entries:
            return any(entry.inode() == inode for entry in entries)

    def numbered(self) -> bool:
        """Whether the tail's file has its place among the rotated ones (or is the log itself)."""
        return self.on is not None and not self.linked and self.is_named(self.on)

    def reopen(self) -> None:
        """The writer comes back to the path, as it must before anybody can rotate it again."""
        os.close(self.writer)
        self.writer = self.open()

    def settle(self) -> None:
        """Before a name changes hands: where two did so unseen, only numbered siblings of the tail's file lead on."""
        self.reopen()
        if self.due[-1][0] != self.on and not self.numbered():
            self.write(1)  # an empty file is not gone over to
            self.read()

    def write(self, size: int) -> None:
        self.writes += 1
        data = bytes(1 + (self.writes * 8 + i % 8) % 248 for i in range(size))
        os.write(self.writer, data)
        inode = os.fstat(self.writer).st_ino
        if self.is_named(inode) or (inode == self.on and self.held):
            assert self.due[-1][0] == inode
            self.due[-1][1].extend(data)

    def truncate(self, size: int) -> None:
        self.reopen()
        os.ftruncate(self.writer, 0)
        self.due[-1][1].clear()
        self.write(size)

    def copytruncate(self, size: int) -> None:
        self.reopen()
        self.shift()
        shutil.copyfile(self.path, f"{self.path}.1")
        copy = os.stat(f"{self.path}.1").st_ino
        if self.due[-1][0] != self.on:  # read where the copy comes next after the tail's file, or got that one's number
            self.copies.add(copy)
            self.due.insert(-1, (copy, bytearray(self.due[-1][1])))
        self.truncate(size)

    def shift(self) -> None:
        for number in range(30, 0, -1):
            if os.path.exists(f"{self.path}.{number}"):
                os.rename(f"{self.path}.{number}", f"{self.path}.{number + 1}")

    def rotate(self, made: bool) -> None:
        """By rename; the writer keeps the old file until it reopens. `made`: a new empty file is put there first."""
        self.settle()
        if self.linked:
            return self.move()
        self.shift()
        self.path.rename(f"{self.path}.1")
        if made:
            self.path.touch()

    def move(self) -> None:
        """The link points to another file."""
        new = self.folder / "new"
        new.symlink_to(self.target())
        new.rename(self.path)

    def delete(self) -> None:
        self.settle()
        if self.due[-1][0] != self.on or not self.held:
            self.due[-1][1].clear()
        os.unlink(os.path.realpath(self.path))


SIZE = st.sampled_from([1, 2, 3, 5, 8, 20, 300])
STEPS = st.one_of(
    st.tuples(st.just("write"), SIZE),
    st.tuples(st.just("write"), SIZE),
    st.tuples(st.just("read")),
    st.tuples(st.just("read_some"), st.integers(1, 4)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("truncate"), SIZE),
    st.tuples(st.just("copytruncate"), SIZE),
    st.tuples(st.just("rotate"), st.booleans()),
    st.tuples(st.just("delete")),
)


@settings(max_examples=1200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(STEPS, max_size=24),
    linked=st.booleans(),
    chunk=st.sampled_from([1, 3, 64, 256 * 1024]),
    mark=st.sampled_from([1, 4, 256]),
)
def test_any_schedule(
    steps: list[tuple[Any, ...]], linked: bool, chunk: int, mark: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "CHUNK", chunk)
    monkeypatch.setattr(tail_module, "MARK", mark)
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    world = World(folder, linked)
    try:
        for name, *arguments in steps:
            getattr(world, name)(*arguments)
        world.read()
        world.read()
    finally:
        world.close()
        shutil.rmtree(folder)


# --- one thing at a time ---------------------------------------------------------------------------------------------


def test_what_comes_out(log: Path) -> None:
    log.write_bytes(b"one\ntw")
    with Tail(log) as tail:
        status = log.stat()
        assert tail.position is None
        assert list(tail.read()) == [
            Started(str(log), status.st_dev, status.st_ino, 0, "opened"),
            b"one\ntw",
        ]
        assert list(tail.read()) == []
        with log.open("ab") as writer:
            writer.write(b"o\n")
        assert list(tail.read()) == [b"o\n"]
        assert tail.position is not None
        assert tail.position.offset == 8
    assert tail.closed
    assert list(tail.read()) == []
    assert tail.position.offset == 8
    tail.close()


def test_pieces_and_reads_are_bounded(log: Path) -> None:
    log.write_bytes(os.urandom(20 * 1024 * 1024))
    with Tail(log) as tail:
        first = list(tail.read())
        assert max(len(piece) for piece in first if isinstance(piece, bytes)) == tail_module.CHUNK
        assert tail_module.BOUND <= len(content(first)) < tail_module.BOUND + tail_module.CHUNK
        everything = content(first)
        while tail.wait(0):  # at once while the end is not reached
            everything += content(list(tail.read()))
            if len(everything) == log.stat().st_size:
                break
        assert everything == log.read_bytes()


def test_a_read_left_early_goes_on_where_it_was(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "CHUNK", 2)
    log.write_bytes(b"abcdef")
    with Tail(log) as tail:
        assert list(islice(tail.read(), 2))[1] == b"ab"
        assert tail.wait(0)
        assert list(tail.read()) == [b"cd", b"ef"]


@pytest.mark.parametrize(
    ("after", "reason"),
    [(b"x", "truncated"), (b"12345", "rewritten"), (b"123456789", "rewritten"), (b"abcdX", "rewritten")],
)
def test_written_anew_in_place(log: Path, after: bytes, reason: str) -> None:
    log.write_bytes(b"abcde")
    with Tail(log) as tail:
        list(tail.read())
        log.write_bytes(after)
        pieces = list(tail.read())
        assert (reasons(pieces), content(pieces)) == ([reason], after)


def test_written_anew_behind_the_same_banner(log: Path) -> None:
    """A restarted server prints the same first lines; the bytes before the offset tell."""
    banner = b"Starting server ...\n" * 100
    log.write_bytes(banner + b"first run\n")
    with Tail(log) as tail:
        list(tail.read())
        log.write_bytes(banner + b"second run, which goes further\n")
        assert content(list(tail.read())) == log.read_bytes()


def test_hole_of_a_writer_that_does_not_append(log: Path) -> None:
    """After copytruncate it goes on at its old offset: the file begins with megabytes of NUL that nobody wrote."""
    with log.open("wb", buffering=0) as writer, Tail(log) as tail:
        writer.write(b"a" * 3_000_001)
        list(tail.read())
        os.truncate(log, 0)
        writer.write(b"after\0wards\n")
        pieces = list(tail.read())
        assert (reasons(pieces), content(pieces)) == (["rewritten"], b"after\0wards\n")
        writer.write(b"more\n")
        assert list(tail.read()) == [b"more\n"]
        os.truncate(log, 0)
        assert reasons(list(tail.read())) == ["truncated"]
        writer.write(b"again\n")
        assert list(tail.read()) == [b"again\n"]


def test_rest_of_the_old_file_comes_first_while_its_writer_stays(log: Path) -> None:
    with log.open("ab", buffering=0) as old, Tail(log) as tail:
        old.write(b"1")
        list(tail.read())
        log.rename(f"{log}.1")
        log.touch()  # made by log rotation; the server does not know yet
        old.write(b"2")
        assert list(tail.read()) == [b"2"]
        old.write(b"3")
        log.write_bytes(b"4")
        pieces = list(tail.read())
        assert (reasons(pieces), content(pieces)) == (["rotated"], b"34")


def test_a_file_deleted_on_its_server(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS answers with ESTALE on the open file; the name leads on."""
    log.write_bytes(b"1")
    with Tail(log) as tail:
        list(tail.read())
        stale, pread = log.stat().st_ino, os.pread

        def refuse(fd: int, size: int, offset: int) -> bytes:
            if os.fstat(fd).st_ino == stale:
                raise OSError(errno.ESTALE, "Stale file handle")
            return pread(fd, size, offset)

        monkeypatch.setattr(os, "pread", refuse)
        assert list(tail.read()) == []
        log.rename(f"{log}.old")
        log.write_bytes(b"2")
        assert content(list(tail.read())) == b"2"


@pytest.mark.parametrize(
    "names",
    [
        ["log.3", "log.2", "log.1", "log"],
        ["log-20261105", "log-20261106", "log-20261107", "log"],
        ["log.2026-11-05_09", "log.2026-11-05_10", "log.2026-11-05_11", "log"],
    ],
)
def test_several_rotations_at_once(tmp_path: Path, names: list[str]) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"0")
    with Tail(log) as tail:
        list(tail.read())
        log.rename(tmp_path / names[0])
        for stranger in ("log.1.gz", "log.old", "log.err", "log-20200101.bak", "log.10", "log-20200101"):
            (tmp_path / stranger).write_bytes(b"?")
            os.utime(tmp_path / stranger, (0, 0))
        for number, name in enumerate(names[1:], 1):
            (tmp_path / name).write_bytes(b"%d" % number)
        pieces = list(tail.read())
        assert (reasons(pieces), content(pieces)) == (["rotated"] * 3, b"123")


def test_a_new_file_with_the_number_of_one_that_was_looked_at(log: Path) -> None:
    """Two names passed on unseen, and the last file got the inode of the empty one that stood there before."""
    log.write_bytes(b"0")
    with Tail(log) as tail:
        list(tail.read())
        log.rename(f"{log}.1")
        log.touch()
        assert list(tail.read()) == []
        empty = log.stat().st_ino
        (log.parent / "other").write_bytes(b"1")
        (log.parent / "other").replace(log)
        Path(f"{log}.1").rename(f"{log}.2")
        log.rename(f"{log}.1")
        log.write_bytes(b"2")
        if log.stat().st_ino != empty:
            pytest.skip("this file system does not give inode numbers out again at once")
        assert content(list(tail.read())) == b"12"


# --- a restarted follower --------------------------------------------------------------------------------------------


def nothing(log: Path) -> bytes:
    return b""


def appended(log: Path) -> bytes:
    with log.open("ab") as writer:
        writer.write(b"more")
    return b"more"


def rotated(log: Path) -> bytes:
    log.rename(f"{log}.1")
    log.write_bytes(b"new")
    return b"new"


def rotated_twice(log: Path) -> bytes:
    rotated(log)
    Path(f"{log}.1").rename(f"{log}.2")
    log.rename(f"{log}.1")
    log.write_bytes(b"newer")
    return b"newnewer"


def renamed_only(log: Path) -> bytes:
    log.rename(f"{log}.1")
    return b""


@pytest.mark.parametrize("meanwhile", [nothing, appended, rotated, rotated_twice, renamed_only])
def test_resumes_at_every_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Path], bytes]
) -> None:
    monkeypatch.setattr(tail_module, "CHUNK", 1)
    monkeypatch.setattr(tail_module, "MARK", 4)
    for stop in range(1, 12):
        log = tmp_path / str(stop) / "server.log"
        log.parent.mkdir()
        log.write_bytes(b"0123456789")
        with Tail(log) as tail:
            before = content(list(islice(tail.read(), stop)))
            position = saved(tail)
        later = meanwhile(log)
        with Tail(log, position=position) as tail:
            pieces = list(tail.read())
        assert before + content(pieces) == b"0123456789" + later
        assert reasons(pieces)[0] == "resumed"


def test_position_is_kept_until_there_is_a_file(log: Path) -> None:
    position = Position(str(log), 1, 2, 3, "f")
    with Tail(log, position=position) as tail:
        assert list(tail.read()) == []
        assert tail.position == position


@pytest.mark.parametrize(("after", "reason"), [(b"xy", "truncated"), (b"12345678", "rewritten")])
def test_resume_does_not_trust_an_inode_number(log: Path, after: bytes, reason: str) -> None:
    log.write_bytes(b"abcde")
    with Tail(log) as tail:
        list(tail.read())
        position = saved(tail)
    log.unlink()
    log.write_bytes(after)
    position = dataclasses.replace(position, inode=log.stat().st_ino)  # some file systems give it out again at once
    with Tail(log, position=position) as tail:
        pieces = list(tail.read())
        assert (reasons(pieces), content(pieces)) == ([reason], after)


def test_resume_says_when_the_file_is_gone(log: Path) -> None:
    log.write_bytes(b"abc")
    with Tail(log) as tail:
        list(tail.read())
        position = saved(tail)
    keeps_the_number = log.open("rb")
    log.unlink()
    log.write_bytes(b"abc and more")
    with keeps_the_number, Tail(log, position=position) as tail:
        pieces = list(tail.read())
        assert (reasons(pieces), content(pieces)) == (["replaced"], b"abc and more")


def test_resume_after_device_numbers_changed_and_a_link_moved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    old, new, link = tmp_path / "a" / "out", tmp_path / "b" / "out", tmp_path / "current.log"
    old.write_bytes(b"12")
    link.symlink_to(old)
    with Tail(link) as tail:
        list(tail.read())
        position = dataclasses.replace(saved(tail), device=12345)
    with old.open("ab") as writer:
        writer.write(b"3")
    new.write_bytes(b"4")
    link.unlink()
    link.symlink_to(new)
    with Tail(link, position=position) as tail:
        pieces = list(tail.read())
        assert (reasons(pieces), content(pieces)) == (["resumed", "rotated"], b"34")


def test_a_position_holds_no_text_of_the_log(log: Path) -> None:
    log.write_bytes(b"HF_TOKEN=hf_secret")
    with Tail(log) as tail:
        list(tail.read())
        assert "secret" not in json.dumps(dataclasses.asdict(saved(tail)))


# --- what cannot be followed -----------------------------------------------------------------------------------------


def test_error_texts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for name, text in {
        "": "is a directory; name the log file in it",
        "file/server.log": "a part of this path is a file, not a directory; correct the path",
        "loop": "its links go round in a circle; point the link to a file",
        "pipe": "is a pipe or a device and cannot be read twice; let the server write to a file",
    }.items():
        path = tmp_path / name
        with Tail(path) as tail, pytest.raises(TailError) as error:
            list(tail.read())
        assert str(error.value) == f"{path}: {text}"


def test_no_permission(log: Path) -> None:
    log.write_bytes(b"x")
    log.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with Tail(log) as tail, pytest.raises(TailError) as error:
            list(tail.read())
        now = os.geteuid()
    finally:
        os.seteuid(user)
    assert str(error.value) == (
        f"{log}: no permission to read it as user {now}; `chmod o+r` it and `o+x` its directories, "
        "or run bringup as its owner"
    )


def test_goes_on_after_an_error(log: Path) -> None:
    log.write_bytes(b"1")
    with Tail(log) as tail:
        list(tail.read())
        log.rename(f"{log}.1")
        log.mkdir()
        (log / "x").touch()
        for _ in range(2):
            with pytest.raises(TailError, match="is a directory"):
                list(tail.read())
        (log / "x").unlink()
        log.rmdir()
        log.write_bytes(b"2")
        assert content(list(tail.read())) == b"2"


# --- waiting: with the real watchdog, and never for a time -----------------------------------------------------------


def follow(tail: Tail, until: Callable[[bytes], bool]) -> bytes:
    """Waits and reads as a service does until what came is enough."""
    end, seen = time.monotonic() + DEADLINE, b""
    while True:
        seen += content(list(tail.read()))
        if until(seen):
            return seen
        assert time.monotonic() < end, f"only {len(seen)} bytes came: {seen[-200:]!r}"
        tail.wait(end - time.monotonic())


def watched(tail: Tail) -> None:
    """Reads until the tail sleeps; where its poll is longer than the deadline, only an event can wake it then."""
    while tail.wait(0):
        list(tail.read())
    assert tail.notice is None


@pytest.fixture
def seldom(log: Path) -> Iterator[Tail]:
    with Tail(log, poll=10 * DEADLINE) as tail:
        yield tail


def test_events_wake(log: Path, seldom: Tail) -> None:
    log.write_bytes(b"")
    watched(seldom)
    for step in (b"1", b"2\n3", b"4"):
        with log.open("ab") as writer:
            writer.write(step)
        assert follow(seldom, lambda seen, step=step: seen == step) == step  # type: ignore[misc]
    log.rename(f"{log}.1")
    log.write_bytes(b"rotated")
    follow(seldom, lambda seen: seen == b"rotated")
    os.truncate(log, 0)
    with log.open("ab") as writer:
        writer.write(b"truncated")
    follow(seldom, lambda seen: seen == b"truncated")
    log.unlink()
    log.write_bytes(b"made anew")
    follow(seldom, lambda seen: seen == b"made anew")


def test_file_appears_later(log: Path, seldom: Tail) -> None:
    watched(seldom)
    log.write_bytes(b"here")
    follow(seldom, lambda seen: seen == b"here")


def test_file_is_moved_into_place_later(log: Path, seldom: Tail) -> None:
    watched(seldom)
    (log.parent / "other").write_bytes(b"here")
    (log.parent / "other").rename(log)
    follow(seldom, lambda seen: seen == b"here")


def test_directories_appear_later(tmp_path: Path) -> None:
    log = tmp_path / "a" / "b" / "server.log"
    with Tail(log, poll=10 * DEADLINE) as tail:
        watched(tail)
        log.parent.mkdir(parents=True)
        assert tail.wait(DEADLINE)
        watched(tail)
        log.write_bytes(b"here")
        follow(tail, lambda seen: seen == b"here")


def test_directory_is_made_anew(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "server.log"
    log.parent.mkdir()
    log.write_bytes(b"1")
    with Tail(log, poll=0.05) as tail:
        follow(tail, lambda seen: seen == b"1")
        shutil.rmtree(log.parent)
        log.parent.mkdir()
        log.write_bytes(b"2")
        follow(tail, lambda seen: seen == b"2")


def test_link_moves_to_another_directory(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "out").write_bytes(name.encode())
    link = tmp_path / "server.log"
    link.symlink_to(tmp_path / "a" / "out")
    with Tail(link, poll=0.05) as tail:
        follow(tail, lambda seen: seen == b"a")
        (tmp_path / "new").symlink_to(tmp_path / "b" / "out")
        (tmp_path / "new").rename(link)
        follow(tail, lambda seen: seen == b"b")
    link.unlink()
    link.symlink_to(tmp_path / "a" / "out")
    with Tail(link, poll=10 * DEADLINE) as tail:
        watched(tail)
        with (tmp_path / "a" / "out").open("ab") as writer:  # told by an event in the target's directory
            writer.write(b"!")
        follow(tail, lambda seen: seen == b"!")


def test_wake_and_close_end_a_wait(log: Path, seldom: Tail) -> None:
    watched(seldom)
    answers: list[bool] = []
    for end in (seldom.wake, seldom.close, lambda: None):
        thread = threading.Thread(target=lambda: answers.append(seldom.wait()))
        thread.start()
        end()
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert answers == [True, False, False]


def test_wait_times_out(log: Path, seldom: Tail) -> None:
    watched(seldom)
    assert not seldom.wait(0)
    assert not seldom.wait(0.001)


def test_poll_is_kept_across_short_waits(log: Path) -> None:
    """A caller that never waits as long as the poll must still be told to look."""
    log.write_bytes(b"")
    with Tail(log, poll=0.05) as tail:
        list(tail.read())
        end = time.monotonic() + DEADLINE
        while not tail.wait(0.001):
            assert time.monotonic() < end


@contextmanager
def refused(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Iterator[None]:
    def observer() -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("watchdog.observers.Observer", observer)
        yield


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, ""), "no inotify watch is left; raise fs.inotify.max_user_watches"),
        (
            OSError(errno.EMFILE, ""),
            "no inotify instance is left; raise fs.inotify.max_user_instances or `ulimit -n`",
        ),
        (ImportError("watchdog"), "watchdog is not installed; `pip install 'bringup[service]'`"),
        (OSError(errno.ENOSYS, "Function not implemented"), "file events are not to be had ([Errno 38] Function"),
    ],
)
def test_polls_and_says_so_without_events(
    log: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, text: str
) -> None:
    monkeypatch.setattr(wake_module, "RETRY", 0.0)
    with Tail(log, poll=0.02) as tail:
        with refused(monkeypatch, error):
            log.write_bytes(b"1")
            follow(tail, lambda seen: seen == b"1")
            with log.open("ab") as writer:
                writer.write(b"2")
            tail.wait(0)
            follow(tail, lambda seen: seen == b"2")
            assert tail.notice is not None
            assert tail.notice.startswith(f"{log} is looked at every 0.02 s only: {text}")
        end = time.monotonic() + DEADLINE
        while tail.notice is not None:  # events are asked for again
            list(tail.read())
            tail.wait(0.01)
            assert time.monotonic() < end


def test_mapped_writes_are_found_by_the_poll(log: Path) -> None:
    """They send no event at all."""
    log.write_bytes(b"0000")
    with Tail(log, poll=0.05) as tail, log.open("r+b") as writer:
        watched(tail)
        with mmap.mmap(writer.fileno(), 4) as pages:
            pages[:] = b"1234"
        follow(tail, lambda seen: seen == b"1234")


def test_a_busy_directory_is_not_watched_until_it_is_quiet(log: Path, seldom: Tail) -> None:
    log.write_bytes(b"")
    watched(seldom)
    total = 0
    end = time.monotonic() + DEADLINE
    with log.open("ab", buffering=0) as writer:
        while seldom._wake._watch is not None:
            writer.write(b"line\n")
            total += 5
            total -= len(content(list(seldom.read())))
            seldom.wait(0.001)
            assert time.monotonic() < end
        writer.write(b"last\n")
        follow(seldom, lambda seen: len(seen) == total + 5)
        while seldom._wake._watch is None:
            list(seldom.read())
            seldom.wait(end - time.monotonic())
            assert time.monotonic() < end
        watched(seldom)
        writer.write(b"by event\n")
        follow(seldom, lambda seen: seen == b"by event\n")


def test_beside_a_rotating_logger(log: Path) -> None:
    """The standard library's handler in another thread, many rotations a second."""
    handler = logging.handlers.RotatingFileHandler(log, maxBytes=20_000, backupCount=200)
    handler.setFormatter(logging.Formatter("%(message)s"))
    lines = [f"{number:08d} {'x' * (number % 60)}" for number in range(20_000)]

    def write() -> None:
        for line in lines:
            handler.emit(logging.LogRecord("x", logging.INFO, "", 0, line, None, None))

    writer = threading.Thread(target=write)
    expected = "".join(f"{line}\n" for line in lines).encode()
    with Tail(log) as tail:
        writer.start()
        seen = follow(tail, lambda seen: len(seen) >= len(expected))
        writer.join()
        seen += content(list(tail.read()))
    handler.close()
    assert seen == expected
