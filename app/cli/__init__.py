"""The command line: `bringup explain | run | watch | serve | …`. A command's module is imported when the command is asked
for, and imports what it needs when it runs: `explain` pays for nothing that only a live run needs."""

from __future__ import annotations

import importlib

import click

from .. import __version__

COMMANDS = {
    "explain": "explain",
    "rules": "rules", "case": "rules",
    "run": "live", "watch": "live", "demo": "live",
    "serve": "service", "token": "service",
    "probe": "engine", "preflight": "engine", "patch": "engine",
}  # fmt: skip
"""Every command and the module of this package that holds it, under the same name."""


class Lazy(click.Group):
    """A group whose commands are those of COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f".{COMMANDS[cmd_name]}", __name__), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="bringup")
def main() -> None:
    """The doctor for inference servers that do not come up.

    Reads what SGLang, vLLM and their libraries write while they start, names the root cause with its proof in the log, and
    says which flags the installed version accepts to get past it.
    """
