"""Whole runs: a fake engine plays real recordings, the supervisor starts it, follows it, and starts it again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.supervisor import Settings
from tests.edges.replay import HEALTHY, STORY, engine, live, scene
from tests.edges.servers import free_port

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PIECEWISE = "--enable-piecewise-cuda-graph"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"


def test_the_founding_crash_is_named_before_the_exit_and_the_fallback_becomes_ready(tmp_path: Path) -> None:
    gate = tmp_path / "may-exit"
    crash = scene(STORY, needs=[PIECEWISE], exit=-9, gates=[["exit", str(gate)]])
    port = free_port()
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=port)
    with live(tmp_path, argv, Settings(mode="auto", release="0.5.9")) as run:
        verdict = run.until(lambda news: news.kind == "verdict" and news.data["rule"] == CAUSE)
        assert verdict.data["stage"] in ("early", "refined")
        assert verdict.data["reason"]
        remedies = run.until("remedies").data["remedies"]
        assert remedies[0]["change"]["diff"] == [f"-{PIECEWISE}"]
        assert not run.of("exit"), "the process still waits at its gate"
        gate.touch()
        confirmed = run.until(lambda news: news.kind == "verdict" and news.data["stage"] == "confirmed")
        assert confirmed.data["rule"] == CAUSE
        relaunch = run.until("relaunch")
        assert relaunch.data["diff"] == [f"-{PIECEWISE}"]
        second = run.until("attempt")
        assert PIECEWISE not in second.data["argv"]
        ready = run.until("state")
        assert ready.data["state"] == "ready"
        assert run.hub.status["state"] == "ready"
        assert [row["rule"] for row in run.hub.status["attempts"]] == [CAUSE]
        run.supervisor.stop()
        outcome = run.rest()
        assert (outcome.state, outcome.status) == ("stopped", 0)
    logs = sorted(path.name for path in (tmp_path / "state" / "runs").glob("*/attempt-*.log"))
    assert logs == ["attempt-1.log", "attempt-2.log"]
