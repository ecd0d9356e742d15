"""`bringup run`, `watch` and `demo`: start-ups that are followed while they happen."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from .options import AS_JSON, DATABASE, FOLDER, STATE_DIR, knowledge, with_options, with_rules

NO_TUI = click.option("--no-tui", is_flag=True, help="Plain lines even on a terminal.")


def a_name(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """A target's name, as bringup.toml takes it too."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text):
        raise click.BadParameter("letters, digits, dots, dashes and underscores; 63 at most")
    return text


FOLLOW = [
    click.option("--fallback", type=click.Choice(["off", "ask", "auto"]), default="ask", show_default=True,
                 help="After a failure: nothing, offer the remedies and ask, or take the safe ones by itself."),
    click.option("--max-attempts", type=click.IntRange(min=1), default=6, show_default=True, metavar="N",
                 help="How many starts at most, the first one included."),
    click.option("--log-dir", type=FOLDER, metavar="DIR",
                 help="Where each attempt's log goes (default: the run's own folder)."),
    click.option("--stop-timeout", type=click.FloatRange(min=0), default=20.0, show_default=True, metavar="SECONDS",
                 help="How long a server that was asked to end may take before it is killed."),
    click.option("--stall-timeout", type=click.FloatRange(min=0), default=600.0, show_default=True, metavar="SECONDS",
                 help="How long a start may stand still beyond its limit before it is ended (0: for ever)."),
    click.option("--linger", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS",
                 help="How long a server whose log says that it failed may stay before it is ended (0: for ever)."),
]  # fmt: skip
SEEN = [
    click.option("--health-url", metavar="URL", help="What answers 200 when the server is up (default: from --port)."),
    click.option("--silence", type=click.FloatRange(min=0.1), metavar="SECONDS",
                 help="How long the log may be silent before the start counts as stalled (default: by phase)."),
    click.option("--engine-version", metavar="VERSION", help="The engine's version, where it cannot be asked."),
    click.option("--gpu", metavar="SM", help="The GPU's architecture (sm120), where it cannot be asked."),
    NO_TUI,
    AS_JSON,
]  # fmt: skip

KEPT = [
    STATE_DIR,
    DATABASE,
    click.option("--name", default="server", show_default=True, metavar="NAME", callback=a_name,
                 help="What the server is called in the history and the web API."),
]  # fmt: skip
API = [
    click.option("--listen", metavar="ADDRESS",
                 help="Where the web API listens (default: 127.0.0.1:8420, if that is free). What others can reach "
                 "needs a token in BRINGUP_CONTROL_TOKEN, and may have one that only reads in BRINGUP_READ_TOKEN."),
    click.option("--host-name", "hosts", multiple=True, metavar="NAME",
                 help="A name that the web API also answers under (may be given again)."),
    click.option("--no-api", is_flag=True, help="No web API."),
]  # fmt: skip


def follow_options(given: dict[str, Any]) -> Any:
    """What `run` and `watch` take, from their command lines."""
    from ..live import Options, settings_from, view_for

    view = view_for(given["as_json"], given["no_tui"])
    return Options(
        settings_from(given, view), view, given.get("state_dir"), api_options(given), given.get("stay", False),
        given["database_url"], given["name"], given.get("preflight", "off"),
    )  # fmt: skip


def api_options(given: dict[str, Any]) -> Any:
    """Where the web API is to be, from a command line."""
    from ..serving import Api

    if given["no_api"] and given["listen"]:
        raise click.UsageError("--listen and --no-api contradict each other")
    return Api(given["listen"], tuple(given["hosts"]), given["no_api"])


RUN_STATUSES = """\b
Exit status:
  0    the server was ready and was then stopped cleanly
  1    it failed, and no fallback brought it up
  2    nothing was started: wrong usage, command not found, no permission, port taken
  3    it stood still
  130  interrupted before it was ready, or left running (Ctrl-C twice)
"""


@click.command(context_settings={"allow_interspersed_args": False}, epilog=RUN_STATUSES)
@click.argument("command", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
@with_options(FOLLOW, KEPT, SEEN, API)
@click.option("--stay", is_flag=True, help="Stay after the end of the server: the web API can start it again.")
@click.option(
    "--preflight", type=click.Choice(["off", "warn", "refuse"]), default="warn", show_default=True,
    help="Look first at what will break: not at all, say it and start, or do not start.",
)  # fmt: skip
@with_rules
def run(command: tuple[str, ...], directories: tuple[Path, ...], disable: tuple[str, ...], **given: Any) -> None:
    """Start CMD, follow its start-up, name what breaks it, and start it again with what helps.

    The server runs in a session of its own and writes to a log file: it outlives bringup, and the same command goes on
    with it. Ctrl-C stops it step by step; a second one leaves at once and says what still runs.
    """
    from .. import live

    try:
        sys.exit(live.run(list(command), follow_options(given), lambda: knowledge(directories, disable)))
    except (live.Refused, ValueError) as error:
        raise click.UsageError(str(error)) from None


@click.command()
@click.argument("file", type=FOLDER, metavar="FILE")
@with_options(KEPT, SEEN, API)
@with_rules
def watch(file: Path, directories: tuple[Path, ...], disable: tuple[str, ...], **given: Any) -> None:
    """Follow the log FILE of a server that somebody else starts: phases, progress, and the verdict as it is written.

    FILE need not be there yet; rotation, truncation and restarts are followed. Ctrl-C ends the watch; the exit status is
    then 1 when the last start in the log had failed, 0 otherwise, and 2 when the log cannot be read. Every start in it is
    kept as a run, with its verdict and a copy of its log.
    """
    from .. import live

    try:
        sys.exit(live.watch(file, follow_options(given), lambda: knowledge(directories, disable)))
    except (live.Refused, ValueError) as error:
        raise click.UsageError(str(error)) from None


@click.command()
@click.argument("name", default="story", type=click.Choice(["story", "healthy", "memory", "stall"]))
@click.option(
    "--speed", type=click.FloatRange(min=0.1), default=20.0, show_default=True, metavar="X",
    help="How many times as fast as it was.",
)  # fmt: skip
@click.option(
    "--fallback", type=click.Choice(["off", "ask", "auto"]), default="auto", show_default=True,
    help="As for `bringup run`.",
)  # fmt: skip
@click.option("--stay", is_flag=True, help="Stay until Ctrl-C; the web API can restart it.")
@with_options([NO_TUI, AS_JSON], API)
def demo(
    name: str, speed: float, fallback: str, stay: bool, no_tui: bool, as_json: bool, **given: Any
) -> None:  # fmt: skip
    """Play a recorded start-up through the whole of bringup; no GPU and no engine needed.

    \b
    story    the founding crash, named while it is written, and the relaunch that becomes ready
    healthy  a start with compiled and captured graphs that becomes ready
    memory   a memory share that is too small, and the relaunch with the one that fits
    stall    a graph capture that stands still, and what every process is doing
    """
    import tempfile

    from .. import demo as demos
    from ..live import view_for

    view = view_for(as_json, no_tui)
    attended = view == "picture" and sys.stdin.isatty()
    try:
        with tempfile.TemporaryDirectory(prefix="bringup-demo-") as folder:
            status = demos.run(
                name, Path(folder), view, knowledge((), ()), speed=speed, mode=fallback, attended=attended,  # type: ignore[arg-type]
                stay=None if stay else min(3.0, 60 / speed), api=api_options(given),
            )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    sys.exit(status)
