"""`bringup serve` and `token`: the service and who may ask it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .options import AS_JSON, DATABASE, FOLDER, knowledge, with_rules


@click.command("serve")
@click.argument("config", type=FOLDER, metavar="FILE", default="bringup.toml")
@click.option("--state-dir", type=FOLDER, metavar="DIR", help="Instead of the file's state-dir.")
@DATABASE
@click.option("--check", is_flag=True, help="Only check the file.")
@AS_JSON
@with_rules
def serve(
    config: Path, state_dir: Path | None, database_url: str | None, check: bool, as_json: bool,
    directories: tuple[Path, ...], disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Serve the targets of FILE (bringup.toml) with the web API, until SIGTERM or Ctrl-C.

    Every problem of the file is told at once with its line; the exit status is then 2. What a file holds stands in
    docs/api.md.
    """
    from .. import serving
    from ..config import ConfigError, read
    from ..live import installed
    from ..tail import TailError

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


@click.command("token")
def token() -> None:
    """Make a token for the web API: the token itself, and its hash for bringup.toml.

    The token is for whoever asks; the hash opens nothing and may stand in a file.
    """
    from ..web.access import hashed, new_token

    made = new_token()
    click.echo(f"token  {made}\nhash   {hashed(made)}")
