"""Journals of runs in, a data base that can be asked about them out: runs, attempts, phases, verdicts and what helped.

The journal of a run (app/runs.py) is written before anything is told, and is the truth; the data base follows it. How
far it has come is kept in the same transaction, so that a kill, a full disk or a data base that is away for a while
loses nothing: what is missing is read again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlmodel import Session, col, create_engine, delete, select

from app.core.secrets import mask_argv
from app.tables import AttemptRow, FindingRow, PhaseRow, RunRow
from app.targets import state as targets_state

FILE = "store.sqlite3"
PIECE = 4 << 20
"""Bytes of a journal that are taken in one transaction."""


class StoreError(Exception):
    """The data base cannot be used; the text says why and what to do."""


class StoreAway(StoreError):
    """It cannot be reached now, but may be in a while."""


NEVER = (
    "authentication failed",
    "no password",
    "does not exist",
    "pg_hba",
    "permission denied",
    "certificate",
    "invalid",
)
"""Words of a server that will say the same again."""


class Store:
    """The data base. Everything may be called from any thread."""

    def __init__(self, root: Path, url: str | None = None) -> None:
        """Opens the file in the state directory, or the data base at `url`, and brings it up to date.

        StoreError when it was made by a newer bringup, StoreAway when it cannot be reached now. A file that is broken is put aside (see
        `set_aside`): everything is read again from the journals.
        """
        self.host = socket.gethostname()
        self.set_aside: Path | None = None
        self._following = threading.Lock()
        path = root / FILE
        with contextlib.ExitStack() as stack:
            if url is None:
                root.mkdir(parents=True, exist_ok=True, mode=0o700)
                lock = os.open(root / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if path.exists() and not _sound(path):
                    self.set_aside = _put_aside(path)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            try:
                self.engine = _engine(url or f"sqlite:///{path}")
            except (SQLAlchemyError, ImportError, ValueError) as error:
                raise StoreError(f"no data base is reached by this URL: {error}") from error
            where = str(path) if url is None else self.engine.url.render_as_string(hide_password=True)
            try:
                _migrate(self.engine, where)
            except SQLAlchemyError as error:
                self.engine.dispose()
                text = f"the data base {where} cannot be used: {_words(error)}"
                passing = url is not None and isinstance(error, OperationalError)
                if passing and not any(word in str(error) for word in NEVER):
                    raise StoreAway(text) from error
                raise StoreError(text) from error
            except StoreError:
                self.engine.dispose()
                raise

    def close(self) -> None:
        """Lets go of its connections."""
        self.engine.dispose()

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """One transaction, committed at the end. StoreError when the data base is away."""
        try:
            with Session(self.engine, expire_on_commit=False) as session:
                yield session
                session.commit()
        except DBAPIError as error:
            raise StoreError(f"the data base does not answer: {_words(error)}") from error

    # Following the journals

    def follow(self, folder: Path, target: str) -> bool:
        """Takes what is new in a run's journal; whether there was anything. StoreError when the data base is away."""
        with self._following:
            return self._follow(folder, target)

    def _follow(self, folder: Path, target: str) -> bool:
        try:
            data = json.loads((folder / "run.json").read_bytes())
            journal = folder / "news.jsonl"
            size = journal.stat().st_size
        except (OSError, ValueError):
            return False
        moved = False
        while True:
            with self.session() as session:
                run = session.get(RunRow, folder.name)
                if run is None:
                    run = self._new(folder, target, data)
                    session.add(run)
                    session.flush()
                    moved = True
                if size <= run.seen:
                    return moved
                with open(journal, "rb") as file:
                    file.seek(run.seen)
                    raw = file.read(PIECE)
                whole = raw[: raw.rfind(b"\n") + 1]
                if not whole:
                    return moved
                for line in whole.splitlines():
                    with contextlib.suppress(ValueError):
                        row = json.loads(line)
                        if isinstance(row, dict) and {"kind", "at", "data", "text"} <= row.keys():
                            _take(session, run, row)
                run.seen += len(whole)
                session.add(run)
                moved = True

    def _new(self, folder: Path, target: str, data: Mapping[str, Any]) -> RunRow:
        argv = mask_argv(data.get("argv") or [])
        return RunRow(
            id=folder.name, target=target, host=self.host, folder=str(folder), argv=argv, after=data.get("after"),
            began=float(data.get("began") or time.time()),
        )  # fmt: skip

    # Asking

    def runs(self, target: str, count: int = 50, before: float | None = None) -> list[RunRow]:
        """The latest runs of a target, latest first; those that began before a time."""
        with self.session() as session:
            query = select(RunRow).where(RunRow.target == target).order_by(col(RunRow.began).desc()).limit(count)
            if before is not None:
                query = query.where(RunRow.began < before)
            return list(session.exec(query))

    def run(self, name: str) -> tuple[RunRow, list[AttemptRow]] | None:
        """A run and its attempts, first one first; None when there is none of that name."""
        with self.session() as session:
            run = session.get(RunRow, name)
            if run is None:
                return None
            query = select(AttemptRow).where(AttemptRow.run == name).order_by(col(AttemptRow.number))
            return run, list(session.exec(query))

    def details(self, attempt: AttemptRow) -> tuple[list[PhaseRow], list[FindingRow]]:
        """The phases and verdicts of an attempt, in order."""
        with self.session() as session:
            phases = session.exec(select(PhaseRow).where(PhaseRow.attempt == attempt.id).order_by(col(PhaseRow.id)))
            found = session.exec(
                select(FindingRow).where(FindingRow.attempt == attempt.id).order_by(col(FindingRow.id))
            )
            return list(phases), list(found)

    def last_good(self, target: str, before: float) -> AttemptRow | None:
        """The latest attempt of a target that became ready, of those that began before a time."""
        with self.session() as session:
            query = (
                select(AttemptRow).join(RunRow, col(AttemptRow.run) == col(RunRow.id))
                .where(RunRow.target == target, col(AttemptRow.ready_at).is_not(None), AttemptRow.began < before)
                .order_by(col(AttemptRow.began).desc()).limit(1)
            )  # fmt: skip
            return session.exec(query).first()

    def forget(self, name: str) -> None:
        """Removes a run with everything that belongs to it."""
        with self.session() as session:
            session.exec(delete(RunRow).where(col(RunRow.id) == name))


