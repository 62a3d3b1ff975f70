"""Reading one arrival from its gRPC stream: the first frame with the header, the peer's decision, the other frames."""

from __future__ import annotations

import asyncio

import grpc.aio

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Timeouts
from peer import failpoints
from peer.core.arrivals import Arrival
from peer.core.messages import ModelHeader, PushReply
from peer.wire import convert, frames
from peer.wire.access import CANCEL_DELAY_S, first_message, require_sender
from peer.wire.calls import Context
from peer.wire.handler import RequestHandler
from peer.wire.limits import WireLimits
from peer.wire.pacing import UNLIMITED, Pacing

ACCEPTED_METADATA = "peer-accepted"  # initial metadata of an accepted push; absent if it is refused


def too_slow(timeouts: Timeouts, moved_bytes: int, seconds: float) -> RemoteProtocolError:
    """Return the error of a transfer that has stopped or exceeds its time limit; it says what to declare."""
    sentence = (
        f"the transfer stopped or is too slow: {moved_bytes} bytes in {seconds:.0f} s; declare the slow end's upload_limit or "
        f"download_limit in the graph file; it may stop for {timeouts.idle_transfer_s:g} s (set by timeouts.suspicion_s)"
    )
    return RemoteProtocolError(RefusalCode.TOO_SLOW, sentence)


def check_size(header: ModelHeader, limits: WireLimits) -> None:
    """Refuse a model above ``limits.model_bytes_max``.

    Raises:
        RemoteProtocolError: TOO_LARGE.
    """
    if header.size_bytes > limits.model_bytes_max:
        allowed = f"at most {limits.model_bytes_max} bytes (limits.model_bytes_max)"
        sentence = f"ModelHeader.size_bytes: expected {allowed}, got {header.size_bytes}"
        raise RemoteProtocolError(RefusalCode.TOO_LARGE, sentence)


class ArrivalReader:
    """Read one push from a gRPC context.

    Args:
        handler: the peer.
        context: of the call; its messages are bytes.
        caller: the authenticated sender; None where the transport is plaintext.
        limits: of messages and models.
        timeouts: of the manifest.
        pacing: of this peer.
    """

    def __init__(
        self,
        handler: RequestHandler,
        context: Context,
        caller: int | None,
        *,
        limits: WireLimits,
        timeouts: Timeouts,
        pacing: Pacing = UNLIMITED,
    ) -> None:
        self._pacing = pacing
        self._handler = handler
        self._context = context
        self.caller = caller
        self._limits = limits
        self._timeouts = timeouts
        self._clock = asyncio.get_running_loop().time
        self._metadata_sent = False
        self._writer: frames.ChunkWriter | None = None  # while the arrival is read and not given up
        self._first = frames.Frame()  # without its header; in memory until the peer decides
        self._is_single = False  # the first frame is the only one

    async def offer(self) -> Arrival | PushReply:
        """Read the header and wait for the peer's decision, without a time limit.

        Raises:
            RemoteProtocolError: the header is refused before the peer sees it, or by the peer.
        """
        header = await self._header()
        require_sender(self.caller, header.sender)
        check_size(header, self._limits)
        answer = await self._handler.offered(header)
        if isinstance(answer, Arrival) and answer.verdict is not None:
            return answer.verdict  # given up before its first byte
        return answer

    async def read(self, arrival: Arrival) -> None:
        """Read the model into its buffer; `handler.lost` is called if the arrival does not become complete.

        If the peer gives the arrival up meanwhile, its remaining frames are discarded as by `discard`.

        Raises:
            RemoteProtocolError: the stream does not carry the model of its header, or is too slow.
        """
        complete = False
        refusal: Refusal | None = None
        try:
            if arrival.buffer.nbytes != arrival.header.size_bytes:
                raise LocalProtocolError("the buffer of an arrival must have exactly header.size_bytes")
            self._writer = frames.ChunkWriter(
                arrival.buffer,
                frame_bytes_max=self._limits.frame_bytes_max,
                float32=arrival.header.encoding == "float32",
            )
            arrival.release = self._release
            complete = await self._read_frames(arrival)
            failpoints.reach("receive.end")
        except RemoteProtocolError as error:
            refusal = error.refusal
            raise
        finally:
            self._writer = arrival.release = None
            if not complete:
                self._handler.lost(arrival, refusal)
                arrival.drop()  # its memory is free now, not at the next collection of reference cycles

    async def discard(self) -> None:
        """Read and discard the sender's remaining frames, for at most the idle time, so that the sender gets the reply.

        If the call ended at once, gRPC would fail the sender's writes, and the reply would be lost.
        """
        if self._is_single:
            return
        if not self._metadata_sent:
            await self._send_metadata(())
        try:
            async with asyncio.timeout(self._timeouts.idle_transfer_s):
                while await self._context.read() is not grpc.aio.EOF:
                    pass
        except TimeoutError:
            return

    async def _send_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata_sent = True
        await self._context.send_initial_metadata(metadata)

    def _release(self) -> None:
        self._writer = None

    async def _header(self) -> ModelHeader:
        message = await first_message(self._context, self._timeouts)
        allowed = self._limits.frame_bytes_max + frames.HEADER_BYTES_MAX
        if len(message) > allowed:
            sentence = f"the first frame: expected at most {allowed} bytes, got {len(message)}"
            raise RemoteProtocolError(RefusalCode.TOO_LARGE, sentence)
        frame = frames.read_frame(message)
        self._first = frame._replace(header=None)
        self._is_single = frame.header is not None and frame.end is not None
        return convert.first_header(frame)

    async def _read_frames(self, arrival: Arrival) -> bool:
        """Return whether the model is complete; False if it was given up and its remaining frames were discarded."""
        frame, self._first = self._first, frames.Frame()
        size = frame.chunk.nbytes if frame.chunk is not None else 0
        if not self._is_single:
            await self._send_metadata(((ACCEPTED_METADATA, "1"),))
        header, clock, began, received = arrival.header, self._clock, self._clock(), 0

        def until(received: int) -> float:
            lasts_s = self._pacing.may_last_s(header.sender, header.size_bytes, received, self._timeouts)
            return min(began + lasts_s, clock() + self._timeouts.idle_transfer_s)

        try:
            async with asyncio.timeout_at(until(0)) as deadline:
                while True:
                    if self._writer is not None:  # once the model is given up, the deadline is not extended
                        deadline.reschedule(None)  # waiting for the own limit is not idle time of the sender
                        if await self._write(arrival, frame, size):
                            return True
                        received += size
                        deadline.reschedule(until(received))
                    if self._is_single:
                        return False
                    if (message := await self._context.read()) is grpc.aio.EOF:
                        break
                    self._handler.frame(arrival)
                    if self._writer is not None:
                        frame, size = frames.read_frame(message), len(message)
        except TimeoutError as error:
            if arrival.verdict is None:
                raise too_slow(self._timeouts, received, clock() - began) from error
        if arrival.verdict is None:
            await asyncio.sleep(CANCEL_DELAY_S)
            raise RemoteProtocolError(RefusalCode.MALFORMED, "the stream ends without an end frame")
        return False

    async def _write(self, arrival: Arrival, frame: frames.Frame, size: int) -> bool:
        """Write a frame into the buffer; return whether the model is complete."""
        if frame.chunk is not None:
            failpoints.reach("receive.frame")
            await self._pacing.download.take(size)
        if self._writer is None or not self._writer.write(frame):
            return False
        arrival.norm_squared = self._writer.norm_squared
        return True
