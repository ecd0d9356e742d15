"""Text in, the same text with secrets masked out: for everything that leaves the process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MASK = "***"
_SECRETS = re.compile(
    r"(?P<flag>--(?:admin-)?(?:api-key|ssl-keyfile-password|hf-token|token)(?:[= ]+))(?P<a>[^\s'\"]+)"
    r"|(?P<name>\b(?:(?:admin_)?api_key|ssl_keyfile_password|hf_token|password|secret|access_token|auth_token)['\"]?\s*[=:]\s*['\"]?)(?!None\b|null\b|Token\b)(?P<b>[^\s'\",)}]{4,})"
    r"|(?P<env>\b[A-Z][A-Z0-9_]*(?:_TOKEN|_KEY|_SECRET|_PASSWORD)=)(?P<c>[^\s'\"]+)"
    r"|(?P<url>\b[a-z][a-z0-9+.-]{1,20}://[^/\s:@'\"]{1,100}:)(?P<d>[^@\s/'\"]{1,200})(?=@)"
    r"|(?P<bearer>\b[Bb]earer )(?P<e>[\w.~+/-]{8,}=*)"
    r"|(?P<hf>\bhf_)(?P<f>[A-Za-z0-9]{20,})"
    r"|(?P<sk>\bsk-)(?P<g>[A-Za-z0-9_-]{16,})"
    r"|(?P<aws>\bAKIA)(?P<h>[A-Z0-9]{16})"
    r"|(?P<gh>\bgh[pousr]_)(?P<i>[A-Za-z0-9]{20,})"
)


def mask(text: str) -> str:
    """`text` with API keys, tokens and passwords replaced by ***, the part that tells what it was left in place."""
    return _SECRETS.sub(lambda found: next(filter(None, found.groups()[::2]), "") + MASK, text)


_SECRET_FLAG = re.compile(r"--?[\w-]*(?:api[-_]key|[-_]token|password|secret)\Z|--?token\Z", re.IGNORECASE)


def mask_argv(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets: those within a word, and those that follow their flag."""
    shown = [mask(word) for word in argv]
    for place in range(1, len(argv)):
        if _SECRET_FLAG.match(argv[place - 1]) and not argv[place].startswith("-"):
            shown[place] = MASK
    return shown


def mask_json(value: Any) -> Any:
    """A JSON value with every text in it masked."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {name: mask_json(inner) for name, inner in value.items()}
    return [mask_json(inner) for inner in value] if isinstance(value, list | tuple) else value
