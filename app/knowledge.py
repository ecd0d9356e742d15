"""rules/ on disk in, a compiled rule base out: checked (all problems at once, each with file:line) and cached.

The cache is one file, keyed by the content of every rule file, this program, the libraries and the CPU's features; a link
to it is keyed by the files' sizes and times, so that a warm start reads neither YAML nor rules, only what a log really
needs. A rule's own text is unpacked when it is shown.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .core import patterns
from .core.deaths import MARKS
from .core.rules import Rule, When

if TYPE_CHECKING:
    from .core.engines import Engine
    from .core.flags import FlagTable
    from .core.knobs import Knob
    from .core.lookup import Lookup
    from .core.scan import Literals
    from .rulefiles import Located

MARKERS = (
    "Traceback (most recent call last)", "Error: ", "Exception: ", "exc.Unsupported", "terminate called after", "  what():  ",
    "Fatal Python error", "Segmentation fault", "Bus error", "core dumped", "Received sigquit", "hit an exception",
    "CUDA error", "NCCL WARN", "Xid (PCI", "out of memory", "Out of memory: Killed", "oom-kill", "error: ", "KeyboardInterrupt",
    "nvcc fatal", "ptxas fatal", "failed to start", "Initialization failed", "AssertionError", "NotImplementedError",
    "EOFError", "OutOfResources", *(mark for mark in MARKS if mark not in ("CUDA error", "error: ", "Error: ")),
)  # fmt: skip
"""What announces trouble in any server, whatever the rules say: no unknown failure may pass unseen."""


MOST_BASES = 8
"""Caches that are kept: of several versions and rule directories."""
MOST_PATTERNS = 20_000
"""When more than this have gathered over the versions of the rules, they are gathered anew."""


@dataclass(repr=False)
class Base:
    """The compiled rule base; satisfies app.core.verdicts.Knowledge."""

    ways: tuple[tuple[int, bytes], ...]
    """Every way a rule shows: the rule's index, and the packed When (see `when`)."""
    triggers: Mapping[int, tuple[int, ...]]
    marks: Mapping[int, tuple[str, ...]]
    loose: Mapping[str, tuple[str, ...]]
    strings: tuple[bytes, ...]
    packed: tuple[bytes, ...]
    sources: tuple[str, ...]
    engines: tuple[Engine, ...]
    launches: Mapping[str, bytes]
    literals_of: Mapping[str, tuple[str, ...]]
    packed_breaks: bytes
    stored: tuple[bytes, bytes] | None = None
    lookup: Lookup | None = None
    """That of the engines, where the base comes out of the cache."""
    problems: tuple[Located, ...] = ()
    """What is wrong in the files; a rule with a problem is left out, the others are used."""
    _rules: dict[int, Rule] = field(default_factory=dict)
    _whens: dict[int, When] = field(default_factory=dict)
    _launches: dict[str, tuple[dict[str, Knob], FlagTable | None]] = field(default_factory=dict)

    @cached_property
    def literals(self) -> Literals:
        from .core.scan import Literals

        if self.stored is not None:
            try:
                return Literals(self.strings, self.stored)
            except Exception:  # another CPU or library than the cache was written on: compile anew
                self.stored = None
        ordinary = "\n".join(sample.line for engine in self.engines for sample in engine.samples)
        return Literals(self.strings, ordinary=ordinary)

    @cached_property
    def quiet(self) -> frozenset[int]:
        """The literals that only facts (phases, progress, versions) and `seen`/`absent` ask for: their line is enough."""
        asked = set(self.triggers) | set(range(len(MARKERS)))
        return frozenset(range(len(self.strings))) - asked

    @property
    def always(self) -> range:
        """The literals that are never too frequent to be looked at."""
        return range(len(MARKERS))

    def present(self, text: str) -> set[int]:
        return self.literals.present(text.encode())

    def when(self, index: int) -> tuple[int, When]:
        """A way that a rule shows: the rule's index and the conditions."""
        rule, packed = self.ways[index]
        found = self._whens.get(index)
        if found is None:
            found = self._whens[index] = pickle.loads(packed)
        return rule, found

    def rule(self, index: int) -> Rule:
        found = self._rules.get(index)
        if found is None:
            found = self._rules[index] = pickle.loads(self.packed[index])
        return found

    @cached_property
    def graph_breaks(self) -> Mapping[str, str]:
        """First lines of Dynamo's messages to their numbers in PyTorch's graph-break registry."""
        breaks: Mapping[str, str] = pickle.loads(self.packed_breaks)
        return breaks

    def knobs(self, engine: str) -> tuple[dict[str, Knob], FlagTable | None]:
        """What can be set on an engine's command line, and the flags each of its releases takes (None: no table)."""
        if engine not in self._launches:
            packed = self.launches.get(engine)
            self._launches[engine] = pickle.loads(packed) if packed is not None else ({}, None)
        return self._launches[engine]

    def printed_advice(self) -> dict[str, str]:
        """What engines advise in their logs, in words, by its name."""
        return {one.name: one.says for engine in self.engines for one in engine.advice}

    def rules(self) -> list[Rule]:
        """All rules, by id."""
        return sorted((self.rule(index) for index in range(len(self.packed))), key=lambda rule: rule.id)

    def find(self, name: str) -> tuple[Rule, str] | None:
        """A rule and its file by its id, or by its key where that is unique."""
        hits = [
            index
            for index in range(len(self.packed))
            if self.rule(index).id == name or ("/" not in name and self.rule(index).key == name)
        ]
        return (self.rule(hits[0]), self.sources[hits[0]]) if len(hits) == 1 else None


