"""A remedy's change is judged by argparse itself: a parser built from each release's flag table reads the result."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.flags import FlagTable, Release, table_from
from app.core.invalid import Problem
from app.core.knobs import Knob, Value, knobs_from
from app.core.launch import find_launch
from app.core.remedies import Change, apply, to_json

ENGINES = Path(__file__).parents[2] / "rules" / "engines"
PROBLEMS: list[Problem] = []
TABLE: FlagTable = table_from(json.loads((ENGINES / "sglang" / "flags.json").read_text()), PROBLEMS)
SGLANG: dict[str, Knob] = knobs_from(yaml.safe_load((ENGINES / "sglang" / "knobs.yaml").read_text()), PROBLEMS)
VLLM: dict[str, Knob] = knobs_from(yaml.safe_load((ENGINES / "vllm" / "knobs.yaml").read_text()), PROBLEMS)

START = "python -m sglang.launch_server --model-path m"
GRAPHS = ("prefill_graph", "decode_graph", "cuda_graph", "cuda_graph_max_bs", "prefill_graph_max_tokens")


class Refused(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def parser_of(release: Release) -> Parser:
    """The oracle: what argparse makes of a release's flags."""
    parser = Parser(allow_abbrev=True, add_help=False)
    for flag in {id(flag): flag for flag in release.by_spelling.values()}.values():
        if flag.arity == 0:
            value = flag.use_instead.partition("=")[2]
            action = {"action": "store_const", "const": value} if value else {"action": "store_true"}
            parser.add_argument(*flag.spellings, dest=flag.dest, **action)  # type: ignore[arg-type]
        elif flag.arity == "bool":
            parser.add_argument(*flag.spellings, dest=flag.dest, action=argparse.BooleanOptionalAction)
        else:
            nargs = {} if flag.arity == 1 else {"nargs": flag.arity}
            choices = flag.choices or None
            parser.add_argument(*flag.spellings, dest=flag.dest, choices=choices, **nargs)  # type: ignore[arg-type]
    return parser


PARSERS = {version: parser_of(TABLE.for_version(version)) for version in TABLE.releases}


def parsed(argv: list[str], version: str) -> dict[str, object]:
    launch = find_launch(argv)
    assert launch is not None
    return vars(PARSERS[TABLE.for_version(version).version].parse_args(list(launch.words[launch.start :])))


def sglang(want: dict[str, Value], argv: str | None, version: str | None, **more: object) -> Change:
    words = shlex.split(argv) if argv is not None else None
    return apply(want, words, "sglang", version, SGLANG, TABLE, **more)  # type: ignore[arg-type]


def flags(change: Change) -> str:
    """What follows the start of the command line."""
    assert change.blocked is None, change.blocked
    text = shlex.join(change.argv)
    assert text.startswith(START)
    return text.removeprefix(START).strip()


def test_the_knowledge_is_well_formed() -> None:
    assert PROBLEMS == []
    assert set(GRAPHS) <= SGLANG.keys()


# ---- the four lives of the prefill graphs

LIVES = [
    # version, command line, no prefill graph, no graph at all
    ("0.5.3", "--enable-piecewise-cuda-graph", "", "--disable-cuda-graph"),
    ("0.5.9", "--enable-piecewise-cuda-graph --tp 8", "--tp 8", "--tp 8 --disable-cuda-graph"),
    ("0.5.10", "", "--disable-piecewise-cuda-graph", "--disable-cuda-graph --disable-piecewise-cuda-graph"),
    (
        "0.5.13",
        "--enforce-piecewise-cuda-graph --enable-piecewise-cuda-graph",
        "--disable-piecewise-cuda-graph",
        "--disable-cuda-graph --disable-piecewise-cuda-graph",
    ),
    ("0.5.13.post1", "--disable-cuda-graph", "--disable-cuda-graph --disable-piecewise-cuda-graph", None),
    ("0.5.14", "", "--cuda-graph-backend-prefill disabled", "--disable-cuda-graph"),
    (
        "0.5.19",
        "--cuda-graph-backend-prefill tc_piecewise",
        "--cuda-graph-backend-prefill disabled",
        "--disable-cuda-graph",
    ),
    ("0.5.19", "--enforce-piecewise-cuda-graph", "--cuda-graph-backend-prefill disabled", "--disable-cuda-graph"),
    ("0.5.20", "", "--cuda-graph-backend-prefill disabled", "--disable-cuda-graph"),
    (
        "0.5.23",
        """--cuda-graph-config '{"prefill":{"backend":"full","bs":[8]},"decode":{}}'""",
        """--cuda-graph-config '{"prefill":{"backend":"disabled","bs":[8]},"decode":{}}'""",
        """--cuda-graph-config '{"prefill":{"backend":"disabled","bs":[8]},"decode":{"backend":"disabled"}}'""",
    ),
]


