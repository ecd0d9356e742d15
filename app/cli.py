"""The command line: `bringup explain | run | watch | demo | rules | case`. Each command imports what it needs when it
runs, so that help is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import __version__

if TYPE_CHECKING:
    from .knowledge import Base

RULES = [
    click.option(
        "--rules", "directories", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
        help="Also use the rules in DIR (may be given again). A rule of the same id replaces the shipped one.",
    ),
    click.option("--disable", multiple=True, metavar="ID", help="Switch a rule off (may be given again)."),
]  # fmt: skip


def with_rules(command: Any) -> Any:
    """Give a command the options that say which rules to use."""
    for option in reversed(RULES):
        command = option(command)
    return command


def knowledge(directories: Sequence[Path], disable: Sequence[str]) -> Base:
    """The rule base; what is wrong in it goes to standard error, the rest is used."""
    from .knowledge import load

    try:
        base = load(directories, disabled=disable, cache="BRINGUP_NO_CACHE" not in os.environ)
    except OSError as error:
        raise click.UsageError(str(error)) from None
    for problem in base.problems:
        click.echo(f"bringup: {problem}", err=True)
    return base


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="bringup")
def main() -> None:
    """The doctor for inference servers that do not come up.

    Reads what SGLang, vLLM and their libraries write while they start, names the root cause with its proof in the log, and
    says which flags the installed version accepts to get past it.
    """


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True,
    help="json: one object a line, one per file, in the order given.",
)  # fmt: skip
@click.option(
    "--idle", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="How long the log has been silent."
)
@click.option("--argv", metavar="COMMAND", help="The command line that was started, where the log does not show it.")
@click.option("--engine-version", metavar="VERSION", help="The engine's version, where the log does not tell it.")
@click.option("--gpu", metavar="SM", help="The GPU's architecture (sm120), where the log does not tell it.")
@click.option("--exit", "exits", metavar="STATUS", help="How the process ended: 2, -9, SIGKILL …")
@click.option("--exit-code", is_flag=True, help="Exit with 1 when a failure was found.")
@click.option("--near", is_flag=True, help="Also show the rules that came near, with the condition that failed.")
@click.option("--color/--no-color", default=None, help="Colours; by default on a terminal only.")
@with_rules
def explain(
    files: tuple[str, ...], style: str, idle: float, argv: str | None, engine_version: str | None, gpu: str | None,
    exits: str | None, exit_code: bool, near: bool, color: bool | None, directories: tuple[Path, ...],
    disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Read the log of a start-up and say what broke, where that is proved, and what to do about it.

    FILE is a log, also as .gz; "-" is standard input. Exit status 0 when every file was read, whatever was found; 2 for a
    usage error or a file that could not be read (the others are still done); with --exit-code, 1 when a failure was found.
    """
    from . import report
    from .explain import Told, explain_source
    from .sources import SourceError

    base = knowledge(directories, disable)
    told = Told.read(argv, engine_version, gpu, exits)
    unreadable = failed = False
    if color is None:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    paint = report.coloured if color else report.plain
    for place, source in enumerate(files):
        problem: SourceError | None = None
        status, problem = explain_source(source, base, told, idle)
        if problem is not None:
            click.echo(f"bringup: {problem}", err=True)
            unreadable = True
            if status is None:
                continue
        assert status is not None
        failed = failed or status.state in ("crashed", "stalled")
        name = "standard input" if source == "-" else source
        if style == "json":
            import json

            click.echo(json.dumps(report.to_json(status, name, base, near), ensure_ascii=False))
        elif style == "markdown":
            click.echo(("\n" if place else "") + report.to_markdown(status, name, base, near), nl=False)
        else:
            click.echo(("\n" if place else "") + report.to_text(status, name, base, paint, near), nl=False, color=True)
    if unreadable:
        sys.exit(2)
    if exit_code and failed:
        sys.exit(1)


@main.group()
def rules() -> None:
    """What bringup knows: list, show, check and write rules."""