def _take(session: Session, run: RunRow, news: Mapping[str, Any]) -> None:
    """One news of a run's journal."""
    kind, data, at = news["kind"], news["data"], float(news["at"])
    if kind == "over":
        run.ended, run.state, run.text = at, str(data.get("state")), str(news["text"])
        run.rule = data.get("rule")
        return
    query = select(AttemptRow).where(AttemptRow.run == run.id, AttemptRow.number == data.get("attempt"))
    attempt = session.exec(query).first()
    if kind == "attempt":
        if attempt is None:
            env = targets_state.mask({name: str(value) for name, value in _env(run).items()})
            session.add(AttemptRow(
                run=run.id, number=int(data["number"]), argv=list(data["argv"]), env=env, versions={}, arguments={},
                diff=list(data.get("diff") or []), via=data.get("via"), log=str(data["log"]), began=at,
                source=data.get("source"), log_offset=int(data.get("offset") or 0),
            ))  # fmt: skip
            session.flush()
            run.state, run.rule = "starting", None
        return
    if attempt is None:
        return
    if kind == "state":
        attempt.state = run.state = str(data["state"])
        attempt.ready_at = at if data["state"] == "ready" else attempt.ready_at
    elif kind == "fact" and data.get("what") == "version":
        attempt.versions = {**attempt.versions, str(data["package"]): str(data["version"])}
    elif kind == "argv":
        attempt.argv = run.argv = mask_argv([str(word) for word in data["argv"]])
    elif kind == "arguments":
        attempt.arguments = {str(name): str(value) for name, value in data["arguments"].items()}
    elif kind == "phase":
        _take_phase(session, attempt, news)
    elif kind == "verdict":
        attempt.rule = run.rule = data.get("rule") if data.get("stage") != "withdrawn" else None
        text = data.get("evidence")
        evidence = [{"line": data.get("line"), "text": text, "why": "decisive"}] if text else []
        session.add(FindingRow(
            attempt=attempt.id or 0, at=at, rule=str(data.get("rule")), title=str(data.get("title") or ""),
            stage=str(data.get("stage")), reason=str(data.get("reason") or ""), line=data.get("line"), remedies=[],
            evidence=evidence,
        ))  # fmt: skip
    elif kind == "remedies":
        wanted = select(FindingRow).where(FindingRow.attempt == attempt.id, FindingRow.rule == data.get("rule"))
        for finding in session.exec(wanted):
            finding.remedies = list(data.get("remedies") or [])
            finding.evidence = list(data.get("evidence") or finding.evidence)
            session.add(finding)
    elif kind == "ended":
        attempt.ended, attempt.state, attempt.reason = at, str(data["state"]), str(data.get("reason") or "")
        attempt.exit = (data.get("exit") or {}).get("words")
        attempt.rule = data.get("rule")
        with contextlib.suppress(OSError):
            attempt.log_size = os.stat(attempt.log).st_size
        run.state = attempt.state
    session.add(attempt)


