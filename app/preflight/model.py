"""A launch ahead in; what is missing or damaged in its model's folder, and whether the weights can fit, out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.preflight.finding import Finding
from app.preflight.situation import Ahead

POINTER = b"version https://git-lfs.github.com/spec/"
HEADERS = 64 * 2**20
"""Bytes of safetensors headers that are read at most: a check takes milliseconds, not seconds."""
_TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "tekken.json",
    "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip
_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]')


@dataclass(frozen=True)
class Model:
    """A model's folder (or its one GGUF file). `config` is {} where there is none to be read."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    quant: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, str]:
        """What conditions of rules may ask: architecture, model_type, quantization, quant_algo; only what is known."""
        method = self._quantization
        found = {
            "architecture": " ".join(map(str, self.config.get("architectures") or ())),
            "model_type": str(self.config.get("model_type") or ""),
            "quantization": str(method.get("quant_method") or self.quant.get("quant_method") or ""),
            "multimodal": " ".join(name for name in ("vision_config", "audio_config") if self.config.get(name)),
            "quant_algo": str(method.get("quant_algo") or method.get("format") or self.quant.get("quant_algo") or ""),
        }
        return {name: value for name, value in found.items() if value}

    @property
    def _quantization(self) -> Mapping[str, Any]:
        for place in (self.config, self.text):
            for name in ("quantization_config", "compression_config"):
                if isinstance(place.get(name), Mapping):
                    found: Mapping[str, Any] = place[name]
                    return found
        return {}

    @property
    def text(self) -> Mapping[str, Any]:
        """The part of the configuration that is about the language model."""
        for name in ("text_config", "llm_config", "language_config", "thinker_config"):
            if isinstance(self.config.get(name), Mapping):
                found: Mapping[str, Any] = self.config[name]
                return found
        return self.config


def find_model(ahead: Ahead) -> Model | None:
    """The model on this machine: the folder that is named, or what the hub's cache has of it."""
    named = ahead.model_path
    if named is None or ahead.elsewhere or "://" in named:
        return None
    place = ahead.path(named)
    if not place.exists():
        cached = _cached(named, ahead)
        if cached is None:
            return None
        place = cached
    if place.is_file():
        return Model(place)
    quant = _object(place / "hf_quant_config.json").get("quantization")
    return Model(place, _object(place / "config.json"), quant if isinstance(quant, Mapping) else {})


def _cached(name: str, ahead: Ahead) -> Path | None:
    """A hub name's snapshot in the cache folder."""
    hub = _hub(ahead)
    folder = hub / ("models--" + name.replace("/", "--"))
    revision = ahead.value("--revision") or "main"
    try:
        commit = (folder / "refs" / revision).read_text().strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    place = folder / "snapshots" / commit
    return place if place.is_dir() else None


def _hub(ahead: Ahead) -> Path:
    given = (
        ahead.value("--download-dir") or ahead.environ.get("HF_HUB_CACHE") or ahead.environ.get("HUGGINGFACE_HUB_CACHE")
    )
    if given:
        return ahead.path(given)
    home = ahead.environ.get("HF_HOME")
    cache = ahead.environ.get("XDG_CACHE_HOME") or os.path.join(ahead.environ.get("HOME") or "~", ".cache")
    return ahead.path(home or os.path.join(cache, "huggingface")) / "hub"


def _object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def model(ahead: Ahead) -> Iterator[Finding]:
    """Everything wrong with the model's files, then whether they fit."""
    named = ahead.model_path
    if named is None or ahead.elsewhere or "://" in named:
        return
    found = ahead.model
    if found is None:
        yield from _absent(named, ahead)
        return
    if found.path.is_file():
        yield from _single(found.path)
        return
    yield from _configuration(found, ahead)
    problems = [] if ahead.value("--load-format") == "dummy" else list(_weights(found))
    yield from problems
    if not ahead.value("--tokenizer-path", "--tokenizer") and not ahead.written("--skip-tokenizer-init"):
        yield from _tokenizer(found)
    if found.config:
        yield from _sizes(found, ahead)
        if not problems:
            yield from _fits(found, ahead)


