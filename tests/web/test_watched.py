"""Logs that somebody else's server writes: every start in them becomes a run, once, with its own log."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import starts
from app.runs import Run
from app.starts import Starts
from app.tail import Started
from tests.edges.replay import HEALTHY, STORY, base
from tests.edges.servers import until
from tests.web.harness import Running, watching

CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"
CRASH = STORY.read_bytes()
SERVED = HEALTHY.read_bytes().partition(b"[2026-12-01 06:32:05] SIGTERM")[0]

BOUNDARY = SERVED.index(b"[2026-12-01 06:31:13] server_args=")
"""What stands before it is thought to be the end of the start before."""


def rows(running: Running) -> list[dict[str, Any]]:
    """The runs of the log, as they began."""
    found: list[dict[str, Any]] = running.get("/api/targets/server/runs")["runs"]
    return sorted(found, key=lambda row: row["began"])


def settled(
    running: Running, fits: Callable[[list[dict[str, Any]]], Any], what: str = "the runs"
) -> list[dict[str, Any]]:
    """The runs, once they are so."""
    end = time.monotonic() + 20
    while not fits(found := rows(running)):
        assert time.monotonic() < end, f"waited in vain for {what}; there are {found}"
        time.sleep(0.02)
    return found


def states(found: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(row["state"], row["rule"]) for row in found]


def add(log: Path, data: bytes) -> None:
    with open(log, "ab") as file:
        file.write(data)


def own_log(running: Running, run: str) -> bytes:
    return running.client.get(f"/api/runs/{run}/log?raw=1").content


def test_every_start_becomes_a_run_with_its_own_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    add(log, CRASH)
    with watching(tmp_path, log) as running:
        settled(running, lambda found: states(found) == [("crashed", CAUSE)])
        add(log, SERVED)
        found = settled(running, lambda found: states(found) == [("crashed", CAUSE), ("ready", None)])
        crashed, served = (running.get(f"/api/runs/{row['id']}") for row in found)
        target = running.get("/api/targets/server")
        assert (target["run"], target["state"]) == (served["id"], "ready")
        first, second = crashed["attempts"][0], served["attempts"][0]
        assert (first["state"], first["reason"]) == ("crashed", "another start followed in the log")
        assert second["ready_at"] is not None
        assert {"weights", "capture_decode"} <= {each["phase"] for each in first["phases"]}
        logs = own_log(running, crashed["id"]), own_log(running, served["id"])
        assert b"".join(logs).count(b"\n") == (CRASH + SERVED).count(b"\n"), "every line is in one of them"
        assert logs[1].startswith(b"[2026-12-01 06:31:13] server_args=")
        proof = running.get(f"/api/runs/{crashed['id']}/log?evidence=1")
        shown = {row["number"]: row["text"] for row in proof["rows"]}
        assert any("Unsupported" in shown[number] for number in proof["evidence"])
        diff = running.get(f"/api/runs/{crashed['id']}/diff/{served['id']}")
        assert [row["seconds"] is not None for row in diff["phases"] if row["phase"] == "weights"] == [True]
        assert running.get(f"/api/runs/{crashed['id']}/diff/good", 404), "none had served before it"
        packed = running.client.get(f"/api/runs/{crashed['id']}/bundle").content
        with tarfile.open(fileobj=io.BytesIO(packed)) as bundle:
            report = bundle.extractfile(f"{crashed['id']}/attempt-1.md")
            assert report is not None
            assert CAUSE in report.read().decode()
        store = running.service.store
        assert store is not None
        assert diff["arguments"]["enable_piecewise_cuda_graph"] == ["True", "False"]
        assert (first["source"], second["source"]) == (str(log), str(log))
        kept = [store.run(row["id"])[1][0] for row in found]  # type: ignore[index]
        assert [(row.source, row.log_offset) for row in kept] == [(str(log), 0), (str(log), len(CRASH) + BOUNDARY)]
        assert kept[0].arguments["enable_piecewise_cuda_graph"] == "True"
        assert kept[1].arguments["enable_piecewise_cuda_graph"] == "False"


def test_a_second_start_has_lines_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    add(log, SERVED)
    with watching(tmp_path, log) as running:
        settled(running, lambda found: states(found) == [("ready", None)])
        add(log, CRASH)
        found = settled(running, lambda found: states(found) == [("stopped", None), ("crashed", CAUSE)])
        whole = running.get(f"/api/runs/{found[1]['id']}")["attempts"][0]
        lines = own_log(running, found[1]["id"]).decode("utf-8", "replace").split("\n")
        for item in whole["verdicts"][-1]["evidence"]:
            assert item["text"][:40] in lines[item["line"] - 1], item
        diff = running.get(f"/api/runs/{found[1]['id']}/diff/good")
        assert diff["other"]["id"] == found[0]["id"], "the last start that served"


def test_a_bringup_that_comes_again_doubles_no_run(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    add(log, CRASH + SERVED)
    wanted = [("crashed", CAUSE), ("ready", None)]
    seen = []
    for _ in range(3):
        with watching(tmp_path, log) as running:
            found = settled(running, lambda found: states(found) == wanted)
            until(lambda r=running: r.get("/api/targets/server")["state"] == "ready", "the whole log was read")  # type: ignore[misc]
            found = rows(running)
            assert states(found) == wanted
            whole = [running.get(f"/api/runs/{row['id']}") for row in found]
            seen.append(
                [(row["id"], row["attempts"][0]["ready_at"], len(row["attempts"][0]["verdicts"])) for row in whole]
            )
            assert own_log(running, found[1]["id"]).count(b"\n") == SERVED[BOUNDARY:].count(b"\n")
    assert seen[0] == seen[1] == seen[2]
    add(log, CRASH)  # while no bringup watched
    with watching(tmp_path, log) as running:
        wanted = [("crashed", CAUSE), ("crashed", CAUSE), ("stopped", None)]
        found = settled(running, lambda found: sorted(states(found), key=str) == wanted)
        assert {row["id"] for row in found} > {row[0] for row in seen[0]}


def test_a_log_that_is_written_over_keeps_the_evidence(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    add(log, CRASH)
    with watching(tmp_path, log) as running:
        settled(running, lambda found: states(found) == [("crashed", CAUSE)])
        log.write_bytes(b"warming up\n" + SERVED)
        found = settled(running, lambda found: states(found) == [("crashed", CAUSE), ("ready", None)])
        assert own_log(running, found[0]["id"]).count(b"\n") == CRASH.count(b"\n")
        assert own_log(running, found[1]["id"]).startswith(b"warming up\n")
        assert running.get(f"/api/runs/{found[0]['id']}/log?evidence=1")["evidence"]
    log.write_bytes(b"[2026-12-02] another day\n" + CRASH)  # while no bringup watched
    with watching(tmp_path, log) as running:
        wanted = [("crashed", CAUSE), ("crashed", CAUSE), ("stopped", None)]
        settled(running, lambda found: sorted(states(found), key=str) == wanted)


@pytest.mark.parametrize("watched", [True, False], ids=["while watched", "while not"])
def test_a_rotated_log_goes_on_with_its_run(tmp_path: Path, watched: bool) -> None:
    log = tmp_path / "server.log"
    add(log, SERVED)

    def rotate() -> None:
        os.rename(log, tmp_path / "server.log.1")
        add(log, b"[2026-12-01 07:00:00] one more request\n")

    with watching(tmp_path, log) as running:
        found = settled(running, lambda found: states(found) == [("ready", None)])
        if watched:
            rotate()
            until(lambda: b"one more request" in own_log(running, found[0]["id"]), "the line in the new file")
    if not watched:
        rotate()
    with watching(tmp_path, log) as running:
        until(lambda: b"one more request" in own_log(running, found[0]["id"]), "the line in the new file")
        assert [row["id"] for row in rows(running)] == [found[0]["id"]]
        text = own_log(running, found[0]["id"])
        assert text.count(b"\n") == SERVED.count(b"\n") + 1
        assert text.count(b"one more request") == 1


def test_a_failure_long_after_the_start_is_kept_with_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "HEAD", 40_000)
    monkeypatch.setattr(starts, "AROUND", 60_000)
    begin, _, _ = CRASH.partition(b"Traceback")
    many = b"".join(b"[2026-12-01 06:31:00] a line that says nothing %06d\n" % number for number in range(4000))
    cut = begin.rfind(b"\n") + 1
    log = tmp_path / "server.log"
    add(log, CRASH[:cut])
    with watching(tmp_path, log) as running:
        found = settled(running, lambda found: len(found) == 1)
        add(log, many)
        add(log, CRASH[cut:])
        found = settled(running, lambda found: states(found) == [("crashed", CAUSE)])
        until(lambda: b"is left out here" in own_log(running, found[0]["id"]), "what stands around")
        text = own_log(running, found[0]["id"])
        assert len(text) < 40_000 + 3 * 60_000
        whole = running.get(f"/api/runs/{found[0]['id']}")["attempts"][0]
        lines = text.decode("utf-8", "replace").split("\n")
        evidence = [item for each in whole["verdicts"] for item in each["evidence"]]
        assert evidence
        for item in evidence:
            assert item["text"][:40] in lines[item["line"] - 1], item


def test_times_are_the_log_s_own_where_it_was_there_before(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    add(log, SERVED)
    with watching(tmp_path, log) as running:
        found = settled(running, lambda found: states(found) == [("ready", None)])
        attempt = running.get(f"/api/runs/{found[0]['id']}")["attempts"][0]
        began = time.mktime(time.strptime("2026-12-01", "%Y-%m-%d"))
        assert began <= min(attempt["began"], time.time())
        assert attempt["began"] <= attempt["ready_at"] <= time.time()


def test_a_second_watch_of_a_log_shows_it_and_keeps_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    add(log, CRASH)
    with watching(tmp_path, log) as first:
        settled(first, lambda found: states(found) == [("crashed", CAUSE)])
        with watching(tmp_path, log) as second:
            until(lambda: second.get("/api/targets/server").get("verdict"), "the verdict")
            assert second.get("/api/targets/server")["run"] is None
        assert "another bringup keeps the history of" in capfd.readouterr().err
        assert len(rows(first)) == 1


def test_a_state_directory_that_is_full_does_not_end_the_watch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.log"
    place = tmp_path / "state" / "targets" / "server"
    place.mkdir(parents=True)
    (place / "runs").write_text("in the way")
    add(log, CRASH)
    with watching(tmp_path, log) as running:
        until(lambda: running.get("/api/targets/server").get("verdict"), "the verdict")
    assert "its history is not kept" in capfd.readouterr().err


def test_a_journal_of_a_watched_start_holds_no_secret(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    key = "sk-abcdefghijklmnop1234"
    add(log, CRASH.replace(b"api_key=None", b"api_key='" + key.encode() + b"'"))
    with watching(tmp_path, log) as running:
        found = settled(running, lambda found: states(found) == [("crashed", CAUSE)])
        assert key not in json.dumps(running.get(f"/api/runs/{found[0]['id']}"))
        assert key.encode() not in own_log(running, found[0]["id"])
    for path in tmp_path.glob("state/targets/server/runs/*/*"):
        assert path.stat().st_mode & 0o077 == 0, path


def read(kept: Starts, log: Path, data: bytes) -> None:
    kept.take(Started(str(log), 0, 0, 0, "opened"))
    for at in range(0, len(data), 1000):
        kept.take(data[at : at + 1000])


def test_a_start_whose_run_cannot_be_kept_leaves_the_lines_of_the_next_one_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(SERVED)
    kept = Starts(tmp_path / "state", "server", log, base())
    (tmp_path / "state" / "runs").write_bytes(b"no folder")
    read(kept, log, SERVED[:5000])
    assert "its history is not kept" in capsys.readouterr().err
    (tmp_path / "state" / "runs").unlink()
    kept.take(SERVED[5000:])
    assert kept.run is None, "a run without its beginning would have its lines elsewhere"
    log.write_bytes(CRASH)
    read(kept, log, CRASH)
    assert kept.run is not None
    assert (tmp_path / "state" / "runs" / kept.run / "attempt-1.log").read_bytes() == CRASH
    kept.close()


def test_a_run_that_another_bringup_holds_does_not_end_the_watch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(SERVED)
    kept = Starts(tmp_path / "state", "server", log, base())
    read(kept, log, SERVED)
    assert kept.run is not None
    folder = tmp_path / "state" / "runs" / kept.run
    kept.close()
    other = Run(folder, {})
    other.take()
    again = Starts(tmp_path / "state", "server", log, base())
    read(again, log, SERVED)
    assert again.run is None
    assert "is being run already" in capsys.readouterr().err
    again.close()
    other.close()


def test_a_log_with_brackets_in_its_name_goes_on_when_it_was_rotated(tmp_path: Path) -> None:
    log = tmp_path / "server[1].log"
    log.write_bytes(SERVED)
    kept = Starts(tmp_path / "state", "server", log, base())
    read(kept, log, SERVED)
    run = kept.run
    kept.close()
    log.rename(tmp_path / "server[1].log.1")
    log.write_bytes(b"it goes on\n")
    kept = Starts(tmp_path / "state", "server", log, base())
    read(kept, log, b"it goes on\n")
    assert kept.run == run
    kept.close()
