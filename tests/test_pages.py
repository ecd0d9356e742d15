"""Rules found by words, as a person types them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app import pages
from app.knowledge import load

BASE = load()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("no kernel image", "kernels-by-architecture/torch-wheel-lacks-arch"),
        ("Attempted to call function marked as skipped", "dynamo/flashinfer-fp4-jit-under-dynamo"),
        ("mem_fraction raise", "memory/kv-pool-no-room-raise-mem-fraction"),
        ("ADDRESS already IN use", "host/port-in-use"),
    ],
)
def test_what_a_person_types_finds_the_rule(words: str, wanted: str) -> None:
    found = [rule.id for rule in pages.search(BASE.rules(), words)]
    assert wanted in found
    assert len(found) < len(BASE.rules()) / 4


def test_words_in_the_title_come_first_and_each_must_stand_somewhere() -> None:
    rules = pages.search(BASE.rules(), "port in use")
    assert rules[0].id == "host/port-in-use"
    assert pages.search(BASE.rules(), "port in use xyzzy") == []
    assert "host/port-in-use" not in [rule.id for rule in pages.search(BASE.rules(), "ort in use")]
    assert len(pages.search(BASE.rules(), "")) == len(BASE.rules())


def test_the_command_prints_them_or_says_what_to_do() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "app.cli", "rules", "search", *words], capture_output=True, text=True, timeout=60
        )

    found = run("no", "kernel", "image")
    assert found.returncode == 0
    assert "kernels-by-architecture/torch-wheel-lacks-arch " in found.stdout
    nothing = run("xyzzy")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "bringup explain" in nothing.stderr