@pytest.mark.parametrize(("version", "before", "no_prefill", "none"), LIVES)
def test_four_lives(version: str, before: str, no_prefill: str, none: str | None) -> None:
    assert flags(sglang({"prefill_graph": "disabled"}, f"{START} {before}", version)) == no_prefill
    all_off = sglang({"cuda_graph": "disabled"}, f"{START} {before}", version)
    assert flags(all_off) == (none if none is not None else "--disable-cuda-graph --disable-piecewise-cuda-graph")


@pytest.mark.parametrize(
    ("version", "argv"),
    [
        ("0.5.2", ""),
        ("0.5.9", ""),
        ("0.5.10", "--disable-piecewise-cuda-graph"),
        ("0.5.14", "--disable-cuda-graph"),
        ("0.5.17", "--disable-piecewise-cuda-graph"),
        ("0.5.20", "--cuda-graph-backend-prefill=disabled"),
        ("0.5.20", "--disable-prefill-cuda-graph"),
        ("0.5.20", """--disable-cuda-graph --cuda-graph-config '{"decode":{"max_bs":4}}'"""),
    ],
)
def test_already_in_force(version: str, argv: str) -> None:
    change = sglang({"prefill_graph": "disabled"}, f"{START} {argv}", version)
    assert change.blocked == "already in force: prefill_graph is disabled"
    assert change.argv == shlex.split(f"{START} {argv}")
    assert change.diff == []


def test_disable_cuda_graph_does_not_stand_for_the_prefill_graphs_before_0_5_14() -> None:
    assert sglang({"prefill_graph": "disabled"}, START + " --disable-cuda-graph", "0.5.12").blocked is None


def test_an_explicit_backend_beats_disable_cuda_graph() -> None:
    argv = START + " --disable-cuda-graph --cuda-graph-backend-prefill breakable"
    assert flags(sglang({"prefill_graph": "disabled"}, argv, "0.5.20")).endswith(
        "--cuda-graph-backend-prefill disabled"
    )
    assert flags(sglang({"cuda_graph": "disabled"}, argv, "0.5.20")) == "--disable-cuda-graph"


def test_the_json_beats_every_flag() -> None:
    line = START + """ --disable-cuda-graph --cuda-graph-config '{"prefill":{"backend":"breakable"}}'"""
    change = sglang({"prefill_graph": "disabled"}, line, "0.5.20")
    assert flags(change) == """--disable-cuda-graph --cuda-graph-config '{"prefill":{"backend":"disabled"}}'"""


def test_the_refused_flag_of_the_story_is_taken_out() -> None:
    change = sglang({"prefill_graph": "disabled"}, START + " --enable-piecewise-cuda-graph", "0.5.23", accepted=False)
    assert flags(change) == "--cuda-graph-backend-prefill disabled"
    assert change.diff == ["---enable-piecewise-cuda-graph", "+--cuda-graph-backend-prefill disabled"]


def test_full_is_no_prefill_backend_in_0_5_14_and_tc_piecewise_none_from_0_5_22() -> None:
    assert sglang({"prefill_graph": "full"}, START, "0.5.14").blocked is not None
    assert sglang({"prefill_graph": "full"}, START, "0.5.15").blocked is None
    assert sglang({"prefill_graph": "tc_piecewise"}, START, "0.5.21").blocked is None
    blocked = sglang({"prefill_graph": "tc_piecewise"}, START, "0.5.22").blocked
    assert blocked == (
        "SGLang 0.5.22 does not take --cuda-graph-backend-prefill tc_piecewise: only full, breakable, disabled"
    )


# ---- every knob in every release


def values(knob: Knob, release: Release) -> Iterator[Value]:
    """Values worth trying: every named one, every choice that the release has, one of each type."""
    yield from knob.values
    yield from (name for spelling in knob.spellings for name, _ in spelling.values)
    if knob.type == "switch":
        yield from (True, False)
        return
    if knob.values:
        return
    yield from {
        "int": (max(1, int(knob.minimum or 1)), 7.0),
        "float": (0.8500000001, 1),
        "list": (["a", "b"], "q_proj"),
        "json": ({"a": {"b": 1}},),
    }.get(knob.type, ("some-text",))
    for spelling in knob.spellings:
        for add in spelling.set.add if spelling.set else ():
            for name in add.flags:
                flag = release.flag(name)
                yield from flag.choices if flag else ()


