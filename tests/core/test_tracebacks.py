"""Real tracebacks in, the exceptions that were raised out."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.lines import Line
from app.core.records import Record, Records
from app.core.tracebacks import Raised, exceptions

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"


def read(text: str) -> list[Raised]:
    records = Records()
    done: list[Record] = []
    for number, line in enumerate(text.strip("\n").split("\n"), 1):
        done += records.add(Line(number, line.rstrip()))
    done += records.flush()
    return [raised for record in done for raised in exceptions(record)]


def shapes(text: str) -> list[tuple[str, str, int]]:
    return [(item.type, item.message.partition("\n")[0], len(item.frames)) for item in read(text)]


def test_a_chain_gives_the_cause_first() -> None:
    assert shapes("""
Traceback (most recent call last):
  File "/x/site-packages/flashinfer/jit/cpp_ext.py", line 320, in run_ninja
    subprocess.run(
    ~~~~~~~~~~~~~~^
subprocess.CalledProcessError: Command '['ninja']' returned non-zero exit status 1.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/site-packages/flashinfer/jit/core.py", line 290, in build_and_load
    run_ninja(path)
  [Previous line repeated 3 more times]
RuntimeError: Ninja build failed. Ninja output:
/usr/bin/ld: cannot find -lcuda: No such file or directory
""") == [
        ("subprocess.CalledProcessError", "Command '['ninja']' returned non-zero exit status 1.", 1),
        ("RuntimeError", "Ninja build failed. Ninja output:", 1),
    ]


def test_a_message_of_several_lines_is_kept_whole() -> None:
    (raised,) = read("""
Traceback (most recent call last):
  File "/x/site-packages/flashinfer/jit/core.py", line 290, in build_and_load
RuntimeError: Ninja build failed. Ninja output:
/usr/bin/ld: cannot find -lcuda: No such file or directory
collect2: error: ld returned 1 exit status
""")
    assert "cannot find -lcuda" in raised.message
    assert raised.raised_in == "flashinfer"
    assert raised.complete


def test_user_code_of_dynamo_belongs_to_the_exception() -> None:
    (raised,) = read("""
Traceback (most recent call last):
  File "/x/site-packages/torch/_dynamo/eval_frame.py", line 841, in compile_wrapper
    raise e.with_traceback(None) from e.__cause__
torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped
  Explanation: Dynamo does not know how to trace the builtin `_thread.allocate_lock.`

  Developer debug context: module: _thread, qualname: allocate_lock

from user code:
   File "/x/site-packages/sglang/srt/models/llama.py", line 385, in forward
    hidden_states = layer(x)
  File "/x/site-packages/flashinfer/jit/cpp_ext.py", line 69, in get_cuda_version
""")
    assert [frame.user for frame in raised.frames] == [False, True, True]
    assert raised.raised_in == "torch"
    assert "Developer debug context" in raised.message


def test_frames_without_a_header_belong_to_the_exception_behind_them() -> None:
    (raised,) = read("""
  File "/x/site-packages/sglang/srt/layers/quantization/fp8.py", line 220, in create_weights
ValueError: Weight output_partition_size = 320 is not divisible by weight quantization block_n = 128.
""")
    assert (raised.type, len(raised.frames), raised.complete) == ("ValueError", 1, False)


@pytest.mark.parametrize("before", ["", "  ", "2025-05-30 06:29:14.119 1 uvicorn.error ERROR:    "])
def test_a_traceback_may_be_indented_behind_its_header(before: str) -> None:
    assert shapes(f"""
{before}Traceback (most recent call last):
    File "/x/a.py", line 1, in f
      g()
    File "/x/b.py", line 2, in g
      raise RuntimeError(
  RuntimeError: it did not answer
  in time
  During handling of the above exception, another exception occurred:
  Traceback (most recent call last):
    File "/x/c.py", line 3, in h
  asyncio.exceptions.CancelledError
""") == [("RuntimeError", "it did not answer", 2), ("asyncio.exceptions.CancelledError", "", 1)]


def test_the_name_of_the_next_process_is_no_message() -> None:
    assert shapes("""
Traceback (most recent call last):
  File "/x/a.py", line 1, in f
AssertionError
Process SpawnProcess-1:
Traceback (most recent call last):
  File "/x/b.py", line 1, in g
KeyError: 'x'
""") == [("AssertionError", "", 1), ("KeyError", "'x'", 1)]


def test_a_traceback_logged_as_a_warning_ended_nothing() -> None:
    lines = [
        Line(1, "WON'T CONVERT f", "", "", "torch/_dynamo/convert_frame.py:2415", True, "W"),
        Line(2, "Traceback (most recent call last):", "", "", "torch/_dynamo/convert_frame.py:2415", True, "W"),
        Line(3, "RuntimeError: backend broke", "", "", "torch/_dynamo/convert_frame.py:2415", True, "W"),
        Line(4, "Traceback (most recent call last):"),
        Line(5, '  File "/x/b.py", line 1, in g'),
        Line(6, "KeyError: 'x'"),
    ]
    records = Records()
    done = [record for line in lines for record in records.add(line)] + list(records.flush())
    raised = [item for record in done for item in exceptions(record)]
    assert [(item.type, item.handled) for item in raised] == [("RuntimeError", True), ("KeyError", False)]


def test_what_python_goes_on_after_is_handled() -> None:
    raised = read("""
Exception ignored in: <function Pool.__del__ at 0x7f4648ac5bc0>
Traceback (most recent call last):
  File "/opt/app/x.py", line 3, in __del__
AttributeError: 'Pool' object has no attribute '_state'
exiting normally
Exception ignored in atexit callback: <function bad at 0x7f4648f604a0>
Traceback (most recent call last):
  File "/opt/app/x.py", line 6, in bad
OSError: atexit failed
""")
    assert [(item.type, item.handled) for item in raised] == [("AttributeError", True), ("OSError", True)]


def test_a_chain_that_python_goes_on_after_is_handled_as_a_whole() -> None:
    raised = read("""
Exception in thread Thread-1 (_report_usage_worker):
Traceback (most recent call last):
  File "/opt/app/x.py", line 3, in connect
OSError: [Errno 101] Network is unreachable

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/app/x.py", line 6, in send
requests.exceptions.ConnectionError: Max retries exceeded
Traceback (most recent call last):
  File "/opt/app/y.py", line 9, in main
KeyError: 'x'
""")
    assert [(item.type, item.handled) for item in raised] == [
        ("OSError", True),
        ("requests.exceptions.ConnectionError", True),
        ("KeyError", False),
    ]


def test_what_is_raised_while_a_request_is_answered_is_known_as_that() -> None:
    raised = read("""
ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/opt/app/x.py", line 3, in app
KeyError: 'model'
Traceback (most recent call last):
  File "/opt/app/y.py", line 9, in main
RuntimeError: no GPU
""")
    assert [(item.type, item.request) for item in raised] == [("KeyError", True), ("RuntimeError", False)]


def test_what_an_engine_says_that_it_goes_on_after_is_handled() -> None:
    raised = read("""
retry() failed once (0th try, maximum 30 retries). Will delay 1.20s and retry. Error: [Errno 24] Too many open files
Traceback (most recent call last):
  File "/opt/app/x.py", line 3, in retry
OSError: [Errno 24] Too many open files
Traceback (most recent call last):
  File "/opt/app/y.py", line 9, in main
RuntimeError: no GPU
""")
    assert [(item.type, item.handled) for item in raised] == [("OSError", True), ("RuntimeError", False)]


def test_the_address_of_an_actor_is_no_part_of_the_message() -> None:
    assert shapes("""
Traceback (most recent call last):
  File "/env/site-packages/xinference/model/llm/transformers/core.py", line 10, in load
    import auto_gptq
ModuleNotFoundError: [address=0.0.0.0:41241, pid=112] No module named 'auto_gptq'
""") == [("ModuleNotFoundError", "No module named 'auto_gptq'", 1)]


def test_an_exception_group_gives_its_members() -> None:
    assert [
        kind
        for kind, _, _ in shapes("""
  + Exception Group Traceback (most recent call last):
  |   File "/opt/app/x.py", line 18, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/opt/app/x.py", line 6, in weight
    |     raise OSError(28, "No space left on device")
    | OSError: [Errno 28] No space left on device: '/cache/shard-0.bin'
    +------------------------------------
""")
    ] == ["ExceptionGroup", "OSError"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  The NVIDIA driver is too old", "c10::Error"),
        ("Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):\n  File \"/x/a.py\", line 1 in f", "Fatal Python error"),
        ("Exception: Capture cuda graph failed: no kernel image", "Exception"),
        ("Scheduler hit an exception: torch._dynamo.exc.Unsupported: Logger not supported", "torch._dynamo.exc.Unsupported"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)  # fmt: skip
def test_other_shapes(text: str, kind: str) -> None:
    assert [item.type for item in read(text)] == [kind]


@pytest.mark.parametrize(
    "text",
    [
        'INFO:     127.0.0.1:54321 - "GET /health HTTP/1.1" 200 OK',
        "/x/functions.py:2431: UserWarning: Dynamo does not know how to trace the builtin\n  warnings.warn(msg)",
        "error: see the Error handling chapter",
        "",
    ],
)
def test_nothing_is_raised_here(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize(
    "shape",
    ["4ranks_interleaved", "ansi", "compose", "crlf", "docker_json", "escaped_one_line", "indented", "journald", "k8s_cri",
     "k8s_partial", "repeated_restart", "sglang_perline", "sglang_record", "torchrun_default", "torchrun_rank", "tqdm_cr",
     "vllm_perline", "truncated_tail"],
)  # fmt: skip
def test_every_delivery_of_the_founding_crash_gives_its_exception(shape: str) -> None:
    from app.explain import explain_bytes
    from app.knowledge import load

    folder = FIXTURES / f"lib-wrapped-api-fi0.6.4-torch2.9.1-none.{shape.replace('_', '-')}"
    status = explain_bytes([(folder / "server.log").read_bytes()], load())
    assert status.exception is not None
    assert status.exception.type == "torch._dynamo.exc.Unsupported"
    assert status.cause is not None
    assert status.cause.rule.key == "flashinfer-fp4-jit-under-dynamo"
