"""The hub's status and news in, a terminal's text out: a picture that is drawn again, plain lines, or JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol

from app import eta
from app.hub import Dropped, Hub, News, Subscription

OFTEN = 5.0
"""Seconds between two plain lines of progress in one phase."""
LOOK = 0.5
"""Seconds after which the main thread looks up while there is no news: a signal that the kernel gave to another thread is
handled by the main one only, and only when it runs."""
STYLES = {"starting": "yellow", "ready": "green", "crashed": "red", "stalled": "magenta", "stopped": "blue"}
QUIET = {"fact", "phase", "progress", "remedies", "said", "ended", "symptom", "again"}
"""News that the picture shows in another way."""


class Controls(Protocol):
    """What a view may ask of what runs."""

    def stop(self) -> None: ...

    def choose(self, name: str) -> None: ...


def left_words(left: Mapping[str, Any] | None) -> str:
    """The time left as people read it, "" when it is not known."""
    if not left:
        return ""
    return eta.Left(left["seconds"], left["low"], left["high"], left["source"]).words()


def follow(news: Subscription, hub: Hub, timeout: float | None) -> Iterator[News | None]:
    """Every news until the hub is closed, None whenever `timeout` seconds passed without one. A reader that fell
    behind goes on with what is still kept."""
    while True:
        try:
            item = news.get(timeout)
        except Dropped as dropped:
            news.after = dropped.resume
            continue
        if item is None and hub.closed and news.after >= hub.last:
            return
        yield item


# --- JSON lines -------------------------------------------------------------------------------------------------------


def show_json(hub: Hub, news: Subscription, out: IO[str]) -> None:
    """Every news as one JSON object a line."""
    for item in follow(news, hub, LOOK):
        if item is not None:
            out.write(json.dumps(item.to_json(), ensure_ascii=False) + "\n")
            out.flush()


# --- plain lines ------------------------------------------------------------------------------------------------------


class Plain:
    """News as lines of text, progress now and then."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._told: dict[str, float] = {}

    def lines(self, item: News) -> list[str]:
        """What one news is in plain text; [] for what is left out."""
        data, text = item.data, item.text
        if item.kind == "progress":
            phase = str(data.get("phase"))
            if data.get("done") is None:
                return []
            last = data.get("done") == data.get("total")
            if item.at - self._told.get(phase, 0.0) < OFTEN and not last:
                return []
            self._told[phase] = item.at
            left = left_words(data.get("left"))
            rows = [text + (f", {left} left" if left and not last else "")]
        elif item.kind == "verdict":
            rows = verdict_lines(data, text)
        elif item.kind == "remedies":
            rows = remedy_lines(data["remedies"])
        elif item.kind == "ask" or (item.kind == "end" and data.get("rungs")):
            rows = [text, *(f"  {rung['name']}: {rung['title']}  {' '.join(rung['diff'])}" for rung in data["rungs"])]
        elif item.kind == "relaunch":
            rows = [f"relaunch: {text}", *(f"  {entry[0]} {entry[1:]}" for entry in data["diff"])]
        elif item.kind == "attempt":
            rows = [f"{text}: {' '.join(data['argv'])}", f"  log: {data['log']}"]
        elif item.kind == "phase":
            seconds = data.get("seconds")
            rows = [text + (f" after {eta.clock(seconds)}" if seconds else "")]
        elif item.kind == "stacks":
            rows = [text, *(f"  {line}" for process in data["processes"] for line in process["lines"][:12])]
        elif item.kind in ("fact", "said", "ended"):
            return []
        else:
            rows = [f"{item.kind}: {text}"]
        stamp = time.strftime("%H:%M:%S", time.localtime(item.at))
        return [f"{stamp}  {rows[0]}", *(f"{'':10}{row}" for row in rows[1:])]


