"""The handlers of PeerService: bytes in, checks in order, the runtime's answer out.

Order of checks: identity, limits, form, claimed sender, size, then what the runtime decides; state changes only there.
The first two come before the first byte of a request is read.
Every refusal is a reply (or, where the reply type has no room for one, a status with the trailer of `gate`); none of them
ends the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from coordinator_free_bootstrap import Subject
from coordinator_free_bootstrap.errors import Refusal, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Limits, Timeouts
from peer.core.messages import Announce, Beat, Outcome, PushReply
from peer.wire import convert, frames
from peer.wire.gate import Gate, abort, first_message
from peer.wire.identity import peer_of, same_sender
from peer.wire.inbound import Inbound
from peer.wire.options import SERVICE
from peer.wire.reception import Reception, patience_s


class PeerService:
    """Handlers of one peer; `handlers` gives them to gRPC. Streams end when ``stopping`` is set."""

    def __init__(
        self,
        inbound: Inbound,
        *,
        gate: Gate,
        limits: Limits,
        timeouts: Timeouts,
        stopping: asyncio.Event,
    ) -> None:
        self._inbound = inbound
        self._gate = gate
        self._limits = limits
        self._timeouts = timeouts
        self._stopping = stopping
        self._arriving: set[asyncio.Future[PushReply]] = set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return all methods, bytes in and out: messages are parsed inside, so that a malformed one is a refusal."""
        unary, stream = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods = {
            "Hello": unary(self.hello),
            "Beat": unary(self.beat),
            "Announce": unary(self.announce),
            "PushModel": unary(self.push),
            "PullModel": stream(self.pull),
            "Status": unary(self.status),
            "WatchStatus": stream(self.watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def hello(self, _requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Answer a handshake."""
        caller: int | None = None
        try:
            caller = self._caller(context)
            hello = convert.unpack_hello(await self._gate.request(caller, context))
            same_sender(caller, hello.sender)
            return convert.pack_hello_reply(await self._inbound.hello(caller, hello))
        except RemoteProtocolError as error:
            await self._gate.abort(context, caller, error)

    async def beat(self, _requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Note a sign of life."""

        async def note(caller: int | None, data: bytes) -> Refusal | None:
            beat: Beat = convert.unpack_beat(data)
            same_sender(caller, beat.sender)
            return await self._inbound.beat(caller, beat)

        return await self._acknowledge(context, note)

    async def announce(self, _requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Note what one exchange step will bring."""

        async def note(caller: int | None, data: bytes) -> Refusal | None:
            announce: Announce = convert.unpack_announce(data)
            same_sender(caller, announce.sender)
            return await self._inbound.announce(caller, announce)

        return await self._acknowledge(context, note)

    async def push(self, _requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Receive one model."""
        subject: Subject | None = None
        caller: int | None = None
        reception = Reception(self._inbound, context, None, limits=self._limits, timeouts=self._timeouts)
        try:
            subject = self._gate.subject(context)
            reception.caller = caller = peer_of(subject)
            with self._gate.stream(subject, context):
                return convert.pack_push_reply(await self._receive(reception))
        except RemoteProtocolError as error:
            self._inbound.refused(caller, error.code, error.sentence)
            reply = PushReply(Outcome.REFUSED, error.code, error.sentence)
        # Here, where the error is forgotten: its traceback held the model's buffer.
        if reply.refusal is not Refusal.TOO_SLOW:
            with suppress(RemoteProtocolError), self._gate.drain(subject, context):
                await reception.drain()
        return convert.pack_push_reply(reply)

    async def pull(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        """Send one model that a neighbor asks for."""
        caller: int | None = None
        try:
            caller = self._caller(context)
            with self._gate.stream(caller, context):
                problem = await self._send(caller, await first_message(context, self._timeouts), context)
                if problem is not None:
                    await self._gate.abort(context, caller, problem)
        except RemoteProtocolError as error:
            await self._gate.abort(context, caller, error)

    async def status(self, _requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Say what the peer is doing."""
        async with self._gate.aborting(context):
            await self._gate.request(self._gate.subject(context), context)
            return convert.pack_status(self._inbound.status())

    async def watch(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        """Say what the peer is doing until the observer leaves or the peer stops."""
        async with self._gate.aborting(context):
            with self._gate.stream(self._gate.subject(context), context):
                interval_s = convert.unpack_watch(await first_message(context, self._timeouts))
                while not self._stopping.is_set():
                    await context.write(convert.pack_status(self._inbound.status()))
                    await _set_within(self._stopping, interval_s)

    async def _receive(self, reception: Reception) -> PushReply:
        admission = await reception.admit()
        if isinstance(admission, PushReply):
            await reception.drain()
            return admission
        await reception.fill(admission)
        if admission.verdict is not None:
            return admission.verdict
        # From here on the model is the runtime's, also if the sender goes away before it has its reply.
        arriving = asyncio.ensure_future(self._inbound.arrived(admission))
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)
        return await asyncio.shield(arriving)

    async def _send(self, caller: int | None, data: bytes, context: Any) -> RemoteProtocolError | None:
        """Send the model; return what is wrong with its receiver.

        Returned, so that no traceback keeps the model: the status waits behind the bytes that are not taken, for ever perhaps.
        """
        request = convert.unpack_pull(data)
        same_sender(caller, request.sender)
        answer = await self._inbound.pull(caller, request)
        if isinstance(answer, Refusal):
            await abort(context, answer, "the pull is refused")
        header, payload = answer
        clock, idle_s = asyncio.get_running_loop().time, self._timeouts.idle_transfer_s
        latest = clock() + patience_s(header.size_bytes, self._timeouts)
        try:
            async with asyncio.timeout_at(min(latest, clock() + idle_s)) as deadline:
                await context.write(convert.pack_header(header))
                for frame, _size in frames.model_frames(payload, self._limits.frame_bytes_max):
                    await context.write(frame)
                    deadline.reschedule(min(latest, clock() + idle_s))
        except TimeoutError:
            allowed = f"{idle_s:g} s (timeouts.idle_transfer_s) without a byte, and 32 KiB/s after that"
            return RemoteProtocolError(
                Refusal.TOO_SLOW, f"the receiver takes nothing, or too slowly; allowed are {allowed}"
            )
        return None

    async def _acknowledge(self, context: Any, note: Callable[[int | None, bytes], Awaitable[Refusal | None]]) -> bytes:
        caller: int | None = None
        try:
            caller = self._caller(context)
            refusal, reason = await note(caller, await self._gate.request(caller, context)), ""
        except RemoteProtocolError as error:
            refusal, reason = error.code, error.sentence
            self._inbound.refused(caller, refusal, reason)
        return convert.pack_acknowledgement(refusal, reason)

    def _caller(self, context: Any) -> int | None:
        return peer_of(self._gate.subject(context))


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
