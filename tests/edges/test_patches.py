"""A launch-time patch in real interpreters: it changes one function of one package, or nothing at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.patches import PATCHES, environment
from tests.edges.environments import environment as packages

SIGNATURE = (
    "input, global_scale=None, sf_vec_size=16, sf_use_ue8m0=False, is_sf_swizzled_layout=True, is_sf_8x4_layout=False, "
    "enable_pdl=None"
)
TORCH = """
class library:
    @staticmethod
    def custom_op(name, function, mutates_args, schema):
        class Operator:
            _opoverload = name
            def __call__(self, *words): return (name, function(*words))
            def register_fake(self, fake): pass
        return Operator()
"""


def installed(folder: Path, flashinfer: str = "0.6.4", torch: str = "2.9.1", signature: str = SIGNATURE) -> Path:
    packages(folder, {"torch": torch, "flashinfer-python": flashinfer})
    site = folder / "site"
    (site / "torch" / "__init__.py").write_text(TORCH)
    (site / "flashinfer").mkdir()
    text = f"import torch\ndef fp4_quantize({signature}): return 'original'\n"
    (site / "flashinfer" / "fp4_quantization.py").write_text(text)
    (site / "flashinfer" / "__init__.py").write_text("from .fp4_quantization import fp4_quantize\n")
    for name in ("torch", "flashinfer_python"):
        for place in site.glob(f"{name}-*.dist-info"):
            version = place.name.removesuffix(".dist-info").split("-")[1]
            (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return site


def run(site: Path, text: str = "import flashinfer; print(flashinfer.fp4_quantize(1))", *more: str) -> tuple[str, str]:
    environ = {**os.environ, **environment("flashinfer-fp4-op", str(site)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *more, "-c", text], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def test_the_function_becomes_an_operator_for_everybody(tmp_path: Path) -> None:
    out, said = run(installed(tmp_path))
    assert out == "('bringup::fp4_quantize', 'original')"
    assert said.endswith("flashinfer.fp4_quantization.fp4_quantize is now the operator bringup::fp4_quantize")


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({"flashinfer": "0.5.2"}, "not proven on flashinfer-python 0.5.2"),
        ({"flashinfer": "0.7.2"}, "not proven on flashinfer-python 0.7.2"),
        ({"torch": "2.7.1"}, "not proven on torch 2.7.1"),
        ({"torch": "2.14.0"}, "not proven on torch 2.14.0"),
        ({"signature": "input, backend='cuda'"}, "its arguments are not the ones that this is proven on"),
    ],
)
def test_what_it_is_not_proven_on_is_left_as_it_is(tmp_path: Path, versions: dict[str, str], reason: str) -> None:
    out, said = run(installed(tmp_path, **versions))
    assert out == "original"
    assert said.endswith("fp4_quantize is left as it is: " + reason)


def test_a_failure_of_the_patch_is_a_line_and_no_more(tmp_path: Path) -> None:
    site = installed(tmp_path)
    (site / "torch" / "__init__.py").write_text("")
    out, said = run(site)
    assert out == "original"
    assert "fp4_quantize is left as it is: AttributeError" in said


def test_nothing_is_said_or_loaded_where_the_package_is_not_used(tmp_path: Path) -> None:
    out, said = run(installed(tmp_path), "import sys; print('torch' in sys.modules, 'flashinfer' in sys.modules)")
    assert (out, said) == ("False False", "")


def test_a_sitecustomize_that_it_hides_still_runs(tmp_path: Path) -> None:
    site = installed(tmp_path)
    (site / "sitecustomize.py").write_text("import sys; sys.theirs = True\n")
    assert run(site, "import sys; print(sys.theirs)")[0] == "True"


def test_an_interpreter_without_site_bypasses_it(tmp_path: Path) -> None:
    assert run(installed(tmp_path), "print('as ever')", "-S") == ("as ever", "")


def test_the_folder_is_put_first_and_only_once() -> None:
    path = PATCHES["flashinfer-fp4-op"].path
    assert Path(path, "sitecustomize.py").is_file()
    assert environment("flashinfer-fp4-op", None) == {"PYTHONPATH": path}
    assert environment("flashinfer-fp4-op", f"/a:{path}:/b") == {"PYTHONPATH": f"{path}:/a:/b"}
