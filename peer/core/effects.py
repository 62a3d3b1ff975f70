"""Effects: what the engine wants done, in order. Each names the event that answers it. `peer.host` executes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from peer.core.arrivals import Arrival
from peer.core.messages import Control, Heartbeat, ModelHeader, Numbers, PushReply, Select

Status = Literal["completed", "left", "changed", "refused", "removed", "behind", "alone"]
WorkKind = Literal["assign", "train", "end_step", "close", "adopt", "final"]


@dataclass(frozen=True, slots=True)
class SendHello:
    """Send our hello to a neighbor -> `HandshakeDone` or `HandshakeFailed`."""

    neighbor: int


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Send a heartbeat -> `HeartbeatAnswered`."""

    neighbor: int
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a selection or a pass -> `SendAnswered` or `SendFailed`."""

    neighbor: int
    message: Control


@dataclass(frozen=True, slots=True)
class SendModel:
    """Push the snapshot (header.round_index, header.step, header.slot) -> `SendAnswered` or `SendFailed`."""

    neighbor: int
    header: ModelHeader


@dataclass(frozen=True, slots=True)
class CancelSend:
    """Give up the message in flight to a neighbor; no event answers."""

    neighbor: int


@dataclass(frozen=True, slots=True)
class RetryIfStalled:
    """Give up the push in flight if no byte has moved for ``quiet_s`` seconds -> `SendStalled`; otherwise do nothing."""

    neighbor: int
    quiet_s: float


@dataclass(frozen=True, slots=True)
class ReadArrival:
    """Read an offered model into a reserved buffer and screen it -> `ArrivalComplete` or `ArrivalLost`."""

    arrival: Arrival


@dataclass(frozen=True, slots=True)
class AnswerArrival:
    """Send the final answer to a push and forget it (unless a `FoldArrival` of it is still to be done)."""

    arrival: Arrival
    reply: PushReply


@dataclass(frozen=True, slots=True)
class Target:
    """Where an arrival is folded: a slot, and the arrival's weight there."""

    slot: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class FoldArrival:
    """Clip and fold a complete arrival -> `ArrivalFolded`. Without targets: keep it until the round closes."""

    arrival: Arrival
    targets: tuple[Target, ...]

    @property
    def header(self) -> ModelHeader:
        """Of the model."""
        return self.arrival.header


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Keep the slots' present models as this step's offers (see `Algorithm.outgoing`)."""

    round_index: int
    step: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropSnapshots:
    """Free the snapshots of rounds before this one."""

    before_round: int


@dataclass(frozen=True, slots=True)
class Work:
    """Run one piece of the algorithm's tensor work -> `WorkDone` of the same kind."""

    kind: WorkKind
    round_index: int
    step: int = 0
    active: bool = True  # whether this peer trains in this round
    present: tuple[int, ...] = ()  # neighbors that delivered or passed in the step being closed
    selections: tuple[Select, ...] = ()  # what neighbors selected, for "end_step" and "close"
    numbers: tuple[tuple[int, Numbers], ...] = ()  # neighbor and the numbers of its pass, for the same
    evaluate: bool = True
    absent: tuple[tuple[int, str], ...] = ()  # see `peer.core.model_tests`: in the last close, and in "final"


@dataclass(frozen=True, slots=True)
class Agree:
    """The numbers of all sites are known, by peer id, ascending: the host scales the inputs with them before any work."""

    numbers: tuple[tuple[int, Numbers], ...]


@dataclass(frozen=True, slots=True)
class Pull:
    """Fetch a neighbor's models, to catch up -> `PullDone`."""

    neighbor: int


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Write a checkpoint: the engine's state, and the algorithm's and all slots as they are now -> `CheckpointWritten`."""

    round_index: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """Append one line to the run history."""

    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """Write a log line; lines that a neighbor causes are rate-limited by neighbor and kind."""

    level: Literal["debug", "info", "warning", "error"]
    message: str
    neighbor: int | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send a `Tick` at or after this monotonic time; replaces any earlier request."""

    at: float


@dataclass(frozen=True, slots=True)
class Stop:
    """The peer has ended: ``completed``, ``left``, ``refused`` by all neighbors, or ``alone`` in most rounds or for too long."""

    status: Status


Effect = (
    SendHello
    | SendHeartbeat
    | SendControl
    | SendModel
    | CancelSend
    | RetryIfStalled
    | ReadArrival
    | AnswerArrival
    | FoldArrival
    | TakeSnapshot
    | DropSnapshots
    | Work
    | Agree
    | Pull
    | WriteCheckpoint
    | Record
    | Log
    | SetTimer
    | Stop
)