@rules.command("list")
@click.option("--area", help="Only this area (dynamo, memory …).")
@with_rules
def rules_list(area: str | None, directories: tuple[Path, ...], disable: tuple[str, ...]) -> None:
    """All rules: id, status, title."""
    base = knowledge(directories, disable)
    shown = [rule for rule in base.rules() if area is None or rule.area == area]
    if not shown:
        raise click.UsageError(f"no area {area!r}; there are: " + ", ".join(sorted({r.area for r in base.rules()})))
    width = max(len(rule.id) for rule in shown)
    for rule in shown:
        mark = "" if rule.status == "stable" else " (draft)"
        mark += " (symptom)" if rule.role == "symptom" else ""
        click.echo(f"{rule.id:<{width}}  {rule.title}{mark}")


@rules.command("show")
@click.argument("name", metavar="ID")
@with_rules
def rules_show(name: str, directories: tuple[Path, ...], disable: tuple[str, ...]) -> None:
    """One rule as a person reads it: what it means, how it shows, what helps, what only looks alike."""
    from .pages import rule_page

    base = knowledge(directories, disable)
    found = base.find(name)
    if found is None:
        import difflib

        names = [rule.id for rule in base.rules()]
        close = difflib.get_close_matches(name, names, 3) or [other for other in names if name in other][:5]
        raise click.UsageError(f"there is no rule {name!r}" + (f"; did you mean {', '.join(close)}?" if close else ""))
    rule, source = found
    click.echo(rule_page(rule, base))
    click.echo(f"Source: {source}")


@rules.command("check")
@click.option(
    "--fixtures",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the cases are (default: fixtures/ of the checkout).",
)
@with_rules
def rules_check(fixtures: Path | None, directories: tuple[Path, ...], disable: tuple[str, ...]) -> None:
    """Check every rule, its cases and its near misses; report every problem at once, with file and line."""
    from .checking import check_all

    problems, summary = check_all(directories, fixtures)
    for problem in problems:
        click.echo(problem)
    click.echo(summary)
    if problems:
        sys.exit(1)


