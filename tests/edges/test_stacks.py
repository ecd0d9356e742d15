"""The stacks of a process that stands still, by the real py-spy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.targets import stacks
from app.targets.processes import Process, snapshot

PROGRAM = """
import time

def wait_for_the_other_rank():
    print("there", flush=True)
    time.sleep(60)

wait_for_the_other_rank()
"""


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Process]:
    """A Python process that waits in a function of its own."""
    program = tmp_path / "rank.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert process.stdout.readline() == b"there\n"
        yield snapshot()[process.pid]
    finally:
        process.kill()
        process.communicate()


def test_py_spy_names_the_function_a_process_waits_in(standing: Process) -> None:
    (stack,) = stacks.collect([standing])
    if "ermission" in stack.note:
        pytest.skip(f"this machine lets nobody look into a process ({stack.note})")
    assert (stack.source, stack.note) == ("py-spy", "")
    assert next(frame.function for thread in stack.threads for frame in thread.frames) == "wait_for_the_other_rank"
    assert any(line.strip().startswith("wait_for_the_other_rank (") and "rank.py:6)" in line for line in stack.lines())


def test_py_spy_is_found_beside_the_python_of_the_process(
    standing: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = str(Path(sys.executable).with_name("py-spy"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stacks.find_pyspy(standing.pid) == beside
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert stacks.find_pyspy(standing.pid) == beside
    assert stacks.find_pyspy(0) is None
