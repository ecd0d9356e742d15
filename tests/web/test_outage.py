"""PostgreSQL goes away for a minute in the middle of a start: this takes 65 seconds, because it is a minute."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.edges.replay import HEALTHY, STORY, engine, scene
from tests.edges.servers import free_port, until
from tests.web.harness import serving
from tests.web.postgres import postgresql

AWAY = 61.0
"""Seconds that it is away."""
PIECEWISE = "--enable-piecewise-cuda-graph"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"


def journal(root: Path, run: str) -> list[dict[str, Any]]:
    path = next(root.glob(f"**/runs/{run}/news.jsonl"))
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_minute_without_the_data_base_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gate = tmp_path / "gate"
    crash = scene(STORY, needs=[PIECEWISE], exit=-9, gates=[["Traceback", str(gate)]])
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=free_port())
    with postgresql(tmp_path_factory.mktemp("pg")) as server, serving(tmp_path, [argv], database=server.url) as running:
        store = running.service.store
        assert store is not None
        first = running.until(lambda target: target["run"] and target["phase"], "the start")["run"]
        until(lambda: store.run(first), "the run in the data base")
        server.stop()
        gone = time.monotonic()
        gc.collect()
        tracemalloc.start()
        gate.touch()
        before = tracemalloc.get_traced_memory()[0]

        # The whole of two starts while it is away: the crash, its verdict, the relaunch, ready; and much progress.
        running.until(lambda target: target["state"] == "crashed" and "start" in target["can"], "the crash")
        assert running.client.get("/api/targets/server/runs").status_code == 503
        assert "retry-after" in running.client.get(f"/api/runs/{first}").headers
        second = running.post("/api/targets/server/restart", {"remedy": f"{CAUSE}#1"})["run"]
        running.until(lambda target: target["state"] == "ready", "ready")
        for number in range(20_000):
            running.hub.publish("progress", "x" * 50, {"done": number})
        while time.monotonic() - gone < AWAY:
            assert running.get("/healthz")["status"] == "ok"
            time.sleep(0.5)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown < 40e6, f"{grown / 1e6:.0f} MB more: what waits for the data base waits on disk"
        server.start()

        def ready() -> bool:
            found = store.run(second)
            return found is not None and found[1][0].ready_at is not None

        until(ready, "the second run in the data base", 30)
        assert running.get(f"/api/runs/{first}")["rule"] == CAUSE
        for run in (first, second):
            row, attempts = store.run(run) or pytest.fail(f"{run} is missing")
            rows = journal(tmp_path, run)
            assert row.seen == next(tmp_path.glob(f"**/runs/{run}/news.jsonl")).stat().st_size, "every byte was taken"
            phases, findings = store.details(attempts[0])
            done = {each["data"]["phase"]: each["data"]["seconds"] for each in rows
                    if each["kind"] == "phase" and each["data"].get("seconds") is not None}  # fmt: skip
            assert {each.phase: each.seconds for each in phases if each.seconds is not None} == done
            told = [(each["data"]["rule"], each["data"]["stage"]) for each in rows if each["kind"] == "verdict"]
            assert [(each.rule, each.stage) for each in findings] == told, "in the order in which they were told"
        assert store.run(second)[1][0].via is not None  # type: ignore[index]
        assert [row["id"] for row in running.get("/api/targets/server/runs")["runs"]] == [second, first]
    said = capfd.readouterr().err
    assert said.count("the runs are kept in their folders until it does") <= 3, "it is not said again and again"
    assert "the data base answers again; nothing was lost" in said
