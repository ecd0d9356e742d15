"""Any chunking of the same bytes gives the same status; nothing crashes or grows; starts are told apart."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.diagnosis import Diagnosis, Status
from app.core.scan import chunks
from app.explain import explain_bytes
from app.knowledge import Base, load
from app.report import to_json

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
STORY = (FIXTURES / "founding-story" / "server.log").read_bytes()
LOGS = [
    STORY,
    (FIXTURES / "founding-story-one-line" / "server.log").read_bytes(),
    (FIXTURES / "lib-wrapped-api-fi0.6.4-torch2.9.1-none.4ranks-interleaved" / "server.log").read_bytes(),
    (FIXTURES / "lib-wrapped-api-fi0.6.4-torch2.9.1-none.tqdm-cr" / "server.log").read_bytes(),
    (FIXTURES / "real-port-in-use" / "server.log").read_bytes(),
    (FIXTURES / "vllm-28110" / "server.log").read_bytes(),
]


@pytest.fixture(scope="module")
def base() -> Base:
    return load()


def told(status: Status, base: Base) -> object:
    return to_json(status, "x", base)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LOGS), st.lists(st.integers(1, 3000), max_size=40))
def test_any_chunking_gives_the_same_answer(log: bytes, sizes: list[int]) -> None:
    base = load()
    assert told(explain_bytes(chunks(log, sizes), base), base) == told(explain_bytes([log], base), base)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=2000) | st.lists(st.sampled_from([b"Traceback (most recent call last):", b"\n", b"\r", b"  File \"a.py\", line 1, in f",
       b"ValueError: x", b"\x1b[31m", b"\xff\x00", b"{", b'{"log": "x"}', b"[2026-02-20 10:11:12 TP0] ", b" "]), max_size=60).map(b"".join))  # fmt: skip
def test_random_bytes_never_crash(data: bytes) -> None:
    status = explain_bytes([data], load())
    assert status.state in ("starting", "crashed", "stopped", "ready")


def test_early_news_come_while_the_traceback_is_written_and_are_only_refined(base: Base) -> None:
    diagnosis = Diagnosis(base)
    first_seen = None
    standing: set[str] = set()
    for end in range(0, len(STORY), 512):
        news = diagnosis.feed(STORY[end : end + 512]) + diagnosis.early()
        told_now = [item for item in news if item.kind == "verdict" and item.data["role"] == "cause"]
        for item in told_now:
            assert standing <= set(item.data["over"]), "a verdict was replaced without saying so"
            standing = {item.data["rule"]}
            if item.data["rule"] == "dynamo/flashinfer-fp4-jit-under-dynamo":
                first_seen = first_seen or (end, item.data["rule"])
    diagnosis.close()
    assert first_seen is not None
    assert first_seen[1] == "dynamo/flashinfer-fp4-jit-under-dynamo"
    assert first_seen[0] < len(STORY) * 0.8
    status = diagnosis.status()
    assert status.cause is not None
    assert status.cause.rule.id == first_seen[1]


def test_starts_in_one_file_are_told_apart(base: Base) -> None:
    healthy = (FIXTURES / "real-slim-healthy-0.5.23" / "server.log").read_bytes()
    status = explain_bytes([STORY, healthy], base)
    assert (status.state, status.cause) in (("ready", None), ("stopped", None))
    assert [(item.state, item.rule) for item in status.earlier] == [
        ("crashed", "dynamo/flashinfer-fp4-jit-under-dynamo")
    ]
    again = explain_bytes([healthy, STORY], base)
    assert again.cause is not None
    assert again.cause.rule.id == "dynamo/flashinfer-fp4-jit-under-dynamo"
    assert again.earlier[0].rule is None


def test_a_separator_at_the_end_begins_nothing(base: Base) -> None:
    status = explain_bytes([STORY, b"--- restart ---\n"], base)
    assert status.cause is not None
    assert status.earlier == ()


@pytest.mark.parametrize(
    "piece", [b"\r" * 65536, b"z" * 65536, b"Traceback (most recent call last):\n" * 2000, b"ValueError: x " * 5000]
)
def test_memory_stays_bounded(base: Base, piece: bytes) -> None:
    diagnosis = Diagnosis(base)
    for _ in range(6):
        diagnosis.feed(piece)
    tracemalloc.start()
    for _ in range(10):
        diagnosis.feed(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 1024 * 1024


def test_ready_outlives_what_went_wrong_before(base: Base) -> None:
    log = b"""[2026-06-01 06:41:20 TP0] Load weight begin. avail mem=78.50 GB