def shipped_rules() -> Path:
    """The rules that come with this program: beside the package in a checkout, inside it once installed."""
    inside = Path(__file__).parent / "_rules"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "rules"


def load(directories: Sequence[Path] = (), *, disabled: Iterable[str] = (), cache: bool = True) -> Base:
    """The shipped rules and those in `directories` (later ones replace a rule of the same id), without the `disabled` ones.

    A file with a problem is left out and listed in `problems`. Raises FileNotFoundError for a directory that does not exist.
    """
    paths = _paths([shipped_rules(), *directories])
    off = frozenset(disabled)
    home = _cache_home() if cache else None
    if home is None:
        return _compile(_read(paths), off)
    if isinstance(packed := _cached(_patterns_file(home)), dict):
        patterns.unpack(packed)
    atexit.unregister(keep_patterns)
    atexit.register(keep_patterns)
    link = home / f"as-seen-{_digest(off, (_stamp(path) for path in paths))}"
    if isinstance(base := _cached(link), Base):
        return _ready(base)
    files = _read(paths)
    place = home / f"rules-{_digest(off, (part for path, data in files for part in (str(path).encode(), data)))}.pickle"
    base = _cached(place)
    if not isinstance(base, Base):
        base = _compile(files, off)
        if not _store(place, base):
            return base
    _link(link, place)
    return _ready(base)


def _ready(base: Base) -> Base:
    if base.lookup is not None:
        from .core.lookup import remember

        remember(base.engines, base.lookup)
    return base


def keep_patterns() -> None:
    """Keeps what this process has compiled for the next one: what a failure asks for, the next one asks for too."""
    home = _cache_home()
    packed = patterns.pack() if home is not None else {}
    if home is not None and packed:
        _write(_patterns_file(home), packed if len(packed) < MOST_PATTERNS else {})


def check(directories: Sequence[Path] = ()) -> list[Located]:
    """Every problem in the shipped rules and in `directories`, in file order; empty when all is well."""
    from .rulefiles import parse

    problems: list[Located] = []
    parse(_read(_paths([shipped_rules(), *directories])), problems)
    return problems


def _paths(roots: Sequence[Path]) -> list[Path]:
    """Every knowledge file, in a stable order."""
    out: list[Path] = []
    for root in roots:
        if root.is_file():
            out.append(root)
            continue
        if not root.is_dir():
            raise FileNotFoundError(f"{root}: no such rules directory (it holds <area>/<cause-key>.yaml)")
        for folder, names, leaves in os.walk(root):
            names.sort()
            out += [
                Path(folder, leaf)
                for leaf in sorted(leaves)
                if leaf.endswith((".yaml", ".yml", ".json")) and not leaf.endswith(".schema.json")
            ]
    return out


def _read(paths: Iterable[Path]) -> list[tuple[Path, bytes]]:
    return [(path, path.read_bytes()) for path in paths]


def _cache_home() -> Path | None:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "bringup") if os.path.isabs(home) else None


def _stamp(path: Path) -> bytes:
    """A file as a directory listing shows it."""
    status = os.stat(path)
    return f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}".encode()


def _digest(off: frozenset[str], parts: Iterable[bytes]) -> str:
    """A name for the rules that `parts` make, without those that are `off`, read by this program on this machine."""
    digest = hashlib.blake2b(digest_size=16)
    code = Path(__file__)
    for part in (code, code.with_name("rulefiles.py"), *sorted((code.parent / "core").glob("*.py"))):
        digest.update(_stamp(part))
    digest.update(f"{__version__} {sys.version} {sorted(off)} {_cpu()}".encode())
    for text in parts:
        digest.update(b"%d " % len(text) + text)
    return digest.hexdigest()


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return ""


