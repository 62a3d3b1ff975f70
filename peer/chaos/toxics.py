"""What may happen to the bytes that flow from one peer to another, and the proof that it did.

The words are toxiproxy's: latency, jitter, bandwidth, black hole, reset, cut after n bytes (limit data), slicing. Pure but
for its random generator, which is seeded for each direction.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field


class Toxics(BaseModel):
    """Faults of one direction of one edge; the defaults are none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    latency_ms: float = Field(0.0, ge=0, le=60_000, description="added to every chunk of bytes")
    jitter_ms: float = Field(0.0, ge=0, le=60_000, description="uniform, up to this much more or less; order is kept")
    bandwidth_kb_s: float | None = Field(None, gt=0, description="thousand bytes a second")
    slice_bytes: int | None = Field(None, ge=1, description="pass on at most this many bytes at a time")
    black_hole: bool = Field(False, description="bytes stop, connections stay: a cable is pulled; they flow on later")
    reset: bool = Field(False, description="connections are reset, new ones refused")
    cut_after_bytes: int | None = Field(
        None, ge=0, description="once, a connection is reset after this many more bytes"
    )

    @property
    def is_clean(self) -> bool:
        """Whether bytes flow as if no proxy were there."""
        return self == Toxics()

    def merged(self, other: Toxics) -> Self:
        """Return these toxics with what ``other`` sets explicitly on top."""
        return self.model_copy(update=other.model_dump(exclude_unset=True))


@dataclass
class Counters:
    """What has happened to one direction of one edge; each fault has a number that proves that it fired."""

    bytes_passed: int = 0
    connections: int = 0
    delayed: int = 0  # chunks that waited for latency or jitter
    throttled: int = 0  # chunks that waited for bandwidth
    sliced: int = 0  # chunks that were passed on in slices
    held: int = 0  # chunks or connections that met a black hole
    resets: int = 0  # connections that were reset
    refused: int = 0  # connections that were refused
    cuts: int = 0  # connections that ended after n bytes

    def as_dict(self) -> dict[str, int]:
        """Return JSON values."""
        return asdict(self)

    def __iadd__(self, other: Counters) -> Self:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self
