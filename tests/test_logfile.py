"""Lines of a file by number: any range of any bytes, growing, cut short, replaced; and where a text stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app import logfile
from app.logfile import LogFile, row
from app.ranks import Ranks
from tests.edges.replay import base

SOME = [b"a", b"\n", b"bc\n", b"long " * 9, b"\xff\n", b"\r", b"\x1b[1m"]


def lines_of(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return parts if parts[-1] else parts[:-1]


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(st.lists(st.sampled_from(SOME)), max_size=4),
    first=st.integers(1, 40), count=st.integers(1, 12),
)  # fmt: skip
@example(pieces=[[b"a", b"\r", b"\x1b[1m"]], first=1, count=1)
def test_any_range_of_a_growing_file_is_right(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[list[bytes]], first: int, count: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "x.log"
    path.write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logfile, "BLOCK", 16)
        log = LogFile(str(path))
        data = b""
        for piece in pieces:
            data += b"".join(piece)
            path.write_bytes(data)
            whole = lines_of(data)
            _, lines, rows = log.rows(first, count)
            assert lines == len(whole)
            wanted = [row(n, text, len(text)) for n, text in enumerate(whole, 1)][first - 1 : first - 1 + count]
            assert rows == wanted
            found, more, so_many = log.find("BC", first, 1000)
            assert (more, so_many) == (None, len(whole))
            assert found == [
                n for n, text in enumerate(whole, 1) if n >= first and "bc" in row(n, text, len(text)).text
            ]


def test_a_line_is_shown_without_colours_and_secrets_and_as_a_bar_looked_last(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(
        b"\x1b[31mred\x1b[0m\n1%\r2%\r\n\x1b[1m--api-key\x1b[0m sk-abcdefghijklmnopqrstuvwxyz\n" + b"y" * 100_000
    )
    _, lines, rows = LogFile(str(path)).rows(1, 10)
    assert lines == 4
    assert [each.text for each in rows[:3]] == ["red", "2%", "--api-key ***"]
    assert (len(rows[3].text), rows[3].size) == (logfile.WIDTH, 100_000)


def test_a_long_bar_is_shown_as_it_looked_last(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    drawn = [b"%d of 60000 " % place + b"#" * 20 + b"\r" for place in range(60_001)]
    path.write_bytes(b"one\n" + b"".join(drawn) + b"\nthree\n" + b"".join(drawn[:30_000]))
    _, lines, rows = LogFile(str(path)).rows(1, 10)
    assert lines == 4
    assert [each.text.rstrip("#").rstrip() for each in rows] == ["one", "60000 of 60000", "three", "29999 of 60000"]
    assert not any(each.size for each in rows)


def test_a_search_does_not_tell_a_secret_letter_by_letter(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("start --api-key sk-abcdefghijklmnopqrstuvwxyz\n")
    log = LogFile(str(path))
    assert log.find("api-key", 1, 10) == ([1], None, 1)
    assert log.find("sk-a", 1, 10) == ([], None, 1)


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("hit\nmiss\n" * 5)
    log = LogFile(str(path))
    assert log.find("hit", 1, 2) == ([1, 3], 4, 10)
    assert log.find("hit", 4, 10) == ([5, 7, 9], None, 10)


def test_another_file_under_the_name_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("one\ntwo\n")
    log = LogFile(str(path))
    before, lines = log.look()
    assert lines == 2
    path.write_text("three\n")
    assert log.look() == (before, 1), "the same file, cut short: its name stays, its lines are fewer"
    other = tmp_path / "y.log"
    other.write_text("a\nb\nc\n")
    other.replace(path)
    after, lines, rows = log.rows(1, 10)
    assert (after != before, lines, [each.text for each in rows]) == (True, 3, ["a", "b", "c"])


MIXED = """\
[2026-02-20 10:11:12] server_args=ServerArgs(model_path='/m')
[2026-02-20 10:11:20 TP0] Load weight begin.
[2026-02-20 10:11:20 TP1] Load weight begin.
[2026-02-20 10:11:29 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/scheduler.py", line 7, in run
ValueError: TP0 is only mentioned here
{"log": "[2026-02-20 10:11:30 TP0] from docker\\n", "stream": "stderr"}
(Worker_TP1 pid=4713) ERROR 02-20 10:11:31 [multiproc_executor.py:597] of another engine
[rank3]: Traceback (most recent call last):
"""


def test_lines_are_of_the_rank_that_wrote_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.log"
    path.write_text(MIXED)
    log, engines = LogFile(str(path)), base().engines
    assert log.ranks(1, Ranks(engines)) == ({"": 1, "TP0": 2, "TP1": 4, "Worker_TP1": 1, "rank3": 1}, None)
    assert log.find("", 1, 9, ["TP1"], Ranks(engines)) == ([3, 4, 5, 6], None, 9)
    assert log.find("", 5, 1, ["TP1"], Ranks(engines)) == ([5], 6, 9), "whose line 5 is, line 4 tells"
    assert log.find("tp0", 1, 9, ["TP0", "TP1"], Ranks(engines))[0] == [2, 6, 7]
    assert log.find("", 1, 9, [""], Ranks(engines))[0] == [1]
    monkeypatch.setattr(logfile, "LONG", 0.0)  # each answer stops after its first line, and the next goes on there
    first, found = 1, []
    while first is not None:
        more, first, _ = log.find("", first, 9, ["TP1", ""], Ranks(engines))
        found += more
    assert found == [1, 3, 4, 5, 6]


def test_an_answer_by_rank_goes_on_however_long_the_lines_before_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.log"
    path.write_text("[2026-02-20 10:11:12 TP0] step\n" * 300)
    seconds = 0.0

    class Slow(Ranks):
        def of(self, raw: bytes) -> str:
            nonlocal seconds
            seconds += 0.001
            return super().of(raw)

    monkeypatch.setattr(logfile.time, "monotonic", lambda: seconds)
    monkeypatch.setattr(logfile, "LONG", 0.05)
    log, answers = LogFile(str(path)), 0
    first: int | None = 1
    while first is not None:
        _, first = log.ranks(first, Slow(base().engines))
        answers += 1
    assert answers < 10
