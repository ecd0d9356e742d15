"""A command line as a list of words in; where the engine's own flags are and what one release makes of each out.

Reading follows argparse with abbreviations on (what SGLang uses): exact spelling, `--flag=value`, unique prefix,
negative numbers as values, `nargs`, `--no-x` twins. `check` says what that parser would refuse.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.core.flags import Flag, Release, covers

_MODULES = {
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
}
_PROGRAMS = {"sglang": "sglang", "vllm": "vllm"}
_SCRIPT = re.compile(r"(?:^|/)(sglang|vllm)/(?:.*/)?(?:launch_server|api_server)\.py$")
# Images whose entry point is the engine itself: what follows the image name are its flags.
_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:-[\w.]+)?(?:[:@]\S+)?$")
_CONTAINER = {"docker", "podman", "nerdctl"}
_SHELLS = {"sh", "bash", "dash", "zsh", "ash"}
_ASSIGNMENT = re.compile(r"(?:--env=|-e)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SHELL_SYNTAX = re.compile(r"[$`;|&<>\n*?()~#]")
_NEGATIVE = re.compile(r"-\d+$|-\d*\.\d+$")


class Launch(NamedTuple):
    """A command line that starts an engine.

    `words[start:]` are the engine's own words. `env` are the assignments written in front of it (`A=B`, `env A=B`,
    `docker run -e A=B`): name -> position in `words`. `container` is the position of `run` in `docker run`, None
    elsewhere. `shell` is the whole command when the engine was started by `sh -c "…"`: `words` is then what that text
    says, and `shell[text]` the text itself.
    """

    engine: str
    words: tuple[str, ...]
    start: int
    env: Mapping[str, int]
    serve: bool = False
    container: int | None = None
    shell: tuple[str, ...] = ()
    text: int = 0

    def rebuilt(self, words: Sequence[str]) -> list[str]:
        """The whole command line with other words for the engine's process."""
        if not self.shell:
            return list(words)
        return [*self.shell[: self.text], shlex.join(words), *self.shell[self.text + 1 :]]


class Option(NamedTuple):
    """One flag with its values, or one stray word, of a command line.

    `words` are the words as written; `flag` is None for a stray word and for a flag that the release does not have;
    `spelled` is the full spelling that an abbreviation stands for; `refusal` is argparse's complaint, "" when it is
    taken.
    """

    words: tuple[str, ...]
    flag: Flag | None = None
    spelled: str = ""
    values: tuple[str, ...] = ()
    inline: bool = False
    refusal: str = ""

    @property
    def text(self) -> str:
        """The option as a person would type it in a shell."""
        return shlex.join(self.words)

    @property
    def negated(self) -> bool:
        return self.flag is not None and self.flag.arity == "bool" and self.spelled not in self.flag.spellings


def find_launch(words: Sequence[str]) -> Launch | None:
    """Where an engine is started in a command line, None when no engine that we know is."""
    found = _find_plain(words)
    if found is not None:
        return found
    for index in range(2, len(words)):
        shell = words[index - 2].rsplit("/", 1)[-1] in _SHELLS and re.fullmatch(r"-[a-z]*c", words[index - 1])
        # A text with shell syntax cannot be taken apart and put together again without changing what it means.
        if not shell or _SHELL_SYNTAX.search(words[index]):
            continue
        try:
            inner = _find_plain(shlex.split(words[index]))
        except ValueError:
            continue
        if inner is not None:
            return Launch(
                inner.engine, inner.words, inner.start, inner.env, inner.serve, inner.container, tuple(words), index
            )
    return None


def _find_plain(words: Sequence[str]) -> Launch | None:
    container: int | None = None
    for index, word in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        following = words[index + 1] if index + 1 < len(words) else ""
        if name in _CONTAINER and "run" in words[index + 1 : index + 3]:
            container = words.index("run", index)
        script = _SCRIPT.search(word)
        if word == "-m" and following in _MODULES:
            return _launch(_MODULES[following], words, index + 2, container)
        if word.startswith("-m") and word[2:] in _MODULES:
            return _launch(_MODULES[word[2:]], words, index + 1, container)
        if script:
            return _launch(script[1], words, index + 1, container)
        if name in _PROGRAMS and following == "serve":
            return _launch(_PROGRAMS[name], words, index + 2, container, serve=True)
        if container is not None and _IMAGE.search(word):
            inner = _find_plain(words[index + 1 :])  # an image followed by a whole command of its own
            start = index + 1 + (inner.start if inner else 0)
            return _launch("vllm", words, start, container, serve=inner is None or inner.serve)
    return None


def _launch(engine: str, words: Sequence[str], start: int, container: int | None, serve: bool = False) -> Launch:
    env: dict[str, int] = {}
    for index, word in enumerate(words[:start]):
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment:
            env[assignment[1]] = index
    return Launch(engine, tuple(words), start, env, serve, container)


