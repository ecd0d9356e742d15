"""A command line in, a server that is up (or the reason why not) out: starts it, follows it, names what broke, starts
it again with a change, and tells everything to the hub.

idle → starting → ready | crashed | stalled | stopped. One loop on one thread; what others ask for (`stop`, `leave`,
`choose`) only sets a flag and wakes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from app import health
from app.attempt import Asked, Attempt, End, exit_json
from app.core.secrets import mask, mask_argv
from app.health import Endpoint
from app.history import Entry, History, keys
from app.hub import Hub, News
from app.ladder import Ask, Decision, Ladder, Launch, Retry, Rung, Start, Stop, launch_from, rung_from
from app.offers import offers, scrubbed, shown
from app.outcome import TRANSIENT, Outcome, Settings, State
from app.reading import Reading, Told
from app.report import to_json
from app.runs import Run
from app.tail import Tail
from app.targets import Child, NotStarted, TargetError
from app.targets import state as targets_state
from app.warm import warm

if TYPE_CHECKING:
    from app.knowledge import Base

__all__ = ["TRANSIENT", "Outcome", "Settings", "State", "Supervisor"]

PORT_WAIT = 60.0
"""Seconds that a relaunch waits for its port to become free."""
UNNAMED = ("failure", "symptom", "state", "ended")
"""News after which the facts are reported although no rule names a cause."""


class Supervisor:
    """One run. `run` blocks until it is over; the other methods may be called from any thread."""

    def __init__(self, base: Base, hub: Hub, run: Run, history: History, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.hub, self.folder = hub, run
        self.state: State = "idle"
        self.asked = Asked()
        self._base, self._history = base, history
        self._origin = launch_from({"argv": run.data["argv"], "env": run.data.get("env", ())})
        self._cwd = Path(run.data["cwd"])
        self._ladder = Ladder(self.settings.mode, self.settings.max_attempts)
        self._number = 0
        self._launch = self._origin
        self._via: Rung | None = rung_from(run.data["via"]) if run.data.get("via") else None
        self._attempt: Attempt | None = None
        self._child: Child | None = None
        self._began = 0.0
        self._known: set[str] = set()
        self._attempts: list[dict[str, Any]] = []
        self._offers: tuple[Rung, ...] = ()
        self._asking = False
        self.remedies: tuple[Rung, ...] = ()
        """What the current verdict offers, named, as soon as it is known; replaced as one."""
        self._verdict: dict[str, Any] | None = None
        self._report: Mapping[str, Any] | None = None
        self._stacks: list[dict[str, Any]] = []

    @property
    def launch(self) -> Launch:
        """The launch of the current attempt, secrets and all."""
        return self._launch

    @property
    def asking(self) -> bool:
        """Whether it waits for a person to choose."""
        return self._asking

    def choices(self) -> tuple[Rung, ...]:
        """Every remedy that can be named now: of the current verdict, and on offer from before."""
        names = {rung.name for rung in self.remedies}
        return self.remedies + tuple(rung for rung in self._offers if rung.name not in names)

    # Asked from outside

    def stop(self) -> None:
        """Ends the server by the ladder, and the run with it."""
        self.asked.stop.set()
        self.asked.wake()

    def leave(self) -> None:
        """Ends the run at once; what still runs is named and left running."""
        self.asked.leave.set()
        self.asked.wake()

    def choose(self, name: str) -> None:
        """Takes one of the remedies on offer, by its name. ValueError when it is not on offer."""
        if name not in {rung.name for rung in self._offers}:
            raise ValueError(
                f"{name!r} is not on offer; there are: {', '.join(r.name for r in self._offers) or 'none'}"
            )
        self.asked.choice = name
        self.asked.wake()

    # The run

    def run(self) -> Outcome:
        """Starts or adopts the server and sees it through. NotStarted when the very first start is not possible."""
        try:
            attempt = self._adopt() or self._first()
            while True:
                end = attempt.follow()
                self._record(attempt, end)
                outcome = self._after(end)
                if outcome is not None:
                    return self._finish(outcome)
                attempt = self._begin()
        except NotStarted as error:
            if self._number > 1:
                return self._finish(Outcome("crashed", str(error)))
            self._finish(Outcome("refused", str(error)))
            raise
        finally:
            if self._child is not None:
                self._child.close()

    def _first(self) -> Attempt:
        where = health.endpoint(self._origin.argv, self.settings.health_url)
        if where is not None and (held := health.taken(where)):
            raise NotStarted(f"{held}; end that, or give the server another port")
        ready = self._history.last_ready(keys(self._origin.argv)[1])
        if ready is not None and (ready.argv != self._origin.argv or ready.env):
            before = Launch(ready.argv, tuple(sorted(ready.env.items())))
            if "***" not in str(ready.env):
                day = time.strftime("%Y-%m-%d", time.localtime(ready.ended))
                now, then = mask_argv(self._origin.argv), mask_argv(ready.argv)
                diff = tuple(f"+{word}" for word in then if word not in now)
                gone = tuple(f"-{word}" for word in now if word not in then)
                title = f"The launch that became ready last ({day})"
                self._ladder.before = Rung("before", "", title, before, gone + diff, True, proof="reproduced")
        return self._begin()

    def _begin(self) -> Attempt:
        """Starts `_launch`. NotStarted."""
        self._number += 1
        log = self.folder.log_path(self._number, self.settings.log_directory)
        where = health.endpoint(self._launch.argv, self.settings.health_url)
        child = Child(self.folder.state_path, self.folder.name, [where.port] if where and where.port else [])
        notes = {"attempt": self._number, "launch": self._launch.to_json(), "ladder": self._ladder.to_json(),
                 "via": asdict(self._via) if self._via else None, "attempts": self._attempts}  # fmt: skip
        self._child, self._began = child, time.time()
        child.start(self._launch.argv, self._environ(), log, self._cwd, notes)
        self._verdict = self._report = None
        self._offers = self.remedies = ()
        self._stacks = []
        self._set("starting")
        self._tell_attempt(child)
        return self._follow(child, where, 0)

    def _tell_attempt(self, child: Child) -> None:
        assert child.state is not None
        diff = list(self._via.diff) if self._via else []
        data = {"number": self._number, "argv": mask_argv(self._launch.argv), "log": child.state.log,
                "pid": child.state.pid, "diff": diff, "via": self._via.title if self._via else None}  # fmt: skip
        title = f"attempt {self._number}" + (f": {self._via.title}" if self._via else "")
        self._say(Told("attempt", title, data, f"attempt:{self._number}"))

    def _adopt(self) -> Attempt | None:
        """The server of an earlier bringup, and everything it had found out; None when it has started nothing."""
        rows = list(self.folder.news())
        if rows:
            self._known = {row["key"] for row in rows if row["key"]}
            if self.hub.last < rows[-1]["id"]:
                self.hub.resume(rows[-1]["id"])
        try:
            kept = targets_state.read(self.folder.state_path)
            child = Child.adopt(self.folder.state_path)
        except TargetError as error:
            raise NotStarted(str(error)) from error
        if kept is None or (child is None and not kept.notes):
            return None
        notes = kept.notes
        self._number = int(notes["attempt"])
        self._launch = launch_from(notes["launch"])
        self._ladder = Ladder.from_json(notes["ladder"])
        self._ladder.mode, self._ladder.max_attempts = self.settings.mode, self.settings.max_attempts
        self._via = rung_from(notes["via"]) if notes["via"] else None
        self._attempts = list(notes["attempts"])
        if child is None:  # killed before the server was started: it is started now
            self._number -= 1
            return self._begin()
        self._child, self._began = child, kept.at
        self._set("starting")
        told = [row for row in rows if row["data"].get("attempt") == self._number and row["kind"] == "verdict"]
        last = told[-1]["data"] if told else {}
        verdict = last.get("rule") if last.get("stage") != "withdrawn" else None
        self._tell_attempt(child)  # unless that was done
        what = child.describe() if child.alive() else "a server that has ended meanwhile"
        self._say(Told("adopted", f"goes on with attempt {self._number}: {what}", {"pid": kept.pid, "log": kept.log}))
        where = health.endpoint(self._launch.argv, self.settings.health_url)
        return self._follow(child, where, kept.offset - kept.log_offset, verdict)

    def _follow(self, child: Child, where: Endpoint | None, known: int, verdict: str | None = None) -> Attempt:
        assert child.state is not None
        settings = self.settings
        reading = Reading(
            self._base, argv=self._launch.argv, versions=settings.versions, release=settings.release, gpu=settings.gpu,
            durations=self._history.durations(*keys(self._launch.argv)), pace=settings.pace, verdict=verdict,
            silence=settings.limits.silence,
        )  # fmt: skip
        self._attempt = Attempt(
            reading, Tail(child.state.log), self.asked, self._say, self._show, child=child, where=where,
            limits=settings.limits, known=known,
        )  # fmt: skip
        self._show()
        warm(self._base)  # a server that was just started has nothing to say yet
        return self._attempt

    def _environ(self) -> dict[str, str]:
        env = dict(os.environ)
        for name, value in self._launch.env:
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return env

    # After an attempt

    def _after(self, end: End) -> Outcome | None:
        """What to do now: None when the next launch is set and is to be started."""
        cause = end.status.cause
        rule = cause.rule.id if cause else None
        if end.state == "left":
            return Outcome("left", end.reason, rule, was_ready=end.was_ready)
        self._set(end.state)
        if end.state == "stopped":
            asked = self.asked.stop.is_set()
            return Outcome("stopped", end.reason, rule, asked and not end.was_ready, end.was_ready)
        passing = TRANSIENT.get(rule or "", TRANSIENT.get((rule or "").rpartition("/")[2], ""))
        self._ladder.failed(self._launch, rule or "", offers(end.status, self._launch, self._environ(), self._base),
                            self._via, passing)  # fmt: skip
        state: Literal["crashed", "stalled"] = "stalled" if end.state == "stalled" else "crashed"
        decision = self._ladder.next()
        if isinstance(decision, Ask):
            decision = self._choose(decision)
        if isinstance(decision, Start):
            self._launch, self._via = decision.rung.launch, decision.rung
            data: dict[str, Any] = {
                "rung": decision.rung.name,
                "diff": list(decision.rung.diff),
                "reason": decision.reason,
            }
            self._say(Told("relaunch", f"{decision.rung.title}: {decision.reason}", data, f"relaunch:{self._number}"))
        elif isinstance(decision, Retry):
            text = f"the same launch again in {decision.delay:g} s: {decision.reason}"
            data = {"reason": decision.reason, "delay": decision.delay, "diff": []}
            self._say(Told("relaunch", text, data, f"relaunch:{self._number}"))
            self._sleep(decision.delay)
        if self.asked.leave.is_set() or self.asked.stop.is_set():
            return Outcome("stopped", "asked to stop", rule, interrupted=True)
        if isinstance(decision, Stop):
            self._offers = decision.rungs
            data = {"rungs": [shown(rung) for rung in decision.rungs], "tried": self._ladder.story()}
            self._say(Told("end", decision.reason, data, f"end:{self._number}"))
            return Outcome(state, decision.reason, rule, was_ready=end.was_ready)
        self._free_port()
        return None

    def _choose(self, ask: Ask) -> Decision:
        """Lets a person choose; without one, the offer is the end."""
        self._offers = ask.rungs
        data = {"rungs": [shown(rung) for rung in ask.rungs]}
        count = "1 remedy" if len(ask.rungs) == 1 else f"{len(ask.rungs)} remedies"
        self._say(Told("ask", f"{count} on offer", data, f"ask:{self._number}"))
        if not self.settings.attended:
            return Stop("nobody is here to choose; `--fallback auto` takes the safe ones by itself", ask.rungs)
        self._asking = True
        try:
            while not (self.asked.stop.is_set() or self.asked.leave.is_set()):
                name, self.asked.choice = self.asked.choice, None
                chosen = next((rung for rung in ask.rungs if rung.name == name), None)
                if chosen is not None:
                    return Start(chosen, "chosen")
                self.asked.event.wait()
                self.asked.event.clear()
            return Stop("asked to stop", ask.rungs)
        finally:
            self._asking = False

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0 and not (self.asked.stop.is_set() or self.asked.leave.is_set()):
            self.asked.event.wait(rest)
            self.asked.event.clear()

    def _free_port(self) -> None:
        """Waits until the port of the next launch is free, and says for whom. What holds it after that fails then."""
        where = health.endpoint(self._launch.argv, self.settings.health_url)
        end, said = time.monotonic() + PORT_WAIT, ""
        while where is not None and (held := health.taken(where)) and time.monotonic() < end:
            if held != said:
                said = held
                self._say(Told("waiting", f"{held}; waiting for it"))
            self._sleep(0.25)
            if self.asked.stop.is_set() or self.asked.leave.is_set():
                return

    def _record(self, attempt: Attempt, end: End) -> None:
        """Keeps the attempt: in the status, the state file's notes to come, and the history."""
        cause = end.status.cause
        row: dict[str, Any] = {
            "number": self._number, "argv": mask_argv(self._launch.argv), "began": self._began,
            "ended": time.time(), "state": end.state, "rule": cause.rule.id if cause else None,
            "title": cause.rule.title if cause else None, "exit": exit_json(end.exit), "reason": end.reason,
            "log": attempt.tail.path, "diff": list(self._via.diff) if self._via else [],
            "phases": dict(attempt.reading.took), "ready_at": attempt.ready_at,
        }  # fmt: skip
        attempt.tail.close()
        if end.state == "left":
            return
        self._attempts.append(row)
        if f"{self._number}/ended:{self._number}" in self._known:  # noted by an earlier bringup already
            return
        self._add_history(attempt, end.state, row["rule"] or "", row["title"] or "", str(end.reason))
        self._say(Told("ended", f"attempt {self._number}: {end.state}, {end.reason}", row, f"ended:{self._number}"))

    def _add_history(self, attempt: Attempt, state: str, rule: str = "", title: str = "", exit: str = "") -> None:
        key, model = keys(self._launch.argv)
        values = targets_state.mask({name: value or "" for name, value in self._launch.env})
        env = {name: None if value is None else values[name] for name, value in self._launch.env}
        ready = attempt.ready_at - self._began if attempt.ready_at else None
        self._history.add(Entry(
            self.folder.name, self._number, key, model, self._launch.argv, env, attempt.tail.path, self._began,
            time.time(), state, rule, title, self._via.title if self._via else "", exit,
            ready * self.settings.pace if ready is not None else None, dict(attempt.reading.took),
        ))  # fmt: skip

    def _finish(self, outcome: Outcome) -> Outcome:
        if outcome.state != "left":
            if outcome.state != "refused":
                self._set(outcome.state)
            self.folder.finish({"state": outcome.state, "text": outcome.text, "rule": outcome.rule})
        data = {"state": outcome.state, "rule": outcome.rule, "status": outcome.status}
        self._say(Told("over", outcome.text, data))
        self._show()
        return outcome

    # Telling

    def _set(self, state: State) -> None:
        self.state = state

    def _say(self, told: Told) -> None:
        key = f"{self._number}/{told.key}" if told.key else ""
        if key and key in self._known:
            return
        data = {**told.data, "attempt": self._number}
        if told.kind == "state":
            self._set(told.data["state"])
            self._stacks = self._stacks if self.state == "stalled" else []
        elif told.kind == "stacks":
            self._stacks = list(told.data["processes"])
        elif told.kind == "verdict":
            self._verdict = data if data["stage"] != "withdrawn" else None
        if told.kind in UNNAMED and self._verdict is None and self._attempt is not None:
            self._report = self._reported(self._attempt)
        if told.kind in ("verdict", "attempt", "ask", "remedies", "stacks", *UNNAMED):
            self._show()  # who is woken by the news finds it in the status
        news: News = self.hub.stamp(told.kind, mask(told.text), data)
        self.folder.note(news, key)
        if key:
            self._known.add(key)
        self.hub.tell(news)
        if told.kind == "verdict":
            self._tell_remedies()
        elif told.kind == "state" and told.data["state"] == "ready" and self._attempt is not None:
            self._add_history(self._attempt, "ready")

    def _tell_remedies(self) -> None:
        """The whole report of the verdict, with what can be done about it: made after the verdict was told."""
        attempt = self._attempt
        if attempt is None or self._verdict is None:
            self._report, self._offers, self.remedies = None, (), ()
            return
        status = attempt.reading.status
        if status.cause is None or status.cause.rule.id != self._verdict["rule"]:
            return
        self._report = self._reported(attempt)
        self.remedies = tuple(offers(status, self._launch, self._environ(), self._base))
        cause = next((verdict for verdict in self._report["verdicts"] if verdict["role"] == "cause"), None)
        if cause is not None:
            data = {"rule": cause["rule"], "remedies": cause["remedies"], "evidence": cause["evidence"]}
            self._say(Told("remedies", f"{len(cause['remedies'])} remedies", data, f"remedies:{cause['rule']}"))

    def _reported(self, attempt: Attempt) -> dict[str, Any]:
        """What `explain` would print, with the rules that came near: asked when a verdict changes, not on every line."""
        report: dict[str, Any] = scrubbed(to_json(attempt.reading.status, attempt.tail.path, self._base, near=True))
        return report

    def _show(self) -> None:
        attempt = self._attempt
        now = time.monotonic()
        self.hub.status = {
            "schema": 1, "run": self.folder.name, "state": self.state, "attempt": self._number,
            "argv": mask_argv(self._launch.argv), "began": self._began,
            "log": attempt.tail.path if attempt else None,
            "pid": self._child.state.pid if self._child and self._child.state else None,
            "processes": attempt.processes if attempt else 0,
            "verdict": self._verdict, "report": self._report, "offers": [shown(rung) for rung in self._offers],
            "remedies": [shown(rung) for rung in self.remedies], "attempts": list(self._attempts),
            "mode": self.settings.mode, "stacks": self._stacks,
            "lines": attempt.reading.last_lines() if attempt else [],
            **(attempt.reading.snapshot(now) if attempt else {}),
        }  # fmt: skip
