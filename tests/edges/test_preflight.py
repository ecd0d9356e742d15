"""What is found before a start: real files, a real port, real interpreters with made-up packages."""

from __future__ import annotations

import json
import shlex
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli import main
from app.knowledge import Base, load
from app.preflight import Report, ask_interpreter, preflight
from app.probe import Gpu, Probe
from tests.edges.environments import environment, smi, tool

BLACKWELL = Gpu(0, "RTX PRO 6000", "sm120", 97887)
HOME: Mapping[str, str] = {"HOME": "/nonexistent/home", "PATH": ""}


@pytest.fixture(scope="module")
def base() -> Base:
    return load(cache=False)


def weights(path: Path, size: int = 64, cut: int = 0) -> None:
    """A weight file of one tensor, `cut` bytes short."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes((struct.pack("<Q", len(header)) + header + b"\0" * size)[: -cut or None])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 8}
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    (folder / "tokenizer.json").write_text("{}")
    weights(folder / "model.safetensors")
    return folder


def look(base: Base, words: str, **more: Any) -> Report:
    probe = more.pop("probe", None)
    if probe is None and "version" not in more:
        more["version"] = "0.5.9"
    argv = ["python", "-m", "sglang.launch_server", *shlex.split(words)]
    return preflight(argv, base, probe=probe, environ=more.pop("environ", HOME), **more)


def found(report: Report) -> dict[str, bool]:
    """Rules and whether they fail, without what depends on this machine's own limits."""
    machine = {"distributed/nccl-shm-too-small", "toolchain/kernel-cache-dir-not-writable", "toolchain/jit-disk-full"}
    machine |= {"host/open-files-limit", "host/thread-process-limit"}
    return {item.finding.rule: item.finding.fails for item in report.items if item.finding.rule not in machine}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_sound_launch_has_no_findings(base: Base, model: Path) -> None:
    report = look(base, f"--model-path {model} --tp 2 --port {free_port()} --context-length 4096")
    assert found(report) == {}
    assert not report.fails


# ---- the founding story


@pytest.mark.parametrize(
    ("version", "words", "fails"),
    [
        ("0.5.9", "--enable-piecewise-cuda-graph", True),
        ("0.5.5", "--enable-piecewise", True),
        ("0.5.9", "", False),
        ("0.5.4", "--enable-piecewise-cuda-graph", False),
        ("0.5.10", "", True),
        ("0.5.10.post1", "--disable-piecewise-cuda-graph", False),
        ("0.5.11", "--enforce-piecewise-cuda-graph --enable-lora", True),
        ("0.5.11", "--enable-lora", False),
        ("0.5.11", "--speculative-algorithm EAGLE", True),
        ("0.5.10", "--speculative-algorithm EAGLE", False),
        ("0.5.12", "", False),
    ],
)
def test_the_founding_crash_is_named_from_argv_and_versions(
    base: Base, model: Path, version: str, words: str, fails: bool
) -> None:
    (model / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    report = look(base, f"--model-path {model} {words} --port {free_port()}", version=version, gpu="sm120")
    rule = "dynamo/flashinfer-fp4-jit-under-dynamo"
    assert found(report) == ({rule: True} if fails else {})
    assert found(look(base, f"--model-path {model} {words} --port {free_port()}", version=version, gpu="sm100")) == {}
    if fails:
        change = report.items[0].remedies[0]["change"]
        assert change["set"] == {"prefill_graph": "disabled"}
        after = preflight(change["argv"], base, version=version, gpu="sm120", environ=HOME)
        assert rule not in found(after)


def test_an_architecture_that_switches_the_graphs_off_by_itself(base: Base, model: Path) -> None:
    config = {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config))
    words = f"--model-path {model} --quantization modelopt_fp4 --port {free_port()}"
    assert found(look(base, words, version="0.5.10", gpu="sm120")) == {}
    assert look(base, words + " --enforce-piecewise-cuda-graph", version="0.5.10", gpu="sm120").fails


# ---- arguments


