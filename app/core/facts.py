"""Lines in, facts out: engine and release, libraries, GPU, arguments, how far the start-up is, memory, the ready line.

Everything comes from what `rules/engines` says of each line; nothing here knows an engine by name. One `Facts` is about
one start: ask `starts_anew(line)` first, and take a new one where it says so. No clock: times are the lines' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from .arguments import parse_arguments, parse_command, written
from .engines import LIBRARIES, VERSION_GROUPS, Engine, Era, Gpu, Mark, PrintedAdvice
from .lines import Line
from .lookup import Found, lookup
from .progress import PhaseState, bar_seconds, seconds_of
from .releases import common_releases
from .secrets import mask

_MEASURE = ("_gb", "_mib", "_tokens", "_blocks", "_len", "_requests")
_CONTINUED_LINES = 400
_FRAME = '  File "'
_MANY_FIELDS = 100
"""A configuration with fewer was shortened by somebody: what is missing there proves nothing."""
_FEW = 3
"""A separator this soon after the start belongs to it: a banner, a command printed twice."""


NO_DATA: Mapping[str, Any] = MappingProxyType({})


class Event(NamedTuple):
    """Something a line told. `kind`: engine, version, gpu, args, command, phase, progress, ready; `data`: figures."""

    kind: str
    text: str
    data: Mapping[str, Any] = NO_DATA


class Printed(NamedTuple):
    """A piece of advice that the log gives: where it stands first, its words, and what its pattern captured."""

    advice: PrintedAdvice
    line: int
    text: str
    names: Mapping[str, str]


class Facts:
    """What is known of one start. What is given (argv, versions, gpu, the engine's release) wins over what the log says."""

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        argv: Sequence[str] | None = None,
        versions: Mapping[str, str] | None = None,
        gpu: str | None = None,
        release: str | None = None,
    ) -> None:
        self._lookup = lookup(engines)
        self._engines = {engine.name: engine for engine in engines if engine.name != LIBRARIES}
        self.engine: str | None = None
        """The engine's name, None while nothing tells it."""
        self._sure = False
        self.versions: dict[str, str] = dict(versions or {})
        """Releases by package: the engine's under its own name, libraries under theirs (torch, flashinfer, nccl …)."""
        self.release = release
        """The engine's release as it was told, whether or not the engine is known."""
        self.gpu: str | None = None
        self.sm: str | None = gpu
        """The compute capability as "sm120"."""
        self._sm_told = gpu is not None
        self.args: dict[str, str] = {}
        """The configuration in force, values as printed, secrets masked; empty until the engine printed it."""
        self.args_complete = False
        self.argv: tuple[str, ...] | None = tuple(argv) if argv else None
        self.env: dict[str, str] = {}
        """Environment variables written before the command."""
        self.ready: int | None = None
        """The line that says ready."""
        self.memory: dict[str, float] = {}
        """The latest of each figure: avail_gb, weights_gb, kv_gb, kv_tokens, graph_gb, mem_fraction_static …"""
        self.memory_at: dict[tuple[str, str], float] = {}
        """Free GPU memory in GB at (phase, begin | progress | end)."""
        self.ranks: dict[str, tuple[str, str]] = {}
        """What each rank said last: (phase, begin | progress | end)."""
        self.printed: dict[str, Printed] = {}
        """What the log itself advises to try, by the advice's name."""
        self._eras: list[str] = []
        self._phases: dict[str, PhaseState] = {}
        self._current: PhaseState | None = None
        self._starts: set[tuple[str, str]] = set()
        self._lines = 0
        self._command: list[str] | None = None
        if argv:
            self._recognise(" ".join(argv), None)

    # What is known

    @property
    def version(self) -> str | None:
        """The engine's exact release, where one was printed or given."""
        return self.versions.get(self.engine) if self.engine else None

    @property
    def releases(self) -> str | None:
        """The releases that print lines like these, as a PEP 440 specifier set; None where nothing tells."""
        return common_releases(tuple(self._eras))

    @property
    def phase(self) -> PhaseState | None:
        """The phase that began last."""
        return self._current

    @property
    def phase_id(self) -> str | None:
        return self._current.id if self._current else None

    @property
    def phases(self) -> tuple[PhaseState, ...]:
        """Every phase of the engine in its usual order; () while the engine is not known."""
        return tuple(sorted(self._phases.values(), key=lambda state: state.order))

    @property
    def silence_limit(self) -> float | None:
        """Seconds without a line that are still normal now; None before the first phase and once ready."""
        return self._current.silence if self._current and self.ready is None else None

    @property
    def stragglers(self) -> Mapping[str, tuple[str, ...]]:
        """Phase → the ranks that have not ended it while others have."""
        return {state.id: state.stragglers for state in self.phases if state.state == "running" and state.stragglers}

    def setting(self, name: str) -> str | None:
        """The value of an argument: as the engine printed it, else as it is written on the command line; None else."""
        return self.args.get(name) if self.args else written(name, self.argv or ())

    @property
    def expected_ranks(self) -> int | None:
        """How many ranks the arguments ask for; None where they do not tell."""
        sizes = [self.setting(f"{name}_size") or self.setting(f"{long}_parallel_size") or "" for name, long in _SIZES]
        if not any(sizes):
            return None
        count = 1
        for size in sizes:
            count *= int(size) if size.isdecimal() else 1
        return count

    def literals(self) -> tuple[str, ...]:
        """The strings a raw scan must look for so that no line that matters here is missed."""
        return self._lookup.literals

    # Reading

    def starts_anew(self, line: Line) -> bool:
        """Whether another start begins with this line. Changes nothing."""
        if not self._lines or not line.text or line.text.startswith(_FRAME):
            return False
        for found in self._lookup.starts(line.text):
            if not self._applies(found):
                continue
            if found.engine == LIBRARIES:
                anew = self._lines >= _FEW
            elif self.ready is not None:
                # a served request may quote a command; a shell or a supervisor writes something before it
                anew = found.role == "start" or found.match.start("argv") > 0
            elif self._current is not None and self._current.order > 1:
                anew = True
            else:
                anew = (found.pattern.match, line.rank) in self._starts and self._lines > _FEW
            if anew:
                return True
        return False

    def observe(self, line: Line, now: float | None = None) -> list[Event]:
        """Take one line; `now` (seconds) is its time where it carries none. Returns what it told, if anything."""
        if self._command is not None and self._continue(line.text):
            return [Event("command", " ".join(self.argv or ()))]
        if not line.text:
            return []
        self._lines += 1
        if self.ready is not None:
            return []
        events: list[Event] = []
        if not self._sure:
            self._recognise(line.text, line, events)
        if line.text.startswith(_FRAME):  # most lines of a dense log; a frame tells the engine and nothing else
            return events
        found = self._lookup.find(line.text, self._known())
        if not found:
            return events
        steps: list[Found] = []
        for one in found:
            if one.role == "phase":
                steps.append(one)
            elif one.role == "version":
                self._version(one, events)
            elif one.role == "gpu":
                self._gpu(one, events)
            elif self._applies(one):
                self._tell(one, line, events)
        if steps:
            self._steps(self._chosen_engine(steps, found, events), line, now, events)
        ready = [one for one in found if one.role == "ready" and one.engine == self.engine]
        if ready:
            self._become_ready(line, now, events)
        return events

    def _known(self) -> str | None:
        return self.engine if self._sure else None

    def _applies(self, found: Found) -> bool:
        return self.engine is None or found.engine in (self.engine, LIBRARIES)

    def _recognise(self, text: str, line: Line | None, events: list[Event] | None = None) -> None:
        """Which engine it is: a line only it writes settles it, the look of its prefix is taken until then."""
        name, sure = self._lookup.recognise(text, line)
        if name is None or (self.engine is not None and not sure):
            return
        if name != self.engine:
            self._adopt(name, events)
        self._sure = sure

    def _adopt(self, name: str, events: list[Event] | None) -> None:
        self.engine = name
        if self.release is not None:
            self.versions[name] = self.release
        self._phases = {phase.id: PhaseState.of(phase, n) for n, phase in enumerate(self._engines[name].phases)}
        self._current = None
        if events is not None:
            events.append(Event("engine", self._engines[name].title, {"engine": name}))

    def _chosen_engine(self, steps: Sequence[Found], found: Sequence[Found], events: list[Event]) -> list[Found]:
        """The steps of the engine at hand; an unknown engine becomes known where only one prints such a line."""
        names = {one.engine for one in found if one.role in ("phase", "ready")}
        if self.engine is None:
            if len(names) != 1:
                return []
            self._adopt(names.pop(), events)
        return [one for one in steps if one.engine == self.engine]

    # Single facts

    def _version(self, found: Found, events: list[Event]) -> None:
        for group, value in found.groups():
            if group not in VERSION_GROUPS:
                continue
            name = found.engine if group == "version" else group
            value = value.rstrip(".,-")
            if name not in self.versions:
                self.versions[name] = value
                events.append(Event("version", f"{name} {value}", {"package": name, "version": value}))

    def _gpu(self, found: Found, events: list[Event]) -> None:
        pattern = found.pattern
        assert isinstance(pattern, Gpu)
        groups = dict(found.groups())
        digits = "".join(sign for sign in groups.get("capability", "") if sign.isdigit()) or groups.get("sm", "")
        told, before = bool(digits), (self.gpu, self.sm)
        if "gpu" in groups and self.gpu is None:
            self.gpu = " ".join(groups["gpu"].replace("_", " ").split())
        if told and not self._sm_told:
            self.sm, self._sm_told = f"sm{digits}", True
        elif self.sm is None and pattern.sm:
            self.sm = f"sm{pattern.sm}"
        if (self.gpu, self.sm) != before:
            events.append(Event("gpu", self.gpu or self.sm or "", {"gpu": self.gpu, "sm": self.sm}))

    def _tell(self, found: Found, line: Line, events: list[Event]) -> None:
        """What is neither a phase nor a version: arguments, the command line, an era, the mark of a start."""
        if found.role == "era":
            assert isinstance(found.pattern, Era)
            if found.pattern.releases not in self._eras:
                self._eras.append(found.pattern.releases)
        elif found.role == "advice":
            assert isinstance(found.pattern, PrintedAdvice)
            names = dict(found.groups())
            text = names.get("words", found.match[0])
            self.printed.setdefault(found.pattern.name, Printed(found.pattern, line.number, text, names))
        elif found.role in ("start", "command"):
            self._starts.add((found.pattern.match, line.rank))
            if found.role == "command" and self.argv is None:
                self._begin_command(dict(found.groups()).get("argv", ""), events)
        elif found.role == "args" and not self.args_complete:
            self.args, self.args_complete = parse_arguments(dict(found.groups()).get("args", ""))
            self._date(found.engine)
            self._measure("mem_fraction_static", self.args.get("mem_fraction_static"))
            self._measure("gpu_memory_utilization", self.args.get("gpu_memory_utilization"))
            events.append(Event("args", f"{len(self.args)} arguments", {"complete": self.args_complete}))

    def _date(self, engine: str) -> None:
        """The release, by the fields of a whole configuration: a later one has the fields that each release added."""
        if not self.args_complete or len(self.args) < _MANY_FIELDS:
            return
        for name, release in self._engines[engine].fields:
            self._eras.append(f">={release}" if name in self.args else f"<{release}")

    def _begin_command(self, text: str, events: list[Event]) -> None:
        if text.endswith("\\"):
            self._command = [text[:-1]]
            return
        self.argv, self.env = parse_command(text)
        events.append(Event("command", " ".join(self.argv)))

    def _continue(self, text: str) -> bool:
        """Take a further line of a command that a backslash continues; whether the command is whole now."""
        assert self._command is not None
        self._command.append(text[:-1] if text.endswith("\\") else text)
        if text.endswith("\\") and len(self._command) < _CONTINUED_LINES:
            return False
        self.argv, self.env = parse_command(" ".join(self._command))
        self._command = None
        return True

    def _measure(self, name: str, value: str | None) -> float | None:
        try:
            number = float((value or "").replace(",", ""))
        except ValueError:
            return None
        self.memory[name] = number
        return number

    # Phases

    def _steps(self, steps: Sequence[Found], line: Line, now: float | None, events: list[Event]) -> None:
        clock = seconds_of(line.time) if line.time else None
        clock = now if clock is None else clock
        for kind in ("skip", "info", "progress", "end", "begin"):
            fitting = [one for one in steps if one.mark.kind == kind]
            if not fitting:
                continue
            for one in fitting if kind == "info" else [self._fitting(fitting)]:
                state = self._phases[one.phase]
                if line.rank:
                    self.ranks[line.rank] = (state.id, kind)
                getattr(self, f"_{kind}")(state, one, line, clock, events)
                self._figures(state, one)

    def _fitting(self, steps: Sequence[Found]) -> Found:
        """Where one line fits several phases (each capture draws the same bar), the one that runs has it."""
        for one in steps:
            if one.phase == self.phase_id:
                return one
        running = [one for one in steps if self._phases[one.phase].state == "running"]
        return (running or list(steps))[0]

    def _skip(self, state: PhaseState, one: Found, line: Line, clock: float | None, events: list[Event]) -> None:
        if state.state == "pending":
            state.state, state.text = "skipped", dict(one.groups()).get("why", line.text)[:300]
            events.append(Event("phase", f"{state.title}: skipped", {"phase": state.id, "state": "skipped"}))

    def _info(self, state: PhaseState, one: Found, line: Line, clock: float | None, events: list[Event]) -> None:
        """Figures only."""

    def _begin(self, state: PhaseState, one: Found, line: Line, clock: float | None, events: list[Event]) -> None:
        again = state.state in ("running", "done")
        joins = again and one.mark.by == "every" and bool(line.rank) and line.rank not in state.ranks_begun
        if not joins and not (again and one.mark.by == "one"):  # other processes repeat what one says first
            self._enter(state, line, clock, events)
        if one.mark.by == "every":
            state.ranks_begun.add(line.rank)
        self._total(state, one)

    def _progress(self, state: PhaseState, one: Found, line: Line, clock: float | None, events: list[Event]) -> None:
        busy = self._current is not None and self._current is not state and self._current.state == "running"
        if state.state in ("pending", "skipped") and not (one.mark.nested and busy):
            self._enter(state, line, clock, events)
        groups = dict(one.groups())
        done = int(groups["n"]) if groups.get("n", "").isdigit() else None
        if one.mark.count and line.rank in ("", min(state.ranks_begun, default=line.rank)):
            done = (state.done or 0) + 1
        moved = state.step(done, None, bar_seconds(groups.get("remaining")), mask(line.text))
        before = state.total
        self._total(state, one)
        if moved or before != state.total or (done is None and state.state == "running"):
            events.append(self._progress_event(state, one))

    def _progress_event(self, state: PhaseState, one: Found) -> Event:
        share = f" {state.done}/{state.total}" if state.done is not None and state.total else ""
        figures = {"phase": state.id, "done": state.done, "total": state.total, "remaining": state.remaining}
        return Event("progress", f"{state.title}{share}", {**figures, "nested": one.phase != self.phase_id})

    def _end(self, state: PhaseState, one: Found, line: Line, clock: float | None, events: list[Event]) -> None:
        busy = self._current is not None and self._current is not state and self._current.state == "running"
        if state.state in ("pending", "skipped"):
            if one.mark.nested and busy:
                return
            self._enter(state, line, clock, events)
        if one.mark.by == "every":
            state.ranks_ended.add(line.rank)
            if state.ranks_begun - state.ranks_ended:
                return
        self._total(state, one)
        if state.state != "done":
            elapsed = dict(one.groups()).get("elapsed", "")
            state.finish(line.number, clock, _number(elapsed) if ":" not in elapsed else bar_seconds(elapsed))
            last = dict(one.groups()).get("n", "")
            if last.isdigit():
                state.done = int(last)
            elif state.total is not None and not any(mark.count for mark in self._marks(state)):
                state.done = state.total
            data = {"phase": state.id, "state": "done", "seconds": state.seconds}
            events.append(Event("phase", f"{state.title}: done", data))

    def _marks(self, state: PhaseState) -> Sequence[Mark]:
        phase = self._engines[self.engine].phase(state.id) if self.engine else None
        return phase.marks if phase else ()

    def _enter(self, state: PhaseState, line: Line, clock: float | None, events: list[Event]) -> None:
        """`state` begins; what ran before it is over, unless a rank is still missing there."""
        for other in self._phases.values():
            if other.state == "running" and other is not state and not other.stragglers:
                other.finish(line.number, clock)
        state.begin(line.number, clock)
        self._current = state
        events.append(Event("phase", state.title, {"phase": state.id, "state": "running"}))

    def _total(self, state: PhaseState, one: Found) -> None:
        groups = dict(one.groups())
        if groups.get("total", "").isdigit():
            state.total = int(groups["total"])
        elif groups.get("items"):
            state.total = groups["items"].count(",") + 1 if any(sign.isdigit() for sign in groups["items"]) else 0
            state.done = state.done or 0

    def _figures(self, state: PhaseState, one: Found) -> None:
        draft = "draft_" if state.times > 1 else ""
        for name, value in one.groups():
            if name == "avail_gb":
                number = self._measure(name, value)
                if number is not None:
                    self.memory_at[state.id, one.mark.kind] = number
            elif name.endswith(_MEASURE):
                self._measure(draft + name, value)
        if {"k_gb", "v_gb"} <= self.memory.keys() and "kv_gb" not in self.memory:
            self.memory["kv_gb"] = round(self.memory["k_gb"] + self.memory["v_gb"], 3)

    def _become_ready(self, line: Line, now: float | None, events: list[Event]) -> None:
        clock = seconds_of(line.time) if line.time else None
        self.ready = line.number
        for state in self._phases.values():
            if state.state == "running":
                state.finish(line.number, now if clock is None else clock)
        events.append(Event("ready", "the server is ready", {"engine": self.engine}))


_SIZES = (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
