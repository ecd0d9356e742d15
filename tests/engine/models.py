"""A folder in, a tiny random Llama (or one that is broken in one way) out, as a Hugging Face checkpoint of 300 KB.

Written with the standard library alone, so that neither torch nor a download is needed. The numbers are random and
always the same; what the model says is nonsense.
"""

from __future__ import annotations

import functools
import json
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, LENGTH = 2, 64, 128, 4, 2, 2048
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
VOCABULARY = 256 + len(SPECIAL)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": HIDDEN // HEADS, "max_position_embeddings": LENGTH,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3,
}  # fmt: skip


@functools.cache
def weights() -> bytes:
    """The file with the tensors, made once."""
    return _safetensors(_shapes())


def tiny(folder: Path) -> None:
    """A model that works."""
    folder.mkdir(parents=True)
    _write(folder / "config.json", CONFIG)
    _tokenizer(folder)
    (folder / "model.safetensors").write_bytes(weights())


def story(folder: Path) -> None:
    """The founding story's model: needs the external package `story_model`."""
    _changed(folder, architectures=["TinyFp4LlamaForCausalLM"])


def plain_story(folder: Path) -> None:
    """The same without FP4: compiles and captures to the end."""
    _changed(folder, architectures=["TinyLlamaForCausalLM"])


def truncated(folder: Path) -> None:
    """A download that stopped halfway."""
    tiny(folder)
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2])


def unknown_architecture(folder: Path) -> None:
    """A model class that no release has."""
    _changed(folder, architectures=["NoSuchModelForCausalLM"])


def unknown_quantisation(folder: Path) -> None:
    """A quantisation method that no release has."""
    _changed(folder, quantization_config={"quant_method": "nosuchmethod", "bits": 4})


KINDS: Mapping[str, Callable[[Path], None]] = {
    "tiny": tiny, "story": story, "plain-story": plain_story, "truncated": truncated,
    "unknown-architecture": unknown_architecture, "unknown-quantisation": unknown_quantisation,
}  # fmt: skip


def _changed(folder: Path, **config: Any) -> None:
    tiny(folder)
    _write(folder / "config.json", {**CONFIG, **config})


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama: name and shape."""
    head = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        rows = {
            "input_layernorm": (HIDDEN,), "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * head, HIDDEN), "self_attn.v_proj": (KV_HEADS * head, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN), "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in rows.items()}
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def _safetensors(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """A safetensors file with bfloat16 tensors: norms are ones, the others small and random."""
    numbers = random.Random(0)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, shape in shapes.items():
        begin = len(data)
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        for _ in range(count):
            number = 1.0 if len(shape) == 1 else numbers.gauss(0.0, 0.02)
            data += struct.pack("<f", number)[2:]  # the upper half of a float32 is a bfloat16
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(data)]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + bytes(data)


def _tokenizer(folder: Path) -> None:
    """One token per byte, written as GPT-2's alphabet writes bytes."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = [chr(byte) for byte in shown] + [chr(256 + place) for place in range(256 - len(shown))]
    special = [
        {"id": place, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for place, word in enumerate(SPECIAL)
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {word: place for place, word in enumerate((*SPECIAL, *alphabet))}, "merges": [],
    }  # fmt: skip
    _write(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model,
    })  # fmt: skip
    _write(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LENGTH, "unk_token": "<unk>",
        "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
                         "{% endfor %}assistant:",
    })  # fmt: skip