def _env(run: RunRow) -> dict[str, Any]:
    """The variables that a run's launch changes."""
    try:
        pairs = json.loads((Path(run.folder) / "run.json").read_bytes()).get("env") or ()
        return {str(name): value for name, value in pairs}
    except (OSError, ValueError, TypeError):
        return {}


def _take_phase(session: Session, attempt: AttemptRow, news: Mapping[str, Any]) -> None:
    data = news["data"]
    query = select(PhaseRow).where(PhaseRow.attempt == attempt.id, PhaseRow.phase == data["phase"])
    phase = session.exec(query).first()
    if phase is None:
        phase = PhaseRow(attempt=attempt.id or 0, phase=str(data["phase"]), title=str(news["text"]).partition(":")[0])
    if data.get("state") == "done" and data.get("seconds") is not None:
        phase.seconds = float(data["seconds"])
    session.add(phase)
    session.flush()


# Opening


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        if url.startswith(("postgresql://", "postgres://")):
            url = "postgresql+psycopg://" + url.partition("://")[2]
        return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 5})
    engine = create_engine(url, connect_args={"timeout": 10})

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # transactions are ours, tables included
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _migrate(engine: Engine, where: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    known = {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}

    def upgrade(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":  # one service at a time; the lock goes with the transaction
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(8420)")
        has = MigrationContext.configure(connection).get_current_revision()
        if has is not None and has not in known:
            raise StoreError(
                f"{where} was made by a newer bringup (its revision is {has}); use that one, or another data base"
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    with engine.begin() as connection:
        upgrade(connection)


def _sound(path: Path) -> bool:
    """Whether a file is a SQLite data base that can be read. One that is merely locked is."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=10)) as connection:
            rows: Sequence[Any] = connection.execute("PRAGMA quick_check(1)").fetchall()
            return rows == [("ok",)]
    except sqlite3.OperationalError:
        return True
    except sqlite3.DatabaseError:
        return False


def _put_aside(path: Path) -> Path:
    """Renames a broken data base and its companions; nothing is deleted."""
    aside = path.with_name(f"{path.name}.broken-{time.strftime('%Y%m%d-%H%M%S')}")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def _words(error: SQLAlchemyError) -> str:
    original = getattr(error, "orig", None)
    return " ".join(str(original or error).split())[:300]
