"""What must not leave the process, in every place where it may stand."""

from __future__ import annotations

import pytest

from app.core.secrets import MASK, mask, mask_argv, mask_json


@pytest.mark.parametrize(
    ("text", "kept", "gone"),
    [
        ("--api-key sk-abc --port 1", "--port 1", "sk-abc"),
        ("api_key='topsecret', port=1", "port=1", "topsecret"),
        ("HF_TOKEN=hf_0123456789abcdefghij x", " x", "hf_0123"),
        ("https://me:pass1234@hub/x", "@hub/x", "pass1234"),
        ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer ", "abcdefgh"),
        ("key sk-proj-0123456789abcdef!", "key sk-", "0123456789"),
        ("AKIAABCDEFGHIJKLMNOP", "AKIA", "ABCDEFGH"),
    ],
)
def test_secrets_in_text(text: str, kept: str, gone: str) -> None:
    shown = mask(text)
    assert kept in shown
    assert gone not in shown
    assert MASK in shown


@pytest.mark.parametrize("text", ["--max-total-tokens 4096", "api_key=None", "token usage: 0.22", "password: null"])
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text) == text


def test_a_secret_that_follows_its_flag_as_a_word_of_its_own() -> None:
    argv = [
        "sglang",
        "serve",
        "--api-key",
        "plain",
        "--hf-token",
        "x",
        "--max-total-tokens",
        "4096",
        "--api-key=y",
        "--port",
        "1",
    ]
    assert mask_argv(argv) == [
        "sglang", "serve", "--api-key", MASK, "--hf-token", MASK, "--max-total-tokens", "4096", f"--api-key={MASK}", "--port", "1",
    ]  # fmt: skip


def test_json_is_masked_all_the_way_down() -> None:
    assert mask_json({"a": ["--api-key x", 1, None]}) == {"a": [f"--api-key {MASK}", 1, None]}
