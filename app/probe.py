"""The interpreter that an engine runs in, in; versions, GPUs and every flag of its parser out.

The asking is done by `probe_child.py` in that interpreter, in a process of its own with a time limit: the engine is
never imported here. Answers are kept in the user's cache until something in that environment changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.core.flags import Flag, FlagTable
from app.core.launch import find_launch

CHILD = Path(__file__).with_name("probe_child.py")
LIMIT = 20.0
"""Seconds for versions: 0.1 in general, more on a cold or networked disk."""
FLAGS_LIMIT = 120.0
"""Seconds for the flags: 10 in general, as the engine is imported."""
ENGINES = {"sglang": "sglang", "vllm": "vllm", "trtllm": "tensorrt-llm"}
"""An engine as the rules name it, and the package that it is."""
_NAMES = {
    "flashinfer-python": "flashinfer", "sgl-kernel": "sgl_kernel", "sglang-kernel": "sgl_kernel",
    "nvidia-nccl": "nccl", "tensorrt-llm": "trtllm",
}  # fmt: skip
_SHAPES = ("PATH", "PYTHONPATH", "PYTHONHOME", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES")
"""Variables that change the answer."""


class ProbeError(Exception):
    """The interpreter could not be asked at all; the text says why."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as nvidia-smi lists it; `sm` as "sm120", memory in MiB."""

    index: int
    name: str
    sm: str | None
    memory_mib: int | None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Parser:
    """What an engine's parser takes. `flags` as probe_child gives them; `failure` is the exception's line when the
    engine could not be imported, `log` its traceback and all that was printed (the rules can explain it)."""

    engine: str
    flags: tuple[Mapping[str, Any], ...] = ()
    failure: str | None = None
    log: str = ""
    abbreviations: bool = True
    seconds: float = 0.0
    tried: tuple[str | None, ...] = ()

    def table(self, version: str) -> FlagTable | None:
        """The parser as a flag table of one release, for app.core.remedies and app.core.launch; None when it failed."""
        if self.failure is not None:
            return None
        found = [flag for item in self.flags if not item.get("refused") for flag in flags_of(item)]
        flags: dict[str, tuple[tuple[int, Flag | None], ...]] = {flag.name: ((0, flag),) for flag in found}
        return FlagTable(self.engine, (version,), flags, flexible=self.engine == "vllm")


