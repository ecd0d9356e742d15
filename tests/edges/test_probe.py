"""What an interpreter says of its environment: real interpreters, made-up packages."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from app.core.launch import check
from app.probe import Probe, ProbeError, interpreter_of, probe
from tests.edges.environments import environment, smi, tool

BLACKWELL = "0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.95.05, 12.0, 97887, GPU-1"
PACKAGES = {
    "sglang": "0.5.99",
    "torch": "2.9.1+cu128",
    "flashinfer-python": "0.6.3",
    "nvidia-nccl-cu12": "2.27.5",
    "other": "1",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bringup"


def ask(folder: Path, environ: dict[str, str], engine: str | None = None, **more: object) -> Probe:
    return probe(sys.executable, engine=engine, environ=environ, cwd=str(folder), **more)  # type: ignore[arg-type]


def test_versions_come_from_names_of_folders_without_importing_anything(tmp_path: Path, cache: Path) -> None:
    environ = environment(tmp_path, PACKAGES)
    smi(tmp_path, BLACKWELL)
    tool(tmp_path, "nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    found = ask(tmp_path, environ)
    assert found.packages == {
        "sglang": "0.5.99", "torch": "2.9.1+cu128", "flashinfer-python": "0.6.3", "nvidia-nccl": "2.27.5",
    }  # fmt: skip
    assert (found.sm, found.driver, found.torch_cuda) == ("sm120", "580.95.05", "12.8")
    assert found.gpus[0].memory_mib == 97887
    assert found.nvcc == (str(tmp_path / "bin" / "nvcc"), "12.8")
    assert found.versions["nccl"] == "2.27.5"
    assert found.versions["flashinfer"] == "0.6.3"
    assert found.notes == ()


def test_the_answer_is_kept_until_a_package_is_installed(tmp_path: Path, cache: Path) -> None:
    environ = environment(tmp_path, PACKAGES)
    assert not ask(tmp_path, environ).cached
    assert ask(tmp_path, environ).cached
    (tmp_path / "site" / "triton-3.5.1.dist-info").mkdir()
    os.utime(tmp_path / "site", ns=(1, 1))  # whatever the clock's grain
    again = ask(tmp_path, environ)
    assert not again.cached
    assert again.packages["triton"] == "3.5.1"


def test_every_flag_of_the_parser(tmp_path: Path, cache: Path) -> None:
    environ = environment(tmp_path, PACKAGES)
    found = ask(tmp_path, environ, "sglang")
    assert found.parser is not None
    assert found.parser.failure is None
    flags = {item["spellings"][0]: item for item in found.parser.flags}
    assert flags["--attention-backend"]["choices"] == ["triton", "flashinfer"]
    assert flags["--tp-size"]["default"] == 1
    assert flags["--old-switch"]["deprecated"]
    assert flags["--old-switch"]["use_instead"] == "--attention-backend triton"
    assert "was removed" in flags["--gone"]["refused"]
    table = found.table("sglang")
    assert table is not None
    release = table.for_version("0.5.99")
    assert check(["--model", "x", "--no-flag", "--old-switch", "--lora-paths", "a", "b"], release) == []
    assert check(["--gone"], release) == ["unrecognized arguments: --gone"]
    assert check(["--attention-backend", "fa3"], release)[0].startswith("argument --attention-backend: invalid choice")
    assert ask(tmp_path, environ, "sglang").cached


def test_an_engine_that_cannot_be_imported_is_an_answer(tmp_path: Path, cache: Path) -> None:
    environ = environment(tmp_path, PACKAGES, "import sgl_kernel\n")
    found = ask(tmp_path, environ, "sglang")
    assert found.version("sglang") == "0.5.99"
    assert found.parser is not None
    assert found.parser.failure == "ModuleNotFoundError: No module named 'sgl_kernel'"
    assert found.parser.log.startswith("Traceback (most recent call last):")
    assert "probe_child" not in found.parser.log
    assert "importlib" not in found.parser.log
    assert found.table("sglang") is None
    assert not ask(tmp_path, environ, "sglang").cached  # what was missing may be there next time


def test_an_import_that_kills_its_interpreter(tmp_path: Path, cache: Path) -> None:
    environ = environment(tmp_path, PACKAGES, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    found = ask(tmp_path, environ, "sglang")
    assert found.parser is not None
    assert found.parser.failure == f"the import of sglang was ended by {signal.Signals.SIGSEGV.name}"


def test_an_import_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, cache: Path) -> None:
    text = (
        "import os, subprocess, sys, threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "threading.Event().wait()\n"
    )
    found = ask(tmp_path, environment(tmp_path, PACKAGES, text), "sglang", limit=2.0)
    assert found.parser is not None
    assert found.parser.failure == "the import of sglang did not answer within 2 s"
    pid = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_driver_tool_that_hangs_or_fails_is_a_note(tmp_path: Path, cache: Path) -> None:
    environ = environment(tmp_path, PACKAGES)
    tool(tmp_path, "nvidia-smi", f"#!{sys.executable}\nimport threading\nthreading.Event().wait()\n")
    assert ask(tmp_path, environ, limit=4.0).notes == ("nvidia-smi did not answer within 1 s",)
    said = "Failed to initialize NVML: Driver/library version mismatch"
    tool(tmp_path, "nvidia-smi", f"#!/bin/sh\necho '{said}'\nexit 18\n")
    found = ask(tmp_path, environ, cache=False)
    assert found.notes == (f"nvidia-smi failed (status 18): {said}",)
    assert found.gpus == ()


def test_a_package_installed_twice_is_a_note(tmp_path: Path, cache: Path) -> None:
    environ = environment(tmp_path, PACKAGES)
    (tmp_path / "site" / "torch-2.8.0.dist-info").mkdir()
    assert ask(tmp_path, environ).notes[0].startswith("torch is installed more than once in ")


def test_a_file_of_the_working_directory_shadows_as_it_will_in_the_launch(tmp_path: Path, cache: Path) -> None:
    environ = environment(
        tmp_path, PACKAGES, "import hub\n"
    )  # this program has a module of that name; the engine has not
    found = ask(tmp_path, environ, "sglang")
    assert found.parser is not None
    assert found.parser.failure == "ModuleNotFoundError: No module named 'hub'"
    (tmp_path / "hub.py").write_text("raise RuntimeError('shadowed')\n")
    again = ask(tmp_path, environ, "sglang")
    assert again.parser is not None
    assert again.parser.failure == "RuntimeError: shadowed"


def test_an_interpreter_that_is_none(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(ProbeError, match="cannot be run: No such file or directory"):
        probe(str(tmp_path / "python"), environ={}, cwd=str(tmp_path))
    tool(tmp_path, "python", "#!/bin/sh\necho no >&2\nexit 3\n")
    with pytest.raises(ProbeError, match="ended with status 3: no"):
        probe(str(tmp_path / "bin" / "python"), environ={}, cwd=str(tmp_path))


def test_a_kept_answer_that_is_damaged_is_asked_for_again(tmp_path: Path, cache: Path) -> None:
    environ = environment(tmp_path, PACKAGES)
    ask(tmp_path, environ)
    for file in cache.glob("probe-*.json"):
        file.write_text('{"schema": 1')
    assert not ask(tmp_path, environ).cached


def test_the_interpreter_of_a_command_line(tmp_path: Path) -> None:
    tool(tmp_path, "python3", "")
    tool(tmp_path, "sglang", f"#!{tmp_path}/bin/python3\nimport sys\n")
    environ = {"PATH": str(tmp_path / "bin")}
    expected = str(tmp_path / "bin" / "python3")
    launch = ["python3", "-m", "sglang.launch_server", "--model-path", "x"]
    assert interpreter_of(launch, environ) == expected
    assert interpreter_of(["env", "A=B", "nohup", *launch], environ) == expected
    assert interpreter_of(["sglang", "serve", "--model-path", "x"], environ) == expected
    assert interpreter_of([str(tmp_path / "bin" / "sglang"), "serve", "x"], environ) == expected
    assert interpreter_of(["docker", "run", "image", *launch], environ) is None
    assert interpreter_of(["no-such-python", "-m", "sglang.launch_server"], environ) is None
    assert interpreter_of(["ls"], environ) is None


def test_programs_read_the_whole_answer(tmp_path: Path, cache: Path) -> None:
    smi(tmp_path, BLACKWELL)
    body = json.loads(json.dumps(ask(tmp_path, environment(tmp_path, PACKAGES), "sglang").to_json()))
    assert body["packages"]["sglang"] == "0.5.99"
    assert body["gpus"][0]["sm"] == "sm120"
    assert len(body["parser"]["flags"]) == 9
