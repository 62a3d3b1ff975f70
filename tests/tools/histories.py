"""Histories as tests look at them, often and while they grow: each call reads what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peer.view.state.tail import FileTail

_read: dict[Path, tuple[FileTail, list[dict[str, Any]]]] = {}


def lines_of(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the complete lines of a history, of one kind or all; [] if there is no file yet."""
    tail, lines = _read.setdefault(path, (FileTail(path), []))
    replaced = tail.replaced
    new = [line for piece in tail.records(lambda _: "") for line in piece]
    if tail.replaced > replaced:
        lines.clear()
    lines += new
    return [dict(line) for line in lines if kind is None or line["kind"] == kind]
