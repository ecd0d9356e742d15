"""A launch ahead in; what of this machine stands in its way out: ports, shared memory, disks, limits, driver, GPUs."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from app.preflight.finding import Finding
from app.preflight.situation import Ahead

GIB = 1024**3
_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver for each CUDA major version; within one the minor versions are compatible."""
_PORTS = {"sglang": ("127.0.0.1", 30000), "vllm": ("", 8000)}


def host(ahead: Ahead) -> Iterator[Finding]:
    """Everything on this machine that will or may stop the start. Nothing for a container: it has its own."""
    if ahead.elsewhere:
        return
    yield from _port(ahead)
    yield from _shared_memory(ahead)
    yield from _disks(ahead)
    yield from _limits(ahead)
    yield from _gpus(ahead)


def _port(ahead: Ahead) -> Iterator[Finding]:
    usual = _PORTS.get(ahead.engine)
    if usual is None or ahead.size("--node-rank") > 1 or (ahead.number("--node-rank") or 0) > 0:
        return
    name, port = ahead.value("--host") or usual[0], int(ahead.number("--port") or usual[1])
    try:
        from app.targets.ports import check

        use = check(port, name)
    except (ImportError, ValueError):
        return
    if use.free:
        return
    names = {"host": name, "port": str(port)}
    if use.reason == "in use":
        yield Finding("host/port-in-use", True, str(use), names)
    elif use.reason == os.strerror(errno.EACCES):
        yield Finding(
            "host/privileged-port", True, f"port {port} needs a privilege that this user does not have", names
        )
    elif use.reason == os.strerror(errno.EADDRNOTAVAIL):
        yield Finding("host/listen-address-not-local", True, f"{name} is no address of this machine", names)


def _shared_memory(ahead: Ahead) -> Iterator[Finding]:
    if ahead.tp * ahead.pp < 2 or ahead.on_cpu or not os.path.isdir("/dev/shm"):
        return
    space = os.statvfs("/dev/shm")
    free, size = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    if free < GIB and not ahead.environ.get("NCCL_SHM_DISABLE"):
        have = f"{free / 2**20:.0f} MiB free of {size / 2**20:.0f}"
        text = f"/dev/shm has {have}, and {ahead.tp * ahead.pp} ranks share it"
        yield Finding("distributed/nccl-shm-too-small", free < 16 * 2**20, text)


def _disks(ahead: Ahead) -> Iterator[Finding]:
    home = Path(ahead.environ.get("HOME") or os.path.expanduser("~"))
    caches = {
        Path(ahead.environ.get("FLASHINFER_WORKSPACE_BASE") or home) / ".cache/flashinfer",
        Path(ahead.environ.get("TRITON_CACHE_DIR") or home / ".triton"),
    }
    for cache in sorted(caches):
        place = next((item for item in (cache, *cache.parents) if item.exists()), None)
        if place is None:
            continue
        if not os.access(place, os.W_OK):
            text = f"{cache} cannot be written: kernels that are built at start-up are kept there"
            yield Finding("toolchain/kernel-cache-dir-not-writable", False, text, {"path": str(cache)})
        elif shutil.disk_usage(place).free < GIB / 4:
            free = shutil.disk_usage(place).free / 2**20
            yield Finding(
                "toolchain/jit-disk-full", False, f"{cache}: the disk has {free:.0f} MiB free", {"path": str(cache)}
            )


def _limits(ahead: Ahead) -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = hard if ahead.engine == "sglang" else soft  # SGLang raises its own limit as far as it may
    if 0 <= files < 2048:
        yield Finding("host/open-files-limit", False, f"a process may open {files} files at most (ulimit -n)")
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if 0 <= soft < 2048 and os.geteuid() != 0:
        yield Finding(
            "host/thread-process-limit", False, f"this user may have {soft} processes and threads (ulimit -u)"
        )
    try:
        most = Path("/sys/fs/cgroup/pids.max").read_text().strip()
    except OSError:
        most = "max"
    if most.isdigit() and int(most) < 1024:
        yield Finding(
            "host/thread-process-limit", False, f"this container may have {most} processes and threads (pids.max)"
        )


def _gpus(ahead: Ahead) -> Iterator[Finding]:
    probe = ahead.probe
    if probe is None:
        return
    if ahead.on_cpu:
        if ahead.engine == "sglang" and not ahead.on("SGLANG_USE_CPU_ENGINE"):
            text = "--device cpu without SGLANG_USE_CPU_ENGINE=1"
            yield Finding("host/sglang-cpu-engine-not-enabled", False, text)
        return
    yield from _driver(ahead)
    for other in ("flashinfer-cubin", "flashinfer-jit-cache"):
        have, main = probe.packages.get(other), probe.packages.get("flashinfer-python")
        same = not have or not main or have.partition("+")[0] == main.partition("+")[0]
        if not same and not ahead.on("FLASHINFER_DISABLE_VERSION_CHECK"):
            text = f"{other} {have} beside flashinfer-python {main}: FlashInfer refuses to be imported so"
            names = {"package": other, "have": str(have), "wanted": str(main)}
            yield Finding("toolchain/flashinfer-cubin-version-mismatch", True, text, names)
    visible = ahead.environ.get("CUDA_VISIBLE_DEVICES")
    count = len([item for item in visible.split(",") if item.strip()]) if visible is not None else len(probe.gpus)
    count = min(count, len(probe.gpus))
    wanted = -(-ahead.tp * ahead.pp // ahead.nodes)
    if ahead.engine == "sglang" and not ahead.written("--enable-dp-attention"):
        wanted *= ahead.dp
    if probe.gpus and wanted > count:
        rule = (
            "distributed/vllm-world-size-exceeds-gpus"
            if ahead.engine == "vllm"
            else "driver/cuda-invalid-device-ordinal"
        )
        text = f"{wanted} GPUs are asked for, {count} can be seen" + (
            f" (CUDA_VISIBLE_DEVICES={visible})" if visible else ""
        )
        yield Finding(rule, ahead.engine != "vllm", text, {"needed": str(wanted), "there": str(count)})


def _driver(ahead: Ahead) -> Iterator[Finding]:
    probe = ahead.probe
    assert probe is not None
    torch = probe.packages.get("torch", "")
    if not probe.gpus and probe.torch_cuda and not os.path.exists("/dev/nvidiactl"):
        if ahead.engine == "sglang" and ahead.value("--device") in (None, "cuda"):
            text = f"torch {torch} is built for CUDA {probe.torch_cuda}, and this machine shows no NVIDIA GPU"
            yield Finding("driver/no-accelerator-available", True, text)
    elif torch.endswith("+cpu") and probe.gpus and ahead.engine == "sglang":
        yield Finding("packages/torch-without-cuda", True, f"torch {torch} is a build without CUDA")
    if not probe.driver or not probe.torch_cuda:
        return
    have, oldest = probe.driver.partition(".")[0], _DRIVERS.get(int(probe.torch_cuda.partition(".")[0]))
    if have.isdigit() and oldest and int(have) < oldest:
        compat = "compat" in ahead.environ.get("LD_LIBRARY_PATH", "") or os.path.isdir("/usr/local/cuda/compat")
        text = (
            f"the driver is {probe.driver}; CUDA {probe.torch_cuda}, which torch {torch} is built for, needs {oldest}"
        )
        yield Finding("driver/nvidia-driver-too-old", not compat, text, {"found": probe.driver})