BUSY = (
    "--tp 8 --enable-dp-attention --lora-paths a b --mem-fraction-static=0.9 --trust-remote-code "
    "--attention-backend triton --disable-cuda-graph --chunked-prefill-size -1 --quantization fp8"
)
TRIALS = [(version, "") for version in TABLE.releases]
TRIALS += [(version, BUSY) for version in ("0.4.6", "0.5.9", "0.5.12.post1", "0.5.14", "0.5.20", "0.5.23")]


@pytest.mark.parametrize(("version", "existing"), TRIALS)
def test_every_knob_is_taken_by_every_release_or_blocked(version: str, existing: str) -> None:
    release = TABLE.for_version(version)
    before = parsed(shlex.split(f"{START} {existing}"), version)
    done = 0
    for knob in SGLANG.values():
        for value in {repr(value): value for value in values(knob, release)}.values():
            change = sglang({knob.name: value}, f"{START} {existing}", version)
            if change.blocked is not None:
                assert change.diff == []
                assert not change.env
                assert change.argv == shlex.split(f"{START} {existing}")
                continue
            done += 1
            after = parsed(change.argv, version)
            assert change.diff, (knob.name, value)
            assert after != before or change.env, (knob.name, value)
            again = apply({knob.name: value}, change.argv, "sglang", version, SGLANG, TABLE, environ=_plain(change.env))
            assert again.blocked, (knob.name, value, again.diff)
            assert again.argv == change.argv
    assert done > 50


def _plain(env: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in env.items() if value is not None}


def test_an_ordinary_knob_arrives_as_the_engine_reads_it() -> None:
    change = sglang({"mem_fraction_static": 0.8500000001, "tensor_parallel_size": 4.0}, START, "0.5.12")
    after = parsed(change.argv, "0.5.12")
    assert (after["mem_fraction_static"], after["tensor_parallel_size"]) == ("0.85", "4")


# ---- properties

FREE = st.text(alphabet="abz019_./:=", min_size=1, max_size=8)


@st.composite
def command_lines(draw: st.DrawFn, graphs: bool = False) -> tuple[str, list[str]]:
    """A command line that the parser of some release takes, with abbreviations, `=`, repeats and long lists.

    With `graphs` all its flags are about CUDA graphs.
    """
    version = draw(st.sampled_from(TABLE.releases))
    release = TABLE.for_version(version)
    every = sorted(release.by_spelling)
    topics = ("graph",) if graphs else ("graph", "tp", "attention", "spec")
    often = [spelling for spelling in every if any(topic in spelling for topic in topics)]
    rare = st.sampled_from(often if graphs else every)
    words = shlex.split(START)
    for spelling in draw(st.lists(rare | st.sampled_from(often), max_size=8)):
        flag = release.by_spelling[spelling]
        written = spelling
        if draw(st.booleans()):
            short = spelling[: draw(st.integers(4, max(4, len(spelling))))]
            written = short if release.candidates(short) == [spelling] else spelling
        if not flag.takes_value:
            words.append(written)
            continue
        value = st.sampled_from(flag.choices) if flag.choices else FREE
        if flag.name == "--cuda-graph-config":
            backends = st.sampled_from(["full", "breakable", "disabled"])
            phase = st.fixed_dictionaries({}, optional={"backend": backends, "max_bs": st.integers(1, 64)})
            shape = st.fixed_dictionaries({}, optional={"prefill": phase, "decode": phase})
            value = shape.map(json.dumps)
        elif flag.name in ("--json-model-override-args", "--mm-process-config", "--limit-mm-data-per-request"):
            value = st.just('{"x": 1}')
        elif flag.name == "--model-loader-extra-config":
            value = st.just("{}")
        count = draw(st.integers(1, 3)) if flag.arity in ("+", "*") else 1
        chosen = draw(st.lists(value, min_size=count, max_size=count))
        if count == 1 and draw(st.booleans()):
            words.append(f"{written}={chosen[0]}")
        else:
            words += [written, *chosen]
    return version, words


@st.composite
def wishes(draw: st.DrawFn) -> tuple[str, list[str], str, Value]:
    version, words = draw(command_lines())
    release = TABLE.for_version(version)
    name = draw(st.sampled_from(sorted(SGLANG)) | st.sampled_from(GRAPHS))
    return version, words, name, draw(st.sampled_from([*values(SGLANG[name], release), None]))


