"""One source in, its status out: what `explain`, the cases and the checks share."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .core.copies import Restored, restore
from .core.diagnosis import Diagnosis, Earlier, Status
from .core.tracebacks import Raised
from .core.verdicts import Near, Verdict
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
    """The status of a log given as chunks; one that was copied or exported is restored first, line numbers stay its own."""
    restored = restore(chunks)
    diagnosis = Diagnosis(base, argv=told.argv, release=told.engine_version, gpu=told.gpu)
    for chunk in restored.chunks:
        diagnosis.feed(chunk)
    diagnosis.close(told.exit)
    status = diagnosis.status(idle)
    if restored.notes:
        status = status._replace(restored=restored.notes)
    return _at_home(status, restored) if restored.moved else status


def _at_home(status: Status, restored: Restored) -> Status:
    """The status with the line numbers of the log as it was given."""
    number = restored.number

    def raised(item: Raised) -> Raised:
        frames = tuple(frame._replace(number=number(frame.number)) for frame in item.frames)
        return item._replace(number=number(item.number), frames=frames)

    def verdict(item: Verdict) -> Verdict:
        evidence = tuple(proof._replace(line=number(proof.line)) for proof in item.evidence)
        return item._replace(number=number(item.number), evidence=evidence)

    def near() -> list[Near]:
        return [item._replace(line=number(item.line)) for item in status.why_not()]

    def earlier(item: Earlier) -> Earlier:
        return item._replace(line=number(item.line))

    return status._replace(
        verdicts=tuple(map(verdict, status.verdicts)),
        exception=raised(status.exception) if status.exception else None,
        earlier=tuple(map(earlier, status.earlier)),
        lines=restored.lines,
        context={number(line): text for line, text in status.context.items()},
        why_not=near,
    )


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
