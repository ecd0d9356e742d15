"""A rule and what is installed in; the upgrade to the releases that fixed its problem out, as a remedy in words.

Upgrading is a person's work (it downloads, and other pins may move), so it is told and never done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from .rules import Remedy, Rule

NOTHING: Mapping[str, str] = MappingProxyType({})

PACKAGES = {
    "sglang": ("SGLang", "sglang"), "vllm": ("vLLM", "vllm"), "trtllm": ("TensorRT-LLM", "tensorrt-llm"),
    "flashinfer": ("FlashInfer", "flashinfer-python"), "torch": ("PyTorch", "torch"), "triton": ("Triton", "triton"),
    "sgl_kernel": ("sgl-kernel", "sgl-kernel"), "transformers": ("transformers", "transformers"),
    "llamacpp": ("llama.cpp", ""), "cudnn": ("cuDNN", ""), "nccl": ("NCCL", ""), "rocm": ("ROCm", ""), "cuda": ("CUDA", ""),
    "driver": ("the driver", ""),
}  # fmt: skip
"""What facts call a package: as people write it, and as pip does ("": it does not come by one name in pip)."""

IMAGES = {"sglang": "lmsysorg/sglang:v{}", "vllm": "vllm/vllm-openai:v{}"}
"""The engines' own images, by release (their pages on Docker Hub)."""


ENGINES = ("sglang", "vllm", "trtllm", "llamacpp")


def fixes(rule: Rule, engine: str | None = None) -> dict[str, str]:
    """The releases that fixed it, by package; another engine's than `engine` is nothing to its user."""
    return {name: release for name, release in rule.fixed_in if engine is None or name not in ENGINES or name == engine}


def with_upgrade(rule: Rule, engine: str | None = None) -> tuple[Remedy, ...]:
    """A rule's remedies; where it was fixed in a release and none of them says so, with the upgrade as the last one."""
    fixed = fixes(rule, engine)
    if not fixed:
        return tuple(remedy for remedy in rule.remedies if not remedy.upgrade)
    if any(remedy.upgrade for remedy in rule.remedies):
        return rule.remedies
    title = "Upgrade to " + " or ".join(f"{title_of(name)} {release}" for name, release in fixed.items()) + " or later"
    return (*rule.remedies, Remedy(title, safe=False, proof="reported", upgrade=True))


def title_of(package: str) -> str:
    """A package as people write its name."""
    return PACKAGES[package][0] if package in PACKAGES else package


def steps_of(
    remedy: Remedy, fixed: Mapping[str, str], versions: Mapping[str, str] = NOTHING, argv: Sequence[str] | None = None
) -> str | None:
    """What a person has to do for a remedy; None where it is all in the launch.

    `fixed` are the releases that fixed the problem and `versions` those installed, by package; `argv` is the launch.
    """
    done = upgrade_text(fixed, versions, argv) if remedy.upgrade else ""
    return f"{done} {remedy.do or ''}".strip() or None


def upgrade_text(fixed: Mapping[str, str], versions: Mapping[str, str], argv: Sequence[str] | None) -> str:
    """How the releases that fixed it are had, as a sentence: by pip, or as an image where the engine runs in a container."""
    from .launch import find_launch

    launch = find_launch(argv) if argv else None
    ways = []
    for name, release in fixed.items():
        pip = PACKAGES.get(name, (name, name))[1]
        if launch is not None and launch.container is not None and name in IMAGES:
            way = f"start from the image {IMAGES[name].format(release)} or a later one"
        elif pip:
            way = f'run `pip install --upgrade "{pip}>={release}"` in the engine\'s environment'
        else:
            way = f"install {title_of(name)} {release} or later"
        ways.append(way + (f" (here is {versions[name]})" if name in versions else ""))
    text = "; or ".join(ways)
    return text[0].upper() + text[1:] + "."