def read_options(words: Sequence[str], release: Release) -> list[Option]:
    """An engine's own words as options, in order; `rebuild` of the result gives the same words again."""
    options: list[Option] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            options.append(Option((word,), spelled="--"))
            options.extend(Option((rest,), values=(rest,)) for rest in words[index + 1 :])
            break
        if not _is_option(word, release):
            options.append(Option((word,), values=(word,)))
            index += 1
            continue
        taken = _read_option(words, index, release)
        options.append(taken)
        index += len(taken.words)
    return options


def rebuild(options: Sequence[Option]) -> list[str]:
    """The words of options, in order."""
    return [word for option in options for word in option.words]


def _is_option(word: str, release: Release) -> bool:
    """Whether argparse takes a word for an option, known or not, and not for a value."""
    if not word.startswith("-") or word == "-":
        return False
    if release.candidates(word) or release.candidates(word.split("=", 1)[0]):
        return True
    return not _NEGATIVE.match(word) and " " not in word


def _read_option(words: Sequence[str], index: int, release: Release) -> Option:
    word = words[index]
    spelled, equals, explicit = word, "", ""
    if not release.flag(word) and "=" in word:
        spelled, equals, explicit = word.partition("=")
    following: list[str] = []
    for value in words[index + 1 :]:
        if value == "--" or _is_option(value, release):
            break
        following.append(value)
    candidates = release.candidates(spelled)
    names = {release.by_spelling[candidate].name for candidate in candidates}
    if not candidates or len(names) > 1:
        refusal = ""
        if candidates:
            refusal = f"ambiguous option: {word} could match {', '.join(candidates)}"
        elif not release.open and not release.takes_keys(spelled):
            refusal = f"unrecognized arguments: {word}"
        values = (explicit,) if equals else tuple(following)
        own = (word,) if equals else (word, *following)
        return Option(own, None, spelled, values, bool(equals), refusal)
    flag = release.by_spelling[candidates[0]]
    refusal = "" if len(candidates) == 1 else f"ambiguous option: {word} could match {', '.join(candidates)}"
    label = "/".join(flag.spellings)
    if equals:
        if not flag.takes_value:
            refusal = refusal or f"argument {label}: ignored explicit argument {explicit!r}"
        return Option((word,), flag, candidates[0], (explicit,), True, refusal or _choice_refusal(flag, (explicit,)))
    wanted = {0: 0, "bool": 0, 1: 1, "?": 1}.get(flag.arity, len(following))
    values = tuple(following[:wanted])
    if not values and flag.arity in (1, "+"):
        refusal = (
            refusal or f"argument {label}: expected {'one argument' if flag.arity == 1 else 'at least one argument'}"
        )
    return Option((word, *values), flag, candidates[0], values, False, refusal or _choice_refusal(flag, values))


def _choice_refusal(flag: Flag, values: Sequence[str]) -> str:
    for value in values:
        if flag.choices and value not in flag.choices:
            choices = ", ".join(repr(choice) for choice in flag.choices)
            return f"argument {'/'.join(flag.spellings)}: invalid choice: {value!r} (choose from {choices})"
    return ""


def check(words: Sequence[str], release: Release) -> list[str]:
    """What a release's parser would refuse in a whole command line or in the engine's own words, in argparse's words.

    Types are not in the flag table, so `--tp-size x` is not found here. Nothing is refused when no engine is found in
    words that do not begin with a flag.
    """
    launch = find_launch(words)
    if launch is None and words and not words[0].startswith("-"):
        return []
    own = launch.words[launch.start :] if launch else words
    options = read_options(own, release)
    refusals = [option.refusal for option in options if option.refusal]
    if not release.open:
        strays = [option.words[0] for option in options if option.flag is None and not option.spelled]
        if strays and launch and takes_model(launch, release):
            strays = strays[1:]
        if strays:
            refusals.append("unrecognized arguments: " + " ".join(strays))
    return refusals


def takes_model(launch: Launch, release: Release) -> bool:
    """Whether the model may be a plain word: `vllm serve MODEL`, and `sglang serve MODEL` since 0.5.16."""
    return launch.serve and (launch.engine == "vllm" or covers(">=0.5.16", release.version))


def config_words(config: Mapping[str, object], release: Release) -> list[str]:
    """The words that SGLang makes of a `--config` file: a true switch adds its flag, a false one adds nothing."""
    words: list[str] = []
    for key, value in config.items():
        spelling = f"--{key}"
        flag = release.flag(spelling) or release.flag(spelling.replace("_", "-"))
        spelling = spelling if flag is None or spelling in flag.spellings else spelling.replace("_", "-")
        if isinstance(value, bool) and (flag is None or not flag.takes_value):
            words += [spelling] if value else []
        elif isinstance(value, bool):
            words += [spelling, str(value).lower()]
        elif isinstance(value, Mapping):
            import json

            words += [spelling, json.dumps(value)]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [spelling, *(str(item) for item in value)] if value else []
        elif value is not None:
            words += [spelling, str(value)]
    return words