def _absent(named: str, ahead: Ahead) -> Iterator[Finding]:
    place = ahead.path(named)
    if re.match(r"(?:[/~]|\.{1,2}(?:/|$))", named) or named.count("/") > 1:
        above = next((item for item in place.parents if item.exists()), None)
        text = f"{place} does not exist" + (f" ({above} does)" if above is not None and str(above) != "/" else "")
        yield Finding("checkpoint/model-path-not-found", True, text, {"path": named})
    elif ahead.on("HF_HUB_OFFLINE") or ahead.on("TRANSFORMERS_OFFLINE"):
        text = f"{named} is not in {_hub(ahead)}, and HF_HUB_OFFLINE forbids to fetch it"
        yield Finding("hub/hf-offline-mode-missing-file", True, text, {"model": named})


def _single(path: Path) -> Iterator[Finding]:
    if path.suffix == ".gguf" and path.stat().st_size >= 4 and _head(path, 4) != b"GGUF":
        yield Finding(
            "checkpoint/gguf-not-a-gguf-file", True, f"{path} does not begin like a GGUF file", {"file": str(path)}
        )


def _head(path: Path, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return b""


def _configuration(found: Model, ahead: Ahead) -> Iterator[Finding]:
    place = found.path / "config.json"
    names = {"model": str(found.path), "path": str(place)}
    if not place.exists():
        other = [item for item in ("params.json", "model_index.json") if (found.path / item).exists()]
        if not other and not any(found.path.glob("*.gguf")):
            below = sorted(item.parent.name for item in found.path.glob("*/config.json"))
            text = f"{place} does not exist" + (f"; {', '.join(below[:3])} below it has one" if below else "")
            yield Finding("checkpoint/model-config-missing", True, text, names)
        return
    try:
        data = json.loads(place.read_bytes())
    except (OSError, ValueError) as error:
        what = "is a Git LFS pointer" if _head(place, 40).startswith(POINTER) else f"cannot be read: {error}"
        yield Finding("checkpoint/model-config-unreadable", True, f"{place} {what}", names)
        return
    if not isinstance(data, dict):
        yield Finding("checkpoint/model-config-unreadable", True, f"{place} holds no JSON object", names)
    elif not data.get("model_type") and not data.get("architectures"):
        yield Finding(
            "checkpoint/model-config-missing", True, f"{place} has neither model_type nor architectures", names
        )


def _weights(found: Model) -> Iterator[Finding]:
    folder = found.path
    index = folder / "model.safetensors.index.json"
    wanted: list[str] = []
    if index.exists():
        listed = _object(index).get("weight_map")
        wanted = sorted(set(map(str, listed.values()))) if isinstance(listed, Mapping) else []
        missing = [name for name in wanted if not (folder / name).exists()]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            named = ", ".join(missing[:3]) + more
            text = f"{len(missing)} of {len(wanted)} weight files that {index.name} lists are missing: {named}"
            yield Finding("checkpoint/checkpoint-shard-missing", True, text, {"files": named, "folder": str(folder)})
    present = [name for name in wanted if (folder / name).exists()]
    files = [folder / name for name in present] if wanted else sorted(folder.glob("*.safetensors"))
    if not wanted and not files:
        others = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.npz", "*/*.safetensors", "*.ckpt")
        if not any(next(folder.glob(pattern), None) for pattern in others):
            yield Finding(
                "checkpoint/model-weights-missing", True, f"{folder} holds no weight file", {"model": str(folder)}
            )
        return
    left = HEADERS
    for path in files:
        problem, read = _safetensors(path, left)
        left -= read
        if problem is not None:
            yield problem


def _safetensors(path: Path, left: int) -> tuple[Finding | None, int]:
    """What is wrong with one weight file, and how much of it was read. `left`: bytes that may still be read."""
    names = {"file": str(path), "files": path.name}
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if (start + file.read(32)).startswith(POINTER):
                text = f"{path} is a Git LFS pointer of {size} bytes, not the weights"
                return Finding("checkpoint/safetensors-lfs-pointer", True, text, names), 40
            if len(start) < 8 or (length > size - 8 and length < 100_000_000):
                text = f"{path} has {size:,} bytes; its header alone announces {length + 8:,}"
                return Finding("checkpoint/safetensors-truncated-file", True, text, names), 40
            if length >= 100_000_000:
                text = f"{path} does not begin like a weight file"
                return Finding("checkpoint/safetensors-lfs-pointer", True, text, names), 40
            if length > left:
                return None, 0
            file.seek(8)
            header = file.read(length)
    except OSError as error:
        return Finding("checkpoint/checkpoint-shard-missing", True, f"{path}: {error.strerror}", names), 0
    if not header.lstrip().startswith(b"{"):
        return Finding("checkpoint/safetensors-header-invalid", True, f"{path}: its header is no JSON", names), length
    end = max((int(item) for item in _OFFSETS.findall(header)), default=0) + 8 + length
    if size < end:
        text = f"{path} has {size:,} bytes; its header announces {end:,}"
        return Finding("checkpoint/safetensors-truncated-file", True, text, names), length
    return None, length


def _tokenizer(found: Model) -> Iterator[Finding]:
    present = [name for name in _TOKENIZERS if (found.path / name).exists()]
    if not present and not any(found.path.glob("*.tiktoken")) and not any(found.path.glob("*.gguf")):
        text = f"{found.path} has no tokenizer (tokenizer.json, tokenizer.model …)"
        yield Finding("checkpoint/tokenizer-files-missing", True, text, {"model": str(found.path)})
    for name in present:
        place = found.path / name
        if _head(place, 40).startswith(POINTER):
            text = f"{place} is a Git LFS pointer"
            yield Finding("checkpoint/tokenizer-file-invalid", True, text, {"file": str(place)})


def _sizes(found: Model, ahead: Ahead) -> Iterator[Finding]:
    heads = found.text.get("num_attention_heads")
    parts = ahead.tp
    if ahead.engine == "sglang" and ahead.written("--enable-dp-attention"):
        parts = max(1, ahead.tp // ahead.dp)
    if isinstance(heads, int) and heads > 0 and heads % parts and not ahead.on_cpu:
        names = {"what": "attention heads", "count": str(heads), "parts": str(parts)}
        text = f"the model has {heads} attention heads, and {parts} GPUs are to share them"
        yield Finding("arguments/tp-size-does-not-divide-model", True, text, names)
    asked, limit = ahead.number("--context-length", "--max-model-len"), found.text.get("max_position_embeddings")
    variable = (
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" if ahead.engine == "sglang" else "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    )
    plain = not any(
        found.text.get(name) for name in ("rope_scaling", "rope_parameters", "model_max_length", "seq_length")
    )
    if asked and isinstance(limit, int) and plain and asked > limit and not ahead.on(variable):
        names = {"asked": f"{asked:.0f}", "limit": str(limit)}
        text = f"a context of {asked:.0f} is asked for; config.json says {limit}"
        yield Finding("arguments/context-length-exceeds-model", True, text, names)


def _fits(found: Model, ahead: Ahead) -> Iterator[Finding]:
    """Whether the weights alone leave no room. What shrinks or moves them is not guessed at: then nothing is said."""
    memory = [gpu.memory_mib for gpu in ahead.probe.gpus if gpu.memory_mib] if ahead.probe is not None else []
    offload = ahead.number("--cpu-offload-gb") or ahead.written("--offload-group-size")
    if not memory or ahead.on_cpu or offload or ahead.value("--quantization", "-q"):
        return
    total = sum(path.stat().st_size for path in found.path.glob("*.safetensors") if "consolidated" not in path.name)
    ranks = ahead.tp * ahead.pp * (ahead.dp if ahead.written("--enable-expert-parallel") else 1)
    share, room = total / ranks / 2**30, min(memory) / 1024
    text = f"{total / 2**30:.1f} GiB of weights on {ranks} GPU{'s' * (ranks > 1)}: {share:.1f} GiB each"
    if share > room:
        yield Finding("memory/oom-during-weight-load", True, f"{text}, and a GPU has {room:.1f} GiB", {
            "want": f"{share:.1f} GiB", "total": f"{room:.1f}", "free": f"{room:.1f}"})  # fmt: skip
        return
    fraction = ahead.number("--mem-fraction-static", "--gpu-memory-utilization")
    if fraction and share > room * fraction:
        sglang = ahead.engine == "sglang"
        rule = "memory/kv-pool-no-room-raise-mem-fraction" if sglang else "memory/vllm-no-memory-for-kv-cache"
        names = {"fraction": f"{fraction:g}", "minimum": f"{share / room:.3f}"}
        yield Finding(rule, True, f"{text}, more than {fraction:g} of the {room:.1f} GiB of a GPU", names)
