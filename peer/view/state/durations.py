"""Durations as text."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a duration in words: ``42 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = round(seconds)
    for size, unit, part, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"