def _patterns_file(home: Path) -> Path:
    import regex

    digest = hashlib.blake2b(f"{sys.version} {os.uname().machine} {regex.__version__}".encode(), digest_size=8)
    return home / f"patterns-{digest.hexdigest()}.pickle"


def _cached(place: Path) -> Any:
    """What was kept there; None where there is nothing, or nothing that is surely ours."""
    try:
        with open(place, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None  # somebody else could have written it: a pickle is code
            if os.path.dirname(os.path.realpath(place)) != os.path.realpath(place.parent):
                return None  # a link out of the folder makes one of what was never meant to be
            return pickle.load(file)
    except (OSError, pickle.PickleError, EOFError, AttributeError, ImportError, LookupError, TypeError, ValueError):
        return None


def _link(link: Path, place: Path) -> None:
    with contextlib.suppress(OSError):
        os.symlink(place.name, link)
    with contextlib.suppress(OSError):
        for old in link.parent.glob("as-seen-*"):
            if old.is_symlink() and not old.exists():
                old.unlink()


def _store(place: Path, base: Base) -> bool:
    """Keeps the base there; whether that could be done."""
    from .core.lookup import lookup

    base.stored = base.literals.dump()
    twin = Base(**{name: getattr(base, name) for name in (
        "ways", "triggers", "marks", "loose", "strings", "packed", "sources", "engines", "launches", "literals_of",
        "packed_breaks", "stored", "problems",
    )}, lookup=lookup(base.engines))  # fmt: skip
    if not _write(place, twin):
        return False
    for kind in ("rules-*.pickle", "patterns-*.pickle"):
        with contextlib.suppress(OSError):
            newest = sorted(place.parent.glob(kind), key=lambda each: each.stat().st_mtime, reverse=True)
            for old in newest[MOST_BASES:]:
                old.unlink()
    return True


def _write(place: Path, what: Any) -> bool:
    """Write the cache beside its place and move it there; a full or read-only disk is no reason to fail."""
    fresh = place.with_suffix(f".{os.getpid()}.tmp")
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            pickle.dump(what, file, protocol=pickle.HIGHEST_PROTOCOL)
        os.replace(fresh, place)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        return False
    return True


def _compile(files: Sequence[tuple[Path, bytes]], off: frozenset[str]) -> Base:
    from .core.literals import is_scanned, required_literals
    from .rulefiles import parse

    problems: list[Located] = []
    rules, engines, launches, breaks = parse(files, problems)
    kept = {name: pair for name, pair in rules.items() if name not in off}
    strings: dict[str, int] = {marker: place for place, marker in enumerate(MARKERS)}

    def number(literal: str) -> int:
        return strings.setdefault(literal, len(strings))

    ways: list[tuple[int, bytes]] = []
    triggers: dict[int, list[int]] = {}
    marks: dict[int, list[str]] = {}
    loose: dict[str, list[str]] = {}
    for index, (rule, _) in enumerate(kept.values()):
        for when in rule.when:
            for literal in when.triggers():
                if not is_scanned(literal):
                    continue
                triggers.setdefault(number(literal), []).append(len(ways))
            for pattern in (*when.seen, *when.absent):
                for literal in required_literals(pattern):
                    row = (
                        marks.setdefault(number(literal), []) if is_scanned(literal) else loose.setdefault(literal, [])
                    )
                    if pattern not in row:
                        row.append(pattern)
            ways.append((index, pickle.dumps(when, protocol=pickle.HIGHEST_PROTOCOL)))
    literals_of: dict[str, tuple[str, ...]] = {}
    for engine in engines:
        for asked in engine.patterns():
            literals_of[asked.match] = asked.literals
            for literal in asked.literals:
                if is_scanned(literal):
                    number(literal)
    return Base(
        ways=tuple(ways),
        triggers={key: tuple(value) for key, value in triggers.items()},
        marks={key: tuple(value) for key, value in marks.items()},
        loose={key: tuple(value) for key, value in loose.items()},
        strings=tuple(text.encode() for text in strings),
        packed=tuple(pickle.dumps(rule, protocol=pickle.HIGHEST_PROTOCOL) for rule, _ in kept.values()),
        sources=tuple(source for _, source in kept.values()),
        engines=tuple(engines),
        launches={name: pickle.dumps(pair) for name, pair in launches.items()},
        literals_of=literals_of,
        packed_breaks=pickle.dumps(breaks),
        problems=tuple(problems),
    )
