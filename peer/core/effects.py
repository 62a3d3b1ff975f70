"""What the engine wants done. The shell executes effects in order; each says which event answers it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from coordinator_free_bootstrap.errors import Refusal
from peer.core.messages import Announce, Beat, ModelHeader, Outcome


@dataclass(frozen=True, slots=True)
class Greet:
    """Send our hello to a neighbor -> `Greeted` or `GreetFailed`."""

    neighbor: int


@dataclass(frozen=True, slots=True)
class SendBeat:
    """Send a sign of life -> `BeatAnswered`."""

    neighbor: int
    beat: Beat


@dataclass(frozen=True, slots=True)
class SendAnnounce:
    """Say what will be delivered -> `Sent` or `SendFailed`."""

    neighbor: int
    announce: Announce


@dataclass(frozen=True, slots=True)
class SendModel:
    """Push the snapshot (header.round_index, header.step, header.slot) -> `Sent` or `SendFailed`."""

    neighbor: int
    header: ModelHeader


@dataclass(frozen=True, slots=True)
class CancelSend:
    """Give up the message in flight to a neighbor; no event answers."""

    neighbor: int


@dataclass(frozen=True, slots=True)
class SendAgain:
    """Give up a push that has nothing left to do but wait, if no byte has moved for so long -> `Unanswered`; else let it be."""

    neighbor: int
    quiet_s: float


@dataclass(frozen=True, slots=True)
class Admit:
    """Read an offered stream into a reserved buffer -> `Arrived` or `Cut`."""

    stream: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a stream's push for good and forget the stream (unless a `Fold` of it is still to be done)."""

    stream: int
    outcome: Outcome
    refusal: Refusal | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an arrival goes: a slot and the weight it has there."""

    slot: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Fold:
    """Screen and fold a complete arrival -> `Folded`; its buffer is free afterwards. No target: keep it for the close."""

    stream: int
    header: ModelHeader
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Keep the slots' present models as this step's offers (see `Algorithm.outgoing`)."""

    round_index: int
    step: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ForgetSnapshots:
    """Free the snapshots of rounds before this one."""

    before_round: int


@dataclass(frozen=True, slots=True)
class Work:
    """Run one piece of the algorithm's tensor work -> `WorkDone` of the same kind."""

    kind: Literal["assign", "train", "end_step", "close", "adopt", "final"]
    round_index: int
    step: int = 0
    active: bool = True  # whether this peer trains in this round
    present: tuple[int, ...] = ()  # neighbors that delivered or passed in the step being closed
    announced: tuple[Announce, ...] = ()  # what neighbors said before training, for "end_step" and "close"
    evaluate: bool = True


@dataclass(frozen=True, slots=True)
class Pull:
    """Fetch a neighbor's cluster models, to catch up -> `Pulled`."""

    neighbor: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Write a checkpoint: the engine's state and all slots as they are now -> `Persisted`."""

    round_index: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """Append one line to the run history."""

    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """Tell the operator; of what a neighbor causes, of each kind, only so many times a minute."""

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
    """The peer is done: ``completed`` or ``left``."""

    status: Literal["completed", "left"]


Effect = (
    Greet
    | SendBeat
    | SendAnnounce
    | SendModel
    | CancelSend
    | SendAgain
    | Admit
    | Reply
    | Fold
    | Snapshot
    | ForgetSnapshots
    | Work
    | Pull
    | Persist
    | Record
    | Log
    | SetTimer
    | Stop
)
