"""What an application keeps while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.audit import Audit
from app.service import Service
from app.web.access import Access
from app.web.asked import Answers
from app.web.metrics import Tally
from app.web.stream import Broadcast


@dataclass
class State:
    """The service, who may use it, and what is kept of its users."""

    service: Service
    access: Access
    audit: Audit
    tally: Tally
    answers: Answers = field(default_factory=Answers)
    broadcasts: dict[str, Broadcast] = field(default_factory=dict)
