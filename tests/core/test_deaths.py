"""What programs that are not Python print when they die in, the same as exceptions out. The bytes are those of real programs."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import deaths
from app.core.deaths import FORMS, LAST_ERROR, MARKS
from app.core.diagnosis import Diagnosis, Status
from app.core.lines import Line
from app.core.literals import required_literals
from app.core.records import Records
from app.core.tracebacks import Raised, exceptions
from app.explain import explain_bytes
from app.knowledge import load


def read(text: str) -> list[Raised]:
    records = Records()
    done = [record for n, line in enumerate(text.split("\n"), 1) for record in records.add(Line(n, line.rstrip()))]
    return [raised for record in [*done, *records.flush()] for raised in exceptions(record)]


def explained(text: str) -> Status:
    return explain_bytes([text.encode()], load())


DEATHS = {
    "Rust 1.95": (
        """
thread 'main' (10297) panicked at a.rs:7:92:
called `Result::unwrap()` on an `Err` value: Os { code: 2, kind: NotFound, message: "No such file or directory" }
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/panicking.rs:689:5
   3: a::main
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
""",
        [("Rust panic", 'called `Result::unwrap()` on an `Err` value: Os { code: 2, kind: NotFound, message: "No such file or directory" }', 2)],
    ),
    "a panic with a message of several lines": (
        """
thread 'main' (10335) panicked at a.rs:19:15:
assertion `left == right` failed: sizes differ
  left: 3
 right: 2
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
""",
        [("Rust panic", "assertion `left == right` failed: sizes differ\nleft: 3\nright: 2", 2)],
    ),
    "Rust before 1.73": (
        """
thread 'main' panicked at 'called `Result::unwrap()` on an `Err` value: Os { code: 98, kind: AddrInUse, message: "Address already in use" }', router/src/main.rs:371:10
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
""",
        [("Rust panic", 'called `Result::unwrap()` on an `Err` value: Os { code: 98, kind: AddrInUse, message: "Address already in use" }', 2)],
    ),
    "Rust before 1.73, several lines": (
        """
thread 'main' panicked at 'assertion failed: `(left == right)`
  left: `1`,
 right: `2`', src/main.rs:2:5
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
""",
        [("Rust panic", "assertion failed: `(left == right)`\nleft: `1`,\n right: `2`", 2)],
    ),
    "color-eyre, after what a spinner drew": (
        """
\u2819     0.081 s   Starting...The application panicked (crashed).
Message:  Failed to start llama-server <embedding> with command Command { std: "/opt/tabby/llama-server" "-m" "a.gguf" }: Permission denied (os error 13)
Location: crates/llama-cpp-server/src/supervisor.rs:84

Backtrace omitted. Run with RUST_BACKTRACE=1 environment variable to display it.
""",
        [
            (
                "Rust panic",
                'Message:  Failed to start llama-server <embedding> with command Command { std: "/opt/tabby/llama-server" "-m" "a.gguf" }:'
                " Permission denied (os error 13)\nLocation: crates/llama-cpp-server/src/supervisor.rs:84",
                2,
            )
        ],
    ),
    "a panic that cannot unwind": (
        """
thread 'main' (13593) panicked at a.rs:2:79:
second
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

thread 'main' (13593) panicked at /rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/core/src/panicking.rs:233:5:
panic in a destructor during cleanup
thread caused non-unwinding panic. aborting.
bash: line 1: 13593 Aborted                 ./a double
""",
        [("Rust panic", "second", 2), ("Rust panic", "panic in a destructor during cleanup\nthread caused non-unwinding panic. aborting.", 6)],
    ),
    "a Rust stack that overflows": (
        """
thread 'main' (13587) has overflowed its stack
fatal runtime error: stack overflow, aborting
""",
        [("stack overflow", "has overflowed its stack\nfatal runtime error: stack overflow, aborting", 2)],
    ),
    "Rust without memory": (
        "memory allocation of 35184372088832 bytes failed\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
        [("memory allocation", "memory allocation of 35184372088832 bytes failed", 1)],
    ),
    "what a Rust main returned": (
        """
