"""What went wrong in, an RFC 9457 problem (application/problem+json) out; and what each status means, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.turning import REFUSED, Refusal

TYPE = "application/problem+json"
TITLES = {
    400: "This is no request that can be read",
    401: "A token is needed",
    403: "This token, host or origin may not do that",
    404: "There is no such thing",
    405: "This cannot be asked in that way",
    408: "The body came too slowly",
    409: "Not in this state",
    412: "Meant for another run or attempt",
    413: "The body is too large",
    415: "The body is of the wrong type",
    422: "What was asked is not valid",
    429: "Too many requests",
    500: "bringup failed",
    503: "Not now",
}


class ProblemOut(BaseModel):
    """RFC 9457. More members may say more (`errors`, `reasons`, `remedies`, `rule`)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Not in this state"])
    status: int = Field(examples=[409])
    detail: str = Field(examples=["server runs already; ask for a restart"])


class Problem(HTTPException):
    """A problem to answer with. `more` are further members."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(status, detail, dict(headers) if headers else None)
        self.more = more


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """The answer itself."""
    body = {"type": "about:blank", "title": TITLES.get(status, "Failed"), "status": status, "detail": detail, **more}
    return Response(json.dumps(body), status, headers, TYPE)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these problems, besides those that any route may."""
    always = (400, 401, 403, 429)
    schema = {"schema": {"$ref": "#/components/schemas/ProblemOut"}}
    return {
        status: {"description": TITLES[status], "content": {TYPE: schema}} for status in sorted({*always, *statuses})
    }


def install(app: FastAPI) -> None:
    """Every error of an application becomes a problem."""

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        more = error.more if isinstance(error, Problem) else {}
        return problem(error.status_code, error.detail, error.headers, **more)

    @app.exception_handler(Refusal)
    async def refusal(_: Request, error: Refusal) -> Response:
        return problem(REFUSED[error.kind], str(error), **error.more)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        errors = [
            {"where": ".".join(str(part) for part in row["loc"]), "reason": row["msg"]} for row in error.errors()[:20]
        ]
        unread = any(row["type"] == "json_invalid" for row in error.errors())
        return problem(400 if unread else 422, "; ".join(f"{e['where']}: {e['reason']}" for e in errors), errors=errors)

    @app.exception_handler(Exception)
    async def failed(_request: Request, _error: Exception) -> Response:
        return problem(500, "this is a fault of bringup; its own log says more")
