"""What was done to a log is undone, and a log to which nothing was done passes as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import copies
from app.core.copies import restore
from app.core.scan import chunks

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
INDENTED = (
    "cri-o-189", "flash-attention-1635", "kubernetes-19825", "kubernetes-test-infra-15102", "llama.cpp-22817",
    "minference-12", "rocm-docker-50", "torchtitan-853", "vllm-23372",
)  # fmt: skip
COPIED = {
    **dict.fromkeys(INDENTED, "what stands before every line taken off"),
    "seed-oss-10": "colours that were spelt out taken off",
    "intel-arc-pro-b70-inference-cookbook-4": "lines wrapped at 119 signs joined",
    "lib-wrapped-api-fi0.6.4-torch2.9.1-none.indented": "what stands before every line taken off",
    "sglang-5095": "newest first: read from the bottom up",
    "sglang-7847": "lines wrapped at 371 signs joined",
}
"""The logs that were in fact copied so."""


def restored(log: str | bytes) -> tuple[list[str], tuple[str, ...]]:
    data = log.encode("utf-8", "surrogateescape") if isinstance(log, str) else log
    found = restore([data])
    return b"".join(found.chunks).decode("utf-8", "surrogateescape").removesuffix("\n").split("\n"), found.notes


def untouched(log: str) -> bool:
    return restored(log) == (log.removesuffix("\n").split("\n"), ())


def test_real_logs_pass_untouched_but_for_those_that_were_copied() -> None:
    done = {}
    for path in sorted(FIXTURES.glob("*/server.log")):
        found = restore([data := path.read_bytes()])
        if found.notes:
            (done[path.parent.name],) = found.notes
        else:
            assert b"".join(found.chunks) == data
            assert not found.moved
    assert done == COPIED, (
        "read the log: if it was in fact copied so, name it in COPIED; else it is a near miss to mend"
    )


def test_an_ordinary_log_is_never_held() -> None:
    given_out = 0

    def stream() -> Iterator[bytes]:
        nonlocal given_out
        for number in range(40):
            given_out += 1
            yield f"[2026-02-20 10:11:{number:02d}] Decode batch. #running-req: {number}\n".encode() * 2000

    out = iter(restore(stream()).chunks)
    next(out)
    assert given_out <= 4
    assert sum(1 for _ in out) == 40 - given_out or given_out == 40


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=20))
def test_any_bytes_in_any_chunks_give_the_same(data: bytes, sizes: list[int]) -> None:
    whole, parts = restore([data]), restore(chunks(data, sizes))
    assert b"".join(whole.chunks) == b"".join(parts.chunks)
    assert whole.notes == parts.notes
    assert all(whole.number(line) == parts.number(line) >= 1 for line in range(1, 20))


WORDS = st.text("abcdefghijk ()=.,/_", min_size=1, max_size=40).map(lambda text: "x" + text.rstrip() + "x")
ENTRIES = st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=5, max_size=30)


def stamped(number: int, seconds: int = 0) -> str:
    return f"2026-02-20T10:{number // 60 % 60:02d}:{number % 60:02d}.{seconds:06d}Z"


@given(ENTRIES)
def test_entries_on_their_heads_come_back_with_their_own_numbers(entries: list[list[str]]) -> None:
    rows = [[f"{stamped(n)} {first}", *("    " + other for other in more)] for n, (first, *more) in enumerate(entries)]
    log = "\n".join("\n".join(entry) for entry in reversed(rows)) + "\n"
    found = restore([log.encode()])
    got = b"".join(found.chunks).decode().removesuffix("\n").split("\n")
    assert got == [line for entry in rows for line in entry]
    source = log.split("\n")
    assert [source[found.number(line) - 1] for line in range(1, len(got) + 1)] == got
    assert found.lines == len(got)


@given(st.integers(20, 60), st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), max_size=3))
def test_a_few_times_out_of_order_turn_nothing(length: int, swaps: list[tuple[int, int]]) -> None:
    rows = [f"{stamped(n)} record {n}" for n in range(length)]
    for one, other in swaps:
        if abs(one - other) < 4 and max(one, other) < length:
            rows[one], rows[other] = rows[other], rows[one]
    assert untouched("\n".join(rows) + "\n")


@given(st.lists(st.integers(0, 7), min_size=10, max_size=60))
def test_ranks_whose_times_jitter_turn_nothing(lags: list[int]) -> None:
    rows = [f"[2026-02-20 10:11:{10 + max(0, n - lag) % 50:02d} TP{n % 8}] step" for n, lag in enumerate(lags[:40])]
    assert untouched("\n".join(rows) + "\n")


TRACE = ["Traceback (most recent call last):", '  File "/a/b.py", line 1, in f', "    g()", '  File "/a/c.py", line 2, in g',
         "    raise ValueError(1)", "ValueError: 1"]  # fmt: skip


def test_ranks_that_fail_at_once_turn_nothing() -> None:
    head, frame, code = TRACE[0], TRACE[1], TRACE[2]
    assert untouched("\n".join([head, frame, head, code, frame, head, code, frame, code, *TRACE[3:] * 3]) + "\n")


def test_a_traceback_on_its_head_is_turned_without_any_times() -> None:
    assert restored("\n".join(reversed([*TRACE, "done"])))[0] == [*TRACE, "done"]


@pytest.mark.parametrize(
    "rows",
    [
        TRACE,
        [*TRACE, "", "During handling of the above exception, another exception occurred:", "", *TRACE],
        [
            "  + Exception Group Traceback (most recent call last):",
            '  |   File "/a/b.py", line 1, in f',
            "  |     g()",
            "  | ExceptionGroup: two (2 sub-exceptions)",
            "  +-+---------------- 1 ----------------",
            "    | ValueError: 1",
        ],
        [*TRACE[3:], "During handling of the above exception, another exception occurred:", TRACE[0]],  # cut off below
        ["[2026-02-20 10:11:12] a", "[2026-02-20 10:11:11] b", "[2026-02-20 10:11:10] c", *TRACE],  # three, and upright
        [
            "2026-02-20 10:11:12 a",
            "2026-02-20 09:11:12 after the clock was set",
            "2026-02-20 09:11:13 b",
            "2026-02-20 09:11:14 c",
        ],
        [f"commit of 2026-02-{20 - n:02d} 10:11:12" if n < 6 else f"{stamped(n)} x" for n in range(40)],
    ],
)
def test_what_stands_upright_stays(rows: list[str]) -> None:
    assert untouched("\n".join(rows) + "\n")


def test_a_large_log_is_read_as_it_stands_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "WHOLE", 2000)
    log = "\n".join(f"{stamped(59 - n)} record {n}" for n in range(59)) + "\n"
    assert len(log) > 2000
    found = restore([log[:1000].encode(), log[1000:].encode()])
    assert b"".join(found.chunks).decode() == log
    assert found.notes == ("not done, for the log is larger than 0 MiB: newest first: read from the bottom up",)
    assert not found.moved


# Width

LINES = st.lists(
    st.text("abcdefghijklmnopqrstuvwxyz0123456789_./=,()' ", min_size=0, max_size=700).map(lambda text: text.strip()), min_size=8, max_size=25
)  # fmt: skip


@given(LINES, st.sampled_from([80, 100, 120, 200]))
def test_wrapped_lines_are_joined(texts: list[str], width: int) -> None:
    rows = [f"[2026-02-20 10:11:12 TP{n % 8}] {text}" for n, text in enumerate(texts)]
    wrapped = [row[at : at + width] for row in rows for at in range(0, len(row), width)]
    got, notes = restored("\n".join(wrapped) + "\n")
    if notes:
        assert got == rows
    else:  # too few to be sure, or what is left of the lines is as long as the terminal is wide
        assert got == wrapped
        assert (
            sum(len(row) == width for row in wrapped) < 3 or sum(width - 4 <= len(row) < width for row in wrapped) > 0
        )


TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.10              Driver Version: 570.86.10      CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA B200                    On  |   00000000:1B:00.0 Off |                    0 |
| N/A   30C    P0            141W / 1000W |       0MiB / 183359MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""
MODULE = '  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line {}, in {}\n    return self._call_impl(*args)\n'


@pytest.mark.parametrize(
    "log",
    [
        "".join(
            f"[shim pid={15097 + n}] flashinfer.jit.cpp_ext.get_cuda_version -> constant 13.{n % 10}\n{word} it went on\n"
            for n, word in enumerate(("then", "after that", "so", "and", "but", "now"))
        ),
        "".join(
            f"'(MaxRetryError('Max retries exceeded with url: /config.json'), '(Request ID: {word}-40f1)')' thrown while requesting"
            f" HEAD http://127.0.0.1:55295/config.json\nRetrying in {n}s [Retry {n}/5].\n"
            for n, word in enumerate(("aefd", "bcda", "feed", "cafe", "deaf", "fade"))
        ),
        TABLE,
        "".join(
            f"[2026-02-20 10:11:{n:02d} TP0] {'word ' * 40}"[:100] + "\n" for n in range(30)
        ),  # cut off, not wrapped
        "Traceback (most recent call last):\n" + MODULE.format(1775, "_call_impl") * 6 + "ValueError: no\n",
        "".join(
            f"gpu01:774:854 [{n}] NCCL INFO Channel {n:02d}/24 : 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n"
            for n in range(24)
        ),
        "".join(
            f"Loading shards: {n:3d}% Completed | {n}/9 [00:02<00:06, 2.1s/it] and some more of it here\n"
            for n in range(9)
        ),
        ("=" * 80 + "\n") * 4 + "a banner\n" + ("=" * 80 + "\n") * 4,
        "".join(
            f"llama_model_loader: - kv {n:3d}: tokenizer.ggml.tokens arr[str,151936] = [!, 2, 3, 4, 5, 6]\n"
            for n in range(30)
        ),
    ],
    ids=[
        "one line again and again",
        "with other names",
        "nvidia-smi",
        "cut -c1-100",
        "the same frame",
        "NCCL",
        "bars",
        "banner",
        "llama.cpp",
    ],
)
def test_lines_of_one_length_are_not_wrapped_lines(log: str) -> None:
    assert untouched(log)


# Signs


@pytest.mark.parametrize(
    "log",
    [
        "retry in [30m]\nand in [0m]\nthen [1m]\nand [0m] and [5m]\nlast [0m]\n",
        "usage: serve [-m] [0-9m]\n" * 6,
        '<function f at 0x7f> said &quot;no&quot; &lt;1&gt; &amp; more\n  0%| | 0/5 [00:00<?]\n' * 3,
        "GET /?a=1&amp;b=2\n",
        '{"msg": "a &quot;b&quot; &lt;c&gt;"}\n' * 6,
        "\\u001b in the text\n",
        '[{"role": "user", "content": "hello"}] is what was asked for\n' + "[2026-02-20 10:11:12] x\n" * 9,
        '{"a": 1\n' + "[2026-02-20 10:11:12] no JSON follows\n" * 9,
        "time,message\nthis is a log with a strange first line\n" + "".join(f"{stamped(n)} x\n" for n in range(9)),
        "1 | one\n2 | two\n4 | four\n5 | x\n7 | y\n9 | z\n",
        "  File \"a.py\", line 1, in f\n    x\n" * 4,
    ],
    ids=["minutes", "usage", "entities beside raw signs", "one entity", "entities in JSON", "u001b", "a list in a log", "no JSON",
         "no CSV", "numbers that do not count up", "frames alone"],
)  # fmt: skip
def test_signs_that_belong_to_the_log_stay(log: str) -> None:
    assert untouched(log)


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("utf-16", b""), ("utf-16-be", b"\xfe\xff"), ("utf-16-le", b""), ("utf-16-be", b""), ("utf-32", b"")],
)
@settings(deadline=None)
@given(text=st.text("abc é│日\n", min_size=0, max_size=30), size=st.integers(1, 7))
def test_other_encodings_in_any_chunks(encoding: str, mark: bytes, text: str, size: int) -> None:
    log = "a log that is long enough to be told by its noughts alone\n" + text
    data = mark + log.encode(encoding)
    out = b"".join(restore(data[at : at + size] for at in range(0, len(data), size)).chunks)
    assert out.decode() == log


def test_a_list_that_breaks_off_gives_what_is_there() -> None:
    rows = [{"timestamp": stamped(n), "textPayload": f"line {n}"} for n in range(50)]
    whole = json.dumps({"entries": rows}, indent=1)
    got, notes = restored(whole[: len(whole) - 400])
    assert notes == ("taken out of a JSON export",)
    assert [text for text in got if "line" in text][:40] == [f"{stamped(n)[:-1]}Z line {n}" for n in range(40)]


def test_several_lines_in_one_entry_of_a_table() -> None:
    log = '"Date","Host","Message"\n' + "".join(f'"{stamped(n)}","gpu","a ""b""\n  c {n}"\n' for n in range(8))
    found = restore([log.encode()])
    got = b"".join(found.chunks).decode().split("\n")
    assert got[:4] == [f'{stamped(0)} a "b"', "  c 0", f'{stamped(1)} a "b"', "  c 1"]
    assert [found.number(line) for line in (1, 2, 3, 4)] == [2, 3, 4, 5]


def test_times_that_are_told_or_run_out_do_not_turn_a_log_round() -> None:
    told = "".join(f"step {n}: cert expires 2025-12-{20 - n} 10:00:00\n" for n in range(12))
    left = "".join(f"[00:{19 - n:02d}:00] eta left for shard {n}\n" for n in range(12))
    for text in (told, left):
        assert restore([text.encode()]).notes == ()
