"""The bytes of a watched log and the news that are read out of them in; a run for each start in it, out.

A run of a watched log looks like one of our own (app/runs.py): a folder with a journal and the start's own log, so that
the store, the differences and the bundle need to know nothing of it. The log is copied, because whoever starts the
server again often writes over the old one, and with it over the evidence.

A start is known again by what its first bytes are and where they stand, so that a bringup that is started again, and
reads the log from its beginning, goes on with the runs that it has and doubles none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.core.diagnosis import Earlier, Status
from app.core.secrets import mask, mask_argv
from app.explain import Told, explain_source
from app.hub import News
from app.offers import scrubbed
from app.report import to_json
from app.runs import Busy, Run
from app.tail import Piece, Started, Tail

if TYPE_CHECKING:
    from app.knowledge import Base

HEAD = 32 << 20
"""Bytes of a start that are copied from its beginning. A server that runs for weeks writes more: what stands around a
later failure is copied too, the rest is not."""
AROUND = 1 << 20
"""Bytes kept in memory, and copied before and after a failure beyond HEAD."""
MARK = 4096
"""Bytes from which a start is known again; fewer while there are no more."""
BEFORE = 256 << 10
"""A file that was begun anew belongs to the next start from its first byte, if that one says its name this soon."""
KEPT = {"fact", "phase", "said", "state", "verdict", "remedies", "failure", "symptom"}
_DATED = re.compile(rb"\b(20\d\d)-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_NOTHING = Told()
_LEFT_OUT = "… what the server wrote in between is left out here …\n"


@dataclass
class _Part:
    """A piece of a run: `offset` is where it begins in its file, `at` its first byte and `line` its first line in the
    run. `known` bytes of it have this `digest`."""

    offset: int
    at: int
    line: int
    known: int = 0
    digest: str = ""


@dataclass
class _Rest:
    """What is copied beyond HEAD: bytes of the run from `at` on, `upto` exclusive; each stands `moved` bytes earlier in
    the copy, and its lines `lines` earlier. `first` is the first line of it."""

    at: int
    upto: int
    moved: int
    first: int
    lines: int


class Starts:
    """The runs of one log, below `root`. All of it belongs to the thread that reads the log; `run` may be asked by any.

    Nothing here raises for a disk that is full or not ours: the watch goes on without a history, and that is said.
    """

    def __init__(self, root: Path, name: str, path: Path, base: Base) -> None:
        """`name` is the target's, `path` the log. OSError when `root` cannot be written to; Busy when another bringup
        keeps the runs of this log."""
        self.root, self._name, self._path, self._base = root, name, path, base
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(root / "watch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Busy(f"another bringup keeps the history of {path}; this one only shows it") from None
        self._trouble = ""
        self._run: Run | None = None
        self._done = False
        """Whether the current run is one of before, finished then: nothing is added to it."""
        self._window: deque[tuple[int, int, bytes]] = deque()  # stream byte, stream line (from 1), bytes
        self._at, self._line, self._held = 0, 1, 0
        self._files: list[tuple[int, int, Started]] = []  # stream byte and line where each file begins
        self._fresh: Started | None = None
        self._existing = 0  # stream bytes that were there before we came
        self._clock = 0.0
        self._origin = self._first = 0  # stream byte and line of the run's first
        self._parts: list[_Part] = []
        self._rest: _Rest | None = None
        self._head_lines: int | None = None
        self._mark = b""
        self._copy: int | None = None
        self._forget()

    @property
    def run(self) -> str | None:
        """The name of the run that the log is at; None before any."""
        run = self._run
        return run.name if run is not None else None

    @property
    def began(self) -> float | None:
        """When that run began, in seconds since the epoch, as far as the log tells."""
        run = self._run
        return float(run.data["began"]) if run is not None else None

    def tail(self) -> Tail:
        """The log's tail: what is read from it is seen here first."""
        return _Tapped(self._path, self)

    def close(self) -> None:
        """Lets go of everything. The run is not over: its server may go on, and so may the next bringup."""
        self._save()
        if self._run is not None:
            self._run.close()
        self._drop_copy()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # Bytes

    def take(self, piece: Piece) -> None:
        """The next piece of the log, before anybody else reads it."""
        if isinstance(piece, Started):
            self._save()
            self._fresh = piece
            return
        fresh, self._fresh = self._fresh, None
        try:
            if fresh is not None:
                self._enter(fresh)
        except (OSError, Busy) as error:
            self._say(error)
            if self._run is not None:
                self._run.close()
            self._forget()  # this start has no history; where the stream is must be known for the next one
        self._window.append((self._at, self._line, piece))
        self._held += len(piece)
        while self._held - len(self._window[0][2]) > AROUND:
            self._held -= len(self._window.popleft()[2])
        before, self._at = self._at, self._at + len(piece)
        self._line += piece.count(b"\n")
        try:
            self._write(before, piece)
            self._remember(before, piece)
        except OSError as error:
            self._say(error)

    def _enter(self, started: Started) -> None:
        """A file begins at the stream's end."""
        self._files.append((self._at, self._line, started))
        if self._run is None:
            self._existing = self._at + _size(started.path) - started.offset
            self._open(self._at, self._line)
        else:
            self._parts.append(_Part(started.offset, self._at - self._origin, self._line - self._first + 1))
            self._mark = b""

    def _write(self, at: int, data: bytes) -> None:
        """Copies what of `data` (at the stream byte `at`) is to be kept of the current run."""
        if self._copy is None or self._done:
            return
        place = at - self._origin
        if place < HEAD:
            os.pwrite(self._copy, data[: HEAD - place], place)
            if place + len(data) >= HEAD and self._head_lines is None:
                self._head_lines = self._line - data[HEAD - place :].count(b"\n") - self._first
        rest = self._rest
        if rest is not None and place + len(data) > rest.at and place < rest.upto:
            skip = max(0, rest.at - place)
            os.pwrite(self._copy, data[skip : rest.upto - place], place + skip - rest.moved)

    def _remember(self, at: int, data: bytes) -> None:
        """Keeps the first bytes of the current part, by which it is known again."""
        if self._run is None:
            return
        part = self._parts[-1]
        place = at - self._origin - part.at
        have = len(self._mark)
        if self._done or have >= MARK or not place <= have < place + len(data):
            return
        self._mark += data[have - place : MARK - place]
        part.known, part.digest = len(self._mark), _digest(self._mark)
        if part.known == MARK or have == 0:
            self._save()

    # Runs

    def _open(self, at: int, line: int, first: bool = True) -> None:
        """The run that begins at a byte of the stream: one of before, or a new one. `first`: the stream does."""
        begin, _, file = next(each for each in reversed(self._files) if each[0] <= at)
        offset = file.offset + at - begin
        self._forget()
        found = self._known(file.path, offset) or (self._rotated(file.path) if first else None)
        if found is None:
            self._origin, self._first = at, line
            self._parts = [_Part(offset, 0, 1)]
            self._begin(file, offset)
            return
        run, part, fresh = found
        self._run, self._done = run, run.data.get("outcome") is not None
        watch = run.data["watch"]
        self._origin, self._first = at - part.at, line - (part.line - 1)
        self._parts = [_Part(**each) for each in watch["parts"]]
        if fresh:
            self._parts.append(part)
        else:
            self._parts = [each for each in self._parts if each.at <= part.at]
            self._mark = _head(file.path, offset, part.known)
        self._rest = _Rest(**watch["rest"]) if watch.get("rest") else None
        self._head_lines = watch.get("head_lines")
        if self._done:
            return
        run.take()
        self._copy = os.open(run.log_path(1), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for row in run.news():
            self._keys.add(row["key"])
            self._notice(row["kind"], row["data"])

    def _begin(self, file: Started, offset: int) -> None:
        """Makes a new run. Whatever is still open from before has ended while nobody looked."""
        began = self._when(self._origin, _head(file.path, offset, MARK))
        for other in self._all():
            if other.data.get("outcome") is None:
                with contextlib.suppress(Busy):
                    other.take()
                    self._abandoned(other, began)
        run = Run.new(self.root, [], self._path.parent, {"target": self._name, "watch": {"path": str(self._path)}})
        self._run, self._done = run, False
        run.data["began"] = began
        self._save()
        self._copy = os.open(run.log_path(1), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        data = {"attempt": 1, "number": 1, "argv": [], "log": str(run.log_path(1)), "diff": [], "via": None,
                "source": str(self._path), "offset": offset}  # fmt: skip
        run.note(News(0, began, "attempt", f"a start in {self._path}", data), "1/attempt:1")

    def _forget(self) -> None:
        self._drop_copy()
        self._run, self._done, self._rest, self._head_lines, self._mark = None, False, None, None, b""
        self._keys: set[str] = set()
        self._state, self._told, self._arguments = "starting", False, False
        self._rule: str | None = None
        self._argv: list[str] = []

    def _drop_copy(self) -> None:
        if self._copy is not None:
            os.close(self._copy)
            self._copy = None

    def _all(self) -> Iterator[Run]:
        """Every run of this log, latest first."""
        for path in sorted(self.root.glob("runs/*/run.json"), reverse=True):
            with contextlib.suppress(OSError, ValueError):
                data = json.loads(path.read_bytes())
                if isinstance(data, dict) and _readable(data.get("watch")):
                    yield Run(path.parent, data)

    def _known(self, path: str, offset: int) -> tuple[Run, _Part, bool] | None:
        """The run that has a part at this place of the file, with these first bytes."""
        for run in self._all():
            for each in run.data["watch"].get("parts") or ():
                part = _Part(**each)
                if part.offset == offset and part.known and _digest(_head(path, offset, part.known)) == part.digest:
                    return run, part, False
        return None

    def _rotated(self, path: str) -> tuple[Run, _Part, bool] | None:
        """The run that goes on in this file, because the one that it was in has got another name since; and the part
        that begins here."""
        run = next((each for each in self._all() if each.data.get("outcome") is None), None)
        parts = (run.data["watch"].get("parts") or ()) if run is not None else ()
        if run is None or not parts:
            return None
        last = _Part(**parts[-1])
        for other in sorted(Path(path).parent.glob(f"{escape(Path(path).name)}?*")):
            if last.known and _digest(_head(str(other), last.offset, last.known)) == last.digest:
                size, lines = _counted(other, last.offset)
                return run, _Part(0, last.at + size, last.line + lines), True
        return None

    def _save(self) -> None:
        run = self._run
        if run is None or self._done:
            return
        watch = {"path": str(self._path), "parts": [asdict(each) for each in self._parts],
                 "rest": asdict(self._rest) if self._rest else None, "head_lines": self._head_lines}  # fmt: skip
        try:
            run.keep(watch=watch)
        except OSError as error:
            self._say(error)

    def _next(self, line: int, earlier: Earlier | None) -> None:
        """Another start begins at a line of the stream."""
        at = self._byte(line)
        began, number, file = self._files[-1]
        if self._origin < began <= at <= began + BEFORE and file.reason in ("truncated", "rewritten"):
            at, line = began, number
        run = self._run
        if run is not None and not self._done:
            if self._copy is not None and at - self._origin < HEAD:
                os.ftruncate(self._copy, max(0, at - self._origin))
            self._parts = [each for each in self._parts if each.at < max(1, at - self._origin)]
            self._save()
            state = {"crashed": "crashed", "stalled": "stalled"}.get(earlier.state, "stopped") if earlier else "stopped"
            rule = earlier.rule if earlier else None
            self._finish(run, state, rule, "another start followed in the log", self._when(at, b""))
        self._files = [each for each in self._files if each[0] >= began or each[0] <= at][-2:]
        self._open(at, line, first=False)
        for begin, _, data in self._window:
            if begin + len(data) > at:
                skip = max(0, at - begin)
                self._write(begin + skip, data[skip:])
                self._remember(begin + skip, data[skip:])

    def _byte(self, line: int) -> int:
        """The stream byte where a line begins; the end when it is no longer known."""
        pieces = list(self._window)
        for place in range(len(pieces) - 1, -1, -1):
            begin, number, data = pieces[place]
            within = place > 0 and not pieces[place - 1][2].endswith(b"\n")  # it begins in the middle of a line
            if number > line or (number == line and within):
                continue
            at = 0
            for _ in range(line - number):
                at = data.find(b"\n", at) + 1
                if not at:
                    return self._at
            return begin + at
        return self._at

    def _finish(self, run: Run, state: str, rule: str | None, reason: str, when: float) -> None:
        """Ends a run. A cause that went by too fast to be told is read from the run's own log."""
        told = [row["data"] for row in run.news() if row["kind"] == "verdict"]
        known = told[-1].get("rule") if told and told[-1].get("stage") != "withdrawn" else None
        if rule is not None and rule != known:
            self._read_again(run, when)
        data = {"attempt": 1, "state": state, "rule": rule, "reason": reason, "exit": None}
        run.note(News(0, when, "ended", reason, data), "1/ended:1")
        run.note(News(0, when, "over", reason, {"state": state, "rule": rule}), "over")
        run.finish({"state": state, "text": reason, "rule": rule})
        run.close()

    def _abandoned(self, run: Run, when: float) -> None:
        """Ends a run whose end nobody saw, as it was left."""
        state, rule = "stopped", None
        for row in run.news():
            when = max(when, float(row["at"]))
            if row["kind"] == "state":
                state = row["data"]["state"]
            elif row["kind"] == "verdict":
                rule = None if row["data"].get("stage") == "withdrawn" else row["data"].get("rule")
        state = state if state in ("crashed", "stalled") else "stopped"
        self._finish(run, state, rule, "another start followed while no bringup watched", when)

    def _read_again(self, run: Run, when: float) -> None:
        status, _ = explain_source(str(run.log_path(1)), self._base, _NOTHING)
        report = scrubbed(to_json(status, str(run.log_path(1)), self._base)) if status is not None else None
        cause = next((each for each in (report or {}).get("verdicts", ()) if each["role"] == "cause"), None)
        if cause is None:
            return
        first = cause["evidence"][0] if cause["evidence"] else {"line": None, "text": None}
        data = {"attempt": 1, "stage": "confirmed", "rule": cause["rule"], "title": cause["title"],
                "reason": "all of its log was read", "line": first["line"], "evidence": first["text"]}  # fmt: skip
        run.note(News(0, when, "verdict", cause["title"], data), "")
        more = {"attempt": 1, "rule": cause["rule"], "remedies": cause["remedies"], "evidence": cause["evidence"]}
        run.note(News(0, when, "remedies", f"{len(cause['remedies'])} remedies", more), "")

    # News

    def note(self, news: News, key: str, status: Status, state: str) -> None:
        """A news that was read out of the log, before it is told; `status` and `state` are the log's by now."""
        try:
            if news.kind == "again":
                self._next(int(news.data["line"]), status.earlier[-1] if status.earlier else None)
            elif self._run is not None and not self._done and news.kind in KEPT:
                self._note(self._run, news, key, status, state)
        except (OSError, Busy) as error:
            self._say(error)

    def _note(self, run: Run, news: News, key: str, status: Status, state: str) -> None:
        line = news.data.get("line")
        at = self._byte(line) if isinstance(line, int) and self._at <= self._existing else self._at
        when = self._when(at, b"")
        argv = list(status.argv or ())
        if argv and mask_argv(argv) != self._argv:
            self._put(run, News(news.id, when, "argv", "the command line", {"argv": mask_argv(argv)}), "")
        if status.facts.args_complete and not self._arguments:
            known = {"arguments": dict(status.facts.args)}
            self._put(run, News(news.id, when, "arguments", "the arguments in force", known), "")
        if news.kind in ("verdict", "failure") and isinstance(line, int):
            self._reach(line)
        data = self._rebased({**news.data})
        if key and isinstance(line, int):
            key = key.replace(f":{line}:", f":{data['line']}:", 1)
        if not self._is_new(news.kind, data, key):
            return
        self._put(run, News(news.id, when, news.kind, news.text, data), key)
        if news.kind in ("verdict", "failure", "symptom") and state in ("crashed", "stopped") and state != self._state:
            self._put(run, News(news.id, when, "state", state, {"state": state}), "")

    def _is_new(self, kind: str, data: Mapping[str, Any], key: str) -> bool:
        """Whether this was not noted before: the log is read again when bringup is started again."""
        if kind == "state":
            return bool(data["state"] != self._state)
        if kind == "verdict":
            self._told = (None if data["stage"] == "withdrawn" else data["rule"]) != self._rule
            return self._told
        if kind == "remedies":
            return self._told
        return not key or f"1/{key}" not in self._keys

    def _put(self, run: Run, news: News, key: str) -> None:
        name = f"1/{key}" if key else ""
        run.note(News(news.id, news.at, news.kind, mask(news.text), {**news.data, "attempt": 1}), name)
        self._keys.add(name)
        self._notice(news.kind, news.data)

    def _notice(self, kind: str, data: Mapping[str, Any]) -> None:
        """What is kept in mind of the news that were noted."""
        if kind == "state":
            self._state = str(data["state"])
        elif kind == "verdict":
            self._rule = None if data.get("stage") == "withdrawn" else data.get("rule")
        elif kind == "argv":
            self._argv = list(data["argv"])
        elif kind == "arguments":
            self._arguments = True

    def _rebased(self, data: dict[str, Any]) -> dict[str, Any]:
        """The same data with lines as they are numbered in the run's own log."""
        if isinstance(data.get("line"), int):
            data["line"] = self._place(data["line"])
        if isinstance(data.get("evidence"), list):
            data["evidence"] = [{**each, "line": self._place(each["line"])} for each in data["evidence"]]
        return data

    def _place(self, line: int) -> int:
        """The number in the run's own log of a line of the stream."""
        number = line - self._first + 1
        rest = self._rest
        return number - rest.lines if rest is not None and number >= rest.first else number

    def _reach(self, line: int) -> None:
        """Has the copy hold a line beyond HEAD, with what stands around it: once."""
        number = line - self._first + 1
        if self._rest is not None or self._head_lines is None or number <= self._head_lines or self._copy is None:
            return
        begin, stream_line, data = self._window[0]
        skip = data.find(b"\n") + 1  # a whole line first
        at, first = begin + skip, stream_line + (1 if skip else 0)
        if at - self._origin < HEAD:
            at, first = self._origin + HEAD, self._first + self._head_lines
        mark = (b"" if os.pread(self._copy, 1, HEAD - 1) == b"\n" else b"\n") + _LEFT_OUT.encode()
        os.pwrite(self._copy, mark, HEAD)
        place = at - self._origin
        head = self._head_lines + mark.count(b"\n")
        self._rest = _Rest(place, self._at - self._origin + AROUND, place - HEAD - len(mark),
                           first - self._first + 1, first - self._first - head)  # fmt: skip
        for begin, _, data in self._window:
            self._write(begin, data)
        self._save()

    def _when(self, at: int, text: bytes) -> float:
        """The time of a byte of the stream: now, or what the log says where it was written before we came."""
        now = time.time()
        if self._at > self._existing:
            return now
        for begin, _, data in self._window:
            if begin <= at < begin + len(data):
                text = text or data[at - begin : at - begin + 400]
        found = _DATED.search(text)
        if found:
            with contextlib.suppress(ValueError, OverflowError):
                parts = [int(each) for each in found.groups()]
                self._clock = max(self._clock, time.mktime((*parts, 0, 0, -1)))  # type: ignore[arg-type]
        try:
            last = os.stat(self._path).st_mtime
        except OSError:
            last = now
        return min(now, self._clock or last)

    def _say(self, error: Exception) -> None:
        text = f"{self._name}: its history is not kept: {getattr(error, 'strerror', None) or error}"
        if text != self._trouble:
            self._trouble = text
            print(f"bringup: {text}", file=sys.stderr, flush=True)


class _Tapped(Tail):
    """A tail whose pieces are seen by `starts` before its reader."""

    def __init__(self, path: Path, starts: Starts) -> None:
        super().__init__(path)
        self._starts = starts

    def read(self) -> Iterator[Piece]:
        for piece in super().read():
            self._starts.take(piece)
            yield piece


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _head(path: str, offset: int, count: int) -> bytes:
    """`count` bytes of a file from `offset` on, or as many as there are."""
    try:
        with open(path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), count, offset)
    except OSError:
        return b""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _counted(path: Path, offset: int) -> tuple[int, int]:
    """(bytes, line ends) of a file from `offset` on."""
    size = lines = 0
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while data := file.read(1 << 20):
            size += len(data)
            lines += data.count(b"\n")
    return size, lines


def place_of(root: Path, path: Path) -> Path:
    """Where the runs of a log are kept that is watched by itself: below `root`, by the log's own name and place."""
    whole = os.path.abspath(path)
    return root / "watch" / f"{path.name[:40]}-{hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()}"


def _readable(watch: Any) -> bool:
    """Whether this bringup can go on with what was noted of a watched start: a later one may note more."""
    if not isinstance(watch, dict):
        return False
    try:
        for each in watch.get("parts") or ():
            _Part(**each)
        if watch.get("rest"):
            _Rest(**watch["rest"])
    except TypeError:
        return False
    return True
