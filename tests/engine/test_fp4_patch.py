"""The founding crash with real torch and FlashInfer, before and after the launch-time patch.

It runs where BRINGUP_FP4_PYTHON names an interpreter with torch and flashinfer-python (fixtures/reproduce/
fp4_under_dynamo.py says how to make one: 1 GB, two minutes; no GPU). What is proved is that the program is traced; the
kernel itself needs a GPU.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from app.core.patches import PATCHES, environment
from app.explain import explain_bytes
from app.knowledge import load

HERE = Path(__file__).parents[2]
PYTHON = os.environ.get("BRINGUP_FP4_PYTHON", "")
PROGRAM = HERE / "fixtures" / "reproduce" / "fp4_under_dynamo.py"

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="BRINGUP_FP4_PYTHON names no interpreter: the docstring says what for"
)


def run(**more: str) -> subprocess.CompletedProcess[bytes]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [PYTHON, str(PROGRAM)], env={**environ, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
    )


def test_before_it_dies_as_the_rule_says() -> None:
    done = run()
    assert done.returncode == 1
    cause = explain_bytes([done.stdout], load(cache=False)).cause
    assert cause is not None
    assert cause.rule.id == "dynamo/flashinfer-fp4-jit-under-dynamo"


def test_after_the_patch_the_same_program_compiles() -> None:
    done = run(**environment("flashinfer-fp4-op", None))
    assert b"fp4_quantize is now the operator bringup::fp4_quantize" in done.stdout
    assert b"torch.ops.bringup.fp4_quantize" in done.stdout
    assert b"compiled: (100, 32) (128, 4)" in done.stdout
    assert done.returncode == 0


def test_bypassed_it_changes_nothing() -> None:
    environ = {**os.environ, **environment("flashinfer-fp4-op", None)}
    done = subprocess.run([PYTHON, "-E", str(PROGRAM)], env=environ, capture_output=True, timeout=300)
    assert done.returncode == 1
    assert b"bringup" not in done.stderr


def test_the_installed_versions_are_among_the_proven_ones() -> None:
    assert PATCHES["flashinfer-fp4-op"].proven
