"""What to set, the command line and the engine's version in; the changed launch, or why that version cannot, out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from app.core.edit import Blocked, Draft, Slot
from app.core.flags import FlagTable, Release, clauses, covers, number, range_text
from app.core.knobs import Knob, Step, Value, open_release
from app.core.launch import Launch, check, config_words, find_launch, read_options, rebuild

_TITLES = {"sglang": "SGLang", "vllm": "vLLM"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Change:
    """A changed launch.

    `argv` is the whole new command line when the old one is known, otherwise only the words to add. `env` holds the
    variables to set, None for one to unset. `diff` has "-…" and "+…", one flag with its value each. `blocked` is None
    or a sentence; then nothing is changed. When the version is not known and the possible ones disagree, `versions`
    is the range that this change is for and `variants` has an entry (versions, diff, and argv with env or blocked) for
    each other range.
    """

    set: dict[str, Value] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    env: dict[str, str | None] = field(default_factory=dict)
    diff: list[str] = field(default_factory=list)
    blocked: str | None = None
    versions: str = ""
    variants: list[dict[str, object]] = field(default_factory=list)


def to_json(change: Change) -> dict[str, object]:
    """The part of a remedy that programs read: {"change": {set, argv, env, diff[, versions, variants]}, "blocked"}."""
    body: dict[str, object] = {
        "set": dict(change.set),
        "argv": list(change.argv),
        "env": dict(change.env),
        "diff": list(change.diff),
    }
    if change.variants:
        body |= {"versions": change.versions, "variants": [dict(variant) for variant in change.variants]}
    return {"change": body, "blocked": change.blocked}


def apply(
    settings: Mapping[str, Value],
    argv: Sequence[str] | None,
    engine: str,
    version: str | None,
    knobs: Mapping[str, Knob],
    table: FlagTable | None,
    *,
    env: Mapping[str, Value] | None = None,
    among: Sequence[str] | None = None,
    config: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    accepted: bool = True,
) -> Change:
    """The change that sets knobs and environment variables.

    `settings` maps knobs to concrete values (None: back to the default). `argv` is the old command line, None when it
    is not known. `table` is None for an engine without one. `env` are the variables to set (None: unset), `environ`
    those in force. `among` are the releases or ranges that the version may be when it is not known. `config` is what
    a `--config` file on the command line says, None when it was not read. `accepted` is False when the engine refused
    this very command line, so that it tells nothing about the version.
    """
    launch = find_launch(argv) if argv is not None else None
    launch = launch if launch is not None and launch.engine == engine else None
    request = _Request(settings, argv, launch, engine, knobs, table, _texts(env or {}), config, environ)
    if version is not None and _is_version(version):
        return request.change(version)
    versions = list(table.releases) if table is not None else _boundaries(settings, knobs)
    possible = [index for index, item in enumerate(versions) if among is None or _among(item, among, table)]
    possible = possible or list(range(len(versions)))
    if accepted and argv is not None and table is not None:
        fits = [index for index in possible if not check(argv, table.for_version(versions[index]))]
        possible = fits or possible
    return _across(versions, possible, [request.change(versions[index]) for index in possible])


def _texts(env: Mapping[str, Value]) -> dict[str, str | None]:
    """Environment variables as texts: 1 and true are written as "1"."""
    return {
        name: None if value is None else str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in env.items()
    }


def _is_version(text: str) -> bool:
    try:
        number(text)
    except ValueError:
        return False
    return True


def _among(version: str, among: Sequence[str], table: FlagTable | None) -> bool:
    """Whether a checked release is one of the possible ones, or stands for one of them."""
    for item in among:
        if re.match(r"\s*[<>=!]", item):
            if covers(item, version):
                return True
        elif _is_version(item):
            stands = table.for_version(item).version if table is not None else item
            if stands == version:
                return True
    return False


def _boundaries(settings: Mapping[str, Value], knobs: Mapping[str, Knob]) -> list[str]:
    """One version for each range in which the knobs are spelled alike, oldest first."""
    found: set[tuple[int, ...]] = {(0,)}
    for name in settings:
        for spelling in knobs[name].spellings if name in knobs else ():
            found |= {bound for _, bound in clauses(spelling.versions)}
    return [".".join(map(str, bound)) for bound in sorted(found)]


def _across(versions: Sequence[str], possible: Sequence[int], changes: Sequence[Change]) -> Change:
    """One change out of those for each possible release: the newest that works, and what the others would be."""
    groups: list[tuple[int, int, Change]] = []
    for index, change in zip(possible, changes, strict=True):
        same = groups and _outcome(groups[-1][2]) == _outcome(change)
        if same:
            groups[-1] = (groups[-1][0], index, change)
        else:
            groups.append((index, index, change))
    chosen = next((group for group in reversed(groups) if group[2].blocked is None), groups[-1])
    if len(groups) == 1:
        return chosen[2]
    variants: list[dict[str, object]] = []
    for first, last, change in groups:
        if change is not chosen[2]:
            entry: dict[str, object] = {"versions": range_text(versions, first, last), "diff": change.diff}
            entry |= {"argv": change.argv, "env": change.env} if change.blocked is None else {"blocked": change.blocked}
            variants.append(entry)
    return replace(chosen[2], versions=range_text(versions, chosen[0], chosen[1]), variants=variants)


def _outcome(change: Change) -> tuple[object, ...]:
    return change.blocked is None, tuple(change.argv), tuple(change.env.items()), tuple(change.diff)


class _Request(NamedTuple):
    """Everything about a wanted change but the version."""

    settings: Mapping[str, Value]
    argv: Sequence[str] | None
    launch: Launch | None
    engine: str
    knobs: Mapping[str, Knob]
    table: FlagTable | None
    env: Mapping[str, str | None]
    config: Mapping[str, object] | None
    environ: Mapping[str, str] | None

    def change(self, version: str) -> Change:
        """The change for one version."""
        release = self.table.for_version(version) if self.table else open_release(self.engine, version, self.knobs)
        title = f"{_TITLES.get(self.engine, self.engine)} {version}"
        draft = self._draft(release, title)
        wanted_env, reasons = dict(self.env), []
        for name, value in self.settings.items():
            try:
                wanted_env |= self._take(draft, name, value, version)
            except (Blocked, ValueError) as error:
                reasons.append(str(error))
        if reasons:
            return self._blocked("; ".join(reasons))
        return self._result(draft, wanted_env)

    def _draft(self, release: Release, title: str) -> Draft:
        if self.launch is None:
            return Draft(release, title, [], known=False)
        draft = Draft.of(release, title, read_options(self.launch.words[self.launch.start :], release))
        draft.file = _config_file(draft)
        if self.config is not None and draft.file:
            draft.fixed = read_options(config_words(self.config, release), release)
        return draft

    def _take(self, draft: Draft, name: str, value: Value, version: str) -> dict[str, str | None]:
        """Takes one setting into the draft; gives the environment variables that it needs instead of flags."""
        knob = self.knobs.get(name)
        if knob is None:
            raise Blocked(f"{_TITLES.get(self.engine, self.engine)} has no knob named {name}")
        spelling = knob.spelling(version)
        if value is None:
            steps = [step for _, step in spelling.values] + ([spelling.set] if spelling.set else []) if spelling else []
            draft.restore(steps)
            return {variable: None for step in steps for variable, _ in step.env}
        text = knob.text(value)
        step: Step | None = spelling.step(text) if spelling else None
        if step is None:
            raise Blocked(f"{draft.title} has no {name}" + (f" {text}" if spelling else ""))
        draft.take(step, knob, text)
        return {variable: setting.replace("{value}", text) for variable, setting in step.env}

    def _result(self, draft: Draft, env: Mapping[str, str | None]) -> Change:
        own = rebuild(draft.options())
        if self.launch is None:
            changes, lines = self._environment(env, None)
            if not lines and not draft.diff():
                return self._blocked(self._in_force(draft))
            return Change(dict(self.settings), own, changes, [*draft.diff(), *lines])
        before = check(self.launch.words[self.launch.start :], draft.release)
        refused = [text for text in check(own, draft.release) if text not in before]
        if refused:
            return self._blocked(f"{draft.title} would refuse the result: {'; '.join(refused)}")
        again = read_options(own, draft.release)
        if [option.words for option in again] != [option.words for option in draft.options()]:
            return self._blocked("the command line cannot be edited without changing what its other words mean")
        front = list(self.launch.words[: self.launch.start])
        changes, lines = self._environment(env, front)
        diff = [*draft.diff(), *lines]
        if not diff:
            return self._blocked(self._in_force(draft))
        return Change(dict(self.settings), self.launch.rebuilt([*front, *own]), changes, diff)

    def _in_force(self, draft: Draft) -> str:
        names = [f"{name} is {'the default' if value is None else value}" for name, value in self.settings.items()]
        names += [f"{name} is {'unset' if value is None else value}" for name, value in self.env.items()]
        text = "already in force: " + (", ".join(names) or "nothing is asked for")
        if draft.file and self.config is None:
            text += f"; {draft.file} was not read and may say otherwise"
        return text

    def _blocked(self, reason: str) -> Change:
        argv = list(self.argv) if self.argv is not None and self.launch is not None else []
        return Change(dict(self.settings), argv, blocked=reason)

    def _environment(
        self, wanted: Mapping[str, str | None], front: list[str] | None
    ) -> tuple[dict[str, str | None], list[str]]:
        """The variables that change and their diff; those assigned in `front` are changed there, in place."""
        changes: dict[str, str | None] = {}
        lines: list[str] = []
        gone: list[int] = []
        added: list[str] = []
        for name, value in wanted.items():
            if not _NAME.fullmatch(name) or "\0" in (value or ""):
                raise ValueError(f"{name!r} cannot be an environment variable")
            written = self.launch.env.get(name) if self.launch and front is not None else None
            if written is not None and front is not None:
                prefix, _, old = front[written].partition(f"{name}=")
                if old == value:
                    continue
                lines.append(f"-{name}={shlex.quote(old)}")
                if value is None:
                    gone.append(written)
                else:
                    front[written] = f"{prefix}{name}={value}"
            elif self.environ is not None and self.environ.get(name) == value:
                continue
            elif self.environ is not None and name in self.environ:
                lines.append(f"-{name}={shlex.quote(self.environ[name])}")
            elif value is None:
                lines.append(f"-{name}")
            elif self.launch is not None and self.launch.container is not None:
                added += ["-e", f"{name}={value}"]
            changes[name] = value
            if value is not None:
                lines.append(f"+{name}={shlex.quote(value)}")
        if front is not None:
            for index in sorted(gone, reverse=True):
                pair = index > 0 and front[index - 1] in ("-e", "--env")
                del front[index - 1 if pair else index : index + 1]
            if added and self.launch is not None and self.launch.container is not None:
                front[self.launch.container + 1 : self.launch.container + 1] = added
        return changes, lines


def _config_file(draft: Draft) -> str:
    """The `--config` file that the engine reads: only `--config FILE` in two words; SGLang ignores `--config=FILE`."""
    for slot in draft.slots:
        if _reads_config(slot):
            assert slot.now is not None
            return slot.now.values[0]
    return ""


def _reads_config(slot: Slot) -> bool:
    option = slot.now
    return option is not None and option.words[0] == "--config" and len(option.words) > 1
