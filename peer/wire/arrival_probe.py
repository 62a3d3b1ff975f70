"""Whether a frame has arrived, on a link that has not yet shown to be fast.

A frame that is written lies in buffers, which take seconds of a fast link and minutes of a slow one; heartbeats and pings wait
behind them. So the sender lets a health check follow each frame, and writes the next frame when it is answered. The answer
shows how long the frame took, and at most one frame is ahead of a heartbeat. A fast link is known after two frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from peer.wire.pacing import Pacing

METHOD = "/grpc.health.v1.Health/Check"  # every peer answers it at once, and it changes nothing
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)  # any other status is an answer


class ArrivalProbe:
    """The probe of one transfer.

    Args:
        check: calls `METHOD` on the connection of the transfer.
        pacing: of this peer.
        neighbor: the receiver.
    """

    def __init__(self, check: Callable[[bytes], Awaitable[bytes]], pacing: Pacing, neighbor: int) -> None:
        self._check = check
        self._pacing = pacing
        self._neighbor = neighbor
        self._clock = asyncio.get_running_loop().time
        self._latency_s = 0.0  # of a check that follows no frame

    @property
    def is_needed(self) -> bool:
        """Whether the next frame waits until the last one has arrived."""
        return self._pacing.is_unproven(self._neighbor)

    async def begin(self) -> None:
        """Wait until all that is written has arrived, and measure the latency.

        Raises:
            AioRpcError: the connection is lost.
        """
        if self.is_needed:
            await self._answer()
            began = self._clock()
            await self._answer()
            self._latency_s = self._clock() - began

    async def arrived(self, size_bytes: int, began: float) -> None:
        """Wait until a frame, the last that was written, has arrived; note how long it took.

        Args:
            size_bytes: of the frame.
            began: when it was handed to gRPC.

        Raises:
            AioRpcError: the connection is lost.
        """
        await self._answer()
        self._pacing.arrived(self._neighbor, size_bytes, self._clock() - began - self._latency_s)

    async def _answer(self) -> None:
        try:
            await self._check(b"")
        except grpc.aio.AioRpcError as error:
            if error.code() in LOST:
                raise
