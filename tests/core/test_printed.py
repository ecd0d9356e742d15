"""Advice that logs print, held against what is known: right here, wrong here, gone in this version, so already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.core.diagnosis import Diagnosis
from app.knowledge import Base, check, load
from app.report import to_json

CASES = Path(__file__).parents[2] / "fixtures"
CAPTURE = """\
Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs to a smaller value (e.g., 16)
3. disable torch compile by not using --enable-torch-compile
4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)
Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose
"""
"""cuda_graph_runner.py of SGLang 0.5.3 to 0.5.13."""
MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted}. GPU 0 has a total capacity of 79.10 GiB of which 98.00 MiB"
    " is free. Process 12 has 78.99 GiB memory in use. Of the allocated memory 70.40 GiB is allocated by PyTorch, and {unused} is reserved"
    " by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
)


@pytest.fixture(scope="module")
def base() -> Base:
    return load()


def capture_failure(error: str) -> str:
    return (
        "[2026-02-23 10:00:01 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9.10 GB\n"
        "[2026-02-23 10:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/env/sglang/srt/model_executor/cuda_graph_runner.py", line 370, in __init__\n'
        "    self.capture()\n"
        f"{error}\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/env/sglang/srt/managers/scheduler.py", line 2980, in run_scheduler_process\n'
        "    scheduler = Scheduler(\n"
        f"Exception: Capture cuda graph failed: {error.partition(': ')[2]}\n{CAPTURE}\n"
    )


def advice(base: Base, log: str, **told: Any) -> dict[str, tuple[str, str]]:
    """The advice of a log: its first words to (what is said of it, why)."""
    diagnosis = Diagnosis(base, **told)
    diagnosis.feed(log.encode())
    diagnosis.close()
    found = to_json(diagnosis.status(), "log", base)
    return {each["text"].partition(" (")[0]: (each["says"], each["why"]) for each in found["advice"]}


def test_a_list_that_is_the_same_for_every_cause_is_told_apart(base: Base) -> None:
    short = advice(base, capture_failure(MEMORY.format(wanted="2.00 GiB", unused="120.00 MiB")), release="0.5.9")
    other = advice(base, (CASES / "sglang-24302" / "server.log").read_text())
    lower = "set --mem-fraction-static to a smaller value"
    assert short[lower][0] == "right"
    assert other[lower] == ("wrong", "It is meant for a GPU that runs out of memory, and that is not what happened.")


@pytest.mark.parametrize(
    ("wanted", "unused", "says"),
    [("2.00 GiB", "120.00 MiB", "wrong"), ("512.00 MiB", "6.10 GiB", "right"), ("2.00 GiB", "2.00 GiB", "right")],
)
def test_the_allocators_own_figures_decide_on_fragmentation(base: Base, wanted: str, unused: str, says: str) -> None:
    found = advice(base, capture_failure(MEMORY.format(wanted=wanted, unused=unused)), release="0.5.9")
    told = found["try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]
    assert told[0] == says
    if says == "wrong":
        assert unused in told[1]
        assert wanted in told[1]


def test_a_flag_that_this_version_lacks_is_gone(base: Base) -> None:
    log = capture_failure("RuntimeError: CUDA error: an illegal memory access was encountered")
    log = log.replace("--cuda-graph-max-bs to", "--piecewise-cuda-graph-max-tokens to")
    found = advice(base, log, release="0.4.6")
    assert found["set --piecewise-cuda-graph-max-tokens to a smaller value"] == (
        "gone", "SGLang 0.4.6 takes no --piecewise-cuda-graph-max-tokens",
    )  # fmt: skip


def test_what_is_so_already_is_said(base: Base) -> None:
    log = capture_failure("RuntimeError: CUDA error: an illegal memory access was encountered")
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "m", "--disable-cuda-graph"]
    found = advice(base, log, argv=argv, release="0.5.9")
    assert found["disable CUDA graph by --disable-cuda-graph"][0] == "done"
    assert found["disable torch compile by not using --enable-torch-compile"][0] == "done"
    found = advice(base, log, argv=[*argv[:-1], "--enable-torch-compile"], release="0.5.9")
    assert found["disable CUDA graph by --disable-cuda-graph"][0] != "done"
    assert found["disable torch compile by not using --enable-torch-compile"][0] != "done"


def test_the_rule_of_the_cause_has_the_last_word(base: Base) -> None:
    log = (
        '  File "/env/flashinfer/fp4_quantization.py", line 151, in get_fp4_quantization_module\n'
        '  File "/env/torch/_dynamo/exc.py", line 1, in unimplemented\n'
        "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped\n"
    )
    start = "[2026-02-23 10:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    found = advice(base, f"{start}{log}{CAPTURE}", release="0.5.9")
    assert found["disable CUDA graph by --disable-cuda-graph"][0] == "wrong"
    assert (
        "--disable-cuda-graph alone leaves the prefill graphs on"
        in found["disable CUDA graph by --disable-cuda-graph"][1]
    )


def test_a_log_that_comes_up_gets_no_audit(base: Base) -> None:
    log = "[2026-02-23 10:00:01] set --mem-fraction-static to a smaller value\n[2026-02-23 10:00:02] The server is fired up and ready to roll!\n"
    assert advice(base, log) == {}


def test_a_rule_that_names_unknown_advice_is_a_problem(tmp_path: Any) -> None:
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "odd.yaml").write_text(
        "id: host/odd\ntitle: Odd\nwhen: [{text: 'something odd happened'}]\ncause: Odd.\nremedies: [{title: Mend, do: Mend it.}]\n"
        "advice: {no-such-advice: because}\n"
    )
    assert any("no-such-advice" in str(each) and ":6:" in str(each) for each in check([tmp_path]))


def test_garbled_figures_say_nothing(base: Base) -> None:
    found = advice(base, capture_failure(MEMORY.format(wanted="2.00 GiB", unused="1.2.3 MiB")), release="0.5.9")
    assert "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" not in found
