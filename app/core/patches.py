"""A launch-time patch's name and an environment in; the variable with which it is in force out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FOLDER = __file__.rpartition("/core/")[0] + "/patches"


class Patch(NamedTuple):
    """A folder with a `sitecustomize.py` and the package versions that it is proven on (PEP 440 ranges)."""

    folder: str
    proven: tuple[tuple[str, str], ...]

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.folder}"


PATCHES: Mapping[str, Patch] = {
    "flashinfer-fp4-op": Patch("flashinfer_fp4", (("torch", ">=2.8,<2.14"), ("flashinfer", ">=0.5.3,<0.7"))),
}


def environment(name: str, old: str | None) -> dict[str, str]:
    """The variable that puts a patch in force; `old` is PYTHONPATH as it is, None or "" for unset."""
    path = PATCHES[name].path
    kept = [place for place in (old or "").split(":") if place and place != path]
    return {"PYTHONPATH": ":".join([path, *kept])}


def typed(name: str, entry: str) -> str:
    """A line of a diff with the folder as a person types it on any machine."""
    return entry.replace(PATCHES[name].path, f"$(bringup patch {name})")
