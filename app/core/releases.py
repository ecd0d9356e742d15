"""Release ranges in, the range that all of them allow out."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=256)
def common_releases(ranges: tuple[str, ...]) -> str | None:
    """The narrowest range inside all of `ranges` (PEP 440, lower `>=` and upper `<` bounds), or None.

    None where there are no ranges, and where they contradict each other: a build between releases prints lines of both.
    """
    from packaging.version import Version

    low: str | None = None
    high: str | None = None
    for one in ",".join(ranges).split(","):
        bound = one.strip()
        if bound.startswith(">="):
            low = bound[2:].strip() if low is None or Version(bound[2:]) > Version(low) else low
        elif bound.startswith("<") and not bound.startswith("<="):
            high = bound[1:].strip() if high is None or Version(bound[1:]) < Version(high) else high
    if low is not None and high is not None and Version(low) >= Version(high):
        return None
    parts = [part for part in (low and f">={low}", high and f"<{high}") if part]
    return ",".join(parts) or None
