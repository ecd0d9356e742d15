"""An attempt and what is known of it in; an archive for an issue out: the report, the masked log, the facts."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from app.core.secrets import mask
from app.explain import Told, explain_source
from app.report import to_markdown

if TYPE_CHECKING:
    from app.knowledge import Base

HEAD, TAIL = 1 << 20, 31 << 20
"""Bytes of a log's beginning and end that are packed; what is between is left out, and that is said."""
LONGEST = 1 << 20
"""Bytes of one line that are masked as one."""


def masked_lines(file: IO[bytes], most: int | None = None) -> Iterator[bytes]:
    """The lines of a log without their secrets; at most about `most` bytes."""
    taken = 0
    while line := file.readline(LONGEST):
        yield mask(line.decode("utf-8", "replace")).encode()
        taken += len(line)
        if most is not None and taken >= most:
            return


def packed(target: IO[bytes], name: str, facts: Mapping[str, Any], logs: Sequence[tuple[int, Path, Sequence[str]]],
           base: Base) -> None:  # fmt: skip
    """Writes a .tar.gz to `target`: run.json (`facts`), and for each of `logs` (attempt, path, argv) log and report.

    A log that is gone is left out.
    """
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        _add(archive, f"{name}/run.json", json.dumps(facts, indent=1, ensure_ascii=False).encode())
        for number, path, argv in logs:
            status, _ = explain_source(str(path), base, Told(argv))
            if status is None:
                continue
            report = to_markdown(status, f"{name}, attempt {number}", base, near=True)
            _add(archive, f"{name}/attempt-{number}.md", report.encode())
            _add(archive, f"{name}/attempt-{number}.log", _log(path))


def _log(path: Path) -> bytes:
    with open(path, "rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if size <= HEAD + TAIL:
            return b"".join(masked_lines(file))
        head = b"".join(masked_lines(file, HEAD))
        begin = max(file.tell(), size - TAIL)
        left = begin - file.tell()
        file.seek(begin)
        if left:
            left += len(file.readline(LONGEST))
        return head + f"… {left} bytes are left out here …\n".encode() + b"".join(masked_lines(file))


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), int(time.time()), 0o644
    archive.addfile(info, io.BytesIO(data))
