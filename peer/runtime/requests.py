"""The server's side of a running peer: takes neighbors' requests, gives them to the host, waits for the engine's decision.

The wire calls these methods (`peer.wire.handler.RequestHandler`); none of them calls a neighbor. Offered models wait here, in
their streams, until the engine has them read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import events as ev
from peer.core.arrivals import Arrival
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
from peer.host import PeerHost
from peer.store.records import PeerStatus, ProcessStatus
from peer.wire.round_ring import RoundRing

OnFoldThread = Callable[..., Awaitable[Any]]


class Requests:
    """Implements `RequestHandler`.

    Args:
        host: the peer.
        post: gives the host an event.
        on_fold_thread: runs a function on the fold thread.
        reached: called with each neighbor whose hello was accepted, and its incarnation; returns whether this
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
        about: Callable[[], ProcessStatus],
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
        # What the sender of an arrival waits for: that it is read (None) or answered unread; then the reply to the model.
        self._open: dict[Arrival, asyncio.Future[object]] = {}

    # ---- `RequestHandler` -----------------------------------------------------------------------------------------------

    async def hello(self, hello: Hello) -> HelloReply:
        """Answer a handshake."""
        reply = self._host.answer_hello(hello)
        if reply.refusal is None:
            return replace(reply, cannot_dial=self._reached(hello.sender, hello.incarnation))
        return reply

    async def heartbeat(self, heartbeat: Heartbeat) -> Refusal | None:
        """Take a heartbeat."""
        return self._host.answer_heartbeat(heartbeat)

    async def control(self, message: Control) -> Refusal | None:
        """Take a selection or a pass."""
        return self._host.answer_control(message)

    async def offered(self, header: ModelHeader) -> Arrival | PushReply:
        """Wait until the engine has a model read or answers it unread."""
        rejection = self._host.rejects_offer(header)
        if rejection is not None:
            return rejection
        self._next_stream += 1
        arrival = Arrival(header, stream=self._next_stream)
        answer = self._open[arrival] = asyncio.get_running_loop().create_future()
        self._post(ev.ArrivalOffered(arrival))
        try:
            return await answer or arrival
        except asyncio.CancelledError:
            self._open.pop(arrival, None)
            self._post(ev.ArrivalLost(arrival))
            arrival.drop()
            raise

    def frame(self, arrival: Arrival) -> None:
        """Take a frame of a model for the heartbeat that waits behind it, twice a heartbeat interval at most."""
        if arrival not in self._open:  # of an older incarnation
            return
        sender, now = arrival.sender, asyncio.get_running_loop().time()
        if now - self._frame_at.get(sender, 0.0) >= self._host.manifest.timeouts.heartbeat_s / 2:
            self._frame_at[sender] = now
            self._post(ev.HeartbeatReceived(self._host.heartbeat_of(sender)))

    def complete(self, arrival: Arrival) -> asyncio.Future[PushReply]:
        """Screen a complete model, then wait until the engine has decided about it; a hop less where screening is short."""
        if arrival not in self._open:  # answered while its last frame came in
            return _known(arrival.verdict or Outcome.UNUSED)
        seconds = max(1e-3, asyncio.get_running_loop().time() - arrival.read_at)
        self.bytes_per_second = max(0.5 * self.bytes_per_second, arrival.header.size_bytes / seconds)
        if arrival.norm_squared is not None and self._host.receiving.screens_by_norm():
            return self._screened(arrival, self._host.receiving.screen(arrival))
        return asyncio.ensure_future(self._screened_elsewhere(arrival))

    async def _screened_elsewhere(self, arrival: Arrival) -> PushReply:
        return await self._screened(arrival, await self._on_fold_thread(self._host.receiving.screen, arrival))

    def _screened(self, arrival: Arrival, rejection: Refusal | None) -> asyncio.Future[PushReply]:
        """Give the engine a screened model; its decision may be there already."""
        if rejection is not None:
            self._open.pop(arrival, None)
            arrival.drop()
            self._host.arrived(arrival, rejection)
            return _known(rejection)
        if arrival not in self._open:
            return _known(arrival.verdict or Outcome.UNUSED)
        reply = asyncio.get_running_loop().create_future()
        self._open[arrival] = reply
        self._host.arrived(arrival, None)
        return reply

    def lost(self, arrival: Arrival, refusal: Refusal | None) -> None:
        """Forget a model that will not be complete. A model with NaN or Inf is final; the sender will not retry."""
        if self._open.pop(arrival, None) is not None:
            code = None if refusal is None else refusal.code
            final = refusal if code is RefusalCode.NON_FINITE else None
            self._post(ev.ArrivalLost(arrival, final, stalled=code is RefusalCode.TOO_SLOW))

    async def pull(self, request: PullRequest) -> tuple[ModelHeader, Payload] | Refusal:
        """Give a neighbor that catches up the present model of one slot."""
        answer = self._host.answer_pull(request)
        if isinstance(answer, Refusal):
            return answer
        header, encoded = answer
        return header, await self._on_fold_thread(encoded)

    def status(self) -> PeerStatus:
        """Return what this peer is doing, as JSON-ready values."""
        return {**self._host.status(), "open_streams": len(self._open), **self._about()}

    def refused(self, caller: int | None, refusal: Refusal) -> None:
        """Count a refusal that the server made."""
        self._host.refuse(caller, refusal)

    def heard_frame_since(self, sender: int, since: float) -> bool:
        """Return whether a frame of a neighbor's model has come, and stood for a heartbeat, since a time of the event loop."""
        return self._frame_at.get(sender, -math.inf) >= since

    # ---- what the world does with arrivals ------------------------------------------------------------------------------

    def read(self, arrival: Arrival) -> None:
        """Let an arrival be read into a reserved buffer."""
        self._host.receiving.reserve(arrival)
        arrival.read_at = asyncio.get_running_loop().time()
        if not self._open[arrival].done():
            self._open[arrival].set_result(None)

    def answer(self, arrival: Arrival, reply: PushReply) -> None:
        """Answer a push; one that is to be folded stays until `take`.

        One that is being read is given up: the engine counts its buffer as free from now on.
        """
        waiting = self._open.get(arrival)
        if waiting is None:
            return
        if not waiting.done():
            waiting.set_result(reply)
        elif reply is not Outcome.FOLDED:
            arrival.give_up(reply)
        if reply is not Outcome.FOLDED:
            arrival.drop()
            del self._open[arrival]

    def take(self, arrival: Arrival) -> None:
        """Remove an answered arrival: its model is folded now."""
        del self._open[arrival]


def _known(reply: PushReply) -> asyncio.Future[PushReply]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(reply)
    return future
