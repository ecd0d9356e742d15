"""Real starts, line by line: the right engine, releases, phases in order, counts, ranks, and the ready line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.engines import Engine, engine_from
from app.core.facts import Event, Facts
from app.core.invalid import Problem
from app.core.lines import Line
from app.core.patterns import compiled
from app.core.progress import bar_seconds, seconds_of
from app.core.releases import common_releases
from app.core.text import Prefix, Reader
from tests.core.test_engines import ENGINES

FIXTURES = Path(__file__).parents[2] / "fixtures"
ALL = list(ENGINES.values())


def lines_of(raw: bytes) -> Iterator[Line]:
    """Every line and every redraw of a bar, as the front door hands them over."""
    reader = Reader(
        [Prefix(compiled(pattern)) for engine in ALL for pattern in engine.prefixes],
        compiled("|".join(engine.glued for engine in ALL if engine.glued)),
    )
    for number, physical in enumerate(raw.split(b"\n"), 1):
        for segment in physical.split(b"\r"):
            yield from reader.read(segment, number)


def read(text: str | bytes, **given: object) -> tuple[Facts, list[Event], list[int]]:
    """The facts of the last start, its events, and the lines where further starts began."""
    facts, events, starts = Facts(ALL, **given), [], []  # type: ignore[arg-type]
    for line in lines_of(text.encode() if isinstance(text, str) else text):
        if facts.starts_anew(line):
            starts.append(line.number)
            facts, events = Facts(ALL, **given), []  # type: ignore[arg-type]
        events += facts.observe(line)
    return facts, events, starts


def log(case: str) -> bytes:
    return (FIXTURES / case / "server.log").read_bytes()


def began(events: list[Event]) -> list[str]:
    return [event.data["phase"] for event in events if event.kind == "phase" and event.data["state"] == "running"]


START = ["args", "spawn", "dist_init", "weights", "kv_cache"]
END = ["engine_ready", "http", "warmup"]


@pytest.mark.parametrize(
    ("case", "phases", "ready", "releases"),
    [
        ("real-healthy-0.5.23", [*START, *END], 61, ">=0.5.23"),
        ("real-slim-tp2-bound", [*START, *END], 104, ">=0.5.23"),
        ("real-ext-torch-compile-ok", [*START, "capture_decode", *END], 92, ">=0.5.23"),
        ("real-v059-piecewise-compile-capture-ok", [*START, "capture_prefill", *END], 69, ">=0.5.9,<0.5.10"),
        ("real-v059-story-fallback-no-piecewise", [*START, *END], None, ">=0.5.9,<0.5.10"),
    ],
)
def test_healthy_starts(case: str, phases: list[str], ready: int | None, releases: str) -> None:
    raw = log(case)
    facts, events, starts = read(raw)
    assert facts.engine == "sglang"
    assert began(events) == phases
    expected = ready or 1 + raw[: raw.index(b"The server is fired up")].count(b"\n")
    assert facts.ready == expected
    assert facts.releases == releases
    assert starts == []
    assert {state.state for state in facts.phases} <= {"done", "pending", "skipped"}
    assert facts.silence_limit is None
    assert facts.args_complete
    assert facts.args["device"] == "cpu"
    assert facts.memory["kv_tokens"] == 4096
    assert facts.stragglers == {}


def test_the_story_stops_at_the_first_shape_of_the_compile_pass() -> None:
    facts, events, _ = read(log("real-v059-story-fp4-piecewise"))
    assert began(events) == [*START, "capture_prefill"]
    assert facts.phase is not None
    assert (facts.phase.id, facts.phase.state, facts.phase.done, facts.phase.total) == (
        "capture_prefill",
        "running",
        0,
        42,
    )
    assert facts.phase.text.startswith("Compiling num tokens (num_tokens=2048)")
    assert facts.ready is None
    assert facts.silence_limit == 3600
    assert facts.releases == ">=0.5.9,<0.5.10"
    assert facts.args["enable_piecewise_cuda_graph"] == "True"
    assert facts.memory["mem_fraction_static"] == pytest.approx(0.844, abs=0.1)


def test_counts_and_figures_of_a_capture() -> None:
    facts, events, _ = read(log("real-v059-piecewise-compile-capture-ok"))
    phase = {state.id: state for state in facts.phases}["capture_prefill"]
    assert (phase.done, phase.total, phase.seconds) == (42, 42, 61.78)
    counts = [event.data["done"] for event in events if event.kind == "progress" and event.data["phase"] == phase.id]
    assert {1, 20, 41, 42} <= set(counts)
    assert facts.memory_at["capture_prefill", "begin"] == 18.73
    assert facts.memory_at["weights", "begin"] > 18


def test_both_ranks_are_followed() -> None:
    facts, _, _ = read(log("real-slim-tp2-bound"))
    for name in ("dist_init", "weights", "kv_cache"):
        phase = {state.id: state for state in facts.phases}[name]
        assert phase.ranks_ended == {"TP0", "TP1"}
    assert facts.expected_ranks == 2
    assert set(facts.ranks) == {"TP0", "TP1"}


def test_a_rank_that_does_not_come_to_the_end_stands_out() -> None:
    text = """
