"""The messages between peers as plain values. `peer.wire` converts them to and from protobuf; the engine sees only these.

Every field that a neighbor sends is a claim. The engine and `peer.core.averaging` check it before anything changes. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.handshake import Introduction

WIRE_VERSION = 5


class Phase(StrEnum):
    """What a peer is doing, as sent to its neighbors and observers."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"  # all rounds done; still answers until its neighbors have finished too
    LEAVING = "leaving"  # asked to stop; does not return in this incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Introduction):
    """The handshake message: the sender's identity, what it agrees to, and where it stands."""

    round_index: int  # the round the sender is in; the number of rounds when it has finished
    phase: Phase
    seen_incarnation: int = 0  # the receiver's last incarnation that the sender knows


@dataclass(frozen=True, slots=True)
class HelloReply:
    """Answer to a hello: the receiver's own hello, and the refusal if it does not accept the sender's.

    ``cannot_dial``: the receiver's own hellos do not reach the sender, which should offer it a tunnel.
    """

    hello: Hello
    refusal: Refusal | None = None
    cannot_dial: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent to a neighbor when nothing else was sent to it for `timeouts.heartbeat_s`."""

    sender: int
    incarnation: int
    round_index: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Select:
    """What the sender selected for a round, sent before it trains; the algorithm defines the content.

    Each neighbor gets the same selection, but for ``declines``. ``selected`` is a cluster, or -1 for none. ``scalars`` are finite
    numbers.
    """

    sender: int
    incarnation: int
    round_index: int
    selected: int = -1
    scalars: tuple[float, ...] = ()
    sketch: bytes = b""  # finite float32 values, little-endian; the wire allows up to 1 MiB
    declines: bool = False  # the sender takes no model from this receiver in this round

    @property
    def step(self) -> int:
        """A selection belongs to the round's first exchange step."""
        return 0


@dataclass(frozen=True, slots=True)
class Pass:
    """The sender sends this neighbor no (more) models in one exchange step; it may carry numbers in their place.

    ``scalars`` are finite numbers that the algorithm defines.
    """

    sender: int
    incarnation: int
    round_index: int
    step: int
    scalars: tuple[float, ...] = ()


Control = Select | Pass


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """The first message of a push or pull: everything that the receiver checks before the first payload byte."""

    sender: int
    incarnation: int
    round_index: int
    step: int
    slot: int
    index: int  # this model is number `index` of `total` from this sender in this step
    total: int
    sample_count: int
    mass: float  # weight of a relayed model (DFCA warm-up); 1 elsewhere
    scalars: tuple[float, ...]
    size_bytes: int  # encoded payload
    encoding: str
    base: int = 0  # name of the model that a delta starts from; 0: the payload is a whole model

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        """(sender, incarnation, round, step, slot): an arrival with the same key is folded at most once."""
        return (self.sender, self.incarnation, self.round_index, self.step, self.slot)


class Outcome(StrEnum):
    """What the receiver did with a push that it did not refuse. Duplicate and stale are outcomes, not errors."""

    FOLDED = "folded"
    DUPLICATE = "duplicate"
    STALE = "stale"
    UNUSED = "unused"  # complete and valid, but its receiver has closed the round


PushReply = Outcome | Refusal  # the receiver's answer to one push


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A peer that catches up asks a neighbor for the current model of one slot."""

    sender: int
    incarnation: int
    slot: int
