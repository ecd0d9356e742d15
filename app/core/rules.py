"""What a rule is: a cause or a symptom, how it shows in a log, and what helps. Data in (parsed YAML), a checked Rule out.

rules/README.md explains every key to the person who writes one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .before import Before, before_from
from .invalid import Problem
from .literals import is_common, required_literals
from .patches import PATCHES

ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*/[a-z0-9]+(?:[-.][a-z0-9]+)*\Z", re.IGNORECASE)
DANGEROUS = re.compile(r"\((?:[^()\\]|\\.)*[*+](?:[^()\\]|\\.)*\)[*+]|\A(?:\\S|\\w|\.)[*+]")
"""A repeated group with a repetition inside, or a pattern that starts with an unbounded run: both can stall a scan."""

Status = Literal["draft", "stable"]
Role = Literal["cause", "symptom"]
Outcome = Literal["crashed", "stalled", "stopped"]
PROOFS = ("reproduced", "reported", "suggested")
LOG_KEYS = ("text", "frames", "seen", "absent", "unless")
TOP = {
    "id", "title", "status", "role", "outcome", "engines", "when", "partial", "before", "supersedes", "cause", "remedies",
    "references", "near_misses", "fixed_in", "note", "advice",
}  # fmt: skip
CONDITIONS = {
    "text", "raises", "frames", "seen", "absent", "unless", "phase", "not_phase", "engine", "versions", "gpu", "not_gpu",
    "args", "exit", "idle", "last", "ready", "rank",
}  # fmt: skip


class Raises(NamedTuple):
    """One exception must satisfy all that is given: patterns on its type, its message, the package that raised it."""

    type: str | None
    message: str | None
    package: str | None


class When(NamedTuple):
    """One way a rule shows. All conditions must hold; `text`, `raises` and `frames` in the same record.

    `text` patterns are found anywhere in the record, `frames` in this order in one exception, `seen` anywhere in this start,
    `absent` nowhere in it, `unless` not in the record. `versions` maps a package to a PEP 440 range and fails only where the
    version is known and outside; `gpu`, `args` fail where the fact is unknown, `not_gpu` holds there.
    """

    text: tuple[str, ...]
    raises: Raises | None
    frames: tuple[str, ...]
    seen: tuple[str, ...]
    absent: tuple[str, ...]
    unless: tuple[str, ...]
    phase: tuple[str, ...]
    not_phase: tuple[str, ...]
    engine: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    gpu: tuple[str, ...]
    not_gpu: tuple[str, ...]
    args: tuple[tuple[str, str], ...]
    exit: tuple[str, ...]
    idle: float
    last: str | None
    ready: bool | None
    rank: str | None
    complete: bool

    def triggers(self) -> tuple[str, ...]:
        """Literals of which at least one is in every record that can satisfy this: those of the pattern with the longest."""
        best: tuple[str, ...] = ()
        for pattern in self.core():
            literals = required_literals(pattern)
            if literals and _rarity(literals) > _rarity(best):
                best = literals
        return best

    def core(self) -> tuple[str, ...]:
        """The patterns that must be found in the record itself, frames as they stand in its text: for their literals only."""
        raises = self.raises
        given = (raises.message, raises.type) if raises else ()
        frames = (pattern.replace(" in ", r"[\s\S]* in ") for pattern in self.frames)
        return (*self.text, *frames, *(pattern for pattern in given if pattern))


def _rarity(literals: tuple[str, ...]) -> int:
    """How rare the most frequent of some literals is, by its length; what stands in ordinary lines counts nothing."""
    return min((0 if is_common(literal) else len(literal) for literal in literals), default=-1)


class Remedy(NamedTuple):
    """What helps: knobs to set, environment, a shipped patch, or a person's work (`do`).

    Values of `set` and `env` that start with "= " are expressions over captured names and facts; of a list of them the first
    that can be computed counts. `engines`, `versions` (package to range) and `gpu` say where it applies; elsewhere it is not
    offered.
    """

    title: str
    set: tuple[tuple[str, Any], ...] = ()
    env: tuple[tuple[str, Any], ...] = ()
    patch: str | None = None
    do: str | None = None
    cost: str = ""
    safe: bool = True
    proof: str = "suggested"
    verified: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    gpu: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    upgrade: bool = False
    """Whether this is the upgrade to what the rule says it is fixed in: how it is had is worked out, `do` adds to it."""


class NearMiss(NamedTuple):
    """A log that looks alike and must not get this rule; `because` names the condition that tells them apart."""

    log: str
    because: str


class Rule(NamedTuple):
    """A named problem. `id` is "area/cause-key"; `supersedes` lists the rules that say less about the same failure."""

    id: str
    title: str
    status: Status
    role: Role
    outcome: Outcome
    when: tuple[When, ...]
    supersedes: tuple[str, ...]
    cause: str
    remedies: tuple[Remedy, ...]
    references: tuple[str, ...]
    near_misses: tuple[NearMiss, ...]
    fixed_in: tuple[tuple[str, str], ...]
    note: str
    before: tuple[Before, ...] = ()
    """Combinations that are known to fail before anything is started."""
    advice: tuple[tuple[str, str], ...] = ()
    """Advice that engines print and that does not help here: its name in the engine file, and why."""

    @property
    def area(self) -> str:
        return self.id.partition("/")[0]

    @property
    def key(self) -> str:
        return self.id.partition("/")[2]


class _Reading:
    """Collects every problem of one rule file while its parts are read."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def wrong(self, path: Sequence[str | int], reason: str, remedy: str = "") -> None:
        self.problems.append(Problem(tuple(path), reason, remedy))

    def texts(self, value: Any, path: Sequence[str | int], pattern: bool = False) -> tuple[str, ...]:
        """A string or a list of strings; with `pattern` each must compile and not be dangerous."""
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            self.wrong(path, f"expected text or a list of texts, got {type(value).__name__}", "quote it")
            return ()
        if pattern:
            for place, item in enumerate(items):
                self.pattern(item, [*path, place] if len(items) > 1 else path)
        return tuple(items)

    def pattern(self, value: Any, path: Sequence[str | int]) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str):
            self.wrong(path, f"expected a pattern, got {type(value).__name__}", "quote it")
            return None
        try:
            if not required_literals(value):  # which reads it, too
                re.compile(value)
        except re.error as error:
            self.wrong(path, f"not a regular expression: {error}", "escape ( ) [ ] { } . + * ? with a backslash")
            return None
        if DANGEROUS.search(value):
            self.wrong(
                path, "this pattern can take very long", "bound the repetition, e.g. {0,200}, or begin with fixed text"
            )
        return value

    def pairs(self, value: Any, path: Sequence[str | int]) -> tuple[tuple[str, Any], ...]:
        if value is None:
            return ()
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            self.wrong(path, f"expected a mapping, got {type(value).__name__}")
            return ()
        return tuple(value.items())

    def known(self, value: Mapping[str, Any], allowed: set[str], path: Sequence[str | int]) -> None:
        for key in value:
            if key not in allowed:
                self.wrong([*path, key], f"unknown key {key!r}", "known here: " + ", ".join(sorted(allowed)))


