"""What a start shows while it is read: how far a bar is by its last drawing, though nothing has painted over it yet."""

from __future__ import annotations

import pytest

from app.reading import Reading
from tests.edges.replay import STORY, base

AT = b"\rCapturing batches (bs=304 "
"""The drawing before it says 12 of 52, which is read only when this one begins."""


def capture(reading: Reading, now: float) -> int | None:
    phases = {phase["id"]: phase for phase in reading.snapshot(now)["phases"]}
    done: int | None = phases["capture_decode"]["done"]
    return done


@pytest.mark.parametrize("end", [b"", b"\r"])
def test_a_bar_is_as_far_as_its_last_drawing_says(end: bytes) -> None:
    before, _, after = STORY.read_bytes().partition(AT)
    reading = Reading(base())
    told = reading.feed(before + end, 10.0) + reading.look(11.0)
    assert capture(reading, 11.0) == 12
    assert [item.data["done"] for item in told if item.kind == "progress"][-1] == 12
    reading.feed(AT + after[: after.index(b"\r")], 12.0)
    assert capture(reading, 12.0) == 13


@pytest.mark.parametrize("other", [b"12/64", b"10/52", b"60/52", b"1.12/52.7", b"12/52/3", b"12 of 52"])
def test_what_is_not_the_same_bar_says_nothing(other: bytes) -> None:
    before = STORY.read_bytes().partition(AT)[0]
    reading = Reading(base())
    reading.feed(before[: before.rindex(b"\r")] + b"\r" + other, 10.0)
    assert capture(reading, 10.0) == 11