@dataclass(frozen=True, slots=True)
class Probe:
    """What one interpreter's environment has. `packages` by distribution name; `notes` are sentences about what could
    not be found out or is odd; `cached` says that nothing was started for it."""

    python: str
    python_version: str
    packages: Mapping[str, str]
    engines: Mapping[str, str] = field(default_factory=dict)
    torch_cuda: str | None = None
    nvcc: tuple[str, str | None] | None = None
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()
    parser: Parser | None = None
    fingerprint: str = ""
    seconds: float = 0.0
    cached: bool = False

    @property
    def versions(self) -> dict[str, str]:
        """Releases under the names that rules use: sglang, torch, flashinfer, nccl, sgl_kernel, cuda, driver …"""
        found = {_NAMES.get(name, name): version for name, version in self.packages.items()}
        found["python"] = self.python_version
        if self.torch_cuda:
            found["cuda"] = self.torch_cuda
        if self.driver:
            found["driver"] = self.driver
        return found

    @property
    def sm(self) -> str | None:
        """The architecture of all GPUs as "sm120"; None for none, or several."""
        kinds = {gpu.sm for gpu in self.gpus if gpu.sm}
        return kinds.pop() if len(kinds) == 1 else None

    def version(self, engine: str) -> str | None:
        return self.packages.get(ENGINES.get(engine, engine))

    def table(self, engine: str) -> FlagTable | None:
        """The installed parser of an engine, None when it was not asked or did not answer."""
        version = self.version(engine)
        if self.parser is None or self.parser.engine != engine or version is None:
            return None
        return self.parser.table(version)

    def to_json(self) -> dict[str, Any]:
        """The whole answer for programs."""
        body: dict[str, Any] = {
            "schema": 1, "python": {"path": self.python, "version": self.python_version},
            "packages": dict(self.packages), "engines": dict(self.engines), "torch_cuda": self.torch_cuda,
            "nvcc": {"path": self.nvcc[0], "version": self.nvcc[1]} if self.nvcc else None, "driver": self.driver,
            "gpus": [{"index": g.index, "name": g.name, "sm": g.sm, "memory_mib": g.memory_mib} for g in self.gpus],
            "notes": list(self.notes), "fingerprint": self.fingerprint, "cached": self.cached,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip
        if self.parser is not None:
            body["parser"] = {
                "engine": self.parser.engine, "failure": self.parser.failure, "log": self.parser.log or None,
                "abbreviations": self.parser.abbreviations, "flags": [dict(item) for item in self.parser.flags],
            }  # fmt: skip
        return body


def flags_of(item: Mapping[str, Any]) -> Iterator[Flag]:
    """The flags that one action of a parser stands for.

    argparse counts the `--no-` twin of a switch among its spellings, the table does not; a twin that is spelled
    otherwise (`--disable-x` beside `--enable-x`) is a flag of its own.
    """
    spellings = [str(text) for text in item["spellings"]]
    arity = item["arity"]
    if arity == "bool":
        own = [text for text in spellings if not text.startswith("--no-")] or spellings
        twins = [text for text in own if text.startswith("--disable-") and f"--enable-{text[10:]}" in own]
        arity = "bool" if len(own) < len(spellings) else 0
        yield from (Flag(text, (text,), str(item["dest"]), 0) for text in twins)
        spellings = [text for text in own if text not in twins]
    elif isinstance(arity, int) and arity > 1:
        arity = "+"
    yield Flag(
        spellings[0], tuple(spellings), str(item["dest"]), arity, tuple(item.get("choices") or ()),
        bool(item.get("deprecated")), str(item.get("use_instead") or ""), bool(item.get("required")),
    )  # fmt: skip


def interpreter_of(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> str | None:
    """The Python that a command line starts its engine with, as an absolute path.

    None where it cannot be told or asked: another machine's, a container's, a shell text's, no such program.
    """
    environ = os.environ if environ is None else environ
    launch = find_launch(argv)
    if launch is None or launch.container is not None or launch.shell:
        return None
    words = launch.words[: launch.start]
    path = environ.get("PATH")
    for name in reversed(words):
        leaf = name.rsplit("/", 1)[-1]
        if re.fullmatch(r"(?:python|pypy)[\d.]*", leaf):
            found = shutil.which(name, path=path)
            return os.path.abspath(found) if found else None
        if leaf in ("sglang", "vllm"):
            return _shebang(shutil.which(name, path=path))
    return None


def _shebang(script: str | None) -> str | None:
    """The interpreter in the first line of an installed command."""
    if script is None:
        return None
    try:
        with open(script, "rb") as file:
            first = file.readline(500).decode(errors="replace").strip()
            if first == "#!/bin/sh":  # pip's form for long paths: the second line runs the interpreter
                first = "#!" + file.readline(2000).decode(errors="replace").strip().removeprefix("'''exec' ")
    except OSError:
        return None
    words = first.removeprefix("#!").strip().split(" ") if first.startswith("#!") else []
    words = words[1:] if words and words[0].endswith("/env") else words
    place = shutil.which(words[0].strip('"')) if words else None
    return os.path.abspath(place) if place else None


def probe(
    python: str, *, engine: str | None = None, environ: Mapping[str, str] | None = None, cwd: str | None = None,
    limit: float | None = None, cache: bool = True, only_cached: bool = False,
) -> Probe:  # fmt: skip
    """Asks an interpreter; with `engine` also for that engine's flags ("" for the engine that is installed).

    `environ` and `cwd` are those of the launch. `limit` is in seconds for each question. With `only_cached` the flags
    are given only where they are known from before (versions are always asked for). Raises ProbeError when the
    interpreter itself cannot be run.
    """
    environ = dict(os.environ if environ is None else environ)
    cwd = cwd or os.getcwd()
    began = time.monotonic()
    store = _store() if cache else None
    key = _key(python, environ, cwd)
    answer, cached = _fresh(store, key), True
    if answer is None:
        answer, cached = _versions(python, environ, cwd, limit or LIMIT), False
        _keep(store, f"versions-{key}", answer)
    known = {name: value for name, value in answer.items() if name in ("executable", "packages", "engines", "watch")}
    fingerprint = hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=8).hexdigest()
    if engine == "":
        engine = next((name for name in ("sglang", "vllm") if name in answer["engines"]), None)
    parser = None
    if engine in ("sglang", "vllm"):
        parser, mine = _flags(python, engine, environ, cwd, limit, store, fingerprint, only_cached)
        cached = cached and mine
    return Probe(
        python, answer["python"], answer["packages"], answer["engines"], answer.get("torch_cuda"),
        (answer["nvcc"]["path"], answer["nvcc"]["version"]) if answer.get("nvcc") else None, answer.get("driver"),
        tuple(Gpu(**gpu) for gpu in answer["gpus"]), tuple(answer["notes"]), parser, fingerprint,
        time.monotonic() - began, cached,
    )  # fmt: skip


def _versions(python: str, environ: Mapping[str, str], cwd: str, limit: float) -> dict[str, Any]:
    answer, log, ended = ask(python, ["versions", f"{max(1.0, limit / 4):g}"], environ, cwd, limit)
    if answer is None:
        last = log.strip().splitlines()[-1:] or ["it said nothing"]
        raise ProbeError(f"{python} {ended}: {last[0][:300]}")
    return answer


def _flags(
    python: str, engine: str, environ: Mapping[str, str], cwd: str, limit: float | None, store: Path | None,
    fingerprint: str, only_cached: bool,
) -> tuple[Parser | None, bool]:  # fmt: skip
    """The engine's parser, and whether it was known from before. A failure is never kept: its reason may be gone."""
    name = f"flags-{engine}-{fingerprint}"
    answer = _read(store, name)
    cached = answer is not None
    if answer is None:
        if only_cached:
            return None, True
        answer, log, ended = ask(python, ["flags", engine], environ, cwd, limit or FLAGS_LIMIT)
        if answer is None:
            return Parser(engine, (), f"the import of {engine} {ended}", log), False
        if answer.get("failed"):
            return Parser(engine, (), str(answer["failed"]), log or str(answer["log"])), False
        _keep(store, name, answer)
    return Parser(
        engine, tuple(answer["flags"]), None, "", bool(answer["abbreviations"]), float(answer["seconds"]),
        tuple(answer.get("tried") or ()),
    ), cached  # fmt: skip


def ask(
    python: str, words: Sequence[str], environ: Mapping[str, str], cwd: str, limit: float, given: object = None
) -> tuple[dict[str, Any] | None, str, str]:
    """Runs the child script: its answer (None without one), what went to standard error, and how it ended in words.

    Raises ProbeError when the interpreter cannot be started. The child and all it started are gone afterwards.
    """
    command = [python, str(CHILD), *words]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environ), cwd=cwd,
            start_new_session=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise ProbeError(f"{python} cannot be run: {error.strerror or error}") from None
    late = False
    with child:
        try:
            out, log = child.communicate(json.dumps(given) if given is not None else "", timeout=limit)
        except subprocess.TimeoutExpired:
            late = True
            _end(child)
            out, log = child.communicate()
        _end(child)
    if late:
        return None, log, f"did not answer within {limit:g} s"
    try:
        answer = json.loads(out)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and answer.get("schema") == 1:
        return answer, log, "answered"
    status = child.returncode
    return None, log, f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _end(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _key(python: str, environ: Mapping[str, str], cwd: str) -> str:
    """What the versions of an interpreter depend on besides the folders that its answer lists."""
    parts: list[object] = [python, cwd, {name: environ.get(name) for name in _SHAPES}]
    for path in (python, CHILD):
        try:
            status = os.stat(path)
            parts.append((status.st_mtime_ns, status.st_size))
        except OSError:
            parts.append(None)
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/driver/nvidia/version"):
        try:
            parts.append(Path(path).read_text())
        except OSError:
            parts.append(None)
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def _store() -> Path | None:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "bringup") if os.path.isabs(home) else None


def _fresh(store: Path | None, key: str) -> dict[str, Any] | None:
    """The kept versions, when no folder that they were read from has changed."""
    answer = _read(store, f"versions-{key}")
    if answer is None or not answer.get("watch"):
        return None
    for path, stamp in answer["watch"].items():
        try:
            if os.stat(path).st_mtime_ns != stamp:
                return None
        except OSError:
            return None
    return answer


def _read(store: Path | None, name: str) -> dict[str, Any] | None:
    if store is None:
        return None
    try:
        answer = json.loads((store / f"probe-{name}.json").read_text())
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) and answer.get("schema") == 1 else None


def _keep(store: Path | None, name: str, answer: Mapping[str, Any]) -> None:
    """Keeps an answer; a full or read-only disk is no reason to fail."""
    if store is None:
        return
    fresh = store / f"probe-{name}.{os.getpid()}.tmp"
    try:
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.write_text(json.dumps(answer))
        os.replace(fresh, store / f"probe-{name}.json")
    except OSError:
        fresh.unlink(missing_ok=True)
