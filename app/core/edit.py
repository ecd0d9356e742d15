"""One release's options and a step to take in; the changed options, or the sentence that says why not, out.

What the user wrote is edited: a value is changed where it stands, in the spelling that was used; a flag is taken out
rather than contradicted; only what was not there is added at the end.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from app.core.flags import Flag, Release
from app.core.knobs import Add, Edit, Knob, Step
from app.core.launch import Option


class Blocked(Exception):
    """A change that cannot be made; the text is the sentence for people."""


@dataclass(slots=True)
class Slot:
    """One option as it was and as it is; `old` is None for an added one, `now` for one that was taken out."""

    old: Option | None
    now: Option | None


@dataclass(slots=True)
class Draft:
    """The options of a command line while they are changed.

    `fixed` are the options that come from a configuration file: they hold unless the command line says otherwise and
    cannot be taken out. `known` is False when the command line is not known: then everything is written as if nothing
    was there, and `without` collects what must not be there.
    """

    release: Release
    title: str
    slots: list[Slot]
    fixed: Sequence[Option] = ()
    file: str = ""
    known: bool = True
    without: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, release: Release, title: str, options: Sequence[Option]) -> Draft:
        return cls(release, title, [Slot(option, option) for option in options])

    def options(self) -> list[Option]:
        return [slot.now for slot in self.slots if slot.now is not None]

    def diff(self) -> list[str]:
        """What was taken out (-) and put in (+), one option each, in the order of the command line."""
        lines = ["-" + spelling for spelling in self.without]
        for slot in self.slots:
            if slot.old == slot.now:
                continue
            lines += [] if slot.old is None else ["-" + slot.old.text]
            lines += [] if slot.now is None else ["+" + slot.now.text]
        return lines

    # ---- one setting

    def take(self, step: Step, knob: Knob, value: str) -> None:
        """Does one step. Raises Blocked; the draft is then not to be used any more."""
        for spelling in step.conflicts:
            if self._find(spelling) or self._fixed(spelling):
                raise Blocked(f"{spelling} is set and decides {knob.name}: change that first")
        if self._implied(step):
            return
        edited = step.edit is not None and self._edit(step.edit, knob, value)
        written = {flag.dest for add in step.add for spelling in add.flags if (flag := self.release.flag(spelling))}
        for spelling in step.drop:
            flag = self.release.flag(spelling)
            # What writes the same destination as the new value is changed where it stands; and with an unknown command
            # line older names of a flag are not worth telling.
            if flag is None or not (flag.dest in written or (flag.use_instead and not self.known)):
                self._drop(spelling)
        for add in step.add:
            flag, spelling = self._resolve(add)
            if flag is None:
                continue
            if edited:
                self._allow(flag, spelling, (value,))
                self._retract(flag, value)
            elif add.value is None:
                self._switch_on(flag, spelling)
            else:
                self._set(flag, spelling, add.value.replace("{value}", value), knob)
        if step.edit is not None and not edited and not step.add and step.edit.set:
            self._append((step.edit.flag, json.dumps(_edited({}, step.edit, knob, value))))

    def restore(self, steps: Sequence[Step]) -> None:
        """Takes out every flag that any of the steps would write: back to the engine's default."""
        for step in steps:
            if step.edit is not None and self._find(step.edit.flag):
                self._edit(Edit(step.edit.flag, (), tuple(path for path, _ in step.edit.set)), Knob(""), "")
            for add in step.add:
                for spelling in add.flags:
                    flag = self.release.flag(spelling)
                    if flag is None or not self.known:
                        self._drop(spelling)
                        continue
                    if flag.required:
                        raise Blocked(f"{self.title} does not start without {spelling}")
                    if any(option.flag and option.flag.dest == flag.dest for option in self.fixed):
                        raise Blocked(f"{spelling} is set in {self.file}: take it out there")
                    for slot in self.slots:
                        if slot.now and slot.now.flag and slot.now.flag.dest == flag.dest:
                            slot.now = None

    # ---- the parts of a step

    def _find(self, spelling: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.now is not None and self._is(slot.now, spelling)]

    def _fixed(self, spelling: str) -> list[Option]:
        return [option for option in self.fixed if self._is(option, spelling)]

    def _is(self, option: Option, spelling: str) -> bool:
        """Whether an option is that flag; a spelling that the release lacks is compared as a text or pattern."""
        flag = self.release.flag(spelling)
        if flag is not None and option.flag is not None:
            return option.flag.name == flag.name and option.negated == (spelling not in flag.spellings)
        if option.flag is not None and "*" not in spelling and "[" not in spelling:
            return False
        return bool(option.spelled) and fnmatchcase(option.spelled, spelling)

    def _implied(self, step: Step) -> bool:
        """Whether a weaker flag does the same already and nothing that would beat it is written."""
        if not any(self._find(spelling) or self._fixed(spelling) for spelling in step.implied):
            return False
        if any((self._find(spelling) and spelling not in step.implied) for spelling in step.drop):
            return False
        dests = {flag.dest for add in step.add for spelling in add.flags if (flag := self.release.flag(spelling))}
        weak = {flag.dest for spelling in step.implied if (flag := self.release.flag(spelling))}
        for option in [*self.fixed, *self.options()]:
            if option.flag and option.flag.dest in dests - weak:
                return False
        if step.edit is not None:
            written = self._json(step.edit.flag)
            return not any(_has(written, path) for path, _ in step.edit.set)
        return True

    def _resolve(self, add: Add) -> tuple[Flag | None, str]:
        """The flag to write and its spelling; (None, "") when leaving out its opposite is enough."""
        there = [(flag, spelling) for spelling in add.flags if (flag := self.release.flag(spelling))]
        if there:
            return next(((flag, spelling) for flag, spelling in there if not flag.deprecated), there[0])
        if add.unless and self.release.flag(add.unless):
            return None, ""
        raise Blocked(f"{self.title} has no {add.flags[0]}")

    def _set(self, flag: Flag, spelling: str, value: str, knob: Knob) -> None:
        values = tuple(json.loads(value)) if knob.type == "list" else (value,)
        if flag.arity not in ("+", "*") and len(values) > 1:
            raise Blocked(f"{self.title} takes one value after {spelling}")
        self._allow(flag, spelling, values)
        mine = [slot for slot in self.slots if slot.now and slot.now.flag and slot.now.flag.dest == flag.dest]
        before = [option for option in self.fixed if option.flag and option.flag.dest == flag.dest]
        last = mine[-1].now if mine else before[-1] if before else None
        if knob.merge and last is not None and last.values:
            values = (_merged(self, last, value),)
        if last is not None and _same(_written(last), values, knob.type):
            return
        place = next(
            (slot for slot in reversed(mine) if slot.now and slot.now.flag and slot.now.flag.takes_value), None
        )
        for slot in mine:
            if slot is not place:
                slot.now = None
        if place is None or place.now is None:
            self._append((spelling, *values), flag)
            return
        word = place.now.words[0].partition("=")[0] if place.now.inline else place.now.words[0]
        word = spelling if place.now.refusal.startswith("ambiguous") else word
        words = (f"{word}={values[0]}",) if place.now.inline and len(values) == 1 else (word, *values)
        place.now = place.now._replace(words=words, values=values, inline=len(words) == 1, refusal="")

    def _allow(self, flag: Flag, spelling: str, values: Sequence[str]) -> None:
        for item in values:
            if flag.choices and item not in flag.choices:
                raise Blocked(f"{self.title} does not take {spelling} {item}: only {', '.join(flag.choices)}")

    def _switch_on(self, flag: Flag, spelling: str) -> None:
        # A twin with a name of its own (`--disable-x` beside `--enable-x`) writes the same destination: the last one counts.
        mine = [slot for slot in self.slots if slot.now and _switches(slot.now, flag)]
        last = mine[-1].now if mine else None
        if last is None:
            last = next((option for option in reversed(self.fixed) if _switches(option, flag)), None)
        negated = spelling not in flag.spellings
        if last is not None and last.flag is not None and last.flag.name == flag.name and last.negated == negated:
            return
        for slot in mine:
            slot.now = None
        self._append((spelling,), flag)

    def _drop(self, spelling: str) -> None:
        if not self.known:
            if ("*" in spelling or self.release.flag(spelling)) and spelling not in self.without:
                self.without.append(spelling)
            return
        flag = self.release.flag(spelling)
        if self._fixed(spelling):
            twin = "--no-" + spelling[2:]
            if flag is None or flag.arity != "bool":
                raise Blocked(
                    f"{spelling} is set in {self.file} and cannot be undone on the command line: take it out there"
                )
            if not self._find(twin):
                self._append((twin,))
        for slot in self._find(spelling):
            slot.now = None

    def _retract(self, flag: Flag, value: str) -> None:
        """Takes out a plain flag that says something else than the JSON which beats it."""
        for slot in self.slots:
            if slot.now and slot.now.flag and slot.now.flag.dest == flag.dest and _written(slot.now) != (value,):
                slot.now = None

    def _edit(self, edit: Edit, knob: Knob, value: str) -> bool:
        """Changes keys in the JSON of a flag; False when the flag is not there."""
        place = next(iter(reversed(self._find(edit.flag))), None)
        source = place.now if place else next(iter(reversed(self._fixed(edit.flag))), None)
        if source is None or not source.values:
            return False
        before = self._json(edit.flag)
        if before is None:
            raise Blocked(f"the value of {edit.flag} is not a JSON object and cannot be edited")
        after = _edited(before, edit, knob, value)
        if after == before:
            return True
        compact = (",", ":") if " " not in source.values[0] else None
        text = json.dumps(after, separators=compact)
        if place is None or place.now is None:
            self._append((edit.flag, text), source.flag)
            return True
        word = place.now.words[0].partition("=")[0]
        words = (f"{word}={text}",) if place.now.inline else (word, text)
        place.now = place.now._replace(words=words, values=(text,), refusal="")
        return True

    def _json(self, spelling: str) -> dict[str, object] | None:
        """The JSON object written for a flag, None when there is none or it is not one."""
        written = [slot.now for slot in self._find(spelling)] or self._fixed(spelling)
        if not written or written[-1] is None or not written[-1].values:
            return None
        try:
            found = json.loads(written[-1].values[0])
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def _append(self, words: tuple[str, ...], flag: Flag | None = None) -> None:
        flag = flag or self.release.flag(words[0])
        slot = Slot(None, Option(words, flag, words[0], words[1:]))
        end = next((i for i, slot in enumerate(self.slots) if slot.now and slot.now.spelled == "--"), len(self.slots))
        self.slots.insert(end, slot)


