"""One inbound model stream, from its header to the reply: held, read in place, verified, handed over, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Limits, Timeouts
from peer import failpoints
from peer.core.messages import ModelHeader, PushReply
from peer.wire import convert, frames
from peer.wire.identity import same_sender
from peer.wire.inbound import Admission, Inbound

CUT_GRACE_S = 0.1  # gRPC reads a broken connection as the end of the stream and cancels the call a moment later
BYTES_PER_SECOND_MIN = 32 << 10  # a quarter of a megabit: slower links cannot take part in rounds of any useful size
ADMITTED_METADATA = "peer-admitted"  # initial metadata of an admitted push; absent from that of a refused one


class Reception:
    """Reads one push from gRPC's context.

    Args:
        inbound: the runtime.
        context: of the call; its messages are bytes.
        caller: the authenticated sender, if the transport has one.
        limits: of the manifest.
        timeouts: of the manifest.
    """

    def __init__(
        self, inbound: Inbound, context: Any, caller: int | None, *, limits: Limits, timeouts: Timeouts
    ) -> None:
        self._inbound = inbound
        self._context = context
        self.caller = caller
        self._limits = limits
        self._timeouts = timeouts
        self._clock = asyncio.get_running_loop().time
        self._answered = False  # the sender has had its initial metadata

    async def admit(self) -> Admission | PushReply:
        """Read the header and wait for the runtime's decision, however long that takes.

        Raises:
            RemoteProtocolError: the header is refused before the runtime sees it, or by the runtime.
        """
        header = await self._header()
        same_sender(self.caller, header.sender)
        if header.size_bytes > self._limits.model_bytes_max:
            allowed = f"{self._limits.model_bytes_max} (limits.model_bytes_max)"
            found = f"a model has {header.size_bytes} bytes; allowed are {allowed}"
            raise RemoteProtocolError(Refusal.TOO_LARGE, found)
        return await self._inbound.offered(self.caller, header)

    async def fill(self, admission: Admission) -> None:
        """Read the model into its buffer; whatever goes wrong, the runtime hears that it was cut.

        Raises:
            RemoteProtocolError: the stream is not the model that the header promised, or too slow.
        """
        reason, complete = "the stream ended before the model did", False
        try:
            if admission.buffer.nbytes != admission.header.size_bytes:
                raise LocalProtocolError("an admission's buffer must have exactly header.size_bytes")
            await self._answer(((ADMITTED_METADATA, "1"),))
            intake = frames.ModelIntake(
                admission.buffer,
                frame_bytes_max=self._limits.frame_bytes_max,
                float32=admission.header.encoding == "float32",
            )
            await self._read_chunks(intake, admission.moving)
            admission.norm_squared = intake.norm_squared
            complete = True
        except RemoteProtocolError as error:
            reason = error.sentence
            raise
        finally:
            if not complete:
                self._inbound.cut(admission, reason)

    async def drain(self) -> None:
        """Read the sender's remaining frames away, for at most the idle time, so that it can read the reply.

        gRPC fails the writes of a sender whose call has ended, and loses the reply that way.
        """
        if not self._answered:
            await self._answer(())
        try:
            async with asyncio.timeout(self._timeouts.idle_transfer_s):
                while await self._context.read() is not grpc.aio.EOF:
                    pass
        except TimeoutError:
            return

    async def _answer(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._answered = True
        await self._context.send_initial_metadata(metadata)

    async def _header(self) -> ModelHeader:
        try:
            async with asyncio.timeout(self._timeouts.idle_transfer_s):
                frame = await self._context.read()
        except TimeoutError as error:
            raise self._too_slow("no header came") from error
        if frame is grpc.aio.EOF:
            await asyncio.sleep(CUT_GRACE_S)
            raise RemoteProtocolError(Refusal.MALFORMED, "the stream holds no header")
        return convert.first_header(frames.read_frame(frame))

    async def _read_chunks(self, intake: frames.ModelIntake, moving: Callable[[], None]) -> None:
        clock, idle_s = self._clock, self._timeouts.idle_transfer_s
        # So that a trickle of tiny chunks ends as well.
        patience_s = self._timeouts.idle_transfer_s + intake.size_bytes / BYTES_PER_SECOND_MIN
        latest = clock() + min(self._timeouts.round_deadline_s, patience_s)
        read = self._context.read
        try:
            async with asyncio.timeout_at(min(latest, clock() + idle_s)) as deadline:
                while (frame := await read()) is not grpc.aio.EOF:
                    failpoints.reach("receive.frame")
                    moving()
                    if intake.take(frames.read_frame(frame)):
                        return
                    deadline.reschedule(min(latest, clock() + idle_s))
        except TimeoutError as error:
            raise self._too_slow("the transfer stopped, or is too slow to end") from error
        await asyncio.sleep(CUT_GRACE_S)
        raise RemoteProtocolError(Refusal.MALFORMED, "the stream ends without an end frame")

    def _too_slow(self, what: str) -> RemoteProtocolError:
        allowed = (
            f"{self._timeouts.idle_transfer_s:g} s (timeouts.idle_transfer_s) without a byte, and 32 KiB/s after that"
        )
        return RemoteProtocolError(Refusal.TOO_SLOW, f"{what}; allowed are {allowed}")