def touched(knob: Knob, release: Release, before: dict[str, object]) -> set[str]:
    """The destinations that a knob may write in a release, over all its steps."""
    names: set[str] = set()
    spelling = knob.spelling(release.version)
    steps = [spelling.set, *(step for _, step in spelling.values)] if spelling else []
    for step in steps:
        if step is not None:
            names |= {name for add in step.add for name in add.flags} | set(step.drop)
            names |= {step.edit.flag} if step.edit else set()
    dests = {flag.dest for name in names if (flag := release.flag(name))}
    return dests | {dest for dest in before if "--speculative-*" in names and dest.startswith("speculative_")}


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(wishes())
def test_the_result_is_accepted_and_nothing_else_changes(wish: tuple[str, list[str], str, Value]) -> None:
    version, words, name, value = wish
    before = parsed(words, version)
    change = apply({name: value}, words, "sglang", version, SGLANG, TABLE)
    after = parsed(change.argv, version)
    changed = {dest for dest in before if before[dest] != after[dest]}
    assert changed <= touched(SGLANG[name], TABLE.for_version(version), before)
    if change.blocked is not None:
        assert change.argv == words
        assert not change.diff
    else:
        assert change.argv != words or change.env
    environ = _plain(change.env)
    again = apply({name: value}, change.argv, "sglang", version, SGLANG, TABLE, environ=environ)
    assert again.argv == change.argv
    assert again.diff == []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(command_lines(graphs=True), st.sampled_from(["prefill_graph", "decode_graph", "cuda_graph"]))
def test_after_it_no_graph_is_captured(line: tuple[str, list[str]], name: str) -> None:
    """By an own model of what the engine makes of its flags, not by the spellings."""
    version, words = line
    change = apply({name: "disabled"}, words, "sglang", version, SGLANG, TABLE)
    prefill, decode = captures(parsed(change.argv, version), version)
    assert not (prefill and name in ("prefill_graph", "cuda_graph"))
    assert not (decode and name in ("decode_graph", "cuda_graph"))


def captures(args: dict[str, object], version: str) -> tuple[bool, bool]:
    """(prefill, decode): what a release captures, after SGLang's own order JSON > phase flags > switches > defaults."""
    release = TABLE.releases.index(version)
    if release < TABLE.releases.index("0.5.10.post1"):
        return bool(args.get("enable_piecewise_cuda_graph")), not args["disable_cuda_graph"]
    if release < TABLE.releases.index("0.5.14"):
        return not args["disable_piecewise_cuda_graph"], not args["disable_cuda_graph"]
    backend = {"prefill": "breakable", "decode": "full"}
    if args["disable_cuda_graph"]:
        backend = dict.fromkeys(backend, "disabled")
    for phase in backend:
        if args[f"disable_{phase}_cuda_graph"]:
            backend[phase] = "disabled"
        backend[phase] = str(args[f"cuda_graph_backend_{phase}"] or backend[phase])
    for phase, said in json.loads(str(args["cuda_graph_config"] or "{}")).items():
        backend[phase] = said.get("backend", backend[phase])
    return backend["prefill"] != "disabled", backend["decode"] != "disabled"


# ---- what the user wrote is edited


@pytest.mark.parametrize(
    ("want", "before", "after", "diff"),
    [
        ({"tensor_parallel_size": 4}, "--tp 8 --host ::", "--tp 4 --host ::", ["---tp 8", "+--tp 4"]),
        ({"mem_fraction_static": 0.8}, "--mem-frac=0.9", "--mem-frac=0.8", ["---mem-frac=0.9", "+--mem-frac=0.8"]),
        ({"port": 1}, "--port 2 --port 3", "--port 1", ["---port 2", "---port 3", "+--port 1"]),
        ({"radix_cache": True}, "--disable-radix-cache --tp 2", "--tp 2", ["---disable-radix-cache"]),
        ({"attention_backend": None}, "--attention-backend fa3", "", ["---attention-backend fa3"]),
        (
            {"json_model_override_args": {"b": 2}},
            """--json-model-override-args '{"a": 1}'""",
            """--json-model-override-args '{"a": 1, "b": 2}'""",
            None,
        ),
        ({"lora_paths": ["x", "y"]}, "--lora-paths a b c --tp 2", "--lora-paths x y --tp 2", None),
        ({"chunked_prefill_size": 2048}, "--chunked-prefill-size -1", "--chunked-prefill-size 2048", None),
        ({"cuda_graph_max_bs": 8}, "--cuda-graph-bs 1 2 3", "--cuda-graph-max-bs 8", None),
        (
            {"speculative_algorithm": "none"},
            "--speculative-algo EAGLE --speculative-num-steps 3 --tp 2",
            "--tp 2",
            None,
        ),
        ({"dp_attention": True, "data_parallel_size": 2}, "", "--enable-dp-attention --dp-size 2", None),
    ],
)
def test_edits(want: dict[str, Value], before: str, after: str, diff: list[str] | None) -> None:
    change = sglang(want, f"{START} {before}", "0.5.9")
    assert flags(change) == after
    if diff is not None:
        assert change.diff == diff


