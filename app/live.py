"""Options in, an exit status out: puts a supervisor or a watcher, a hub and a view together, and minds the signals."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from app.attempt import Limits
from app.core.secrets import mask, mask_argv
from app.history import FileHistory
from app.hub import Hub, Subscription
from app.knowledge import Base
from app.ladder import Launch
from app.outcome import Outcome, Settings
from app.runs import Busy, Run, state_directory
from app.service import Served, Watched
from app.serving import Api, Stored, beside, holding, watched
from app.starts import place_of
from app.tail import TailError
from app.targets import NotStarted, Patience, TargetError
from app.targets.child import find_command
from app.terminal import show_json, show_picture, show_plain
from app.watcher import check

View = Literal["picture", "plain", "json"]
Ahead = Literal["off", "warn", "refuse"]


class Refused(Exception):
    """Nothing was started or watched; the text says why, in a sentence."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `run`, `watch` and `demo` have in common."""

    settings: Settings
    view: View = "plain"
    state_directory: Path | None = None
    api: Api = field(default_factory=Api)
    stay: bool = False
    """Whether the end of the server is not the end of bringup: it can be started again through the API."""
    database: str | None = None
    """The URL of a data base for the history, which several machines may share."""
    name: str = "server"
    """What the target is called there and in the web API."""
    preflight: Ahead = "warn"
    """What is done with what will break, before the first start: nothing, say it, or do not start."""

    @property
    def root(self) -> Path:
        return (self.state_directory or state_directory()).absolute()


class Runner(Protocol):
    """A supervisor or a watcher."""

    def run(self) -> Outcome: ...

    def stop(self) -> None: ...

    def leave(self) -> None: ...

    def choose(self, name: str) -> None: ...


def view_for(json: bool, no_tui: bool) -> View:
    """The picture on a terminal, plain lines elsewhere."""
    if json:
        return "json"
    return "picture" if sys.stdout.isatty() and not no_tui and os.environ.get("TERM") != "dumb" else "plain"


def settings_from(given: Mapping[str, Any], view: View) -> Settings:
    """Settings from the command line's options. ValueError for a health URL that cannot be asked."""
    patience = Patience(ask=given["stop_timeout"]) if given.get("stop_timeout") is not None else Patience()
    limits = Limits(
        given.get("silence"), given.get("stall_timeout") or None, given.get("linger") or None, patience=patience
    )
    directory = given.get("log_dir")
    return Settings(
        mode=given.get("fallback") or "ask",
        max_attempts=given.get("max_attempts") or 6,
        attended=view == "picture" and sys.stdin.isatty(),
        log_directory=Path(directory).absolute() if directory else None,
        health_url=given.get("health_url"),
        limits=limits,
        release=given.get("engine_version"),
        gpu=given.get("gpu"),
    )


def installed(argv: Sequence[str], settings: Settings) -> Settings:
    """The settings with the releases that the engine's own interpreter has, where it can be asked and was not told."""
    from app.probe import ProbeError, interpreter_of, probe

    python = interpreter_of(argv)
    if python is None:
        return settings
    try:
        found = probe(python)
    except ProbeError:
        return settings
    return replace(settings, versions={**found.versions, **settings.versions}, gpu=settings.gpu or found.sm)


def look_ahead(argv: Sequence[str], base: Base, options: Options) -> None:
    """Say on standard error what will break, before anything is started. Refused where that was asked for."""
    if options.preflight == "off":
        return
    from app.preflight import ask_interpreter, preflight

    release = options.settings.release
    found = ask_interpreter(argv, base, flags="cached")[0] if release is None else None
    report = preflight(argv, base, probe=found, version=release, gpu=options.settings.gpu)
    for item in report.items if options.view != "json" else ():
        rule, kind = item.verdict.rule, "will fail" if item.finding.fails else "may fail"
        print(f"bringup: {kind}: {rule.title} ({rule.id})", file=sys.stderr)
        print(f"         {mask(item.finding.text)}", file=sys.stderr)
    if report.items and options.view != "json":
        print(f"bringup: `bringup preflight -- {shlex.join(mask_argv(argv))}` says what helps", file=sys.stderr)
    if report.fails and options.preflight == "refuse":
        raise Refused("nothing was started (--preflight warn starts it all the same)")