def rule_from(data: Any, problems: list[Problem]) -> Rule | None:
    """A rule from a parsed file. Everything wrong goes into `problems`; None when nothing usable is left."""
    read = _Reading(problems)
    if not isinstance(data, Mapping):
        read.wrong((), "a rule file is a mapping with id, title, when, …")
        return None
    read.known(data, TOP, ())
    identity = data.get("id")
    if not isinstance(identity, str) or not ID.match(identity):
        read.wrong(("id",), "expected area/cause-key in lower case with dashes", "for example memory/host-oom-killed")
        identity = "unknown/unknown"
    title = data.get("title")
    if not isinstance(title, str) or not title.strip():
        read.wrong(("title",), "missing: say the problem in one sentence, not the cure")
        title = identity
    status = _choice(read, data, "status", ("draft", "stable"), "draft")
    role = _choice(read, data, "role", ("cause", "symptom"), "cause")
    outcome = _choice(read, data, "outcome", ("crashed", "stalled", "stopped"), "crashed")
    engines = read.texts(data.get("engines"), ("engines",))
    when: list[When] = []
    for key, complete in (("when", True), ("partial", False)):
        alternatives = data.get(key)
        if alternatives is None and key == "partial":
            continue
        if not isinstance(alternatives, list) or not alternatives:
            read.wrong((key,), "expected a list of alternatives", "each a mapping with text, raises, frames, …")
            continue
        for place, alternative in enumerate(alternatives):
            found = _when(read, alternative, (key, place), engines, complete)
            if found is not None:
                when.append(found)
    before = tuple(
        known
        for place, item in enumerate(data.get("before") or [])
        if (known := before_from(read, item, ("before", place), engines)) is not None
    )
    remedies = tuple(
        remedy
        for place, item in enumerate(data.get("remedies") or [])
        if (remedy := _remedy(read, item, ("remedies", place))) is not None
    )
    near = tuple(
        miss
        for place, item in enumerate(data.get("near_misses") or [])
        if (miss := _near_miss(read, item, ("near_misses", place))) is not None
    )
    if any(remedy.upgrade for remedy in remedies) and not data.get("fixed_in"):
        read.wrong(("fixed_in",), "missing: a remedy says upgrade", "for example {sglang: '0.5.12'}")
    cause = data.get("cause", "")
    if role == "cause" and not (isinstance(cause, str) and cause.strip()):
        read.wrong(("cause",), "missing: explain what happened and why, for the person who reads the verdict")
    if role == "cause" and not remedies:
        read.wrong(("remedies",), "missing: at least one remedy, with do: where a person must act")
    return Rule(
        identity, title.strip(), status, role, outcome, tuple(when), read.texts(data.get("supersedes"), ("supersedes",)),
        str(cause).strip(), remedies, read.texts(data.get("references"), ("references",)), near,
        tuple((name, str(version)) for name, version in read.pairs(data.get("fixed_in"), ("fixed_in",))),
        str(data.get("note", "")).strip(), before,
        tuple((name, " ".join(str(why).split())) for name, why in read.pairs(data.get("advice"), ("advice",))),
    )  # fmt: skip


