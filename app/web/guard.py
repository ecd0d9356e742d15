"""Every request in; it goes on only from a host, an origin, an address and a holder that may, with a body that is not
too large. What may not is answered here, and nothing behind it runs."""

from __future__ import annotations

from math import ceil
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web import page
from app.web.access import Access, Buckets
from app.web.problems import Problem, problem

OPEN = {"/healthz", "/readyz", "/startupz", "/docs", "/openapi.json", *page.FILES}
"""What tells nothing about a target, and is asked by what has no token."""
CONTROLLED = ("/api/audit",)
"""What only a holder of the control token may read."""
EXPLAIN = "/api/explain"
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class Guard:
    """ASGI middleware. `scope["who"]` is then (name, address) of who asks."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access
        self.buckets = Buckets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        refused = self._refused(scope, headers)
        if refused is not None:
            await problem(refused.status_code, refused.detail, refused.headers)(scope, receive, send_safe)
            return
        limit = self.access.explain if scope["path"] == EXPLAIN else self.access.body
        try:
            await self.app(scope, _bounded(receive, limit), send_safe)
        except Problem as error:  # raised behind the application's own handlers
            await problem(error.status_code, error.detail, error.headers)(scope, receive, send_safe)

    def _refused(self, scope: Scope, headers: Headers) -> Problem | None:
        access, path = self.access, scope["path"]
        writes = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if not access.knows_host(headers.get("host")):
            return Problem(403, "this service does not answer under that name; `hosts` lists those that it does")
        if writes and (reason := _foreign(headers)):
            return Problem(403, reason)
        address = scope["client"][0] if scope.get("client") else ""
        if path in OPEN and not writes:
            scope["who"] = ("anybody", address)
            return None
        rates = access.rates
        if pause := self.buckets.wait("denied", address, rates.denied, take=False):
            return _later(pause)
        who = access.who(headers.get("authorization"))
        if who is None:
            self.buckets.wait("denied", address, rates.denied)
            return Problem(401, "send `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"})
        kind = "explain" if path == EXPLAIN else "write" if writes else "read"
        rate = {"explain": rates.explain, "write": rates.write, "read": rates.read}[kind]
        if pause := self.buckets.wait(kind, address, rate):
            return _later(pause)
        name, role = who
        if role != "control" and ((writes and path != EXPLAIN) or path in CONTROLLED):
            return Problem(403, f"the token {name!r} may only read")
        scope["who"] = (name, address)
        length = headers.get("content-length", "")
        limit = access.explain if path == EXPLAIN else access.body
        if length.isdecimal() and int(length) > limit:
            return Problem(413, f"the body has {int(length)} bytes, at most {limit} are taken")
        return None


def _later(pause: float) -> Problem:
    return Problem(429, f"ask again in {ceil(pause)} s", {"retry-after": str(ceil(pause))})


def _foreign(headers: Headers) -> str | None:
    """Why a write comes from another site's page; None when it does not."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != (headers.get("host") or "").strip().lower():
        return "a page of another origin asked for this"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "a page of another site asked for this"
    return None


def _bounded(receive: Receive, limit: int) -> Receive:
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise Problem(413, f"the body has more than {limit} bytes")
        return message

    return bounded