Error: Could not create backend

Caused by:
    Could not start backend: Could not start a suitable backend
""",
        [("Error", "Could not create backend\nCaused by:\nCould not start backend: Could not start a suitable backend", 2)],
    ),
    "clap": (
        """
error: invalid value 'True' for '--disable-custom-kernels'
  [possible values: true, false]

  tip: a similar value exists: 'true'

For more information, try '--help'.
""",
        [("error", "invalid value 'True' for '--disable-custom-kernels'\n[possible values: true, false]", 2)],
    ),
    "terminate": (
        """
terminate called after throwing an instance of 'std::out_of_range'
  what():  vector::_M_range_check: __n (which is 3) >= this->size() (which is 0)
Aborted (core dumped)
""",
        [("std::out_of_range", "vector::_M_range_check: __n (which is 3) >= this->size() (which is 0)", 2)],
    ),
    "terminate, several lines": (
        """
terminate called after throwing an instance of 'std::runtime_error'
  what():  two
lines here
bash: line 1: 10351 Aborted                 ./b nx
""",
        [("std::runtime_error", "two\nlines here", 2)],
    ),
    "terminate, a type without words": (
        "terminate called after throwing an instance of 'char const*'\nAborted (core dumped)",
        [("char const*", "", 1)],
    ),
    "terminate, no exception": ("terminate called without an active exception", [("terminate called", "without an active exception", 1)]),
    "terminate on macOS": (
        "libc++abi: terminating due to uncaught exception of type vk::IncompatibleDriverError: vk::createInstance: ErrorIncompatibleDriver",
        [("vk::IncompatibleDriverError", "vk::createInstance: ErrorIncompatibleDriver", 1)],
    ),
    "assert": (
        """b: b.cpp:17: int main(int, char**): Assertion `c>5 && "too few"' failed.\nAborted (core dumped)""",
        [("Assertion failed", """b: b.cpp:17: int main(int, char**): Assertion `c>5 && "too few"' failed.""", 1)],
    ),
    "an assertion of libstdc++": (
        "/usr/include/c++/12/bits/stl_vector.h:1123: std::vector<_Tp, _Alloc>::reference std::vector<_Tp, _Alloc>::operator[](size_type) "
        "[with _Tp = int]: Assertion '__n < this->size()' failed.",
        [("Assertion failed", "/usr/include/c++/12/bits/stl_vector.h:1123: std::vector<_Tp, _Alloc>::reference std::vector<_Tp, _Alloc>::"
          "operator[](size_type) [with _Tp = int]: Assertion '__n < this->size()' failed.", 1)],
    ),
    "the C library's heap": ("double free or corruption (!prev)\nAborted (core dumped)", [("Aborted", "double free or corruption (!prev)", 1)]),
    "the C library's stack": (
        "*** stack smashing detected ***: terminated", [("Aborted", "*** stack smashing detected ***: terminated", 1)],
    ),
    "ggml": (
        ".../ik_llama.cpp/ggml/src/ggml.c:6490: GGML_ASSERT(ggml_can_repeat(b, a)) failed\n[New LWP 12]",
        [("GGML_ASSERT", "ggml_can_repeat(b, a)", 1)],
    ),
    "ggml on Windows": (
        "D:\\a\\llama-cpp-python\\llama-cpp-python\\vendor\\llama.cpp\\ggml\\src\\ggml.c:6399: GGML_ASSERT(c->ne[0] >= n_dims / 2) failed",
        [("GGML_ASSERT", "c->ne[0] >= n_dims / 2", 1)],
    ),
    "ggml in 2023": (
        "GGML_ASSERT: /opt/projects/llama.cpp/ggml.c:4796: view_src == NULL || data_size + view_offs <= ggml_nbytes(view_src)\nAborted",
        [("GGML_ASSERT", "view_src == NULL || data_size + view_offs <= ggml_nbytes(view_src)", 1)],
    ),
    "ggml's CUDA error": (
        """
CUDA error: an illegal memory access was encountered
  current device: 0, in function ggml_backend_cuda_synchronize at /app/ggml/src/ggml-cuda/ggml-cuda.cu:2700
  cudaStreamSynchronize(cuda_ctx->stream())
/app/ggml/src/ggml-cuda/ggml-cuda.cu:88: CUDA error
""",
        [("CUDA error", "an illegal memory access was encountered\ncurrent device: 0, in function ggml_backend_cuda_synchronize at "
          "/app/ggml/src/ggml-cuda/ggml-cuda.cu:2700\ncudaStreamSynchronize(cuda_ctx->stream())\n/app/ggml/src/ggml-cuda/ggml-cuda.cu:88: CUDA error", 2)],
    ),
    "ggml_abort": (
        "/app/ggml/src/ggml-backend.cpp:750: pre-allocated tensor (cache_k_l0) in a buffer (Vulkan0) that cannot run the operation (NONE)",
        [("ggml_abort", "pre-allocated tensor (cache_k_l0) in a buffer (Vulkan0) that cannot run the operation (NONE)", 1)],
    ),
    "glog": (
        """
F1006 09:50:58.620735 13380 common.cc:34] Check failed: initialized_ Must initialize data before reading it
*** Check failure stack trace: ***
    @     0x7f673b3e94dd  google::LogMessage::Fail()
""",
        [("Check failed", "initialized_ Must initialize data before reading it", 2)],
    ),
    "glog's handler": (
        "*** SIGSEGV (@0x0) received by PID 1234 (TID 0x7f21c0ff9700) from PID 0; stack trace: ***",
        [("SIGSEGV", "(@0x0) received by PID 1234 (TID 0x7f21c0ff9700) from PID 0", 1)],
    ),
    "Triton": (
        "I0617 07:26:21.752598 2404 server.cc:592] \nerror: creating server: Internal - failed to load all models",
        [("error: creating server", "Internal - failed to load all models", 2)],
    ),
    "Go": (
        """
panic: runtime error: invalid memory address or nil pointer dereference
[signal SIGSEGV: segmentation violation code=0x2 addr=0x38 pc=0x102ce6110]

goroutine 13 [running]:
github.com/mudler/LocalAI/core/config.(*ApplicationConfig).ToConfigLoaderOptions(0x1400025cb40)
	/home/runner/work/LocalAI/LocalAI/core/config/application_config.go:402 +0xe0
""",
        [("Go panic", "runtime error: invalid memory address or nil pointer dereference\n"
          "[signal SIGSEGV: segmentation violation code=0x2 addr=0x38 pc=0x102ce6110]", 2)],
    ),
    "Go's run time": (
        """
fatal error: unexpected signal during runtime execution
[signal SIGSEGV: segmentation violation code=0x2 addr=0x0 pc=0x102840374]

runtime stack:
runtime.throw({0x103a6b8b1?, 0x0?})
""",
        [("Go fatal error", "unexpected signal during runtime execution\n[signal SIGSEGV: segmentation violation code=0x2 addr=0x0 pc=0x102840374]", 2)],
    ),
    "Go through cgo": (
        "SIGSEGV: segmentation violation\nPC=0x7f3f64c8b2a5 m=5 sigcode=1 addr=0x0\nsignal arrived during cgo execution",
        [("SIGSEGV", "segmentation violation", 1)],
    ),
    "Java": (
        """
Exception in thread "main" java.lang.RuntimeException: Failed to load model
	at A.main(A.java:4)
Caused by: java.io.FileNotFoundException: /opt/ml/nomodel (No such file or directory)
	at java.base/java.io.FileInputStream.open0(Native Method)
	... 1 more
""",
        [("java.lang.RuntimeException", "Failed to load model", 2),
         ("java.io.FileNotFoundException", "/opt/ml/nomodel (No such file or directory)", 4)],
    ),
    "the JVM": (
        """
#
# A fatal error has been detected by the Java Runtime Environment:
#
#  SIGSEGV (0xb) at pc=0x00007fa5fe8d2f94, pid=13474, tid=13476
#
# JRE version: OpenJDK Runtime Environment (17.0.15+6) (build 17.0.15+6-Debian-1deb12u1)
# Problematic frame:
# V  [libjvm.so+0xed2f94]  Unsafe_PutLong+0x124
#
# CreateCoredumpOnCrash turned off, no core file dumped
""",
        [("JVM fatal error", "SIGSEGV (0xb) at pc=0x00007fa5fe8d2f94, pid=13474, tid=13476\nJRE version: OpenJDK Runtime Environment "
          "(17.0.15+6) (build 17.0.15+6-Debian-1deb12u1)\nProblematic frame:\nV  [libjvm.so+0xed2f94]  Unsafe_PutLong+0x124", 3)],
    ),
    "the JVM without its class": (
        "Error: Could not find or load main class nope.B\nCaused by: java.lang.ClassNotFoundException: nope.B",
        [("Error", "Could not find or load main class nope.B\nCaused by: java.lang.ClassNotFoundException: nope.B", 1)],
    ),
    ".NET": (
        "Unhandled exception. System.DllNotFoundException: Unable to load shared library 'libcuda'\n   at Program.<Main>$(String[] args)",
        [("System.DllNotFoundException", "Unable to load shared library 'libcuda'", 1)],
    ),
    "Node.js": (
        """
/opt/app/e.js:1
throw new Error("model not found")
^

Error: model not found
    at Object.<anonymous> (/opt/app/e.js:1:7)
    at node:internal/main/run_main_module:28:49

Node.js v20.20.2
""",
        [("Error", "model not found", 6)],
    ),
    "the loader": (
        "./llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file or directory",
        [("error while loading shared libraries", "libcudart.so.12: cannot open shared object file: No such file or directory", 1)],
    ),
    "a shell's exec": ("s.sh: line 6: exec: nosuchprog2: not found", [("exec", "nosuchprog2: not found", 1)]),
    "dash's exec": ("sh: 1: exec: nosuch: not found", [("exec", "nosuch: not found", 1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", DEATHS)
def test_a_death_is_an_exception(name: str) -> None:
    text, wanted = DEATHS[name]
    assert [(item.type, item.message, item.number) for item in read(text)] == wanted


@pytest.mark.parametrize("name", DEATHS)
def test_a_server_that_dies_so_has_crashed(name: str) -> None:
    before = "".join(f"loading tensor {n} of 4000\n" for n in range(4000))
    status = explained(before + DEATHS[name][0])
    assert status.state == "crashed"
    if status.cause is None:
        assert status.exception is not None
        assert status.exception.type in [kind for kind, _, _ in DEATHS[name][1]]
        assert status.exception.number > 4000


@pytest.mark.parametrize(
    "text",
    [
        "2024/01/01 12:00:00 http: panic serving 127.0.0.1:1: runtime error: index out of range",
        "[Recovery] 2024/01/01 - 12:00:00 panic recovered:\nruntime error: invalid memory address",
        "cc1plus: fatal error: cuda_runtime.h: No such file or directory\ncompilation terminated.",
        "fatal error: too many errors emitted, stopping now",
        "/app/ggml/src/ggml-cuda/mmq.cu:12:3: warning: unused variable",
        "ggml-cuda.cu:12: warning: unused variable",
        "CUDA error: out of memory",
        "time=2025-12-03T21:10:11.448-08:00 level=ERROR source=sched.go:487 msg=\"error loading llama server\" error=\"llama runner process has terminated: GGML_ASSERT(x) failed\"",
        "I0617 07:26:21.752598 2404 server.cc:592] Signal (15) received.",
        "Signal (15) received.",
        "*** SIGTERM (@0x3e8) received by PID 1 (TID 0x7f) from PID 1000; stack trace: ***",
        "set panic=abort in the profile; a panic: see below",
        "Aborted request cmpl-1234.",
        "Segmentation fault handling is enabled",
        "Exception in thread Thread-1 (serve):",
        "usage: Assertion checks are on",
    ],
)  # fmt: skip
def test_nobody_dies_here(text: str) -> None:
    assert [item for item in read(text) if not item.last_only] == []


READY = "0.01.000.000 I srv          main: server is listening on http://127.0.0.1:8080\n"


@pytest.mark.parametrize(
    "name", [name for name in DEATHS if "Aborted" not in DEATHS[name][0] and "terminate" not in name]
)
def test_a_server_that_is_ready_is_not_taken_for_dead(name: str) -> None:
    """A panic that is caught, or of a side-car: as with a traceback, what ends a server that is up must say so."""
    log = "llama_model_loader: loaded meta data with 36 key-value pairs and 399 tensors from model.gguf\n" + READY
    status = explained(log + DEATHS[name][0] + "\nsrv  update_slots: all slots are idle\n")
    assert status.state == "ready" or status.verdicts


TEI = """\
2024-06-25T19:23:59.677537Z  INFO text_embeddings_core::tokenization: core/src/tokenization.rs:23: Starting 8 tokenization workers
2024-06-25T19:24:01.677537Z  INFO text_embeddings_router::http::server: router/src/http/server.rs:1555: Ready
thread 'tokio-runtime-worker' panicked at /usr/src/router/src/server.rs:418:60:
called `Option::unwrap()` on a `None` value
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
"""
SUCCESS = '2024-06-25T19:24:09.677537Z  INFO rerank{total_time="8.7ms"}: text_embeddings_router::http::server: router/src/http/server.rs:459: Success\n'


def test_a_worker_that_panics_need_not_end_the_server() -> None:
    assert explained(TEI).state == "crashed"
    assert explained(TEI + SUCCESS).state == "starting"
    assert explained(TEI.replace("tokio-runtime-worker", "main") + SUCCESS).state == "crashed"


def test_while_a_log_grows_only_its_end_tells_what_became_of_a_worker() -> None:
    diagnosis = Diagnosis(load())
    diagnosis.feed(TEI.encode())
    assert diagnosis.status().state == "starting"
    diagnosis.close()
    assert diagnosis.status().state == "crashed"


def test_an_empty_line_of_which_only_the_time_is_left_parts_nothing() -> None:
    text = """2024-03-20T03:25:55.700406269Z Error: Could not download model artifacts
2024-03-20T03:25:55.700473367Z
2024-03-20T03:25:55.700493788Z Caused by:
2024-03-20T03:25:55.700500052Z     0: request error: error trying to connect: tcp connect error: Connection refused (os error 111)
2024-03-20T03:25:55.700514310Z     1: Connection refused (os error 111)"""
    status = explained(text)
    assert status.state == "crashed"
    assert status.exception is not None
    assert status.exception.message.startswith("Could not download model artifacts\nCaused by:\n0: request")


def test_an_error_that_something_follows_ended_nothing() -> None:
    last = "loading\nError: listen tcp 127.0.0.1:11434: no such device"
    assert explained(last).state == "crashed"
    assert explained(last + "\nloading without it\n").state == "starting"
    diagnosis = Diagnosis(load())
    diagnosis.feed((last + "\n").encode())
    assert diagnosis.status().state == "starting"


def test_an_error_in_the_message_of_an_exception_belongs_to_it() -> None:
    text = 'Traceback (most recent call last):\n  File "/x/a.py", line 1, in f\nRuntimeError: the child says\nError: no model\nand ends'
    assert [(item.type, item.message) for item in read(text)] == [
        ("RuntimeError", "the child says\nError: no model\nand ends")
    ]
    assert [(item.type, item.message, item.last_only) for item in read("Error: no model\nexit status 1")] == [
        ("Error", "no model", True)
    ]


def test_a_thread_of_java_need_not_end_the_server() -> None:
    log = (
        'Exception in thread "worker-1" java.lang.IllegalArgumentException: Invalid model URL: x\n\tat A.f(A.java:1)\n'
    )
    assert explained(log).state == "crashed"
    assert (
        explained(log + "2024-06-04T12:00:00,000 [INFO ] main ai.djl.serving.ModelServer - Initialize\n").state
        == "starting"
    )


def test_python_says_more_of_a_signal_than_its_handler() -> None:
    (raised,) = read("""
[node:00042:0:42] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x17)
==== backtrace (tid:     42) ====
Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "/x/a.py", line 1 in f
""")
    assert (raised.type, len(raised.frames)) == ("Fatal Python error", 1)


def test_a_traceback_before_a_death_stays_whole() -> None:
    assert [(item.type, len(item.frames)) for item in read("""
Traceback (most recent call last):
  File "/x/site-packages/torch/cuda/__init__.py", line 314, in _lazy_init
RuntimeError: CUDA error: no kernel image is available
terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: no kernel image is available
""")] == [("RuntimeError", 1), ("c10::Error", 0)]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("/root/.cargo/registry/src/index.crates.io-6f17d22bba15001f/tokenizers-0.20.3/src/models/bpe/model.rs", "tokenizers"),
        ("/usr/local/cargo/git/checkouts/candle-c1b2d3/2857263/candle-core/src/tensor.rs", "candle-core"),
        ("backends/candle/src/lib.rs", "candle"),
        ("/usr/src/router/src/http/server.rs", "router"),
        ("/app/ggml/src/ggml-cuda/ggml-cuda.cu", "ggml"),
        ("src/main.rs", ""),
    ],
)  # fmt: skip
def test_who_panicked(path: str, package: str) -> None:
    (raised,) = read(f"thread 'main' panicked at {path}:1:2:\nboom")
    assert raised.raised_in == package


def test_every_form_has_a_mark_that_a_scanner_finds() -> None:
    for form in FORMS:
        assert form.marks
        for literal in required_literals(form.begin) if form is not LAST_ERROR else ():
            assert any(mark in literal or literal in mark for mark in form.marks) or form.type == "dyld", (
                form.type,
                literal,
            )
    assert all(len(mark) >= 5 for mark in MARKS)


WORDS = (
    st.text(string.ascii_letters + string.digits + " .,:;'`\"(){}[]=-_/", min_size=1, max_size=60)
    .map(str.strip)
    .filter(bool)
)
PLAIN = WORDS.filter(
    lambda text: (
        text[0].isalpha()
        and text[0].islower()
        and not text.startswith(("note", "stack", "thread", "time", "terminat", "panic"))
    )
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(PLAIN, min_size=1, max_size=5),
    st.sampled_from(["main", "tokio-runtime-worker", "<unnamed>"]),
    st.integers(0, 3),
)
def test_a_panic_gives_the_message_that_was_written(message: list[str], thread: str, blanks: int) -> None:
    text = "\n" * blanks + f"thread '{thread}' panicked at src/lib.rs:12:5:\n" + "\n".join(message)
    (raised, *_) = read(text + "\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace")
    assert raised.number == blanks + 1
    assert raised.passing == (thread != "main")
    assert raised.message == "\n".join(message)


PIECES = st.sampled_from([piece for text, _ in DEATHS.values() for piece in text.split("\n")] + [
    "Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: x", "2024-06-25 19:23:59 INFO x"])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=30))
def test_any_order_of_lines_is_read_once_and_in_order(lines: list[str]) -> None:
    numbers = [item.number for item in read("\n".join(lines))]
    assert numbers == sorted(numbers)
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("line", ["[TensorRT-LLM][ERROR] Assertion failed: x", "thread 'a' panicked at src/x.rs:1:2:"])
def test_the_lines_behind_a_death_are_looked_through_once(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Line] = []
    monkeypatch.setattr(deaths, "goes_on", lambda given: asked.append(given))
    assert len(read(f"{line}\n" * 400)) > 100
    assert 0 < len(asked) <= 401