@pytest.mark.parametrize(
    ("version", "words", "rule"),
    [
        ("0.5.20", "--enable-piecewise-cuda-graph", "arguments/unknown-cli-argument"),
        ("0.5.9", "--enable-p", "arguments/unknown-cli-argument"),
        ("0.5.9", "--attention-backend fa9", "arguments/invalid-flag-value"),
        (None, "--no-release-has-this", "arguments/unknown-cli-argument"),
    ],
)
def test_what_the_parser_will_refuse(base: Base, model: Path, version: str | None, words: str, rule: str) -> None:
    report = look(base, f"--model-path {model} --port {free_port()} {words}", version=version)
    assert found(report) == {rule: True}


def test_a_release_that_was_not_checked_may_have_other_flags(base: Base, model: Path) -> None:
    report = look(base, f"--model-path {model} --port {free_port()} --from-the-future", version="9.9.9")
    assert found(report) == {"arguments/unknown-cli-argument": False}


def test_no_model_and_a_configuration_file_that_is_not_there(base: Base, tmp_path: Path) -> None:
    assert found(look(base, f"--port {free_port()}")) == {"arguments/required-argument-missing": True}
    report = look(base, f"--config {tmp_path}/none.yaml --port {free_port()}")
    assert found(report) == {"arguments/config-file-not-found": True}


def test_what_a_configuration_file_says_counts(base: Base, model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"model-path: {model}\ntp-size: 3\nport: {free_port()}\n")
    assert found(look(base, f"--config {tmp_path}/c.yaml")) == {"arguments/tp-size-does-not-divide-model": True}


