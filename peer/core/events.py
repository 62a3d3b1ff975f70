"""What happens to a peer, as the engine sees it. The shell (or the simulator) turns the world into these. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coordinator_free_bootstrap.errors import Refusal
from peer.core.messages import Announce, Beat, Hello, ModelHeader, Outcome


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that a `SetTimer` asked for has come (or passed)."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """A handshake with a neighbor is complete, whoever began it; all digests agree.

    ``answered``: it is the answer to a hello of ours, so that words pass in both directions.
    """

    hello: Hello
    answered: bool


@dataclass(frozen=True, slots=True)
class GreetFailed:
    """A neighbor did not answer our hello, or refused it."""

    neighbor: int
    refusal: Refusal | None
    reason: str


@dataclass(frozen=True, slots=True)
class Outgrown:
    """A neighbor knew a later life of this peer, whose disk was lost: from now on this is the incarnation, persisted."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A neighbor's sign of life."""

    beat: Beat


@dataclass(frozen=True, slots=True)
class Announced:
    """A neighbor said what it will deliver."""

    announce: Announce


@dataclass(frozen=True, slots=True)
class Offered:
    """A neighbor opened a stream and sent its header; nothing of the model is read yet."""

    stream: int
    header: ModelHeader


@dataclass(frozen=True, slots=True)
class Arrived:
    """A stream's model is complete, of the right size, digest-true and finite; it lies in its reserved buffer."""

    stream: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A stream ended without a model to fold; whatever was read is gone.

    ``refusal``: the model was complete and failed screening. Its sender knows and will not send it again.
    """

    stream: int
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Folded:
    """A fold that the engine asked for is done."""

    stream: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A neighbor answered a message of ours (push, announcement or beat)."""

    neighbor: int
    outcome: Outcome
    refusal: Refusal | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A message did not reach a neighbor, or no answer came back."""

    neighbor: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A push to a neighbor that is alive was given up after a long silence, to be made again."""

    neighbor: int


@dataclass(frozen=True, slots=True)
class BeatAnswered:
    """A neighbor acknowledged a beat (``refusal`` None), refused it, or did not answer (``lost``), perhaps behind a model."""

    neighbor: int
    refusal: Refusal | None = None
    lost: bool = False
    moving: bool = False  # meanwhile it took bytes of a model, behind which the beat may wait


@dataclass(frozen=True, slots=True)
class WorkDone:
    """A piece of work on tensors is done. ``facts`` replaces the algorithm's facts; ``metrics`` go into the record."""

    kind: str
    facts: dict[str, Any]
    metrics: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pull from a neighbor is over; its models wait in the shell, or it failed."""

    neighbor: int
    complete: bool
    round_index: int = 0  # the neighbor's round when it answered
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Persisted:
    """A checkpoint is safe on disk (``error`` empty), or could not be written."""

    round_index: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The operator asked this peer to stop."""


Event = (
    Tick
    | Greeted
    | GreetFailed
    | Outgrown
    | Heard
    | Announced
    | Offered
    | Arrived
    | Cut
    | Folded
    | Sent
    | SendFailed
    | Unanswered
    | BeatAnswered
    | WorkDone
    | Pulled
    | Persisted
    | LeaveRequested
)
