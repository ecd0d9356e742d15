"""The name of a demonstration in; a command line that plays recorded starts, and how to run it, out.

The engine is played by app/fake_engine.py from real recordings (cases of fixtures/); everything else is the real thing:
processes, log files, the supervisor, the rules.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app import fake_engine
from app.attempt import Limits
from app.history import FileHistory
from app.hub import Hub
from app.knowledge import Base
from app.ladder import Launch, Mode
from app.live import View, show
from app.outcome import Settings
from app.service import Served
from app.serving import Api, beside

PIECEWISE = "--enable-piecewise-cuda-graph"
GLM = ("--model-path", "/models/GLM-5-NVFP4", "--tp", "4", "--quantization", "modelopt_fp4", "--trust-remote-code")


@dataclass(frozen=True, slots=True)
class Demo:
    """One demonstration: `words` follow `python -m sglang.launch_server`, `scenes` are what the engine plays (`log` is
    a case of fixtures/), `silence` is the limit in the log's own seconds."""

    title: str
    words: Sequence[str]
    scenes: Sequence[dict[str, Any]]
    release: str = "0.5.9"
    gpu: str | None = "sm120"
    silence: float | None = None


DEMOS = {
    "story": Demo(
        "the founding crash, named while it is written, and the relaunch that becomes ready",
        (*GLM, PIECEWISE),
        [{"log": "founding-story", "needs": [PIECEWISE], "exit": -9},
         {"log": "founding-story-relaunch", "health": True}],
    ),
    "healthy": Demo(
        "a real start with compiled and captured prefill graphs that becomes ready",
        ("--model-path", "models/tiny-llama", "--device", "cpu", PIECEWISE),
        [{"log": "real-v059-piecewise-compile-capture-ok", "health": True}],
        gpu=None,
    ),
    "memory": Demo(
        "a memory share that leaves nothing for the cache, and the relaunch with the share that the log asks for",
        ("--model-path", "models/tiny-llama", "--device", "cpu", "--mem-fraction-static", "0.001"),
        [{"log": "real-slim-mem-fraction-tiny", "needs": ["0.001"], "exit": -9},
         {"log": "real-slim-healthy-0.5.23", "health": True}],
        "0.5.23", None,
    ),
    "stall": Demo(
        "a graph capture that stands still: the limit, what every process does, and the end",
        GLM,
        [{"log": "founding-story", "until": "(bs=256 ", "children": 3}],
        silence=120.0,
    ),
}  # fmt: skip
"""By name; `story` is shown when none is named."""


def recording(case: str) -> Path:
    """The log of a case: in an installed package the few that are shipped, in a checkout fixtures/."""
    shipped = Path(__file__).parent / "_demo" / f"{case}.log"
    return shipped if shipped.is_file() else Path(__file__).parent.parent / "fixtures" / case / "server.log"


def prepare(demo: Demo, folder: Path, speed: float) -> list[str]:
    """Writes what the fake engine needs into `folder`; the command line that starts it."""
    scenes = [{**scene, "log": str(recording(scene["log"])), "speed": speed} for scene in demo.scenes]
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"scenes": scenes}))
    script = folder / "sglang" / "launch_server.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "# Plays a recording in the place of SGLang.\n"
        f"import os, runpy\nos.environ[{fake_engine.PLAN!r}] = {str(plan)!r}\n"
        f"runpy.run_path({fake_engine.__file__!r}, run_name='__main__')\n"
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    return [sys.executable, "-S", str(script), *demo.words, "--port", str(port)]


def run(name: str, folder: Path, view: View, base: Base, *, speed: float = 20.0, mode: Mode = "auto",
        attended: bool = False, stay: float | None = 3.0, api: Api | None = None) -> int:  # fmt: skip
    """Plays a demonstration in `folder`, `speed` times as fast as it was; `stay` seconds after ready it is stopped
    (None: it stays until Ctrl-C, and can be restarted through the API). The exit status of `bringup run`."""
    demo = DEMOS[name]
    argv = prepare(demo, folder, speed)
    limits = Limits(silence=demo.silence, stalled=2.0 if demo.silence else 600.0)
    settings = Settings(mode=mode, attended=attended, limits=limits, pace=speed, release=demo.release, gpu=demo.gpu)
    hub, root = Hub(), folder / "state"
    history = FileHistory(root / "history.jsonl")
    served = Served("server", base, hub, root, Launch(tuple(argv)), Path.cwd(), settings, history, stay is None)
    served.begin()
    if stay is not None:
        threading.Thread(target=_leave_it, args=(hub, served, stay), name="stay", daemon=True).start()
    with beside(api or Api(off=True), base, root, [served]):
        return show(served, hub, view).status


def _leave_it(hub: Hub, served: Served, stay: float) -> None:
    """Ends the demonstration some seconds after the server became ready."""
    told = hub.subscribe(0)
    for news in told:
        if news.kind == "state" and news.data["state"] == "ready":
            end = time.monotonic() + stay
            while time.monotonic() < end and not hub.closed:
                told.get(end - time.monotonic())
            served.stop()
            return
