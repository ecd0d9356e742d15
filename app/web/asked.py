"""Requests that carry an idempotency key in, the answer that the first of them got out."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from app.web.problems import Problem

KEPT = 1000
LONG = 24 * 3600.0
"""Seconds that an answer is kept."""


@dataclass
class _Entry:
    digest: bytes
    at: float
    answer: Response | None = None


class Answers:
    """Answers by key, in bounded memory. Used from one event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], _Entry] = OrderedDict()

    async def once(
        self, who: str, key: str | None, asked: bytes, do: Callable[[], Awaitable[Response]]
    ) -> tuple[Response, bool]:
        """(the answer, whether it is one from before). `asked` is everything that was asked, `who` by whom.

        Problem 422 when the key was used for something else, 409 while the first is still being done. What was refused
        is not kept: it may be possible a moment later.
        """
        if key is None:
            return await do(), False
        digest = hashlib.blake2b(asked, digest_size=16).digest()
        found = self._kept.get((who, key))
        if found is not None and time.monotonic() - found.at < LONG:
            if found.digest != digest:
                raise Problem(422, "this idempotency key was used for another request")
            if found.answer is None:
                raise Problem(409, "the first request with this idempotency key is still being done")
            return found.answer, True
        entry = self._kept[who, key] = _Entry(digest, time.monotonic())
        try:
            entry.answer = await do()
        except BaseException:
            self._kept.pop((who, key), None)
            raise
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return entry.answer, False
