"""Chunking never changes what is handed on; nothing that holds a literal is missed; memory stays bounded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.scan import BLOCK, WRAP, Literals, Scan, Segment, chunks

LITERALS = Literals([b"Traceback", b"Error: ", b"needle"])


def run(data: bytes, sizes: list[int], more_lines: int = 2) -> list[Segment]:
    """What a reader gets that wants `more_lines` further segments after every hit."""
    wanted = 0
    out: list[Segment] = []
    scan = Scan(LITERALS, lambda: wanted > 0)

    def take(segments: object) -> None:
        nonlocal wanted
        for segment in segments:  # type: ignore[attr-defined]
            out.append(segment)
            wanted = more_lines if segment.hit else max(0, wanted - 1)

    for piece in chunks(data, sizes):
        take(scan.feed(piece))
    take(scan.close())
    return out


pieces = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b"plain text", b"Traceback", b"Error: x", b"need", b"le", b"\x00\xff", b"x" * 300, b""]
)
logs = st.lists(pieces, max_size=60).map(b"".join)


@settings(max_examples=400, deadline=None)
@given(logs, st.lists(st.integers(1, 40), max_size=80))
def test_any_chunking_gives_the_same_segments(data: bytes, sizes: list[int]) -> None:
    assert run(data, sizes) == run(data, [])


@settings(max_examples=300, deadline=None)
@given(logs)
def test_every_segment_with_a_literal_is_given_once_with_its_line(data: bytes) -> None:
    given_segments = run(data, [], more_lines=0)
    expected: list[tuple[int, bytes]] = []
    for number, physical in enumerate(data.split(b"\n"), 1):
        expected += [(number, part) for part in physical.split(b"\r") if any(lit in part for lit in LITERALS.literals)]
    assert [(s.number, s.raw) for s in given_segments if s.hit] == expected
    shown = [(s.number, s.raw) for s in given_segments]
    assert sorted(shown, key=lambda pair: pair[0]) == shown


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3 * WRAP), st.integers(0, 3 * WRAP), st.lists(st.integers(1, WRAP * 2), max_size=6))
def test_overlong_lines_are_cut_at_the_same_places(before: int, after: int, sizes: list[int]) -> None:
    data = b"a" * before + b"needle" + b"b" * after + b"\nneedle\n"
    assert run(data, sizes) == run(data, [])
    assert max(len(s.raw) for s in run(data, [])) <= WRAP


def test_context_comes_before_a_hit_and_a_gap_is_told() -> None:
    data = b"".join(b"line %d\n" % n for n in range(1, 101)) + b"needle\n"
    out = run(data, [], more_lines=0)
    assert out[-1] == Segment(b"needle", 101, True, False)
    assert out[0].gap
    assert len(out) == 25
    assert out[0].number == 77


def test_only_carriage_returns_and_no_newline_keep_memory_small() -> None:
    for filler in (b"\r" * 100_000, b"z" * 100_000):
        scan = Scan(LITERALS, lambda: False)
        for _ in range(50):
            assert list(scan.feed(filler)) == []
            assert len(scan._buffer) <= 2 * WRAP + 8192
        assert scan.offset == 5_000_000


def test_a_stored_matcher_finds_the_same() -> None:
    again = Literals(LITERALS.literals, LITERALS.dump())
    assert again.find(b"a needle in Traceback") == LITERALS.find(b"a needle in Traceback") != []


@settings(max_examples=60, deadline=None)
@given(st.integers(BLOCK, 3 * BLOCK), st.lists(st.tuples(st.integers(0, 4 * BLOCK), pieces), max_size=8))
def test_a_block_is_passed_over_only_where_it_holds_nothing(size: int, placed: list[tuple[int, bytes]]) -> None:
    data = b"." * size
    for at, piece in placed:
        data = data[:at] + piece + data[at:]
    expected = sorted(
        (at + len(literal), index)
        for index, literal in enumerate(LITERALS.literals)
        for at in range(len(data))
        if data.startswith(literal, at)
    )
    assert LITERALS.find(data) == expected


def test_several_threads_search_with_the_same_literals() -> None:
    data = b"nothing\n" * 200_000 + b"needle\n"
    for found in (LITERALS, Literals(LITERALS.literals, LITERALS.dump())):
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(found.find, [data] * 32)) == [[(len(data) - 1, 2)]] * 32
