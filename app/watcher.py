"""A log that somebody else's server writes in; the same news as of our own server out. Nothing is started or ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import health
from app.attempt import Asked, Attempt, Limits
from app.core.secrets import mask, mask_argv
from app.history import Entry, History, keys, printed_keys
from app.hub import Hub
from app.offers import scrubbed
from app.outcome import Outcome, Settings
from app.reading import Reading, Told
from app.report import to_json
from app.tail import Tail
from app.warm import warm

if TYPE_CHECKING:
    from app.knowledge import Base
    from app.starts import Starts

UNNAMED = ("failure", "symptom", "state")
"""News after which the facts are reported although no rule names a cause."""


def check(path: Path) -> None:
    """Raises TailError when a log cannot be read: a directory, a pipe, no permission. One that is not there yet can."""
    with Tail(path) as tail:
        for _ in tail.read():
            return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class Watcher:
    """One watched log. `run` blocks until `stop` or `leave`, which may be called from any thread."""

    def __init__(
        self, base: Base, hub: Hub, path: Path, settings: Settings | None = None, starts: Starts | None = None,
        history: History | None = None,
    ) -> None:  # fmt: skip
        """`starts` keeps a run for each start in the log, `history` tells how long earlier ones took. Raises TailError
        at once when `path` can never be a log that is followed."""
        self.settings = settings or Settings()
        self.hub, self.path = hub, path
        self.asked = Asked()
        self._base = base
        self._starts = starts
        self._history = history
        self._keys: tuple[str, str] | None = None
        self._began: float | None = None
        """When the start at hand began (monotonic), where it was seen to begin."""
        self._state = "starting"
        self._report: dict[str, Any] | None = None
        self._verdict: dict[str, Any] | None = None
        limits = Limits(self.settings.limits.silence, None, None)
        self._there = _size(path)
        """Bytes that were there before: their pace says nothing."""
        self._reading = Reading(
            base, versions=self.settings.versions, release=self.settings.release, gpu=self.settings.gpu,
            pace=self.settings.pace, silence=limits.silence,
        )  # fmt: skip
        url = self.settings.health_url
        where = health.endpoint([], url) if url else None
        self._attempt = Attempt(
            self._reading, starts.tail() if starts else Tail(path), self.asked, self._say, self._show, where=where,
            limits=limits, known=self._there,
        )  # fmt: skip

    def stop(self) -> None:
        """Ends the watch."""
        self.asked.stop.set()
        self.asked.wake()

    leave = stop

    def choose(self, name: str) -> None:
        """ValueError: somebody else's server is not ours to start."""
        raise ValueError("this server is not ours to start; start it with `bringup run`")

    def run(self) -> Outcome:
        """Until the watch is ended. TailError when the log cannot be read."""
        check(self.path)
        what = "" if self.path.exists() else ", which is not there yet"
        self._say(Told("watching", f"{self.path}{what}", {"log": str(self.path)}))
        warm(self._base)
        end = self._attempt.follow()
        self._attempt.tail.close()
        cause = end.status.cause
        state = "crashed" if end.status.state == "crashed" else "stopped"
        rule = cause.rule.id if cause else None
        outcome = Outcome("crashed" if state == "crashed" else "stopped", "the watch was ended", rule, was_ready=True)
        self._say(Told("over", outcome.text, {"state": outcome.state, "rule": rule, "status": outcome.status}))
        if self._starts is not None:
            self._starts.close()
        return outcome

    def _say(self, told: Told) -> None:
        if told.kind == "state":
            self._state = told.data["state"]
            if self._state == "ready":
                self._remember()
        elif told.kind == "again":
            self._state, self._verdict, self._report = "starting", None, None
            self._keys, self._began = None, time.monotonic() if self._reading.bytes > self._there else None
        elif told.kind in ("fact", "phase"):
            self._learn()
        elif told.kind == "verdict":
            self._verdict = dict(told.data)
            if told.data["stage"] == "withdrawn":
                self._verdict = self._report = None
        status = self._reading.status
        if self._state != "stalled" and told.kind in ("verdict", "failure", "symptom"):
            self._state = status.state if status.state in ("crashed", "stopped") else self._state
        if told.kind in UNNAMED and self._verdict is None:
            self._report = scrubbed(to_json(status, str(self.path), self._base, near=True))
        news = self.hub.stamp(told.kind, mask(told.text), dict(told.data))
        if self._starts is not None:  # written down before it is told
            self._starts.note(news, told.key, status, self._state)
        if told.kind in ("verdict", "again", *UNNAMED):
            self._show()
        self.hub.tell(news)
        if told.kind == "verdict" and status.cause is not None:
            self._report = report = scrubbed(to_json(status, str(self.path), self._base, near=True))
            self._show()
            cause = next(verdict for verdict in report["verdicts"] if verdict["role"] == "cause")
            data = {"rule": cause["rule"], "remedies": cause["remedies"], "evidence": cause["evidence"]}
            news = self.hub.stamp("remedies", f"{len(cause['remedies'])} remedies", data)
            if self._starts is not None:
                self._starts.note(news, "", status, self._state)
            self.hub.tell(news)

    def _learn(self) -> None:
        """Once it is known what is started: how long earlier starts of it took."""
        if self._history is None or self._keys is not None:
            return
        if self._began is None and not self._there:
            self._began = self._reading.began
        facts = self._reading.facts
        if facts.argv:
            self._keys = keys(facts.argv)
        elif facts.engine and facts.args_complete:
            self._keys = printed_keys(facts.engine, facts.args)
        if self._keys is not None:
            self._reading.expect(self._history.durations(*self._keys))

    def _remember(self) -> None:
        """Keeps how long this start took, if it was watched from where its phases began."""
        took = dict(self._reading.took)
        if self._history is None or self._keys is None or not took:
            return
        now, ready = time.time(), None
        if self._began is not None:
            ready = (time.monotonic() - self._began) * self.settings.pace
        began = now - ready if ready is not None else now
        run = self._starts.run if self._starts else None
        self._history.add(Entry(run or "", 1, *self._keys, (), {}, str(self.path), began, now, "ready",
                                ready_after=ready, phases=took))  # fmt: skip

    def _show(self) -> None:
        status = self._reading.status
        self.hub.status = {
            "schema": 1, "run": self._starts.run if self._starts else None, "state": self._state, "attempt": 1,
            "argv": mask_argv(status.argv) if status.argv else None,
            "began": self._starts.began if self._starts else None,
            "log": str(self.path), "pid": None, "verdict": self._verdict, "report": self._report, "offers": [],
            "attempts": [], "mode": "off", "lines": self._reading.last_lines(),
            **self._reading.snapshot(time.monotonic()),
        }  # fmt: skip
