"""`bringup probe`, `preflight` and `patch`: what an engine is asked before it is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from .options import TEXT_OR_JSON, TIMEOUT, knowledge, painter, with_rules


@click.command("probe")
@click.option("--python", "interpreter", metavar="PATH", help="The engine's interpreter (default: python3 on PATH).")
@click.option(
    "--flags", is_flag=True, help="Also every flag that the engine's parser takes (imports the engine, 10 s)."
)
@TEXT_OR_JSON
@TIMEOUT
@click.option("--no-cache", is_flag=True, help="Ask again, whatever is known from before.")
def probe(interpreter: str | None, flags: bool, style: str, timeout: float | None, no_cache: bool) -> None:
    """Ask an engine's interpreter: versions, CUDA, driver, GPUs, and every flag of its parser.

    Nothing is started and no GPU is needed. Exit status 0 also where the engine cannot be imported (the answer says
    why), 2 where the interpreter cannot be asked.
    """
    import shutil

    from ..preflight.show import probe_text
    from ..probe import ProbeError
    from ..probe import probe as ask

    place = shutil.which(interpreter or "python3")
    if place is None:
        raise click.UsageError(f"{interpreter or 'python3'}: no such program")
    try:
        found = ask(os.path.abspath(place), engine="" if flags else None, limit=timeout, cache=not no_cache)
    except ProbeError as error:
        raise click.UsageError(str(error)) from None
    if style == "json":
        import json

        click.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        click.echo(probe_text(found, painter(), flags), nl=False, color=True)


@click.command("preflight", context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@TEXT_OR_JSON
@click.option(
    "--probe", "ask", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
    help="Whether the engine's own parser is asked: auto only for a release that is not in the shipped table.",
)  # fmt: skip
@click.option(
    "--engine-version", metavar="VERSION", help="The engine's version, where its interpreter cannot be asked."
)
@click.option("--gpu", metavar="SM", help="The GPU's architecture (sm120), where this machine is not the one.")
@TIMEOUT
@with_rules
def preflight(
    command: tuple[str, ...], style: str, ask: str, engine_version: str | None, gpu: str | None, timeout: float | None,
    directories: tuple[Path, ...], disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Say what will break, before anything is started: bringup preflight -- python -m sglang.launch_server ...

    Exit status 0 where nothing was found that will fail, 1 where something was, 2 for a usage error.
    """
    from ..preflight import ask_interpreter
    from ..preflight import preflight as look
    from ..preflight.show import report_text

    base = knowledge(directories, disable)
    found, problem = None, ""
    if engine_version is None:
        found, problem = ask_interpreter(command, base, flags=ask, limit=timeout)
    report = look(command, base, probe=found, version=engine_version, gpu=gpu)
    if report.engine is None:
        raise click.UsageError("this command line starts no engine that bringup knows (SGLang, vLLM)")
    if problem:
        click.echo(f"bringup: {problem}", err=True)
    if style == "json":
        import json

        click.echo(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        click.echo(report_text(report, painter()), nl=False, color=True)
    if report.fails:
        sys.exit(1)


@click.command("patch")
@click.argument("name", required=False)
def patch(name: str | None) -> None:
    """Print the folder of a launch-time patch, to be put on PYTHONPATH of a start; without NAME, list them."""
    from ..core.patches import PATCHES

    if name is None:
        for known, found in PATCHES.items():
            click.echo(known + "  " + ", ".join(f"{package} {spec}" for package, spec in found.proven))
    elif name in PATCHES:
        click.echo(PATCHES[name].path)
    else:
        raise click.UsageError(f"there is no patch {name!r}; there are: {', '.join(PATCHES)}")
