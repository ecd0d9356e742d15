"""Logs for benchmarks, written to a file: healthy, one crash at the end, or one traceback after another.

python -m benchmarks.logs healthy 100 /tmp/healthy.log       # kind, size in MB, where
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

KINDS = ("healthy", "crash", "dense")

START = """[2026-02-20 10:11:01] server_args=ServerArgs(model_path='/models/GLM-5-NVFP4', tp_size=8, mem_fraction_static=0.85)
[2026-02-20 10:11:12 TP0] Init torch distributed begin.
[2026-02-20 10:11:15 TP0] Init torch distributed ends. elapsed=3.02 s, mem usage=1.07 GB
[2026-02-20 10:11:16 TP0] Load weight begin. avail mem=93.55 GB
"""

ERRORS = (
    (
        "torch.OutOfMemoryError",
        "CUDA out of memory. Tried to allocate {n} MiB. GPU 0 has a total capacity of 94.97 GiB",
    ),
    ("RuntimeError", "request {n} failed: the scheduler gave no answer"),
    ("KeyError", "'model.layers.{n}.mlp.down_proj.weight_scale'"),
    ("ValueError", "sampling parameter top_p out of range: {n}"),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("json.decoder.JSONDecodeError", "Expecting value: line 1 column {n}"),
)


def _healthy_line(rng: random.Random, second: int, number: int) -> str:
    stamp = f"2026-02-20 {10 + second // 3600 % 14:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    kind = number % 10
    if kind < 5:
        return (
            f"[{stamp} TP0] Decode batch, #running-req: {rng.randrange(256)}, #token: {rng.randrange(900000)}, "
            f"token usage: 0.{rng.randrange(100):02d}, cuda graph: True, gen throughput (token/s): {rng.random() * 9000:.2f}, "
            f"#queue-req: {rng.randrange(64)}\n"
        )
    if kind < 7:
        return (
            f"[{stamp} TP0] Prefill batch, #new-seq: {rng.randrange(16)}, #new-token: {rng.randrange(8192)}, "
            f"#cached-token: {rng.randrange(8192)}, token usage: 0.{rng.randrange(100):02d}, #running-req: 3, #queue-req: 0\n"
        )
    if kind < 9:
        return f'[{stamp}] INFO:     10.0.{rng.randrange(256)}.{rng.randrange(256)}:{rng.randrange(65536)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    return (
        f"[{stamp} TP{rng.randrange(8)}] Using default MoE kernel config. Performance might be sub-optimal! Config file not "
        f"found at E=160,N={rng.randrange(4096)},device_name=NVIDIA_RTX_PRO_6000_Blackwell.json\n"
    )


def _traceback(rng: random.Random, second: int) -> str:
    stamp = f"2026-02-20 {10 + second // 3600 % 14:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    name, message = rng.choice(ERRORS)
    rank = rng.randrange(8)
    frames = "".join(
        f'  File "/usr/local/lib/python3.12/dist-packages/sglang/srt/managers/scheduler.py", line {rng.randrange(4000)}, in '
        f"{rng.choice(('event_loop', 'run_batch', 'process_input', 'forward'))}\n    result = self.step(batch, {rng.randrange(99)})\n"
        for _ in range(rng.randrange(6, 22))
    )
    return (
        f"[{stamp} TP{rank}] Request failed: Traceback (most recent call last):\n{frames}"
        f"{name}: {message.format(n=rng.randrange(100000))}\n"
    )


def pieces(kind: str, size: int, seed: int = 7) -> Iterator[bytes]:
    """The log in pieces of about a megabyte, `size` bytes in all (to within a line or a traceback)."""
    rng = random.Random(seed)
    written = number = second = 0
    yield START.encode()
    block = [_healthy_line(rng, n // 40, n) for n in range(8000)]
    while written < size:
        out: list[str] = []
        length = 0
        while length < 1_000_000 and written + length < size:
            number += 1
            second = number // 40
            if kind == "dense" and number % 6 == 0:
                text = _traceback(rng, second)
            else:
                text = block[rng.randrange(len(block))]
            out.append(text)
            length += len(text)
        data = "".join(out).encode()
        written += len(data)
        yield data
    if kind == "crash":
        crash = Path(__file__).parent.parent / "fixtures" / "founding-story" / "server.log"
        yield crash.read_bytes()


def write(kind: str, megabytes: int, path: Path) -> Path:
    """Write a log and return its path."""
    with path.open("wb") as file:
        for piece in pieces(kind, megabytes * 1_000_000):
            file.write(piece)
    return path


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in KINDS:
        sys.exit(f"usage: python -m benchmarks.logs {'|'.join(KINDS)} MEGABYTES FILE")
    print(write(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
