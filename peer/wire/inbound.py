"""What the wire asks of the runtime: the calls a server makes when something arrives, and what it gives back.

Every method only enqueues and waits; none calls a neighbor. Any of them may raise RemoteProtocolError, which the server
answers, counts through `Inbound.refused` and survives. A refusal that a method *returns* is the runtime's to count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import Refusal
from peer.core.messages import Announce, Beat, Hello, HelloReply, ModelHeader, PushReply
from peer.wire.codec import Payload

NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A peer that rejoins asks a neighbor for its current model of one slot."""

    sender: int
    incarnation: int
    slot: int


@dataclass(eq=False)
class Admission:
    """Leave to read one offered model: where its bytes go. Made by the runtime, filled by the server.

    Attributes:
        header: what was offered.
        buffer: uint8 [size_bytes], contiguous, reserved for this model alone until it has arrived or was cut.
        norm_squared: sum of squares of the decoded model, set before `Inbound.arrived` for encoding float32; None for
            the others, whose finiteness is for whoever decodes them (`codec.norm_squared`).
        moving: called with every frame: over a slow link a model is the sign of life, its sender's beats wait behind it.
        verdict: what the sender hears, set if the runtime has given the model up before it was complete.
        let_go: set by the server while it reads: makes it forget the buffer.
    """

    header: ModelHeader
    buffer: NDArray[np.uint8]
    norm_squared: float | None = None
    moving: Callable[[], None] = lambda: None
    verdict: PushReply | None = None
    let_go: Callable[[], None] | None = None

    def give_up(self, verdict: PushReply) -> None:
        """Answer a model early: if it is being read its buffer is free from now on, and what still comes is read away."""
        self.verdict = verdict
        if self.let_go is not None:
            self.let_go()
            self.buffer = NOTHING


class Inbound(Protocol):
    """Implemented by the runtime. ``caller`` is the authenticated peer id, None where the transport is plaintext."""

    async def hello(self, caller: int | None, hello: Hello) -> HelloReply:
        """Answer a handshake, with this peer's own hello also where it refuses."""

    async def beat(self, caller: int | None, beat: Beat) -> Refusal | None:
        """Note a sign of life."""

    async def announce(self, caller: int | None, announce: Announce) -> Refusal | None:
        """Note what one exchange step will bring."""

    async def offered(self, caller: int | None, header: ModelHeader) -> Admission | PushReply:
        """Decide about a model before its first byte is read; may wait long: the sender is held by flow control.

        Cancelled when the sender gives up.
        """

    async def arrived(self, admission: Admission) -> PushReply:
        """Use a complete model: exact size, digest-true, finite (float32). Not cancelled when the sender gives up."""

    def cut(self, admission: Admission, reason: str, code: Refusal | None) -> None:
        """Forget an admitted model that will never be complete, also one that was given up; ``code`` if it was refused."""

    async def pull(self, caller: int | None, request: PullRequest) -> tuple[ModelHeader, Payload] | Refusal:
        """Return a model to stream to a neighbor; its payload must not change while it is being sent."""

    def status(self) -> dict[str, Any]:
        """Return what the peer is doing, as JSON-ready values; `peer_id`, `incarnation`, ... also travel typed."""

    def refused(self, caller: int | None, code: Refusal, sentence: str) -> None:
        """Count a refusal that the server made."""
