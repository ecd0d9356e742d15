"""Stands in, in an engine's processes, for packages that SGLang imports but does not call for a text model on a CPU.

With this folder on PYTHONPATH every Python process imports it at its start. A package that is really installed always
wins: this finder is the last that is asked. What a stand-in offers can be named, subclassed and annotated with, which
is all that SGLang's modules do while they are imported; whoever calls one of its functions gets NotImplementedError
with the function's name, so that a test can never pass on something that was only pretended.

Standing in for: torchvision (image models only), sgl_kernel (CUDA kernels; the CPU build needs AMX).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

PACKAGES = ("torchvision", "sgl_kernel")


class _Named(type):
    """A class that is anything one asks of it: `Transforms.Mode.BICUBIC` is only a name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Function:
    """A function that may be named, never called."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> _Function:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Function(f"{self.__name__}.{name}")

    def __call__(self, *_args: object, **_options: object) -> None:
        raise NotImplementedError(f"{self.__name__} is a stand-in of the engine tests")


class _Package(types.ModuleType):
    """A module with whatever is imported from it: classes for capitalised names, functions for the others."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in sys.modules:
            return sys.modules[full]
        found: object = _Named(name, (), {"__module__": self.__name__}) if name[:1].isupper() else _Function(full)
        setattr(self, name, found)
        return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Package(spec.name)
        module.__path__ = []
        module.__version__ = "0.0.0+standin"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: what a stand-in has is made when it is asked for."""


sys.meta_path.append(_Finder())