def verdict_lines(data: Mapping[str, Any], title: str) -> list[str]:
    """A verdict in a few lines: what, how sure, why now, and the proof."""
    if data["stage"] == "withdrawn":
        return [f"verdict taken back: {data['rule']} ({data['reason']})"]
    rows = [f"ROOT CAUSE ({data['stage']}): {title}", f"  {data['rule']}, line {data['line']}: {data['reason']}"]
    if data.get("evidence"):
        rows.append(f"  > {str(data['evidence']).strip()[:160]}")
    return rows


def remedy_lines(remedies: Sequence[Mapping[str, Any]]) -> list[str]:
    """What helps, numbered, each change as a diff."""
    rows = ["what helps:" if remedies else "no remedy is known"]
    for place, remedy in enumerate(remedies, 1):
        rows.append(f"  {place}. {remedy['title']}")
        if remedy["blocked"]:
            rows.append(f"     not possible here: {remedy['blocked']}")
        elif remedy["change"]:
            rows += [f"     {entry[0]} {entry[1:]}" for entry in remedy["change"]["diff"]]
    return rows


def show_plain(hub: Hub, news: Subscription, out: IO[str]) -> None:
    """Every news as plain lines until the hub is closed."""
    plain = Plain(hub)
    for item in follow(news, hub, LOOK):
        for row in plain.lines(item) if item is not None else ():
            out.write(row + "\n")
        out.flush()


# --- the picture ------------------------------------------------------------------------------------------------------