def run(argv: Sequence[str], options: Options, load: Callable[[], Base]) -> int:
    """`bringup run`: the exit status. Refused when nothing was started; the rules are loaded after the first checks."""
    root = options.root
    try:
        find_command(argv, os.environ, Path.cwd())
        folder = Run.unfinished(root, argv, Path.cwd())
        base: Base | None = None
        if folder is None:
            base = load()
            look_ahead(argv, base, options)
            folder = Run.new(root, argv, Path.cwd())
    except (NotStarted, Busy) as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(
            f"cannot keep the run's state below {root}: {error.strerror}; name another --state-dir"
        ) from error
    try:
        settings = installed(argv, options.settings)
        base = base or load()
        served = Served(options.name, base, Hub(), root, Launch(tuple(argv)), Path.cwd(), settings,
                        FileHistory(root / "history.jsonl"), options.stay)  # fmt: skip
        served.begin(folder)
        stored = _stored(options, root, served)
        with holding(root, alone=False), beside(options.api, base, root, [served], stored=stored):
            outcome = show(served, served.hub, options.view)
    except ValueError as error:
        raise Refused(str(error)) from error
    except TargetError as error:
        raise Refused(str(error)) from error
    finally:
        folder.close()
    if options.view != "json":
        print(_last_words(outcome, served.folder or folder), file=sys.stderr)
    return outcome.status


def _stored(options: Options, root: Path, target: Served | Watched) -> Stored | None:
    """The history in the data base that was named; None: in the state directory, as long as there is a web API."""
    return Stored(root, [target], options.database) if options.database else None


def _last_words(outcome: Outcome, folder: Run) -> str:
    text = {"left": "left running", "stopped": "stopped", "crashed": "failed", "stalled": "stood still"}
    words = f"bringup: {text.get(outcome.state, outcome.state)}: {outcome.text}"
    if outcome.state == "left":
        words += f"\nbringup: `{shlex.join(['bringup', 'run', '--', *mask_argv(folder.data['argv'])])}` goes on with it"
    return f"{words}\nbringup: everything is kept in {folder.folder}"


def watch(path: Path, options: Options, load: Callable[[], Base]) -> int:
    """`bringup watch`: the exit status. Refused when the log cannot be read."""
    try:
        check(path)
        base = load()
        root = place_of(options.root, path)
        target = watched(options.name, path, options.settings, root, base)
        with beside(options.api, base, root, [target], stored=_stored(options, root, target)):
            return show(target, target.hub, options.view).status
    except (TailError, ValueError) as error:
        raise Refused(str(error)) from error


def show(runner: Runner, hub: Hub, view: View) -> Outcome:
    """Runs it on a thread and shows what it tells until it is over. Raises what it raises."""
    ended: list[Outcome | BaseException] = []

    def work() -> None:
        try:
            ended.append(runner.run())
        except BaseException as error:
            ended.append(error)
        finally:
            hub.close()

    gc.freeze()  # the rules live as long as we do: no collection looks at them again
    sys.setswitchinterval(0.001)  # drawing must not keep the reading waiting
    news = hub.subscribe(0)
    with _signals(runner):
        thread = threading.Thread(target=work, name="supervisor")
        thread.start()
        try:
            _show(view, hub, news, runner)
        except BrokenPipeError:  # nobody reads any more: the server is none of their business
            runner.leave()
            with contextlib.suppress(OSError):
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        thread.join()
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def _show(view: View, hub: Hub, news: Subscription, runner: Runner) -> None:
    if view == "json":
        show_json(hub, news, sys.stdout)
    elif view == "plain":
        show_plain(hub, news, sys.stdout)
    else:
        show_picture(hub, news, runner)


@contextlib.contextmanager
def _signals(runner: Runner) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the server by the ladder, the second one leaves at once; a terminal that goes away takes
    nothing with it. Handlers only set flags."""
    asked = False

    def handle(number: int, _frame: Any) -> None:
        nonlocal asked
        if number == signal.SIGHUP or asked:
            runner.leave()
        else:
            asked = True
            os.write(2, b"\nbringup: stopping the server; once more leaves at once and lets it run\n")
            runner.stop()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
