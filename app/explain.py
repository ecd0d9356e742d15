"""One source in, its status out: what `explain`, the cases and the checks share."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .core.diagnosis import Diagnosis, Status
from .sources import SourceError, read

if TYPE_CHECKING:
    from .knowledge import Base


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller knows and the log may not tell."""

    argv: Sequence[str] | None = None
    engine_version: str | None = None
    gpu: str | None = None
    exit: tuple[str, ...] = ()

    @classmethod
    def read(cls, argv: str | None, engine_version: str | None, gpu: str | None, exits: str | None) -> Told:
        """From command-line texts; a command line that does not split is taken word by word."""
        words: list[str] | None = None
        if argv:
            try:
                words = shlex.split(argv)
            except ValueError:
                words = argv.split()
        return cls(words, engine_version, gpu, tuple(exits.split()) if exits else ())


def explain_bytes(chunks: Iterable[bytes], base: Base, told: Told = Told(), idle: float = 0.0) -> Status:
    """The status of a log given as chunks."""
    diagnosis = Diagnosis(base, argv=told.argv, release=told.engine_version, gpu=told.gpu)
    for chunk in chunks:
        diagnosis.feed(chunk)
    diagnosis.close(told.exit)
    return diagnosis.status(idle)


def explain_source(
    source: str, base: Base, told: Told = Told(), idle: float = 0.0
) -> tuple[Status | None, SourceError | None]:
    """The status of a file or standard input, and what kept it from being read to its end.

    The status is None when nothing could be read at all; both are given when a compressed file broke off.
    """
    problem: list[SourceError] = []
    got = False

    def chunks() -> Iterable[bytes]:
        nonlocal got
        try:
            for chunk in read(source):
                got = True
                yield chunk
        except SourceError as error:
            problem.append(error)

    status = explain_bytes(chunks(), base, told, idle)
    if problem:
        return (status if got else None), problem[0]
    return status, None
