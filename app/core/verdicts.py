"""Records and facts in, verdicts out; and for every rule that came near, the condition that failed.

There are no scores. Among the causes found in a start the earliest in the log wins, unless one rule says of another that it
says less (`supersedes`). What happened before a server became ready did not stop it, nor what one request of a ready server met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

from .lines import GOES_ON
from .patterns import search
from .records import Record
from .rules import Rule, When
from .tracebacks import Frame, Raised, exceptions

KEPT = 6
"""How many matches of one way a rule shows are kept in one start: the first ones decide."""


class Knowledge(Protocol):
    """What the matcher needs to know of the rule base (app/knowledge.py compiles it)."""

    @property
    def triggers(self) -> Mapping[int, tuple[int, ...]]: ...

    @property
    def marks(self) -> Mapping[int, tuple[str, ...]]: ...

    @property
    def loose(self) -> Mapping[str, tuple[str, ...]]: ...

    def present(self, text: str) -> set[int]: ...

    def when(self, index: int) -> tuple[int, When]: ...

    def rule(self, index: int) -> Rule: ...


class View(Protocol):
    """The facts a condition may ask for; None or empty where not known."""

    @property
    def engine(self) -> str | None: ...

    @property
    def versions(self) -> Mapping[str, str]: ...

    @property
    def releases(self) -> str | None: ...

    @property
    def sm(self) -> str | None: ...

    def setting(self, name: str) -> str | None: ...

    @property
    def ready(self) -> int | None: ...


class Evidence(NamedTuple):
    """A line of the log and why it counts: "text", "exception", "frame", "seen"."""

    line: int
    text: str
    why: str


class Match(NamedTuple):
    """One way of one rule, found in one record. `number` is the decisive line, `names` what the patterns captured."""

    rule: int
    when: When
    number: int
    rank: str
    phase: str
    evidence: tuple[Evidence, ...]
    names: Mapping[str, str]
    since: int = 0
    """The first line of the record, and the last one."""
    until: int = 0
    warned: bool = False
    """Its decisive line was logged as a warning or less: whoever wrote it went on."""
    request: bool = False
    """It was raised while a request was answered."""


class Situation(NamedTuple):
    """What is known besides the log itself when a verdict is asked for."""

    exit: tuple[str, ...] = ()
    """How the process ended, as words a rule may name: "0", "2", "-9", "SIGKILL"; empty while it lives or where unknown."""
    idle: float = 0.0
    last_line: int = 0
    """The last line that was handed on and says anything."""
    served: int = 0
    """The last line in which a ready server is at its work."""
    fatal: int = 0
    """The last line that says that something ended for good."""
    raised: int = 0
    """The last exception that nobody said to be handled."""


class Verdict(NamedTuple):
    """A rule that holds for this start, with its proof. `number` is the decisive line, `over` the rules it supersedes here."""

    rule: Rule
    number: int
    complete: bool
    ranks: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    names: Mapping[str, str]
    phase: str
    warned: bool = False
    revocable: bool = False
    """Whether a later line could take it back (`absent`, `last`)."""
    over: tuple[str, ...] = ()


class Near(NamedTuple):
    """A rule whose trigger stood in the log and that does not hold, with the condition that failed."""

    rule: str
    line: int
    failed: str


@dataclass
class Matcher:
    """Takes the records of one start and remembers what they prove."""

    knowledge: Knowledge
    matches: list[Match] = field(default_factory=list)
    seen: dict[str, Evidence] = field(default_factory=dict)
    near: dict[int, Near] = field(default_factory=dict)
    _kept: dict[int, int] = field(default_factory=dict)

    def take(self, record: Record, phase: str, view: View, raised: list[Raised] | None = None) -> list[Match]:
        """Read one record; returns the matches it gave (deferred conditions are not yet asked)."""
        text = record.text
        present = self.knowledge.present(text)
        asked = [pattern for literal in present for pattern in self.knowledge.marks.get(literal, ())]
        asked += [pattern for literal, row in self.knowledge.loose.items() if literal in text for pattern in row]
        for pattern in asked:
            if pattern not in self.seen and (found := search(pattern, text)):
                self.seen[pattern] = _evidence(record, found.start(), "seen")
        candidates = sorted({when for literal in present for when in self.knowledge.triggers.get(literal, ())})
        if not candidates:
            return []
        if raised is None:
            raised = exceptions(record)
        got: list[Match] = []
        for index in candidates:
            rule, when = self.knowledge.when(index)
            newest = bool(when.idle or when.last)  # what must be the end of the log: only the newest can hold
            if self._kept.get(index, 0) >= KEPT and not newest:
                continue
            result = _match(rule, when, record, text, raised, phase, view)
            if isinstance(result, Match):
                if newest:
                    self.matches = [match for match in self.matches if match.when is not when]
                self._kept[index] = self._kept.get(index, 0) + 1
                got.append(result)
            elif index not in self.near and result:
                self.near[index] = Near("", record.lines[0].number, result)
        self.matches += got
        return got

    def fork(self) -> Matcher:
        """A copy for an early look at records that are not complete."""
        return Matcher(self.knowledge, list(self.matches), dict(self.seen), dict(self.near), dict(self._kept))

    def judge(self, view: View, situation: Situation) -> list[Verdict]:
        """All rules that hold, best first: causes by the line that proves them, then symptoms."""
        found: dict[int, list[Match]] = {}
        for match in self.matches:
            failed = self._deferred(match, view, situation)
            if failed is None:
                found.setdefault(match.rule, []).append(match)
        verdicts = [self._verdict(rule, matches) for rule, matches in found.items()]
        held = {verdict.rule.id for verdict in verdicts}
        dropped: dict[str, list[str]] = {}
        for verdict in verdicts:
            for other in held:
                if other != verdict.rule.id and covers(verdict.rule, other):
                    dropped.setdefault(other, []).append(verdict.rule.id)
        kept = []
        for verdict in verdicts:
            if verdict.rule.id not in dropped:
                over = tuple(sorted(name for name, winners in dropped.items() if verdict.rule.id in winners))
                kept.append(verdict._replace(over=over))
        return sorted(kept, key=lambda v: (v.rule.role == "symptom", v.warned, not v.complete, v.number))

    def why_not(self, view: View, situation: Situation) -> list[Near]:
        """The rules that came near, each with the first condition that failed."""
        out: dict[str, Near] = {}
        held = {match.rule for match in self.matches if self._deferred(match, view, situation) is None}
        for match in self.matches:
            failed = self._deferred(match, view, situation)
            if failed and match.rule not in held:
                name = self.knowledge.rule(match.rule).id
                out.setdefault(name, Near(name, match.number, failed))
        for index, near in self.near.items():
            rule = self.knowledge.when(index)[0]
            if rule not in held:
                name = self.knowledge.rule(rule).id
                out.setdefault(name, Near(name, near.line, near.failed))
        return sorted(out.values(), key=lambda near: (near.line, near.rule))

    def _verdict(self, index: int, matches: list[Match]) -> Verdict:
        rule = self.knowledge.rule(index)
        first = min(matches, key=lambda match: (match.warned, not match.when.complete, match.number))
        ranks = sorted({match.rank for match in matches if match.rank})
        evidence = list(first.evidence)
        evidence += [self.seen[pattern] for pattern in first.when.seen if pattern in self.seen]
        unique = {(item.line, item.text): item for item in reversed(evidence)}
        names = dict(first.names)
        for pattern in first.when.seen:
            if pattern in self.seen and (again := search(pattern, self.seen[pattern].text)):
                names.update({key: value for key, value in again.groupdict().items() if value is not None})
        return Verdict(
            rule, first.number, first.when.complete, tuple(ranks),
            tuple(sorted(unique.values(), key=lambda item: item.line)), names, first.phase,
            first.warned, all(match.when.absent or match.when.last or match.when.idle for match in matches),
        )  # fmt: skip

    def _deferred(self, match: Match, view: View, situation: Situation) -> str | None:
        """The first condition that only the whole start can answer and that fails, or None."""
        when = match.when
        for pattern in when.seen:
            if pattern not in self.seen:
                return f"seen: nothing in this start matches {pattern!r}"
        for pattern in when.absent:
            if pattern in self.seen:
                return f"absent: line {self.seen[pattern].line} matches {pattern!r}"
        if when.exit and situation.exit and not set(when.exit) & set(situation.exit):
            return f"exit: ended with {' '.join(situation.exit)}, wanted {' or '.join(when.exit)}"
        if when.exit and not situation.exit:
            return "exit: not known how the process ended"
        if when.idle and situation.idle < when.idle:
            return f"idle: silent for {situation.idle:.0f} s, wanted {when.idle:.0f} s"
        if (when.idle or when.last) and match.until < situation.last_line:
            return f"last: the log goes on to line {situation.last_line}"
        if view.ready is not None and match.number < view.ready and when.ready is None:
            return f"the server became ready afterwards (line {view.ready})"
        if when.ready is True and not match.request and (view.ready is None or match.number < view.ready):
            return "ready: the server was not ready before this"
        cause = self.knowledge.rule(match.rule).role == "cause"
        ended = max(situation.fatal, situation.raised) >= match.since or bool(situation.exit)
        if cause and match.warned and not ended and not (when.seen or when.last or when.idle):
            return "its line was logged as a warning or less, and nothing ended"
        starting = view.ready is None and match.phase
        if cause and match.request and situation.fatal < match.since and not starting and when.ready is not True:
            return "it was raised while a request was answered, not during a start-up"
        if (
            view.ready is not None
            and match.number > view.ready
            and situation.fatal < match.since
            and situation.served > match.until
        ):
            return f"the server was ready and went on with its work (line {situation.served})"
        if when.ready is False and view.ready is not None:
            return "ready: the server did become ready"
        return facts_against(when, view)


def covers(rule: Rule, other: str) -> bool:
    """Whether `rule` says that it supersedes the rule `other`; "area/*" covers an area (never the rule itself)."""
    return any(
        name == other or (name.endswith("/*") and other.startswith(name[:-1]) and other != rule.id)
        for name in rule.supersedes
    )


def facts_against(when: When, view: View) -> str | None:
    """The first condition on the facts that fails, or None. Versions fail only where known, gpu and args also where unknown."""
    if when.engine and view.engine is not None and view.engine not in when.engine:
        return f"engine: {view.engine} is not {' or '.join(when.engine)}"
    for package, wanted in when.versions:
        known = view.versions.get(package)
        if known is not None and not version_in(known, wanted):
            return f"versions: {package} {known} is not {wanted}"
    if when.gpu and not (view.sm and any(search(pattern, view.sm) for pattern in when.gpu)):
        return f"gpu: {view.sm or 'not known'} is not {' or '.join(when.gpu)}"
    if when.not_gpu and view.sm and any(search(pattern, view.sm) for pattern in when.not_gpu):
        return f"not_gpu: it is {view.sm}"
    for name, pattern in when.args:
        value = view.setting(name)
        if value is None or not search(pattern, value):
            return f"args: {name}={value} does not match {pattern!r}"
    return None


@cache
def version_in(version: str, specifier: str) -> bool:
    """Whether a version lies in a PEP 440 range; local parts (+cu128) do not count, unreadable ones do (True)."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(version.partition("+")[0]), prereleases=True)
    except (InvalidVersion, InvalidSpecifier):
        return True


