"""A log in, what others say of it out: the last exception line, and NVIDIA's restart agent without its language model.

The restart agent (nvidia-resiliency-ext, `attribution.restart_agent`) is optional. Its wheel asks for Python 3.12 and
a new C library, but the part that reads logs is plain Python:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_39_x86_64 \\
        nvidia-resiliency-ext==0.7.0
    unzip nvidia_resiliency_ext-0.7.0-*.whl -d nvrx
    python -m venv nvrx-venv && nvrx-venv/bin/pip install httpx pydantic
    python -m benchmarks.accuracy --nvrx nvrx --nvrx-python nvrx-venv/bin/python > docs/accuracy.md

What it said is kept in peers.json with a hash of the log: a log is given to it again only once its bytes have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

KEPT = Path(__file__).parent / "peers.json"
MODULE = "nvidia_resiliency_ext.attribution.restart_agent.cli"

KIND = r"(?:[A-Za-z_]\w*\.)*(?:\w*(?:Error|Exception|Interrupt)|Unsupported|OutOfResources)"
LAST = re.compile(rf"(?:^|(?<=\s)(?<!except )){KIND}:(?=\s|$)|(?:^|[\])]:? +){KIND}\s*$")
"""An exception as Python prints it, behind any log prefix; without a message only on a line of its own."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")


def last_exception(lines: Sequence[str]) -> int | None:
    """The number (from 1) of the last line that reads like a raised exception; None where there is none."""
    for number in range(len(lines), 0, -1):
        text = COLOUR.sub("", lines[number - 1])
        if not text[:1].isspace() and LAST.search(text):
            return number
    return None


@dataclass(frozen=True, slots=True)
class Advice:
    """What the restart agent says of one log: `line` is that of its primary failure, None where it names none."""

    log: str
    decision: str
    basis: str
    failure: str
    line: int | None


def digest(log: Path) -> str:
    """A short hash of a log's bytes."""
    return hashlib.blake2b(log.read_bytes(), digest_size=6).hexdigest()


def kept(path: Path = KEPT) -> tuple[str, dict[str, Advice]]:
    """The peer's release, and what it said by case; empty where it was never run."""
    if not path.exists():
        return "", {}
    data = json.loads(path.read_text())
    return data["release"], {name: Advice(**row) for name, row in data["cases"].items()}


def keep(release: str, said: dict[str, Advice], path: Path = KEPT) -> None:
    """Write what was said, one case a line so that a change reads as one."""
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(asdict(said[name]))}" for name in sorted(said))
    path.write_text(f'{{"release": {json.dumps(release)}, "cases": {{\n{rows}\n}}}}\n')


def release(folder: Path) -> str:
    """The release of an unzipped wheel. Raises ValueError for a folder that holds none."""
    found = sorted(folder.glob("nvidia_resiliency_ext-*.dist-info"))
    if not found:
        raise ValueError(f"{folder}: no unzipped nvidia-resiliency-ext wheel")
    return found[0].name.removeprefix("nvidia_resiliency_ext-").removesuffix(".dist-info")


def starts(folder: Path, python: str) -> str:
    """Why the restart agent does not start with this interpreter; "" when it does."""
    done = subprocess.run([python, "-m", MODULE, "--help"], env=_env(folder), capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def ask(folder: Path, python: str, logs: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, Advice]]:
    """Give logs (by name) to the restart agent, several at a time. Raises RuntimeError when it fails on one."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lambda pair: (pair[0], _ask(folder, python, *pair)), logs)


def _ask(folder: Path, python: str, name: str, log: Path) -> Advice:
    # Under a path that says nothing: a case's own name tells its cause.
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copyfile(log, Path(place, "server.log"))
        argv = [python, "-m", MODULE, str(copy), "--disable-l1", "--job-id", "job", "--cycle-id", "0"]
        done = subprocess.run(argv, env=_env(folder), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: the restart agent ended with {done.returncode}: {done.stderr[-400:]}")
    result = json.loads(done.stdout)
    primary = result["primary_failure"] or {}
    failure, line = primary.get("failure_class") or "", primary.get("line")
    return Advice(digest(log), result["decision"], result["decision_basis"], failure, line)


def _env(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder)}
