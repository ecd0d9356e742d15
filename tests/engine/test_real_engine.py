"""`bringup run` over a real SGLang on the CPU: what it sees, what it names, and what it brings up again.

Nothing is played back here: the engine, its processes, its ports and its failures are real. README.md says what stands
in for what a machine without a GPU has not.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from app.targets.processes import Process
from tests.edges.servers import free_port, until
from tests.engine.running import LIMIT, POOL, SMALL, STORY, Engine, Story, bringup

AUTO = ("--fallback", "auto")
PIECEWISE = "--enable-piecewise-cuda-graph"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"
TINY = ("--model-path", "models/tiny")
MAIN = ("args", "weights", "kv_cache", "http")
BOTH = pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])


def named(story: Story, name: str) -> Process:
    """One of the server's processes by its name, waited for."""
    return until(
        lambda: next((process for process in story.processes() if process.name.startswith(name)), None),
        f"a process {name!r}", LIMIT,
    )  # fmt: skip


def begun(phase: str) -> Any:
    """Fits the news that a phase began."""
    return lambda item: item["kind"] == "phase" and item["data"]["phase"] == phase


# --- A start that goes well ------------------------------------------------------------------------------------------


@BOTH
def test_a_healthy_start_is_followed_to_ready_answers_and_stops_without_a_trace(
    version: str, usable: Any, work: Path
) -> None:
    port = free_port()
    with bringup(usable(version), work, port, *TINY, *SMALL, *POOL) as story:
        ready = story.ready()
        assert ready["text"] == f"ready: http://127.0.0.1:{port}/health answers 200 OK"
        assert [name for name in story.phases if name in MAIN] == list(MAIN)
        assert story.generate()["meta_info"]["completion_tokens"] == 4
        assert story.stop() == 0
        assert story.gone()
        assert not story.of("verdict"), story
        assert [row["state"] for row in story.of("ended")] == ["stopped"]


def test_a_start_that_compiles_and_captures_shows_how_far_it_is(old: Engine, work: Path) -> None:
    model = ("--model-path", "models/plain-story")
    with bringup(old, work, free_port(), *model, *SMALL, *POOL, PIECEWISE, env=STORY) as story:
        story.ready()
        bars = [data for data in story.of("progress") if data["phase"] == "capture_prefill"]
        assert {data["total"] for data in bars} == {42}
        assert max(data["done"] for data in bars) > 20
        assert story.generate()["meta_info"]["completion_tokens"] == 4
        assert story.stop() == 0
        assert story.gone()
        assert not story.of("verdict"), story


# --- The founding story ----------------------------------------------------------------------------------------------


def test_the_founding_crash_is_named_before_the_exit_and_the_relaunch_answers(old: Engine, work: Path) -> None:
    port = free_port()
    model = ("--model-path", "models/story")
    with bringup(old, work, port, *model, *SMALL, *POOL, PIECEWISE, options=AUTO, env=STORY, limit=600) as story:
        early = story.verdict()
        assert (early["rule"], early["stage"], early["phase"]) == (CAUSE, "early", "capture_prefill")
        assert not story.of("exit"), "it is named while the server still runs"
        assert story.phases[-1] == "capture_prefill"
        assert "weights" in story.phases
        remedies = story.until("remedies")["data"]["remedies"]
        assert remedies[0]["change"]["diff"] == [f"-{PIECEWISE}"]
        story.until("exit")
        assert story.verdict()["stage"] == "confirmed"
        assert story.until("relaunch")["data"]["diff"] == [f"-{PIECEWISE}"]
        story.ready()
        first, second = story.of("attempt")
        assert PIECEWISE in first["argv"]
        assert second["argv"] == [word for word in first["argv"] if word != PIECEWISE]
        assert story.generate()["meta_info"]["completion_tokens"] == 4
        assert story.stop() == 0
        assert story.gone()


# --- Failures that a fallback brings up ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "flags", "env", "cause", "diff"),
    [
        pytest.param(
            "0.5.9", (*POOL, PIECEWISE), {}, "cuda-graphs/piecewise-graphs-need-cuda", [f"-{PIECEWISE}"],
            id="piecewise-graphs-on-a-cpu",
        ),
        pytest.param(
            "0.5.23", (*POOL, "--enable-torch-compile"), {}, "dynamo/torch-compile-unsupported-by-attention-backend",
            ["---enable-torch-compile"], id="torch-compile-under-an-attention-backend-without-it",
        ),
        pytest.param(
            "0.5.23", (*POOL, "--context-length", "100000"), {}, "arguments/context-length-exceeds-model",
            ["---context-length 100000", "+--context-length 2048"], id="context-length",
        ),
        pytest.param(
            "0.5.23", POOL, {"SGLANG_USE_CPU_ENGINE": None}, "host/sglang-cpu-engine-not-enabled",
            ["+SGLANG_USE_CPU_ENGINE=1"], id="cpu-engine-not-switched-on",
        ),
    ],
)  # fmt: skip
def test_a_fallback_brings_the_real_server_up(
    version: str, flags: tuple[str, ...], env: dict[str, str | None], cause: str, diff: list[str], usable: Any,
    work: Path,
) -> None:  # fmt: skip
    with bringup(usable(version), work, free_port(), *TINY, *SMALL, *flags, options=AUTO, env=env, limit=600) as story:
        story.ready()
        assert [row["rule"] for row in story.of("ended")] == [cause]
        assert [row["diff"] for row in story.of("relaunch")] == [diff]
        assert story.generate()["meta_info"]["completion_tokens"] == 4
        assert story.stop() == 0
        assert story.gone()


