"""A command line, the rule base and what the engine's interpreter says in; everything that a check may ask for out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.core.edit import Blocked, Draft
from app.core.flags import FlagTable, Release, number
from app.core.knobs import Knob, open_release
from app.core.launch import Launch, Option, config_words, find_launch, read_options
from app.probe import Probe

if TYPE_CHECKING:
    from app.preflight.model import Model


@dataclass(frozen=True)
class Ahead:
    """A launch before it happens. `version` is None and `probe` too where they are not known; `environ` is that of the
    engine, with what the command line assigns; `config` is what a `--config` file says, {} without one."""

    argv: tuple[str, ...]
    launch: Launch
    version: str | None
    release: Release
    options: tuple[Option, ...]
    environ: Mapping[str, str]
    cwd: Path
    probe: Probe | None
    knobs: Mapping[str, Knob]
    table: FlagTable | None
    installed: bool
    """Whether `table` is what the installed parser said."""
    config: Mapping[str, Any] = field(default_factory=dict)
    config_problem: str = ""
    gpu: str | None = None

    @property
    def engine(self) -> str:
        return self.launch.engine

    @property
    def elsewhere(self) -> bool:
        """Whether the engine will run in a container: this machine's files and ports tell nothing about it."""
        return self.launch.container is not None

    @cached_property
    def model(self) -> Model | None:
        """The model's folder, None where it is not on this machine or not given."""
        from app.preflight.model import find_model

        return find_model(self)

    def option(self, spelling: str) -> Option | None:
        """The option that decides: the last one with this flag's destination, then the configuration file's."""
        flag = self.release.flag(spelling)
        for option in reversed(self.options):
            same = option.flag is not None and flag is not None and option.flag.dest == flag.dest
            if same or option.spelled == spelling:
                return option
        return None

    def written(self, spelling: str) -> bool:
        return self.option(spelling) is not None

    def value(self, *spellings: str) -> str | None:
        """What the command line or the configuration file says for a flag; None where it says nothing."""
        for spelling in spellings:
            option = self.option(spelling)
            if option is not None and option.values:
                return option.values[0]
        return None

    def number(self, *spellings: str) -> float | None:
        try:
            return float(self.value(*spellings) or "")
        except ValueError:
            return None

    def size(self, *spellings: str) -> int:
        """A parallel size: 1 where nothing is said."""
        found = self.number(*spellings)
        return int(found) if found is not None and found >= 1 else 1

    @property
    def tp(self) -> int:
        return self.size("--tensor-parallel-size", "--tp-size", "--tp", "-tp")

    @property
    def pp(self) -> int:
        return self.size("--pipeline-parallel-size", "--pp-size", "-pp")

    @property
    def dp(self) -> int:
        return self.size("--data-parallel-size", "--dp-size", "--dp", "-dp")

    @property
    def nodes(self) -> int:
        return self.size("--nnodes")

    @property
    def on_cpu(self) -> bool:
        return (self.value("--device") or "").startswith("cpu")

    @property
    def model_path(self) -> str | None:
        """The model as written: a folder, a file or a hub name."""
        named = self.value("--model-path", "--model")
        if named is None and self.launch.serve:
            named = next(
                (option.words[0] for option in self.options if option.flag is None and not option.spelled), None
            )
        return named

    def package(self, name: str) -> str | None:
        """A package's version under the name that rules use."""
        if name == self.engine:
            return self.version
        return self.probe.versions.get(name) if self.probe is not None else None

    def architectures(self) -> Sequence[str]:
        """The GPUs' architectures: as told, else as the driver says."""
        if self.gpu:
            return [self.gpu]
        return [gpu.sm for gpu in self.probe.gpus if gpu.sm] if self.probe is not None else []

    def about_model(self, name: str) -> str:
        """A fact of the model; what the command line says of its quantisation counts as one."""
        facts = self.model.facts if self.model is not None else {}
        if name == "quantization":
            given = self.value("--quantization", "-q")
            return " ".join(filter(None, (given, facts.get("quantization"), facts.get("quant_algo"))))
        return facts.get(name, "")

    def in_force(self, knob: str, value: str) -> bool:
        """Whether setting a knob would change nothing in this release."""
        found = self.knobs.get(knob)
        spelling = found.spelling(self.version) if found is not None and self.version is not None else None
        step = spelling.step(value) if spelling is not None else None
        if found is None or step is None:
            return False
        draft = Draft.of(self.release, "", self.options)
        try:
            draft.take(step, found, value)
        except (Blocked, ValueError):
            return False
        return not draft.diff()

    def on(self, name: str) -> bool:
        """Whether an environment variable says yes."""
        return self.environ.get(name, "").lower() in ("1", "true", "yes", "on")

    def path(self, text: str) -> Path:
        """A path of the command line as the engine will read it."""
        return self.cwd / Path(text).expanduser()


def ahead_of(
    argv: Sequence[str], knobs: Mapping[str, Knob], table: FlagTable | None, *, probe: Probe | None,
    version: str | None, environ: Mapping[str, str], cwd: Path, launch: Launch | None = None,
    gpu: str | None = None,
) -> Ahead | None:  # fmt: skip
    """The situation, None where no engine that we know is started."""
    launch = launch or find_launch(argv)
    if launch is None:
        return None
    installed = probe.table(launch.engine) if probe is not None else None
    version = version or (probe.version(launch.engine) if probe is not None else None)
    table = installed or table
    given = {}
    for name, place in launch.env.items():
        given[name] = launch.words[place].partition(f"{name}=")[2]
    whole = {**({} if launch.container is not None else environ), **given}
    release = _release(launch.engine, version, knobs, table)
    words = list(launch.words[launch.start :])
    options = read_options(words, release)
    config, problem = _config(options, cwd) if launch.engine == "sglang" and launch.container is None else ({}, "")
    if config:
        options = [*read_options(config_words(config, release), release), *options]
    return Ahead(
        tuple(argv), launch, version, release, tuple(options), whole, cwd, probe, knobs, table, installed is not None,
        config, problem, gpu,
    )  # fmt: skip


def _release(engine: str, version: str | None, knobs: Mapping[str, Knob], table: FlagTable | None) -> Release:
    """What to read the options with; the newest release where none is known."""
    if table is None or not table.releases:
        return open_release(engine, version or "9999", knobs)
    try:
        number(version or "")
    except ValueError:
        return table.for_version(table.releases[-1])
    return table.for_version(version or "")


def _config(options: Sequence[Option], cwd: Path) -> tuple[dict[str, Any], str]:
    """What the `--config` file says, and what is wrong with it."""
    named = next((o.values[0] for o in options if o.words[0] == "--config" and len(o.words) > 1), None)
    if named is None:
        return {}, ""
    place = cwd / os.path.expanduser(named)
    try:
        text = place.read_text()
    except OSError as error:
        return {}, f"{place}: {error.strerror}"
    except UnicodeDecodeError:
        return {}, f"{place}: is not UTF-8 text"
    import yaml

    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        return {}, f"{place}: is not YAML: {getattr(error, 'problem', None) or error}"
    return (data, "") if isinstance(data, dict) else ({}, f"{place}: holds no mapping of arguments")