[2026-02-20 10:11:12 TP0] Load weight begin. avail mem=93.55 GB
[2026-02-20 10:11:12 TP1] Load weight begin. avail mem=93.55 GB
[2026-02-20 10:12:12 TP0] Load weight end. elapsed=60.00 s, type=X, avail mem=50.00 GB, mem usage=43.55 GB.
[2026-02-20 10:12:13 TP0] Memory pool end. avail mem=9.00 GB
"""
    facts, events, _ = read(text)
    assert facts.stragglers == {"weights": ("TP1",)}
    assert facts.phase_id == "kv_cache"
    more = (
        "[2026-02-20 10:13:12 TP1] Load weight end. elapsed=120.00 s, type=X, avail mem=50.00 GB, mem usage=43.55 GB."
    )
    facts, events, _ = read(text + more)
    assert facts.stragglers == {}
    assert facts.phase_id == "kv_cache"
    assert facts.memory["weights_gb"] == 43.55
    assert (
        Event("phase", "loading the weights: done", {"phase": "weights", "state": "done", "seconds": 120.0}) in events
    )


def test_the_bar_belongs_to_the_phase_that_runs() -> None:
    bar = "Capturing batches (bs=8 avail_mem=3.00 GB):  50%|#####     | 2/4 [00:01<00:03,  1.10it/s]\n"
    facts, _, _ = read("[2026-02-20 10:11:12] Capture draft cuda graph begin. avail mem=3.00 GB\n" + bar)
    assert facts.phase is not None
    assert (facts.phase.id, facts.phase.done, facts.phase.total, facts.phase.remaining) == ("capture_draft", 2, 4, 3.0)
    facts, _, _ = read(bar)
    assert (facts.engine, facts.phase_id) == ("sglang", "capture_decode")


def test_a_pasted_bar_counts_its_last_redraw() -> None:
    bar = "Capturing batches (bs=%d avail_mem=3.00 GB):  0%%|     | %d/4 [00:0%d<00:03, 1.10it/s]"
    facts, _, _ = read(bar % (8, 0, 0) + bar % (4, 1, 1) + bar % (2, 2, 2))
    assert facts.phase is not None
    assert facts.phase.done == 2


def test_a_nested_activity_does_not_end_the_phase() -> None:
    text = """[2026-02-20 10:11:12 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9.00 GB
[2026-02-20 10:11:13 TP0] Entering DeepGEMM JIT Pre-Compile session. It may take a long time
DeepGEMM warmup:  10%|#         | 10/100 [00:01<00:09,  9.10it/s]
"""
    facts, events, _ = read(text)
    assert facts.phase_id == "capture_decode"
    assert began(events) == ["capture_decode"]
    assert {state.id: state.done for state in facts.phases}["kernel_warmup"] == 10


def test_a_list_of_sizes_is_the_total() -> None:
    facts, _, _ = read(
        "[2026-03-25 09:32:54] Capture cuda graph begin. This can take up to several minutes. avail mem=7.80 GB\n"
        "[2026-03-25 09:32:54] Capture cuda graph bs [1, 2, 4, 8, 12, 16, 24, 32]\n"
    )
    assert facts.phase is not None
    assert (facts.phase.done, facts.phase.total) == (0, 8)


def test_counted_lines_are_progress_too() -> None:
    text = "[06/02/2026-10:00:01] [TRT-LLM] [I] Creating CUDA graph instances for 3 batch sizes.\n"
    text += (
        "[06/02/2026-10:00:02] [TRT-LLM] [I] Run generation-only CUDA graph warmup for batch size=4, draft_len=0\n" * 2
    )
    facts, _, _ = read(text)
    assert facts.engine == "trtllm"
    assert facts.phase is not None
    assert (facts.phase.done, facts.phase.total) == (2, 3)


def test_vllm_from_the_middle_of_a_log() -> None:
    facts, events, _ = read(log("glm-v-204"))
    assert facts.engine == "vllm"
    assert began(events) == ["compile", "kv_cache", "capture_prefill", "capture_decode", "engine_ready"]
    phases = {state.id: state for state in facts.phases}
    assert (phases["capture_prefill"].total, phases["capture_decode"].total) == (67, 35)
    assert phases["capture_decode"].seconds == 7
    assert facts.memory["kv_tokens"] == 425424
    assert facts.ready is None


def test_the_same_uvicorn_line_means_ready_for_vllm_and_not_for_sglang() -> None:
    assert read("(APIServer pid=1) INFO:     Application startup complete.")[0].ready == 1
    assert read("[2026-01-29 13:07:30] INFO:     Application startup complete.")[0].ready is None
    assert read("INFO:     Application startup complete.")[0].ready is None


def test_versions_libraries_and_gpu() -> None:
    facts, _, _ = read(
        "sglang==0.5.9\ntorch==2.9.1+cu129\n[2026-03-27 08:11:45 TP0] sglang is using nccl==2.27.5\n"
        "NVIDIA RTX PRO 6000 Blackwell Server Edition\n"
        "Command '['ninja', '-v', '-C', '/root/.cache/flashinfer/0.6.3/120a/cached_ops']'\n"
    )
    assert facts.version == "0.5.9"
    assert facts.versions == {"sglang": "0.5.9", "torch": "2.9.1+cu129", "nccl": "2.27.5", "flashinfer": "0.6.3"}
    assert (facts.gpu, facts.sm) == ("RTX PRO 6000 Blackwell Server Edition", "sm120")


def test_a_named_gpu_gives_way_to_a_measured_capability_and_both_to_what_is_told() -> None:
    text = "device_name=NVIDIA_B200,dtype=fp8\n    Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.\n"
    assert read(text)[0].sm == "sm121"
    assert read(text, gpu="sm90")[0].sm == "sm90"


def test_the_command_is_read_with_its_continuation_lines_and_without_its_secrets() -> None:
    text = (
        "+ HF_TOKEN=sesame python3 -m sglang.launch_server \\\n"
        "  --model-path x \\\n  --api-key sesame \\\n  --tp 8\n"
        "[2026-12-01 06:28:01] server_args=ServerArgs(model_path='x', tp_size=8, dp_size=2, api_key='sesame')\n"
    )
    facts, events, starts = read(text)
    words = ("python3", "-m", "sglang.launch_server", "--model-path", "x", "--api-key", "***", "--tp", "8")
    assert facts.argv == words
    assert facts.env == {"HF_TOKEN": "***"}
    assert facts.expected_ranks == 16
    assert "sesame" not in repr((events, facts.args, facts.argv))
    assert starts == []


def test_a_given_command_tells_the_engine() -> None:
    facts = Facts(ALL, argv=["python", "-m", "sglang.launch_server"], versions={"sglang": "0.5.9"})
    assert (facts.engine, facts.version) == ("sglang", "0.5.9")


def test_an_example_of_a_command_is_none() -> None:
    assert read("  Example: sglang serve --model-path <model> [options]\nusage: sglang serve [-h]\n")[0].argv is None


ONE = """[2026-12-01 06:28:01] server_args=ServerArgs(model_path='x', tp_size=1)
[2026-12-01 06:28:02] Init torch distributed begin.
[2026-12-01 06:28:03] Init torch distributed ends. mem usage=0.10 GB
[2026-12-01 06:28:04] Load weight begin. avail mem=9.00 GB
"""


def test_two_starts_in_one_file_are_told_apart() -> None:
    facts, events, starts = read(ONE + ONE)
    assert starts == [5]
    assert began(events) == ["args", "spawn", "dist_init", "weights"]
    assert facts.phase_id == "weights"


@pytest.mark.parametrize("between", ["\n--- restart ---\n", "==========\n== CUDA ==\n==========\n"])
def test_a_separator_begins_one_start_not_two(between: str) -> None:
    _, _, starts = read(ONE + between + "UserWarning: 'python -m sglang.launch_server' is still supported\n" + ONE)
    assert starts == [6]


def test_a_banner_at_the_head_of_a_log_begins_nothing() -> None:
    assert read("==========\n== CUDA ==\n==========\n\nCUDA Version 12.9.1\n" + ONE)[2] == []


def test_alternatives_at_the_top_of_a_pattern_are_all_found() -> None:
    data = {"name": "libraries", "title": "x", "gpu": [{"match": "^needle in hay|other (?P<gpu>thing)", "sm": "90"}]}
    problems: list[Problem] = []
    facts = Facts([engine_from(data, problems)])
    assert problems == []
    facts.observe(Line(1, "some other thing"))
    assert (facts.gpu, facts.sm) == ("thing", "sm90")


def test_a_start_after_ready_is_a_new_one_and_served_requests_are_not() -> None:
    ready = ONE + "[2026-12-01 06:29:00] The server is fired up and ready to roll!\n"
    facts, _, starts = read(ready + "python -m sglang.launch_server --tp 2\nLoad weight begin. avail mem=1.00 GB\n")
    assert starts == []
    assert facts.ready == 5
    assert read(ready + ONE)[2] == [6]
    assert read(ready + "+ python -m sglang.launch_server --tp 2\n" + ONE)[2] == [6]


def test_every_healthy_log_has_one_start_and_is_ready() -> None:
    """Nothing in a whole run, requests and shutdown included, looks like another start."""
    seen = 0
    for folder in sorted(FIXTURES.glob("real-*")):
        raw = (folder / "server.log").read_bytes()
        facts, _, starts = read(raw)
        assert starts == [], folder.name
        assert facts.engine in ("sglang", None), folder.name
        assert (facts.ready is not None) == (b"fired up and ready to roll" in raw), folder.name
        seen += 1
    assert seen > 20


def test_no_line_that_tells_something_is_missed_by_its_literals() -> None:
    for case in ("real-v059-piecewise-compile-capture-ok", "real-slim-tp2-bound", "glm-v-204"):
        facts = Facts(ALL)
        literals = facts.literals()
        for line in lines_of(log(case)):
            known = facts.engine
            told = facts.observe(line)
            if told and facts.engine == known:  # the look of a prefix has no literal
                assert any(literal in line.text for literal in literals), line.text


@pytest.mark.parametrize(
    ("ranges", "common"),
    [
        ([], None),
        ([">=0.5.6,<0.5.14", ">=0.5.9", "<0.5.21"], ">=0.5.9,<0.5.14"),
        (["<0.5.10", "<0.5.9"], "<0.5.9"),
        ([">=0.5.9", ">=0.5.10"], ">=0.5.10"),
        ([">=0.5.14", "<0.5.10"], None),
    ],
)
def test_common_releases(ranges: list[str], common: str | None) -> None:
    assert common_releases(tuple(ranges)) == common


def test_times_of_all_dialects() -> None:
    def between(first: str, second: str) -> float:
        a, b = seconds_of(first), seconds_of(second)
        assert a is not None
        assert b is not None
        return b - a

    assert between("2026-02-28 23:59:59", "2026-03-01 00:00:01.500") == pytest.approx(2.5)
    assert between("02-28 23:59:59", "02-29 00:00:00") == 1  # no year: any could be a leap year
    assert between("06/21/2025-01:30:42", "06/21/2025-01:31:42") == 60
    assert between("0.59.000.000", "1.01.500.000") == pytest.approx(2.5)
    assert between("2026-03-08 16:44:29,692", "2026-03-08 16:44:30,692") == pytest.approx(1)
    for bad in ("", "soon", "2026-13-40 00:00:00"):
        assert seconds_of(bad) is None


def test_bar_times() -> None:
    assert [bar_seconds(text) for text in ("07:18", "1:00:01", "?", "", None)] == [438.0, 3601.0, None, None, None]


def test_the_engine_of_a_lookup_is_built_once() -> None:
    from app.core.lookup import lookup

    assert lookup(ALL) is lookup(list(ALL))
    other: Engine = engine_from({"name": "libraries", "title": "none"}, [])
    assert lookup([other]) is not lookup(ALL)


def test_a_setting_is_the_printed_one_and_else_the_written_one() -> None:
    argv = ["python", "-m", "sglang.launch_server", "--tp", "8", "--attention-backend", "fa3"]
    facts = Facts(ALL, argv=argv)
    assert (facts.setting("attention_backend"), facts.expected_ranks) == ("fa3", 8)
    printed = "[2026-02-20 10:11:12] server_args=ServerArgs(model_path='m', tp_size=2, attention_backend='triton')"
    facts, _, _ = read(printed, argv=argv)
    assert (facts.setting("attention_backend"), facts.expected_ranks) == ("triton", 2)
    assert facts.setting("nnodes") is None


def test_a_line_that_several_engines_print_settles_none() -> None:
    facts, _, _ = read("INFO:     Application startup complete.\n")
    assert facts.engine is None
