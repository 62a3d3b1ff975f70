"""The interface between the gRPC server and the peer: what the server calls when a request comes in.

No method calls a neighbor. Any of them may raise RemoteProtocolError; the server answers it, counts it through
`RequestHandler.refused`, and stays up. A refusal that a method *returns* is counted by the peer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from coordinator_free_bootstrap.errors import Refusal
from peer.core.arrivals import Arrival
from peer.core.encoding import Payload
from peer.core.messages import Control, Heartbeat, Hello, HelloReply, ModelHeader, PullRequest, PushReply
from peer.wire.round_ring import RoundRing


class RequestHandler(Protocol):
    """Implemented by the peer. Where the transport is not plaintext, the sender of each message is the authenticated caller.

    Attributes:
        rounds: the round records that watchers may have.
    """

    rounds: RoundRing

    async def hello(self, hello: Hello) -> HelloReply:
        """Answer a handshake, with this peer's own hello even where it refuses."""

    async def heartbeat(self, heartbeat: Heartbeat) -> Refusal | None:
        """Take a heartbeat."""

    async def control(self, message: Control) -> Refusal | None:
        """Take a selection or a pass."""

    async def offered(self, header: ModelHeader) -> Arrival | PushReply:
        """Decide about a model before its first payload byte is read; may wait long, the sender is held by flow control.

        Cancelled when the sender gives up.
        """

    def frame(self, arrival: Arrival) -> None:
        """Take a frame of a model: on a slow link heartbeats wait behind the model, so a frame stands for one."""

    def complete(self, arrival: Arrival) -> Awaitable[PushReply]:
        """Use a complete model: exact size, right digest, finite (float32). Not cancelled when the sender gives up."""

    def lost(self, arrival: Arrival, refusal: Refusal | None) -> None:
        """Forget a model that will not be complete; ``refusal`` None: its stream ended, or it was given up."""

    async def pull(self, request: PullRequest) -> tuple[ModelHeader, Payload] | Refusal:
        """Return a model to stream to a neighbor; its payload must not change while it is being sent."""

    def status(self) -> Mapping[str, object]:
        """Return what the peer is doing, as JSON-ready values; `peer_id`, `incarnation`, ... also travel typed."""

    def refused(self, caller: int | None, refusal: Refusal) -> None:
        """Count a refusal that the server made."""
