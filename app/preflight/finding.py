"""What a check finds out before anything was started: a rule's id with the names that its log patterns capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that is there already. `fails`: the start cannot succeed; otherwise it may. `text` says what was seen,
    in one sentence; `names` fill the rule's explanation; `log` is what an engine prints of it, where that is known."""

    rule: str
    fails: bool
    text: str
    names: Mapping[str, str] = field(default_factory=dict)
    log: str = ""
