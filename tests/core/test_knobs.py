"""Knob files: what is well formed, what is not, and what a value becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from app.core.flags import table_from
from app.core.invalid import Problem
from app.core.knobs import Add, Edit, Knob, Step, Value, knobs_from, open_release

ENGINES = Path(__file__).parents[2] / "rules" / "engines"
# The names that rules use: taking one away breaks rules.
CONTRACT_TEXT = """
prefill_graph decode_graph cuda_graph cuda_graph_max_bs prefill_graph_max_tokens mem_fraction_static attention_backend
prefill_attention_backend decode_attention_backend dsa_prefill_backend dsa_decode_backend mm_attention_backend
linear_attn_backend mamba_backend moe_runner_backend moe_a2a_backend fp4_gemm_backend fp8_gemm_backend kv_cache_dtype
quantization dtype load_format trust_remote_code tensor_parallel_size data_parallel_size pipeline_parallel_size
expert_parallel_size context_length max_running_requests max_total_tokens chunked_prefill_size max_prefill_tokens
custom_all_reduce shared_experts_fusion flashinfer_autotune flashinfer_allreduce_fusion torch_compile overlap_schedule
radix_cache sampling_backend grammar_backend speculative_algorithm speculative_draft_model_path deterministic
dp_attention port host device watchdog_timeout dist_timeout skip_server_warmup hicache_size hicache_ratio
enable_memory_saver chat_template model_path tokenizer_path served_model_name nccl_init_addr dist_init_addr nnodes
log_level json_model_override_args lora_paths lora_backend lora_target_modules max_lora_rank max_loras_per_batch
mm_process_config disable_cuda_graph_padding
"""
VLLM_TEXT = """
gpu_memory_utilization enforce_eager max_model_len max_num_seqs attention_backend tensor_parallel_size dtype
quantization kv_cache_dtype load_format trust_remote_code custom_all_reduce swap_space cudagraph_mode
cuda_graph torch_compile
"""


CONTRACT, VLLM = CONTRACT_TEXT.split(), VLLM_TEXT.split()


def shipped(engine: str) -> dict[str, Knob]:
    problems: list[Problem] = []
    knobs = knobs_from(yaml.safe_load((ENGINES / engine / "knobs.yaml").read_text()), problems)
    assert problems == []
    return knobs


def test_the_names_that_rules_use_are_there() -> None:
    assert set(CONTRACT) - shipped("sglang").keys() == set()
    assert set(VLLM) - shipped("vllm").keys() == set()


def test_every_knob_has_a_title() -> None:
    assert [knob.name for engine in ("sglang", "vllm") for knob in shipped(engine).values() if not knob.title] == []


def test_every_flag_of_the_sglang_knobs_exists_in_some_release() -> None:
    table = table_from(json.loads((ENGINES / "sglang" / "flags.json").read_text()), [])
    for knob in shipped("sglang").values():
        for spelling in knob.spellings:
            for step in [*([spelling.set] if spelling.set else []), *(step for _, step in spelling.values)]:
                named = {flag for add in step.add for flag in add.flags} | {*step.drop, *step.implied, *step.conflicts}
                named |= {step.edit.flag} if step.edit else set()
                assert {flag for flag in named if "*" not in flag} <= table.records.keys(), knob.name


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_no_version_has_two_spellings(engine: str) -> None:
    from app.core.flags import covers

    for knob in shipped(engine).values():
        for version in [f"0.5.{patch}" for patch in range(30)] + [f"0.{minor}" for minor in range(6, 40)]:
            assert sum(covers(spelling.versions, version) for spelling in knob.spellings) <= 1, (knob.name, version)


def test_one_line_forms() -> None:
    problems: list[Problem] = []
    knobs = knobs_from(
        {
            "knobs": {
                "a": {"flag": ["--a", "--old-a"], "type": "int", "drop": "--b"},
                "b": {"switch": {"enabled": "--on", "disabled": "--off"}},
                "c": {"flag": "--c", "special": {"none": {"drop": ["--c-*"]}}},
                "d": {"spellings": [{"versions": ">=1", "set": {"edit": {"flag": "--j", "set": {"x.y": "{value}"}}}}]},
            }
        },
        problems,
    )
    assert problems == []
    assert knobs["a"].spellings[0].set == Step((Add(("--a", "--old-a"), "{value}"),), ("--b",))
    assert knobs["b"].values == ("enabled", "disabled")
    assert knobs["b"].spellings[0].step("disabled") == Step((Add(("--off",), None, "--on"),), ("--on",))
    assert knobs["c"].spellings[0].step("none") == Step((), ("--c-*",))
    assert knobs["c"].spellings[0].step("x") == Step((Add(("--c",), "{value}"),))
    assert knobs["d"].spelling("0.9") is None
    spelling = knobs["d"].spelling("1.0.post1")
    assert spelling is not None
    assert spelling.set == Step(edit=Edit("--j", ((("x", "y"), "{value}"),)))


def test_every_problem_is_told() -> None:
    problems: list[Problem] = []
    knobs = knobs_from(
        {
            "knobs": {
                "Bad-Name": {"flag": "--a"},
                "two": {"flag": "--a", "switch": {}},
                "none": {},
                "text": "--a",
                "typed": {"flag": "--a", "type": "number", "min": "1", "colour": 1},
                "worded": {"flag": [1], "values": 3},
                "ranged": {"spellings": [{"versions": "~=1"}, {"set": {"add": [2], "plus": 1, "env": 3}}]},
                "listed": {"spellings": {}},
                "edited": {"spellings": [{"set": {"edit": {"flag": "j"}}, "values": []}]},
                "switched": {"switch": {"on": "--a"}},
            }
        },
        problems,
    )
    assert [".".join(map(str, problem.path[1:])) + ": " + problem.reason for problem in problems] == [
        "Bad-Name: is not a knob's name",
        "two: has flag and switch",
        "none: has no spelling",
        "text: is not a mapping",
        "typed.colour: is not known here",
        "typed.type: 'number' is not a type",
        "typed.min: '1' is not a number",
        "worded.flag: is not a text or a list of texts",
        "worded.values: is not a text or a list of texts",
        "ranged.spellings.0.versions: '~=1' is not a version condition such as >=0.5.10",
        "ranged.spellings.1.set.plus: is not known here",
        "ranged.spellings.1.set.add: is not a text or a list of texts",
        "ranged.spellings.1.set.env: is not a mapping",
        "listed.spellings: is not a list",
        "edited.spellings.0.set.edit: names no flag or no keys",
        "edited.spellings.0.values: is not a mapping",
        "switched.switch.on: is not known here",
    ]
    assert all(problem.remedy for problem in problems)
    assert "typed" in knobs
    more: list[Problem] = []
    assert knobs_from([], more) == {}
    assert len(more) == 1


@pytest.mark.parametrize(
    ("type", "value", "text"),
    [
        ("float", 0.8500000001, "0.85"),
        ("float", 0.1 + 0.2, "0.3"),
        ("float", 1800.0, "1800"),
        ("float", "0.9", "0.9"),
        ("int", 16.0, "16"),
        ("int", "16", "16"),
        ("int", -1, "-1"),
        ("str", "fp8", "fp8"),
        ("str", -1, "-1"),
        ("list", ["a", 1], '["a", "1"]'),
        ("list", "a", '["a"]'),
        ("json", {"a": None}, '{"a": null}'),
    ],
)
def test_a_value_as_text(type: str, value: Value, text: str) -> None:
    assert Knob("k", type=type).text(value) == text


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("float", "much"),
        ("float", float("inf")),
        ("int", 1.5),
        ("int", [1]),
        ("int", True),
        ("str", ""),
        ("str", "--flag"),
        ("str", "-x"),
        ("str", "a\nb"),
        ("list", []),
        ("list", {}),
        ("list", ["-x"]),
        ("json", []),
    ],
)
def test_a_value_that_cannot_be_taken(type: str, value: Value) -> None:
    with pytest.raises(ValueError, match=r"^k (takes|cannot take) "):
        Knob("k", type=type).text(value)


def test_a_parser_without_a_table() -> None:
    release = open_release("vllm", "0.12", shipped("vllm"))
    size = release.flag("-tp")
    assert size is not None
    assert size is release.flag("--tensor-parallel-size")
    assert size is release.flag("--tensor_parallel_size")
    assert release.open
    assert release.flag("--attention-backend") is None  # from 0.14 on
