"""Events: what happens to a peer, as the engine sees it. Each world turns its inputs into these. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coordinator_free_bootstrap.errors import Refusal
from peer.core.arrivals import Arrival
from peer.core.decisions import AlgorithmState
from peer.core.effects import WorkKind
from peer.core.messages import Heartbeat, Hello, Pass, Select, Statistics, SumMessage


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of a `SetTimer` has come or passed."""


@dataclass(frozen=True, slots=True)
class HandshakeDone:
    """A handshake with a neighbor is complete and all digests agree.

    ``answered``: the neighbor answered our hello, so messages pass in both directions.
    """

    hello: Hello
    answered: bool


@dataclass(frozen=True, slots=True)
class HandshakeFailed:
    """A neighbor refused our hello, or did not answer it: then ``why`` is a sentence.

    ``round_index``: of a neighbor that refused it, as its own hello says.
    """

    neighbor: int
    why: Refusal | str
    round_index: int = 0


@dataclass(frozen=True, slots=True)
class HelloRefused:
    """We refused a neighbor's hello."""

    neighbor: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class IncarnationRaised:
    """A neighbor knew a higher incarnation of this peer, whose disk was lost; this is the new one, already on disk."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A neighbor sent a heartbeat, or a frame of a model that stands for one."""

    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class SelectReceived:
    """A neighbor said what it selected for a round."""

    select: Select


@dataclass(frozen=True, slots=True)
class PassReceived:
    """A neighbor sends no (more) models in a step."""

    message: Pass


@dataclass(frozen=True, slots=True)
class StatisticsReceived:
    """A neighbor sent the numbers of sites, for shared scaling."""

    message: Statistics


@dataclass(frozen=True, slots=True)
class SumReceived:
    """A neighbor sent what opens its secure sum, or ours."""

    message: SumMessage


@dataclass(frozen=True, slots=True)
class ArrivalOffered:
    """A neighbor sent a model's header; no payload byte is read yet."""

    arrival: Arrival


@dataclass(frozen=True, slots=True)
class ArrivalComplete:
    """An arrival is complete, of the right size, with the right digest, and passed screening."""

    arrival: Arrival


@dataclass(frozen=True, slots=True)
class ArrivalLost:
    """A push ended without a model to fold; its bytes are discarded.

    ``refusal``: the model was complete and failed screening. Its sender knows, and does not retry.
    ``stalled``: the transfer stopped, or was too slow.
    """

    arrival: Arrival
    refusal: Refusal | None = None
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class ArrivalFolded:
    """A `FoldArrival` is done."""

    arrival: Arrival


@dataclass(frozen=True, slots=True)
class SendAnswered:
    """A neighbor took the control message or push in flight (``refusal`` None), or refused it."""

    neighbor: int
    refusal: Refusal | None = None
    size_bytes: int | None = None  # of the payload, if it differs from that of the header in flight


@dataclass(frozen=True, slots=True)
class SendFailed:
    """The message in flight did not reach the neighbor, or no answer came back."""

    neighbor: int
    reason: str


@dataclass(frozen=True, slots=True)
class SendStalled:
    """A push to a live neighbor was given up after a long silence; it is sent again."""

    neighbor: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """A neighbor acknowledged a heartbeat (``refusal`` None), refused it, or did not answer (``lost``)."""

    neighbor: int
    refusal: Refusal | None = None
    lost: bool = False
    moving: bool = False  # model bytes went to this neighbor meanwhile; the heartbeat may wait behind them


@dataclass(frozen=True, slots=True)
class WorkDone:
    """A piece of tensor work is done. ``state`` replaces the algorithm's state; ``metrics`` go into the round's record."""

    kind: WorkKind
    state: AlgorithmState
    metrics: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PullDone:
    """A pull from a neighbor ended: its models are stored with the host, or it failed."""

    neighbor: int
    complete: bool
    round_index: int = 0  # the neighbor's round when it answered
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A checkpoint is safe on disk (``error`` empty), or could not be written."""

    round_index: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The operator asked this peer to stop."""


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """The operator gave this peer another graph file: it stops between two rounds to take it, in ``from_round`` or later."""

    from_round: int = 0
    removed: bool = False  # the file is without this peer, which ends


Event = (
    Tick
    | HandshakeDone
    | HandshakeFailed
    | HelloRefused
    | IncarnationRaised
    | HeartbeatReceived
    | SelectReceived
    | PassReceived
    | StatisticsReceived
    | SumReceived
    | ArrivalOffered
    | ArrivalComplete
    | ArrivalLost
    | ArrivalFolded
    | SendAnswered
    | SendFailed
    | SendStalled
    | HeartbeatAnswered
    | WorkDone
    | PullDone
    | CheckpointWritten
    | LeaveRequested
    | ChangeRequested
)
