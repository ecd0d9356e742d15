"""What is asked of a target and what is answered, for checking and for the OpenAPI document. What the supervisor tells
is richer than what is written down here: answers may have more members than these."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"
DIFF = ["---enable-piecewise-cuda-graph"]
Short = Annotated[str, StringConstraints(max_length=200)]
KnobName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
KnobValue = bool | int | float | Short | None


class Open(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="allow")


class Strict(BaseModel):
    """A body: nothing else may be in it."""

    model_config = ConfigDict(extra="forbid", strict=True)


class RemedyOut(Open):
    """A change on offer. `name` is what a restart names."""

    name: str = Field(examples=[f"{CAUSE}#1"])
    rule: str = Field(examples=[CAUSE])
    title: str = Field(examples=["Run without prefill (piecewise) CUDA graphs"])
    diff: list[str] = Field(examples=[DIFF])
    safe: bool
    cost: str
    proof: str = Field(examples=["reproduced"])
    argv: list[str]


class TargetOut(Open):
    """A target as it is now. Secrets are masked."""

    name: str = Field(examples=["server"])
    kind: str = Field(examples=["child"], description="child: a process of ours; log: somebody else's log")
    can: list[str] = Field(examples=[["stop", "restart"]])
    tag: str = Field(examples=["20261201-102030-a1b2c3.1"], description="The ETag: run and attempt")
    state: str = Field(examples=["starting"], description="idle, starting, ready, crashed, stalled or stopped")
    run: str | None = None
    attempt: int
    phase: str | None = None
    left: dict[str, Any] | None = Field(None, description="Seconds until ready with an interval, where known")
    idle: float | None = Field(None, description="Seconds since the log grew")
    verdict: dict[str, Any] | None = Field(None, description="The root cause as it stands while the log is written")
    report: dict[str, Any] | None = Field(
        None,
        description="The verdict whole, as `explain` gives it; `near` are the rules that came near, each with the line "
        "and the condition that failed. Null until something is wrong",
    )
    remedies: list[RemedyOut] = []


class TargetsOut(Open):
    """All targets."""

    targets: list[TargetOut]


class StartIn(Strict):
    """A start as configured. `again` confirms that a launch is repeated that has just failed."""

    again: bool = False
    dry_run: bool = False


class RestartIn(Strict):
    """One remedy by its name, or knobs with values, or the last good launch, or nothing (the same launch once more)."""

    model_config = ConfigDict(
        extra="forbid", strict=True,
        json_schema_extra={"examples": [
            {"remedy": f"{CAUSE}#1"}, {"knobs": {"prefill_graph": "disabled"}, "dry_run": True}, {"last_good": True},
        ]},
    )  # fmt: skip

    remedy: Short | None = Field(default=None, description="The name of a remedy that the target offers")
    knobs: dict[KnobName, KnobValue] = Field(
        default={}, max_length=16, description="Values by knob; null is the default"
    )
    last_good: bool = Field(default=False, description="Back to the last launch that became ready, other than this one")
    again: bool = Field(default=False, description="Confirms a launch that has just failed")
    dry_run: bool = Field(default=False, description="Only say what would change")


class PlannedOut(Open):
    """What a start or restart comes to. `run` is null where nothing was done."""

    title: str = Field(examples=["Run without prefill (piecewise) CUDA graphs"])
    argv: list[str]
    diff: list[str] = Field(examples=[DIFF])
    run: str | None
    attempt: int
    done: bool


class LastGoodOut(Open):
    """The last launch that became ready, other than the current one; null where there is none, and why."""

    last_good: PlannedOut | None
    reason: str | None = Field(examples=["no other launch of this model has become ready here before"])


class StoppedOut(Open):
    """A stop is under way."""

    stopping: bool


class KnobOut(Open):
    """A knob that a restart may set."""

    name: str = Field(examples=["mem_fraction_static"])
    title: str
    type: str = Field(examples=["float"])
    values: list[str]
    minimum: float | None
    maximum: float | None


class KnobsOut(Open):
    """The knobs of a target's engine."""

    engine: str | None = Field(examples=["sglang"])
    knobs: list[KnobOut]


class NearOut(Open):
    """A rule whose trigger stands in the log and that does not hold."""

    rule: str = Field(examples=["dynamo/flashinfer-jit-under-dynamo"])
    line: int
    failed: str = Field(
        examples=["absent: line 128 matches 'fp4_quantization'"], description="The condition that failed"
    )


class ReportOut(Open):
    """What `bringup explain --format json` prints for one log."""

    schema_: int = Field(alias="schema", examples=[1])
    source: str
    state: str = Field(examples=["crashed"])
    verdicts: list[dict[str, Any]]
    fingerprint: str | None
    restored: list[str] = []
    """What was undone to a log that was copied or exported, in words; absent for an ordinary one."""
    near: list[NearOut] = []


class RuleOut(Open):
    """A rule in the list."""

    id: str = Field(examples=[CAUSE])
    area: str
    title: str
    role: str = Field(examples=["cause"])
    status: str = Field(examples=["stable"])


class RulesOut(Open):
    """Every rule."""

    rules: list[RuleOut]


class RulePageOut(RuleOut):
    """One rule whole; `page` is Markdown."""

    page: str
    references: list[str]
    remedies: list[dict[str, Any]]


class HealthOut(Open):
    """A probe's answer."""

    status: str = Field(examples=["ok"])


class AuditOut(Open):
    """Who asked for what, newest first."""

    audit: list[dict[str, Any]]


class RunRowOut(Open):
    """A run in the list."""

    id: str = Field(examples=["20261201-102030-a1b2c3"])
    target: str
    host: str
    argv: list[str]
    began: float = Field(description="Seconds since the epoch")
    ended: float | None
    state: str
    rule: str | None
    after: str | None = Field(description="The run that it replaced")


class RunsOut(Open):
    """The runs of a target."""

    runs: list[RunRowOut]


class RunOut(RunRowOut):
    """A run with its attempts."""

    attempts: list[dict[str, Any]]


class RunLogOut(Open):
    """Lines of a log; `evidence` are the numbers of those that prove a verdict."""

    attempt: int
    log: str = Field(examples=["fe01-9ac2"])
    lines: int
    evidence: list[int]
    rows: list[dict[str, Any]]


class DiffOut(Open):
    """What differs: [now, then] by name, and seconds beside each other."""

    run: dict[str, Any]
    other: dict[str, Any]
    argv: list[str] = Field(examples=[DIFF])
    env: dict[str, list[Any]]
    versions: dict[str, list[Any]]
    arguments: dict[str, list[Any]] = Field(
        description="Of watched starts: the arguments in force, as the log has them."
    )
    phases: list[dict[str, Any]]
