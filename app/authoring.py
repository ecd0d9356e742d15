"""A log in, a draft rule and a case out: what `bringup rules new` and `bringup case add` write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cases import NOTHING, Case
from .core.diagnosis import Status
from .core.literals import required_literals
from .core.secrets import mask
from .core.tracebacks import Raised
from .explain import explain_bytes
from .report import to_text
from .sources import read

if TYPE_CHECKING:
    from .knowledge import Base

WORDS = re.compile(r"[a-z0-9]+")
CHANGES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)*|/[^\s'\":,)]+|'[^']*'|\"[^\"]*\"")
"""What differs from machine to machine in a message: addresses, numbers, paths, quoted names."""


def new_rule(source: str, name: str | None, into: Path, fixtures: Path, base: Base) -> Iterator[str]:
    """Write a draft rule and its case for an unknown failure; yields what was done and what is left to do.

    Raises SourceError for an unreadable log, ValueError where there is nothing to make a rule of, FileExistsError.
    """
    data = b"".join(read(source))
    status = explain_bytes([data], base)
    if status.cause is not None:
        raise ValueError(f"{source}: {status.cause.rule.id} already explains this log")
    raised = status.exception
    if raised is None:
        raise ValueError(f"{source}: no exception in this log; write the rule by hand (rules/README.md)")
    identity = name or _identity(raised)
    area, _, key = identity.partition("/")
    if not area or not key:
        raise ValueError(f"{identity!r}: an id is area/cause-key")
    rule_file = into / area / f"{key}.yaml"
    if rule_file.exists():
        raise FileExistsError(f"{rule_file}: exists already; choose another --id")
    text = _draft(identity, raised, status)
    rule_file.parent.mkdir(parents=True, exist_ok=True)
    rule_file.write_text(text)
    yield f"wrote {rule_file}"
    from .knowledge import load

    again = load([rule_file], cache=False)
    yield from _write_case(data, None, key, source, "verbatim", fixtures, 0.0, again)
    yield f"now edit {rule_file}: title, cause, remedies and the near miss are marked with TODO; then run `bringup rules check`"


def add_case(
    source: str, name: str | None, cause: str, origin_link: str, origin: str, fixtures: Path, idle: float, base: Base
) -> Iterator[str]:
    """Write a case: the log with secrets masked, its label, its explanation as it is now.

    Raises SourceError, ValueError for a cause that no rule has, FileExistsError.
    """
    if cause not in NOTHING and base.find(cause) is None:
        raise ValueError(
            f"{cause}: no rule has this key; `bringup rules list` shows them, `bringup rules new` writes one"
        )
    yield from _write_case(
        b"".join(read(source)), name, cause.rpartition("/")[2], origin_link or source, origin, fixtures, idle, base
    )


def _write_case(
    data: bytes, name: str | None, cause: str, link: str, origin: str, fixtures: Path, idle: float, base: Base
) -> Iterator[str]:
    folder = fixtures / (name or cause)
    place = 2
    while name is None and folder.exists():
        folder = fixtures / f"{cause}-{place}"
        place += 1
    if folder.exists():
        raise FileExistsError(f"{folder}: exists already; choose another --name")
    log = mask(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    status = explain_bytes([log], base, idle=idle)
    folder.mkdir(parents=True)
    (folder / "server.log").write_bytes(log)
    label: dict[str, Any] = {
        "source": link, "origin": origin, "engine": status.facts.engine or "library", "version": status.facts.version,
        "idle": idle or None, "cause": cause,
    }  # fmt: skip
    import yaml

    (folder / "case.yaml").write_text(
        yaml.safe_dump({key: value for key, value in label.items() if value is not None}, sort_keys=False)
    )
    case = Case(folder.name, folder, cause, origin, link, "", idle, True, "", "")
    (folder / "expect.txt").write_text(to_text(status, f"{folder.name}/server.log", base))
    yield f"wrote {folder}/server.log, case.yaml, expect.txt"
    judged = case.judge(status)
    if judged != "right":
        got = status.cause.rule.id if status.cause else "nothing"
        yield f"note: labelled {cause}, but bringup says {got} ({judged})"


def _identity(raised: Raised) -> str:
    area = (raised.raised_in or "unknown").replace("_", "-").lower()
    kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", raised.type.rpartition(".")[2]).lower()
    words = [
        word for word in WORDS.findall(CHANGES.sub(" ", raised.message.partition("\n")[0]).lower()) if len(word) > 2
    ]
    return f"{area}/{'-'.join([*WORDS.findall(kind), *words[:5]])}"[:90].rstrip("-")


def _draft(identity: str, raised: Raised, status: Status) -> str:
    first = raised.message.partition("\n")[0].strip()
    message = _stable(first)
    frames = [frame for frame in raised.frames if frame.package not in ("", "python")][-2:]
    lines = [
        f"id: {identity}",
        f"title: TODO say the problem in one sentence ({raised.type.rpartition('.')[2]})",
        "status: draft",
        "role: cause",
    ]
    if status.facts.engine:
        lines.append(f"engines: [{status.facts.engine}]")
    lines += ["when:", "  - raises:", f"      type: {_quoted('^' + re.escape(raised.type) + '$')}"]
    if message:
        lines.append(f"      message: {_quoted(message)}")
    if frames:
        lines.append("    frames:")
        for frame in frames:
            if frame.function:
                path = frame.path.split("-packages/")[-1]
                place = re.escape(path) + " in " + re.escape(frame.function.split(" ")[0])
            else:  # a native source file, wherever it was built
                place = re.escape(re.split(r"[/\\]", frame.path)[-1])
            lines.append(f"      - {_quoted(place)}")
    lines += [
        "cause: >", "  TODO what happened and why, for the person who reads the verdict.",
        "remedies:", "  - title: TODO what helps", "    do: TODO", "    proof: suggested",
        "references: []", "near_misses:", "  - log: |", f"      {raised.type}: TODO a message that looks alike and has another cause",
        "    because: TODO which condition tells them apart",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _stable(message: str) -> str:
    """A pattern for the parts of a message that stay the same over machines; "" where too little is left."""
    pieces = [piece.strip() for piece in CHANGES.split(message)]
    kept = [re.escape(piece).replace(r"\ ", " ") for piece in pieces if len(piece) >= 4][:4]
    pattern = ".{0,200}?".join(kept)
    return pattern if required_literals(pattern) else ""


def _quoted(pattern: str) -> str:
    return "'" + pattern.replace("'", "''") + "'"
