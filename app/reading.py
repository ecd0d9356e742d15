"""The bytes of a log that is being written in; what to tell about them out: facts, phases, progress, verdicts as they
change, silence, and the time left.

It knows no files, processes or threads; times are given, in seconds on a monotonic clock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from app import eta
from app.core.diagnosis import Diagnosis, News, Status
from app.core.secrets import mask

if TYPE_CHECKING:
    from app.core.facts import Facts
    from app.core.verdicts import Verdict
    from app.knowledge import Base

OFTEN = 0.2
"""Seconds between two news of progress in one phase."""
SETTLED = 0.25
"""Seconds of silence after which what was written is judged as a whole."""
BUSY = 2.0
"""Seconds between such judgements while bytes keep coming."""
SHARE = 1.0
"""A look at unfinished records is followed by a pause of this many times its own length, so that it takes half a core
at most, and only while a traceback is being written."""
UNSPOKEN = 900.0
"""Seconds of silence that are normal before any phase is known."""
KEPT, LAST_LINES = 16 * 1024, 12
"""Bytes kept of the end of the log, and how many of its last lines are shown."""

SHOWN = 2000
"""Bytes of a bar's last drawing that are looked at."""

_COUNT = re.compile(rb"(?<![\d./])(\d{1,9})/(\d{1,9})(?![\d./])")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Told:
    """One thing to tell. `key` names it for all time within its attempt, so that it is told once even when the log is
    read again; "" for what is only of the moment."""

    kind: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""


