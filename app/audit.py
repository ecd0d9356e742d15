"""Who asked for what, and what came of it, in; one JSON line each in the state directory out. Kept in two files of a
few MB, readable by their owner alone."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

LONGEST = 4 << 20
"""Bytes after which the file is put aside and the one before it is dropped."""


class Audit:
    """Appends; may be called from any thread. A full disk costs the line, not the service."""

    def __init__(self, root: Path) -> None:
        self.path = root / "audit.jsonl"
        self._lock = threading.Lock()

    def note(self, who: str, address: str, target: str, action: str, asked: Any, status: int, result: str) -> None:
        """`asked` is JSON without secrets, `status` an HTTP status, `result` one sentence."""
        row = {"at": time.time(), "who": who, "address": address, "target": target, "action": action,
               "asked": asked, "status": status, "result": result}  # fmt: skip
        line = json.dumps(row).encode("ascii") + b"\n"
        with self._lock:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                try:
                    os.write(fd, line)
                    full = os.fstat(fd).st_size > LONGEST
                finally:
                    os.close(fd)
                if full:
                    os.replace(self.path, self.path.with_suffix(".1.jsonl"))
            except OSError:
                return

    def last(self, count: int) -> list[dict[str, Any]]:
        """The latest rows, newest first."""
        rows: list[dict[str, Any]] = []
        for path in (self.path, self.path.with_suffix(".1.jsonl")):
            try:
                lines = path.read_bytes().splitlines()
            except OSError:
                continue
            for line in reversed(lines):
                if len(rows) >= count:
                    return rows
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict):
                    rows.append(row)
        return rows
