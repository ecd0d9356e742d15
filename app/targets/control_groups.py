"""From a process to its control group's memory counters: how many were killed for lack of memory so far.

Parsing is pure (`parse_*`, `counter_files`), reading is apart (`read_memory`, `reread`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any


@dataclass(frozen=True, slots=True)
class Memory:
    """A control group's memory counters at one moment. `file` is where they were read, `kills` how many processes of
    the group the kernel has killed for lack of memory so far, `limited` how often the group ran into its own limit
    (None: not told)."""

    file: str
    kills: int
    limited: int | None = None


def parse_counters(text: str) -> dict[str, int]:
    """The lines `name number` of memory.events or memory.oom_control; others are passed over."""
    counters = {}
    for line in text.splitlines():
        name, _, number = line.strip().partition(" ")
        if number.strip().isdigit():
            counters[name] = int(number)
    return counters


def parse_groups(text: str) -> tuple[str | None, str | None]:
    """From /proc/<pid>/cgroup to (path in the v2 hierarchy, path in the v1 memory hierarchy), None where there is
    none."""
    v2 = v1 = None
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            v2 = path
        elif "memory" in controllers.split(","):
            v1 = path
    return v2, v1


def parse_mounts(text: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """From /proc/self/mountinfo to the (root, mount point) pairs of the v2 hierarchies and of the v1 memory
    hierarchies."""
    v2, v1 = [], []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        pair = (fields[3].replace("\\040", " "), fields[4].replace("\\040", " "))
        if kind[0] == "cgroup2":
            v2.append(pair)
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            v1.append(pair)
    return v2, v1


def counter_files(groups: str, mounts: str) -> list[str]:
    """Where a process's memory counters may be, most telling first, from its /proc/<pid>/cgroup and
    /proc/self/mountinfo."""
    (v2, v1), (v2_mounts, v1_mounts) = parse_groups(groups), parse_mounts(mounts)
    files = []
    for path, pairs, name in ((v2, v2_mounts, "memory.events"), (v1, v1_mounts, "memory.oom_control")):
        for root, point in pairs if path is not None else ():
            try:
                below = PurePosixPath(path or "/").relative_to(root)
            except ValueError:
                below = PurePosixPath()  # the mount shows only the container's own group, under another name
            files.append(str(PurePosixPath(point) / below / name))
    return files


def read_memory(pid: int | None = None) -> Memory | None:
    """The memory counters of a process's control group (our own when `pid` is None); None where there are none to
    read."""
    try:
        groups = Path(f"/proc/{pid or 'self'}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return None
    for file in counter_files(groups, mounts):
        if found := reread(file):
            return found
    return None


def reread(file: str) -> Memory | None:
    """The counters in one file, None when it cannot be read or does not count kills (kernels before 4.13)."""
    try:
        counters = parse_counters(Path(file).read_text())
    except OSError:
        return None
    if "oom_kill" not in counters:
        return None
    return Memory(file, counters["oom_kill"], counters.get("oom"))


def as_json(memory: Memory | None) -> dict[str, Any] | None:
    """Counters as a value for JSON; `from_json` reads it back."""
    return {"file": memory.file, "kills": memory.kills, "limited": memory.limited} if memory else None


def from_json(value: Mapping[str, Any] | None) -> Memory | None:
    return Memory(str(value["file"]), int(value["kills"]), value.get("limited")) if value else None