def test_the_installed_parser_knows_best(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environ = environment(tmp_path, {"sglang": "0.5.9", "torch": "2.9.1"})
    tool(tmp_path, "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    smi(tmp_path, "0, RTX PRO 6000, 580.95.05, 12.0, 97887, GPU-1")
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "owner/name", "--port", str(free_port())]
    probe, problem = ask_interpreter(argv, base, environ=environ, cwd=str(tmp_path), flags="always")
    assert problem == ""
    assert probe is not None
    assert probe.parser is not None
    report = preflight([*argv, "--old-switch"], base, probe=probe, environ=environ)
    assert found(report) == {}
    assert report.checked == "the parser of the installed sglang 0.5.9"
    report = preflight([*argv, "--mem-fraction-static", "0.9"], base, probe=probe, environ=environ)
    assert found(report) == {"arguments/unknown-cli-argument": True}
    report = preflight([*argv, "--tp-size", "two"], base, probe=probe, environ=environ)
    assert found(report) == {"arguments/invalid-flag-value": True}


def test_an_engine_that_cannot_be_imported_is_explained_by_the_rules(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environ = environment(tmp_path, {"sglang": "0.5.9"}, "import sgl_kernel\n")
    tool(tmp_path, "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "owner/name", "--port", str(free_port())]
    probe, _ = ask_interpreter(argv, base, environ=environ, cwd=str(tmp_path), flags="always")
    report = preflight(argv, base, probe=probe, environ=environ)
    assert found(report) == {"packages/sgl-kernel-not-installed": True}


# ---- the model's files


def test_a_folder_that_does_not_exist(base: Base, tmp_path: Path) -> None:
    report = look(base, f"--model-path {tmp_path}/none --port {free_port()}")
    assert found(report) == {"checkpoint/model-path-not-found": True}
    assert report.items[0].verdict.names["path"] == f"{tmp_path}/none"


def test_a_name_on_the_hub_is_looked_up_in_the_cache_only(base: Base, tmp_path: Path) -> None:
    words = f"--model-path owner/name --port {free_port()}"
    assert found(look(base, words)) == {}
    environ = {**HOME, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    assert found(look(base, words, environ=environ)) == {"hub/hf-offline-mode-missing-file": True}
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "hub" / "models--owner--name" / "refs").mkdir()
    (tmp_path / "hub" / "models--owner--name" / "refs" / "main").write_text("abc")
    assert "checkpoint/model-config-missing" in found(look(base, words, environ=environ))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.mark.parametrize(
    ("file", "content", "rule"),
    [
        ("config.json", None, "checkpoint/model-config-missing"),
        ("config.json", "{", "checkpoint/model-config-unreadable"),
        ("config.json", POINTER, "checkpoint/model-config-unreadable"),
        ("config.json", "{}", "checkpoint/model-config-missing"),
        ("model.safetensors", None, "checkpoint/model-weights-missing"),
        ("model.safetensors", POINTER, "checkpoint/safetensors-lfs-pointer"),
        ("model.safetensors", "<html>a page, not the weights</html>", "checkpoint/safetensors-lfs-pointer"),
        ("model.safetensors", "\x40\0\0\0\0\0\0\0{", "checkpoint/safetensors-truncated-file"),
        ("model.safetensors", "\x04\0\0\0\0\0\0\0none", "checkpoint/safetensors-header-invalid"),
        ("tokenizer.json", None, "checkpoint/tokenizer-files-missing"),
        ("tokenizer.json", POINTER, "checkpoint/tokenizer-file-invalid"),
    ],
)
def test_a_damaged_model(base: Base, model: Path, file: str, content: str | None, rule: str) -> None:
    if content is None:
        (model / file).unlink()
    else:
        (model / file).write_text(content)
    assert found(look(base, f"--model-path {model} --port {free_port()}")) == {rule: True}


def test_a_cut_off_weight_file_and_a_missing_one(base: Base, model: Path) -> None:
    weights(model / "model-00001-of-00003.safetensors")
    weights(model / "model-00002-of-00003.safetensors", cut=1)
    names = {str(n): f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    report = look(base, f"--model-path {model} --port {free_port()}")
    assert found(report) == {
        "checkpoint/checkpoint-shard-missing": True, "checkpoint/safetensors-truncated-file": True,
    }  # fmt: skip
    assert found(look(base, f"--model-path {model} --load-format dummy --port {free_port()}")) == {}


def test_sizes_that_do_not_fit_the_model(base: Base, model: Path) -> None:
    words = f"--model-path {model} --port {free_port()} "
    assert found(look(base, words + "--tp 3")) == {"arguments/tp-size-does-not-divide-model": True}
    assert found(look(base, words + "--context-length 8192")) == {"arguments/context-length-exceeds-model": True}
    environ = {**HOME, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert found(look(base, words + "--context-length 8192", environ=environ)) == {}


# ---- this machine


def known(**more: Any) -> Probe:
    packages = {"sglang": "0.5.9", "torch": "2.9.1+cu128", **more.pop("packages", {})}
    return Probe(
        "python", "3.11.7", packages, **{"torch_cuda": "12.8", "driver": "580.95.05", "gpus": (BLACKWELL,), **more}
    )


def test_a_port_that_somebody_has(base: Base, model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        report = look(base, f"--model-path {model} --port {port}")
        assert found(report) == {"host/port-in-use": True}
        assert f"port {port}: in use, held by " in report.items[0].finding.text
        assert found(look(base, f"--model-path {model} --port {port} --nnodes 2 --node-rank 1")) == {}


def test_an_address_that_is_not_ours(base: Base, model: Path) -> None:
    report = look(base, f"--model-path {model} --port {free_port()} --host 192.0.2.1")
    assert found(report) == {"host/listen-address-not-local": True}


def test_more_gpus_than_there_are(base: Base, model: Path) -> None:
    report = look(base, f"--model-path {model} --port {free_port()} --tp 2", probe=known())
    assert found(report) == {"driver/cuda-invalid-device-ordinal": True}


def test_a_driver_that_is_too_old(base: Base, model: Path) -> None:
    words = f"--model-path {model} --port {free_port()}"
    report = look(base, words, probe=known(driver="570.86.10", torch_cuda="13.0"))
    assert "driver/nvidia-driver-too-old" in found(report)
    assert found(look(base, words, probe=known(driver="535.54.03"))) == {}


def test_packages_that_do_not_belong_together(base: Base, model: Path) -> None:
    packages = {"flashinfer-python": "0.6.3", "flashinfer-cubin": "0.6.1"}
    report = look(base, f"--model-path {model} --port {free_port()}", probe=known(packages=packages))
    assert found(report) == {"toolchain/flashinfer-cubin-version-mismatch": True}


def test_weights_that_cannot_fit(base: Base, model: Path) -> None:
    path = model / "model.safetensors"
    size = 3 * 2**20
    weights(path, size)
    small = Gpu(0, "small", "sm120", 2)
    words = f"--model-path {model} --port {free_port()} "
    report = look(base, words, probe=known(gpus=(small,)))
    assert found(report) == {"memory/oom-during-weight-load": True}
    two = known(gpus=(small, Gpu(1, "small", "sm120", 2)))
    assert found(look(base, words + "--tp 2", probe=two)) == {}
    report = look(base, words + "--tp 2 --mem-fraction-static 0.5", probe=two)
    assert found(report) == {"memory/kv-pool-no-room-raise-mem-fraction": True}


def test_a_cpu_without_its_engine(base: Base, model: Path) -> None:
    words = f"--model-path {model} --device cpu --port {free_port()}"
    assert found(look(base, words, probe=known(gpus=()))) == {"host/sglang-cpu-engine-not-enabled": False}
    assert found(look(base, words, probe=known(gpus=()), environ={**HOME, "SGLANG_USE_CPU_ENGINE": "1"})) == {}


def test_a_container_has_files_and_ports_of_its_own(base: Base) -> None:
    argv = shlex.split("docker run img python -m sglang.launch_server --model-path /none --bad-flag")
    report = preflight(argv, base, version="0.5.9", environ=HOME)
    assert found(report) == {"arguments/unknown-cli-argument": True}


# ---- the command


def test_the_command_and_its_exit_status(model: Path) -> None:
    runner = CliRunner()
    sound = [
        "preflight",
        "--engine-version",
        "0.5.9",
        "--",
        "python",
        "-m",
        "sglang.launch_server",
        "--port",
        str(free_port()),
    ]
    done = runner.invoke(main, [*sound, "--model-path", str(model)])
    assert "will fail" not in done.output
    assert done.exit_code == 0
    done = runner.invoke(main, [*sound[:3], "--format", "json", *sound[3:], "--model-path", "/none"])
    assert done.exit_code == 1
    body = json.loads(done.output)
    assert body["fails"]
    assert [item["rule"] for item in body["findings"] if item["fails"]] == ["checkpoint/model-path-not-found"]
    done = runner.invoke(main, ["preflight", "--", "ls"])
    assert done.exit_code == 2
    assert "starts no engine that bringup knows" in done.output


@pytest.mark.parametrize(
    ("words", "version", "gpu", "rules"),
    [
        ("--attention-backend fa3", "0.5.9", "sm120", {"kernels-by-architecture/fa3-attention-backend-refused": True}),
        ("--attention-backend fa3", "0.5.9", "sm90", {}),
        (
            "--attention-backend=trtllm_mha",
            "0.5.9",
            "sm120",
            {"kernels-by-architecture/trtllm-mha-only-sm100-check": True},
        ),
        ("--attention-backend trtllm_mha", "0.5.23", "sm120", {}),
        ("--attention-backend trtllm_mha", "0.5.9", "sm100", {}),
    ],
)
def test_attention_that_this_gpu_does_not_have(
    base: Base, model: Path, words: str, version: str, gpu: str, rules: dict[str, bool]
) -> None:
    report = look(base, f"--model-path {model} --port {free_port()} {words}", version=version, gpu=gpu)
    assert found(report) == rules


def test_the_patch_is_offered_for_the_versions_that_it_is_proven_on(base: Base, model: Path) -> None:
    words = f"--model-path {model} --quantization modelopt_fp4 --enable-piecewise-cuda-graph --port {free_port()}"

    def patch(flashinfer: str) -> Mapping[str, Any]:
        report = look(base, words, probe=known(packages={"flashinfer-python": flashinfer}))
        return next(row for row in report.items[0].remedies if row["patch"])

    offered = patch("0.6.3")
    assert offered["change"]["env"]["PYTHONPATH"].endswith("/app/patches/flashinfer_fp4")
    assert offered["change"]["diff"] == ["+PYTHONPATH=$(bringup patch flashinfer-fp4-op)"]
    assert not offered["safe"]  # never taken without being asked for
    assert patch("0.7.2")["blocked"] == "the patch is proven on flashinfer >=0.5.3,<0.7, and this is 0.7.2"