@rules.command("new")
@click.option("--from", "source", required=True, metavar="LOG", help="The log of the failure.")
@click.option("--id", "name", metavar="AREA/CAUSE-KEY", help="The rule's id (default: made from the exception).")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The rules directory to write to (default: rules/ here).",
)
@click.option(
    "--fixtures",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The cases directory to write to (default: fixtures/ here).",
)
@with_rules
def rules_new(
    source: str, name: str | None, into: Path | None, fixtures: Path | None, directories: tuple[Path, ...],
    disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Turn the failure in LOG into a draft rule and its case."""
    from .authoring import new_rule
    from .sources import SourceError

    try:
        for line in new_rule(
            source, name, into or Path("rules"), fixtures or Path("fixtures"), knowledge(directories, disable)
        ):
            click.echo(line)
    except (SourceError, FileExistsError, ValueError) as error:
        raise click.UsageError(str(error)) from None


@main.group()
def case() -> None:
    """Logs with a known cause, which prove the rules."""


@case.command("add")
@click.argument("log", metavar="LOG")
@click.option("--name", metavar="NAME", help="The case's name (default: made from the cause).")
@click.option(
    "--cause",
    required=True,
    metavar="KEY",
    help="The cause, labelled by hand: a rule's key, none (healthy) or consequence-only.",
)
@click.option("--source", "origin_link", default="", help="Where the log is from: a link, or how it was made.")
@click.option("--origin", type=click.Choice(["verbatim", "rebuilt"]), default="verbatim", show_default=True)
@click.option(
    "--fixtures", type=click.Path(path_type=Path), metavar="DIR", help="The cases directory (default: fixtures/ here)."
)
@click.option(
    "--idle", type=float, default=0.0, metavar="SECONDS", help="How long the log had been silent when it was taken."
)
@with_rules
def case_add(
    log: str, name: str | None, cause: str, origin_link: str, origin: str, fixtures: Path | None, idle: float,
    directories: tuple[Path, ...], disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Add LOG as a case: masked, labelled, with the explanation as it is now in expect.txt."""
    from .authoring import add_case
    from .sources import SourceError

    base = knowledge(directories, disable)
    try:
        for line in add_case(log, name, cause, origin_link, origin, fixtures or Path("fixtures"), idle, base):
            click.echo(line)
    except (SourceError, FileExistsError, ValueError) as error:
        raise click.UsageError(str(error)) from None


@main.command("probe")
@click.option("--python", "interpreter", metavar="PATH", help="The engine's interpreter (default: python3 on PATH).")
@click.option(
    "--flags", is_flag=True, help="Also every flag that the engine's parser takes (imports the engine, 10 s)."
)
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds for each question.")
@click.option("--no-cache", is_flag=True, help="Ask again, whatever is known from before.")
def probe_command(interpreter: str | None, flags: bool, style: str, timeout: float | None, no_cache: bool) -> None:
    """Ask an engine's interpreter: versions, CUDA, driver, GPUs, and every flag of its parser.

    Nothing is started and no GPU is needed. Exit status 0 also where the engine cannot be imported (the answer says
    why), 2 where the interpreter cannot be asked.
    """
    import shutil

    from .preflight.show import probe_text
    from .probe import ProbeError, probe
    from .report import coloured, plain

    place = shutil.which(interpreter or "python3")
    if place is None:
        raise click.UsageError(f"{interpreter or 'python3'}: no such program")
    try:
        found = probe(os.path.abspath(place), engine="" if flags else None, limit=timeout, cache=not no_cache)
    except ProbeError as error:
        raise click.UsageError(str(error)) from None
    if style == "json":
        import json

        click.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        paint = coloured if sys.stdout.isatty() and "NO_COLOR" not in os.environ else plain
        click.echo(probe_text(found, paint, flags), nl=False, color=True)


@main.command("preflight", context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--probe", "ask", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
    help="Whether the engine's own parser is asked: auto only for a release that is not in the shipped table.",
)  # fmt: skip
@click.option(
    "--engine-version", metavar="VERSION", help="The engine's version, where its interpreter cannot be asked."
)
@click.option("--gpu", metavar="SM", help="The GPU's architecture (sm120), where this machine is not the one.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds for each question.")
@with_rules
def preflight_command(
    command: tuple[str, ...], style: str, ask: str, engine_version: str | None, gpu: str | None, timeout: float | None,
    directories: tuple[Path, ...], disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Say what will break, before anything is started: bringup preflight -- python -m sglang.launch_server ...

    Exit status 0 where nothing was found that will fail, 1 where something was, 2 for a usage error.
    """
    from .preflight import ask_interpreter, preflight
    from .preflight.show import report_text
    from .report import coloured, plain

    base = knowledge(directories, disable)
    found, problem = None, ""
    if engine_version is None:
        found, problem = ask_interpreter(command, base, flags=ask, limit=timeout)
    report = preflight(command, base, probe=found, version=engine_version, gpu=gpu)
    if report.engine is None:
        raise click.UsageError("this command line starts no engine that bringup knows (SGLang, vLLM)")
    if problem:
        click.echo(f"bringup: {problem}", err=True)
    if style == "json":
        import json

        click.echo(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        paint = coloured if sys.stdout.isatty() and "NO_COLOR" not in os.environ else plain
        click.echo(report_text(report, paint), nl=False, color=True)
    if report.fails:
        sys.exit(1)


FOLLOW = [
    click.option("--fallback", type=click.Choice(["off", "ask", "auto"]), default="ask", show_default=True,
                 help="After a failure: nothing, offer the remedies and ask, or take the safe ones by itself."),
    click.option("--max-attempts", type=click.IntRange(min=1), default=6, show_default=True, metavar="N",
                 help="How many starts at most, the first one included."),
    click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR",
                 help="Where runs, logs and the history are kept (default: $XDG_STATE_HOME/bringup)."),
    click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR",
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
    click.option("--no-tui", is_flag=True, help="Plain lines even on a terminal."),
    click.option("--json", "as_json", is_flag=True, help="Every news as one JSON object a line."),
]  # fmt: skip


def with_options(*rows: Sequence[Any]) -> Callable[[Any], Any]:
    """Give a command these options, in this order."""

    def give(command: Any) -> Any:
        for option in reversed([option for row in rows for option in row]):
            command = option(command)
        return command

    return give


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
    from .live import Options, settings_from, view_for

    view = view_for(given["as_json"], given["no_tui"])
    return Options(
        settings_from(given, view), view, given.get("state_dir"), api_options(given), given.get("stay", False),
        given.get("preflight", "off"),
    )  # fmt: skip


def api_options(given: dict[str, Any]) -> Any:
    """Where the web API is to be, from a command line."""
    from .serving import Api

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


@main.command(context_settings={"allow_interspersed_args": False}, epilog=RUN_STATUSES)
@click.argument("command", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
@with_options(FOLLOW, SEEN, API)
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
    from . import live

    try:
        sys.exit(live.run(list(command), follow_options(given), lambda: knowledge(directories, disable)))
    except (live.Refused, ValueError) as error:
        raise click.UsageError(str(error)) from None


@main.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@with_options(SEEN, API)
@with_rules
def watch(file: Path, directories: tuple[Path, ...], disable: tuple[str, ...], **given: Any) -> None:
    """Follow the log FILE of a server that somebody else starts: phases, progress, and the verdict as it is written.

    FILE need not be there yet; rotation, truncation and restarts are followed. Ctrl-C ends the watch; the exit status is
    then 1 when the last start in the log had failed, 0 otherwise, and 2 when the log cannot be read.
    """
    from . import live

    try:
        sys.exit(live.watch(file, follow_options(given), lambda: knowledge(directories, disable)))
    except (live.Refused, ValueError) as error:
        raise click.UsageError(str(error)) from None


@main.command()
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
@click.option("--no-tui", is_flag=True, help="Plain lines even on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Every news as one JSON object a line.")
@with_options(API)
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

    from . import demo as demos
    from .live import view_for

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


@main.command("serve")
@click.argument("config", type=click.Path(path_type=Path), metavar="FILE", default="bringup.toml")
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="Instead of the file's state-dir.")
@click.option(
    "--database-url",
    envvar="BRINGUP_DATABASE_URL",
    metavar="URL",
    help="A PostgreSQL data base for the history, instead of a file in the state directory.",
)
@click.option("--check", is_flag=True, help="Only check the file.")
@click.option("--json", "as_json", is_flag=True, help="Every news as one JSON object a line.")
@with_rules
def serve_command(
    config: Path, state_dir: Path | None, database_url: str | None, check: bool, as_json: bool,
    directories: tuple[Path, ...], disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Serve the targets of FILE (bringup.toml) with the web API, until SIGTERM or Ctrl-C.

    Every problem of the file is told at once with its line; the exit status is then 2. What a file holds stands in
    docs/api.md.
    """
    from . import serving
    from .config import ConfigError, read
    from .live import installed
    from .tail import TailError

    try:
        found = read(config)
    except OSError as error:
        raise click.UsageError(f"{config}: {error.strerror}") from None
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        sys.exit(2)
    if check:
        click.echo(f"{config}: {len(found.targets)} targets, no problem")
        return
    try:
        sys.exit(serving.serve(found, state_dir, knowledge(directories, disable), as_json, installed, database_url))
    except (ValueError, TailError) as error:
        raise click.UsageError(str(error)) from None


@main.command("token")
def token_command() -> None:
    """Make a token for the web API: the token itself, and its hash for bringup.toml.

    The token is for whoever asks; the hash opens nothing and may stand in a file.
    """
    from .web.access import hashed, new_token

    made = new_token()
    click.echo(f"token  {made}\nhash   {hashed(made)}")


@main.command("patch")
@click.argument("name", required=False)
def patch_command(name: str | None) -> None:
    """Print the folder of a launch-time patch, to be put on PYTHONPATH of a start; without NAME, list them."""
    from .core.patches import PATCHES

    if name is None:
        for known, patch in PATCHES.items():
            click.echo(known + "  " + ", ".join(f"{package} {spec}" for package, spec in patch.proven))
    elif name in PATCHES:
        click.echo(PATCHES[name].path)
    else:
        raise click.UsageError(f"there is no patch {name!r}; there are: {', '.join(PATCHES)}")


if __name__ == "__main__":
    main()
