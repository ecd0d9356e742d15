"""The probe of real SGLang environments: it lists what the parser takes, and the shipped table says the same.

It runs where `sh tests/engine/setup` has built the environments (.engines/ or BRINGUP_ENGINES); no GPU is needed.
tests/engine/stubs stands in for torchvision and sgl_kernel, which SGLang imports and does not need for its arguments.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.core.launch import check
from app.knowledge import load
from app.preflight import preflight
from app.probe import probe
from fixtures.reproduce import real_parsers as real

HERE = Path(__file__).parents[2]
ENGINES = Path(os.environ.get("BRINGUP_ENGINES") or HERE / ".engines")
VERSIONS = ["0.5.9", "0.5.23"]


def python_of(version: str) -> str:
    place = ENGINES / version / "bin" / "python"
    if not place.exists() or not (ENGINES / version / ".complete").exists():
        pytest.skip(f"no environment of SGLang {version} in {ENGINES}: sh tests/engine/setup builds it")
    return str(place)


@pytest.mark.parametrize(("version", "flags"), [("0.5.9", 332), ("0.5.23", 532)])
def test_every_flag_of_the_installed_engine(
    version: str, flags: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_of(version)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environ = {**os.environ, "PYTHONPATH": str(HERE / "tests" / "engine" / "stubs"), "SGLANG_USE_CPU_ENGINE": "1"}
    found = probe(python, engine="", environ=environ, cwd=str(tmp_path))
    assert found.version("sglang") == version
    assert found.seconds < 120
    assert found.parser is not None
    assert found.parser.failure is None, found.parser.log[-2000:]
    assert len(found.parser.flags) == flags
    assert real.differences(real.shipped_table("sglang"), version, {"flags": found.parser.flags}) == []
    again = probe(python, engine="", environ=environ, cwd=str(tmp_path))
    assert again.cached
    assert again.seconds < 1
    installed = again.table("sglang")
    assert installed is not None
    assert check(["--model-path", "m", "--tp", "2"], installed.for_version(version)) == []
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "m", "--enable-piecewise-cuda-graph"]
    report = preflight(argv, load(cache=False), probe=again, environ=environ)
    refused = [item.finding.rule for item in report.items if item.finding.rule.startswith("arguments/")]
    assert refused == ([] if version == "0.5.9" else ["arguments/unknown-cli-argument"])
