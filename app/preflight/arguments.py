"""A launch ahead in; the arguments that its parser would refuse out."""

from __future__ import annotations

import json
from collections.abc import Iterator

from app.core.flags import number
from app.core.launch import check, takes_model
from app.preflight.finding import Finding
from app.preflight.situation import Ahead

_KINDS = {"int": int, "float": float}


def arguments(ahead: Ahead) -> Iterator[Finding]:
    """Everything wrong with the words of the command line themselves."""
    if ahead.config_problem:
        yield Finding("arguments/config-file-not-found", True, f"--config {ahead.config_problem}")
    refusals, sure = _refusals(ahead)
    for text in refusals:
        yield _finding(text, sure, ahead)
    if refusals:
        return
    for text in _values(ahead):
        yield _finding(text, True, ahead)
    named = ahead.model_path is not None or ahead.config_problem
    if not named and not (takes_model(ahead.launch, ahead.release) and ahead.engine == "vllm"):
        text = "error: the following arguments are required: --model-path/--model"
        yield Finding("arguments/required-argument-missing", True, "no model is given (--model-path)", log=text)


def _finding(text: str, sure: bool, ahead: Ahead) -> Finding:
    program = "sglang serve" if ahead.engine == "sglang" else f"{ahead.engine} serve"
    unknown = text.startswith(("unrecognized", "ambiguous"))
    rule = "arguments/unknown-cli-argument" if unknown else "arguments/invalid-flag-value"
    whose = "the installed parser" if ahead.installed else f"{program.split()[0]} {ahead.version or ''}".strip()
    return Finding(rule, sure, f"{whose}: {text}", log=f"{program}: error: {text}\n")


def _refusals(ahead: Ahead) -> tuple[list[str], bool]:
    """What the parser would say, and whether that is sure. Without a known release what all of them refuse counts."""
    own = list(ahead.launch.words)
    if ahead.engine == "vllm":  # --compilation-config.level 3: parts of a JSON value
        own = [word for word in own if not (word.startswith("--") and "." in word.partition("=")[0])]
    if ahead.table is None or ahead.release.open:
        return [], False
    if ahead.installed:
        return check(own, ahead.release), True
    if ahead.version is None:
        every = [check(own, ahead.table.for_version(release)) for release in ahead.table.releases]
        return (every[-1], True) if all(every) else ([], False)
    base = number(ahead.version)
    return check(own, ahead.release), base in [number(release) for release in ahead.table.releases]


def _values(ahead: Ahead) -> Iterator[str]:
    """Values of the wrong type; only the installed parser tells types."""
    parser = ahead.probe.parser if ahead.probe is not None and ahead.installed else None
    types = {str(item["dest"]): item.get("type") for item in (parser.flags if parser else ())}
    for option in ahead.options:
        kind = types.get(option.flag.dest) if option.flag else None
        for value in option.values if option.flag and option.flag.takes_value else ():
            label = "/".join(option.flag.spellings) if option.flag else ""
            try:
                if kind in _KINDS:
                    _KINDS[kind](value)
                elif kind == "loads":
                    json.loads(value)
            except ValueError:
                yield f"argument {label}: invalid {kind} value: {value!r}"