def test_an_alias_that_stands_for_a_value_counts_as_that_value() -> None:
    line = START + " --enforce-piecewise-cuda-graph"
    assert sglang({"prefill_graph": "tc_piecewise"}, line, "0.5.16").blocked is not None
    assert flags(sglang({"prefill_graph": "breakable"}, line, "0.5.16")) == "--cuda-graph-backend-prefill breakable"


def test_the_ambiguous_flag_of_0_5_20_is_replaced() -> None:
    line = START + " --cuda-graph-max-bs 512 --cuda-graph-bs 1 2"
    with pytest.raises(Refused, match="ambiguous option: --cuda-graph-max-bs"):
        parsed(shlex.split(line), "0.5.20")
    assert flags(sglang({"cuda_graph_max_bs": 16}, line, "0.5.20")) == "--cuda-graph-max-bs-decode 16"
    assert flags(sglang({"cuda_graph_max_bs": 16}, line, "0.5.19")) == "--cuda-graph-max-bs 16"


def test_a_broken_json_is_not_edited() -> None:
    change = sglang({"prefill_graph": "disabled"}, START + " --cuda-graph-config oops", "0.5.20")
    assert change.blocked == "the value of --cuda-graph-config is not a JSON object and cannot be edited"


def test_unknown_flags_of_the_user_are_left_alone() -> None:
    change = sglang({"tensor_parallel_size": 2}, START + " --plugin-flag x", "0.5.20")
    assert flags(change) == "--plugin-flag x --tp-size 2"


def test_nothing_is_added_behind_a_double_dash() -> None:
    assert flags(sglang({"tensor_parallel_size": 2}, START + " -- rest", "0.5.20")) == "--tp-size 2 -- rest"


@pytest.mark.parametrize(
    ("want", "version", "reason"),
    [
        ({"nope": 1}, "0.5.9", "SGLang has no knob named nope"),
        ({"linear_attn_backend": "triton"}, "0.5.9", "SGLang 0.5.9 has no --linear-attn-backend"),
        ({"prefill_graph": "breakable"}, "0.5.9", "SGLang 0.5.9 has no prefill_graph breakable"),
        ({"dtype": "int4"}, "0.5.9", "SGLang 0.5.9 does not take --dtype int4: only auto, half, "),
        ({"tensor_parallel_size": 2.5}, "0.5.9", "tensor_parallel_size takes a whole number, not 2.5"),
        ({"mem_fraction_static": 1.2}, "0.5.9", "mem_fraction_static must be at most 1, not 1.2"),
        ({"mem_fraction_static": float("nan")}, "0.5.9", "mem_fraction_static takes a number, not nan"),
        ({"tensor_parallel_size": True}, "0.5.9", "tensor_parallel_size takes a whole number, not true"),
        ({"model_path": "--load-format"}, "0.5.9", "model_path cannot take '--load-format': empty, like a flag"),
        ({"radix_cache": "off"}, "0.5.9", "radix_cache takes enabled or disabled, not 'off'"),
        ({"json_model_override_args": "x"}, "0.5.9", "json_model_override_args takes a JSON object, not 'x'"),
        ({"nope": 1, "dtype": "x"}, "0.5.9", "no knob named nope; SGLang 0.5.9 does not take --dtype x"),
    ],
)
def test_blocked(want: dict[str, Value], version: str, reason: str) -> None:
    change = sglang(want, START, version)
    assert reason in (change.blocked or "")
    assert change.argv == shlex.split(START)
    assert change.diff == []


def test_a_result_that_the_parser_would_refuse_is_blocked() -> None:
    problems: list[Problem] = []
    wrong = knobs_from({"knobs": {"w": {"spellings": [{"set": {"add": "--trust-remote-code now"}}]}}}, problems)
    assert problems == []
    change = apply({"w": "x"}, shlex.split(START), "sglang", "0.5.20", wrong, TABLE)
    assert change.blocked == "SGLang 0.5.20 would refuse the result: unrecognized arguments: now"
    assert change.argv == shlex.split(START)


# ---- configuration files


