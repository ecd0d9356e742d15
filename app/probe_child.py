"""Run in the engine's own interpreter: what is installed there (or what its parser takes) out, as one JSON object.

    python probe_child.py versions          names and figures only, nothing of the engine is imported
    python probe_child.py flags sglang      every flag; standard input may hold {"try": [[word, …], …]}, lines to parse

Needs the standard library alone (3.8 on) and no GPU. Whatever the engine prints while it is imported goes to standard
error, so that standard output holds the answer and nothing else. A failed import is an answer too: its traceback.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any

SCHEMA = 1
ENGINES = ("sglang", "vllm", "tensorrt_llm")
PACKAGES = (
    "sglang", "vllm", "tensorrt-llm", "torch", "torchvision", "triton", "flashinfer-python", "flashinfer-cubin",
    "flashinfer-jit-cache", "sgl-kernel", "sglang-kernel", "deep-gemm", "sgl-deep-gemm", "transformers", "tokenizers",
    "safetensors", "xgrammar", "torchao", "compressed-tensors", "numpy", "cuda-python", "flash-attn", "ray", "ninja",
    "nvidia-cuda-runtime", "nvidia-cuda-nvcc", "nvidia-cudnn", "nvidia-cutlass-dsl", "nvidia-nccl", "nvidia-nvshmem",
)  # fmt: skip
_FIELDS = "index,name,driver_version,compute_cap,memory.total,uuid"


def versions(limit: float = 5.0) -> dict[str, Any]:
    """Versions of packages, CUDA, driver and GPUs; `limit` (seconds) is for `nvidia-smi` and `nvcc` each."""
    began = time.monotonic()
    asked = {"smi": _start("nvidia-smi", ["--query-gpu=" + _FIELDS, "--format=csv,noheader,nounits"])}
    nvcc = _nvcc()
    asked["nvcc"] = _start(nvcc, ["--version"]) if nvcc else None
    notes: list[str] = []
    packages = _packages(notes)
    torch = _torch()
    engines = {name: place for name in ENGINES if (place := _place(name))}
    for name, place in engines.items():
        found = packages.get(name.replace("_", "-")) or _written_version(place)
        if found:
            packages[name.replace("_", "-")] = found
    text = _finish(asked["nvcc"], limit, notes, "nvcc")
    release = re.search(r"release (\d+\.\d+)", text)
    gpus, driver = _gpus(_finish(asked["smi"], limit, notes, "nvidia-smi"), notes)
    watched = sys.path[1:] + [os.path.dirname(place) for place in engines.values()]  # not the working directory
    watched += [os.path.join(os.path.dirname(place), "srt", "server_args.py") for place in engines.values()]
    return {
        "schema": SCHEMA,
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "packages": packages,
        "engines": {name: os.path.dirname(place) for name, place in engines.items()},
        "torch_cuda": torch.get("cuda"),
        "torch_hip": torch.get("hip"),
        "nvcc": {"path": nvcc, "version": release.group(1) if release else None} if nvcc else None,
        "driver": driver,
        "gpus": gpus,
        "notes": notes,
        "watch": {path: stamp for path in watched if (stamp := _stamp(path)) is not None},
        "seconds": round(time.monotonic() - began, 3),
    }


def _packages(notes: list[str]) -> dict[str, str]:
    """Installed distributions by name, read from the names of their metadata folders: nothing is parsed."""
    wanted = {name.replace("-", "_"): name for name in PACKAGES}
    found: dict[str, str] = {}
    for path in sys.path:
        try:
            names = sorted(os.listdir(path or "."))
        except OSError:
            continue
        here: dict[str, list[str]] = {}
        for name in names:
            match = re.match(r"(.+?)-([^-]+?)(?:-py\d.*)?\.(?:dist|egg)-info$", name)
            if not match:
                continue
            key = re.sub(r"[-_.]+", "_", match.group(1)).lower()
            plain = re.sub(r"_cu\d+$", "", key)
            if key in wanted or plain in wanted:
                here.setdefault(wanted.get(key) or wanted[plain], []).append(match.group(2))
        for package, several in here.items():
            if len(several) > 1:
                notes.append(f"{package} is installed more than once in {path}: {', '.join(several)}")
            found.setdefault(package, several[-1])
    return found


def _place(name: str) -> str | None:
    """Where a package would be imported from (its __init__ file), without importing it."""
    from importlib.machinery import PathFinder

    try:
        spec = PathFinder.find_spec(name)
    except (ImportError, ValueError, OSError):
        return None
    if spec is None:
        return None
    if spec.origin:
        return spec.origin
    for place in spec.submodule_search_locations or ():  # a folder without __init__
        return os.path.join(place, "__init__.py")
    return None


def _written_version(place: str) -> str | None:
    """A version written into a package that was not installed (a checkout on PYTHONPATH)."""
    for leaf in ("version.py", "_version.py", "__init__.py"):
        text = _read(os.path.join(os.path.dirname(place), leaf))
        match = re.search(r"^(?:__version__|version)\b[^=\n]*= *['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        if match:
            return match.group(1)
    return None


def _torch() -> dict[str, str]:
    """What torch was built for, from its version.py as text."""
    place = _place("torch")
    text = _read(os.path.join(os.path.dirname(place), "version.py")) if place else ""
    found = re.findall(r"^(cuda|hip)\b[^=\n]*= *['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return dict(found)


def _nvcc() -> str | None:
    """The compiler that a kernel build would take: of CUDA_HOME, on PATH, or at the usual place."""
    import shutil

    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    usual = [shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    for place in [os.path.join(home, "bin", "nvcc")] if home else usual:
        if place and os.access(place, os.X_OK):
            return place
    return None


def _start(program: str, words: list[str]) -> Any:
    import subprocess

    try:
        return subprocess.Popen(
            [program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            errors="replace",
        )  # fmt: skip
    except OSError:
        return None


def _finish(process: Any, limit: float, notes: list[str], name: str) -> str:
    """What a program printed; a note where it failed or did not end (a wedged driver holds nvidia-smi for ever)."""
    import subprocess

    if process is None:
        return ""
    try:
        text, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: a process that hangs in the driver cannot be killed
        notes.append(f"{name} did not answer within {limit:g} s")
        return ""
    if process.returncode:
        notes.append(f"{name} failed (status {process.returncode}): {text.strip()[:500]}")
        return ""
    return str(text)


def _gpus(text: str, notes: list[str]) -> tuple[list[dict[str, Any]], str | None]:
    """Every GPU and the driver's version from the table that nvidia-smi prints."""
    gpus = []
    driver = None
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 6 or not parts[0].isdigit():
            notes.append("nvidia-smi: " + line.strip()[:200])
            continue
        driver = parts[2]
        digits = parts[3].replace(".", "")
        gpus.append({
            "index": int(parts[0]), "name": parts[1], "sm": "sm" + digits if digits.isdigit() else None,
            "memory_mib": int(float(parts[4])) if re.match(r"[\d.]+$", parts[4]) else None, "uuid": parts[5],
        })  # fmt: skip
    return gpus, driver


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(100_000)
    except OSError:
        return ""


