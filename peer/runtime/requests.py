"""The server's side of a running peer: takes neighbors' requests, gives them to the host, waits for the engine's decision.

The wire calls these methods (`peer.wire.handler.RequestHandler`); none of them calls a neighbor. Offered models wait here, in
their streams, until the engine has them read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import events as ev
from peer.core.encoding import Payload
from peer.core.messages import (
    Control,
    Heartbeat,
    Hello,
    HelloReply,
    ModelHeader,
    Outcome,
    PullRequest,
    PushReply,
)
from peer.host import PeerHost, ReceivedModel
from peer.wire.handler import Arrival
from peer.wire.round_ring import RoundRing

Answer = Arrival | PushReply
UNUSED = PushReply(Outcome.UNUSED)
OnFoldThread = Callable[..., Awaitable[Any]]


@dataclass
class Push:
    """One push from a neighbor: it waits for the answer to its header, then for the answer to its model."""

    header: ModelHeader
    answer: asyncio.Future[Answer]
    arrival: Arrival | None = None
    received: ReceivedModel | None = None
    reply: asyncio.Future[PushReply] | None = None
    read_at: float = 0.0  # when its first payload byte was asked for


class Requests:
    """Implements `RequestHandler`.

    Args:
        host: the peer.
        post: gives the host an event.
        on_fold_thread: runs a function on the fold thread.
        reached: told each neighbor whose hello was accepted, and its incarnation: it can be called now; returns whether this
            peer nevertheless cannot dial it.
        rounds: the round records that watchers may have.
        about: what the process adds to the host's status.
    """

    def __init__(
        self,
        host: PeerHost,
        post: Callable[[ev.Event], None],
        on_fold_thread: OnFoldThread,
        reached: Callable[[int, int], bool],
        rounds: RoundRing,
        about: Callable[[], dict[str, Any]],
    ) -> None:
        self._host = host
        self._post = post
        self._on_fold_thread = on_fold_thread
        self._reached = reached
        self.rounds = rounds
        self._about = about
        self.bytes_per_second = 0.0  # at which complete models came lately; 0: none yet
        self._frame_at: dict[int, float] = {}  # when a frame of a neighbor last stood for a heartbeat
        self._next_stream = 0
        self._streams: dict[int, Push] = {}
        self._stream_of: dict[int, tuple[int, Push]] = {}  # id(arrival) -> stream

    # ---- `RequestHandler` -----------------------------------------------------------------------------------------------

    async def hello(self, caller: int | None, hello: Hello) -> HelloReply:
        """Answer a handshake."""
        reply = self._host.answer_hello(hello)
        if reply.refusal is None:
            return replace(reply, cannot_dial=self._reached(hello.sender, hello.incarnation))
        return reply

    async def heartbeat(self, caller: int | None, heartbeat: Heartbeat) -> RefusalCode | None:
        """Take a heartbeat."""
        return self._host.answer_heartbeat(heartbeat)

    async def control(self, caller: int | None, message: Control) -> RefusalCode | None:
        """Take a selection or a pass."""
        return self._host.answer_control(message)

    async def offered(self, caller: int | None, header: ModelHeader) -> Answer:
        """Wait until the engine has a model read or answers it unread."""
        rejection = self._host.rejects_offer(header)
        if rejection is not None:
            return PushReply(Outcome.REFUSED, rejection.code, rejection.reason)
        self._next_stream += 1
        number = self._next_stream
        stream = self._streams[number] = Push(header, asyncio.get_running_loop().create_future())
        self._post(ev.ArrivalOffered(number, header))
        try:
            return await stream.answer
        except asyncio.CancelledError:
            self._forget(number)
            self._post(ev.ArrivalLost(number))
            raise

    def complete(self, arrival: Arrival) -> asyncio.Future[PushReply]:
        """Screen a complete model, then wait until the engine has decided about it; a hop less where screening is short."""
        number, stream = self._stream_of.pop(id(arrival), (0, None))
        if stream is None or stream.received is None:  # answered while its last frame came in
            return _known(arrival.verdict or UNUSED)
        seconds = max(1e-3, asyncio.get_running_loop().time() - stream.read_at)
        self.bytes_per_second = max(0.5 * self.bytes_per_second, stream.header.size_bytes / seconds)
        screen = partial(self._host.receiving.screen, stream.header, stream.received, arrival.norm_squared)
        if arrival.norm_squared is not None and self._host.receiving.screens_by_norm():
            return self._screened(number, stream, arrival, screen())
        return asyncio.ensure_future(self._screened_elsewhere(number, stream, arrival, screen))

    async def _screened_elsewhere(
        self, number: int, stream: Push, arrival: Arrival, screen: Callable[[], Refusal | None]
    ) -> PushReply:
        return await self._screened(number, stream, arrival, await self._on_fold_thread(screen))

    def _screened(
        self, number: int, stream: Push, arrival: Arrival, rejection: Refusal | None
    ) -> asyncio.Future[PushReply]:
        """Give the engine a screened model; its decision may be there already."""
        if rejection is not None:
            self._forget(number)
            self._host.arrived(number, stream.header.sender, rejection)
            return _known(PushReply(Outcome.REFUSED, rejection.code, rejection.reason))
        if number not in self._streams:
            return _known(arrival.verdict or UNUSED)
        stream.reply = asyncio.get_running_loop().create_future()
        self._host.arrived(number, stream.header.sender, None)
        return stream.reply

    def lost(self, arrival: Arrival, reason: str, code: RefusalCode | None) -> None:
        """Forget a model that will not be complete. A model with NaN or Inf is final; the sender will not retry."""
        number, _ = self._stream_of.pop(id(arrival), (0, None))
        if number in self._streams:
            self._forget(number)
            final = code if code is RefusalCode.NON_FINITE else None
            self._post(ev.ArrivalLost(number, final, stalled=code is RefusalCode.TOO_SLOW))

    async def pull(self, caller: int | None, request: PullRequest) -> tuple[ModelHeader, Payload] | RefusalCode:
        """Give a neighbor that catches up the present model of one slot."""
        answer = self._host.answer_pull(request)
        if isinstance(answer, RefusalCode):
            return answer
        header, encoded = answer
        return header, await self._on_fold_thread(encoded)

    def status(self) -> dict[str, Any]:
        """Return what this peer is doing, as JSON-ready values."""
        return self._host.status() | {"open_streams": len(self._streams)} | self._about()

    def refused(self, caller: int | None, refusal: Refusal) -> None:
        """Count a refusal that the server made."""
        self._host.refuse(caller, refusal)

    def heard_frame_since(self, sender: int, since: float) -> bool:
        """Return whether a frame of a neighbor's model has come, and stood for a heartbeat, since a time of the event loop."""
        return self._frame_at.get(sender, -math.inf) >= since

    # ---- what the world does with streams -------------------------------------------------------------------------------

    def read(self, number: int) -> None:
        """Let a stream be read into a reserved buffer."""
        stream, received = self._streams[number], self._host.receiving.reserve(self._streams[number].header)
        stream.received, stream.read_at = received, asyncio.get_running_loop().time()
        stream.arrival = Arrival(stream.header, received.payload, on_frame=lambda: self._frame(number))
        self._stream_of[id(stream.arrival)] = number, stream
        if not stream.answer.done():
            stream.answer.set_result(stream.arrival)

    def _frame(self, number: int) -> None:
        """Take a frame of a model for the heartbeat that waits behind it, twice a heartbeat interval at most."""
        if number not in self._streams:  # of an older incarnation
            return
        sender, now = self._streams[number].header.sender, asyncio.get_running_loop().time()
        if now - self._frame_at.get(sender, 0.0) >= self._host.manifest.timeouts.heartbeat_s / 2:
            self._frame_at[sender] = now
            self._post(ev.HeartbeatReceived(self._host.heartbeat_of(sender)))

    def answer(self, number: int, reply: PushReply) -> None:
        """Answer a push; a stream that is to be folded stays until `take`.

        One that is being read is given up: the engine counts its buffer as free from now on.
        """
        stream = self._streams.get(number)
        if stream is None:
            return
        if stream.reply is not None:
            if not stream.reply.done():
                stream.reply.set_result(reply)
        elif not stream.answer.done():
            stream.answer.set_result(reply)
        elif stream.arrival is not None:
            stream.arrival.give_up(reply)
        if reply.outcome is not Outcome.FOLDED:
            self._forget(number)

    def take(self, number: int) -> ReceivedModel:
        """Remove a complete stream to fold its model."""
        received = self._streams.pop(number).received
        assert received is not None
        return received

    def _forget(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._stream_of.pop(id(stream.arrival), None)


def _known(reply: PushReply) -> asyncio.Future[PushReply]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(reply)
    return future