def test_a_switch_in_a_configuration_file_cannot_be_undone_from_the_command_line() -> None:
    config = {"enable-piecewise-cuda-graph": True}
    line = START + " --config s.yaml"
    change = sglang({"prefill_graph": "disabled"}, line, "0.5.9", config=config)
    assert change.blocked == (
        "--enable-piecewise-cuda-graph is set in s.yaml and cannot be undone on the command line: take it out there"
    )
    ignored = sglang({"prefill_graph": "disabled"}, START + " --config=s.yaml", "0.5.9", config=config)
    assert ignored.blocked == "already in force: prefill_graph is disabled"
    off = sglang({"prefill_graph": "disabled"}, line, "0.5.9", config={"enable-piecewise-cuda-graph": False})
    assert off.blocked == "already in force: prefill_graph is disabled"
    unread = sglang({"prefill_graph": "disabled"}, line, "0.5.9")
    assert unread.blocked == ("already in force: prefill_graph is disabled; s.yaml was not read and may say otherwise")


def test_a_value_in_a_configuration_file_is_overridden() -> None:
    line = START + " --config s.yaml"
    change = sglang({"tensor_parallel_size": 4}, line, "0.5.20", config={"tp-size": 8})
    assert flags(change) == "--config s.yaml --tp-size 4"
    assert sglang({"tensor_parallel_size": 8}, line, "0.5.20", config={"tp-size": 8}).blocked is not None
    config = {"cuda-graph-config": {"prefill": {"backend": "full"}, "decode": {"max_bs": 4}}}
    change = sglang({"prefill_graph": "disabled"}, line, "0.5.20", config=config)
    assert json.loads(change.argv[-1]) == {"prefill": {"backend": "disabled"}, "decode": {"max_bs": 4}}


def test_a_boolean_flag_in_a_configuration_file_can_be_undone() -> None:
    line = "vllm serve M --config s.yaml"
    config = {"enable-prefix-caching": True, "trust-remote-code": True}
    for want, after in [
        ("prefix_caching", "--no-enable-prefix-caching"),
        ("trust_remote_code", "--no-trust-remote-code"),
    ]:
        change = apply({want: False}, line.split(), "vllm", "0.12", VLLM, None, config=config)
        assert change.argv == [*line.split(), after]
        again = apply({want: False}, change.argv, "vllm", "0.12", VLLM, None, config=config)
        assert again.diff == []
        assert again.argv == change.argv


# ---- unknown command line, unknown version


def test_without_a_command_line_only_the_flags_are_told() -> None:
    change = sglang({"prefill_graph": "disabled"}, None, "0.5.12")
    assert change.argv == ["--disable-piecewise-cuda-graph"]
    assert change.diff[-1] == "+--disable-piecewise-cuda-graph"
    assert "---enable-piecewise-cuda-graph" in change.diff
    change = sglang({"prefill_graph": "disabled"}, None, "0.5.9")
    assert (change.argv, change.diff) == ([], ["---enable-piecewise-cuda-graph"])
    for version in ("0.5.14", "0.5.23"):
        assert sglang({"prefill_graph": "disabled"}, None, version).diff == ["+--cuda-graph-backend-prefill disabled"]
    assert sglang({"prefill_graph": "disabled"}, None, "0.5.2").blocked == "already in force: prefill_graph is disabled"
    assert sglang({"prefill_graph": "disabled"}, "python serve.py --tp 8", "0.5.20").argv == [
        "--cuda-graph-backend-prefill",
        "disabled",
    ]


def test_an_unknown_version_gets_what_all_agree_on() -> None:
    change = sglang({"mem_fraction_static": 0.8}, START, None)
    assert flags(change) == "--mem-fraction-static 0.8"
    assert change.variants == []


def test_an_unknown_version_gets_the_newest_and_the_variants() -> None:
    change = sglang({"prefill_graph": "disabled"}, START, None)
    assert flags(change) == "--cuda-graph-backend-prefill disabled"
    assert change.versions == ">=0.5.14"
    assert [(variant["versions"], variant["diff"]) for variant in change.variants] == [
        ("<0.5.10", []),
        (">=0.5.10,<0.5.14", ["+--disable-piecewise-cuda-graph"]),
    ]
    assert sglang({"prefill_graph": "disabled"}, START, "main").versions == ">=0.5.14"


def test_the_command_line_itself_tells_something_about_the_version() -> None:
    line = START + " --enable-piecewise-cuda-graph"
    change = sglang({"prefill_graph": "disabled"}, line, None)
    assert flags(change) == "--disable-piecewise-cuda-graph"
    assert change.versions == ">=0.5.10,<0.5.14"
    assert [variant["versions"] for variant in change.variants] == [">=0.5.3,<0.5.10"]
    refused = sglang({"prefill_graph": "disabled"}, line, None, accepted=False)
    assert refused.versions == ">=0.5.14"


