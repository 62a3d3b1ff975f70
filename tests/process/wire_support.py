"""A request handler that records its calls, served by a real server, for the process tests of the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.manifest import Timeouts
from peer.core.arrivals import Arrival
from peer.core.encoding import Payload
from peer.core.messages import (
    WIRE_VERSION,
    Control,
    Heartbeat,
    Hello,
    HelloReply,
    ModelHeader,
    Numbers,
    Outcome,
    Phase,
    PullRequest,
    PushReply,
)
from peer.wire.client import NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.round_ring import RoundRing
from peer.wire.server import PeerServer

LIMITS = WireLimits(frame_bytes_max=1 << 16)
TIMEOUTS = Timeouts()


def hello_of(sender: int, **changes: Any) -> Hello:
    fields: dict[str, Any] = dict(
        sender=sender,
        incarnation=7,
        wire_version=WIRE_VERSION,
        manifest_digest="m" * 64,
        graph_digest="g" * 64,
        schema_digest="s" * 64,
        frozen_digest="",
        initial_models_digest="",
        round_index=3,
        phase=Phase.RUNNING,
        manifest="{}",
        meaning='{"kind":"regression"}',
    )
    return Hello(**(fields | changes))


def header_of(size_bytes: int, **changes: Any) -> ModelHeader:
    fields: dict[str, Any] = dict(
        sender=2,
        incarnation=7,
        round_index=3,
        step=0,
        slot=1,
        index=0,
        total=2,
        sample_count=100,
        mass=1.0,
        numbers=Numbers.of(0.5, -1.0),
        size_bytes=size_bytes,
        encoding="float32",
    )
    return ModelHeader(**(fields | changes))


class Recorder:
    """A RequestHandler that records its calls.

    Attributes:
        accepting: when cleared, every offered model waits for its decision.
        completing: when cleared, every complete model waits for its reply.
        answer: the refusal of heartbeats, control messages and offers; None accepts.
        reached: called with the sender and the incarnation of each hello; returns whether this peer cannot dial it.
    """

    def __init__(self, peer_id: int = 1) -> None:
        self.peer_id = peer_id
        self.reached: Callable[[int, int], bool] = lambda _sender, _incarnation: False
        self.accepting = asyncio.Event()
        self.accepting.set()
        self.completing = asyncio.Event()
        self.completing.set()
        self.changed = asyncio.Condition()
        self._notifying: set[asyncio.Future[None]] = set()
        self.offers: list[ModelHeader] = []
        self.models: list[tuple[ModelHeader, NDArray[np.uint8], float | None]] = []
        self.losses: list[Refusal | None] = []
        self.withdrawn = 0
        self.frames = 0
        self.refusals: list[RefusalCode] = []
        self.callers: set[int] = set()
        self.messages: list[Heartbeat | Control] = []
        self.answer: Refusal | None = None
        self.pulled: tuple[ModelHeader, Payload] | Refusal = Refusal(RefusalCode.SLOT_OUT_OF_RANGE, "no such slot")
        self.hello_refusal: Refusal | None = None
        self.rounds = RoundRing()

    async def hello(self, hello: Hello) -> HelloReply:
        self.callers.add(hello.sender)
        return HelloReply(
            hello_of(self.peer_id), self.hello_refusal, cannot_dial=self.reached(hello.sender, hello.incarnation)
        )

    async def heartbeat(self, heartbeat: Heartbeat) -> Refusal | None:
        self.messages.append(heartbeat)
        return self.answer

    async def control(self, message: Control) -> Refusal | None:
        self.messages.append(message)
        return self.answer

    async def offered(self, header: ModelHeader) -> Arrival | PushReply:
        self.callers.add(header.sender)
        self.offers.append(header)
        await self._notify()
        try:
            await self.accepting.wait()
        except asyncio.CancelledError:
            self.withdrawn += 1
            self._notify_soon()
            raise
        if self.answer is not None:
            return self.answer
        return Arrival(header, np.zeros(header.size_bytes, np.uint8))

    async def complete(self, arrival: Arrival) -> PushReply:
        await self.completing.wait()
        self.models.append((arrival.header, arrival.buffer, arrival.norm_squared))
        await self._notify()
        return Outcome.FOLDED

    def frame(self, arrival: Arrival) -> None:
        self.frames += 1
        self._notify_soon()

    def lost(self, arrival: Arrival, refusal: Refusal | None) -> None:
        self.losses.append(refusal)
        self._notify_soon()

    async def pull(self, request: PullRequest) -> tuple[ModelHeader, Payload] | Refusal:
        return self.pulled

    def status(self) -> dict[str, Any]:
        return {"peer_id": self.peer_id, "incarnation": 7, "round_index": 3, "phase": "running", "more": [1.5]}

    def refused(self, caller: int | None, refusal: Refusal) -> None:
        self.refusals.append(refusal.code)
        self._notify_soon()

    async def until(self, condition: Any) -> None:
        """Wait until ``condition()`` is true, checked at every recorded call; fails after 120 s."""
        async with asyncio.timeout(120), self.changed:
            await self.changed.wait_for(condition)

    def _notify_soon(self) -> None:
        task = asyncio.ensure_future(self._notify())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


@asynccontextmanager
async def serving(
    recorder: Recorder, *, limits: WireLimits = LIMITS, timeouts: Timeouts = TIMEOUTS, **server: Any
) -> AsyncIterator[int]:
    """Serve the recorder on a free loopback port."""
    peer_server = PeerServer(recorder, "127.0.0.1:0", limits=limits, timeouts=timeouts, **server)
    port = await peer_server.start()
    try:
        yield port
    finally:
        await peer_server.stop(0)


@asynccontextmanager
async def linked(
    recorder: Recorder,
    *,
    limits: WireLimits = LIMITS,
    timeouts: Timeouts = TIMEOUTS,
    sender_limits: WireLimits | None = None,
    sender_timeouts: Timeouts | None = None,
    **server: Any,
) -> AsyncIterator[NeighborLink]:
    """Serve the recorder and open a link to it."""
    async with serving(recorder, limits=limits, timeouts=timeouts, **server) as port:
        link = NeighborLink(
            recorder.peer_id,
            f"127.0.0.1:{port}",
            limits=sender_limits or limits,
            timeouts=sender_timeouts or timeouts,
        )
        try:
            yield link
        finally:
            await link.close()
