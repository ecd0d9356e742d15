"""A printed configuration or command line in, names and values or words out; nesting, cuts and odd values do no harm.

Engines print their resolved configuration as Python writes it: SGLang `ServerArgs(a='x', b=[1, 2])` or `{'a': 'x'}`,
vLLM `{'model': 'x'}` or `Namespace(model='x')`, on one line of several KB. Secrets are masked before anything is kept.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import pairwise

from .secrets import MASK, mask

_PAIR = re.compile(r"\s*(?:'(?P<a>[^']+)'|\"(?P<b>[^\"]+)\"|(?P<c>[A-Za-z_]\w*))\s*(?P<sep>[=:])\s*", re.DOTALL)
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:api[_-]?keys?|token|passwords?|passphrase|secrets?|credentials?)$", re.IGNORECASE
)
_NOT_SECRET = ("", "None", "null", "False", "True", "[]", "{}")
_ENVIRONMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELL_END = frozenset(("|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1", "2>", "&>", "1>"))
_REDIRECTION = re.compile(r"(?:\d?>>?|&>>?)\S+$")
_SIGN = re.compile(r"[\\'\"()\[\]{},]")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_LIMIT = 256 * 1024


def is_secret(name: str) -> bool:
    """Whether a flag, key or variable of that name holds a secret (`api_key`, `--hf-token`, `SSL_KEYFILE_PASSWORD`)."""
    return _SECRET_NAME.search(name.lstrip("-")) is not None


def parse_arguments(text: str) -> tuple[dict[str, str], bool]:
    """Names and values of a printed configuration, and whether it was there to its end.

    Values stay as written, without the quotes of plain text ("None", "True", "[1, 2]", "auto"); secrets are "***". The
    last value, where it was cut off, is left out.
    """
    text = text[:_LIMIT]
    opening = re.match(r"\s*(?:[A-Za-z_]\w*\s*)?([({])", text)
    body = text[opening.end() :] if opening else text
    values: dict[str, str] = {}
    pieces = list(_split(body, _CLOSING[opening[1]] if opening else None))
    complete = bool(pieces) and pieces[-1][1]
    for index, (piece, _) in enumerate(pieces):
        found = _PAIR.match(piece)
        if found is None or (index == len(pieces) - 1 and not complete and opening):
            continue
        name = found["a"] or found["b"] or found["c"]
        value = _plain(piece[found.end() :].strip())
        secret = is_secret(name) and value not in _NOT_SECRET
        values[name] = MASK if secret else mask(value)
    return values, complete


def _split(text: str, closing: str | None) -> Iterator[tuple[str, bool]]:
    """The pieces between commas that stand in no bracket and no quotes; the last with True where `closing` ended it."""
    open_brackets: list[str] = []
    quote = ""
    start = skip = 0
    for found in _SIGN.finditer(text):
        place, sign = found.start(), found[0]
        if place < skip:
            continue
        if quote:
            if sign == "\\":
                skip = place + 2
            elif sign == quote:
                quote = ""
        elif sign in "'\"":
            quote = sign if _opens(text, place) else ""
        elif sign in _CLOSING:
            open_brackets.append(_CLOSING[sign])
        elif open_brackets:
            if sign == open_brackets[-1]:
                open_brackets.pop()
        elif sign == closing:
            yield text[start:place], True
            return
        elif sign == ",":
            yield text[start:place], False
            start = place + 1
    if text[start:].strip():
        yield text[start:], closing is None and not quote and not open_brackets


def _opens(text: str, place: int) -> bool:
    """A quote opens text only where a value can begin: an apostrophe inside a word does not."""
    return place == 0 or not (text[place - 1].isalnum() or text[place - 1] in "_)")


def _plain(value: str) -> str:
    """Text without its quotes; everything else as written."""
    if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0]:
        try:
            plain = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value[1:-1]
        return plain if isinstance(plain, str) else value
    return value


def parse_command(text: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words of a command line and the environment written before it; secrets are "***".

    A printed Python list is read too. The command ends at the first shell operator. `text` may be cut off in a quote.
    """
    words = _words(text[:_LIMIT].strip())
    environment: dict[str, str] = {}
    while words and (words[0] == "env" or _ENVIRONMENT.match(words[0])):
        name, equals, value = words.pop(0).partition("=")
        if equals:
            environment[name] = MASK if is_secret(name) and value else mask(value)
    kept: list[str] = []
    hide = False
    for word in words:
        if word in _SHELL_END or _REDIRECTION.fullmatch(word):
            break
        ends = word.endswith(";") and len(word) > 1 and "{" not in word
        word = word[:-1] if ends else word
        name, equals, value = word.partition("=")
        if hide and not word.startswith("--"):
            word = MASK
        elif word.startswith("--") and equals and is_secret(name) and value not in _NOT_SECRET:
            word = f"{name}={MASK}"
        else:
            word = mask(word)
        hide = word.startswith("--") and not equals and is_secret(word)
        kept.append(word)
        if ends:
            break
    return tuple(kept), environment


SWITCHES = ("enable_", "disable_", "no_", "enforce_", "trust_", "skip_", "allow_", "use_")
"""Arguments with such names take no value; what follows one may be the model."""


def written(name: str, argv: Iterable[str]) -> str | None:
    """What a command line sets the argument `name` (as the configuration calls it: `attention_backend`) to.

    The last value counts, a switch is "True"; None where it is not written out. `--tp 8` is the argument `tp_size`.
    """
    flags = {f"--{one.replace('_', '-')}" for one in (name, name.removesuffix("_size"))}
    words = [*argv, ""]
    found = None
    for word, following in pairwise(words):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") in flags:
            switch = following[:2] in ("", "--") or name.startswith(SWITCHES)
            found = value if equals else "True" if switch else following
    return found


def _words(text: str) -> list[str]:
    if text.startswith("["):
        try:
            listed = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            listed = None
        if isinstance(listed, list):
            return [str(word) for word in listed]
    for ending in ("", "'", '"'):  # a quote that was cut off is closed
        try:
            return shlex.split(text + ending)
        except ValueError:
            continue
    return text.split()
