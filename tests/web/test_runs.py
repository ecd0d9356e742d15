"""What was: runs, logs, differences and bundles, through the API."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from app.comparing import argv_diff, map_diff, phase_diff
from tests.edges.replay import HEALTHY, STORY, engine, scene
from tests.edges.servers import free_port
from tests.web.harness import Running, serving

PIECEWISE = "--enable-piecewise-cuda-graph"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"


def told(running: Running) -> tuple[Any, Any]:
    """Plays the founding crash and its relaunch: (the run that crashed, the run that served)."""
    running.post("/api/targets/server/start")
    crashed = running.until(lambda target: target["state"] == "crashed" and "start" in target["can"], "the crash")
    planned = running.post("/api/targets/server/restart", {"remedy": f"{CAUSE}#1"})
    running.until(lambda target: target["state"] == "ready", "ready")
    return running.get(f"/api/runs/{crashed['run']}"), running.get(f"/api/runs/{planned['run']}")


def test_both_attempts_their_logs_and_what_differs(tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnopqrstuv"
    log = tmp_path / "crash.log"
    log.write_bytes(f"hf_token='{secret}'\n".encode() + STORY.read_bytes())
    crash = scene(log, needs=[PIECEWISE], exit=-9)
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=free_port())
    with serving(tmp_path, [[*argv, "--hf-token", secret]], begin=False) as running:
        crashed, served = told(running)
        assert (crashed["state"], crashed["rule"], served["after"]) == ("crashed", CAUSE, crashed["id"])
        first, second = crashed["attempts"][0], served["attempts"][0]
        assert {"weights", "capture_decode"} <= {each["phase"] for each in first["phases"]}
        assert [each["stage"] for each in first["verdicts"]][-1] == "confirmed"
        assert any("Unsupported" in item["text"] for item in first["verdicts"][0]["evidence"])
        assert second["via"] == "Run without prefill (piecewise) CUDA graphs"
        assert second["diff"] == [f"-{PIECEWISE}"]
        assert (second["state"], second["ready_at"] is not None) == ("ready", True)
        rows = running.get("/api/targets/server/runs")["runs"]
        assert [row["id"] for row in rows] == [served["id"], crashed["id"]]
        assert [row["id"] for row in running.get(f"/api/targets/server/runs?before={served['began']}")["runs"]] == [
            crashed["id"]
        ]

        path = f"/api/runs/{crashed['id']}/log"
        lines = running.get(f"{path}?from=100&count=5")
        assert [row["number"] for row in lines["rows"]] == [100, 101, 102, 103, 104]
        proof = running.get(f"{path}?evidence=1")
        assert proof["evidence"]
        assert set(proof["evidence"]) <= {row["number"] for row in proof["rows"]}
        raw = running.client.get(f"{path}?raw=1")
        assert raw.headers["content-disposition"] == f'attachment; filename="{crashed["id"]}-attempt-1.log"'
        assert raw.text.count("\n") == lines["lines"]
        assert running.get(f"/api/runs/{served['id']}/log")["rows"]
        running.get(f"{path}?attempt=9", 404)
        ranks = {row["rank"]: row["lines"] for row in running.get(f"{path}/ranks")["ranks"]}
        assert {"", "TP0", "TP1", "TP2", "TP3"} == ranks.keys()
        assert sum(ranks.values()) == lines["lines"]
        some = running.get(f"{path}/find?rank=TP3&rank=")
        assert (len(some["found"]), some["more"]) == (ranks["TP3"] + ranks[""], None)
        raised = {"text": "unsupported: attempted"}
        each = [running.get(f"{path}/find", params={**raised, "rank": rank})["found"] for rank in sorted(ranks) if rank]
        assert [len(found) for found in each] == [1, 1, 1, 1], "each rank raised it once"
        assert (
            sorted(number for found in each for number in found) == running.get(f"{path}/find", params=raised)["found"]
        )
        running.get(f"{path}/find", 422)
        running.get(f"{path}/find?text=x&attempt=9", 404)

        diff = running.get(f"/api/runs/{served['id']}/diff/{crashed['id']}")
        assert diff["argv"] == [f"-{PIECEWISE}"]
        assert {"weights", "warmup"} <= {each["phase"] for each in diff["phases"]}
        assert diff["run"]["state"] == "ready"
        running.get(f"/api/runs/{served['id']}/diff/good", 404)

        answer = running.client.get(f"/api/runs/{crashed['id']}/bundle")
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
            names = archive.getnames()
            held = {name: (archive.extractfile(name) or io.BytesIO()).read().decode() for name in names}
        root = crashed["id"]
        assert names == [f"{root}/run.json", f"{root}/attempt-1.md", f"{root}/attempt-1.log"]
        assert json.loads(held[names[0]])["rule"] == CAUSE
        assert CAUSE in held[names[1]]
        for text in (raw.text, json.dumps([crashed, served, rows, proof]), *held.values()):
            assert secret not in text


def test_a_later_start_is_compared_with_the_last_that_served(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(HEALTHY, health=True)], port=free_port())
    with serving(tmp_path, [argv]) as running:
        first = running.until(lambda target: target["state"] == "ready", "ready")["run"]
        planned = running.post("/api/targets/server/restart", {"knobs": {"mem_fraction_static": 0.7}})
        running.until(lambda target: target["state"] == "ready" and target["run"] == planned["run"], "ready again")
        diff = running.get(f"/api/runs/{planned['run']}/diff/good")
        assert diff["other"] == {"id": first, "attempt": 1, "state": "stopped"}
        assert diff["argv"] == ["+--mem-fraction-static 0.7"]


def test_what_is_no_run(tmp_path: Path) -> None:
    with serving(tmp_path, [["true"]], begin=False) as running:
        running.get("/api/runs/20261201-102030-a1b2c3", 404)
        for name in ("..", "x", "20261201-102030-a1b2c3x", "%2e%2e%2fx"):
            assert running.client.get(f"/api/runs/{name}/log").status_code in (404, 422)
        running.get("/api/targets/other/runs", 404)
        assert running.get("/api/targets/server/runs") == {"runs": []}
        running.service.store = None
        running.get("/api/targets/server/runs", 503)


def test_differences() -> None:
    now, then = ["p", "--tp", "8", "--a", "--b", "1"], ["p", "--tp", "4", "--a", "--c"]
    assert argv_diff(now, then) == ["---tp 4", "---c", "+--tp 8", "+--b 1"]
    assert argv_diff(now, now) == []
    assert map_diff({"a": 1, "b": 2}, {"b": 2, "c": 3}) == {"a": [1, None], "c": [None, 3]}
    assert phase_diff([("w", "W", 2.0)], [("w", "W", 1.0), ("g", "G", 3.0)]) == [
        {"phase": "w", "title": "W", "seconds": 2.0, "other": 1.0},
        {"phase": "g", "title": "G", "seconds": None, "other": 3.0},
    ]
