"""Whatever carries a log, the lines that were written come out."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.text import Prefix, Reader, unfold

SGLANG = re.compile(
    r"^\[(?P<time>\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})(?P<ranks>(?: (?:DP|PP|TP|EP)\d+)*)\] (?P<msg>.*)$"
)
GLUED = re.compile(r"(?<=.)(?=\[\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(?: (?:DP|PP|TP|EP)\d+)*\] )")


def texts(raw: bytes) -> list[str]:
    return [line.text for line in Reader([Prefix(SGLANG)], GLUED).read(raw, 1)]


FRAME = '  File "/opt/env/lib/python3.11/site-packages/flashinfer/jit/cpp_ext.py", line 69, in get_cuda_version'


@pytest.mark.parametrize(
    "raw",
    [
        FRAME,
        "sglang-1  | " + FRAME,
        "2026-02-20T10:11:12.123456789Z " + FRAME,
        "2026-02-20T10:11:12.123456789Z stderr F " + FRAME,
        "Feb 20 10:11:12 gpu01 sglang[4711]: " + FRAME,
        "[pod/glm5-0/server] " + FRAME,
        "[rank3]: " + FRAME,
        "[default3]:" + FRAME,
        json.dumps({"log": FRAME + "\n", "stream": "stderr", "time": "2026-02-20T10:11:12.1Z"}),
        "\x1b[35m" + FRAME.replace("69", "\x1b[36m69\x1b[0m") + "\x1b[0m",
        FRAME + "\r",
        "\x00" + FRAME,
        "sglang-1  | 2026-02-20T10:11:12.123456789Z " + FRAME,
        "[2026-02-20 10:11:12 TP0] " + FRAME,
        "2024-02-08 09:56:23 | ERROR | stderr | " + FRAME,
        "2026-01-02T03:04:05+0100 gpu01 vllm[1234]: " + FRAME,
        "2025-01-24 15:09:44 " + FRAME,
        "> " + FRAME,
        "ERROR:    " + FRAME.strip(),
        "[16:10:33] stdout/INFO  " + FRAME,
    ],
)
def test_a_frame_comes_out_of_every_wrapper(raw: str) -> None:
    assert [text.strip() for text in texts(raw.encode())] == [FRAME.strip()]


@pytest.mark.parametrize("carrier", ["3: ", "llm-7f9c4d-abcde vllm ", "gpu-17 | stderr: ", "<worker 12> "])
def test_a_carrier_of_unknown_form_is_learned_from_the_first_frame(carrier: str) -> None:
    reader = Reader([])
    out = []
    for text in (FRAME, "    txt = run()", FRAME, "ValueError: no"):
        out += [line.text for line in reader.read((carrier + text).encode(), 1)]
    assert out[1:] == ["    txt = run()", FRAME, "ValueError: no"]


def test_a_long_line_that_docker_cut_is_joined() -> None:
    reader = Reader([])
    pieces = [{"log": "a" * 16384}, {"log": "b" * 16384}, {"log": "ValueError: no\n"}]
    out = [line.text for piece in pieces for line in reader.read(json.dumps(piece).encode(), 1)]
    assert out == ["a" * 16384 + "b" * 16384 + "ValueError: no"]


def test_the_rank_of_the_prefix_wins_over_the_carriers() -> None:
    (line,) = Reader([Prefix(SGLANG)]).read(b"[rank5]: [2026-02-20 10:11:12 TP1 EP1] Load weight begin.", 7)
    assert (line.rank, line.text, line.number, line.time) == ("TP1 EP1", "Load weight begin.", 7, "2026-02-20 10:11:12")
    (line,) = Reader([Prefix(SGLANG)]).read(b"[rank5]: boom", 7)
    assert (line.rank, line.prefixed) == ("rank5", False)


def test_a_record_glued_to_a_bar_comes_apart() -> None:
    raw = b"Capturing batches (bs=1 avail_mem=9.80 GB):   0%|          | 0/5 [00:00<?, ?it/s][2026-06-08 07:21:05 TP1] Using MoE"
    assert texts(raw) == [
        "Capturing batches (bs=1 avail_mem=9.80 GB):   0%|          | 0/5 [00:00<?, ?it/s]",
        "Using MoE",
    ]


def test_a_time_behind_a_short_bar_is_not_taken_for_the_lines_own() -> None:
    assert texts(b"12/12 [2026-06-08 07:21:05 TP1] Using MoE") == ["12/12", "Using MoE"]


def test_a_bar_is_not_taken_for_docker_compose() -> None:
    bar = "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:02<00:06,  2.1s/it]"
    assert texts(bar.encode()) == [bar]


def test_partial_lines_of_cri_are_joined() -> None:
    reader = Reader([])
    out = []
    for raw in (
        b"2026-02-20T10:11:12.1Z stderr P Value",
        b"2026-02-20T10:11:12.1Z stderr P Error: ",
        b"2026-02-20T10:11:12.1Z stderr F no",
    ):
        out += [line.text for line in reader.read(raw, 1)]
    assert out == ["ValueError: no"]


def test_a_json_record_gives_its_message_and_its_traceback_line_by_line() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no'
    raw = json.dumps({"level": "ERROR", "msg": "Scheduler hit an exception", "exc": trace}).encode()
    assert texts(raw) == ["Scheduler hit an exception", *trace.split("\n")]


def test_escaped_line_breaks_are_read() -> None:
    raw = rb"error: Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    g()\nValueError: no"
    assert texts(raw)[1:] == ['  File "a.py", line 1, in f', "    g()", "ValueError: no"]


def test_lost_line_breaks_come_back() -> None:
    lost = (
        'Traceback (most recent call last): File "/a/flashinfer/fp4_quantization.py", line 123, in gen_fp4 "-DENABLE_FP4" if f("12.8") '
        'else "", File "/a/flashinfer/jit/cpp_ext.py", line 87, in is_cuda return get() >= Version(v) '
        "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped Explanation: Dynamo does not know"
    )
    pieces = list(unfold(lost))
    assert pieces[0] == "Traceback (most recent call last):"
    assert pieces[1].startswith('  File "/a/flashinfer/fp4_quantization.py"')
    assert pieces[2].startswith('  File "/a/flashinfer/jit/cpp_ext.py"')
    assert pieces[3] == "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped"
    assert pieces[4].startswith("Explanation: ")


def test_one_frame_on_a_line_is_left_alone() -> None:
    code = '  File "a.py", line 1, in f'
    assert texts(code.encode()) == [code]


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_give_lines_without_control_characters(raw: bytes) -> None:
    for line in Reader([Prefix(SGLANG)], GLUED).read(raw.replace(b"\n", b"").replace(b"\r", b""), 3):
        assert line.number == 3
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", line.text)
