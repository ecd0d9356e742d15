"""The files in app/web/page/ in, the routes that serve them out: the page at `/`, its modules and styles at `/page/…`.

The page is an API client like any other: it is the same for everybody, holds nothing, and needs no token itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
FILES = {
    "/" if path.name == "index.html" else f"/page/{path.name}": path
    for path in sorted(FOLDER.iterdir())
    if path.suffix in KINDS
}
"""Every path that is served, and its file: nothing else is looked up on the disk."""


def routes() -> APIRouter:
    """One route for each file."""
    router = APIRouter()
    for path, file in FILES.items():
        router.add_api_route(path, _given(file), methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _given(file: Path) -> Callable[[], Awaitable[Response]]:
    async def give() -> Response:
        headers = {
            "content-security-policy": POLICY,
            "cache-control": "no-cache",
            "cross-origin-opener-policy": "same-origin",
        }
        return Response(file.read_bytes(), media_type=KINDS[file.suffix], headers=headers)

    return give
