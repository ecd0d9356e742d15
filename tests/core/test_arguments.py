"""Printed configurations and command lines, whole and cut off, with secrets that must not survive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.arguments import is_secret, parse_arguments, parse_command, written


@pytest.mark.parametrize(
    ("text", "values", "complete"),
    [
        ("ServerArgs(a='x', b=None, c=[1, 2], d=0.5)", {"a": "x", "b": "None", "c": "[1, 2]", "d": "0.5"}, True),
        ("{'a': 'x', 'b': {'c': [1, (2, 3)]}, 'd': True}", {"a": "x", "b": "{'c': [1, (2, 3)]}", "d": "True"}, True),
        ("Namespace(model='m', rope={'x, y': ')'})", {"model": "m", "rope": "{'x, y': ')'}"}, True),
        ("""ServerArgs(a="it's", b='say \\'hi\\'', c='a, b=c')""", {"a": "it's", "b": "say 'hi'", "c": "a, b=c"}, True),
        ("ServerArgs(kind=<Kind.FULL: 0>, next=1)", {"kind": "<Kind.FULL: 0>", "next": "1"}, True),
        ("ServerArgs(graph=Config(decode=Phase(bs=[1, 2])), tp_size=8)",
         {"graph": "Config(decode=Phase(bs=[1, 2]))", "tp_size": "8"}, True),
        # cut off: the last value may be half a value
        ("ServerArgs(a='x', port=310", {"a": "x"}, False),
        ("{'a': 'x', 'b': 'unfinis", {"a": "x"}, False),
        ("ServerArgs(a='x', b=[1, 2", {"a": "x"}, False),
        # what follows the closing bracket is not read
        ("ServerArgs(a=1) and then b=2", {"a": "1"}, True),
        ("ServerArgs()", {}, False),
        ("", {}, False),
        ("nothing of the kind", {}, False),
    ],
)  # fmt: skip
def test_configurations(text: str, values: dict[str, str], complete: bool) -> None:
    got, whole = parse_arguments(text)
    assert got == values
    assert whole is complete or not values


@pytest.mark.parametrize(
    "text",
    [
        "ServerArgs(api_key='sesame', admin_api_key='sesame', port=1)",
        "{'api_key': 'sesame', 'ssl_keyfile_password': 'sesame', 'port': 1}",
        "{'api_key': ['sesame', 'sesame'], 'port': 1}",
        "ServerArgs(hf_token='sesame', loader={'hf_token': 'sesame'}, port=1)",
    ],
)
def test_secrets_do_not_survive(text: str) -> None:
    values, _ = parse_arguments(text)
    assert "sesame" not in repr(values)
    assert values["port"] == "1"
    assert "***" in repr(values)


def test_an_unset_secret_stays_readable_and_tokens_that_are_counts_are_no_secrets() -> None:
    values, _ = parse_arguments("ServerArgs(api_key=None, max_total_tokens=4096, tokenizer_path='t')")
    assert values == {"api_key": "None", "max_total_tokens": "4096", "tokenizer_path": "t"}


@pytest.mark.parametrize("name", ["api_key", "--admin-api-key", "HF_TOKEN", "ssl_keyfile_password", "AWS_SECRET"])
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["tokenizer", "max_total_tokens", "--max-prefill-tokens", "api_keyboard", "passes"])
def test_names_that_are_no_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "argv", "env"),
    [
        ("python3 -m sglang.launch_server --model-path x --tp 8",
         ["python3", "-m", "sglang.launch_server", "--model-path", "x", "--tp", "8"], {}),
        ("env A=1 HF_TOKEN=sesame sglang serve x", ["sglang", "serve", "x"], {"A": "1", "HF_TOKEN": "***"}),
        ("sglang serve x --api-key sesame --tp 2", ["sglang", "serve", "x", "--api-key", "***", "--tp", "2"], {}),
        ("sglang serve x --api-key=sesame", ["sglang", "serve", "x", "--api-key=***"], {}),
        ("""vllm serve x --cc '{"mode": 0}' 2>&1 | tee log""", ["vllm", "serve", "x", "--cc", '{"mode": 0}'], {}),
        ("vllm serve x > log", ["vllm", "serve", "x"], {}),
        ("vllm serve x; echo done", ["vllm", "serve", "x"], {}),
        ("['python', '-m', 'sglang.launch_server', '--port', '1']",
         ["python", "-m", "sglang.launch_server", "--port", "1"], {}),
        ("vllm serve x --json '{\"a\": 1", ["vllm", "serve", "x", "--json", '{"a": 1'], {}),
        ("", [], {}),
    ],
)  # fmt: skip
def test_commands(text: str, argv: list[str], env: dict[str, str]) -> None:
    assert parse_command(text) == (tuple(argv), env)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12).filter(lambda text: "://" not in text),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"\A[a-z][a-z_]{0,8}x\Z")


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=6))
def test_what_python_prints_is_read_back(values: dict[str, object]) -> None:
    for text in (repr(values), "ServerArgs(" + ", ".join(f"{key}={value!r}" for key, value in values.items()) + ")"):
        got, complete = parse_arguments(text)
        assert complete
        assert list(got) == list(values)
        for key, value in values.items():
            assert got[key] == (value if isinstance(value, str) else repr(value)) or "***" in got[key]


@given(st.text(max_size=200))
def test_any_text_is_survived(text: str) -> None:
    parse_arguments(text)
    parse_arguments("ServerArgs(a=" + text)
    parse_command(text)


@pytest.mark.parametrize(
    ("name", "argv", "value"),
    [
        ("attention_backend", "--attention-backend fa3 --attention-backend=triton", "triton"),
        ("tp_size", "--model-path m --tp 8", "8"),
        ("tp_size", "--tp-size=4", "4"),
        ("enable_dp_attention", "--enable-dp-attention --tp 8", "True"),
        ("enable_dp_attention", "--tp 8 --enable-dp-attention", "True"),
        ("enforce_eager", "serve --enforce-eager m/x", "True"),
        ("nnodes", "--nnodes", "True"),
        ("tp_size", "--tpx 8", None),
        ("model", "", None),
    ],
)
def test_what_a_command_line_sets(name: str, argv: str, value: str | None) -> None:
    assert written(name, argv.split()) == value
