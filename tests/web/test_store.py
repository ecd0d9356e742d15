"""The store: it follows the journals, survives what happens to it, and is the same on PostgreSQL."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from app import migrations
from app.hub import Hub
from app.runs import Run
from app.scribe import Scribe, prune
from app.store import FILE, Store, StoreError
from tests.edges.servers import free_port, until
from tests.web.postgres import Postgres

CAUSE = "memory/oom-during-weight-load"


class Journal:
    """A run whose journal is written by hand; the target that it belongs to."""

    name, kind, can, tag = "server", "child", (), "x"

    def __init__(self, root: Path) -> None:
        self.root, self.hub = root, Hub()
        self.run = Run.new(root, ["python", "-m", "sglang.launch_server", "--api-key", "secret-word"], root)
        self.hub.status = {"run": self.run.name, "state": "starting"}

    def tell(self, kind: str, words: str = "", **data: Any) -> None:
        news = self.hub.stamp(kind, words, {"attempt": 1, **data})
        self.run.note(news, "")
        self.hub.tell(news)

    def attempt(self, number: int = 1) -> None:
        self.tell("attempt", number=number, argv=["x"], log=str(self.run.log_path(number)), diff=[], via=None)

    def story(self) -> None:
        self.attempt()
        self.tell("phase", "loading", phase="weights", state="running")
        self.tell("phase", "loading: done", phase="weights", state="done", seconds=2.5)
        self.tell("fact", what="version", package="torch", version="2.9")
        self.tell(
            "verdict", "no memory", stage="early", rule=CAUSE, title="no memory", reason="r", line=7, evidence="oom"
        )
        self.tell(
            "remedies", rule=CAUSE, remedies=[{"title": "less"}], evidence=[{"line": 7, "text": "oom", "why": "x"}]
        )
        self.tell("ended", state="crashed", rule=CAUSE, reason="it died", exit={"words": "SIGKILL"})
        self.tell("over", "done", state="crashed", rule=CAUSE)

    def end(self) -> None:
        self.run.finish({"state": "crashed"})
        self.run.close()


def check(store: Store, journal: Journal) -> None:
    found = store.run(journal.run.name)
    assert found is not None
    run, attempts = found
    assert (run.state, run.rule, run.target, run.argv[-1]) == ("crashed", CAUSE, "server", "***")
    assert (attempts[0].state, attempts[0].exit, attempts[0].versions) == ("crashed", "SIGKILL", {"torch": "2.9"})
    phases, findings = store.details(attempts[0])
    assert [(each.phase, each.seconds) for each in phases] == [("weights", 2.5)]
    assert [(each.rule, each.line, each.remedies) for each in findings] == [(CAUSE, 7, [{"title": "less"}])]
    assert findings[0].evidence[0]["text"] == "oom"


def test_a_journal_is_followed_once_however_often(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    store = Store(tmp_path)
    with closing(store):
        journal.attempt()
        assert store.follow(journal.run.folder, "server")
        assert not store.follow(journal.run.folder, "server")
        journal.story()
        with open(journal.run.folder / "news.jsonl", "ab") as file:
            file.write(b'{"id": 99, "kind": "over", "cut off')
        assert store.follow(journal.run.folder, "server")
        assert not store.follow(journal.run.folder, "server")
        check(store, journal)
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    journal.end()


def test_the_scribe_catches_up_and_follows(tmp_path: Path) -> None:
    old = Journal(tmp_path)
    old.story()
    old.end()
    journal = Journal(tmp_path)
    store = Store(tmp_path)
    scribe = Scribe(store, [journal])
    scribe.start()
    until(lambda: store.run(old.run.name), "the earlier run")
    check(store, old)
    journal.story()
    until(lambda: (found := store.run(journal.run.name)) and found[0].ended, "the run")
    check(store, journal)
    journal.tell("trouble", "late")
    scribe.stop()
    store.close()
    journal.end()


def test_a_newer_data_base_is_refused(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(StoreError, match=r"store.sqlite3 was made by a newer bringup \(its revision is 9999\)"):
        Store(tmp_path)
    assert not list(tmp_path.glob("*broken*"))


def test_an_old_data_base_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.commit()
    with closing(Store(tmp_path)) as store:
        assert store.runs("server") == []


def test_a_data_base_of_the_first_revision_keeps_its_rows(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.story()
    journal.end()
    with closing(Store(tmp_path)) as store:
        store.follow(journal.run.folder, "server")
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        with store.engine.begin() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0001")
    with closing(sqlite3.connect(tmp_path / FILE)) as old:
        names = {row[1] for row in old.execute("PRAGMA table_info(attempt)")}
        assert not names & {"source", "log_offset", "arguments"}, "as the first release had it"
    with closing(Store(tmp_path)) as store:
        check(store, journal)
        found = store.run(journal.run.name)
        assert found is not None
        assert (found[1][0].source, found[1][0].log_offset, found[1][0].arguments) == (None, 0, {})


@pytest.mark.parametrize("damage", [b"this is no data base", b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_broken_data_base_is_set_aside_and_made_again(tmp_path: Path, damage: bytes) -> None:
    journal = Journal(tmp_path)
    journal.story()
    journal.end()
    (tmp_path / FILE).write_bytes(damage)
    store = Store(tmp_path)
    with closing(store):
        assert store.set_aside is not None
        assert store.set_aside.read_bytes() == damage
        store.follow(journal.run.folder, "server")
        check(store, journal)


KILLED = """
import os, sys
from pathlib import Path
from app.store import Store
root, run = Path(sys.argv[1]), sys.argv[2]
store = Store(root)
from app import store as module
count = int(sys.argv[3])
take = module._take
def counted(*given):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), 9)
    take(*given)
