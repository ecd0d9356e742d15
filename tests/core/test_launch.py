"""Command lines as people write them; the reading is checked against argparse itself."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.flags import Flag, FlagTable, Release, covers, number, range_text, table_from
from app.core.invalid import Problem
from app.core.launch import Option, check, config_words, find_launch, read_options, rebuild

from .test_remedies import PARSERS, START, Refused

DATA = json.loads((Path(__file__).parents[2] / "rules" / "engines" / "sglang" / "flags.json").read_text())


def table() -> FlagTable:
    problems: list[Problem] = []
    found = table_from(DATA, problems)
    assert problems == []
    return found


TABLE = table()


# ---- versions


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.5.9", "0.5.9"),
        ("0.5.10", "0.5.10.post1"),  # post-releases share the base release's flags
        ("0.5.10rc2", "0.5.10.post1"),
        ("0.5.3", "0.5.3.post3"),
        ("0.5.0", "0.4.10.post2"),
        ("0.4.9.post1", "0.4.6"),
        ("0.4.1", "0.4.6"),
        ("0.5.24", "0.5.23"),
        ("v1.0", "0.5.23"),
        ("0.5.15.post1.dev3+gabc", "0.5.15.post1"),
    ],
)
def test_an_unchecked_version_is_read_like_the_nearest_earlier_one(version: str, release: str) -> None:
    assert TABLE.for_version(version).version == release


def test_a_version_without_digits_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^'main' is not a version$"):
        TABLE.for_version("main")


@pytest.mark.parametrize(
    ("versions", "version", "expected"),
    [
        ("", "0.1", True),
        (">=0.5.10,<0.5.14", "0.5.10.post1", True),
        (">=0.5.10,<0.5.14", "0.5.14", False),
        (">=0.5.10,<0.5.14", "0.5.9", False),
        ("<0.5.10", "0.5.9.post4", True),
        ("==0.6", "0.6.0", True),
        ("!=0.6", "0.6.0", False),
        (">0.6,<=0.7", "0.7", True),
    ],
)
def test_ranges(versions: str, version: str, expected: bool) -> None:
    assert covers(versions, version) is expected


def test_ranges_that_cannot_be_read() -> None:
    with pytest.raises(ValueError, match=r"^'~=0\.5' is not a version condition"):
        covers("~=0.5", "0.5")


def test_the_range_that_releases_stand_for() -> None:
    versions = ["0.4.10.post2", "0.5.1", "0.5.2"]
    assert range_text(versions, 0, 2) == ""
    assert range_text(versions, 0, 1) == "<0.5.2"
    assert range_text(versions, 1, 1) == ">=0.5.1,<0.5.2"
    assert number("0.5.0") == number("0.5")


# ---- the flag table


def test_the_table_tells_the_life_of_a_flag() -> None:
    life = {version: TABLE.for_version(version).flag("--enable-piecewise-cuda-graph") for version in TABLE.releases}
    assert [version for version, flag in life.items() if flag] == [
        "0.5.3.post3", "0.5.4.post3", "0.5.5.post3", "0.5.6.post2", "0.5.7", "0.5.8.post1", "0.5.9", "0.5.10.post1",
        "0.5.11", "0.5.12.post1", "0.5.13.post1",
    ]  # fmt: skip
    assert next(version for version, flag in life.items() if flag and flag.deprecated) == "0.5.10.post1"


def test_spellings_of_one_flag_are_one_flag() -> None:
    release = TABLE.for_version("0.5.9")
    assert release.flag("--tp-size") is release.flag("--tensor-parallel-size")


def test_every_problem_of_a_table_is_told() -> None:
    problems: list[Problem] = []
    data = {
        "releases": ["0.2", "0.1", "x"],
        "flags": {
            "--a": [{"from": "0.3"}, {"from": "0.1", "arity": 2}, {"from": "0.1", "help": ""}],
            "--b": "no",
            "--c": [1],
            "--d": [{"from": "0.1", "spellings": ["--e"]}, {"from": "0.2"}, {"from": "0.2"}],
        },
    }
    table_from(data, problems)
    assert [(problem.path, problem.reason) for problem in problems] == [
        (("releases", 2), "'x' is not a version"),
        (("releases",), "is out of order"),
        (("flags", "--a", 0, "from"), "'0.3' is not a checked release"),
        (("flags", "--a", 1, "arity"), "2 is not an arity"),
        (("flags", "--a", 2, "help"), "is not known"),
        (("flags", "--b"), "is not a list"),
        (("flags", "--c", 0), "is not a mapping"),
        (("flags", "--d", 0, "spellings"), "lacks --d"),
        (("flags", "--d"), "has records out of order"),
    ]
    more: list[Problem] = []
    assert table_from([], more).releases == ()
    assert table_from({}, more).records == {}
    assert [problem.path for problem in more] == [(), ("releases",), ("flags",)]


# ---- where the engine's flags begin


@pytest.mark.parametrize(
    ("line", "engine", "own"),
    [
        ("python -m sglang.launch_server --tp 8", "sglang", "--tp 8"),
        ("/opt/env/bin/python3.12 -u -m sglang.launch_server --tp 8", "sglang", "--tp 8"),
        ("python -msglang.launch_server --tp 8", "sglang", "--tp 8"),
        ("sglang serve --model-path m", "sglang", "--model-path m"),
        ("/opt/env/bin/sglang serve m", "sglang", "m"),
        ("vllm serve m --dtype half", "vllm", "m --dtype half"),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm", "--model m"),
        ("python3 /src/python/sglang/launch_server.py --tp 8", "sglang", "--tp 8"),
        ("A=1 B='x y' nohup python -m sglang.launch_server --tp 8", "sglang", "--tp 8"),
        ("env A=1 numactl -N 0 python -m sglang.launch_server --tp 8", "sglang", "--tp 8"),
        ("docker run --gpus all -e A=1 img:1 python3 -m sglang.launch_server --tp 8", "sglang", "--tp 8"),
        ("docker run --gpus all vllm/vllm-openai:latest --model m", "vllm", "--model m"),
        ("podman run docker.io/vllm/vllm-openai-rocm:v0.14 m --dtype half", "vllm", "m --dtype half"),
        ("docker run vllm/vllm-openai:v1 vllm serve m", "vllm", "m"),
        ("bash -lc 'exec python -m sglang.launch_server --tp 8'", "sglang", "--tp 8"),
        ("docker run img sh -c 'sglang serve m --tp 8'", "sglang", "m --tp 8"),
    ],
)
def test_where_the_flags_begin(line: str, engine: str, own: str) -> None:
    words = shlex.split(line)
    launch = find_launch(words)
    assert launch is not None
    assert launch.engine == engine
    assert shlex.join(launch.words[launch.start :]) == own
    assert launch.rebuilt(launch.words) == words


@pytest.mark.parametrize(
    "line",
    [
        "",
        "python serve.py --tp 8",
        "python -m sglang.bench_serving --tp 8",
        "vllm bench --model m",
        "echo vllm/vllm-openai:latest --model m",
        "bash -c 'cd /srv && python -m sglang.launch_server --tp 8'",  # shell syntax: not ours to rewrite
        "bash -c 'python -m sglang.launch_server --model-path ~/m'",
        "bash -c 'python -m sglang.launch_server --tp '\"'\"'8'",  # a quote that is never closed
    ],
)
def test_no_engine_is_found(line: str) -> None:
    assert find_launch(shlex.split(line)) is None


def test_assignments_in_front() -> None:
    launch = find_launch(shlex.split("A=1 env B=2 docker run -e C=3 --env=D=4 -eE=5 -v x img sglang serve --x A2=1"))
    assert launch is not None
    assert {name: launch.words[index] for name, index in launch.env.items()} == {
        "A": "A=1",
        "B": "B=2",
        "C": "C=3",
        "D": "--env=D=4",
        "E": "-eE=5",
    }


# ---- reading options


def read(text: str, version: str = "0.5.9") -> list[Option]:
    return read_options(shlex.split(text), TABLE.for_version(version))


def test_options() -> None:
    found = read("--tp 8 --mem-frac=0.9 --trust-remote-code stray --chunked-prefill-size -1 --lora-paths a b -- c --tp")
    assert [(option.flag.dest if option.flag else None, option.values) for option in found] == [
        ("tensor_parallel_size", ("8",)),
        ("mem_fraction_static", ("0.9",)),
        ("trust_remote_code", ()),
        (None, ("stray",)),
        ("chunked_prefill_size", ("-1",)),
        ("lora_paths", ("a", "b")),
        (None, ()),
        (None, ("c",)),
        (None, ("--tp",)),
    ]


def test_the_twin_of_a_boolean_flag() -> None:
    on, off = read("--enable-tf32-matmul --no-enable-tf32-matmul", "0.5.23")
    assert on.flag is off.flag
    assert (on.negated, off.negated) == (False, True)


@pytest.mark.parametrize(
    ("text", "version", "refusal"),
    [
        ("--enable-piecewise-cuda-graph", "0.5.20", "unrecognized arguments: --enable-piecewise-cuda-graph"),
        (
            "--cuda-graph-bs 1 2",
            "0.5.20",
            "ambiguous option: --cuda-graph-bs could match --cuda-graph-bs-decode, --cuda-graph-bs-prefill",
        ),
        ("--tp-size", "0.5.9", "argument --tensor-parallel-size/--tp-size: expected one argument"),
        ("--cuda-graph-bs", "0.5.9", "argument --cuda-graph-bs: expected at least one argument"),
        ("--trust-remote-code=1", "0.5.9", "argument --trust-remote-code: ignored explicit argument '1'"),
        (
            "--mamba-backend x",
            "0.5.9",
            "argument --mamba-backend: invalid choice: 'x' (choose from 'triton', 'flashinfer')",
        ),
        ("--disable-cuda-graph extra words", "0.5.9", "unrecognized arguments: extra words"),
    ],
)
def test_refusals_are_argparse_s(text: str, version: str, refusal: str) -> None:
    assert check(shlex.split(f"{START} {text}"), TABLE.for_version(version)) == [refusal]
    assert check(shlex.split(f"--model-path m {text}"), TABLE.for_version(version)) == [refusal]
    try:
        _, unknown = PARSERS[version].parse_known_args(shlex.split(text))
        said = "unrecognized arguments: " + " ".join(unknown)
    except Refused as error:
        said = str(error)
    assert said == refusal


def test_a_model_as_a_plain_word() -> None:
    words = shlex.split("sglang serve m --tp 8")
    assert check(words, TABLE.for_version("0.5.16")) == []
    assert check(words, TABLE.for_version("0.5.15")) == ["unrecognized arguments: m"]
    assert check(shlex.split("python serve.py x --y"), TABLE.for_version("0.5.16")) == []


def test_an_open_release_refuses_nothing_that_it_does_not_know() -> None:
    release = Release.of("vllm", "0.12", [Flag("--port", ("--port",), "port")], open=True)
    assert check(shlex.split("vllm serve m --new-flag 1 --port 8 -x"), release) == []
    assert check(shlex.split("vllm serve m --port"), release) == ["argument --port: expected one argument"]
    # With an incomplete list nobody can tell whether an abbreviation is unique.
    assert read_options(["--por", "8"], release)[0].flag is None


def test_a_configuration_file_becomes_words() -> None:
    config = {
        "enable-metrics": True,
        "disable_radix_cache": True,
        "trust-remote-code": False,
        "tp-size": 8,
        "lora-paths": ["a", "b"],
        "cuda-graph-bs": [],
        "json-model-override-args": {"a": 1},
        "plugin": True,
        "host": None,
    }
    assert config_words(config, TABLE.for_version("0.5.9")) == shlex.split(
        "--enable-metrics --disable-radix-cache --tp-size 8 --lora-paths a b "
        """--json-model-override-args '{"a": 1}' --plugin"""
    )


# ---- against argparse

WORDS = st.sampled_from(["8", "-1", "-0.5", "x", "", "a b", "-", "{}", "--", "-q", "--no-such", "-1x", "--tp=", "auto"])


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    version = draw(st.sampled_from(["0.4.6", "0.5.9", "0.5.16", "0.5.20", "0.5.23"]))
    spellings = sorted(TABLE.for_version(version).by_spelling)
    flag = st.sampled_from(spellings)
    short = st.builds(lambda text, size: text[: max(3, size)], flag, st.integers(3, 30))
    # Not `--x=--`, which Python versions read differently.
    inline = st.builds(lambda text, value: f"{text}={value}", flag | short, WORDS.filter(lambda word: word != "--"))
    return version, draw(st.lists(flag | short | inline | WORDS, max_size=6))


@settings(max_examples=600, deadline=None)
@given(lines())
def test_argparse_agrees(line: tuple[str, list[str]]) -> None:
    version, words = line
    release = TABLE.for_version(version)
    options = read_options(words, release)
    assert rebuild(options) == words
    try:
        wanted, unknown = PARSERS[version].parse_known_args(words)
        accepted = not unknown
    except Refused:
        accepted = False
    refusals = check(words, release) if words and words[0].startswith("-") else None
    strays = any(option.flag is None and not option.spelled for option in options)
    # Without anything behind it `--` is refused by some Python versions and dropped by others.
    if "--" in words:
        return
    mine = not refusals and not strays
    assert mine == accepted
    if accepted:
        for option in options:
            if option.flag is not None and option.flag.arity == 1:
                last = [other for other in options if other.flag and other.flag.dest == option.flag.dest][-1]
                if last is option:
                    assert getattr(wanted, option.flag.dest) == option.values[0]


# ---- vLLM reads its command line in a way of its own

VLLM_TABLE = table_from(
    json.loads((Path(__file__).parents[2] / "rules" / "engines" / "vllm" / "flags.json").read_text()), []
)


@pytest.mark.parametrize(
    ("version", "words", "refused"),
    [
        ("0.11.0", "--max_model_len 8192 --tensor-parallel-size=2 -tp 2", ""),
        ("0.11.0", "--enable_prefix_caching --no-enable-prefix-caching --no_enable_prefix_caching", ""),
        ("0.11.0", "-O3 -O0 -O.level=3 -O=2 --compilation-config.level 3", ""),
        ("0.13.0", "--compilation-config.pass_config.enable_fusion=true --speculative_config.method ngram", ""),
        ("0.8.5", "--compilation-config.level 3", "unrecognized arguments: --compilation-config.level"),
        ("0.8.5", "-O3", ""),
        ("0.11.0", "--no-such-config.method ngram", "unrecognized arguments: --no-such-config.method"),
        ("0.17.0", "--swap-space 4", ""),
        ("0.18.0", "--swap-space 4", "unrecognized arguments: --swap-space"),
        ("0.18.0", "--swap_space=4", "unrecognized arguments: --swap_space=4"),
        ("0.12.0", "--attention-backend TRITON_ATTN", "unrecognized arguments: --attention-backend"),
        ("0.13.0", "--attention-backend TRITON_ATTN", ""),
        ("0.33.0", "--disable-prefix-caching", ""),
        ("0.32.0", "--disable-prefix-caching", "unrecognized arguments: --disable-prefix-caching"),
        ("0.11.0", "--dtype=int8", "invalid choice: 'int8'"),
    ],
)
def test_what_vllm_takes_in_which_release(version: str, words: str, refused: str) -> None:
    said = check(["vllm", "serve", "m", *shlex.split(words)], VLLM_TABLE.for_version(version))
    assert (refused in "; ".join(said)) if refused else said == []


def test_a_level_of_vllm_is_a_flag_of_its_own() -> None:
    for version, there in (("0.6.0", False), ("0.11.0", True), ("0.33.0", True)):
        flag = VLLM_TABLE.for_version(version).flag("-O3")
        assert (flag is not None and flag.arity == 0) is there
    assert TABLE.for_version("0.5.9").flag("-O3") is None
