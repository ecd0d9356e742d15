"""The tables of the store. Logs stay in files: a row keeps where. Nothing in here holds a secret."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Column
from sqlmodel import Field, SQLModel


class RunRow(SQLModel, table=True):
    """One run of a target: `id` is its folder's name, `seen` how many bytes of its journal are in here. Times are
    seconds since the epoch; `after` is the run that it replaced."""

    __tablename__ = "run"

    id: str = Field(primary_key=True, max_length=64)
    target: str = Field(index=True, max_length=100)
    host: str = Field(max_length=255)
    folder: str
    argv: list[str] = Field(sa_column=Column(JSON, nullable=False))
    began: float = Field(index=True)
    ended: float | None = None
    state: str = Field(default="starting", max_length=20)
    rule: str | None = Field(default=None, max_length=200)
    text: str = ""
    after: str | None = Field(default=None, max_length=64)
    seen: int = 0


class AttemptRow(SQLModel, table=True):
    """One start. `via` is the remedy that led to it (its outcome is `state`, and `ready_at` when it helped), `versions`
    what the engine's log says of its packages, `arguments` those in force, as the log prints them. Of a start that was
    only watched, `source` is the log that it was seen in, from the byte `log_offset` on; `log` is then our own copy."""

    __tablename__ = "attempt"

    id: int | None = Field(default=None, primary_key=True)
    run: str = Field(foreign_key="run.id", index=True, max_length=64, ondelete="CASCADE")
    number: int
    argv: list[str] = Field(sa_column=Column(JSON, nullable=False))
    env: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    diff: list[str] = Field(sa_column=Column(JSON, nullable=False))
    versions: dict[str, str] = Field(sa_column=Column(JSON, nullable=False))
    arguments: dict[str, str] = Field(sa_column=Column(JSON, nullable=False))
    via: str | None = None
    log: str
    log_size: int = 0
    source: str | None = None
    log_offset: int = Field(default=0, sa_type=BigInteger)
    began: float
    ready_at: float | None = Field(default=None, index=True)
    ended: float | None = None
    state: str = Field(default="starting", max_length=20)
    rule: str | None = Field(default=None, max_length=200)
    exit: str | None = None
    reason: str = ""


class PhaseRow(SQLModel, table=True):
    """How long one phase of an attempt took, in seconds; None while it runs."""

    __tablename__ = "phase"

    id: int | None = Field(default=None, primary_key=True)
    attempt: int = Field(foreign_key="attempt.id", index=True, ondelete="CASCADE")
    phase: str = Field(max_length=100)
    title: str = ""
    seconds: float | None = None


class FindingRow(SQLModel, table=True):
    """One verdict of an attempt, as it was told: `stage` is early, refined, confirmed or withdrawn."""

    __tablename__ = "finding"

    id: int | None = Field(default=None, primary_key=True)
    attempt: int = Field(foreign_key="attempt.id", index=True, ondelete="CASCADE")
    at: float
    rule: str = Field(index=True, max_length=200)
    title: str = ""
    stage: str = Field(max_length=20)
    reason: str = ""
    line: int | None = None
    evidence: list[Any] = Field(sa_column=Column(JSON, nullable=False))
    remedies: list[Any] = Field(sa_column=Column(JSON, nullable=False))
