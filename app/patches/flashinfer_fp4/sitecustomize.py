"""Makes flashinfer.fp4_quantize one custom operator before anything is traced; takes nothing, changes one function.

On its first call that function builds its kernel module (a subprocess, file locks, the clock), and torch.compile
cannot trace any of it. As an operator with a fake it is opaque: only the shapes of its results are computed while
tracing. The patch is put into the module right after the module's own code has run, so that every later import gets it.
It says in one line what it did or why it left the function alone, and never raises: a patch must not be a new reason
not to start.
"""

from __future__ import annotations

import os
import sys
from typing import Any

NAME = "flashinfer-fp4-op"
MODULES = ("flashinfer.fp4_quantization", "flashinfer.quantization.fp4_quantization")
PROVEN = {"torch": ((2, 8), (2, 14)), "flashinfer-python": ((0, 5, 3), (0, 7))}
"""From the first version (included) to the second (not included)."""
PARAMETERS = (
    "input", "global_scale", "sf_vec_size", "sf_use_ue8m0", "is_sf_swizzled_layout", "is_sf_8x4_layout", "enable_pdl",
)  # fmt: skip
SCHEMA = (
    "(Tensor input, Tensor? global_scale=None, int sf_vec_size=16, bool sf_use_ue8m0=False, "
    "bool is_sf_swizzled_layout=True, bool is_sf_8x4_layout=False, bool? enable_pdl=None) -> (Tensor, Tensor)"
)


def say(text: str) -> None:
    print(f"[bringup {NAME} pid={os.getpid()}] {text}", file=sys.stderr, flush=True)


def patch(module: Any) -> None:
    """Replaces the function of a freshly imported module, where it is the one that this is proven on."""
    original = getattr(module, "fp4_quantize", None)
    if original is None or getattr(original, "_opoverload", None) is not None:
        return  # nothing to replace, or an operator already
    import inspect

    reason = unproven()
    if reason is None and tuple(inspect.signature(original).parameters) != PARAMETERS:
        reason = "its arguments are not the ones that this is proven on"
    if reason is not None:
        say("fp4_quantize is left as it is: " + reason)
        return
    module.fp4_quantize = operator(original)
    say(module.__name__ + ".fp4_quantize is now the operator bringup::fp4_quantize")


def unproven() -> str | None:
    """None where the installed versions are among those it is proven on, else a sentence."""
    import re
    from importlib.metadata import version

    for name, (first, beyond) in PROVEN.items():
        text = version(name)
        found = tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])
        if not first <= found < beyond:
            return f"not proven on {name} {text}"
    return None


def operator(original: Any) -> Any:
    """The function as a custom operator with a fake that knows the shapes and strides of its results."""
    torch: Any = sys.modules["torch"]  # flashinfer has imported it
    made = torch.library.custom_op("bringup::fp4_quantize", original, mutates_args=(), schema=SCHEMA)

    def shapes(
        input: Any,
        global_scale: Any = None,
        sf_vec_size: int = 16,
        sf_use_ue8m0: bool = False,
        is_sf_swizzled_layout: bool = True,
        is_sf_8x4_layout: bool = False,
        enable_pdl: Any = None,
    ) -> Any:
        by_column = input.stride(-2) == 1
        if by_column:
            input = input.transpose(-2, -1)
        columns = input.shape[-1] // sf_vec_size
        rows = input.numel() // input.shape[-1]
        if is_sf_swizzled_layout:  # padded to whole tiles, then read with the width of the unpadded scales
            tile = 8 if is_sf_8x4_layout else 128
            rows = (rows + tile - 1) // tile * tile * ((columns + 3) // 4 * 4) // columns
        values = input.new_empty((*input.shape[:-1], input.shape[-1] // 2), dtype=torch.uint8)
        scales = input.new_empty((rows, columns), dtype=torch.uint8)
        return (values.transpose(-2, -1), scales.transpose(-2, -1)) if by_column else (values, scales)

    made.register_fake(shapes)
    return made


class Loader:
    """The module's own loader, and the patch after it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def create_module(self, spec: Any) -> Any:
        return self.inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        spec = module.__spec__
        spec.loader = module.__loader__ = self.inner  # leave no trace of us on the module
        self.inner.exec_module(module)
        try:
            patch(module)
        except Exception as error:
            say(f"fp4_quantize is left as it is: {type(error).__name__}: {error}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Finder:
    """Finds the two modules as the other finders do, with our loader around theirs."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in MODULES:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = Loader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


def chain() -> None:
    """Runs the sitecustomize that this one hides: Python imports only the first on its path."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [place for place in sys.path if os.path.abspath(place or ".") != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    try:
        sys.meta_path.insert(0, Finder())
    except Exception as error:
        say(f"not in place: {type(error).__name__}: {error}")
    chain()
