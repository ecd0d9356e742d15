"""How fast `explain` reads: CPU seconds of whole processes, beside ripgrep with the same literals and `wc -l` in the same run.

    python -m benchmarks.explain [--megabytes 200] [--runs 3]      # prints the tables of docs/performance.md

Throughput is bytes per CPU second (user + system) of one process, the best of several runs: on a shared machine the best is
the least disturbed one. ripgrep comes from the `bench` dependency group (PyPI `ripgrep`), or from PATH.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.knowledge import load

from .logs import write

PYTHON = sys.executable


def measure(argv: Sequence[str], env: dict[str, str] | None = None, runs: int = 3) -> tuple[float, float]:
    """(CPU seconds, peak resident MB) of the best of some runs of a command."""
    best, peak = float("inf"), 0.0
    for _ in range(runs):
        pid = os.fork()
        if pid == 0:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            os.execvpe(argv[0], list(argv), {**os.environ, **(env or {})})
        _, _, usage = os.wait4(pid, 0)
        best = min(best, usage.ru_utime + usage.ru_stime)
        peak = max(peak, usage.ru_maxrss / 1024)
    return best, peak


def literals_file(folder: Path) -> Path:
    """Every literal that explain looks for, one a line, for `rg -F -f`."""
    path = folder / "literals.txt"
    path.write_bytes(b"\n".join(literal for literal in load().strings if b"\n" not in literal) + b"\n")
    return path


def synthetic_rules(folder: Path, count: int) -> Path:
    """A rules directory with `count` rules that look like real ones and match nothing in the logs."""
    root = folder / f"rules-{count}"
    for number in range(count):
        area = root / f"area{number % 40}"
        area.mkdir(parents=True, exist_ok=True)
        (area / f"cause-{number}.yaml").write_text(
            f"id: area{number % 40}/cause-{number}\ntitle: synthetic {number}\nstatus: draft\nrole: cause\nwhen:\n"
            f"  - raises: {{type: '^RuntimeError$', message: 'synthetic kernel {number} has no image for this device'}}\n"
            f"cause: synthetic\nremedies: [{{title: none, do: nothing}}]\n"
        )
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--memory", type=int, default=1000, help="size of the log whose memory is measured, in MB")
    parser.add_argument("--rules", type=int, nargs="*", default=[30, 300, 1000, 10000])
    args = parser.parse_args()
    rg = shutil.which("rg", path=f"{Path(PYTHON).parent}:{os.environ.get('PATH', '')}")
    explain = [PYTHON, "-m", "app.cli", "explain"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {"XDG_CACHE_HOME": str(folder / "cache")}
        tiny = folder / "tiny.log"
        tiny.write_text("nothing\n")
        first, _ = measure([*explain, str(tiny)], env, runs=1)
        start, start_mb = measure([*explain, str(tiny)], env, args.runs)
        print(f"rules: {len(load().packed)}, literals: {len(load().strings)}\n")
        print("| log | explain MB/s | ripgrep -F MB/s | wc -l MB/s | explain : ripgrep | explain MB resident |")
        print("| --- | --- | --- | --- | --- | --- |")
        patterns = literals_file(folder)
        for kind in ("healthy", "crash", "dense"):
            log = write(kind, args.megabytes, folder / f"{kind}.log")
            size = log.stat().st_size / 1e6
            ours, resident = measure([*explain, str(log)], env, args.runs)
            own = size / max(1e-9, ours - start)
            theirs = (
                size / measure([rg, "-F", "-f", str(patterns), "-c", "-j1", str(log)], runs=args.runs)[0] if rg else 0
            )
            lines = size / measure(["wc", "-l", str(log)], runs=args.runs)[0]
            ratio = f"{own / theirs:.1f}" if theirs else "–"
            print(f"| {kind} {size:.0f} MB | {own:.0f} | {theirs:.0f} | {lines:.0f} | {ratio} | {resident:.0f} |")
        big = write("healthy", args.memory, folder / "big.log")
        seconds, resident = measure([*explain, str(big)], env, 1)
        print(f"\n1 log of {args.memory} MB: {seconds:.2f} s CPU, {resident:.0f} MB resident\n")
        print("| synthetic rules beside the shipped ones | explain MB/s, healthy |")
        print("| --- | --- |")
        healthy = folder / "healthy.log"
        for count in args.rules:
            root = synthetic_rules(folder, count)
            extra = [*explain, "--rules", str(root)]
            measure([*extra, str(tiny)], env, 1)
            base, _ = measure([*extra, str(tiny)], env, args.runs)
            ours, _ = measure([*extra, str(healthy)], env, args.runs)
            print(f"| {count} | {healthy.stat().st_size / 1e6 / max(1e-9, ours - base):.0f} |")
        one = write("crash", 1, folder / "one.log")
        warm, _ = measure([*explain, str(one)], env, args.runs + 2)
        bare, _ = measure([PYTHON, "-c", "pass"], runs=args.runs + 2)
        click, _ = measure([PYTHON, "-c", "import click"], runs=args.runs + 2)
        print(
            f"\ncold start, CPU seconds: first time (rules compiled) {first:.2f}, then a tiny log {start:.3f} ({start_mb:.0f} MB), "
            f"a 1 MB log with the founding crash {warm:.3f}; a bare Python {bare:.3f}, with click {click:.3f}"
        )
        subprocess.run(["uptime"], check=False)
        print(f"peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