module._take = counted
store.follow(root / "runs" / run, "server")
"""


@pytest.mark.parametrize("count", [1, 4, 8])
def test_a_kill_in_the_middle_loses_nothing(tmp_path: Path, count: int) -> None:
    journal = Journal(tmp_path)
    journal.story()
    words = [sys.executable, "-c", KILLED, str(tmp_path), journal.run.name, str(count)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == -9, done.stderr
    with closing(Store(tmp_path)) as store:
        assert store.set_aside is None
        store.follow(journal.run.folder, "server")
        check(store, journal)
    journal.end()


def test_what_is_old_or_too_much_is_removed_but_never_the_latest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    journals = []
    for place in range(4):
        journal = Journal(tmp_path)
        journal.attempt()
        journal.end()
        data = json.loads((journal.run.folder / "run.json").read_text())
        data["began"] = time.time() - (100 - place * 30) * 86400
        (journal.run.folder / "run.json").write_text(json.dumps(data))
        os.utime(journal.run.folder / "run.json", (data["began"], data["began"]))
        renamed = tmp_path / "runs" / f"2026010{place}-000000-{place:06x}"
        journal.run.folder.rename(renamed)
        store.follow(renamed, "server")
        journals.append(renamed)
    open_one = journals[1] / "run.json"
    open_one.write_text(json.dumps({**json.loads(open_one.read_text()), "outcome": None}))
    os.utime(journals[0] / "run.json")
    assert prune(store, tmp_path, (60, 1e12)) == [], "an old start that was read today"
    os.utime(journals[0] / "run.json", (0, 0))
    assert prune(store, tmp_path, (60, 1e12)) == [journals[0].name]
    assert [row.id for row in store.runs("server")] == [each.name for each in reversed(journals[1:])]
    assert prune(store, tmp_path, (60, 1)) == [journals[2].name], "the latest and the unfinished stay"
    assert journals[3].is_dir()
    store.close()


def test_postgresql_keeps_the_same(tmp_path: Path, postgres: Postgres) -> None:
    journal = Journal(tmp_path)
    journal.story()
    journal.end()
    for _ in range(2):  # made, and opened again
        with closing(Store(tmp_path, postgres.url)) as store:
            store.follow(journal.run.folder, "server")
            check(store, journal)
    with closing(Store(tmp_path, postgres.url)) as store:
        store.forget(journal.run.name)
        assert store.run(journal.run.name) is None
        with store.session() as session:
            assert session.connection().execute(text("SELECT count(*) FROM finding")).scalar() == 0
    assert not (tmp_path / FILE).exists()


def test_postgresql_goes_away_and_no_verdict_is_lost(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.scribe.AGAIN", 0.05)
    journal = Journal(tmp_path)
    store = Store(tmp_path, postgres.url)
    scribe = Scribe(store, [journal])
    scribe.start()
    journal.attempt()
    until(lambda: store.run(journal.run.name), "the run")
    right = store.engine
    store.engine = create_engine(right.url.set(port=1), connect_args={"connect_timeout": 1})
    journal.story()
    until(lambda: "does not answer" in scribe.trouble, "the trouble")
    store.engine.dispose()
    store.engine = right
    until(lambda: (found := store.run(journal.run.name)) and found[0].ended, "the verdict")
    until(lambda: not scribe.trouble, "the end of the trouble")
    check(store, journal)
    scribe.stop()
    store.close()
    journal.end()


def test_an_address_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no data base is reached by this URL"):
        Store(tmp_path, "postgresql://me@127.0.0.1:port/x")


def test_a_data_base_that_is_not_there_is_said_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        Store(tmp_path, f"postgresql://me:pass-word@127.0.0.1:{free_port()}/x")
    assert "cannot be used" in str(raised.value)
    assert "pass-word" not in str(raised.value)