Traceback (most recent call last):
  File "/x/site-packages/torch/_dynamo/eval_frame.py", line 841, in compile_wrapper
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 94.97 GiB
[2026-06-01 06:43:10] The server is fired up and ready to roll!
"""
    status = explain_bytes([log], base)
    assert (status.state, status.cause) == ("ready", None)


READY = """\
[2026-06-01 06:42:10] server_args=ServerArgs(model_path='m', port=30000)
[2026-06-01 06:43:10] The server is fired up and ready to roll!
"""
REQUEST = """\
[2026-06-01 06:50:00] INFO:     10.0.0.9:50156 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
[2026-06-01 06:50:00] ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/opt/v/lib/python3.12/site-packages/fastapi/routing.py", line 212, in run_endpoint_function
    return await dependant.call(**values)
  File "/opt/v/lib/python3.12/site-packages/sglang/srt/utils/common.py", line 800, in load_video
    from decord import VideoReader
ModuleNotFoundError: No module named 'decord'
"""
SCHEDULER = """\
[2026-06-01 06:50:00] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/v/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 2500, in run_scheduler_process
    scheduler.event_loop_normal()
  File "/opt/v/lib/python3.12/site-packages/sglang/srt/layers/foo.py", line 8, in forward
    import decord
ModuleNotFoundError: No module named 'decord'
"""


def explain_log(log: str, base: Base) -> Status:
    return explain_bytes([log.encode()], base)


def test_what_one_request_of_a_ready_server_met_is_no_cause(base: Base) -> None:
    status = explain_log(READY + REQUEST, base)
    assert (status.state, status.cause) == ("ready", None)
    assert any("a request was answered" in near.failed for near in status.why_not())


def test_a_ready_server_that_works_on_outlived_what_came_before(base: Base) -> None:
    printed = SCHEDULER.replace("Scheduler hit an exception", "Prefetching went wrong")
    assert explain_log(READY + printed, base).cause is not None, "nothing tells that it went on"
    status = explain_log(READY + printed + "[2026-06-01 06:50:01] Decode batch, #running-req: 1, #token: 12\n", base)
    assert (status.state, status.cause) == ("ready", None)


def test_a_ready_server_whose_engine_ends_has_a_cause_though_other_ranks_work_on(base: Base) -> None:
    status = explain_log(
        READY + SCHEDULER + "[2026-06-01 06:50:01 DP1] Decode batch, #running-req: 1, #token: 12\n", base
    )
    assert (status.state, status.cause is not None) == ("crashed", True)


def test_what_was_logged_as_a_warning_is_no_cause_by_itself(base: Base) -> None:
    line = "02-20 10:10:15 [x.py:1] NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
    assert explain_log(f"WARNING {line}", base).cause is None
    assert explain_log(f"ERROR {line}", base).cause is not None


REQUESTED = (
    "ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n"
    '  File "/env/uvicorn/protocols/http/httptools_impl.py", line 409, in run_asgi\n    result = await app(\nValueError: bad\n'
)


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("/src/ggml.cu:10: GGML_ASSERT(x) failed\n", "GGML_ASSERT"),
        ("Traceback (most recent call last):\n  File \"/env/a.py\", line 1, in f\nRuntimeError: boom\n", "RuntimeError"),
    ],
)  # fmt: skip
def test_a_death_behind_a_failed_request_is_not_the_requests(end: str, kind: str, base: Base) -> None:
    status = explain_log(REQUESTED + "a line\n" * 30 + end, base)
    assert status.state == "crashed"
    assert status.exception is not None
    assert status.exception.type == kind
    if kind == "GGML_ASSERT":
        assert explain_log(REQUESTED + end, base).state == "crashed"


def test_what_is_handled_is_the_traceback_right_behind_those_words(base: Base) -> None:
    raised = 'Traceback (most recent call last):\n  File "/env/a.py", line 1, in f\nRuntimeError: boom\n'
    assert explain_log("x.py: using eager fallback\n" + raised, base).exception is None
    far = explain_log("x.py: using eager fallback\nsome line\n" + raised, base)
    assert (far.state, far.exception is not None) == ("crashed", True)
    log = "[2026-02-23 10:00:08 TP0] Gloo sweep failed, continuing startup\n"
    log += f"[2026-02-23 10:00:09 TP0] Scheduler hit an exception: {raised}"
    assert explain_log(log, base).state == "crashed"


def test_many_warned_tracebacks_do_not_hide_the_last_one(base: Base) -> None:
    warned = "".join(
        f"WARNING 12-01 10:00:00 [x.py:{n}] Traceback (most recent call last):\n"
        f'  File "/a/m{n}.py", line {n}, in f\nValueError: no {n}\n'
        for n in range(250)
    )
    end = 'ERROR 12-01 10:00:01 [core.py:1] Traceback (most recent call last):\n  File "/a/q.py", line 1, in f\nRuntimeError: end\n'
    status = explain_log(warned + end, base)
    assert status.state == "crashed"
    assert status.exception is not None
    assert status.exception.message == "end"
