"""What peers say to each other, as plain values. `peer.wire` turns them into protobuf and back; the engine reads only these.

Every field from a neighbor is a claim: `peer.core.screening` and the engine check it before anything changes. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coordinator_free_bootstrap.errors import Refusal

WIRE_VERSION = 1


class Phase(StrEnum):
    """What a peer is doing, as it tells its neighbors and observers."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"  # all rounds done; still answers until its neighbors have finished too
    LEAVING = "leaving"  # asked to stop; will not come back in this incarnation


@dataclass(frozen=True, slots=True)
class Hello:
    """The handshake: who I am and what I agree to. A mismatch of any digest is refused with both values.

    ``values`` holds what digests stand for, in words, so that a refusal can name the keys that differ
    (``{"run.clusters": "2", ...}`` of the manifest).
    """

    sender: int
    incarnation: int
    wire_version: int
    manifest_digest: str
    graph_digest: str
    schema_digest: str
    initial_models_digest: str  # "" where each peer draws its own (LI)
    round_index: int  # the round it is in; rounds_total when finished
    phase: Phase
    manifest: str  # canonical JSON, for the named diff
    seen_incarnation: int = 0  # the last incarnation of the receiver that the sender knew before this handshake


@dataclass(frozen=True, slots=True)
class HelloReply:
    """Answer to a hello: the other side's own hello, or a refusal in words."""

    hello: Hello
    refusal: Refusal | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life: sent when nothing else was said to a neighbor for a heartbeat interval."""

    sender: int
    incarnation: int
    round_index: int
    persisted_round: int  # rounds completed and safe on disk; snapshots before it need not be kept for this neighbor
    phase: Phase


@dataclass(frozen=True, slots=True)
class Announce:
    """What the sender will deliver to this neighbor in one exchange step; ``total = 0`` passes.

    ``selected`` is the cluster selected for the round where the algorithm says so before training (FedSPD), else -1.
    ``scalars`` are the algorithm's own numbers.
    """

    sender: int
    incarnation: int
    round_index: int
    step: int
    total: int  # -1: not known yet (announced before training)
    selected: int = -1
    scalars: tuple[float, ...] = ()
    sketch: bytes = b""  # label alignment: float32 little-endian, at most limits' sketch size


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """The first message of a push or pull: everything the receiver checks before the first payload byte."""

    sender: int
    incarnation: int
    round_index: int
    step: int
    slot: int
    index: int  # this model is number `index` of `total` from this sender in this step
    total: int
    sample_count: int
    degree: int  # of the sender, for Metropolis weights
    mass: float  # relay weight (DFCA warm-up); 1 elsewhere
    scalars: tuple[float, ...]
    size_bytes: int  # encoded payload
    encoding: str

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        """(sender, incarnation, round, step, slot): an arrival with the same key is folded at most once."""
        return (self.sender, self.incarnation, self.round_index, self.step, self.slot)


class Outcome(StrEnum):
    """What became of a complete push; travels back in the reply. Duplicate and stale are outcomes, not errors."""

    FOLDED = "folded"
    DUPLICATE = "duplicate"
    STALE = "stale"
    UNUSED = "unused"  # complete and valid, but not wanted any more (its receiver has closed the round)
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PushReply:
    """The receiver's answer to one push."""

    outcome: Outcome
    refusal: Refusal | None = None
    reason: str = ""
