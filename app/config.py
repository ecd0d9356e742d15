"""bringup.toml in, everything that `bringup serve` needs out; or every problem of the file at once, each with its line.

[service]
listen = "127.0.0.1:8420"

[targets.glm]
command = ["python", "-m", "sglang.launch_server", "--model-path", "/models/GLM-5-NVFP4", "--tp", "8"]
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from app.attempt import Limits
from app.ladder import Launch
from app.outcome import Settings
from app.targets import Patience

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Hash = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ConfigError(Exception):
    """The file cannot be used. `problems` are lines for people: file:line: path: what is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Table(BaseModel):
    """A table of the file; keys are written with dashes."""

    model_config = ConfigDict(
        extra="forbid", strict=True, alias_generator=lambda name: name.replace("_", "-"), validate_by_name=False
    )


class ServiceTable(Table):
    """`listen`: see `--listen`. `hosts`: names that the API also answers under. `database`: see `--database-url`. What
    is older than `keep_days`, or too much for `keep_gb`, is removed. `on_stop`: what becomes of servers when bringup is
    asked to end: they are stopped, or they run on and the next bringup goes on with them."""

    listen: str = "127.0.0.1:8420"
    hosts: list[str] = []
    state_dir: str | None = None
    database: str | None = None
    keep_days: Positive = 90
    keep_gb: Positive = 20
    on_stop: Literal["stop", "leave"] = "stop"


class AuthTable(Table):
    """Tokens: names with the hashes that `bringup token` prints."""

    read: dict[Name, Hash] = {}
    control: dict[Name, Hash] = {}


class TargetTable(Table):
    """One target: the `command` of a server of ours, or the `log` of somebody else's. The rest is as on the
    command line of `bringup run`."""

    command: Annotated[list[str], Field(min_length=1)] | None = None
    log: str | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    start: bool = True
    fallback: Literal["off", "ask", "auto"] = "ask"
    max_attempts: Annotated[int, Field(ge=1)] = 6
    log_dir: str | None = None
    health_url: str | None = None
    silence: Positive | None = None
    stall_timeout: Positive | None = 600.0
    linger: Positive | None = 60.0
    stop_timeout: Positive = 20.0
    engine_version: str | None = None
    gpu: str | None = None

    @model_validator(mode="after")
    def _one(self) -> TargetTable:
        if (self.command is None) == (self.log is None):
            raise ValueError("needs either a command (a server of ours) or a log (somebody else's)")
        return self

    def launch(self) -> Launch:
        """The command line with the variables set for it."""
        return Launch(tuple(self.command or ()), tuple(sorted(self.env.items())))

    def settings(self) -> Settings:
        """As the supervisor takes them."""
        limits = Limits(self.silence, self.stall_timeout, self.linger, patience=Patience(ask=self.stop_timeout))
        return Settings(
            mode=self.fallback, max_attempts=self.max_attempts, health_url=self.health_url, limits=limits,
            log_directory=Path(self.log_dir).absolute() if self.log_dir else None, release=self.engine_version,
            gpu=self.gpu,
        )  # fmt: skip


class WebhookTable(Table):
    """Where to send which news. The body is signed with the secret that the variable `secret_env` holds."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s@]+$")]
    events: list[Literal["verdict", "ready", "end"]] = ["verdict", "ready", "end"]
    secret_env: str | None = None


class Config(Table):
    """The whole file."""

    service: ServiceTable = Field(default_factory=ServiceTable)
    auth: AuthTable = Field(default_factory=AuthTable)
    targets: Annotated[dict[Name, TargetTable], Field(min_length=1)]
    webhooks: list[WebhookTable] = []


def read(path: Path) -> Config:
    """The file at `path`. ConfigError with every problem in it; OSError when it cannot be read."""
    raw = path.read_bytes()
    try:
        text = raw.decode()
        data = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError([f"{path}:{line}: not UTF-8"]) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        raise ConfigError([f"{path}:{line}: not TOML: {str(error).partition(' (at ')[0]}"]) from None
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        lines = _lines(text)
        problems = []
        for row in error.errors():
            place = [str(part) for part in row["loc"] if part != "[key]"]
            missing = place.pop() if row["type"] == "missing" else None
            while place and ".".join(place) not in lines and not _is_key(place, data):
                place.pop()  # pydantic's own names for the branches of a union
            where = next((lines[name] for n in range(len(place), 0, -1) if (name := ".".join(place[:n])) in lines), 1)
            name = ".".join([*place, missing] if missing else place)
            problems.append((where, f"{path}:{where}: {name or 'file'}: {_reason(row)}"))
        raise ConfigError([problem for _, problem in sorted(problems)]) from None


def _is_key(place: list[str], data: Any) -> bool:
    for part in place:
        if isinstance(data, list):
            data = dict(enumerate(data)).get(int(part) if part.isdecimal() else -1)
        elif isinstance(data, dict) and part in data:
            data = data[part]
        else:
            return False
    return True


def _reason(row: Any) -> str:
    plain = {
        "extra_forbidden": "is not known here",
        "missing": "is missing",
    }
    text: str = plain.get(row["type"]) or row["msg"].removeprefix("Value error, ")
    if row["type"] == "string_pattern_mismatch":
        text = f"{str(row['input'])[:40]!r} does not fit {row['ctx']['pattern']}"
    return text[0].lower() + text[1:]


def _lines(text: str) -> dict[str, int]:
    """The line on which each table and key stands, by dotted path."""
    found: dict[str, int] = {}
    table: list[str] = []
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]", line)
        pair = re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", line)
        if header and "=" not in header[2]:
            table = _parts(header[2])
            if header[1] == "[[":
                place = counts.get(header[2], -1) + 1
                counts[header[2]] = place
                table.append(str(place))
            for depth in range(1, len(table) + 1):
                found.setdefault(".".join(table[:depth]), number)
        elif pair:
            found.setdefault(".".join([*table, *_parts(pair[1])]), number)
    return found


def _parts(name: str) -> list[str]:
    return [part.strip().strip("\"'") for part in re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", name)]
