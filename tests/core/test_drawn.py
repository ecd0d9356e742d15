"""Tracebacks as rich, IPython, loguru and pytest print them say the same as Python's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.lines import Line
from app.core.records import Records
from app.core.text import Reader
from app.core.tracebacks import Raised, exceptions

DRAWN = Path(__file__).parent / "drawn"
"""One program that fails, run under each tool in each release that the file's name tells; python.txt is Python's own."""
PACKAGE = "site-packages/flashinfer/"


def lines(log: str | bytes) -> list[Line]:
    reader = Reader([])
    raw = log.encode() if isinstance(log, str) else log
    return [line for number, text in enumerate(raw.split(b"\n"), 1) for line in reader.read(text, number)]


def raised(log: str | bytes) -> list[Raised]:
    records = Records()
    whole = [record for line in lines(log) for record in records.add(line)] + list(records.flush())
    return [item for record in whole for item in exceptions(record)]


def story(log: str | bytes) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Types, first lines of the messages, and the frames inside the package."""
    out = []
    for item in raised(log):
        frames = [(f.path.partition(PACKAGE)[2], f.function) for f in item.frames if PACKAGE in f.path]
        out.append((item.type, item.message.partition("\n")[0], frames))
    return out


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in DRAWN.glob("*.txt") if path.stem not in ("python", "pytest-9.2-long"))
)
def test_types_messages_and_frames_are_those_of_pythons_own(name: str) -> None:
    assert story((DRAWN / f"{name}.txt").read_bytes()) == story((DRAWN / "python.txt").read_bytes())


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in DRAWN.glob("*.txt") if not path.stem.startswith("pytest"))
)
def test_a_drawn_traceback_is_complete_and_its_frames_stand_on_their_lines(name: str) -> None:
    source = (DRAWN / f"{name}.txt").read_text().split("\n")
    for item in raised((DRAWN / f"{name}.txt").read_bytes()):
        assert item.complete
        assert item.type in source[item.number - 1]
        for frame in item.frames:
            beginning = frame.path[:30] if "<" not in frame.path else frame.path[1:5]
            assert beginning.lower() in source[frame.number - 1].lower()


def test_pytests_long_form_gives_types_and_messages() -> None:
    got = story((DRAWN / "pytest-9.2-long.txt").read_bytes())
    assert [item[:2] for item in got] == [item[:2] for item in story((DRAWN / "python.txt").read_bytes())]


@pytest.mark.parametrize(
    "prefix", ["", "sglang-1  | ", "(EngineCore pid=17) ", "2026-02-20T10:11:12.123456Z stderr F "]
)
@pytest.mark.parametrize("name", ["rich-15.0", "ipython-9.18", "loguru-0.7.3"])
def test_carriers_before_a_drawn_traceback(name: str, prefix: str) -> None:
    text = (DRAWN / f"{name}.txt").read_text().rstrip("\n")
    reader = [line.text for line in lines("\n".join(prefix + line for line in text.split("\n")))]
    if not prefix.startswith("("):  # an engine's prefix is not known to this reader
        assert reader == [line.text for line in lines(text)]


IPYTHON = """\
Unsupported                               Traceback (most recent call last)
<ipython-input-3-9f0a1b> in <module>
----> 1 g(x)

~/env/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py in _fn(*args, **kwargs)
    327                 try:
--> 328                     return fn(*args, **kwargs)

~/env/lib/python3.11/site-packages/torch/_dynamo/exc.py in unimplemented(msg)
    195 def unimplemented(msg: str):
--> 196     raise Unsupported(msg)

Unsupported: call_function args: UserDefinedObjectVariable

from user code:
   File "/opt/env/lib/python3.11/site-packages/flashinfer/fp4_quantization.py", line 151, in get_fp4_quantization_module
    module = backend_modules[backend]().build_and_load()
"""


def test_an_old_notebook_and_a_type_without_its_module() -> None:
    (item,) = raised(IPYTHON)
    assert item.type == "torch._dynamo.exc.Unsupported"
    assert [frame.function for frame in item.frames] == [
        "<module>",
        "_fn",
        "unimplemented",
        "get_fp4_quantization_module",
    ]
    assert item.frames[-1].user


