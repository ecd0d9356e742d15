"""An engine's environment and its flags in, a real `bringup run` over it out, with everything it told: real processes,
real ports, nothing left behind."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.targets import ports
from app.targets.processes import Process, Tree
from tests.edges.replay import sweep

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENGINES = Path(os.environ.get("BRINGUP_ENGINES") or ROOT / ".engines")
LIMIT = 420.0
"""Seconds that one test may take: a start takes 30 s on a quiet machine and 150 s on a busy one."""
SMALL = ("--device", "cpu", "--attention-backend", "torch_native", "--max-running-requests", "4")
"""A CPU start that every release takes."""
POOL = ("--max-total-tokens", "4096")
"""Without it the cache takes most of the machine's memory."""

STORY = {
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "story_model", "PYTHONPATH": f"{HERE / 'stubs'}:{HERE}",
    "FLASHINFER_CUDA_ARCH_LIST": "12.0a", "CUDA_HOME": str(HERE / "stubs" / "cuda"),
}  # fmt: skip
"""What the founding story's model needs: its package, the GPU that FlashInfer is to build for, and an nvcc."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The environment of one SGLang release."""

    version: str

    @property
    def folder(self) -> Path:
        return ENGINES / self.version

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def missing(self) -> str:
        """Why it cannot be used, in a sentence; "" when it can."""
        if not sys.platform.startswith("linux"):
            return "the engine tests read /proc"
        if not (self.folder / ".complete").exists():
            return f"no SGLang {self.version} in {ENGINES}; `sh tests/engine/setup {self.version}` builds it (2.7 GB)"
        return ""