def _choice(read: _Reading, data: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: str) -> Any:
    value = data.get(key, default)
    if value not in allowed:
        read.wrong((key,), f"{value!r} is not one of {', '.join(allowed)}")
        return default
    return value


def _when(
    read: _Reading, data: Any, path: tuple[str | int, ...], engines: tuple[str, ...], complete: bool
) -> When | None:
    if not isinstance(data, Mapping):
        read.wrong(path, "expected a mapping with text, raises, frames, …")
        return None
    read.known(data, CONDITIONS, path)
    logs = {key: read.texts(data.get(key), (*path, key), pattern=True) for key in LOG_KEYS}
    raises = None
    given = data.get("raises")
    if given is not None:
        if isinstance(given, str):
            given = {"type": given}
        if isinstance(given, Mapping):
            read.known(given, {"type", "message", "package"}, (*path, "raises"))
            parts = [read.pattern(given.get(key), (*path, "raises", key)) for key in ("type", "message", "package")]
            raises = Raises(*parts)
        else:
            read.wrong((*path, "raises"), "expected {type:, message:, package:}")
    idle = data.get("idle", 0)
    if not isinstance(idle, int | float) or idle < 0:
        read.wrong((*path, "idle"), "expected seconds")
        idle = 0
    exits = data.get("exit")
    ready = data.get("ready")
    found = When(
        text=logs["text"], raises=raises, frames=logs["frames"], seen=logs["seen"], absent=logs["absent"],
        unless=logs["unless"],
        phase=read.texts(data.get("phase"), (*path, "phase")),
        not_phase=read.texts(data.get("not_phase"), (*path, "not_phase")),
        engine=read.texts(data.get("engine"), (*path, "engine")) or engines,
        versions=tuple((name, str(spec)) for name, spec in read.pairs(data.get("versions"), (*path, "versions"))),
        gpu=read.texts(data.get("gpu"), (*path, "gpu"), pattern=True),
        not_gpu=read.texts(data.get("not_gpu"), (*path, "not_gpu"), pattern=True),
        args=tuple((name, str(value)) for name, value in read.pairs(data.get("args"), (*path, "args"))),
        exit=tuple(map(str, exits if isinstance(exits, list) else [] if exits is None else [exits])),
        idle=float(idle),
        last=read.pattern(data.get("last"), (*path, "last")),
        ready=ready if isinstance(ready, bool) else None,
        rank=read.pattern(data.get("rank"), (*path, "rank")),
        complete=complete,
    )  # fmt: skip
    for place, pattern in enumerate(logs["frames"]):
        if re.search(r"(?<!\\)(?:\\\\)*\\[AZ]", pattern):  # frames are looked for in all of them at once
            read.wrong((*path, "frames", place), "\\A and \\Z stand at no frame's ends", "write ^ or $")
    if not found.core():
        read.wrong(path, "needs text, raises or frames: something that must stand in the log")
    elif not found.triggers():
        read.wrong(path, "no pattern here has a required literal of five characters or more", "add fixed text to one")
    for name in ("seen", "absent"):
        for place, pattern in enumerate(logs[name]):
            if not required_literals(pattern):
                read.wrong((*path, name, place), "needs a required literal of five characters or more")
    return found


