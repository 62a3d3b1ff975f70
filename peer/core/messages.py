"""The messages between peers as plain values. `peer.wire` converts them to and from protobuf; the engine sees only these.

Every field that a neighbor sends is a claim. The engine and `peer.core.averaging` check it before anything changes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.handshake import Introduction

WIRE_VERSION = 5
NUMBERS_MAX = 300_000  # in a selection or a pass
NO_ROUND = 2**62  # above all rounds
HEADER_NUMBERS_MAX = 4096  # in a header, which stays in its receiver's memory while the model waits


class Phase(StrEnum):
    """What a peer is doing, as sent to its neighbors and observers."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"  # all rounds done; still answers until its neighbors have finished too
    LEAVING = "leaving"  # asked to stop; does not return in this incarnation


@dataclass(frozen=True, slots=True, repr=False)
class Numbers:
    """Numbers that an algorithm sends with a selection, with a model, or in place of models: float64, a sequence of floats.

    >>> degree_and_sketch = Numbers.of(2, [0.5, -0.25])
    >>> degree_and_sketch[0], degree_and_sketch.array[1:]
    (2.0, array([ 0.5 , -0.25]))
    """

    data: bytes = b""  # little-endian

    @classmethod
    def of(cls, *parts: npt.ArrayLike) -> Numbers:
        """Return the elements of numbers and arrays, one after the other."""
        return cls(b"".join(np.asarray(part, "<f8").tobytes() for part in parts))

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """All of them, float64 [n], read-only."""
        return np.frombuffer(self.data, "<f8")

    def __len__(self) -> int:
        return len(self.data) // 8

    def __getitem__(self, index: int) -> float:
        return float(self.array[index])

    def __iter__(self) -> Iterator[float]:
        return iter(self.array.tolist())

    @override
    def __repr__(self) -> str:
        more = f", ... {len(self)} in all" if len(self) > 8 else ""
        return f"({', '.join(f'{number:g}' for number in self.array[:8])}{more})"


NO_NUMBERS = Numbers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Introduction):
    """The handshake message: the sender's identity, what it agrees to, and where it stands."""

    round_index: int  # the round the sender is in; the number of rounds when it has finished
    phase: Phase
    seen_incarnation: int = 0  # the receiver's last incarnation that the sender knows
    sum_key: bytes = b""  # the sender's signed key of secure sums (`peer.core.sums`)


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
    """Sent to a neighbor when nothing else was sent to it for a heartbeat interval (`Timeouts.heartbeat_s`)."""

    sender: int
    incarnation: int
    round_index: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Select:
    """What the sender selected for a round, sent before it trains; the algorithm defines the content.

    Each neighbor gets the same selection, but for ``declines``. ``selected`` is a cluster, or -1 for none.
    """

    sender: int
    incarnation: int
    round_index: int
    selected: int = -1
    numbers: Numbers = NO_NUMBERS
    declines: bool = False  # the sender takes no model from this receiver in this round
    roster: bytes = b""  # the peers of the sender's secure sum, with their signed keys

    @property
    def step(self) -> int:
        """A selection belongs to the round's first exchange step."""
        return 0


@dataclass(frozen=True, slots=True)
class Pass:
    """The sender sends this neighbor no (more) models in one exchange step; it may carry numbers in their place."""

    sender: int
    incarnation: int
    round_index: int
    step: int
    numbers: Numbers = NO_NUMBERS


@dataclass(frozen=True, slots=True)
class Statistics:
    """The numbers of sites that the sender knows: for each site its peer id, then its numbers (`peer.core.agreement`)."""

    sender: int
    incarnation: int
    numbers: Numbers

    @property
    def round_index(self) -> int:
        """It belongs to no round, so no end of one makes it obsolete."""
        return NO_ROUND

    @property
    def step(self) -> int:
        """It belongs to no step."""
        return 0


class Opening(StrEnum):
    """What opens a secure sum, in the order of the messages (`peer.core.sums`)."""

    MEMBERS = "members"
    AGREES = "agrees"
    AGREED = "agreed"
    REVEALS = "reveals"


@dataclass(frozen=True, slots=True)
class SumMessage:
    """A message that opens the secure sum of its sender or its receiver; ``data`` begins with the tag of the sum's roster."""

    sender: int
    incarnation: int
    round_index: int
    kind: Opening
    data: bytes

    @property
    def step(self) -> int:
        """Rounds with sums have one step."""
        return 0

    @property
    def numbers(self) -> Numbers:
        """It has none of an algorithm."""
        return NO_NUMBERS


Control = Select | Pass | Statistics | SumMessage


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
    size_bytes: int  # encoded payload
    encoding: str
    base: int = 0  # name of the model that a delta starts from; 0: the payload is a whole model
    numbers: Numbers = NO_NUMBERS
    shares: bytes = b""  # of a masked model: shares of its sender's self mask, sealed for others

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