def _switches(option: Option, flag: Flag) -> bool:
    """Whether an option switches what `flag` does, on or off."""
    return option.flag is not None and option.flag.dest == flag.dest and option.flag.arity in (0, "bool")


def _written(option: Option) -> tuple[str, ...]:
    """The values of an option; for a switch that stands for a value (`… use --x=disabled instead`) that value."""
    if option.flag is not None and not option.flag.takes_value and "=" in option.flag.use_instead:
        return (option.flag.use_instead.partition("=")[2],)
    return option.values


def _same(written: tuple[str, ...], wanted: tuple[str, ...], type: str) -> bool:
    if type in ("int", "float") and len(written) == len(wanted) == 1:
        try:
            return float(written[0]) == float(wanted[0])
        except ValueError:
            return False
    if type == "json" and len(written) == len(wanted) == 1:
        try:
            return bool(json.loads(written[0]) == json.loads(wanted[0]))
        except ValueError:
            return False
    return written == wanted


def _merged(draft: Draft, last: Option, value: str) -> str:
    try:
        before = json.loads(last.values[0])
    except ValueError:
        before = None
    if not isinstance(before, Mapping):
        raise Blocked(f"the value of {last.spelled} is not a JSON object: {shlex.quote(last.values[0])}")
    return json.dumps({**before, **json.loads(value)})


def _has(data: object, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True


def _edited(before: Mapping[str, object], edit: Edit, knob: Knob, value: str) -> dict[str, object]:
    after: dict[str, object] = copy.deepcopy(dict(before))
    for path, wanted in edit.set:
        where = after
        for key in path[:-1]:
            inner = where.get(key)
            if not isinstance(inner, dict):
                inner = where[key] = {}
            where = inner
        if wanted == "{value}":
            where[path[-1]] = json.loads(value) if knob.type in ("int", "float", "json", "list") else value
        else:
            where[path[-1]] = wanted
    for path in edit.unset:
        found: object = after
        for key in path[:-1]:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict):
            found.pop(path[-1], None)
    return after