def _stamp(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def flags(engine: str, tries: list[list[str]]) -> dict[str, Any]:
    """Every flag of the engine's parser, and for each command line in `tries` what that parser says to it.

    Raises whatever the import of the engine raises.
    """
    began = time.monotonic()
    parser = _parser(engine)
    built = time.monotonic()
    return {
        "schema": SCHEMA, "engine": engine, "abbreviations": bool(getattr(parser, "allow_abbrev", True)),
        "flags": [_flag(parser, action) for action in parser._actions if action.option_strings],
        "tried": [_tried(parser, words) for words in tries],
        "seconds": round(built - began, 2),
    }  # fmt: skip


def _import(name: str) -> Any:
    """A module by its full name; unlike importlib's function this leaves no frames of its own in a traceback."""
    __import__(name)
    return sys.modules[name]


def _first(*names: str) -> Any:
    """The first of these modules that there is; what one raises while it is imported is raised."""
    from importlib.util import find_spec

    for name in names:
        try:
            there = find_spec(name) is not None
        except ModuleNotFoundError:
            there = False
        if there or name == names[-1]:
            return _import(name)


def _parser(engine: str) -> Any:
    import argparse

    if engine == "sglang":
        parser = argparse.ArgumentParser(prog="sglang serve")
        _import("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
        return parser
    if engine == "vllm":
        utils = _first("vllm.utils.argparse_utils", "vllm.utils")
        # where it stood up to 0.27, and where it went
        places = ("openai", "launchers", "common")
        arguments = _first(*(f"vllm.entrypoints.{place}.cli_args" for place in places))
        return arguments.make_arg_parser(utils.FlexibleArgumentParser(prog="vllm serve"))
    raise SystemExit("no parser is known for " + engine)


def _flag(parser: Any, action: Any) -> dict[str, Any]:
    import argparse

    help = "" if action.help is argparse.SUPPRESS else action.help or ""
    kind = type(action).__name__
    refused = _refused(parser, action)
    twin = "BooleanOptionalAction" in [base.__name__ for base in type(action).__mro__]
    found = {
        "spellings": list(action.option_strings), "dest": action.dest,
        "arity": "bool" if twin else 1 if action.nargs is None else action.nargs,
        "default": None if action.default is argparse.SUPPRESS else _plain(action.default),
        "choices": [str(choice) for choice in _sorted(action.choices)] if action.choices else [],
        "type": getattr(action.type, "__name__", None),
        "deprecated": bool("Deprecated" in kind or re.match(r"\W*deprecat", help, re.IGNORECASE)),
        "use_instead": str(getattr(action, "new_flag", None) or ""),
        "required": bool(action.required), "hidden": action.help is argparse.SUPPRESS,
    }  # fmt: skip
    if refused:
        found["refused"] = refused
    return found


def _sorted(choices: Any) -> list[Any]:
    """Choices in their own order; of a set, which has none, by name."""
    return sorted(choices, key=str) if isinstance(choices, (set, frozenset)) else list(choices)


def _refused(parser: Any, action: Any) -> str:
    """What a flag of the engine's own kind says when it is given: some are still there only to refuse."""
    import argparse

    if type(action).__module__ == "argparse" or action.nargs != 0 or "help" in action.dest:
        return ""
    try:
        action(parser, argparse.Namespace(), [], action.option_strings[0])
    except argparse.ArgumentError as error:
        return str(error)
    except (SystemExit, ValueError, TypeError, AttributeError) as error:
        return str(error) or type(error).__name__
    return ""


def _tried(parser: Any, words: list[str]) -> str | None:
    """None where the parser takes these words, else its complaint."""
    import contextlib
    import io

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parser.parse_args(words)
    except SystemExit:
        lines = said.getvalue().strip().splitlines()
        return lines[-1] if lines else "refused without a word"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _plain(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


def main(words: list[str]) -> None:
    """Answers on standard output; status 0 also for an answer that says what failed, 2 for a wrong call."""
    # Our folder stands first on the path, where `python -m` has the working directory: modules of ours must not be
    # taken for the engine's, and a file in the working directory that shadows a package must show.
    if sys.path and os.path.abspath(sys.path[0] or ".") == os.path.dirname(os.path.abspath(__file__)):
        sys.path[0] = os.getcwd()
    answer_to = os.dup(1)
    os.dup2(2, 1)
    if words[:1] == ["versions"]:
        answer = versions(float(words[1]) if len(words) > 1 else 5.0)
    elif words[:1] == ["flags"] and len(words) == 2:
        asked = sys.stdin.read().strip() if not sys.stdin.isatty() else ""
        try:
            answer = flags(words[1], json.loads(asked)["try"] if asked else [])
        except BaseException as error:
            import traceback

            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                trace = trace.tb_next  # ours are not part of the story
            text = "".join(traceback.format_exception(type(error), error, trace))
            sys.stderr.write(text)
            answer = {"schema": SCHEMA, "engine": words[1], "failed": f"{type(error).__name__}: {error}", "log": text}
    else:
        print(__doc__, file=sys.stderr)
        raise SystemExit(2)
    sys.stdout.flush()
    with os.fdopen(answer_to, "w", encoding="utf-8") as out:
        json.dump(answer, out)
    os._exit(0)  # threads of a half imported engine must not hold the answer back


if __name__ == "__main__":
    main(sys.argv[1:])