def _evidence(record: Record, position: int, why: str) -> Evidence:
    line = record.line_at(position)
    return Evidence(line.number, line.text[:2000], why)


def _match(
    rule: int, when: When, record: Record, text: str, raised: list[Raised], phase: str, view: View
) -> Match | str:
    """A match, or the first condition that failed ("" for one that says nothing to a person)."""
    if when.engine and view.engine is not None and view.engine not in when.engine:
        return ""
    evidence: list[Evidence] = []
    names: dict[str, str] = {}
    numbers: list[int] = []
    for pattern in when.text:
        found = search(pattern, text)
        if found is None:
            return f"text: {pattern!r} is not in this record"
        _remember(names, found)
        evidence.append(_evidence(record, found.start(), "text"))
        numbers.append(evidence[-1].line)
    chosen: Raised | None = None
    if when.raises is not None:
        chosen = next((item for item in raised if not item.handled and _raises(when, item, names)), None)
        if chosen is None:
            return f"raises: no exception here is {when.raises.type or ''} {when.raises.message or ''}".rstrip()
        first = _line_text(record, chosen.number)
        evidence.append(Evidence(chosen.number, first, "exception"))
        numbers.insert(0, chosen.number)
    if when.frames:
        where = [chosen] if chosen is not None else []
        frames = next(
            (
                got
                for group in [*([list(item.frames)] for item in where), [[f for item in raised for f in item.frames]]]
                for got in [_in_order(when.frames, group[0], names)]
                if got
            ),
            None,
        )
        if frames is None:
            return f"frames: not all of {', '.join(when.frames)} in this order"
        evidence += [Evidence(frame.number, _line_text(record, frame.number), "frame") for frame in frames]
        numbers.append(frames[-1].number)
    for pattern in when.unless:
        if found := search(pattern, text):
            return f"unless: line {record.line_at(found.start()).number} matches {pattern!r}"
    if when.phase and phase not in when.phase:
        return f"phase: it was {phase or 'not known'}, wanted {' or '.join(when.phase)}"
    if phase in when.not_phase:
        return f"not_phase: it was {phase}"
    if when.rank and not search(when.rank, record.rank):
        return f"rank: {record.rank or 'none'} does not match {when.rank!r}"
    if when.last and not search(when.last, record.lines[-1].text):
        return f"last: the record does not end with {when.last!r}"
    return Match(
        rule, when, numbers[0], record.rank, phase, tuple(evidence), names, record.lines[0].number, record.lines[-1].number,
        _warned(record, numbers[0]), _answering(chosen, raised, numbers[0]),
    )  # fmt: skip


