"""The time left: from a bar's own steps, from earlier starts, or unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.eta import Left, Pace, clock, from_engine, from_history, total


def test_nothing_is_known_before_the_first_step_or_without_a_total() -> None:
    pace = Pace()
    assert pace.left(10, 0.0) is None
    pace.step(0, 0.0)
    assert pace.left(10, 5.0) is None
    pace.step(1, 6.0)
    assert pace.left(None, 6.0) is None
    assert from_history([], 3.0) is None
    assert from_engine(None) is None
    assert total([]) is None
    assert total([Left(1, 1, 1, "bar"), None]) is None


def test_the_first_step_is_an_outlier_once_there_are_others() -> None:
    pace = Pace()
    pace.step(0, 0.0)
    pace.step(1, 60.0)
    first = pace.left(11, 60.0)
    assert first is not None
    assert (first.low, first.seconds, first.high) == (300.0, 600.0, 1200.0), "one step tells little"
    pace.step(2, 62.0)
    pace.step(3, 64.0)
    pace.step(4, 66.0)
    few = pace.left(11, 66.0)
    assert few is not None
    assert (few.low, few.seconds, few.high) == (7.0, 14.0, 28.0), "three of them are not many either"
    pace.step(5, 68.0)
    pace.step(6, 70.0)
    later = pace.left(11, 70.0)
    assert later is not None
    assert (later.low, later.seconds, later.high) == (10.0, 10.0, 10.0)
    assert pace.rate == 0.5


def test_a_step_that_is_overdue_widens_the_interval_and_never_counts_below_what_is_left() -> None:
    pace = Pace()
    for done in range(6):
        pace.step(done, done * 2.0)
    now = pace.left(10, 10.0)
    late = pace.left(10, 40.0)
    assert now is not None
    assert late is not None
    assert (now.seconds, late.seconds) == (10.0, 8.0)
    assert late.high > now.high + 100


def test_a_bar_that_begins_anew_forgets() -> None:
    pace = Pace()
    for done in range(6):
        pace.step(done, done * 2.0)
    pace.step(0, 100.0)
    assert pace.left(10, 101.0) is None


def test_history_gives_an_interval_and_gives_up_when_it_takes_longer_than_ever() -> None:
    assert from_history([100.0]) == Left(100.0, 60.0, 160.0, "history")
    assert from_history([90.0, 100.0, 130.0], 40.0) == Left(60.0, 50.0, 90.0, "history")
    assert from_history([90.0, 100.0, 130.0], 120.0) == Left(0.0, 0.0, 10.0, "history")
    assert from_history([90.0, 100.0, 130.0], 1000.0) is None


@pytest.mark.parametrize(("seconds", "text"), [(7, "0:07"), (100, "1:40"), (7380, "2:03:00"), (59.6, "1:00")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_words() -> None:
    assert Left(100, 70, 150, "bar").words() == "about 1:40 (1:10–2:30)"
    assert Left(0, 0, 0, "bar").words() == "about 0:00"


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1000, allow_nan=False)), min_size=1, max_size=60),
    st.integers(1, 300),
    st.floats(0, 1000, allow_nan=False),
)
def test_any_steps_give_an_interval_around_the_figure(
    steps: list[tuple[int, float]], total_units: int, wait: float
) -> None:
    pace, done, now = Pace(), 0, 0.0
    pace.step(0, now)
    for more, seconds in steps:
        done, now = done + more, now + seconds
        pace.step(done, now)
    left = pace.left(total_units, now + wait)
    if left is not None:
        assert 0 <= left.low <= left.seconds <= left.high
        assert left.high < float("inf")
        assert (left.seconds, left.high) == (0.0, 0.0) or done < total_units