@pytest.mark.parametrize(
    ("text", "path", "function"),
    [
        (
            "/opt/env/lib/python3.11/site-packages/vllm/utils.py:12: in f",
            "/opt/env/lib/python3.11/site-packages/vllm/utils.py",
            "f",
        ),
        ("vllm/v1/engine/core.py:498 in run_engine_core", "vllm/v1/engine/core.py", "run_engine_core"),
        ("File /opt/x/serve.py:12, in Server.start(self, args)", "/opt/x/serve.py", "start"),
        ("  File /opt/x/serve.py, line 12, in start", "/opt/x/serve.py", "start"),
        ("File /opt/x/serve.py, line 12, in <module>", "/opt/x/serve.py", "<module>"),
    ],
)
def test_short_forms_of_a_frame(text: str, path: str, function: str) -> None:
    (item,) = raised(f"{text}\nRuntimeError: no")
    assert [(frame.path, frame.function) for frame in item.frames] == [(path, function)]
    assert (item.type, item.message) == ("RuntimeError", "no")


@pytest.mark.parametrize(
    "text",
    [
        "INFO loading /opt/x/serve.py:12 in progress",
        "watcher.py:12: in progress",
        "[core.py:12] in engine",
        "see /opt/x/serve.py:12, in which it is explained",
        "E   the letter alone",
        "E    llama_model_load: error loading model",
        "Capturing batches (bs=1):  50%|█████     | 1/2 [00:01<00:01]",
        "│ a table │ with │ bars │",
        "╭──── SGLang ────╮",
        "how to read a Traceback (most recent call last)",
        "File /opt/x/serve.py was changed, line 12 in start",
        "Cell In[3], line 1",
        "----> 1 g(x)",
        'File "a.py", line 1, in f.py:3',
    ],
)
def test_what_only_looks_like_it_stays_as_it_is(text: str) -> None:
    assert [line.text for line in lines(text)] == [text]
    assert lines(text + "\nnext line\n\nand another")[1].text == "next line"


def test_a_message_wrapped_at_the_box_is_one_and_a_message_of_two_lines_is_not() -> None:
    box = "╭── Traceback (most recent call last) ──╮\n│ /a/b.py:1 in f                        │\n╰───────────────────────────────────────╯\n"
    (item,) = raised(box + "RuntimeError: the first words reach the\nend of the box\nand a line of its own\n")
    assert item.message == "the first words reach the end of the box\nand a line of its own"


def test_a_box_that_is_cut_off_ends_with_the_next_record() -> None:
    reader = Reader([])
    for text in ("╭─ Traceback (most recent call last) ─╮", "│ /a/b.py:1 in f                      │"):
        list(reader.read(text.encode(), 1))
    assert [line.text for line in reader.read(b"Traceback (most recent call last):", 3)] == [
        "Traceback (most recent call last):"
    ]
    assert [line.text for line in reader.read(b'  File "a.py", line 1, in f', 4)] == ['  File "a.py", line 1, in f']


PIECES = st.sampled_from(
    ["╭─ Traceback (most recent call last) ─╮", "│ /a/b.py:1 in f │", "│ ❱ 1 │ x │", "│  │", "╰──╯", "E   ValueError: x", "E  y", "",
     "KeyError     Traceback (most recent call last)", "File /a.py:1, in f(x)", "---> 1 x", "KeyError: 'a'", "Cell In[1], line 1",
     "Traceback (most recent call last):", '  File "a.py", line 1, in f', "    x", "ValueError: no", "a/b.py:1: in f", "│", "❱"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=30).filter(lambda text: "\n" not in text), max_size=40))
def test_any_mixture_is_read_and_no_exception_line_is_lost(rows: list[str]) -> None:
    got = lines("\n".join(rows))
    assert all(1 <= line.number <= max(1, len(rows)) for line in got)
    for number, text in enumerate(rows, 1):
        if text == "ValueError: no":
            assert any(line.number == number and line.text.endswith("ValueError: no") for line in got)


@pytest.mark.parametrize(
    "text",
    [
        "│ " + " " * 60_000 + "x",
        "│ ❱ " + " " * 60_000 + "x",
        "a/" * 30_000 + ".py",
        "│ " + ":1 in a" * 9_000 + "│",
        "E   " + "Aa." * 20_000,
        "File " + "a.py" * 15_000,
        "KeyError" + " " * 60_000 + "(most recent call last)",
        " " * 60_000 + "12x",
    ],
)
def test_a_line_that_is_long_and_strange_is_read(text: str) -> None:
    box = "╭─ Traceback (most recent call last) ─╮"
    for before in (box, "KeyError     Traceback (most recent call last)", ""):
        assert len(lines("\n".join((before, text, text)))) <= 3
