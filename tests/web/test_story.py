"""The founding story through the API alone: watched, named before the process exits, restarted, ready."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from app.hub import Hub
from app.service import Watched
from app.supervisor import Settings
from app.watcher import Watcher
from tests.edges.replay import HEALTHY, STORY, base, engine, scene
from tests.edges.servers import free_port
from tests.web.harness import events, serving

PIECEWISE = "--enable-piecewise-cuda-graph"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"


def test_the_founding_crash_is_watched_and_restarted_through_the_api_alone(tmp_path: Path) -> None:
    gate = tmp_path / "may-exit"
    crash = scene(STORY, needs=[PIECEWISE], exit=-9, gates=[["exit", str(gate)]])
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv], begin=False) as running, events(running) as stream:
        assert stream.next() is not None
        assert stream.seen[0] == ("snapshot", {**stream.seen[0][1], "state": "idle", "can": ["start", "restart"]})
        running.post("/api/targets/server/start")
        verdict = stream.until("verdict", lambda data: data["data"]["rule"] == CAUSE)
        assert verdict["data"]["stage"] in ("early", "refined")
        stream.until("remedies")
        target = running.get("/api/targets/server")
        assert target["verdict"]["rule"] == CAUSE
        remedy = target["remedies"][0]
        assert remedy["diff"] == [f"-{PIECEWISE}"]
        assert not any(kind == "exit" for kind, _ in stream.seen), "the process still waits at its gate"
        near = {row["rule"]: row for row in target["report"]["near"]}
        assert near["dynamo/cutedsl-cutlass-torch-under-dynamo"]["failed"].startswith("frames: not all of ")
        assert CAUSE not in near

        tag = {"if-match": running.client.get("/api/targets/server").headers["etag"]}
        body = {"remedy": remedy["name"]}
        shown = running.post("/api/targets/server/restart", {**body, "dry_run": True}, 200, headers=tag)
        assert (shown["run"], shown["diff"], shown["done"]) == (None, [f"-{PIECEWISE}"], False)
        planned = running.post("/api/targets/server/restart", body, headers=tag)
        assert planned["diff"] == [f"-{PIECEWISE}"]
        assert PIECEWISE not in planned["argv"]
        assert planned["run"] != target["run"]

        stream.until("attempt", lambda data: data["data"]["via"] == remedy["title"])
        stream.until("state", lambda data: data["data"]["state"] == "ready")
        ready = running.get("/api/targets/server")
        assert (ready["state"], ready["run"]) == ("ready", planned["run"])
        assert running.client.get("/readyz").status_code == 200
        rows = running.get("/api/audit")["audit"]
        assert [(row["action"], row["status"]) for row in rows] == [("restart", 202), ("restart", 200), ("start", 202)]
        assert 'bringup_verdicts_total{cause="' + CAUSE in running.client.get("/metrics").text
        logs = sorted((tmp_path / "state").rglob("attempt-1.log"))
        assert len(logs) == 2, "each attempt keeps its own log"


UNKNOWN = """\
[2026-02-20 10:11:12] server_args=ServerArgs(model_path='/models/m')
[2026-02-20 10:11:20 TP0] Load weight begin. avail mem=93.10 GB
[2026-02-20 10:11:29 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/site-packages/sglang/srt/managers/scheduler.py", line 3300, in run_scheduler_process
    scheduler = Scheduler(server_args)
  File "/opt/house/odd.py", line 7, in prepare
    raise OddError("nobody has seen this before")
house.odd.OddError: nobody has seen this before
"""


@pytest.mark.parametrize("kind", ["child", "log"])
def test_a_failure_that_no_rule_names_is_reported_as_facts(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "unknown.log"
    log.write_text(UNKNOWN)
    argv = engine(tmp_path, [scene(log, exit=1)])
    with serving(tmp_path, [argv], begin=kind == "child") as running:
        watcher = Watcher(base(), Hub(), log, Settings())
        thread = threading.Thread(target=watcher.run, name="watcher")
        if kind == "log":
            running.service.targets["server"] = Watched("server", watcher, tmp_path / "state")  # type: ignore[assignment]
            thread.start()
        try:
            target = running.until(lambda target: target["state"] == "crashed" and target.get("report"), "the report")
            report = target["report"]
            assert (target["verdict"], report["verdicts"], report["state"]) == (None, [], "crashed")
            assert report["exception"]["type"] == "house.odd.OddError"
            assert isinstance(report["near"], list)
            assert report["fingerprint"]
        finally:
            watcher.stop()
            if thread.ident is not None:
                thread.join(10)