class Reading:
    """One start, read live. `pace` is how many of the log's seconds pass in one (a replay is faster than life)."""

    def __init__(
        self,
        base: Base,
        *,
        argv: Sequence[str] | None = None,
        versions: Mapping[str, str] | None = None,
        release: str | None = None,
        gpu: str | None = None,
        durations: Mapping[str, Sequence[float]] | None = None,
        pace: float = 1.0,
        verdict: str | None = None,
        silence: float | None = None,
    ) -> None:
        """`durations` are seconds by phase of earlier starts, `verdict` the rule that was told before (when the log is
        read again), `silence` replaces the limits that the engine's phases have."""
        self._base = base
        self.diagnosis = Diagnosis(base, argv=argv, versions=versions, release=release, gpu=gpu)
        self._durations = dict(durations or {})
        self.pace = pace
        self._silence = silence
        self.bytes = 0
        self.began: float | None = None
        self.last: float | None = None
        """When the last bytes came."""
        self.status: Status = self.diagnosis.status()
        """As it was last judged."""
        self.failing: float | None = None
        """Since when the log says that this start has failed."""
        self.verdict = verdict
        self._shown: Verdict | None = None
        self._confirmed: str | None = None
        self._unnamed = ""
        self._symptoms: set[str] = set()
        self._paces: dict[str, eta.Pace] = {}
        self._begun: dict[str, float] = {}
        self.took: dict[str, float] = {}
        """Seconds by phase that is over."""
        self._progress_at: dict[str, float] = {}
        self._kept_progress: dict[str, News] = {}
        self._end = b""
        self._drawn: tuple[int, list[str]] = 0, []
        self._look_at = 0.0
        self._judge_at = 0.0
        self._unseen = False
        self._unjudged = False

    def expect(self, durations: Mapping[str, Sequence[float]]) -> None:
        """From here on these seconds by phase of earlier starts count."""
        self._durations = dict(durations)

    @property
    def facts(self) -> Facts:
        """What is known of the start that the log is at."""
        return self.status.facts

    @property
    def ready(self) -> bool:
        """Whether the engine's log says ready."""
        return self.facts.ready is not None

    # Reading

    def feed(self, data: bytes, now: float, catching: bool = False) -> list[Told]:
        """The next bytes. `catching`: they were written before now, so their pace says nothing."""
        self.bytes += len(data)
        self.began = now if self.began is None else self.began
        self.last = now
        self._end = (self._end + data[-KEPT:])[-KEPT:]
        told: list[Told] = []
        self._unseen = self._unjudged = True
        asked = self._take(self.diagnosis.feed(data), now, catching, told)
        if asked:
            told += self.judge(now)
        return told

    def look(self, now: float) -> list[Told]:
        """What records that are still being written already prove, and what a quiet moment lets us judge."""
        told: list[Told] = []
        if self._unseen and now >= self._look_at:
            self._unseen = False
            begun = time.perf_counter()
            if self._take(self.diagnosis.early(), now, False, told):
                told += self.judge(now)
            self._look_at = now + SHARE * (time.perf_counter() - begun)
        quiet = self.last is not None and now - self.last >= SETTLED
        if self._unjudged and (quiet or now - self._judge_at >= BUSY * (5 if self.ready else 1)):
            self._unjudged = False
            told += self.judge(now)
        told += self._progress(now, all_of_it=quiet)
        return told

    def due(self, now: float) -> float | None:
        """Seconds until `look` has something to do; None when only new bytes matter."""
        when = [self._look_at] if self._unseen else []
        if self._unjudged or self._kept_progress:
            when.append((self.last or now) + SETTLED)
        return max(0.0, min(when) - now) if when else None

    def close(self, exit: Sequence[str], now: float) -> list[Told]:
        """The log ends here; `exit` are the words for how the process ended."""
        told: list[Told] = []
        self._take(self.diagnosis.close(exit), now, False, told)
        self._kept_progress.clear()  # a bar's last drawing, however old, says nothing of the pace
        return told + self.judge(now, final=True)

    def _take(self, news: Sequence[News], now: float, catching: bool, told: list[Told]) -> bool:
        """Core news as things to tell; whether a verdict may have changed."""
        asked = False
        for item in news:
            phase = str(item.data.get("phase", ""))
            key = f"{item.kind}:{item.line}:{phase}:{item.data.get('state', '')}:{item.text}"
            if item.kind == "verdict":
                asked = True
            elif item.kind == "progress":
                if not catching:
                    self._kept_progress[phase] = item
            elif item.kind == "phase":
                told += self._progress(now, all_of_it=True)
                told.append(Told("phase", item.text, self._phase(item, now, catching), key))
            elif item.kind == "ready":
                asked = True
                told.append(Told("said", "the log says that the server is ready", {"line": item.line}, key))
            elif item.kind == "start":
                self._forget()
                told.append(Told("again", "the log goes on with a new start", {"line": item.line}, key))
            else:
                told.append(Told("fact", item.text, {"what": item.kind, "line": item.line, **item.data}, key))
        return asked

    def _forget(self) -> None:
        self.status = self.diagnosis.status()
        self._paces.clear()
        self._begun.clear()
        self.took.clear()
        self._kept_progress.clear()
        self._symptoms.clear()
        self.verdict = self._shown = self.failing = self._confirmed = None

    def _phase(self, item: News, now: float, catching: bool) -> dict[str, Any]:
        """The data of a phase's news. Its duration is the engine's own or the log's, else by the clock of arrival."""
        data = {**item.data, "line": item.line}
        name = str(item.data["phase"])
        if item.data["state"] == "running":
            self._paces[name] = eta.Pace()
            if not catching:
                self._begun[name] = now
            for other in self.status_phases():
                self._over(other, now)
        elif item.data["state"] == "done":
            if data.get("seconds") is None and name in self._begun:
                data["seconds"] = round((now - self._begun[name]) * self.pace, 3)
            if data.get("seconds") is not None:
                self.took[name] = data["seconds"]
        return data

    def _over(self, phase: Any, now: float) -> None:
        """Notes how long a phase took that ended because another began."""
        if phase.state == "done" and phase.id not in self.took:
            began = self._begun.get(phase.id)
            seconds = phase.seconds if phase.seconds is not None else (now - began) * self.pace if began else None
            if seconds is not None:
                self.took[phase.id] = round(seconds, 3)

    def _progress(self, now: float, all_of_it: bool = False) -> list[Told]:
        told = []
        for phase, item in list(self._kept_progress.items()):
            if item.data.get("done") is not None:
                self._paces.setdefault(phase, eta.Pace()).step(int(item.data["done"]), now * self.pace)
            if all_of_it or now - self._progress_at.get(phase, 0.0) >= OFTEN:
                self._progress_at[phase] = now
                del self._kept_progress[phase]
                left = self.left(phase, now)
                data = {**item.data, "line": item.line, "left": left.to_json() if left else None}
                state = next((each for each in self.status_phases() if each.id == phase), None)
                if state is not None and data.get("done") == state.done:
                    data["done"] = self._drawn_so_far(state)
                told.append(Told("progress", item.text, data))
        return told

    # Judging

    def judge(self, now: float, final: bool = False) -> list[Told]:
        """What is to be told of the verdict now: new, confirmed, refined with a reason, or taken back with one."""
        self._judge_at = now
        self.status = status = self.diagnosis.status(self.idle(now))
        told: list[Told] = []
        cause = status.cause
        if cause is not None and getattr(cause, "revocable", False) and not final and self.idle(now) < SETTLED:
            return told  # the next line may take it back
        new = cause.rule.id if cause else None
        failed = status.state == "crashed"
        self.failing = (self.failing or now) if failed else None
        if new != self.verdict:
            told.append(self._changed(cause, final))
            self.verdict, self._shown = new, cause
        elif cause is not None and final and self._confirmed != new:
            told.append(_verdict(cause, "confirmed", "the process has ended and all of its log was read"))
        self._shown = cause or self._shown
        if final and cause is not None:
            self._confirmed = new
        for verdict in status.verdicts:
            if verdict.rule.role == "symptom" and verdict.rule.id not in self._symptoms:
                self._symptoms.add(verdict.rule.id)
                told.append(_symptom(verdict, new))
        raised = status.exception
        if cause is None and failed and raised is not None and self._unnamed != status.fingerprint:
            self._unnamed = status.fingerprint
            message = mask(raised.message.partition("\n")[0])[:300]
            data: dict[str, Any] = {"type": raised.type, "message": message, "raised_in": raised.raised_in or None}
            data |= {"line": raised.number, "fingerprint": status.fingerprint}
            told.append(Told("failure", f"{raised.type}: {message}", data, f"failure:{status.fingerprint}"))
        return told

    def _changed(self, cause: Verdict | None, final: bool) -> Told:
        old = self._shown
        name = self.verdict
        if cause is None:
            reason = "the server became ready after it" if self.ready else "what followed does not bear it out"
            data = {"stage": "withdrawn", "rule": name, "reason": reason}
            return Told("verdict", f"taken back: {name}", data, f"verdict:withdrawn:{name}")
        if name is None:
            if final:
                return _verdict(cause, "confirmed", "the process has ended and all of its log was read")
            return _verdict(cause, "early", "the decisive line was just written")
        if name in cause.over:
            reason = f"it says more about the same failure than {name}"
        elif old is not None and cause.number < old.number:
            reason = f"line {cause.number} came before line {old.number} of {name}, which follows from it"
        elif self.status.earlier and old is not None and old.number < self.status.earlier[-1].line:
            reason = "another start began"
        else:
            reason = f"what was written since speaks against {name}"
        return _verdict(cause, "refined", reason, instead=name)

    # Silence and time

    def idle(self, now: float) -> float:
        """How long the log has been silent, in its own seconds."""
        return 0.0 if self.last is None else max(0.0, now - self.last) * self.pace

    @property
    def silence_limit(self) -> float | None:
        """Seconds of silence that are normal now; None once ready."""
        if self.ready:
            return None
        limit = self._silence if self._silence is not None else self.facts.silence_limit
        return UNSPOKEN if limit is None else limit

    def left(self, phase: str, now: float) -> eta.Left | None:
        """Seconds left in one phase, in the log's own seconds."""
        state = next((each for each in self.status_phases() if each.id == phase), None)
        if state is None or state.state != "running":
            return None
        pace = self._paces.get(phase)
        found = pace.left(state.total, now * self.pace) if pace else None
        if found is None:
            began = self._begun.get(phase)
            elapsed = (now - began) * self.pace if began is not None else 0.0
            found = eta.from_history(self._durations.get(phase, ()), elapsed)
        return found or eta.from_engine(state.remaining)

    def left_in_all(self, now: float) -> eta.Left | None:
        """Seconds until ready: from the whole of earlier starts, corrected by how this one goes."""
        if self.ready or self.began is None:
            return None
        current = self.facts.phase
        later = [state.id for state in self.status_phases() if current is not None and state.order > current.order]
        ahead = [eta.from_history(self._durations[name]) for name in later if name in self._durations]
        if "" not in self._durations:
            return None
        if current is None:
            return eta.from_history(self._durations[""], (now - self.began) * self.pace)
        running = self.left(current.id, now) if current.state == "running" else eta.Left(0.0, 0.0, 0.0, "history")
        return eta.total([running, *ahead])

    def status_phases(self) -> Sequence[Any]:
        """The engine's phases as they are now."""
        return self.facts.phases

    # Showing

    def snapshot(self, now: float) -> dict[str, Any]:
        """Everything for a status: engine, phases with time left, silence, the log's memory figures (GB, or as the name
        says), and what is usual: the median seconds by phase of earlier starts ("": of the whole)."""
        facts = self.facts
        phases = []
        for state in facts.phases:
            left = self.left(state.id, now)
            pace = self._paces.get(state.id)
            rate = pace.rate if pace else None
            began = self._begun.get(state.id)
            seconds = self.took.get(state.id, state.seconds)
            if state.state == "running" and began is not None:
                seconds = round((now - began) * self.pace, 1)
            phases.append({
                "id": state.id, "title": state.title, "state": state.state, "done": self._drawn_so_far(state),
                "total": state.total,
                "seconds": seconds, "left": left.to_json() if left else None, "rate": round(rate, 3) if rate else None,
                "silence": state.silence, "stragglers": list(state.stragglers), "text": state.text,
            })  # fmt: skip
        whole = self.left_in_all(now)
        return {
            "engine": {"name": facts.engine, "version": facts.version, "releases": facts.releases},
            "gpu": {"name": facts.gpu, "sm": facts.sm},
            "phase": facts.phase_id,
            "phases": phases,
            "left": whole.to_json() if whole else None,
            "idle": round(self.idle(now), 1),
            "silence_limit": self.silence_limit,
            "bytes": self.bytes,
            "memory": dict(facts.memory),
            "usual": {name: round(median(took), 1) for name, took in self._durations.items() if took},
        }

    def _drawn_so_far(self, phase: Any) -> int | None:
        """How far a bar is. Its last drawing is read only when the next one paints over it, which may take minutes; what
        it says of the same total is shown already."""
        done: int | None = phase.done
        if phase.state != "running" or not phase.total or done is None or phase.id != self.facts.phase_id:
            return done
        end = self._end.rstrip(b"\r")  # some write it behind a drawing, not before it
        drawing = end[max(end.rfind(b"\n"), end.rfind(b"\r")) + 1 :]
        for found in _COUNT.finditer(drawing[-SHOWN:]):
            if int(found[2]) == phase.total and done < int(found[1]) <= phase.total:
                done = int(found[1])
        return done

    def last_lines(self) -> list[str]:
        """The last lines of the log, a bar as it looks now, secrets masked."""
        if self._drawn[0] != self.bytes:
            rows = self._end.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")[-LAST_LINES - 1 :]
            drawn = (_ANSI.sub("", row.rstrip("\r").rpartition("\r")[2]) for row in rows)
            self._drawn = self.bytes, [mask(row)[:500] for row in drawn if row.strip()][-LAST_LINES:]
        return self._drawn[1]


def _verdict(verdict: Verdict, stage: str, reason: str, instead: str | None = None) -> Told:
    first = verdict.evidence[0] if verdict.evidence else None
    data: dict[str, Any] = {
        "stage": stage, "reason": reason, "rule": verdict.rule.id, "title": verdict.rule.title,
        "complete": verdict.complete, "ranks": list(verdict.ranks), "line": verdict.number,
        "phase": verdict.phase or None, "evidence": mask(first.text)[:300] if first else None, "instead": instead,
    }  # fmt: skip
    return Told("verdict", verdict.rule.title, data, f"verdict:{stage}:{verdict.rule.id}:{instead or ''}")


def _symptom(verdict: Verdict, cause: str | None) -> Told:
    data = {"rule": verdict.rule.id, "line": verdict.number, "ranks": list(verdict.ranks), "of": cause}
    return Told("symptom", verdict.rule.title, data, f"symptom:{verdict.rule.id}")
