"""One inbound model stream, from its header to the reply: held, read in place, verified, handed over, or refused."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Limits, Timeouts
from peer import failpoints
from peer.core.messages import ModelHeader, PushReply
from peer.wire import convert, frames
from peer.wire.gate import CUT_GRACE_S, first_message
from peer.wire.identity import same_sender
from peer.wire.inbound import Admission, Inbound

BYTES_PER_SECOND_MIN = 32 << 10  # a quarter of a megabit: slower links cannot take part in rounds of any useful size
ADMITTED_METADATA = "peer-admitted"  # initial metadata of an admitted push; absent from that of a refused one


def patience_s(size_bytes: int, timeouts: Timeouts) -> float:
    """Return how long a model may take in all, so that a trickle of tiny chunks ends as well."""
    return min(timeouts.round_deadline_s, timeouts.idle_transfer_s + size_bytes / BYTES_PER_SECOND_MIN)


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
        self._intake: frames.ModelIntake | None = None  # while the model is read and wanted

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
        answer = await self._inbound.offered(self.caller, header)
        if isinstance(answer, Admission) and answer.verdict is not None:
            return answer.verdict  # given up before its first byte
        return answer

    async def fill(self, admission: Admission) -> None:
        """Read the model into its buffer; whatever goes wrong, the runtime hears that it was cut.

        If the runtime gives it up meanwhile, its remaining frames are read away as `drain` does.

        Raises:
            RemoteProtocolError: the stream is not the model that the header promised, or too slow.
        """
        reason, complete, code = "the stream ended before the model did", False, None
        try:
            if admission.buffer.nbytes != admission.header.size_bytes:
                raise LocalProtocolError("an admission's buffer must have exactly header.size_bytes")
            self._intake = frames.ModelIntake(
                admission.buffer,
                frame_bytes_max=self._limits.frame_bytes_max,
                float32=admission.header.encoding == "float32",
            )
            admission.let_go = self._let_go
            await self._answer(((ADMITTED_METADATA, "1"),))
            complete = await self._read_chunks(admission)
        except RemoteProtocolError as error:
            reason, code = error.sentence, error.code
            raise
        finally:
            self._intake = admission.let_go = None
            if not complete:
                self._inbound.cut(admission, reason, code)

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

    def _let_go(self) -> None:
        self._intake = None

    async def _header(self) -> ModelHeader:
        return convert.first_header(frames.read_frame(await first_message(self._context, self._timeouts)))

    async def _read_chunks(self, admission: Admission) -> bool:
        """Return whether the model is complete; if not it was given up, and what came after that is read away."""
        clock, idle_s, read = self._clock, self._timeouts.idle_transfer_s, self._context.read
        latest = clock() + patience_s(admission.header.size_bytes, self._timeouts)
        try:
            async with asyncio.timeout_at(min(latest, clock() + idle_s)) as deadline:
                while (frame := await read()) is not grpc.aio.EOF:
                    failpoints.reach("receive.frame")
                    admission.moving()
                    if self._intake is None:
                        continue  # and the deadline stays where it is
                    if self._intake.take(frames.read_frame(frame)):
                        admission.norm_squared = self._intake.norm_squared
                        return True
                    deadline.reschedule(min(latest, clock() + idle_s))
        except TimeoutError as error:
            if admission.verdict is None:
                allowed = f"{idle_s:g} s (timeouts.idle_transfer_s) without a byte, and 32 KiB/s after that"
                sentence = f"the transfer stopped, or is too slow to end; allowed are {allowed}"
                raise RemoteProtocolError(Refusal.TOO_SLOW, sentence) from error
        if admission.verdict is None:
            await asyncio.sleep(CUT_GRACE_S)
            raise RemoteProtocolError(Refusal.MALFORMED, "the stream ends without an end frame")
        return False
