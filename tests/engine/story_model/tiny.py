"""Two tiny Llamas for SGLang 0.5.9: a plain one, and one whose MLP makes FlashInfer's real FP4 module, as the NVFP4
layers do on a Blackwell workstation GPU. SGLang registers both by SGLANG_EXTERNAL_MODEL_PACKAGE.

They take the real piecewise runner through its compile and capture stages on a machine without a GPU. The crash is the
real one: SGLang's `warmup_torch_compile` has torch's Dynamo trace the MLP, the MLP calls FlashInfer, FlashInfer asks
the CUDA compiler for its version, in a child process. What is replaced, because a CPU has no such thing:

- `torch.cpu.graph_pool_handle`: a handle that nobody looks into.
- `sglang.srt.compilation.weak_ref_tensor`: its extension refuses to be imported; a strong reference does the same here.
- recording a compiled piece in a CUDA graph: the piece runs as it is, in the same loop over the same sizes.
- the attention operator, which SGLang registers for GPUs only: the same body, registered for the CPU.

FlashInfer is in a folder of its own (STORY_FLASHINFER), looked at last and only here: an SGLang that sees it at its
start takes the machine for one with a GPU.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import torch

sys.path.append(os.environ["STORY_FLASHINFER"])
import flashinfer.fp4_quantization  # noqa: F401

if not hasattr(torch.cpu, "graph_pool_handle"):
    torch.cpu.graph_pool_handle = lambda: (0, 0)

strong = types.ModuleType("sglang.srt.compilation.weak_ref_tensor")
strong.weak_ref_tensor = strong.weak_ref_tensors = lambda tensors: tensors
sys.modules[strong.__name__] = strong

import sglang.srt.compilation.cuda_piecewise_backend as piecewise  # noqa: E402
import sglang.srt.layers.radix_attention  # noqa: E402, F401  (defines the attention operator)
from sglang.srt.models.llama import LlamaForCausalLM, LlamaMLP  # noqa: E402

piecewise.is_in_pcg_torch_compile = lambda: True

operators = torch.library.Library("sglang", "IMPL")


def attention(
    query: Any, key: Any, value: Any, output: Any, save_kv_cache: bool, layer_id: int,
    q_rope: Any = None, k_rope: Any = None, sinks: Any = None,
) -> None:  # fmt: skip
    """SGLang's unified_attention_with_output for a plain model: the layer's own backend, into `output`."""
    from sglang.srt.compilation.piecewise_context_manager import get_forward_context

    context = get_forward_context()
    layer, batch = context.attention_layers[layer_id], context.forward_batch
    result = batch.attn_backend.forward(query, key, value, layer, batch, save_kv_cache)
    output.view(result.shape).copy_(result)


operators.impl("unified_attention_with_output", attention, "CPU")


class Fp4MLP(LlamaMLP):
    """An MLP that asks FlashInfer for its FP4 module first, and then computes as ever."""

    def forward(self, x: Any, *args: Any, **options: Any) -> Any:
        from flashinfer.fp4_quantization import gen_fp4_quantization_sm120_module

        gen_fp4_quantization_sm120_module()
        return super().forward(x, *args, **options)


class TinyLlamaForCausalLM(LlamaForCausalLM):
    """A plain Llama: compiles and captures to the end."""


class TinyFp4LlamaForCausalLM(LlamaForCausalLM):
    """A Llama with FP4 MLPs: the founding crash."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for layer in self.model.layers:
            layer.mlp.__class__ = Fp4MLP


EntryClass = [TinyLlamaForCausalLM, TinyFp4LlamaForCausalLM]
