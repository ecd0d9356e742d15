"""The rules in; the same rules out, with what the first real failure would have to wait for done before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.diagnosis import Diagnosis

if TYPE_CHECKING:
    from app.knowledge import Base

SAMPLE = b"""[2026-01-01 00:00:00 TP0] Load weight begin. avail mem=90.00 GB
[2026-01-01 00:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/engine/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 1, in run_scheduler_process
    scheduler = Scheduler(
  File "/opt/engine/lib/python3.12/site-packages/flashinfer/jit/cpp_ext.py", line 1, in get_cuda_version
    subprocess.check_output(
%s

[2026-01-01 00:00:02] Received sigquit from a child process. It usually means the child failed.
"""
RAISED = (
    b"torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped\n  Explanation: Dynamo",
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 94.00 GiB",
    b"RuntimeError: CUDA error: no kernel image is available for execution on the device",
    b"torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error",
    b"ModuleNotFoundError: No module named 'x'",
    b"ImportError: libx.so: cannot open shared object file: No such file or directory",
    b"ValueError: Not enough memory. Please try to increase --mem-fraction-static.",
    b"subprocess.CalledProcessError: Command '['ninja']' returned non-zero exit status 1.",
    b"OSError: [Errno 98] Address already in use",
)
"""What ends many starts."""

_warmed: list[bool] = []


def warm(base: Base) -> None:
    """Reads a few made-up failures and forgets them, so that the first real one finds its patterns compiled: that takes
    longer than the reading itself. Does nothing the second time."""
    if _warmed:
        return
    _warmed.append(True)
    for raised in RAISED:
        diagnosis = Diagnosis(base)
        diagnosis.feed(SAMPLE % raised)
        diagnosis.early()
        diagnosis.status()
