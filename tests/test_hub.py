"""News numbered without gaps, readers at their own pace, slow ones dropped with a reason."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.hub import Dropped, Hub


def test_readers_get_everything_from_where_they_ask_for() -> None:
    hub = Hub()
    first = hub.subscribe(0)
    live = hub.subscribe()
    for number in range(3):
        hub.publish("phase", f"n{number}", {"n": number})
    hub.close()
    assert [news.id for news in first] == [1, 2, 3]
    assert [news.text for news in live] == ["n0", "n1", "n2"]
    assert [news.text for news in hub.subscribe(after=2)] == ["n2"]
    assert hub.subscribe(after=99).get(0) is None


def test_a_slow_reader_is_dropped_with_a_reason_and_may_go_on() -> None:
    hub = Hub(keep=10)
    slow = hub.subscribe(0)
    for number in range(25):
        hub.publish("line", str(number))
    with pytest.raises(
        Dropped, match=r"fell behind: news 1 to 15 are no longer kept \(only the last 10 are\)"
    ) as error:
        slow.get(0)
    again = hub.subscribe(error.value.resume)
    assert again.missed == 0
    news = again.get(0)
    assert news is not None
    assert news.id == 16
    assert hub.subscribe(after=3).missed == 12


def test_a_reader_that_does_not_read_never_blocks_the_publisher() -> None:
    hub = Hub(keep=100)
    readers = [hub.subscribe(0) for _ in range(50)]
    begun = time.monotonic()
    for number in range(20_000):
        hub.publish("line", str(number))
    assert time.monotonic() - begun < 5
    assert all(reader.after == 0 for reader in readers)


def test_a_restarted_hub_goes_on_counting() -> None:
    hub = Hub()
    early = hub.subscribe(0)
    hub.resume(41)
    assert early.get(0) is None
    reader = hub.subscribe(after=40)
    hub.publish("state", "starting")
    news = reader.get(0)
    assert news is not None
    assert news.id == 42
    assert reader.missed == 1
    assert early.get(0) == news


def test_news_are_written_down_before_they_are_told() -> None:
    hub = Hub()
    news = hub.stamp("a", "x")
    hub.publish("b", "y")
    with pytest.raises(ValueError, match="news 1 is told after 1"):
        hub.tell(news)


def test_wakes_come_at_each_news_and_not_after_close() -> None:
    hub = Hub()
    woken: list[int] = []
    reader = hub.subscribe(wake=lambda: woken.append(1))
    hub.publish("a", "x")
    reader.close()
    hub.publish("a", "y")
    assert len(woken) == 1
    assert [news.text for news in iter(lambda: reader.get(0), None)] == ["x", "y"]


def test_many_threads_read_and_write_at_once() -> None:
    hub = Hub(keep=100_000)
    got: list[list[int]] = []

    def read() -> None:
        got.append([news.id for news in hub.subscribe(0)])

    def write() -> None:
        for number in range(500):
            hub.publish("n", str(number))

    readers = [threading.Thread(target=read) for _ in range(4)]
    writers = [threading.Thread(target=write) for _ in range(4)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    hub.close()
    for thread in readers:
        thread.join()
    assert got == [list(range(1, 2001))] * 4


@given(st.lists(st.one_of(st.just("publish"), st.integers(0, 3)), max_size=80), st.integers(1, 8))
def test_what_a_reader_gets_is_what_a_list_would_give(steps: list[str | int], keep: int) -> None:
    hub, told = Hub(keep=keep), 0
    readers = [hub.subscribe(0) for _ in range(4)]
    for step in steps:
        if step == "publish":
            hub.publish("n", "")
            told += 1
            continue
        reader = readers[int(step)]
        before = reader.after
        if before < told - keep:
            with pytest.raises(Dropped) as dropped:
                reader.get(0)
            assert dropped.value.resume == told - keep
            reader.after = dropped.value.resume
        else:
            news = reader.get(0)
            assert (news.id if news else None) == (before + 1 if before < told else None)
