"""The front door of the core: bytes in, news and a status out.

    diagnosis = Diagnosis(knowledge, argv=["python", "-m", "sglang.launch_server", …])
    news = diagnosis.feed(chunk, now=…)        # as often as bytes come, any chunking
    diagnosis.close(exit=("-9", "SIGKILL"))    # or leave it open: the status is always true of what was read
    diagnosis.status()

A file may hold several starts (a restart that appended): each is told apart, the status is about the last.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .deaths import goes_on
from .facts import NO_DATA, Facts
from .lines import Line
from .literals import remember
from .records import Record, Records
from .scan import Scan, Segment
from .text import reader_of
from .tracebacks import Raised, exceptions
from .verdicts import Evidence, Matcher, Near, Situation, Verdict

State = Literal["starting", "ready", "crashed", "stalled", "stopped"]

FATAL = re.compile(
    r"hit an exception|failed to start|Engine core initialization failed|Received sigquit|Initialization failed"
    r"|Failed to initialize executor|terminate called|Fatal Python error|exiting due to|scheduler died|scheduler is dead"
    r"|encountered a fatal error|died unexpectedly|EngineDeadError"
)
STOPPED = re.compile(
    r"^(?:INFO:\s+)?(?:Shutting down|Application shutdown complete|Finished server process)|^KeyboardInterrupt$"
    r"|SIGTERM received|Received SIGTERM|Gracefully exiting"
)
SERVED = re.compile(
    r'"POST \S+ HTTP/[\d.]+" 200(?: OK)?\s*$|^(?:Decode|Prefill) batch[ ,.]|Avg (?:prompt|generation) throughput: '
    r"|^srv +log_server_r: (?:done )?request: POST .* 200$"
)
"""What a server prints while it answers requests."""
KEPT = 200
"""How many exceptions of one start are remembered."""
VOLATILE = re.compile(r"0x[0-9a-f]+|\d+|/[\w./-]+/|'[^']{40,}'")


class News(NamedTuple):
    """Something that just became known. `kind`: phase, progress, ready, verdict, exception, start; `early`: the record that
    shows it is still being written."""

    kind: str
    text: str
    line: int
    data: Mapping[str, Any] = NO_DATA
    early: bool = False


class Earlier(NamedTuple):
    """An earlier start in the same log: where it began and how it ended."""

    line: int
    state: State
    rule: str | None
    title: str | None


class Status(NamedTuple):
    """Everything known of the last start in the log."""

    state: State
    facts: Facts
    verdicts: tuple[Verdict, ...]
    exception: Raised | None
    fingerprint: str
    earlier: tuple[Earlier, ...]
    lines: int
    argv: tuple[str, ...] | None
    context: Mapping[int, str]
    """Lines around the evidence, by number, as far as they were read."""
    why_not: Callable[[], Sequence[Near]] = tuple
    """The rules that came near, each with the condition that failed: worked out when asked for."""
    restored: tuple[str, ...] = ()
    """What was undone to read a log that had been copied or exported (app.core.copies)."""

    @property
    def cause(self) -> Verdict | None:
        """The answer: the first verdict that is a cause."""
        return next((verdict for verdict in self.verdicts if verdict.rule.role == "cause"), None)


class _Ahead(NamedTuple):
    """The start as if the records still being written ended here."""

    matcher: Matcher
    raised: Sequence[tuple[bool, Raised]]
    matched: bool


class Diagnosis:
    """Reads one log, in any chunking, in bounded memory."""

    def __init__(
        self,
        knowledge: Any,
        *,
        argv: Sequence[str] | None = None,
        versions: Mapping[str, str] | None = None,
        gpu: str | None = None,
        release: str | None = None,
    ) -> None:
        """`knowledge` is app.knowledge.Base; argv, versions (package to version), gpu ("sm120") and the engine's release are
        told where the log does not carry them and win over what it says."""
        self._knowledge = knowledge
        self._argv = argv
        self._told: dict[str, Any] = {"argv": argv, "versions": versions, "gpu": gpu, "release": release}
        remember(knowledge.literals_of)
        self._reader = reader_of(knowledge.engines)
        self._records = Records()
        self._scan = Scan(knowledge.literals, lambda: self._records.wants_more, knowledge.quiet, knowledge.always)
        self._earlier: list[Earlier] = []
        self._exit: tuple[str, ...] = ()
        self._begin(1)

    def _begin(self, line: int) -> None:
        self._facts = Facts(self._knowledge.engines, **self._told)
        self._boundary: Line | None = None
        self._matcher = Matcher(self._knowledge)
        self._first_line = line
        self._last: Line | None = None
        self._fatal = 0
        self._stopped = 0
        self._alive = 0
        self._over = False
        self._passing = False
        self._lively = 0
        self._served = 0
        self._exceptions: list[tuple[bool, Raised]] = []
        self._raised = 0
        self._known: dict[str, int] = {}
        self._context: dict[int, str] = {}
        self._ahead: _Ahead | None = None

    # Reading

    def feed(self, data: bytes, now: float | None = None) -> list[News]:
        """Take the next bytes; `now` (seconds) times lines that carry no time of their own."""
        news: list[News] = []
        for segment in self._scan.feed(data):
            news += self._segment(segment, now)
        return news

    def close(self, exit: Iterable[str] = (), now: float | None = None) -> list[News]:
        """The log ends here; `exit` says how the process ended in the words a rule may use ("0", "-9", "SIGKILL")."""
        news: list[News] = []
        for segment in self._scan.close():
            news += self._segment(segment, now)
        news += self._take(self._records.flush())
        self._over = True
        self._exit = tuple(exit)
        return news

    def _segment(self, segment: Segment, now: float | None) -> list[News]:
        news: list[News] = []
        if segment.gap:
            news += self._take(self._records.flush())
        for line in self._reader.read(segment.raw, segment.number):
            news += self._line(line, segment.hit, now)
        return news

    def _line(self, line: Line, hit: bool, now: float | None) -> list[News]:
        """One line. What begins a new start is held back until another line follows: a separator at the end of the log
        ("--- restart ---") begins nothing."""
        news: list[News] = []
        if self._boundary is not None:
            if line.text:
                first = self._boundary
                news += self._take(self._records.flush())
                self._over = True
                self._earlier.append(self._summary())
                self._begin(first.number)
                self._scan.forget()
                news.append(News("start", "a new start begins", first.number))
                news += self._read(first, True, now)
        elif self._facts.starts_anew(line):
            self._boundary = line
            return news
        return news + self._read(line, hit, now)

    def _read(self, line: Line, hit: bool, now: float | None) -> list[News]:
        news: list[News] = []
        self._ahead = None
        for event in self._facts.observe(line, now):
            if event.kind in ("phase", "progress", "ready"):
                self._alive = line.number
            news.append(News(event.kind, event.text, line.number, event.data))
        news += self._take(self._records.add(line))
        if hit:
            self._records.touch()
        self._records.mark(self._facts.phase_id or "")
        if self._passing and goes_on(line):
            self._lively = line.number
        if line.text:
            self._last = line
            if self._facts.ready is not None and SERVED.search(line.text):
                self._served = line.number
            if len(self._context) < 4000:
                self._context[line.number] = line.text[:500]
            if FATAL.search(line.text):
                self._fatal = line.number
            elif STOPPED.search(line.text):
                self._stopped = line.number
        return news

    def _take(self, records: Iterable[Record]) -> list[News]:
        matched = False
        for record in records:
            self._ahead = None
            raised = exceptions(record)
            self._passing = self._passing or any(item.passing for item in raised)
            self._raised = max([self._raised, *(item.number for item in raised if not item.handled)])
            self._exceptions += [
                pair for pair in _with_fate(record, raised) if not (pair[1].handled or pair[1].request)
            ]
            del self._exceptions[KEPT // 2 : -KEPT // 2]  # the first ones and the last ones
            matched = bool(self._matcher.take(record, record.phase or "", self._facts, raised)) or matched
        return self._news(self._matcher, early=False) if matched else []

    def _news(self, matcher: Matcher, early: bool) -> list[News]:
        """The verdicts that hold by now and were not told yet. What a later line could still take back is not told."""
        out: list[News] = []
        for verdict in matcher.judge(self._facts, self._situation()):
            rule = verdict.rule
            if rule.id in self._known or verdict.revocable:
                continue
            self._known[rule.id] = verdict.number
            over = [name for name in verdict.over if name in self._known]
            data = {"rule": rule.id, "role": rule.role, "complete": verdict.complete, "over": over}
            out.append(News("verdict", rule.title, verdict.number, data, early))
        return out

    # Asking

    def early(self) -> list[News]:
        """What the records still being written already prove. Changes nothing but what counts as told."""
        ahead = self._look_ahead()
        return self._news(ahead.matcher, early=True) if ahead.matched else []

    def _look_ahead(self) -> _Ahead:
        """Reads the records that are still being written; once until another line comes."""
        if self._ahead is None:
            matcher, raised, matched = self._matcher.fork(), [], False
            for record in self._records.pending():
                found = exceptions(record)
                raised += _with_fate(record, found)
                matched = bool(matcher.take(record, record.phase or "", self._facts, found)) or matched
            self._ahead = _Ahead(matcher, raised, matched)
        return self._ahead

    def status(self, idle: float = 0.0) -> Status:
        """What is known now; `idle` is how long the log has been silent, in seconds."""
        ahead = self._look_ahead()
        matcher, facts = ahead.matcher, self._facts
        situation = self._situation(idle, ahead.raised)
        verdicts = tuple(matcher.judge(facts, situation))
        chosen = self._exception(verdicts, ahead.raised)
        state = self._state(verdicts, chosen, idle)
        wanted = {number for verdict in verdicts for item in verdict.evidence for number in _around(item)}
        context = {number: text for number, text in self._context.items() if number in wanted}
        argv = self._argv or facts.argv
        return Status(
            state, facts, verdicts, chosen, fingerprint(chosen), tuple(self._earlier), self._scan.last_line,
            tuple(argv) if argv else None, context, lambda: matcher.why_not(facts, situation),
        )  # fmt: skip

    def _situation(self, idle: float = 0.0, pending: Sequence[tuple[bool, Raised]] = ()) -> Situation:
        last = self._last.number if self._last else 0
        raised = max([self._raised, *(item.number for _, item in pending if not item.handled)])
        return Situation(self._exit, idle, last, self._served, self._fatal, raised)

    def _summary(self) -> Earlier:
        status = self.status()
        cause = status.cause
        return Earlier(
            self._first_line, status.state, cause.rule.id if cause else None, cause.rule.title if cause else None
        )

    def _exception(self, verdicts: Sequence[Verdict], pending: Sequence[tuple[bool, Raised]]) -> Raised | None:
        """The exception that matters: the cause's own, else the first of the failing record, else the last one."""
        ready = self._facts.ready or 0
        known = [pair for pair in (*self._exceptions, *pending) if pair[1].type and not pair[1].handled]
        known = [pair for pair in known if pair[1].number > ready]
        cause = next((verdict for verdict in verdicts if verdict.rule.role == "cause"), None)
        if cause is not None:
            lines = {item.line for item in cause.evidence}
            for _, item in known:
                if item.number in lines or any(frame.number in lines for frame in item.frames):
                    return item
        known = [pair for pair in known if self._ended(pair[1])]
        fatal = [item for is_fatal, item in known if is_fatal]
        if fatal:
            return fatal[0]
        return known[-1][1] if known else None

    def _ended(self, raised: Raised) -> bool:
        """Whether it ended the server, as far as the log tells: of what servers also outlive, the end of the log decides."""
        if raised.request:
            return False
        if raised.last_only:
            return self._over and self._last is not None and self._last.number <= raised.number
        return not raised.passing or (self._over and self._lively < raised.number)

    def _state(self, verdicts: Sequence[Verdict], chosen: Raised | None, idle: float) -> State:
        cause = next((verdict for verdict in verdicts if verdict.rule.role == "cause"), None)
        if cause is not None:
            return cause.rule.outcome
        ready = self._facts.ready or 0
        # Of consequence lines the first decides: a crash ends in the same tear-down lines as a stop.
        symptoms = [v for v in verdicts if v.number > ready and v.rule.outcome != "stalled"]
        first = min(symptoms, key=lambda verdict: verdict.number, default=None)
        if first is not None and first.rule.outcome == "stopped":
            return "stopped"
        if first is not None or self._fatal > ready:
            return "crashed"
        if self._stopped > ready:
            return "stopped"
        if chosen is not None and not ready and chosen.number > self._alive:
            return "stopped" if chosen.type.rpartition(".")[2] in ("KeyboardInterrupt", "SystemExit") else "crashed"
        if self._exit and not ready and "0" not in self._exit:
            return "stopped" if {"SIGTERM", "SIGINT"} & set(self._exit) else "crashed"
        if ready:
            return "ready"
        limit = self._facts.silence_limit
        if idle and limit is not None and idle > limit:
            return "stalled"
        return "starting"


def _with_fate(record: Record, raised: Sequence[Raised]) -> list[tuple[bool, Raised]]:
    """Each exception of a record, with whether the record says that it is the end."""
    fatal = bool(raised) and FATAL.search(record.text) is not None
    return [(fatal, item) for item in raised]


def _around(item: Evidence) -> range:
    return range(item.line - 2, item.line + 3)


def fingerprint(raised: Raised | None) -> str:
    """A short name for a failure that stays the same over machines, ranks, addresses and line numbers; "" for none."""
    if raised is None:
        return ""
    frames = [frame for frame in raised.frames if frame.package not in ("", "python")][-3:]
    parts = [raised.type, VOLATILE.sub("#", raised.message.partition("\n")[0])[:200]]
    parts += [f"{frame.package}:{frame.path.rpartition('/')[2]}:{frame.function}" for frame in frames]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()