@dataclass
class Story:
    """A running `bringup run --json`: what it told so far, and how to wait for more."""

    bringup: subprocess.Popen[str]
    folder: Path
    port: int
    end: float
    news: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._came: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._complain, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.bringup.stdout is not None
        for line in self.bringup.stdout:
            self._came.put(json.loads(line))
        self._came.put(None)

    def _complain(self) -> None:
        assert self.bringup.stderr is not None
        self.errors += self.bringup.stderr

    def until(self, wanted: Callable[[dict[str, Any]], bool] | str) -> dict[str, Any]:
        """The next news of that kind, or that fits; fails when it does not come before the test's end."""
        fits = wanted if callable(wanted) else lambda item: item["kind"] == wanted
        while True:
            try:
                item = self._came.get(timeout=max(0.0, self.end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"waited in vain for {wanted}; {self}") from None
            if item is None:
                self._came.put(None)
                raise AssertionError(f"bringup ended before {wanted}; {self}")
            self.news.append(item)
            if fits(item):
                return item

    def ready(self) -> dict[str, Any]:
        """Waits for ready; fails at once when the run is over instead."""
        found = self.until(lambda item: item["kind"] == "over" or _state(item) == "ready")
        assert found["kind"] == "state", str(self)
        return found

    def verdict(self) -> dict[str, Any]:
        """The next verdict that is not taken back."""
        return self.until(lambda item: item["kind"] == "verdict" and item["data"]["stage"] != "withdrawn")["data"]

    def rest(self) -> int:
        """Everything until bringup has ended, and its exit status."""
        while True:
            try:
                item = self._came.get(timeout=max(0.0, self.end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"bringup did not end; {self}") from None
            if item is None:
                self._came.put(None)
                break
            self.news.append(item)
        return self.bringup.wait(max(1.0, self.end - time.monotonic()))

    def failed(self) -> int:
        """The exit status of a run that never becomes ready; fails at once when it does."""
        self.until(lambda item: item["kind"] == "over" or _state(item) == "ready")
        assert self.news[-1]["kind"] == "over", f"it became ready; {self}"
        return self.rest()

    def stop(self) -> int:
        """What Ctrl-C does: the exit status once the server and bringup are gone."""
        self.bringup.send_signal(signal.SIGINT)
        return self.rest()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All news of one kind so far, what they carry."""
        return [item["data"] for item in self.news if item["kind"] == kind]

    @property
    def rule(self) -> str | None:
        """The cause as it was named last."""
        told = self.of("verdict")
        return told[-1]["rule"] if told and told[-1]["stage"] != "withdrawn" else None

    @property
    def phases(self) -> list[str]:
        """The phases of the current attempt in the order in which they began or were over."""
        attempt = self.of("attempt")[-1]["attempt"]
        names = [data["phase"] for data in self.of("phase") if data["attempt"] == attempt]
        return list(dict.fromkeys(names))

    @property
    def run(self) -> str:
        """The run's name, which all its processes carry."""
        return next((self.folder / "state" / "runs").iterdir()).name

    def processes(self) -> list[Process]:
        """What runs of the server now."""
        return Tree(None, self.run).refresh()

    def log(self, attempt: int = 1) -> str:
        """An attempt's log as the engine wrote it."""
        return (self.folder / "state" / "runs" / self.run / f"attempt-{attempt}.log").read_text(errors="replace")

    def generate(self, prompt: str = "the quick brown fox") -> dict[str, Any]:
        """A request to the server, and its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = {"text": prompt, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
            connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, f"{answer.status}: {text}"
            found: dict[str, Any] = json.loads(text)
            return found
        finally:
            connection.close()

    def gone(self) -> bool:
        """Whether neither a process of the server nor a listener on its port is left."""
        return not self.processes() and ports.check(self.port, "127.0.0.1").free

    def __str__(self) -> str:
        told = [f"{item['kind']}: {item['text']}" for item in self.news if item["kind"] not in ("progress", "fact")]
        return "told: " + " | ".join(told[-40:]) + "; said: " + "".join(self.errors)[-2000:]


def _state(item: Mapping[str, Any]) -> str | None:
    return item["data"]["state"] if item["kind"] == "state" else None


def environment(engine: Engine, more: Mapping[str, str | None] = {}) -> dict[str, str]:
    """What a person exports before starting that SGLang on a CPU; None takes a variable away."""
    given: dict[str, str | None] = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ},
        "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(HERE / "stubs"), "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "STORY_FLASHINFER": str(engine.folder / "flashinfer"), **more,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def neutral(text: str, engine: Engine, folder: Path) -> str:
    """A log without the paths of this machine; nothing else is changed."""
    home = next(line for line in (engine.folder / "pyvenv.cfg").read_text().splitlines() if line.startswith("home ="))
    base = Path(home.partition("=")[2].strip()).parent
    for path, shown in ((engine.folder, "/opt/engine"), (HERE, "/opt/harness"), (folder, "/srv"), (base, "/usr/local")):
        text = text.replace(f"{path}/", f"{shown}/")
    return text


def _keep(engine: Engine, folder: Path) -> None:
    """Copies every attempt's log, with neutral paths, to where BRINGUP_KEEP_LOGS says: what new cases are made of."""
    where = os.environ.get("BRINGUP_KEEP_LOGS")
    for log in folder.glob("state/runs/*/attempt-*.log") if where else ():
        target = Path(where or "") / f"{folder.name}-{log.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(neutral(log.read_text(errors="surrogateescape"), engine, folder), errors="surrogateescape")


@contextmanager
def bringup(
    engine: Engine,
    folder: Path,
    port: int,
    *flags: str,
    options: Sequence[str] = (),
    env: Mapping[str, str | None] = {},
    limit: float = LIMIT,
) -> Iterator[Story]:
    """`bringup run` over an SGLang with these flags, started in `folder`; afterwards everything is ended, and the test
    fails if something had been left."""
    argv = [str(engine.python), "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port), *flags]
    words = ["run", "--json", "--no-api", "--state-dir", "state", *options, "--", *argv]
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("bringup")), *words],
        cwd=folder, env=environment(engine, env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    story = Story(process, folder, port, time.monotonic() + limit)
    try:
        yield story
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        runs = folder / "state" / "runs"
        left = [name for run in (runs.iterdir() if runs.exists() else ()) for name in sweep(run.name)]
        _keep(engine, folder)
        for reader in story._readers:
            reader.join(10)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        assert not left, f"left by the run: {left}"