def _answering(chosen: Raised | None, raised: Sequence[Raised], number: int) -> bool:
    """Whether what matched was raised while a request was answered: the exception itself, or the one that line is part of."""
    if chosen is not None:
        return chosen.request
    for item in raised:
        first = min((frame.number for frame in item.frames), default=item.number) - 3
        if first <= number <= item.number + item.message.count("\n"):
            return item.request
    return False


def _warned(record: Record, number: int) -> bool:
    # Kubernetes and container runtimes (Go) tell of others: what they note as information may be another's end.
    return any(line.number == number and line.level in GOES_ON and ".go:" not in line.source for line in record.lines)


def _remember(names: dict[str, str], found: Any) -> None:
    for key, value in found.groupdict().items():
        if value is not None:
            names.setdefault(key, value)


def _raises(when: When, item: Raised, names: dict[str, str]) -> bool:
    raises = when.raises
    assert raises is not None
    if raises.type is not None and search(raises.type, item.type) is None:
        return False
    if raises.package is not None and search(raises.package, item.raised_in) is None:
        return False
    if raises.message is not None:
        found = search(raises.message, item.message)
        if found is None:
            return False
        _remember(names, found)
    return True


def _in_order(patterns: Sequence[str], frames: list[Frame], names: dict[str, str]) -> list[Frame] | None:
    """The frames that satisfy the patterns in this order (gaps allowed), or None."""
    texts = [str(frame) for frame in frames]
    whole = "\n".join(texts)  # what is in none of them is not in all of them: one search instead of one a frame
    if not all(search(pattern, whole) for pattern in patterns):
        return None
    got: list[Frame] = []
    rest = zip(frames, texts, strict=True)
    for pattern in patterns:
        for frame, text in rest:
            if found := search(pattern, text):
                _remember(names, found)
                got.append(frame)
                break
        else:
            return None
    return got


def _line_text(record: Record, number: int) -> str:
    return next((line.text[:2000] for line in record.lines if line.number == number and line.text), "")
