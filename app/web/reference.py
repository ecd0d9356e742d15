"""The OpenAPI document in, one page for people out: every route with what it takes, a line to try it, and what it answers.

No scripts and nothing from elsewhere, so that it works offline, below any path and in any browser.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

METHODS = ("get", "post", "put", "patch", "delete")


def reference(document: Mapping[str, Any], base: str) -> str:
    """The page. `base` is the address that the routes are asked under, for the lines to try."""
    return "".join(_page(document, base.rstrip("/")))


def _page(document: Mapping[str, Any], base: str) -> Iterator[str]:
    info = document["info"]
    groups: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                groups.setdefault((methods[method].get("tags") or ["more"])[0], []).append(
                    (path, method, methods[method])
                )
    yield "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    yield "<title>bringup API</title><link rel=icon href='page/icon.svg'><link rel=stylesheet href='page/reference.css'><main>"
    yield f"<h1>The API of bringup {html.escape(info['version'])}</h1>{_text(info['description'])}"
    yield "<p><a href='openapi.json'>openapi.json</a> is the same for programs, <a href='./'>the page</a> is a client of it.</p>"
    yield "<nav aria-label=Routes><ul>"
    for group in groups.values():
        for path, method, _ in group:
            yield f"<li><a href='#{_anchor(path, method)}'><code>{method.upper()} {html.escape(path)}</code></a>"
    yield "</ul></nav>"
    for name, group in groups.items():
        yield f"<h2>{html.escape(name.capitalize())}</h2>"
        for path, method, operation in group:
            yield from _operation(path, method, operation, document, base)
    yield "</main></html>"


def _operation(
    path: str, method: str, operation: Mapping[str, Any], document: Mapping[str, Any], base: str
) -> Iterator[str]:
    yield f"<h3 id='{_anchor(path, method)}'><code><b>{method.upper()}</b> {html.escape(path)}</code></h3>"
    yield _text(operation.get("description", ""))
    if rows := list(_takes(operation, document)):
        yield "<div class=scroll tabindex=0 role=region aria-label='What it takes'><table>"
        for name, kind, about in rows:
            yield f"<tr><th scope=row><code>{html.escape(name)}</code><td class=soft>{html.escape(kind)}<td>{_code(about)}"
        yield "</table></div>"
    for line in lines_to_try(path, method, operation, document, base):
        yield f"<pre tabindex=0 aria-label='A line to try'>{html.escape(line)}</pre>"
    for status, answer in sorted(operation["responses"].items()):
        content = answer.get("content") or {}
        if status < "300" and "application/json" in content:
            shown = example(content["application/json"].get("schema", {}), document)
            if shown not in (None, {}):
                yield f"<details><summary>An answer ({status})</summary><pre tabindex=0 aria-label='An answer'>"
                yield f"{html.escape(json.dumps(shown, indent=2, ensure_ascii=False))}</pre></details>"
    yield "<p class=soft>Answers: "
    yield html.escape("; ".join(f"{status} {_what(each)}" for status, each in sorted(operation["responses"].items())))
    yield "</p>"


def _what(answer: Mapping[str, Any]) -> str:
    return "as asked" if answer["description"] == "Successful Response" else str(answer["description"])


def _takes(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, where and what it is, what it means) of every parameter, and of every member of a JSON body."""
    for each in operation.get("parameters", ()):
        schema = each["schema"]
        needed = ["needed"] if each.get("required") else []
        words = [each["in"], _kind(schema, document), *needed, *_default(schema)]
        yield each["name"], ", ".join(words), each.get("description") or schema.get("description", "")
    body = ((operation.get("requestBody") or {}).get("content") or {}).get("application/json") or {}
    for name, schema in _resolved(body.get("schema", {}), document).get("properties", {}).items():
        words = ["body", _kind(schema, document), *_default(schema)]
        yield name, ", ".join(words), schema.get("description", "")


def _default(schema: Mapping[str, Any]) -> list[str]:
    known = schema.get("default") not in (None, [], {}, ())
    return [f"{json.dumps(schema['default'])} unless told"] if known else []


def lines_to_try(
    path: str, method: str, operation: Mapping[str, Any], document: Mapping[str, Any], base: str
) -> Iterator[str]:
    """curl lines that ask this route, one for each example of its body."""
    query: list[tuple[str, str]] = []
    for each in operation.get("parameters", ()):
        given = _given(each)
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", quote(str(given if given is not None else each["name"])))
        elif each["in"] == "query" and given is not None:
            query.append((each["name"], str(given)))
    url = base + path + (f"?{urlencode(query)}" if query else "")
    quiet = ["-N"] if "text/event-stream" in (operation["responses"].get("200", {}).get("content") or {}) else []
    content = (operation.get("requestBody") or {}).get("content") or {}
    if "application/octet-stream" in content:
        yield shlex.join(["curl", url, "--data-binary", "@server.log"])
    elif "application/json" in content:
        schema = content["application/json"].get("schema", {})
        for body in _bodies(schema, document):
            yield shlex.join(["curl", url, "--json", json.dumps(body)])
    elif method == "get":
        yield shlex.join(["curl", *quiet, url])
    else:
        yield shlex.join(["curl", "-X", method.upper(), url])


def _bodies(schema: Mapping[str, Any], document: Mapping[str, Any]) -> list[Any]:
    found = _resolved(schema, document)
    return list(found.get("examples") or [{}])


def _given(parameter: Mapping[str, Any]) -> Any:
    """The example of a parameter; None for one without."""
    for found in (parameter.get("example"), parameter["schema"].get("examples")):
        if found is not None:
            return found[0] if isinstance(found, list) else found
    return None


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema without references, and of several the first that is not null."""
    while "$ref" in schema or "anyOf" in schema:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        else:
            schema = next((each for each in schema["anyOf"] if each.get("type") != "null"), {})
    return schema


def example(schema: Mapping[str, Any], document: Mapping[str, Any], depth: int = 0) -> Any:
    """A value that fits a schema: its own example where it has one."""
    if schema.get("examples"):
        return schema["examples"][0]
    if "default" in schema and schema["default"] not in ([], {}):
        return schema["default"]
    schema = _resolved(schema, document)
    if schema.get("examples"):
        return schema["examples"][0]
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return {} if depth > 4 else {
            name: example(inner, document, depth + 1) for name, inner in schema.get("properties", {}).items()
        }  # fmt: skip
    if kind == "array":
        inner = example(schema.get("items", {}), document, depth + 1)
        return [] if inner in (None, {}) else [inner]
    return {"string": "…", "integer": 1, "number": 1.5, "boolean": False}.get(str(kind))


def _kind(schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """What a parameter is, in a word or two."""
    found = _resolved(schema, document)
    if found.get("type") == "array":
        return f"any number of {_kind(found.get('items', {}), document)}"
    words = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "object": "values by name",
    }
    low, high = found.get("minimum"), found.get("maximum")
    bounds = [f" from {low:g}"] if low is not None else []
    bounds += [f" to {high:g}"] if high is not None and high < 1e9 else []
    return words.get(found.get("type", ""), "any") + "".join(bounds)


def _anchor(path: str, method: str) -> str:
    return method + re.sub(r"[^a-z0-9]+", "-", path.lower()).rstrip("-")


def _text(text: str) -> str:
    """Paragraphs."""
    return "".join(f"<p>{_code(part)}</p>" for part in text.split("\n\n") if part.strip())


def _code(text: str) -> str:
    """A text for the page; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
