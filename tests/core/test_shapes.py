"""Known logs, delivered and copied in every way we know of, get the verdict that their plain form gets."""

from __future__ import annotations

import shlex

import pytest

from app.cases import cases, shipped_cases
from app.core.diagnosis import Status
from app.core.secrets import mask
from app.explain import Told, explain_bytes
from app.knowledge import Base, load

from .shapes import SHAPES, Shape, entries

CRASHES = (
    "founding-story", "real-port-in-use", "real-slim-mem-fraction-tiny", "lib-fi-no-nvcc",
    "lib-wrapped-api-fi0.6.4-torch2.9.1-none.vllm-perline", "lib-wrapped-api-fi0.6.4-torch2.9.1-none.4ranks-interleaved",
    "real-slim-unsupported-arch", "real-slim-tp2", "lib-hf-tf-gated401", "vllm-6276",
)  # fmt: skip
QUIET = (
    "real-slim-healthy-0.5.23", "founding-story-relaunch",
    "engine-v0523-sigkill-scheduler-while-it-loads", "lib-dynamo-module-fi0.6.4-torch2.9.1-nofullgraph",
)  # fmt: skip
"""Nothing may be blamed in these."""

CASES = {case.name: case for case in cases(shipped_cases()) if case.name in (*CRASHES, *QUIET)}


@pytest.fixture(scope="module")
def base() -> Base:
    return load(cache=False)


def status(name: str, data: bytes, base: Base) -> Status:
    case = CASES[name]
    return explain_bytes([data], base, Told(shlex.split(case.argv)) if case.argv else Told(), case.idle)


@pytest.fixture(scope="module")
def plain(base: Base) -> dict[str, Status]:
    return {name: status(name, case.log.read_bytes(), base) for name, case in CASES.items()}


def test_the_plain_logs_are_read_right(plain: dict[str, Status]) -> None:
    for name, case in CASES.items():
        assert case.judge(plain[name]) == "right", name
        assert (plain[name].cause is None) == (name in QUIET)
        assert plain[name].restored == ()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_verdict_is_the_same_in_every_shape(shape: Shape, base: Base, plain: dict[str, Status]) -> None:
    different = []
    for name, case in CASES.items():
        was, now = plain[name], status(name, shape(case.log.read_bytes()), base)
        told = [(item.state, item.cause.rule.id if item.cause else None) for item in (was, now)]
        if told[0] != told[1]:
            different.append((name, *told))
    assert different == []


MOVING = (
    "newest_first", "newest_first_entries", "newest_first_json", "newest_first_json_entries", "newest_first_seconds",
    "newest_first_one_time", "newest_first_csv", "tac", "wrapped_80", "wrapped_120", "wrapped_80_padded", "csv_export",
    "json_array", "cloudwatch_events", "journald_verbose",
)  # fmt: skip


@pytest.mark.parametrize("name", MOVING)
def test_evidence_stands_on_the_lines_of_the_log_as_it_was_given(name: str, base: Base) -> None:
    for case in CRASHES:
        data = SHAPES[name](CASES[case].log.read_bytes())
        got = status(case, data, base)
        source = data.decode("utf-8", "replace").split("\n")
        assert got.restored or len(list(entries(CASES[case].log.read_bytes()))) == 1  # one entry has no order
        assert got.lines == len(source) - (source[-1] == "")
        assert got.cause is not None
        for item in got.cause.evidence:
            # JSON and CSV double or escape quotes
            words = mask(item.text).strip().replace('"', "").replace("\\", "")[:24]
            rows = source[item.line - 1 : item.line + (2 if name.startswith("wrapped") else 0)]
            here = "".join(row.rstrip("\n") for row in rows).replace('"', "").replace("\\", "")
            assert words in here, (case, item)
