"""Environments that look like an engine's to its interpreter: metadata folders and a small package, made for a test."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

SERVER_ARGS = """
import argparse

class DeprecatedStoreTrueAction(argparse.Action):
    def __init__(self, option_strings, dest, new_flag=None, nargs=0, **kwargs):
        self.new_flag = new_flag
        super().__init__(option_strings, dest, nargs=0, **kwargs)
    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, True)

class Removed(argparse.Action):
    def __init__(self, option_strings, dest, nargs=0, **kwargs):
        super().__init__(option_strings, dest, nargs=0, **kwargs)
    def __call__(self, parser, namespace, values, option_string=None):
        raise argparse.ArgumentError(self, "was removed")

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        print("an import that talks")
        parser.add_argument("--model-path", "--model", required=True, help="the model")
        parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
        parser.add_argument("--attention-backend", choices=["triton", "flashinfer"])
        parser.add_argument("--lora-paths", nargs="*")
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--flag", action=argparse.BooleanOptionalAction, default=True)
        parser.add_argument("--old-switch", action=DeprecatedStoreTrueAction, new_flag="--attention-backend triton")
        parser.add_argument("--gone", action=Removed)
"""


def environment(folder: Path, packages: Mapping[str, str], server_args: str | None = SERVER_ARGS) -> dict[str, str]:
    """A folder of packages and the variables under which an interpreter sees them: PATH without any tools of CUDA."""
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    for name, version in packages.items():
        (site / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()
    if "sglang" in packages and server_args is not None:
        package = site / "sglang" / "srt"
        package.mkdir(parents=True)
        (site / "sglang" / "__init__.py").write_text("")
        (package / "__init__.py").write_text("")
        (package / "server_args.py").write_text(server_args)
    if "torch" in packages:
        (site / "torch").mkdir()
        (site / "torch" / "__init__.py").write_text(
            "raise RuntimeError('versions are told without importing anything')"
        )
        (site / "torch" / "version.py").write_text(
            "__version__ = 'x'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
        )
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    return {
        "PATH": str(tools), "PYTHONPATH": str(site), "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"),
        "CUDA_HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def tool(folder: Path, name: str, text: str) -> None:
    """A program of that name on the environment's PATH."""
    place = folder / "bin" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)
    place.chmod(place.stat().st_mode | stat.S_IXUSR)


def smi(folder: Path, *rows: str) -> None:
    """An nvidia-smi that prints these rows of its table."""
    tool(folder, "nvidia-smi", "#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))


def without_cuda(environ: dict[str, str]) -> dict[str, str]:
    """The same variables over those of this process, for commands that need them."""
    return {**os.environ, **environ}
