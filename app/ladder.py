"""How a start ended and what is offered against it in; what to do next out: start a changed launch, wait, ask, or stop.

Pure: no clock, no processes. The walls that a run has met stand on a stack, each with the launch that met it and the
remedies offered there. A remedy that leads to another wall has helped and is kept; one that leads to the same wall has
not, and the next is tried from where that one began. When a wall has nothing left, the one below it is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Mode = Literal["off", "ask", "auto"]

RETRIES = 4
"""How often one launch is started unchanged again for the same passing failure."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds before the first such start; doubled each time."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line, and what is changed in the environment for it (None: taken out)."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str | None], ...] = ()

    def with_env(self, changes: Mapping[str, str | None], argv: Sequence[str] | None = None) -> Launch:
        """The same launch with more variables changed, and other words where given."""
        return Launch(tuple(argv or self.argv), tuple(sorted({**dict(self.env), **changes}.items())))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"argv": list(self.argv), "env": [list(pair) for pair in self.env]}


@dataclass(frozen=True, slots=True)
class Rung:
    """A changed launch on offer against the cause `rule`. `name` tells it from all others of the run; `diff` has "-…"
    and "+…". Only a `safe` one is started without asking."""

    name: str
    rule: str
    title: str
    launch: Launch
    diff: tuple[str, ...] = ()
    safe: bool = False
    cost: str = ""
    proof: str = "suggested"


@dataclass(frozen=True, slots=True)
class Wall:
    """A failure: the launch that met it, its cause ("" for one that no rule names), and what is offered."""

    launch: Launch
    rule: str
    offers: tuple[Rung, ...] = ()


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt that failed. `via` is the remedy that led to its launch, None for the first and for a repetition."""

    launch: Launch
    rule: str
    via: Rung | None = None
    again: bool = False

    def words(self) -> str:
        """For people: what was started and what came of it."""
        what = "as given" if self.via is None else f"{self.via.title} ({' '.join(self.via.diff) or 'no change'})"
        return f"{what}{', once more' if self.again else ''} → {self.rule or 'a failure that no rule names'}"


@dataclass(frozen=True, slots=True)
class Start:
    """Start this changed launch."""

    rung: Rung
    reason: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Start the same launch again, after `delay` seconds: what stopped it passes by itself."""

    launch: Launch
    delay: float
    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A person has to choose among `rungs`."""

    rungs: tuple[Rung, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing is started any more. `rungs` are those that a person could still take."""

    reason: str
    rungs: tuple[Rung, ...] = ()


Decision = Start | Retry | Ask | Stop


@dataclass
class Ladder:
    """The fallbacks of one run. `failed` takes what happened, `next` says what to do about it."""

    mode: Mode = "ask"
    max_attempts: int = 6
    before: Rung | None = None
    """The launch that became ready last, as a last resort."""
    tried: list[Tried] = field(default_factory=list)
    walls: list[Wall] = field(default_factory=list)
    useless: list[tuple[str, str]] = field(default_factory=list)
    """(cause, title and change) of remedies after which the same cause came again."""
    passing: str = ""
    """Why the last failure passes by itself; "" for one that does not."""

    def failed(
        self, launch: Launch, rule: str, offers: Iterable[Rung] = (), via: Rung | None = None, passing: str = ""
    ) -> None:
        """`launch`, started because of `via`, failed for the cause `rule`; `offers` are best first.

        `passing` says why the same launch may work a moment later.
        """
        again = any(tried.launch == launch for tried in self.tried)
        self.tried.append(Tried(launch, rule, via, again))
        self.passing = passing
        if via is not None and rule and via.rule == rule and not passing:
            self.useless.append(_key(via))
        top = self.walls[-1] if self.walls else None
        if via is not None and rule and any(wall.rule == rule == via.rule for wall in self.walls):
            return  # the same wall: what is offered there still is
        if top is None or (top.launch, top.rule) != (launch, rule):
            self.walls.append(Wall(launch, rule, tuple(offers)))
        else:
            self.walls[-1] = replace(top, offers=tuple(offers))

    def offers(self) -> list[Rung]:
        """What may still be started, best first: against the last wall, then against those before it."""
        started = {tried.launch for tried in self.tried}
        found: list[Rung] = []
        rows = [wall.offers for wall in reversed(self.walls)] + ([(self.before,)] if self.before else [])
        for row in rows:
            for rung in row:
                new = rung.launch not in started and _key(rung) not in self.useless
                if new and all(rung.launch != other.launch for other in found):
                    found.append(rung)
        return found

    def next(self) -> Decision:
        """What to do after the last failure."""
        offers = self.offers()
        last = self.tried[-1]
        if self.mode == "off":
            return Stop("fallbacks are switched off", tuple(offers))
        if len(self.tried) >= self.max_attempts:
            return Stop(f"{_times(len(self.tried))} of {self.max_attempts} allowed: {self.story()}", tuple(offers))
        if self.passing:
            count = sum(1 for tried in self.tried if (tried.launch, tried.rule) == (last.launch, last.rule))
            if count <= RETRIES:
                delay = min(FIRST_PAUSE * 2 ** (count - 1), LONGEST_PAUSE)
                return Retry(last.launch, delay, self.passing)
        if not offers:
            return Stop(f"nothing is left to try; {self.story()}")
        if self.mode == "ask":
            return Ask(tuple(offers), f"{len(offers)} to choose from")
        safe = next((rung for rung in offers if rung.safe), None)
        if safe is None:
            return Stop(f"what is left needs a person's decision; {self.story()}", tuple(offers))
        return Start(safe, self.why(safe))

    def why(self, rung: Rung) -> str:
        """Why this one comes now."""
        last = self.tried[-1]
        if last.rule and last.rule == rung.rule:
            if last.via is not None and last.via.rule == last.rule:
                return f"{last.via.title!r} did not help against {last.rule}"
            return f"against {rung.rule}"
        if not rung.rule:
            return "it became ready before"
        return f"nothing is left against {last.rule or 'a failure that no rule names'}; another way around {rung.rule}"

    def story(self) -> str:
        """What was tried, in one sentence."""
        return "tried: " + "; ".join(f"{place}. {tried.words()}" for place, tried in enumerate(self.tried, 1))

    # Keeping it over a restart of bringup

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ladder:
        """What `to_json` gave. KeyError, TypeError or ValueError for anything else."""
        before = rung_from(data["before"]) if data["before"] else None
        tried = [
            Tried(launch_from(row["launch"]), row["rule"], rung_from(row["via"]) if row["via"] else None, row["again"])
            for row in data["tried"]
        ]
        walls = [
            Wall(launch_from(row["launch"]), row["rule"], tuple(map(rung_from, row["offers"]))) for row in data["walls"]
        ]
        useless = [(rule, what) for rule, what in data["useless"]]
        return cls(data["mode"], data["max_attempts"], before, tried, walls, useless, data["passing"])


def _key(rung: Rung) -> tuple[str, str]:
    return rung.rule, f"{rung.title}: {' '.join(rung.diff)}"


def _times(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def launch_from(data: Mapping[str, Any]) -> Launch:
    """A launch from its JSON form."""
    return Launch(tuple(data["argv"]), tuple((name, value) for name, value in data["env"]))


def rung_from(data: Mapping[str, Any]) -> Rung:
    """A rung from its JSON form."""
    return Rung(**{**data, "launch": launch_from(data["launch"]), "diff": tuple(data["diff"])})
