"""Toxics: faults of the bytes from one peer to another, and counters that prove that each of them occurred. Pure.

The terms are those of toxiproxy (https://github.com/Shopify/toxiproxy).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

Direction = tuple[int, int]  # bytes from the first peer to the second


class Toxics(BaseModel):
    """Faults of one direction of one edge; the default is no fault."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    latency_ms: float = Field(0.0, ge=0, le=60_000, description="delay of every chunk of bytes")
    jitter_ms: float = Field(
        0.0, ge=0, le=60_000, description="uniform, added to or subtracted from the latency; order is kept"
    )
    bandwidth_kb_s: float | None = Field(None, gt=0, description="1,000 bytes per second")
    slice_bytes: int | None = Field(None, ge=1, description="forward at most this many bytes at a time")
    black_hole: bool = Field(False, description="bytes wait, connections stay open, as with a pulled cable")
    reset: bool = Field(False, description="open connections are reset, new ones refused")
    cut_after_bytes: int | None = Field(None, ge=0, description="reset one connection after this many bytes, once")

    @property
    def is_clean(self) -> bool:
        """Whether there is no fault."""
        return self == Toxics()


@dataclass
class Counters:
    """Counters of one direction of one edge, at least one for each toxic."""

    bytes_passed: int = 0
    connections: int = 0
    delayed: int = 0  # chunks delayed by latency or jitter
    throttled: int = 0  # chunks delayed by the bandwidth limit
    sliced: int = 0  # chunks forwarded in slices
    held: int = 0  # chunks or connections stopped by a black hole
    resets: int = 0  # connections that were reset
    refused: int = 0  # connections that were refused
    cuts: int = 0  # connections that cut_after_bytes reset

    def as_dict(self) -> dict[str, int]:
        """Return JSON values."""
        return asdict(self)

    def __iadd__(self, other: Counters) -> Self:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self