def test_a_port_taken_while_it_loaded_is_waited_for_and_the_same_launch_becomes_ready(new: Engine, work: Path) -> None:
    """The engine loads to its end, finds the port taken, and stays: it neither serves nor ends by itself."""
    port = free_port()
    options = (*AUTO, "--linger", "5", "--stop-timeout", "5")
    with bringup(new, work, port, *TINY, *SMALL, *POOL, options=options, limit=600) as story:
        story.until(begun("args"))
        with socket.create_server(("127.0.0.1", port)):
            assert story.verdict()["rule"] == "host/port-in-use"
        assert story.until("relaunch")["data"]["diff"] == []
        story.ready()
        first, second = story.of("attempt")
        assert first["argv"] == second["argv"]
        assert story.stop() == 0
        assert story.gone()


# --- Failures that no flag helps against -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "flags", "env", "cause"),
    [
        pytest.param("0.5.9", TINY, {"SGLANG_USE_CPU_ENGINE": None}, "driver/no-accelerator-available", id="no-gpu"),
        pytest.param(
            "0.5.9", ("--model-path", "/srv/models/absent", *SMALL, *POOL), {}, "checkpoint/model-path-not-found",
            id="no-model",
        ),
        pytest.param(
            "0.5.9", ("--model-path", "models/unknown-architecture", *SMALL, *POOL), {},
            "checkpoint/model-architecture-unsupported", id="unknown-architecture",
        ),
        pytest.param(
            "0.5.23", ("--model-path", "models/truncated", *SMALL, *POOL), {}, "checkpoint/safetensors-truncated-file",
            id="truncated-weights",
        ),
        pytest.param(
            "0.5.23", ("--model-path", "models/unknown-quantisation", *SMALL, *POOL), {},
            "quantisation/quantization-method-unknown", id="unknown-quantisation",
        ),
        pytest.param(
            "0.5.23", (*TINY, *SMALL, *POOL, "--no-such-flag", "3"), {}, "arguments/unknown-cli-argument",
            id="unknown-flag",
        ),
    ],
)  # fmt: skip
def test_a_failure_is_named_and_ends_the_run(
    version: str, flags: tuple[str, ...], env: dict[str, str | None], cause: str, usable: Any, work: Path
) -> None:
    with bringup(usable(version), work, free_port(), *flags, options=("--fallback", "off"), env=env) as story:
        assert story.failed() == 1
        assert story.rule == cause, story
        assert [row["stage"] for row in story.of("verdict")][-1] == "confirmed"
        assert [row["state"] for row in story.of("ended")] == ["crashed"]
        assert not story.of("relaunch")
        assert story.gone()


# --- Ends from outside -----------------------------------------------------------------------------------------------


def test_sigterm_while_it_loads_is_no_alarm(old: Engine, work: Path) -> None:
    with bringup(old, work, free_port(), *TINY, *SMALL, *POOL, options=AUTO) as story:
        pid = story.until("attempt")["data"]["pid"]
        story.until(begun("spawn"))
        named(story, "sglang::")
        os.kill(pid, signal.SIGTERM)
        assert story.failed() == 1, "it was not ready"
        assert not story.of("verdict"), story
        assert [row["state"] for row in story.of("ended")] == ["stopped"]
        assert not story.of("relaunch")
        assert story.gone()


def test_ctrl_c_while_it_loads_ends_every_process(new: Engine, work: Path) -> None:
    with bringup(new, work, free_port(), *TINY, *SMALL, *POOL, options=AUTO) as story:
        story.until(begun("spawn"))
        named(story, "sglang::")
        assert story.stop() == 130
        assert not story.of("verdict"), story
        assert story.gone()


@BOTH
def test_a_killed_scheduler_ends_the_run_without_a_made_up_cause(version: str, usable: Any, work: Path) -> None:
    options = (*AUTO, "--linger", "20")
    with bringup(usable(version), work, free_port(), *TINY, *SMALL, *POOL, options=options) as story:
        story.until(begun("dist_init"))
        os.kill(named(story, "sglang::sched").pid, signal.SIGKILL)
        assert story.failed() == 1
        assert story.rule is None, story
        assert [row["state"] for row in story.of("ended")] == ["crashed"]
        assert not story.of("relaunch")
        assert story.gone()
