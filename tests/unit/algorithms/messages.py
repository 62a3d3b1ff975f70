"""Valid messages for unit tests; a test changes single fields."""

from __future__ import annotations

from typing import Any

from peer.core.messages import WIRE_VERSION, Hello, ModelHeader, Phase, Select


def header(sender: int = 1, slot: int = 0, round_index: int = 3, **changes: Any) -> ModelHeader:
    """Return a valid header with changes."""
    fields: dict[str, Any] = dict(incarnation=1, step=0, index=0, total=1, sample_count=1, mass=1.0)
    return ModelHeader(
        sender=sender, slot=slot, round_index=round_index, size_bytes=4, encoding="float32", **(fields | changes)
    )


def selection(sender: int = 1, selected: int = 0, round_index: int = 3, **changes: Any) -> Select:
    """Return a valid selection with changes."""
    return Select(sender, 1, round_index, selected, **changes)


def hello_of(sender: int = 1, incarnation: int = 1, round_index: int = 0, **changes: Any) -> Hello:
    """Return a hello without digests, with changes."""
    fields: dict[str, Any] = dict(wire_version=WIRE_VERSION, manifest_digest="", graph_digest="", schema_digest="")
    fields |= dict(phase=Phase.RUNNING) | changes
    return Hello(sender=sender, incarnation=incarnation, round_index=round_index, **fields)