def test_possible_versions_narrow_the_answer() -> None:
    assert sglang({"prefill_graph": "disabled"}, START, None, among=[">=0.5.10,<0.5.13"]).variants == []
    change = sglang({"prefill_graph": "disabled"}, START, None, among=["0.5.12", "0.5.10.post1"])
    assert flags(change) == "--disable-piecewise-cuda-graph"
    assert change.variants == []
    assert sglang({"prefill_graph": "disabled"}, START, None, among=["9.9"]).versions == ""


# ---- environment, wrappers, containers


def test_environment() -> None:
    line = "env A=1 NCCL_DEBUG=INFO " + START
    change = sglang({}, line, "0.5.20", env={"A": "2 3", "B": "x", "NCCL_DEBUG": None, "C": None}, environ={"B": "y"})
    assert change.argv[:3] == ["env", "A=2 3", "python"]
    assert change.env == {"A": "2 3", "B": "x", "NCCL_DEBUG": None}
    assert change.diff == ["-A=1", "+A='2 3'", "-B=y", "+B=x", "-NCCL_DEBUG=INFO"]
    assert sglang({}, line, "0.5.20", env={"A": "1"}).blocked == "already in force: A is 1"


def test_environment_of_a_container() -> None:
    line = "docker run --gpus all -e A=1 -e D=2 lmsysorg/sglang:latest " + START
    change = sglang({"tensor_parallel_size": 2}, line, "0.5.20", env={"A": "2", "B": "3", "D": None})
    assert shlex.join(change.argv) == (
        f"docker run -e B=3 --gpus all -e A=2 lmsysorg/sglang:latest {START} --tp-size 2"
    )


def test_a_flag_that_was_an_environment_variable_once() -> None:
    change = sglang({"fp4_gemm_backend": "flashinfer_cutlass"}, START, "0.5.7")
    assert change.env == {"SGLANG_FLASHINFER_FP4_GEMM_BACKEND": "flashinfer_cutlass"}
    assert change.argv == shlex.split(START)
    assert change.blocked is None


def test_a_shell_command_is_edited_inside() -> None:
    change = apply({"tensor_parallel_size": 2}, ["sh", "-c", f"exec {START} --tp 4"], "sglang", "0.5.9", SGLANG, TABLE)
    assert change.argv == ["sh", "-c", f"exec {START} --tp 2"]


# ---- vLLM, without a flag table


def vllm(want: dict[str, Value], argv: str, version: str | None) -> Change:
    return apply(want, shlex.split(argv), "vllm", version, VLLM, None)


@pytest.mark.parametrize(
    ("want", "version", "before", "after"),
    [
        ({"enforce_eager": True}, None, "-tp 4 --new-flag", "-tp 4 --new-flag --enforce-eager"),
        ({"tensor_parallel_size": 2}, "0.12", "-tp 4", "-tp 2"),
        ({"gpu_memory_utilization": 0.8}, "0.12", "--gpu_memory_utilization=0.95", "--gpu_memory_utilization=0.8"),
        ({"cuda_graph": "disabled"}, "0.10", "", "--enforce-eager"),
        ({"cuda_graph": "disabled"}, "0.12", "", """--compilation-config '{"cudagraph_mode": "NONE"}'"""),
        (
            {"cuda_graph": "disabled"},
            "0.12",
            """--compilation-config '{"mode":3}'""",
            """--compilation-config '{"mode":3,"cudagraph_mode":"NONE"}'""",
        ),
        (
            {"cuda_graph": "disabled"},
            "0.12",
            "-cc.cudagraph_mode=FULL",
            """--compilation-config '{"cudagraph_mode": "NONE"}'""",
        ),
        ({"torch_compile": "disabled"}, "0.12", "-O3", "-O0"),
        ({"prefix_caching": False}, "0.12", "--enable-prefix-caching", "--no-enable-prefix-caching"),
        ({"attention_backend": "TRITON_ATTN"}, "0.20", "", "--attention-backend TRITON_ATTN"),
    ],
)
def test_vllm(want: dict[str, Value], version: str | None, before: str, after: str) -> None:
    change = vllm(want, f"vllm serve M {before}", version)
    assert change.blocked is None
    assert shlex.join(change.argv) == f"vllm serve M {after}".strip()
    assert apply(want, change.argv, "vllm", version, VLLM, None).blocked is not None