def _remedy(read: _Reading, data: Any, path: tuple[str | int, ...]) -> Remedy | None:
    if not isinstance(data, Mapping):
        read.wrong(path, "expected a mapping with title and set, env, patch or do")
        return None
    allowed = set(Remedy._fields)
    read.known(data, allowed, path)
    title = data.get("title")
    if not isinstance(title, str) or not title.strip():
        read.wrong((*path, "title"), "missing: say what is done")
        title = "?"
    if not any(data.get(key) for key in ("set", "env", "patch", "do", "upgrade")):
        read.wrong(path, "does nothing: give set, env, patch, do or upgrade")
    proof = data.get("proof", "suggested")
    if proof not in PROOFS:
        read.wrong((*path, "proof"), f"{proof!r} is not one of {', '.join(PROOFS)}")
        proof = "suggested"
    if not isinstance(data.get("safe", True), bool):
        read.wrong((*path, "safe"), "expected true or false")
    patch = data.get("patch")
    if patch is not None and patch not in PATCHES:
        read.wrong((*path, "patch"), f"there is no patch {patch!r}", "known: " + ", ".join(sorted(PATCHES)))
        patch = None
    do = data.get("do")
    return Remedy(
        title.strip(), read.pairs(data.get("set"), (*path, "set")), read.pairs(data.get("env"), (*path, "env")),
        patch, do.strip() if isinstance(do, str) else None, str(data.get("cost", "")).strip(),
        bool(data.get("safe", True)), proof, read.texts(data.get("verified"), (*path, "verified")),
        tuple((name, str(spec)) for name, spec in read.pairs(data.get("versions"), (*path, "versions"))),
        read.texts(data.get("gpu"), (*path, "gpu"), pattern=True), read.texts(data.get("engines"), (*path, "engines")),
        data.get("upgrade") is True,
    )  # fmt: skip


def _near_miss(read: _Reading, data: Any, path: tuple[str | int, ...]) -> NearMiss | None:
    if not isinstance(data, Mapping) or not isinstance(data.get("log"), str):
        read.wrong(path, "expected log: (text) and because:")
        return None
    if not isinstance(data.get("because"), str):
        read.wrong((*path, "because"), "missing: which condition tells it apart")
    return NearMiss(data["log"], str(data.get("because", "")))
