"""The limits of the wire: what a peer takes from its callers."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator_free_bootstrap.manifest import Limits, Manifest
from coordinator_free_bootstrap.rates import FRAME_BYTES_MAX


@dataclass(frozen=True)
class WireLimits:
    """The limits of one server or link. All but the size of a model are the same in every run; tests and benchmarks vary them.

    Attributes:
        frame_bytes_max: payload bytes in one frame.
        streams_per_neighbor: open pushes, pulls and watches of one caller.
        requests_per_second: messages of one caller; `peer.wire.access.BURST_S` seconds of them may come at once.
        model_bytes_max: encoded bytes of one model, ``run.limits.model_bytes_max``.
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    streams_per_neighbor: int = 8
    requests_per_second: float = 200.0
    model_bytes_max: int = Limits().model_bytes_max

    @classmethod
    def of(cls, manifest: Manifest) -> WireLimits:
        """Return the limits of a run."""
        return cls(model_bytes_max=manifest.limits.model_bytes_max)