def draw(status: Mapping[str, Any], recent: Sequence[str], height: int = 40, keys: bool = True) -> Any:
    """One picture of a status (a rich renderable): phases as bars, the last lines, the verdict, the remedies."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    state = status.get("state", "idle")
    engine = status.get("engine") or {}
    head = Text.assemble(
        (f" {state} ", f"bold reverse {STYLES.get(state, 'white')}"),
        f"  {engine.get('name') or 'engine not known yet'} {engine.get('version') or engine.get('releases') or ''}",
        (f"  attempt {status['attempt']}" if status.get("attempt") else "", "dim"),
        (f"  pid {status['pid']}" if status.get("pid") else "", "dim"),
    )
    left = left_words(status.get("left"))
    if left and state == "starting":
        head.append(f"  ready in {left}", "bold")
    parts: list[Any] = [head, _phases(status)]
    verdict = status.get("verdict")
    budget = max(3, height - 6 - len(status.get("phases") or ()) - (14 if verdict else 0) - len(recent))
    rows = [Text(line, no_wrap=True, overflow="ellipsis") for line in (status.get("lines") or [])[-min(12, budget) :]]
    if rows:
        parts.append(Panel(Group(*rows), title="log", title_align="left", border_style="dim"))
    if verdict:
        parts.append(_card(verdict, status, keys))
    parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in recent]
    return Group(*parts)


def _phases(status: Mapping[str, Any]) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for ratio in (None, 36, 24, None, None):
        table.add_column(width=ratio, no_wrap=True)
    for phase in status.get("phases") or ():
        state = phase["state"]
        if state == "pending":
            continue
        broken = state == "running" and status.get("state") in ("crashed", "stopped")
        signs = {"running": ("▶", "yellow"), "done": ("✓", "green"), "skipped": ("–", "dim")}
        sign = Text(*(("✗", "red") if broken else signs[state]))
        bar: Any = Text("")
        count = ""
        if state == "running":
            known = phase["total"] and phase["done"] is not None
            bar = ProgressBar(phase["total"], phase["done"], 24) if known else ProgressBar(None, 0, 24, pulse=True)
            count = f"{phase['done']}/{phase['total']}" if known else ""
        took = eta.clock(phase["seconds"]) if phase["seconds"] is not None else ""
        left = left_words(phase["left"]) if state == "running" else ""
        odd = f"  waits for {', '.join(phase['stragglers'])}" if phase["stragglers"] else ""
        table.add_row(
            sign, Text(phase["title"], "bold" if state == "running" else "dim"), bar, Text(f"{count:>7} {took:>7}"),
            Text((f"{left} left" if left else "") + odd, "cyan"),
        )  # fmt: skip
    return table


def _card(verdict: Mapping[str, Any], status: Mapping[str, Any], keys: bool) -> Any:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    rows: list[Any] = [Text(verdict["title"], "bold red"), Text(f"{verdict['rule']} · {verdict['reason']}", "dim")]
    if verdict.get("evidence"):
        rows.append(Text(f"> {verdict['line']}  {str(verdict['evidence']).strip()}", "yellow", no_wrap=True))
    report = status.get("report") or {}
    cause = next((row for row in report.get("verdicts", ()) if row["role"] == "cause"), None)
    offers = status.get("offers") or []
    if offers:
        for place, rung in enumerate(offers[:9], 1):
            rows += _remedy(Text(f"[{place}] " if keys else f"{place}. ", "bold cyan"), rung["title"], rung["diff"],
                            rung["safe"], rung["cost"])  # fmt: skip
        if keys:
            numbers = "1" if len(offers) == 1 else f"1 to {min(9, len(offers))}"
            rows.append(Text(f"press {numbers} to start with that change, q to end", "bold"))
    elif cause is not None:
        for place, remedy in enumerate(cause["remedies"], 1):
            diff = remedy["change"]["diff"] if remedy["change"] and not remedy["blocked"] else []
            rows += _remedy(Text(f"{place}. ", "bold"), remedy["title"], diff, remedy["safe"], remedy["cost"])
    return Panel(Group(*rows), title=f"root cause ({verdict['stage']})", title_align="left", border_style="red")


def _remedy(mark: Any, title: str, diff: Sequence[str], safe: bool, cost: str) -> list[Any]:
    from rich.text import Text

    rows = [mark.append(title, "bold").append("" if safe else "  (read before you do it)", "dim")]
    rows += [Text(f"    {entry[0]} {entry[1:]}", "green" if entry.startswith("+") else "red") for entry in diff]
    return [*rows, Text(f"    cost: {cost}", "dim")] if cost and diff else rows


def show_picture(hub: Hub, news: Subscription, controls: Controls) -> None:
    """Draws the status anew as things change, until the hub is closed; keys choose a remedy or end the run."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    recent: list[str] = []
    picture = Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop")
    with _keys(lambda key: _press(key, hub, controls)) as keyboard, picture as live:
        drawn = 0.0
        # A start that runs is drawn every second for its clocks, anything else when there is news.
        for item in follow(news, hub, 1.0):
            if item is not None and item.kind not in QUIET:
                text = f"{time.strftime('%H:%M:%S', time.localtime(item.at))}  {item.kind}: {item.text}"
                recent = [*recent, text][-6:]
            busy = item is not None or hub.status.get("state") in ("starting", "stalled")
            if busy and (item is None or time.monotonic() - drawn > 0.1 or item.kind not in QUIET):
                drawn = time.monotonic()
                live.update(draw(hub.status, recent, console.height, keyboard), refresh=True)
        live.update(draw(hub.status, recent, console.height, False), refresh=True)


def _press(key: str, hub: Hub, controls: Controls) -> None:
    offers = hub.status.get("offers") or []
    if key in ("q", "Q"):
        controls.stop()
    elif key.isdecimal() and 0 < int(key) <= len(offers):
        with contextlib.suppress(ValueError):
            controls.choose(offers[int(key) - 1]["name"])


@contextlib.contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[bool]:
    """Hands each key to `press` on a thread, while standard input is a terminal; yields whether it is."""
    if not sys.stdin.isatty():
        yield False
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            if select.select([fd], [], [], 0.5)[0]:
                data = os.read(fd, 32)
                if not data:
                    return
                for key in data.decode("ascii", "ignore"):
                    press(key)

    try:
        tty.setcbreak(fd)
        threading.Thread(target=read, name="keys", daemon=True).start()
        yield True
    finally:
        over.set()
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