def test_vllm_attention_backend_moved_from_the_environment_to_a_flag() -> None:
    assert vllm({"attention_backend": "FLASHINFER"}, "vllm serve M", "0.11.2").env == {
        "VLLM_ATTENTION_BACKEND": "FLASHINFER"
    }
    change = vllm({"attention_backend": "FLASHINFER"}, "vllm serve M", None)
    assert change.versions == ">=0.14"
    assert change.variants[0]["env"] == {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}


def test_every_vllm_knob_is_stable() -> None:
    for knob in VLLM.values():
        for version in ("0.8.5", "0.11.0", "0.20.1"):
            for value in values(knob, TABLE.for_version("0.4.6")):
                change = apply({knob.name: value}, ["vllm", "serve", "M"], "vllm", version, VLLM, None)
                environ = _plain(change.env)
                again = apply({knob.name: value}, change.argv, "vllm", version, VLLM, None, environ=environ)
                assert again.argv == change.argv, (knob.name, value, version)
                assert again.diff == [], (knob.name, value, version)


# ---- what programs read


def test_json() -> None:
    change = sglang({"prefill_graph": "disabled"}, START, "0.5.20")
    assert to_json(change) == {
        "change": {
            "set": {"prefill_graph": "disabled"},
            "argv": [*shlex.split(START), "--cuda-graph-backend-prefill", "disabled"],
            "env": {},
            "diff": ["+--cuda-graph-backend-prefill disabled"],
        },
        "blocked": None,
    }
    unknown = to_json(sglang({"prefill_graph": "disabled"}, START, None))
    json.dumps(unknown)
    assert unknown["change"]["versions"] == ">=0.5.14"  # type: ignore[index]


def test_a_backend_that_is_gone_is_not_written_into_the_json_either() -> None:
    start = START + ' --cuda-graph-config \'{"prefill":{"max_bs":8}}\''
    assert sglang({"prefill_graph": "tc_piecewise"}, start, "0.5.21").blocked is None
    blocked = sglang({"prefill_graph": "tc_piecewise"}, start, "0.5.23").blocked
    assert blocked is not None
    assert "does not take --cuda-graph-backend-prefill tc_piecewise" in blocked


def test_a_flag_that_is_required_is_not_taken_out() -> None:
    assert sglang({"model_path": None}, START, "0.5.9").blocked == "SGLang 0.5.9 does not start without --model-path"


VLLM_TABLE: FlagTable = table_from(json.loads((ENGINES / "vllm" / "flags.json").read_text()), PROBLEMS)


@pytest.mark.parametrize(
    ("version", "want", "before", "after"),
    [
        ("0.32.0", {"prefix_caching": "disabled"}, "", "--no-enable-prefix-caching"),
        ("0.33.0", {"prefix_caching": "disabled"}, "", "--disable-prefix-caching"),
        ("0.33.0", {"prefix_caching": "disabled"}, "--enable_prefix_caching", "--disable-prefix-caching"),
        ("0.13.0", {"attention_backend": "TRITON_ATTN"}, "", ""),
        ("0.14.0", {"attention_backend": "TRITON_ATTN"}, "", "--attention-backend TRITON_ATTN"),
        ("0.10.2", {"cuda_graph_max_bs": 16}, "", "--cuda-graph-sizes 16"),
        ("0.11.1", {"cuda_graph_max_bs": 16}, "", "--max-cudagraph-capture-size 16"),
        ("0.11.0", {"torch_compile": "disabled"}, "-O3", "-O0"),
        ("0.11.0", {"max_model_len": 4096}, "--max_model_len=8192", "--max_model_len=4096"),
    ],
)
def test_vllm_in_the_spelling_of_its_release(version: str, want: dict[str, Value], before: str, after: str) -> None:
    start = "vllm serve m"
    change = apply(want, shlex.split(f"{start} {before}"), "vllm", version, VLLM, VLLM_TABLE)
    assert change.blocked is None, change.blocked
    assert shlex.join(change.argv) == f"{start} {after}".strip()


@pytest.mark.parametrize(
    ("version", "want", "reason"),
    [
        ("0.18.0", {"swap_space": 0}, "vLLM 0.18.0 has no --swap-space"),
        ("0.11.0", {"tokenizer_mode": "hf"}, "vLLM 0.11.0 does not take --tokenizer-mode hf"),
        ("0.7.0", {"model_impl": "vllm"}, "vLLM 0.7.0 has no --model-impl"),
    ],
)
def test_what_a_release_of_vllm_cannot_take_is_said(version: str, want: dict[str, Value], reason: str) -> None:
    change = apply(want, shlex.split("vllm serve m"), "vllm", version, VLLM, VLLM_TABLE)
    assert change.blocked is not None
    assert change.blocked.startswith(reason)
