"""A patch's name and an environment in; the variables with which it is in force, or why it is not offered, out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "patches")


@dataclass(frozen=True, slots=True)
class Patch:
    """A folder with a `sitecustomize.py` and the package versions that it is proven on (PEP 440 ranges)."""

    folder: str
    proven: tuple[tuple[str, str], ...]

    @property
    def path(self) -> str:
        return os.path.join(FOLDER, self.folder)


PATCHES: Mapping[str, Patch] = {
    "flashinfer-fp4-op": Patch("flashinfer_fp4", (("torch", ">=2.8,<2.14"), ("flashinfer", ">=0.5.3,<0.7"))),
}


def environment(name: str, old: str | None) -> dict[str, str]:
    """The variable that puts a patch in force; `old` is PYTHONPATH as it is, None or "" for unset."""
    path = PATCHES[name].path
    kept = [place for place in (old or "").split(os.pathsep) if place and place != path]
    return {"PYTHONPATH": os.pathsep.join([path, *kept])}


def typed(name: str, entry: str) -> str:
    """A line of a diff with the folder as a person types it on any machine."""
    return entry.replace(PATCHES[name].path, f"$(bringup patch {name})")


def unproven(name: str, versions: Mapping[str, str]) -> str | None:
    """Why a patch is not for these versions (by the names that rules use); None where nothing speaks against it.

    A version that is not known does not speak against it: the patch looks for itself and leaves everything as it is.
    """
    from .verdicts import version_in

    for package, spec in PATCHES[name].proven:
        version = versions.get(package)
        if version is not None and not version_in(version, spec):
            return f"the patch is proven on {package} {spec}, and this is {version}"
    return None
