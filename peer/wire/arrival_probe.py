"""Whether a frame has arrived, on a link that has not yet shown to be fast.

A frame that is written lies in buffers, which take seconds of a fast link and minutes of a slow one; heartbeats and pings wait
behind them. So the sender writes the next frame when the one before it is answered: in a push by a health check that follows
it, in a pull by an empty message of the puller, which the metadata ask for. The answer shows how long the frame took, and at
most one frame is ahead of a heartbeat. A fast link is known after two frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from peer.wire.calls import Context
from peer.wire.pacing import Pacing

METHOD = "/grpc.health.v1.Health/Check"  # every peer answers it at once, and it changes nothing
ACKNOWLEDGE_METADATA = "peer-acknowledge"  # initial metadata of a pull whose frames are to be acknowledged
ACKNOWLEDGEMENT = b""
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)  # any other status is an answer


class ArrivalProbe:
    """The probe of one transfer.

    Args:
        answer: waits until all that was written has arrived; returns False if the receiver does not tell.
        pacing: of this peer.
        neighbor: the receiver.
    """

    def __init__(self, answer: Callable[[], Awaitable[bool]], pacing: Pacing, neighbor: int) -> None:
        self._answer = answer
        self._pacing = pacing
        self._neighbor = neighbor
        self._clock = asyncio.get_running_loop().time
        self._answers = True
        self._latency_s = 0.0  # of an answer to a few bytes

    @property
    def is_needed(self) -> bool:
        """Whether the next frame waits until the last one has arrived."""
        return self._answers and self._pacing.is_unproven(self._neighbor)

    async def begin(self, began: float | None = None) -> None:
        """Wait until all that is written has arrived, and take the time as the latency.

        Args:
            began: when a few bytes were handed to gRPC; default: now.

        Raises:
            AioRpcError: the connection is lost.
        """
        if self.is_needed:
            began = self._clock() if began is None else began
            self._answers = await self._answer()
            self._latency_s = self._clock() - began

    async def arrived(self, size_bytes: int, began: float) -> None:
        """Wait until a frame, the last that was written, has arrived; note how long it took.

        Args:
            size_bytes: of the frame.
            began: when it was handed to gRPC.

        Raises:
            AioRpcError: the connection is lost.
        """
        self._answers = await self._answer()
        if self._answers:
            self._pacing.arrived(self._neighbor, size_bytes, self._clock() - began - self._latency_s)


def by_check(check: Callable[[bytes], Awaitable[bytes]]) -> Callable[[], Awaitable[bool]]:
    """Return the answer of a push; ``check`` calls `METHOD` on its connection."""

    async def answer() -> bool:
        try:
            await check(b"")
        except grpc.aio.AioRpcError as error:
            if error.code() in LOST:
                raise
        return True

    return answer


class Acknowledgements:
    """The answers of a pull, at its server; a puller that has ended its direction gives none."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._awaited = 0  # of the frames so far

    def wrote(self) -> None:
        """Note a frame that is to be acknowledged."""
        self._awaited += 1

    async def answer(self) -> bool:
        """Wait for the acknowledgement of every frame so far."""
        while self._awaited:
            if await self._context.read() is grpc.aio.EOF:
                return False
            self._awaited -= 1
        return True
